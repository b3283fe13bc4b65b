//! The write of an operation. One batch has the request for the lease that the caller needs, and a
//! transaction. The transaction writes records, waiters, sessions and ends, and touches the `life/`
//! key of each token to wake.

use super::Keys;
use super::client::{grant, keep};
use super::http::Request;
use super::layout::Layout;
use super::lease::LeaseOf;
use super::messages::{Act, Bytes, Compare, Number, Put, Span, Txn, bundled};
use super::read::Sessions;
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{LOG_KEPT, Phase, Record, Time, millis};
use crate::store::Error;
use crate::store::engine::coordinator::{Batch, Written};
use crate::store::engine::stored_lock::{Change, WaiterPart};
use std::time::Duration;

/// Most locks of one run. With more, the transaction that releases them to their waiters might be
/// too large for etcd.
const LOCKS_MOST: usize = 100;
/// Most waiters of a lock that one write suspends, because the death of a large crowd would be too
/// much for one transaction. The others have no session, so they are stale all the same, and are
/// suspended later.
const SUSPENDED_MOST: usize = 128;

/// The operations of a transaction.
struct Draft {
    layout: Layout,
    acts: Vec<Act>,
}

/// The lease that the caller needs.
#[derive(Clone, Copy)]
struct Need {
    of: LeaseOf,
    id: u64,
    /// Whether all its sessions are on this lease already.
    is_met: bool,
    /// Number of locks that it holds or waits for.
    locks: usize,
}

impl Keys {
    /// Writes the records if none of them has changed since they were read.
    pub(super) fn write(&mut self, seen: &[Sessions], batch: Batch<'_>) -> Result<Written, Error> {
        let Batch { changes, me, now, woken, deadline, .. } = batch;
        let layout = self.layout();
        let unchanged =
            |change: &Change| Compare::unchanged(layout.lock(&change.after.name), change.after.version);
        let mut compare: Vec<Compare> = changes.iter().map(unchanged).collect();
        let mut locks: Vec<(Change, &Sessions)> = changes.into_iter().zip(seen).collect();
        locks.retain(|(change, _)| change.is_changed);
        if locks.is_empty() {
            return Ok(Written::Yes);
        }
        let need = me.and_then(|me| need(me, &locks, now));
        if need.is_some_and(|need| need.locks > LOCKS_MOST) {
            let shown = self.client.shown();
            return Err(Error::Unfit(format!("{shown} cannot take more than {LOCKS_MOST} locks at once")));
        }
        // A hold moves to another lease only if its session has not ended since the read (I6).
        if let (Some(me), Some(Need { is_met: false, .. })) = (me, &need)
            && locks.iter().filter_map(|(_, sessions)| sessions.get(me)).any(|session| !session.ttl.is_zero())
        {
            compare.push(Compare::exists(layout.life(me)));
        }
        let mut draft = Draft { layout, acts: Vec::new() };
        if let Some(me) = me {
            draft.add_sessions(me, need.as_ref(), &locks, now);
        }
        for (change, sessions) in locks {
            let added = draft.add(change, sessions, now);
            added.map_err(|error| Error::Garbled(format!("{}: {error}", self.client.shown())))?;
        }
        woken.iter().for_each(|token| draft.wake(token));
        let success = bundled(draft.acts, compare.len());
        self.send(&Txn { compare, success }, me, need, deadline)
    }

    /// Sends the transaction, and before it the request for the lease.
    fn send(
        &mut self,
        txn: &Txn,
        me: Option<&Token>,
        need: Option<Need>,
        deadline: Moment,
    ) -> Result<Written, Error> {
        let is_known = need.is_some_and(|need| self.leases.contains(&need.id));
        let lease = |need: Need| if is_known { keep(need.id) } else { grant(need.id, need.of.seconds()) };
        let requests: Vec<Request> =
            need.map(lease).into_iter().chain([txn.request(&self.client)?]).collect();
        let mut replies = self.client.ask(&requests, deadline)?;
        let (reply, leased) = (replies.pop(), replies.pop());
        // The lease has ended since the read.
        if matches!(&reply, Some(Err(error)) if error.message.contains("lease not found")) {
            need.map(|need| self.leases.remove(&need.id));
            self.read_was_stale = true;
            return Ok(Written::Conflict);
        }
        if matches!(&reply, Some(Err(error)) if error.is_too_large()) {
            return Ok(Written::too_large(self.client.shown()));
        }
        let (answer, _) = self.client.txn_answer(reply)?;
        if !answer.succeeded {
            if let Some(Need { of, id, .. }) = need.filter(|_| !is_known)
                && self.client.granted(leased).is_ok_and(|granted| granted == Some(of.seconds()))
            {
                self.leases.insert(id);
            }
            self.read_was_stale = true;
            return Ok(Written::Conflict);
        }
        self.wrote = answer.header.revision.0;
        if let (Some(me), Some(Need { of, id, .. })) = (me, need) {
            if is_known {
                let kept_alive = self.client.kept_alive(leased)?;
                self.check_proved(id, of, kept_alive, &answer.header, deadline)?;
            } else {
                self.check_granted(id, of, leased, deadline)?;
            }
            self.leases.insert(id);
            if of != LeaseOf::Waiter {
                self.leases.remove(&LeaseOf::Waiter.id(me));
            }
        }
        Ok(Written::Yes)
    }
}

impl Draft {
    fn put(&mut self, key: Bytes, value: Vec<u8>, lease: Option<u64>) {
        let put = Put { key, value: Bytes(value), lease: lease.map(Number), ..Put::default() };
        self.acts.push(Act::Put(put));
    }

    fn delete(&mut self, key: Bytes) {
        self.acts.push(Act::Delete(Span::one(key)));
    }

    /// Adds the changes of one lock: to its record, its waiters and its ends. Removes the sessions
    /// of tokens that neither hold nor wait any more.
    fn add(&mut self, mut change: Change, sessions: &Sessions, now: Time) -> Result<(), serde_json::Error> {
        let parts = change.parts(now)?;
        let (name, record) = (&change.after.name, &change.after.record);
        for token in sessions.keys().filter(|token| !has_session(record, token)) {
            self.delete(self.layout.session(name, token));
        }
        parts.gone.iter().for_each(|token| self.delete(self.layout.waiter(name, token)));
        let is_stale = |waiter: &WaiterPart| !waiter.is_queued && !sessions.contains_key(&waiter.token);
        let (stale, others): (Vec<_>, Vec<_>) = parts.waiters.into_iter().partition(is_stale);
        for waiter in others.into_iter().chain(stale.into_iter().take(SUSPENDED_MOST)) {
            self.put(self.layout.waiter(name, &waiter.token), waiter.value, None);
        }
        let last = parts.ends.last().map_or(0, |end| end.number);
        for end in parts.ends {
            self.put(self.layout.end(name, end.number), end.value, None);
        }
        if last > LOG_KEPT as u64 {
            let old = Some(self.layout.end(name, last - LOG_KEPT as u64 + 1));
            self.acts.push(Act::Delete(Span { range_end: old, ..self.layout.ends(name) }));
        }
        self.put(self.layout.lock(name), parts.body, None);
        Ok(())
    }

    /// Puts the caller's sessions on the lease that it needs, if they are not on it yet. Deletes
    /// the caller's `life/` key if it has no session left.
    fn add_sessions(&mut self, me: &Token, need: Option<&Need>, locks: &[(Change, &Sessions)], now: Time) {
        let Some(need) = need else {
            let was_there = locks.iter().any(|(_, sessions)| sessions.contains_key(me));
            if was_there && !locks.iter().any(|(change, _)| has_session(&change.after.record, me)) {
                self.delete(self.layout.life(me));
            }
            return;
        };
        if need.is_met {
            return;
        }
        for (Change { after, .. }, _) in locks {
            let Some(ttl) = wanted(&after.record, me, now) else { continue };
            let value = if ttl.is_zero() { Vec::new() } else { millis(ttl).to_string().into() };
            self.put(self.layout.session(&after.name, me), value, Some(need.id));
        }
        self.put(self.layout.life(me), Vec::new(), Some(need.id));
    }

    fn wake(&mut self, token: &Token) {
        let key = self.layout.life(token);
        let touch = Put { key: key.clone(), ignore_lease: true, ..Put::default() };
        let touch = Txn { compare: vec![Compare::exists(key)], success: vec![Act::Put(touch)] };
        self.acts.push(Act::Txn(touch));
    }
}

/// Whether the token may have a session at this lock. The session of a revoked hold shows that its
/// job may still run.
fn has_session(record: &Record, token: &Token) -> bool {
    record.waiters.contains_key(token)
        || record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling)
}

/// The ttl of the session that the caller needs at this lock, as in
/// [`Session::ttl`](super::read::Session). None if it needs none.
fn wanted(record: &Record, me: &Token, now: Time) -> Option<Duration> {
    let hold = record.holds.get(me).filter(|hold| hold.phase == Phase::Held && hold.confirmed);
    let ttl = hold.map(|hold| hold.until.left(now)).filter(|ttl| !ttl.is_zero());
    ttl.or_else(|| record.waiters.contains_key(me).then_some(Duration::ZERO))
}

fn need(me: &Token, locks: &[(Change, &Sessions)], now: Time) -> Option<Need> {
    let wants: Vec<_> = locks
        .iter()
        .filter_map(|(change, sessions)| Some((wanted(&change.after.record, me, now)?, sessions.get(me))))
        .collect();
    let of = LeaseOf::session(wants.iter().map(|(ttl, _)| *ttl).max()?);
    let lease = wants.first().and_then(|(_, session)| session.map(|session| session.lease));
    let is_met = wants.iter().all(|(ttl, session)| {
        session.is_some_and(|session| session.ttl == *ttl && Some(session.lease) == lease)
    });
    let id = lease.filter(|_| is_met).unwrap_or_else(|| of.id(me));
    Some(Need { of, id, is_met, locks: wants.len() })
}

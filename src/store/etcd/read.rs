//! Reads locks in one etcd transaction: the records, all waiters, and the sessions of holders and
//! waiters. Only its session tells whether a hold or a waiter is alive; the times in the record do
//! not count.

use super::Keys;
use super::layout::token_of;
use super::messages::{Number, Pair, Range, Span};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{Due, LOG_KEPT, Phase, SILENCE, TICKET_KEPT, Time};
use crate::store::Error;
use crate::store::engine::bounds::check_number;
use crate::store::engine::coordinator::{Purpose, Reading, Snapshot};
use crate::store::engine::stored_lock::StoredLock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most leases whose remaining time is looked up.
const LEASES_ASKED: usize = 16;

/// A session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Id of its lease.
    pub lease: u64,
    /// The ttl of a confirmed hold; zero for a waiter, or a grant that is not confirmed.
    pub ttl: Duration,
}

/// The sessions of one lock.
pub type Sessions = BTreeMap<Token, Session>;

impl Keys {
    /// Reads the locks. Returns also the revision at which it read. If a lease was kept alive
    /// before, this read proves it, or fails.
    pub(super) fn snapshot(
        &mut self,
        reading: &Reading<'_>,
    ) -> Result<(Snapshot<Vec<Sessions>>, u64), Error> {
        let (layout, is_all) = (self.layout(), reading.purpose == Purpose::LookAtAll);
        let (kept_alive, read_was_stale) = (self.kept_alive.take(), std::mem::take(&mut self.read_was_stale));
        // A serializable read returns the member's own state, which may lag behind. In that case
        // the write that follows fails. Any other read is linearizable.
        let is_for_write = reading.purpose.is_change();
        let serializable = is_for_write && !read_was_stale && kept_alive.is_none();
        let mut ranges = Vec::new();
        for name in reading.names {
            let spans = [Span::one(layout.lock(name)), layout.waiters(name), layout.sessions(name)];
            ranges.extend(spans.map(|span| Range { serializable, ..span.whole() }));
            if is_all {
                let limit = Some(Number(LOG_KEPT as u64));
                ranges.push(Range { limit, sort_order: Some("DESCEND"), ..layout.ends(name).whole() });
            }
        }
        let (read, now) = self.client.read(ranges, reading.deadline)?;
        let (header, mut ranges) = (read.header, read.ranges());
        let (mut locks, mut seen) = (Vec::new(), Vec::new());
        for name in reading.names {
            let mut next = || ranges.next().unwrap_or_default();
            let (record, waiters, sessions) = (next(), next(), next());
            let ends = if is_all { next() } else { Vec::new() };
            let lock = lock(name, record.first(), &waiters, &ends, now);
            locks.push(lock.map_err(|why| self.garbled(name, &why))?);
            seen.push(self::sessions(&sessions).map_err(|why| self.garbled(name, why))?);
        }
        if let Some(kept_alive) = kept_alive {
            self.check_kept(kept_alive, &header, reading.me, &seen)?;
        }
        let left = if is_all { self.left(&seen, reading.deadline)? } else { BTreeMap::new() };
        for (lock, sessions) in locks.iter_mut().zip(&seen) {
            judge(lock, sessions, reading.me, now, &left);
        }
        Ok((Snapshot { locks, now, seen }, header.revision.0))
    }

    /// Looks up the remaining time of the holders' leases.
    fn left(&mut self, seen: &[Sessions], deadline: Moment) -> Result<BTreeMap<u64, Duration>, Error> {
        let holders = seen.iter().flat_map(BTreeMap::values).filter(|session| !session.ttl.is_zero());
        let leases: BTreeSet<u64> = holders.map(|session| session.lease).collect();
        let leases: Vec<u64> = leases.into_iter().take(LEASES_ASKED).collect();
        let mut left = BTreeMap::new();
        for (lease, looked) in leases.iter().zip(self.look_at(&leases, deadline)?) {
            // etcd reports 0 in a lease's last second, and until it has removed an expired one.
            let shortest = Duration::from_millis(1);
            left.extend(looked.map(|looked| (*lease, Duration::from_secs(looked.ttl.0).max(shortest))));
        }
        Ok(left)
    }

    pub(super) fn garbled(&self, name: &str, why: &str) -> Error {
        let key = |kind| self.layout().key(kind, name);
        Error::Garbled(format!(
            "{}: the record of the lock {name:?} is not dlock's, or damaged ({why}); it was not changed: when \
             nothing runs under it, delete the key {} and all keys that begin with {}/, {}/ or {}/",
            self.client.shown(),
            key("lock"),
            key("wait"),
            key("session"),
            key("end")
        ))
    }
}

fn lock(
    name: &str,
    record: Option<&Pair>,
    waiters: &[Pair],
    ends: &[Pair],
    now: Time,
) -> Result<StoredLock, String> {
    let (mut lock, used) = match record {
        Some(pair) => StoredLock::parse(&pair.value.0, pair.mod_revision.0)?,
        None => (StoredLock::default(), 0),
    };
    name.clone_into(&mut lock.name);
    for pair in waiters {
        lock.add_waiter(token_of(&pair.key)?, &pair.value.0)?;
    }
    ends.iter().for_each(|pair| lock.add_end(&pair.value.0));
    let ends = lock.ends;
    lock.forget_history(used, now);
    // The keys of the old ends are still there, so the next end gets a number after theirs.
    lock.ends = ends;
    Ok(lock)
}

fn sessions(pairs: &[Pair]) -> Result<Sessions, &'static str> {
    let session = |pair: &Pair| {
        let ttl = match pair.value.0.as_slice() {
            [] => Some(0),
            text => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        };
        let ttl = ttl.filter(|ttl| check_number(*ttl).is_ok()).ok_or("the length of a lease is invalid")?;
        Ok((token_of(&pair.key)?, Session { lease: pair.lease.0, ttl: Duration::from_millis(ttl) }))
    };
    pairs.iter().map(session).collect()
}

/// Tells the lock rules which waiters and holds live. An unconfirmed grant lives while its waiter
/// does. `left` has the remaining time of those leases that were looked up.
///
/// A waiter's own deadlines in the record date from its last write. While it has a session, they
/// count from now. When it has none, it is stale. Its ticket is retained for [`TICKET_KEPT`] from
/// when an operation notices that, and suspends it.
fn judge(
    lock: &mut StoredLock,
    sessions: &Sessions,
    me: Option<&Token>,
    now: Time,
    left: &BTreeMap<u64, Duration>,
) {
    let record = &mut lock.record;
    for (token, waiter) in &mut record.waiters {
        let (place, lives) = ((waiter.ticket, token.clone()), sessions.contains_key(token));
        if lives || record.queue.contains(&place) {
            waiter.forget = Due::after(now, TICKET_KEPT);
        }
        if lives {
            waiter.stale_at = Due::after(now, SILENCE);
            continue;
        }
        waiter.stale_at = waiter.stale_at.min(Due::after(now, Duration::ZERO));
        // The rules then put the caller back in its place. That is a change, so it is written, and
        // the write gives the caller a session again.
        if me == Some(token) {
            record.queue.remove(&place);
        }
    }
    // etcd ends the sessions of stale waiters, so no gap in the heartbeats is counted.
    record.absence = Default::default();
    record.judge(now, |token, hold| {
        let Session { lease, ttl } = sessions.get(token)?;
        let is_unconfirmed = !hold.confirmed && hold.phase != Phase::Revoked;
        match ttl.is_zero() {
            false => Some(left.get(lease).copied().unwrap_or(*ttl)),
            true => is_unconfirmed.then_some(SILENCE),
        }
    });
}

//! Runs the lock rules for the stores that cannot run them, over records that a [`Coordinator`]
//! keeps. The engine decides which records an operation needs, which processes are dead, what is
//! written and which waiters are woken.
//!
//! An operation on one or several locks is a [`Transaction`]. A renewal or a heartbeat that only
//! moves a deadline needs none: the holder or waiter publishes its new deadline outside the record,
//! and reads the records. Between two operations the engine keeps in memory only the liveness of
//! its own token, the deadline it last published, its position in the queue, whether it was woken,
//! and its watches. So the guard's forked copy of the store works as well as the original.
//!
//! Watching and waking:
//! - A waiter watches the liveness of its predecessor in each of its queues. The head of a queue
//!   watches the holders that block it.
//! - The operation that grants a lock wakes the new holder. If a releasing holder is killed before
//!   that, the new holder notices it by itself: as the head, it watched that process. Others that
//!   were granted the lock in the same operation find out when they next ask.
//! - So a release wakes the waiters that it grants the lock to, and the watchers. A death wakes the
//!   waiter behind. Where nothing tells of a death, waiters read every few seconds.
//! - Nothing wakes a waiter when a lease or a min-hold runs out, except in etcd and ZooKeeper,
//!   where the end of a session fires the watch. Otherwise the waiter asks again after
//!   [`next`](crate::rules::Waiting::next).

pub mod bounds;
mod contention;
pub mod coordinator;
mod operations;
pub mod stored_lock;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
pub mod subscription;
mod transaction;
mod wake;

use crate::clock::Moment;
use crate::lock::{Mode, Name, Names, Token};
use crate::rules::{ABSENCE, Record, SILENCE, Time};
use crate::rules::{Renew, Renewal};
use crate::store::{Error, Slept};
use contention::{Contender, Contention};
use coordinator::{Coordinator, KeepAlive, Leases, Purpose, Reading, Watching, Written};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use stored_lock::StoredLock;
use transaction::Transaction;

/// Most processes that are watched at the same time: each watch takes a descriptor, and a process
/// often may open only 1024.
const WATCHES_MAX: usize = 256;

/// A store must list all locks within the time of this many requests: with a short `--op-timeout`,
/// a silent server must not block the caller for a minute.
const LIST_REQUESTS: u32 = 10;

/// A store over a coordinator. A clone shares the liveness that [`prepare`](crate::store::Store::prepare) began.
pub struct Engine<C: Coordinator> {
    pub(super) coordinator: C,
    /// End of the lease, if this process took or renewed it.
    lease: Option<Moment>,
    /// Whether the record has [`Renew::rest`].
    is_rest_shown: bool,
    /// Time of the last heartbeat, while this process waits.
    last_heartbeat: Option<Moment>,
    /// Number of waiters before this one when it last asked.
    ahead: u64,
    /// Whether it was woken since the last request: something has changed, so the next request goes
    /// straight to a transaction.
    is_woken: bool,
    /// Whether this process has had its one chance to clean up, after its first acquire.
    has_cleaned_up: bool,
    /// The token whose release a read has shown to be right, and that has not succeeded yet.
    left: Option<Token>,
    watched: Watched<C::Watch>,
}

/// The other processes that `sleep` watches.
struct Watched<W> {
    watches: BTreeMap<Token, W>,
    /// Whether one of them died or left before it could be watched.
    has_ended: bool,
    /// Tokens that had no liveness left when they were to be watched. Most have released the lock,
    /// so each is a reason to ask again, but only once.
    missing: BTreeSet<Token>,
}

impl<W> Default for Watched<W> {
    fn default() -> Self {
        Self { watches: BTreeMap::new(), has_ended: false, missing: BTreeSet::new() }
    }
}

impl<C: Coordinator> Clone for Engine<C> {
    fn clone(&self) -> Self {
        Self::new(self.coordinator.clone())
    }
}

impl<C: Coordinator> Engine<C> {
    /// A store that keeps its locks in this coordinator.
    pub fn new(coordinator: C) -> Self {
        Self {
            coordinator,
            lease: None,
            is_rest_shown: false,
            last_heartbeat: None,
            is_woken: false,
            has_cleaned_up: false,
            left: None,
            ahead: 0,
            watched: Watched::default(),
        }
    }

    /// Removes what is too old, or was left by dead processes.
    pub fn clean_up(&mut self, deadline: Moment) {
        self.coordinator.clean_up(deadline);
    }

    /// Applies `operation` as one transaction on behalf of `me`. Starts again after a write
    /// conflict, while there is time, or if the rules need a lock that was not read. If the write
    /// was too large, starts again and grants fewer waiters.
    fn transact<R>(
        &mut self,
        names: &Names,
        me: Option<&Token>,
        wants: Option<Mode>,
        lease: Option<Duration>,
        deadline: Moment,
        operation: impl Fn(&mut Transaction<'_, C>) -> R,
    ) -> Result<R, Error> {
        let (mut related, mut too_large) = (BTreeSet::new(), 0);
        let (mut purpose, mut contention) = (Purpose::Change, Contention::new(deadline));
        loop {
            let reading = Reading { names: &related, me, lease, purpose, deadline };
            let mut transaction = Transaction::open(&mut self.coordinator, names, reading)
                .map_err(|error| contention.blame(error))?;
            transaction.reap(me, wants);
            transaction.table.too_large = too_large;
            transaction.is_crowded = contention.is_crowded();
            let who = transaction.contender(me, wants);
            let answer = operation(&mut transaction);
            let missing = transaction.missing();
            if !missing.is_empty() {
                related.extend(missing);
                continue;
            }
            if transaction.may_abort {
                return Ok(answer);
            }
            match transaction.commit(me).map_err(|error| contention.blame(error))? {
                Written::Yes => return Ok(answer),
                Written::Unknown(error) => contention.go_on_after(error)?,
                Written::Conflict => {
                    contention.pause(who)?;
                    self.keep_place(names, me, deadline);
                    let reserves = who == Contender::Alone && contention.is_crowded();
                    purpose = if reserves { Purpose::Reserve } else { Purpose::Change };
                }
                // The rules then grant fewer waiters at once, and in the end none: a renewal or
                // a release must not fail because many wait.
                Written::TooLarge(_) if too_large < 3 => too_large += 1,
                Written::TooLarge(why) => return Err(why),
            }
        }
    }

    /// Sends the heartbeat of a waiter whose transaction takes longer than the time between two.
    fn keep_place(&mut self, names: &Names, me: Option<&Token>, deadline: Moment) {
        if let (Some(me), Some(at)) = (me, self.last_heartbeat)
            && Moment::now() > at.after(C::HEARTBEAT)
        {
            self.last_heartbeat = self.beat(names, me, deadline);
        }
    }

    /// Reads these locks into a transaction that is only tried and never committed.
    fn look<'a>(
        coordinator: &'a mut C,
        names: &Names,
        me: &Token,
        deadline: Moment,
    ) -> Result<Transaction<'a, C>, Error> {
        let none = BTreeSet::new();
        let reading = Reading { names: &none, me: Some(me), lease: None, purpose: Purpose::Look, deadline };
        Transaction::open(coordinator, names, reading)
    }

    /// Applies `operation` to the records without writing them. Returns None if it would change
    /// anything but the time of this waiter's heartbeat.
    fn try_without_writing<R>(
        &mut self,
        names: &Names,
        me: &Token,
        mode: Mode,
        deadline: Moment,
        operation: impl Fn(&mut Transaction<'_, C>) -> R,
    ) -> Result<Option<R>, Error> {
        let mut transaction = Self::look(&mut self.coordinator, names, me, deadline)?;
        transaction.reap(Some(me), Some(mode));
        let answer = operation(&mut transaction);
        Ok(transaction.is_idle(me).then_some(answer))
    }

    /// Watches these tokens in the next `sleep`, and no others.
    fn watch_tokens(&mut self, tokens: BTreeSet<Token>, deadline: Moment) {
        let Watched { watches: mut before, missing, .. } = std::mem::take(&mut self.watched);
        for token in tokens {
            let watching = match before.remove(&token) {
                Some(watch) => Watching::Watched(watch),
                None => self.coordinator.watch(&token, deadline),
            };
            match watching {
                Watching::Watched(watch) => drop(self.watched.watches.insert(token, watch)),
                Watching::Ended => self.watched.has_ended = true,
                Watching::Missing => {
                    self.watched.has_ended |= !missing.contains(&token);
                    self.watched.missing.insert(token);
                }
                Watching::Unknown => {}
            }
        }
    }

    /// Publishes the waiter's heartbeat outside the record. Returns its time, or None if a
    /// transaction is needed: others cannot read the heartbeat there, or the last one is too old.
    fn beat(&mut self, names: &Names, token: &Token, deadline: Moment) -> Option<Moment> {
        let now = Moment::now();
        let is_late =
            self.last_heartbeat.is_none_or(|at| now > at.after(ABSENCE.max(C::HEARTBEAT + C::HEARTBEAT / 4)));
        let sign = KeepAlive { names, token, until: now.after(SILENCE), ttl: None };
        (!is_late && self.coordinator.keep_alive(&sign, deadline).unwrap_or(false)).then_some(now)
    }

    /// Renews the lease, and writes the renewal into the records.
    fn record_renewal(
        &mut self,
        names: &Names,
        renew: &Renew<'_>,
        deadline: Moment,
    ) -> Result<Renewal, Error> {
        let (began, token) = (Moment::now(), renew.token);
        let renewal = self.transact(names, Some(token), None, Some(renew.ttl), deadline, |transaction| {
            transaction.table.renew(transaction.now, names, renew)
        })?;
        if is_held(renewal) {
            self.set_lease(names, token, began, renew.ttl, deadline);
        } else {
            self.lease = None;
        }
        Ok(renewal)
    }

    /// Sets the end of the lease, and publishes it. Otherwise the lease would last until the deadline
    /// that this process has published as a waiter, or of an earlier lease, if that is later.
    fn set_lease(&mut self, names: &Names, token: &Token, began: Moment, ttl: Duration, deadline: Moment) {
        let until = began.after(ttl);
        if C::LEASES == Leases::Published {
            let sign = KeepAlive { names, token, until, ttl: Some(ttl) };
            // If it cannot be published, the record has the end.
            self.coordinator.keep_alive(&sign, deadline).ok();
        }
        (self.lease, self.last_heartbeat) = (Some(until), None);
    }

    /// Renews the lease outside the record. Returns None if a transaction must renew it.
    fn renew_outside(
        &mut self,
        names: &Names,
        renew: &Renew<'_>,
        deadline: Moment,
    ) -> Result<Option<Renewal>, Error> {
        let Renew { token, ttl, .. } = *renew;
        let until = Moment::now().after(ttl);
        let sign = KeepAlive { names, token, until, ttl: Some(ttl) };
        match C::LEASES {
            Leases::Recorded => return Ok(None),
            // A process that judges a lease reads first the clock and then the published end. The
            // holder publishes the new end first and then reads the clock. If the old end has not
            // come by then, any process that still saw the old end had read the clock before, when
            // the old lease was not over. Publishing a new end never revives a lease that is over.
            Leases::Published => {
                let Some(end) = self.lease else { return Ok(None) };
                if end.passed()
                    || until < end
                    || !self.coordinator.keep_alive(&sign, deadline)?
                    || end.passed()
                {
                    return Ok(None);
                }
            }
            // The session is extended first, so the records read afterwards hold for the extended
            // lease. A process that did not take the locks itself reads the records before, too: if
            // it extended the session of a hold that an operator revoked, the lock would stay
            // blocked for longer.
            Leases::Sessions => {
                if self.lease.is_none() && self.renewal_by_records(names, renew, deadline)?.is_none() {
                    return Ok(None);
                }
                if !self.coordinator.keep_alive(&sign, deadline)? {
                    return Ok(None);
                }
            }
        }
        let renewal = self.renewal_by_records(names, renew, deadline)?;
        if renewal.is_some() {
            self.lease = Some(until);
        }
        Ok(renewal)
    }

    /// Returns what the rules answer to a renewal, by the records as they are now. Writes nothing.
    /// None if the token does not hold all of the locks or has not confirmed the grants, if the first
    /// renewal must be recorded, or if the answer is that a lock is lost.
    fn renewal_by_records(
        &mut self,
        names: &Names,
        renew: &Renew<'_>,
        deadline: Moment,
    ) -> Result<Option<Renewal>, Error> {
        let mut transaction = Self::look(&mut self.coordinator, names, renew.token, deadline)?;
        let is_known = names.iter().all(|name| {
            let record = transaction.table.records.get(name.as_str());
            let hold = record.and_then(|record| record.holds.get(renew.token));
            hold.is_some_and(|hold| hold.confirmed && (hold.renewed || hold.pause_on_failure.is_none()))
        });
        let renewal = transaction.table.renew(transaction.now, names, renew);
        Ok(Some(renewal).filter(|renewal| is_known && is_held(*renewal)))
    }

    /// Reads the records of these locks without locking them, and leaves the dead out of what it
    /// returns. With `only` it checks that token only.
    ///
    /// A process that releases its token writes the record before its liveness ends. So a token that
    /// seems dead is dead if the record, read again, still names it.
    fn read(
        &mut self,
        names: &Names,
        only: Option<&Token>,
        deadline: Moment,
    ) -> Result<(Vec<StoredLock>, Time), Error> {
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        let reading = Reading { names: &names, me: only, lease: None, purpose: Purpose::LookAtAll, deadline };
        let mut looked = self.coordinator.read(&reading)?;
        let mut dead = BTreeSet::new();
        for lock in &looked.locks {
            let named = only.map_or_else(|| named(&lock.record), |token| vec![token.clone()]);
            for token in named.into_iter().filter(|token| lock.tracked.contains_key(token)) {
                if self.coordinator.is_dead(&looked.seen, &token) {
                    dead.insert(token);
                }
            }
        }
        if !dead.is_empty() {
            looked = self.coordinator.read(&reading)?;
        }
        for lock in &mut looked.locks {
            for token in dead.iter().filter(|token| lock.tracked.contains_key(token)) {
                lock.record.reap(looked.now, token);
            }
        }
        Ok((looked.locks, looked.now))
    }

    /// Reads one lock.
    fn read_one(
        &mut self,
        name: &Name,
        only: Option<&Token>,
        deadline: Moment,
    ) -> Result<(StoredLock, Time), Error> {
        let (mut locks, now) = self.read(&name.clone().into(), only, deadline)?;
        Ok((locks.pop().unwrap_or_else(|| StoredLock::absent(name.as_str())), now))
    }

    /// Sleeps until woken, interrupted, or `until`, and sends heartbeats meanwhile.
    fn sleep_with_heartbeats(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        if self.watched.has_ended {
            return Ok(Slept::Woken);
        }
        loop {
            let next = self.last_heartbeat.map_or(until, |at| at.after(C::HEARTBEAT));
            // If `until` follows soon, the caller's next request is the heartbeat.
            let next = if next.after(C::HEARTBEAT / 4) < until { next } else { until };
            let watches = &mut self.watched.watches.values();
            if self.coordinator.wait(names, token, self.ahead, watches, next)? {
                self.is_woken = true;
                return Ok(Slept::Woken);
            }
            // The sleep was interrupted, or `until` has come.
            if !next.passed() || next == until {
                return Ok(Slept::Through);
            }
            let deadline = Moment::now().after(self.coordinator.request_time());
            self.last_heartbeat = self.beat(names, token, deadline);
            if self.last_heartbeat.is_none() {
                return Ok(Slept::Woken);
            }
        }
    }

    fn end_liveness(&mut self, token: &Token, deadline: Moment) {
        self.coordinator.end(token, deadline);
        (self.lease, self.last_heartbeat) = (None, None);
        self.watched = Watched::default();
    }
}

const fn is_held(renewal: Renewal) -> bool {
    matches!(renewal, Renewal::Renewed | Renewal::Asked | Renewal::Superseded)
}

/// The waiters and holders of a lock, without holds that are cooling.
fn named(record: &Record) -> Vec<Token> {
    record.waiters.keys().chain(wake::holders(record)).cloned().collect()
}

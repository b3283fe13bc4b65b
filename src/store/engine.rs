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
//! - So a release wakes the waiters that it grants the lock to (and watchers), and a death the
//!   waiter behind.
//! - Nothing wakes a waiter when a lease or a min-hold runs out, except in etcd and ZooKeeper,
//!   where the end of a session fires the watch. Otherwise the waiter asks again after
//!   [`next`](crate::rules::Waiting::next).

pub mod bounds;
pub mod coordinator;
mod snapshot;
pub mod stored_lock;
mod transaction;

use crate::clock::Moment;
use crate::lock::{Fence, Key, Name, Names, Owner, Token};
use crate::rules::{ABSENCE, HEARTBEAT, LOG_KEPT, LockTable, Phase, Record, SILENCE, Time};
use crate::rules::{Acquired, Ask, End, Left, LoggedEnd, NewPause, Patience};
use crate::rules::{Proof, Refusal, Renewal, Requested, Revoke, Revoked};
use crate::store::net::interrupt;
use crate::store::{Endurance, Error, Found, Listener, Slept, Store, Subscription, View, Which};
use coordinator::{
    Coordinator, KeepAlive, KeepAliveOf, Leases, Liveness, OwnLiveness, Purpose, Reading, Watching, Written,
};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stored_lock::StoredLock;
use transaction::{Look, Transaction};

/// Most processes that are watched at the same time: each watch takes a descriptor, and a process
/// often may open only 1024.
const WATCHES_MAX: usize = 256;

/// Base of the back-off after a write conflict. A back-off is a random time, at most twice this
/// after the first conflict. The maximum doubles with each further conflict, up to the limits
/// below.
const BACK_OFF_FIRST: Duration = Duration::from_micros(500);
/// Longest back-off after a write conflict when acquiring.
const BACK_OFF_ACQUIRE: Duration = Duration::from_millis(500);
/// Longest back-off after a write conflict when confirming a grant: shorter, because the grant
/// lapses after [`crate::rules::CONFIRM_WITHIN`].
const BACK_OFF_CONFIRM: Duration = Duration::from_millis(10);
/// Longest back-off after a write conflict when the only holder renews or releases: shorter still,
/// because the lease is running out.
const BACK_OFF_HOLD: Duration = Duration::from_millis(1);
/// Longest back-off after a write conflict when one of several holders renews or releases, for
/// operators' commands, and for waiters that leave. They conflict with each other, and shorter
/// back-offs would overload the store.
const BACK_OFF_SHARED: Duration = Duration::from_millis(20);
/// Number of conflicts after which the only holder reserves the record: see [`Purpose::Reserve`].
const RESERVE_AFTER: u32 = 2;
/// Number of conflicts after which a refusal is no longer counted in the record. Otherwise the
/// callers of a crowd would lose race after race until they time out, only for that count.
const UNCOUNTED_AFTER: u32 = 2;
/// Longest time that listing all locks may take.
const LIST_WITHIN: Duration = Duration::from_secs(60);
/// A store must list all locks within the time of this many requests: with a short `--op-timeout`,
/// a silent server must not block the caller for a minute.
const LIST_REQUESTS: u32 = 10;

/// A store over a coordinator. A clone shares the liveness that [`Store::prepare`] began.
pub struct Engine<C: Coordinator> {
    pub(super) coordinator: C,
    /// This process's token, as it is stored.
    own: Option<Arc<Own>>,
    /// End of the lease, if this process took or renewed it.
    lease: Option<Moment>,
    /// Time of the last heartbeat, while this process waits.
    heard: Option<Moment>,
    /// Number of waiters before this one when it last asked.
    ahead: u64,
    /// Woken since the last request: something has changed, so the next request goes straight to a
    /// transaction.
    is_woken: bool,
    /// Whether this process has cleaned up, which it does once, after its first acquire.
    has_cleaned_up: bool,
    watched: Watched<C::Watch>,
}

/// This process's token.
struct Own {
    token: Token,
    /// No thread of this process acquires with it any more.
    is_given_up: AtomicBool,
}

/// The other processes that `sleep` watches.
struct Watched<W> {
    watches: BTreeMap<Token, W>,
    /// One of them died or left before it could be watched.
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
        Self { own: self.own.clone(), ..Self::new(self.coordinator.clone()) }
    }
}

impl<C: Coordinator> Engine<C> {
    /// A store that keeps its locks there.
    pub fn new(coordinator: C) -> Self {
        let (own, watched) = (None, Watched::default());
        Self {
            coordinator,
            own,
            lease: None,
            heard: None,
            is_woken: false,
            has_cleaned_up: false,
            ahead: 0,
            watched,
        }
    }

    /// Applies `operation` as one transaction on behalf of `me`. Starts again after a write
    /// conflict, if the rules need a lock that was not read, or, granting fewer, if the write was
    /// too large.
    fn transact<R>(
        &mut self,
        names: &Names,
        me: Option<&Token>,
        look: Look,
        lease: Option<Duration>,
        by: Moment,
        operation: impl Fn(&mut Transaction<'_, C>) -> R,
    ) -> Result<R, Error> {
        let (mut related, mut conflicts, mut too_large) = (BTreeSet::new(), 0, 0);
        let mut purpose = Purpose::Change;
        loop {
            let reading = Reading { names: &related, me, lease, purpose, by };
            let mut transaction = Transaction::open(&mut self.coordinator, names, reading)?;
            transaction.reap(me, look);
            transaction.drop_tombstones(me);
            transaction.table.too_large = too_large;
            transaction.may_go_uncounted = conflicts >= UNCOUNTED_AFTER;
            let is_granted = me.is_some_and(|me| transaction.is_held_by(me));
            let is_alone = is_granted && !transaction.is_held_by_others(me);
            let answer = operation(&mut transaction);
            let missing = transaction.missing();
            if !missing.is_empty() {
                related.extend(missing);
                continue;
            }
            if transaction.may_abort {
                return Ok(answer);
            }
            match transaction.commit(me)? {
                Written::Yes => return Ok(answer),
                Written::Conflict => {
                    conflicts += 1;
                    let longest = match look {
                        Look::Wants(_) if is_granted => BACK_OFF_CONFIRM,
                        Look::Wants(_) => BACK_OFF_ACQUIRE,
                        Look::Heads | Look::Holders if is_alone => BACK_OFF_HOLD,
                        Look::Heads | Look::Holders => BACK_OFF_SHARED,
                    };
                    let reserves = is_alone && conflicts >= RESERVE_AFTER;
                    purpose = if reserves { Purpose::Reserve } else { Purpose::Change };
                    back_off(conflicts, longest, by)?;
                }
                // The rules then grant fewer waiters at once, and in the end none: a renewal or
                // a release must not fail because many wait.
                Written::TooLarge(_) if too_large < 3 => too_large += 1,
                Written::TooLarge(why) => return Err(why),
            }
        }
    }

    /// A transaction that is only tried: nothing is written.
    fn look<'a>(
        coordinator: &'a mut C,
        names: &Names,
        me: &Token,
        by: Moment,
    ) -> Result<Transaction<'a, C>, Error> {
        let none = BTreeSet::new();
        let reading = Reading { names: &none, me: Some(me), lease: None, purpose: Purpose::Look, by };
        Transaction::open(coordinator, names, reading)
    }

    /// Applies `operation` to the records without writing them. Returns None if it would change
    /// anything but the time of this waiter's heartbeat.
    fn try_without_writing<R>(
        &mut self,
        names: &Names,
        me: &Token,
        look: Look,
        by: Moment,
        operation: impl Fn(&mut Transaction<'_, C>) -> R,
    ) -> Result<Option<R>, Error> {
        let mut transaction = Self::look(&mut self.coordinator, names, me, by)?;
        transaction.reap(Some(me), look);
        let answer = operation(&mut transaction);
        Ok(transaction.is_idle(me).then_some(answer))
    }

    /// Watches these tokens in the next `sleep`, and no others.
    fn watch_tokens(&mut self, tokens: BTreeSet<Token>, by: Moment) {
        let Watched { watches: mut before, missing, .. } = std::mem::take(&mut self.watched);
        for token in tokens {
            let watching = match before.remove(&token) {
                Some(watch) => Watching::Watched(watch),
                None => self.coordinator.watch(&token, by),
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
    fn beat(&mut self, names: &Names, token: &Token, by: Moment) -> Option<Moment> {
        let now = Moment::now();
        let is_late = self.heard.is_none_or(|heard| now > heard.after(ABSENCE));
        let kind = KeepAliveOf::Waiter { until: now.after(SILENCE) };
        let sign = KeepAlive { names, token, kind };
        (!is_late && self.coordinator.keep_alive(&sign, by).unwrap_or(false)).then_some(now)
    }

    /// Sets the end of the lease. If this process has published another deadline (as a waiter, or
    /// of an earlier lease), it publishes the new one. Otherwise the lease would end at the old
    /// deadline if that is after the one in the record.
    fn set_lease_end(&mut self, names: &Names, token: &Token, began: Moment, ttl: Duration, by: Moment) {
        let until = began.after(ttl);
        let has_published = self.heard.take().is_some() || self.lease.is_some();
        if C::LEASES == Leases::Published && has_published {
            let sign = KeepAlive { names, token, kind: KeepAliveOf::Holder { until, ttl } };
            // If it cannot be published, the record has the end.
            self.coordinator.keep_alive(&sign, by).ok();
        }
        self.lease = Some(until);
    }

    /// Renews the lease outside the record. Returns None if a transaction must renew it.
    fn renew_outside(
        &mut self,
        names: &Names,
        token: &Token,
        ttl: Duration,
        by: Moment,
    ) -> Result<Option<Renewal>, Error> {
        let until = Moment::now().after(ttl);
        let sign = KeepAlive { names, token, kind: KeepAliveOf::Holder { until, ttl } };
        match C::LEASES {
            Leases::Recorded => return Ok(None),
            // A process that judges a lease reads first the clock and then the published end. The
            // holder publishes the new end first and then reads the clock. If the old end has not
            // come by then, any process that still saw the old end had read the clock before, when
            // the old lease was not over. Publishing a new end never revives a lease that is over.
            Leases::Published => {
                let Some(end) = self.lease else { return Ok(None) };
                if end.passed() || until < end || !self.coordinator.keep_alive(&sign, by)? || end.passed() {
                    return Ok(None);
                }
            }
            // The session is extended first, so the records read afterwards hold for the extended
            // lease. A process that did not take the locks itself reads the records before, too: if
            // it extended the session of a hold that an operator revoked, the lock would stay
            // blocked for longer.
            Leases::Sessions => {
                if self.lease.is_none() && self.renewal_by_records(names, token, ttl, by)?.is_none() {
                    return Ok(None);
                }
                if !self.coordinator.keep_alive(&sign, by)? {
                    return Ok(None);
                }
            }
        }
        let renewal = self.renewal_by_records(names, token, ttl, by)?;
        if renewal.is_some() {
            self.lease = Some(until);
        }
        Ok(renewal)
    }

    /// Returns what the rules answer to a renewal by the records as they are. None if the token
    /// does not hold all of the locks or has not confirmed the grants, or if the answer is that a
    /// lock is lost.
    fn renewal_by_records(
        &mut self,
        names: &Names,
        token: &Token,
        ttl: Duration,
        by: Moment,
    ) -> Result<Option<Renewal>, Error> {
        let mut transaction = Self::look(&mut self.coordinator, names, token, by)?;
        let is_known = names.iter().all(|name| {
            let record = transaction.table.records.get(name.as_str());
            record.and_then(|record| record.holds.get(token)).is_some_and(|hold| hold.confirmed)
        });
        let renewal = transaction.table.renew(transaction.now, names, token, ttl);
        Ok(Some(renewal).filter(|renewal| is_known && is_held(*renewal)))
    }

    /// Reads the records of these locks without locking them, and leaves the dead out of what it
    /// returns. With `only` it checks that token only.
    ///
    /// A process that releases its token writes the record before its liveness ends. So a token is
    /// dead if it seems so and the record, read again, has not changed.
    fn read(
        &mut self,
        names: &Names,
        only: Option<&Token>,
        by: Moment,
    ) -> Result<(Vec<StoredLock>, Time), Error> {
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        let reading = Reading { names: &names, me: only, lease: None, purpose: Purpose::LookAtAll, by };
        let versions = |locks: &[StoredLock]| locks.iter().map(|lock| lock.version).collect::<Vec<_>>();
        let mut looked = self.coordinator.read(&reading)?;
        loop {
            let before = versions(&looked.locks);
            let mut dead = BTreeSet::new();
            for lock in &looked.locks {
                let named = only.map_or_else(|| named(&lock.record), |token| vec![token.clone()]);
                for token in named.into_iter().filter(|token| lock.tracked.contains_key(token)) {
                    if self.coordinator.liveness(&mut looked.seen, &token) == Liveness::Dead {
                        dead.insert(token);
                    }
                }
            }
            if !dead.is_empty() && !by.passed() {
                looked = self.coordinator.read(&reading)?;
                if versions(&looked.locks) != before {
                    continue;
                }
            }
            let (mut locks, now) = (looked.locks, looked.now);
            for lock in &mut locks {
                dead.iter().for_each(|token| lock.record.reap(now, token));
            }
            return Ok((locks, now));
        }
    }

    /// Reads one lock.
    fn read_one(
        &mut self,
        name: &Name,
        only: Option<&Token>,
        by: Moment,
    ) -> Result<(StoredLock, Time), Error> {
        let (mut locks, now) = self.read(&name.clone().into(), only, by)?;
        Ok((locks.pop().unwrap_or_else(|| StoredLock::absent(name.as_str())), now))
    }

    /// Sleeps until woken, interrupted, or `until`, and sends heartbeats meanwhile.
    fn sleep_with_heartbeats(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        if self.watched.has_ended {
            return Ok(Slept::Woken);
        }
        loop {
            let next = self.heard.map_or(until, |heard| heard.after(HEARTBEAT));
            // If `until` follows soon, the caller's next request is the heartbeat.
            let next = if next.after(HEARTBEAT / 4) < until { next } else { until };
            let watches = &mut self.watched.watches.values();
            if self.coordinator.wait(names, token, self.ahead, watches, next)? {
                self.is_woken = true;
                return Ok(Slept::Woken);
            }
            // The sleep was interrupted, or `until` has come.
            if !next.passed() || next == until {
                return Ok(Slept::Through);
            }
            let by = Moment::now().after(self.coordinator.request_time());
            self.heard = self.beat(names, token, by);
            if self.heard.is_none() {
                return Ok(Slept::Woken);
            }
        }
    }

    fn end_liveness(&mut self, token: &Token, by: Moment) {
        self.coordinator.end(token, by);
        (self.lease, self.heard) = (None, None);
        self.watched = Watched::default();
    }
}

const fn is_held(renewal: Renewal) -> bool {
    matches!(renewal, Renewal::Renewed | Renewal::Asked | Renewal::Superseded)
}

/// Sleeps a random time that grows with the number of conflicts. Fails if the deadline has passed.
fn back_off(conflicts: u32, longest: Duration, deadline: Moment) -> Result<(), Error> {
    // At most a quarter of the time left, so that several attempts remain.
    let most = BACK_OFF_FIRST.saturating_mul(1 << conflicts.min(10)).min(longest).min(deadline.left() / 4);
    if deadline.passed() {
        return Err(Error::Unavailable("the lock was changed by others at each attempt".into()));
    }
    let chance = getrandom::u32().map_or(1.0, |chance| f64::from(chance) / f64::from(u32::MAX));
    interrupt::sleep_until(Moment::now().after(most.mul_f64(chance)));
    Ok(())
}

/// The waiters and holders of a lock, without holds that are cooling.
fn named(record: &Record) -> Vec<Token> {
    let holders = record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling);
    record.waiters.keys().chain(holders.map(|(token, _)| token)).cloned().collect()
}

impl<C: Coordinator> Store for Engine<C> {
    /// Begins the liveness of the token. It ends with [`Store::leave`], with [`Store::hand_over`]
    /// (not where leases are sessions), and when `acquire` answers [`Acquired::Busy`],
    /// [`Acquired::Done`], [`Acquired::Superseded`] or [`Acquired::TokenEnded`] and no record names
    /// the token any more. A token that asks again after that has none. Its hold or place then ends
    /// only when its lease is over, or when it misses its heartbeats.
    fn prepare(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let token = self.coordinator.stored(token);
        let fds = self.coordinator.begin(&token)?;
        self.own = Some(Arc::new(Own { token, is_given_up: AtomicBool::new(false) }));
        Ok(fds)
    }

    fn hand_over(&mut self, names: &Names, token: &Token, by: Moment) -> Result<(), Error> {
        // Such a session belongs to the token, and outlives the process that began it.
        if C::LEASES == Leases::Sessions {
            return Ok(());
        }
        let token = &self.coordinator.stored(token);
        self.transact(names, Some(token), Look::Heads, None, by, |transaction| transaction.untrack(token))?;
        self.end_liveness(token, by);
        Ok(())
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        let ask = &Ask { token: self.coordinator.stored(&ask.token), ..ask.clone() };
        let token = &ask.token;
        let began = Moment::now();
        let was_woken = std::mem::take(&mut self.is_woken);
        let waits = self.heard.is_some() && ask.patience == Patience::Queue && !was_woken;
        let look = Look::Wants(ask.mode);
        let own = self.own.clone().filter(|own| own.token == *token);
        let operation = |transaction: &mut Transaction<'_, C>| {
            // Another thread of this process may have released the token while this thread waited
            // for the records. So may the guard, which is another process: then no record names the
            // token, and its liveness has ended.
            let is_known = transaction.is_named(token);
            let life = transaction.coordinator.own(token);
            let is_given_up = own.as_ref().is_some_and(|own| own.is_given_up.load(Ordering::SeqCst));
            if is_given_up || (!is_known && life == OwnLiveness::Ended) {
                return (Acquired::TokenEnded, BTreeSet::new(), false);
            }
            if life == OwnLiveness::Seen {
                transaction.track(token, ask.ttl);
            }
            let answer = transaction.table.acquire(transaction.now, names, ask);
            // If no record names the caller, only the count of refusals would change.
            let is_refused = !is_known && matches!(answer, Acquired::Busy(_) | Acquired::Done(_));
            transaction.may_abort = transaction.may_go_uncounted && is_refused;
            let to_watch = match answer {
                Acquired::Waiting(_) => transaction.watch_targets(token, WATCHES_MAX),
                _ => BTreeSet::new(),
            };
            (answer, to_watch, transaction.is_named(token))
        };
        let idle = if waits { self.try_without_writing(names, token, look, by, operation)? } else { None };
        let (mut answer, to_watch, is_named) = match idle {
            Some(answer @ (Acquired::Waiting(_), ..)) if self.beat(names, token, by).is_some() => answer,
            _ => self.transact(names, Some(token), look, Some(ask.ttl), by, operation)?,
        };
        match &mut answer {
            Acquired::Waiting(waiting) => {
                let (crowd, rarely) = C::CROWD;
                if waiting.ahead > crowd {
                    let beats = u32::try_from(waiting.ahead / crowd).unwrap_or(u32::MAX);
                    waiting.next = HEARTBEAT * beats.saturating_add(1).min(rarely);
                }
                (self.heard, self.ahead) = (Some(Moment::now()), waiting.ahead);
                self.watch_tokens(to_watch, by);
            }
            // The watches stay until the first renewal: dropping them takes time, and the job is to
            // start now.
            Acquired::Granted(_) => self.set_lease_end(names, token, began, ask.ttl, by),
            // A revoked holder keeps its liveness, because its job may still run.
            Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::TokenEnded
                if !is_named =>
            {
                self.end_liveness(token, by);
            }
            Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::TokenEnded => {}
        }
        if !std::mem::replace(&mut self.has_cleaned_up, true) {
            self.coordinator.clean_up(by);
        }
        Ok(answer)
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        let token = &self.coordinator.stored(token);
        self.watched = Watched::default();
        if let Some(renewal) = self.renew_outside(names, token, ttl, by)? {
            return Ok(renewal);
        }
        let began = Moment::now();
        let renewal = self.transact(names, Some(token), Look::Heads, Some(ttl), by, |transaction| {
            transaction.table.renew(transaction.now, names, token, ttl)
        })?;
        if is_held(renewal) {
            self.set_lease_end(names, token, began, ttl, by);
        } else {
            self.lease = None;
        }
        Ok(renewal)
    }

    fn endurance(&self) -> Endurance {
        self.coordinator.endurance()
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        let token = &self.coordinator.stored(token);
        if let Some(own) = self.own.as_ref().filter(|own| own.token == *token) {
            own.is_given_up.store(true, Ordering::SeqCst);
        }
        let left = self.transact(names, Some(token), Look::Heads, None, by, |transaction| {
            transaction.table.leave(transaction.now, names, token, end)
        })?;
        self.end_liveness(token, by);
        Ok(left)
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        let token = &self.coordinator.stored(token);
        let (locks, now) = self.read(names, Some(token), by)?;
        let records = locks.into_iter().map(|lock| (lock.name, lock.record));
        let table = LockTable { records: records.collect(), ..LockTable::default() };
        Ok(table.prove(now, names, token))
    }

    fn request(&mut self, name: &Name, fence: Fence, who: &Owner, by: Moment) -> Result<Requested, Error> {
        self.transact(&name.clone().into(), None, Look::Holders, None, by, |transaction| {
            transaction.table.request(transaction.now, name, fence, who)
        })
    }

    fn watch(&mut self, name: &Name, token: &Token, by: Moment) -> Result<(), Error> {
        let token = &self.coordinator.stored(token);
        self.transact(&name.clone().into(), Some(token), Look::Heads, None, by, |transaction| {
            transaction.track(token, Duration::ZERO);
            transaction.table.watch(transaction.now, name, token);
        })
    }

    /// In a directory, it needs the liveness that [`Store::prepare`] began. Without that, the
    /// subscription only sleeps.
    fn subscribe(
        &mut self,
        names: &[Name],
        token: &Token,
        listener: Listener,
    ) -> Result<Box<dyn Subscription>, Error> {
        Ok(self.coordinator.subscribe(names, &self.coordinator.stored(token), listener))
    }

    fn listen_as_holder(&mut self, names: &Names, token: &Token, until: Moment) -> Option<bool> {
        self.coordinator.listen_as_holder(names, &self.coordinator.stored(token), until)
    }

    fn forget(&mut self, name: &Name, by: Moment) -> Result<bool, Error> {
        self.transact(&name.clone().into(), None, Look::Heads, None, by, |transaction| {
            transaction.table.forget_success(transaction.now, name)
        })
    }

    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, by: Moment) -> Result<bool, Error> {
        self.transact(&name.clone().into(), None, Look::Heads, None, by, |transaction| {
            transaction.table.pause(transaction.now, name, pause)
        })
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        self.transact(&name.clone().into(), None, Look::Holders, None, by, |transaction| {
            transaction.table.revoke(transaction.now, name, revoke)
        })
    }

    /// After a few conflicts the refusal is not recorded.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, by: Moment) -> Result<(), Error> {
        let beside = name.of_refusals();
        self.transact(&beside.clone().into(), None, Look::Heads, None, by, |transaction| {
            transaction.table.refuse(transaction.now, &beside, refusal);
            transaction.may_abort = transaction.may_go_uncounted;
        })
    }

    fn refusals(&mut self, name: &Name, by: Moment) -> Result<Vec<Refusal>, Error> {
        Ok(self.read_one(&name.of_refusals(), None, by)?.0.record.refusals.into())
    }

    fn ends(&mut self, name: &Name, token: &Token, by: Moment) -> Result<Vec<LoggedEnd>, Error> {
        let token = self.coordinator.stored(token);
        let (lock, now) = self.read_one(name, Some(&token), by)?;
        Ok(view(name, now, lock).log)
    }

    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let (lock, now) = self.read_one(name, None, by)?;
        Ok(view(name, now, lock))
    }

    fn find(&mut self, prefix: &str, _: Which) -> Result<Found, Error> {
        let (mut names, mut missing) = (BTreeMap::new(), Vec::new());
        let within = self.coordinator.request_time().saturating_mul(LIST_REQUESTS).min(LIST_WITHIN);
        for full in self.coordinator.list(Moment::now().after(within))? {
            let full = match full {
                Ok(full) => full,
                Err(error) => {
                    missing.push(error);
                    continue;
                }
            };
            let key = full.strip_prefix(prefix).and_then(|key| Key::new(key).ok());
            if let Some(name) = key.and_then(|key| Name::new(prefix, &key).ok()) {
                names.insert(full, name);
            }
        }
        Ok(Found { names: names.into_values().collect(), missing })
    }

    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        let token = self.coordinator.stored(token);
        self.sleep_with_heartbeats(names, &token, until)
    }

    fn reset(&mut self) {
        self.coordinator.reset();
        self.watched = Watched::default();
    }
}

fn view(name: &Name, now: Time, mut lock: StoredLock) -> View {
    let mut view = lock.record.inspect(name, now);
    view.log.append(&mut lock.log);
    view.log.truncate(LOG_KEPT);
    view
}

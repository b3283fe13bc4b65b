//! Runs the lock rules for the stores that cannot run them, over records that a coordinator keeps.
//! The engine decides which records an operation needs, which processes are dead, what is written
//! and which waiters are woken. An [`Adapter`] is what the coordinator must do for that.
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

mod adapter;
pub mod bounds;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd", feature = "zookeeper"))]
pub mod kept;
pub mod queue;
mod snapshot;
mod transaction;

use crate::clock::Moment;
use crate::lock::{Fence, Key, Name, Names, Owner, Token};
use crate::rules::{ABSENCE, GRANTED_AT_ONCE, HEARTBEAT, LOG_KEPT, LockTable, Phase, Record, SILENCE, Time};
use crate::rules::{Acquired, Ask, End, Left, LoggedEnd, NewPause, Patience};
use crate::rules::{Proof, Refusal, Renewal, Requested, Revoke, Revoked};
use crate::store::{Endurance, Error, Found, Listener, Slept, Store, Subscription, View, Which};
pub use adapter::{Adapter, CatchUp, Changed, Entry, Liveness, Tracked, Written};
#[cfg(feature = "zookeeper")]
pub use snapshot::granted_alone;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::time::Duration;
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
/// Number of conflicts after which the only holder reserves the record: see [`Adapter::reserve`].
const RESERVE_AFTER: u32 = 2;
/// Number of conflicts after which a refusal is no longer counted in the record. Otherwise the
/// callers of a crowd would lose race after race until they time out, only for that count.
const UNCOUNTED_AFTER: u32 = 2;
/// Longest time that listing all locks may take.
const LIST_WITHIN: Duration = Duration::from_secs(60);
/// A server must list all locks within the time of this many operations: with a short
/// `--op-timeout`, a silent server must not block the caller for a minute.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
const LIST_OPERATIONS: u32 = 10;

/// The deadline for a server to list all locks: `by`, or `LIST_OPERATIONS` times `each` from now if
/// that is earlier.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
pub fn listed_by(by: Moment, each: Duration) -> Moment {
    by.min(Moment::now().after(each.saturating_mul(LIST_OPERATIONS)))
}

/// A store over an adapter. A clone shares the liveness that [`Store::prepare`] began.
pub struct Engine<A: Adapter> {
    pub(super) adapter: A,
    /// End of the lease by the clock of [`Adapter::now`], if this process took or renewed it.
    lease: Option<Duration>,
    /// Time of the last heartbeat by the clock of [`Adapter::now`], while this process waits.
    heard: Option<Duration>,
    /// Number of waiters before this one when it last asked.
    ahead: u64,
    /// Woken since the last request: something has changed, so the next request goes straight to a
    /// transaction.
    is_woken: bool,
    watched: Watched<A::Watch>,
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

impl<A: Adapter> Clone for Engine<A> {
    fn clone(&self) -> Self {
        Self::new(self.adapter.clone())
    }
}

impl<A: Adapter> Engine<A> {
    pub(super) fn new(adapter: A) -> Self {
        let watched = Watched::default();
        Self { adapter, lease: None, heard: None, is_woken: false, ahead: 0, watched }
    }

    /// Applies `operation` as one transaction on behalf of `me`. Starts again after a write
    /// conflict, if the rules need a lock or a waiter that was not read, or, granting fewer, if the
    /// write was too large.
    fn transact<R>(
        &self,
        names: &Names,
        me: Option<&Token>,
        look: Look,
        deadline: Moment,
        operation: impl Fn(&mut Transaction<'_, A>) -> R,
    ) -> Result<R, Error> {
        let (mut related, mut front, mut conflicts, mut too_large) = (BTreeSet::new(), None, 0, 0);
        loop {
            let mut transaction = Transaction::open(&self.adapter, names, &related, me, deadline)?;
            let shown = front.unwrap_or_else(|| transaction.front(me, look));
            transaction.reveal(shown, me, look)?;
            transaction.reap(me, look)?;
            transaction.drop_tombstones(me);
            transaction.table.too_large = too_large;
            transaction.may_go_uncounted = conflicts >= UNCOUNTED_AFTER;
            let is_granted = me.is_some_and(|me| transaction.is_held_by(me));
            let is_alone = is_granted && !transaction.is_held_by_others(me);
            if !is_alone {
                self.adapter.reserve(false);
            }
            let answer = operation(&mut transaction);
            let missing = transaction.missing();
            let is_short = transaction.has_come_too_far();
            if missing.is_empty() && !is_short {
                if transaction.may_abort {
                    transaction.abort();
                    return Ok(answer);
                }
                match transaction.commit(me)? {
                    Written::Yes => {
                        self.adapter.reserve(false);
                        return Ok(answer);
                    }
                    Written::Conflict => {
                        conflicts += 1;
                        let longest = match look {
                            Look::Wants(_) if is_granted => BACK_OFF_CONFIRM,
                            Look::Wants(_) => BACK_OFF_ACQUIRE,
                            Look::Heads | Look::Holders if is_alone => BACK_OFF_HOLD,
                            Look::Heads | Look::Holders => BACK_OFF_SHARED,
                        };
                        if is_alone && conflicts >= RESERVE_AFTER {
                            self.adapter.reserve(true);
                        }
                        back_off(conflicts, longest, deadline)?;
                    }
                    // The rules then grant fewer waiters at once, and in the end none: a renewal or
                    // a release must not fail because many wait.
                    Written::TooLarge(_) if too_large < 3 => too_large += 1,
                    Written::TooLarge(why) => return Err(why),
                }
                continue;
            }
            transaction.abort();
            related.extend(missing);
            if is_short {
                // One operation grants at most GRANTED_AT_ONCE waiters, and looks at one more. If
                // even that was too few, because waiters were stale, the number grows without
                // limit.
                let most = if shown > GRANTED_AT_ONCE { usize::MAX } else { GRANTED_AT_ONCE + 1 };
                front = Some((8 * shown).clamp(2, most));
            }
        }
    }

    /// Applies `operation` to the records without writing them. Returns None if it would change
    /// anything but the time of this waiter's heartbeat.
    fn try_without_writing<R>(
        &self,
        names: &Names,
        me: &Token,
        look: Look,
        operation: impl Fn(&mut Transaction<'_, A>) -> R,
    ) -> Result<Option<R>, Error> {
        let mut transaction = Transaction::look(&self.adapter, names, Some(me))?;
        // A record that another process is writing may look damaged. A transaction then decides.
        let shown = transaction.reveal(1, Some(me), look).and_then(|()| transaction.reap(Some(me), look));
        let answer = operation(&mut transaction);
        let is_idle = shown.is_ok() && !transaction.has_come_too_far() && transaction.is_idle(me);
        Ok(is_idle.then_some(answer))
    }

    /// Watches these tokens in the next `sleep`, and no others.
    fn watch_tokens(&mut self, tokens: BTreeSet<Token>) {
        let Watched { watches: mut before, missing, .. } = std::mem::take(&mut self.watched);
        for token in tokens {
            let watch = match before.remove(&token) {
                Some(watch) => watch,
                None => match self.adapter.liveness(&token) {
                    Liveness::Alive(watch) => watch,
                    Liveness::Dead => {
                        self.watched.has_ended = true;
                        continue;
                    }
                    Liveness::Missing => {
                        self.watched.has_ended |= !missing.contains(&token);
                        self.watched.missing.insert(token);
                        continue;
                    }
                    Liveness::Unknown => continue,
                },
            };
            self.watched.watches.insert(token, watch);
        }
    }

    /// Publishes the waiter's heartbeat outside the record. Returns its time, or None if a
    /// transaction is needed: others cannot read the heartbeat there, or the last one is too old.
    fn beat(&self, names: &Names, token: &Token) -> Option<Duration> {
        let now = self.adapter.now();
        let is_late = self.heard.is_none_or(|heard| now > heard + ABSENCE);
        (!is_late && self.adapter.publish_heartbeat(names, token, now + SILENCE)).then_some(now)
    }

    /// Sets the end of the lease. If this process has published another deadline (as a waiter, or
    /// of an earlier lease), it publishes the new one. Otherwise the lease would end at the old
    /// deadline if that is after the one in the record.
    fn set_lease_end(&mut self, token: &Token, end: Duration) {
        if self.heard.take().is_some() || self.lease.is_some() {
            self.adapter.publish_lease(token, end);
        }
        self.lease = Some(end);
    }

    /// Renews the lease outside the record. Returns None if a transaction must renew it.
    ///
    /// A process that judges a lease reads first the clock and then the published end. The holder
    /// publishes the new end first and then reads the clock. If the old end has not come by then,
    /// any process that still saw the old end had read the clock before, when the old lease was not
    /// over.
    fn renew_outside_record(
        &mut self,
        names: &Names,
        token: &Token,
        ttl: Duration,
    ) -> Result<Option<Renewal>, Error> {
        let Some(end) = self.lease else { return Ok(None) };
        let now = self.adapter.now();
        let until = now + ttl;
        // Publishing a new end never revives a lease that is over.
        if now >= end || until < end || !self.adapter.publish_lease(token, until) || self.adapter.now() >= end
        {
            return Ok(None);
        }
        let renewal = self.renewal_by_records(names, token, ttl)?;
        if renewal.is_some() {
            self.lease = Some(until);
        }
        Ok(renewal)
    }

    /// Renews the lease where [`Adapter::has_sessions`]. Returns None if a transaction must renew
    /// it.
    ///
    /// The session is extended first, so the records read afterwards hold for the extended lease.
    /// A process that did not take the locks itself reads the records before, too: if it extended
    /// the session of a hold that an operator revoked, the lock would stay blocked for longer.
    fn renew_session(
        &mut self,
        names: &Names,
        token: &Token,
        ttl: Duration,
    ) -> Result<Option<Renewal>, Error> {
        if self.lease.is_none() && self.renewal_by_records(names, token, ttl)?.is_none() {
            return Ok(None);
        }
        let until = self.adapter.now() + ttl;
        if !self.adapter.extend(names, token, ttl)? {
            return Ok(None);
        }
        let renewal = self.renewal_by_records(names, token, ttl)?;
        if renewal.is_some() {
            self.lease = Some(until);
        }
        Ok(renewal)
    }

    /// Returns what the rules answer to a renewal by the records as they are. None if the token
    /// does not hold all of the locks or has not confirmed the grants, or if the answer is that a
    /// lock is lost.
    fn renewal_by_records(
        &self,
        names: &Names,
        token: &Token,
        ttl: Duration,
    ) -> Result<Option<Renewal>, Error> {
        let mut transaction = Transaction::look(&self.adapter, names, Some(token))?;
        let is_known = names.iter().all(|name| {
            let record = transaction.table.records.get(name.as_str());
            record.and_then(|record| record.holds.get(token)).is_some_and(|hold| hold.confirmed)
        });
        let renewal = transaction.table.renew(transaction.now, names, token, ttl);
        Ok(Some(renewal).filter(|renewal| is_known && is_held(*renewal)))
    }

    /// Reads the records of these locks without locking them, and leaves the dead out of what it
    /// returns. With `only` it checks that token only; without, all tokens, and it reads all
    /// waiters too.
    ///
    /// A process that releases its token writes the record before its liveness ends. So a token is
    /// dead if it seems so and the record, read again, has not changed.
    fn read(
        &self,
        names: &Names,
        only: Option<&Token>,
        deadline: Moment,
    ) -> Result<(Vec<A::Entry>, Time), Error> {
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        let versions = |entries: &[A::Entry]| entries.iter().map(Entry::version).collect::<Vec<_>>();
        let mut looked = self.adapter.look(&names, only, CatchUp::All)?;
        loop {
            let (mut entries, now) = looked;
            let before = versions(&entries);
            let shown = if only.is_none() { self.show_all(&mut entries, now) } else { Ok(()) };
            let mut dead = BTreeSet::new();
            for entry in &mut entries {
                let named = only.map_or_else(|| named(entry.record()), |token| vec![token.clone()]);
                let is_dead = |token: &Token| {
                    entry.tracked().contains_key(token)
                        && matches!(self.adapter.liveness(token), Liveness::Dead)
                };
                dead.extend(named.into_iter().filter(is_dead));
            }
            if (!dead.is_empty() || shown.is_err()) && !deadline.passed() {
                looked = self.adapter.look(&names, only, CatchUp::All)?;
                if versions(&looked.0) != before {
                    continue;
                }
            }
            shown?;
            for entry in &mut entries {
                dead.iter().for_each(|token| entry.record().reap(now, token));
            }
            return Ok((entries, now));
        }
    }

    fn show_all(&self, entries: &mut [A::Entry], now: Time) -> Result<(), Error> {
        for entry in entries {
            let mut record = std::mem::take(entry.record());
            let (mut at, mut shown) = (0, Ok(()));
            while shown.is_ok() && at < entry.queue().len() {
                let before = entry.queue().len();
                shown = self.adapter.show(entry, at, &mut record, now).map(drop);
                // The adapter removes a waiter that has left meanwhile.
                at += usize::from(entry.queue().len() == before);
            }
            *entry.record() = record;
            shown?;
        }
        Ok(())
    }

    /// Sleeps until woken, interrupted, or `until`, and sends heartbeats meanwhile.
    fn sleep_with_heartbeats(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        if self.watched.has_ended {
            return Ok(Slept::Woken);
        }
        loop {
            let beat = |heard: Duration| (heard + HEARTBEAT).saturating_sub(self.adapter.now());
            let next = self.heard.map_or(until, |heard| Moment::now().after(beat(heard)));
            // If `until` follows soon, the caller's next request is the heartbeat.
            let next = if next.after(HEARTBEAT / 4) < until { next } else { until };
            let others = self.watched.watches.values();
            if self.adapter.sleep(names, token, self.ahead, others, next.left())? {
                self.is_woken = true;
                return Ok(Slept::Woken);
            }
            // The sleep was interrupted, or `until` has come.
            if !next.passed() || next == until {
                return Ok(Slept::Through);
            }
            self.heard = self.beat(names, token);
            if self.heard.is_none() {
                return Ok(Slept::Woken);
            }
        }
    }

    fn end_liveness(&mut self, token: &Token) {
        self.adapter.end(token);
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
    std::thread::sleep(most.mul_f64(chance));
    Ok(())
}

/// The waiters and holders of a lock, without holds that are cooling.
fn named(record: &Record) -> Vec<Token> {
    let holders = record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling);
    record.waiters.keys().chain(holders.map(|(token, _)| token)).cloned().collect()
}

impl<A: Adapter> Store for Engine<A> {
    /// Begins the liveness of the token. It ends with [`Store::leave`], with [`Store::hand_over`]
    /// (not in etcd), and when `acquire` answers [`Acquired::Busy`], [`Acquired::Done`],
    /// [`Acquired::Superseded`] or [`Acquired::TokenEnded`] and no record names the token any more. A
    /// token that asks again after that has none. Its hold or place then ends only when its lease
    /// is over, or when it misses its heartbeats.
    fn prepare(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let token = self.adapter.stored(token);
        self.adapter.begin(&token)
    }

    fn hand_over(&mut self, names: &Names, token: &Token, deadline: Moment) -> Result<(), Error> {
        // Such a session belongs to the token, and outlives the process that began it.
        if self.adapter.has_sessions() {
            return Ok(());
        }
        self.adapter.refresh(deadline)?;
        let token = &self.adapter.stored(token);
        self.transact(names, Some(token), Look::Heads, deadline, |transaction| transaction.untrack(token))?;
        self.end_liveness(token);
        Ok(())
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error> {
        self.adapter.refresh(deadline)?;
        let ask = &Ask { token: self.adapter.stored(&ask.token), ..ask.clone() };
        let token = &ask.token;
        self.adapter.attend(token, ask.ttl);
        let began = self.adapter.now();
        let was_woken = std::mem::take(&mut self.is_woken);
        let is_first = self.heard.is_none() && self.lease.is_none();
        let waits = self.heard.is_some() && ask.patience == Patience::Queue && !was_woken;
        let look = Look::Wants(ask.mode);
        let operation = |transaction: &mut Transaction<'_, A>| {
            // Another thread of this process may have released the token while this thread waited
            // for the records. So may the guard, which is another process: then no record names the
            // token, and its liveness has ended.
            let is_known = transaction.is_named(token);
            if self.adapter.is_given_up(token) || (!is_known && self.adapter.was_ended(token)) {
                return (Acquired::TokenEnded, BTreeSet::new(), false);
            }
            if self.adapter.is_mine(token) {
                transaction.track(token, ask.ttl);
            }
            let mut answer = transaction.table.acquire(transaction.now, names, ask);
            // If no record names the caller, only the count of refusals would change.
            let is_refused = !is_known && matches!(answer, Acquired::Busy(_) | Acquired::Done(_));
            transaction.may_abort = transaction.may_go_uncounted && is_refused;
            let to_watch = match &mut answer {
                Acquired::Waiting(waiting) => {
                    waiting.ahead = transaction.ahead(token);
                    transaction.watch_targets(token, WATCHES_MAX)
                }
                _ => BTreeSet::new(),
            };
            (answer, to_watch, transaction.is_named(token))
        };
        let idle = if waits { self.try_without_writing(names, token, look, operation)? } else { None };
        let (mut answer, to_watch, is_named) = match idle {
            Some(answer @ (Acquired::Waiting(_), ..)) if self.beat(names, token).is_some() => answer,
            _ => self.transact(names, Some(token), look, deadline, operation)?,
        };
        match &mut answer {
            Acquired::Waiting(waiting) => {
                let crowd = self.adapter.crowd();
                if waiting.ahead > crowd {
                    let rarely = u32::try_from(waiting.ahead / crowd).unwrap_or(u32::MAX);
                    waiting.next = HEARTBEAT * rarely.saturating_add(1).min(self.adapter.rarely());
                }
                (self.heard, self.ahead) = (Some(self.adapter.now()), waiting.ahead);
                self.watch_tokens(to_watch);
            }
            // The watches stay until the first renewal: dropping them takes time, and the job is to
            // start now.
            Acquired::Granted(_) => self.set_lease_end(token, began + ask.ttl),
            // A revoked holder keeps its liveness, because its job may still run.
            Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::TokenEnded
                if !is_named =>
            {
                self.end_liveness(token);
            }
            Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::TokenEnded => {}
        }
        if is_first {
            self.adapter.clean_up();
        }
        Ok(answer)
    }

    fn renew(
        &mut self,
        names: &Names,
        token: &Token,
        ttl: Duration,
        deadline: Moment,
    ) -> Result<Renewal, Error> {
        self.adapter.refresh(deadline)?;
        let token = &self.adapter.stored(token);
        self.watched = Watched::default();
        let renewed = if self.adapter.has_sessions() {
            self.renew_session(names, token, ttl)?
        } else {
            self.renew_outside_record(names, token, ttl)?
        };
        if let Some(renewal) = renewed {
            return Ok(renewal);
        }
        let began = self.adapter.now();
        let renewal = self.transact(names, Some(token), Look::Heads, deadline, |transaction| {
            transaction.table.renew(transaction.now, names, token, ttl)
        })?;
        if is_held(renewal) {
            self.set_lease_end(token, began + ttl);
        } else {
            self.lease = None;
        }
        Ok(renewal)
    }

    fn endurance(&self) -> Endurance {
        self.adapter.endurance()
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, deadline: Moment) -> Result<Left, Error> {
        self.adapter.refresh(deadline)?;
        let token = &self.adapter.stored(token);
        self.adapter.give_up(token);
        let left = self.transact(names, Some(token), Look::Heads, deadline, |transaction| {
            transaction.table.leave(transaction.now, names, token, end)
        })?;
        self.end_liveness(token);
        Ok(left)
    }

    fn prove(&mut self, names: &Names, token: &Token, deadline: Moment) -> Result<Option<Proof>, Error> {
        self.adapter.refresh(deadline)?;
        let token = &self.adapter.stored(token);
        let (entries, now) = self.read(names, Some(token), deadline)?;
        let records =
            entries.into_iter().map(|mut entry| (entry.name().into(), std::mem::take(entry.record())));
        let table = LockTable { records: records.collect(), ..LockTable::default() };
        Ok(table.prove(now, names, token))
    }

    fn request(
        &mut self,
        name: &Name,
        fence: Fence,
        who: &Owner,
        deadline: Moment,
    ) -> Result<Requested, Error> {
        self.adapter.refresh(deadline)?;
        self.transact(&name.clone().into(), None, Look::Holders, deadline, |transaction| {
            transaction.table.request(transaction.now, name, fence, who)
        })
    }

    fn watch(&mut self, name: &Name, token: &Token, deadline: Moment) -> Result<(), Error> {
        self.adapter.refresh(deadline)?;
        let token = &self.adapter.stored(token);
        self.transact(&name.clone().into(), Some(token), Look::Heads, deadline, |transaction| {
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
        Ok(self.adapter.subscribe(names, &self.adapter.stored(token), listener))
    }

    fn forget(&mut self, name: &Name, deadline: Moment) -> Result<bool, Error> {
        self.adapter.refresh(deadline)?;
        self.transact(&name.clone().into(), None, Look::Heads, deadline, |transaction| {
            transaction.table.forget_success(transaction.now, name)
        })
    }

    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, deadline: Moment) -> Result<bool, Error> {
        self.adapter.refresh(deadline)?;
        self.transact(&name.clone().into(), None, Look::Heads, deadline, |transaction| {
            transaction.table.pause(transaction.now, name, pause)
        })
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, deadline: Moment) -> Result<Revoked, Error> {
        self.adapter.refresh(deadline)?;
        self.transact(&name.clone().into(), None, Look::Holders, deadline, |transaction| {
            transaction.table.revoke(transaction.now, name, revoke)
        })
    }

    /// After a few conflicts the refusal is not recorded.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<(), Error> {
        self.adapter.refresh(deadline)?;
        let beside = name.of_refusals();
        self.transact(&beside.clone().into(), None, Look::Heads, deadline, |transaction| {
            transaction.table.refuse(transaction.now, &beside, refusal);
            transaction.may_abort = transaction.may_go_uncounted;
        })
    }

    fn refusals(&mut self, name: &Name, deadline: Moment) -> Result<Vec<Refusal>, Error> {
        self.adapter.refresh(deadline)?;
        let (mut entries, _) = self.read(&name.of_refusals().into(), None, deadline)?;
        Ok(std::mem::take(&mut entries[0].record().refusals).into())
    }

    /// Does not read the other waiters.
    fn ends(&mut self, name: &Name, token: &Token, deadline: Moment) -> Result<Vec<LoggedEnd>, Error> {
        self.adapter.refresh(deadline)?;
        let token = self.adapter.stored(token);
        let (mut entries, now) = self.read(&name.clone().into(), Some(&token), deadline)?;
        Ok(view(name, now, &mut entries[0]).log)
    }

    fn inspect(&mut self, name: &Name, deadline: Moment) -> Result<View, Error> {
        self.adapter.refresh(deadline)?;
        let (mut entries, now) = self.read(&name.clone().into(), None, deadline)?;
        Ok(view(name, now, &mut entries[0]))
    }

    fn find(&mut self, prefix: &str, _: Which) -> Result<Found, Error> {
        self.adapter.refresh(Moment::now().after(LIST_WITHIN))?;
        let (mut names, mut missing) = (BTreeMap::new(), Vec::new());
        for full in self.adapter.names()? {
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
        let token = self.adapter.stored(token);
        self.sleep_with_heartbeats(names, &token, until)
    }

    fn reset(&mut self) {
        self.adapter.reset();
        self.watched = Watched::default();
    }
}

fn view(name: &Name, now: Time, entry: &mut impl Entry) -> View {
    let mut view = entry.record().inspect(name, now);
    view.log.extend(entry.log());
    view.log.truncate(LOG_KEPT);
    view
}

//! How does a store keep locks that has nowhere to run the law? The engine runs it here, over records that a coordinator
//! keeps: which records an operation needs, who is dead, what the law says, what is written, who is woken and who watches
//! whom. What the coordinator must do for that is an [`Adapter`].
//!
//! An operation on one or several locks is a [`Transaction`]. A renewal and a waiter's heartbeat are none, as long as nothing
//! is new: the holder or waiter says in its own place until when it is to be believed, and looks at the records. Nothing is
//! kept in memory between two operations but this process' own life, what it last said there, and those it watches, so a
//! forked copy of the store, the guard's, is as good as the original.
//!
//! Who watches whom: a waiter watches the life of the one directly before it in each of its queues, and where it is the
//! head, those of the holders in its way. Who is granted the lock is woken by the one whose operation granted it; if that
//! one is killed before it can, its own death wakes the head, for that watched it, and others that were granted the lock
//! with it ask by themselves soon. So every release wakes one, and every death the one behind. What ends without anybody's
//! doing, a lease or a min-hold, is met by `next`, as everywhere.

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

/// Watched at the same time are at most so many: each takes a descriptor, of which a process often has 1024.
const WATCHED_MOST: usize = 256;

/// After a conflict it is tried again after a time up to this, twice as much after each further one.
const GIVES_WAY: Duration = Duration::from_micros(500);
/// At most that, if one asks for the lock,
const ASKS_AGAIN: Duration = Duration::from_millis(500);
/// confirms that it was granted it: a crowd that comes must not keep it from that for [`crate::rules::CONFIRM_WITHIN`],
const CONFIRMS_AGAIN: Duration = Duration::from_millis(10);
/// or renews it or gives it back: nor a holder from its lease.
const HOLDS_AGAIN: Duration = Duration::from_millis(1);
/// Where several hold it, they are in each other's way: all at once they would ask for more than a store can answer in time.
const SHARES_AGAIN: Duration = Duration::from_millis(20);
/// Who alone holds a lock and has lost so many races for it has those wait who only wait for it: see [`Adapter::insist`].
const INSISTS_AFTER: u32 = 2;
/// After so many conflicts the answer that a lock is busy stands, although it is not counted in the record. Of a crowd that comes
/// at once each would else lose race after race until its time is over, for nothing but that count.
const COUNTED_WITHIN: u32 = 2;
/// How long it may take to name all locks.
const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// Of a server at most as long as so many operations: whoever set them short is not kept a minute by one that is silent.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
const LISTED_AS: u32 = 10;

/// By when a server has to have named all locks, if `by` is when it must be over and one operation may take `each`.
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
pub fn listed_by(by: Moment, each: Duration) -> Moment {
    by.min(Moment::now().after(each.saturating_mul(LISTED_AS)))
}

/// A store over an adapter. A clone shares the life that [`Store::prepare`] began.
pub struct Engine<A: Adapter> {
    pub(super) adapter: A,
    /// When the lease ends, as far as this process has seen to it.
    lease: Option<Duration>,
    /// It waits, and last made itself heard then.
    heard: Option<Duration>,
    /// How many were before it then.
    ahead: u64,
    /// It was woken since: there is something to change, and no use in only looking first.
    is_woken: bool,
    watched: Watched<A::Watch>,
}

/// What `sleep` looks at besides this process' own life.
struct Watched<W> {
    lives: BTreeMap<Token, W>,
    /// One of them ended before it could be watched.
    has_ended: bool,
    /// Those of whom nothing could be told when they were to be watched. Most have left meanwhile, so it is worth asking
    /// again; once.
    missing: BTreeSet<Token>,
}

impl<W> Default for Watched<W> {
    fn default() -> Self {
        Self { lives: BTreeMap::new(), has_ended: false, missing: BTreeSet::new() }
    }
}

impl<A: Adapter> Clone for Engine<A> {
    fn clone(&self) -> Self {
        Self::new(self.adapter.clone())
    }
}

impl<A: Adapter> Engine<A> {
    /// A store over this adapter.
    pub(super) fn new(adapter: A) -> Self {
        let watched = Watched::default();
        Self { adapter, lease: None, heard: None, is_woken: false, ahead: 0, watched }
    }

    /// One operation of the law on behalf of `me`. It is applied again where it turned out to need more.
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
            transaction.drop_spent(me);
            transaction.table.too_large = too_large;
            transaction.may_go_uncounted = conflicts >= COUNTED_WITHIN;
            let is_granted = me.is_some_and(|me| transaction.is_held_by(me));
            let is_alone = is_granted && !transaction.is_held_by_others(me);
            if !is_alone {
                self.adapter.insist(false);
            }
            let answer = operation(&mut transaction);
            let missing = transaction.missing();
            let is_short = transaction.has_come_too_far();
            if missing.is_empty() && !is_short {
                if transaction.is_only_count {
                    transaction.abort();
                    return Ok(answer);
                }
                match transaction.commit(me)? {
                    Written::Yes => {
                        self.adapter.insist(false);
                        return Ok(answer);
                    }
                    Written::Conflict => {
                        conflicts += 1;
                        let longest = match look {
                            Look::Wants(_) if is_granted => CONFIRMS_AGAIN,
                            Look::Wants(_) => ASKS_AGAIN,
                            Look::Heads | Look::Holders if is_alone => HOLDS_AGAIN,
                            Look::Heads | Look::Holders => SHARES_AGAIN,
                        };
                        if is_alone && conflicts >= INSISTS_AFTER {
                            self.adapter.insist(true);
                        }
                        give_way(conflicts, longest, deadline)?;
                    }
                    // Who renews or gives back must not depend on how many wait.
                    Written::TooLarge(_) if too_large < 3 => too_large += 1,
                    Written::TooLarge(why) => return Err(why),
                }
                continue;
            }
            transaction.abort();
            related.extend(missing);
            if is_short {
                // So many are served in one step, and one more is looked at.
                let most = if shown > GRANTED_AT_ONCE { usize::MAX } else { GRANTED_AT_ONCE + 1 };
                front = Some((8 * shown).clamp(2, most));
            }
        }
    }

    /// What the operation would answer, if it would change nothing but how long this waiter is believed.
    fn transact_idly<R>(
        &self,
        names: &Names,
        me: &Token,
        look: Look,
        operation: impl Fn(&mut Transaction<'_, A>) -> R,
    ) -> Result<Option<R>, Error> {
        let mut transaction = Transaction::look(&self.adapter, names, Some(me))?;
        // What is being changed meanwhile may look damaged.
        let shown = transaction.reveal(1, Some(me), look).and_then(|()| transaction.reap(Some(me), look));
        let answer = operation(&mut transaction);
        let is_idle = shown.is_ok() && !transaction.has_come_too_far() && transaction.is_idle(me);
        Ok(is_idle.then_some(answer))
    }

    /// What the next `sleep` looks at.
    fn watch_lives(&mut self, whom: BTreeSet<Token>) {
        let Watched { lives: mut before, missing, .. } = std::mem::take(&mut self.watched);
        for token in whom {
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
            self.watched.lives.insert(token, watch);
        }
    }

    /// Makes a waiter heard in its own place, and answers when it was; nothing if nobody can hear it there, or if it was
    /// not heard of for so long that the law has to see it.
    fn beat(&self, names: &Names, token: &Token) -> Option<Duration> {
        let now = self.adapter.now();
        let is_late = self.heard.is_none_or(|heard| now > heard + ABSENCE);
        (!is_late && self.adapter.say_heard(names, token, now + SILENCE)).then_some(now)
    }

    /// Its lease ends then, whatever it has said before: as a waiter, or of a longer one.
    fn hold_until(&mut self, token: &Token, end: Duration) {
        if self.heard.take().is_some() || self.lease.is_some() {
            self.adapter.say_lease(token, end);
        }
        self.lease = Some(end);
    }

    /// Renews the lease in the holder's own place, if that is enough. Who judges a lease reads the clock first and then what
    /// the holder has said. Who renews says the new end and then reads the clock: if it is still before the old end, every
    /// judge who could find the lease over reads later than that, and sees the new end. If it is not, the renewal counts
    /// only as a transaction.
    fn renew_alone(&mut self, names: &Names, token: &Token, ttl: Duration) -> Result<Option<Renewal>, Error> {
        let Some(end) = self.lease else { return Ok(None) };
        let now = self.adapter.now();
        let until = now + ttl;
        // A lease that is over is not made again by what its holder says.
        if now >= end || until < end || !self.adapter.say_lease(token, until) || self.adapter.now() >= end {
            return Ok(None);
        }
        let renewal = self.look_renewed(names, token, ttl)?;
        if renewal.is_some() {
            self.lease = Some(until);
        }
        Ok(renewal)
    }

    /// Renews the lease that is a session. That is kept first, so that what the records say then is true of the lease that
    /// was kept. Whoever did not take the locks itself looks before that, too: what an operator took away is not kept.
    fn renew_session(
        &mut self,
        names: &Names,
        token: &Token,
        ttl: Duration,
    ) -> Result<Option<Renewal>, Error> {
        if self.lease.is_none() && self.look_renewed(names, token, ttl)?.is_none() {
            return Ok(None);
        }
        let until = self.adapter.now() + ttl;
        if !self.adapter.extend(names, token, ttl)? {
            return Ok(None);
        }
        let renewal = self.look_renewed(names, token, ttl)?;
        if renewal.is_some() {
            self.lease = Some(until);
        }
        Ok(renewal)
    }

    /// What the law says of a renewal by the records as they are, if the token holds all of the locks and knows it.
    fn look_renewed(&self, names: &Names, token: &Token, ttl: Duration) -> Result<Option<Renewal>, Error> {
        let mut transaction = Transaction::look(&self.adapter, names, Some(token))?;
        let is_known = names.iter().all(|name| {
            let record = transaction.table.records.get(name.as_str());
            record.and_then(|record| record.holds.get(token)).is_some_and(|hold| hold.confirmed)
        });
        let renewal = transaction.table.renew(transaction.now, names, token, ttl);
        Ok(Some(renewal).filter(|renewal| is_known && is_held(*renewal)))
    }

    /// The records of these locks, only looked at, with the dead reaped: of `whom`, or all of them, and then with all who
    /// wait. Who gives its token back changes the record before its life ends, so if one that seems dead is still named by
    /// the same record afterwards, it is dead.
    fn read(
        &self,
        names: &Names,
        whom: Option<&Token>,
        deadline: Moment,
    ) -> Result<(Vec<A::Entry>, Time), Error> {
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        let versions = |entries: &[A::Entry]| entries.iter().map(Entry::version).collect::<Vec<_>>();
        let mut looked = self.adapter.look(&names, whom, CatchUp::All)?;
        loop {
            let (mut entries, now) = looked;
            let before = versions(&entries);
            let shown = if whom.is_none() { self.show_all(&mut entries, now) } else { Ok(()) };
            let mut dead = BTreeSet::new();
            for entry in &mut entries {
                let named = whom.map_or_else(|| named(entry.record()), |token| vec![token.clone()]);
                let is_dead = |token: &Token| {
                    entry.tracked().contains_key(token)
                        && matches!(self.adapter.liveness(token), Liveness::Dead)
                };
                dead.extend(named.into_iter().filter(is_dead));
            }
            if (!dead.is_empty() || shown.is_err()) && !deadline.passed() {
                looked = self.adapter.look(&names, whom, CatchUp::All)?;
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
                // One that has left meanwhile may not be there any more.
                at += usize::from(entry.queue().len() == before);
            }
            *entry.record() = record;
            shown?;
        }
        Ok(())
    }

    /// Sleeps until woken or `until`, or until there is an alarm, and makes itself heard meanwhile.
    fn doze(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        if self.watched.has_ended {
            return Ok(Slept::Woken);
        }
        loop {
            let beat = |heard: Duration| (heard + HEARTBEAT).saturating_sub(self.adapter.now());
            let next = self.heard.map_or(until, |heard| Moment::now().after(beat(heard)));
            // Who asks again soon is heard then.
            let next = if next.after(HEARTBEAT / 4) < until { next } else { until };
            let others = self.watched.lives.values();
            if self.adapter.sleep(names, token, self.ahead, others, next.left())? {
                self.is_woken = true;
                return Ok(Slept::Woken);
            }
            // Else it was an alarm, or the end.
            if !next.passed() || next == until {
                return Ok(Slept::Through);
            }
            self.heard = self.beat(names, token);
            if self.heard.is_none() {
                return Ok(Slept::Woken);
            }
        }
    }

    fn end_life(&mut self, token: &Token) {
        self.adapter.end(token);
        (self.lease, self.heard) = (None, None);
        self.watched = Watched::default();
    }
}

const fn is_held(renewal: Renewal) -> bool {
    matches!(renewal, Renewal::Renewed | Renewal::Asked | Renewal::Superseded)
}

/// Pauses after so many conflicts, some longer than others, or gives up.
fn give_way(conflicts: u32, longest: Duration, deadline: Moment) -> Result<(), Error> {
    // Never so long that it could not be tried again several times.
    let most = GIVES_WAY.saturating_mul(1 << conflicts.min(10)).min(longest).min(deadline.left() / 4);
    if deadline.passed() {
        return Err(Error::Unavailable("others have changed the lock each time before this could".into()));
    }
    let chance = getrandom::u32().map_or(1.0, |chance| f64::from(chance) / f64::from(u32::MAX));
    std::thread::sleep(most.mul_f64(chance));
    Ok(())
}

/// Who holds a lock or waits for it, but for what a min-hold keeps.
fn named(record: &Record) -> Vec<Token> {
    let holders = record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling);
    record.waiters.keys().chain(holders.map(|(token, _)| token)).cloned().collect()
}

impl<A: Adapter> Store for Engine<A> {
    /// The life ends with [`Store::leave`], and when `acquire` answers [`Acquired::Busy`], [`Acquired::Done`],
    /// [`Acquired::Superseded`] or [`Acquired::Spent`]; a token that asks again after that has none. A token without a life
    /// ends only by its lease, or by silence.
    fn prepare(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let token = self.adapter.stored(token);
        self.adapter.begin(&token)
    }

    fn hand_over(&mut self, names: &Names, token: &Token, deadline: Moment) -> Result<(), Error> {
        // A session does not end with the process that began it.
        if self.adapter.has_sessions() {
            return Ok(());
        }
        self.adapter.refresh(deadline)?;
        let token = &self.adapter.stored(token);
        self.transact(names, Some(token), Look::Heads, deadline, |transaction| transaction.untrack(token))?;
        self.end_life(token);
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
            // Another thread of this process may have given the token back while this one waited for the others.
            // And the guard, which is another process, may have: then nobody knows the token, and its life has ended.
            let is_known = transaction.is_named(token);
            if self.adapter.is_given_up(token) || (!is_known && self.adapter.was_ended(token)) {
                return (Acquired::Spent, BTreeSet::new(), false);
            }
            if self.adapter.is_mine(token) {
                transaction.track(token, ask.ttl);
            }
            let mut answer = transaction.table.acquire(transaction.now, names, ask);
            // A caller that is in no record would only add that it was refused.
            let is_refused = !is_known && matches!(answer, Acquired::Busy(_) | Acquired::Done(_));
            transaction.is_only_count = transaction.may_go_uncounted && is_refused;
            let whom = match &mut answer {
                Acquired::Waiting(waiting) => {
                    waiting.ahead = transaction.ahead(token);
                    transaction.whom_to_watch(token, WATCHED_MOST)
                }
                _ => BTreeSet::new(),
            };
            (answer, whom, transaction.is_named(token))
        };
        let idle = if waits { self.transact_idly(names, token, look, operation)? } else { None };
        let (mut answer, whom, is_named) = match idle {
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
                self.watch_lives(whom);
            }
            // Whom it watched is forgotten later: that takes time, and now the job is to be started.
            Acquired::Granted(_) => self.hold_until(token, began + ask.ttl),
            // Not that of a revoked holder, whose job may live.
            Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::Spent
                if !is_named =>
            {
                self.end_life(token);
            }
            Acquired::Busy(_) | Acquired::Done(_) | Acquired::Superseded(_) | Acquired::Spent => {}
        }
        if is_first {
            self.adapter.tidy();
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
            self.renew_alone(names, token, ttl)?
        };
        if let Some(renewal) = renewed {
            return Ok(renewal);
        }
        let began = self.adapter.now();
        let renewal = self.transact(names, Some(token), Look::Heads, deadline, |transaction| {
            transaction.table.renew(transaction.now, names, token, ttl)
        })?;
        if is_held(renewal) {
            self.hold_until(token, began + ttl);
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
        self.end_life(token);
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

    /// It needs the life that [`Store::prepare`] began; without one it only sleeps.
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

    /// In a crowd, some give up after a few conflicts.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<(), Error> {
        self.adapter.refresh(deadline)?;
        let beside = name.of_refusals();
        self.transact(&beside.clone().into(), None, Look::Heads, deadline, |transaction| {
            transaction.table.refuse(transaction.now, &beside, refusal);
            transaction.is_only_count = transaction.may_go_uncounted;
        })
    }

    fn refusals(&mut self, name: &Name, deadline: Moment) -> Result<Vec<Refusal>, Error> {
        self.adapter.refresh(deadline)?;
        let (mut entries, _) = self.read(&name.of_refusals().into(), None, deadline)?;
        Ok(std::mem::take(&mut entries[0].record().refusals).into())
    }

    /// Whoever else waits is not read.
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
        self.adapter.refresh(Moment::now().after(LISTED_WITHIN))?;
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
        self.doze(names, &token, until)
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

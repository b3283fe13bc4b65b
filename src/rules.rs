//! The lock rules: a pure function from (records, operation, time) to (records, answer), for
//! exclusive and shared locks and locks with slots, one or several at once, with queue, fence,
//! min-hold and log. `store/engine` runs these rules for all stores but those on Redis. The scripts
//! of a single Redis server are a Lua port of them, and a property test compares the answers of
//! both.
//!
//! The rules read no clock and do no I/O: the time is passed in as [`Time`], a reading of the
//! store's clock. They wake nobody; the store does that. [`Waiting::next`] says when a waiter
//! should ask again if nothing wakes it.
//!
//! [`Record`] is the state of one lock, with what happens to one lock alone. This module decides
//! what concerns several locks: which waiter is granted next. A waiter stands in the queue of each
//! of its locks with the same ticket. It is granted all of them in one operation, once it is the
//! head of each queue and each lock admits it. Tickets order all waiters the same way in every
//! queue, so of any waiters that block each other, one is first in all its queues: there is no
//! deadlock (I9). For the same reason a stale waiter leaves all its queues at once and returns to
//! all at once.

use crate::lock::{Fence, Name, Names, Owner, Token};
use record::ends::left;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub mod schedule;

mod answer;
mod expected;
mod grant;
mod once;
mod operation;
mod queue;
mod record;
mod refusal;
mod replace;
pub mod stat;
#[cfg(test)]
mod tests;
mod time;
pub mod view;

pub use answer::{
    Acquired, Blocker, Cause, Done, Foreign, Grant, Holder, Left, LoggedEnd, Outcome, Pause, Proof, Renewal,
    Requested, Revoked, State, Success, Superseded, Waiting,
};
pub use expected::Expected;
pub use operation::{Ask, End, FailurePause, Forget, NewPause, Patience, Ran, Renew, Revoke, Terms, When};
pub use record::{Absence, Hold, Lock, Newest, Phase, Record, Tombstone, Waiter};
pub use refusal::{ANNOUNCED_AGAIN, Mark, Missed, Notice, REFUSALS_KEPT, Refusal, SAME_PAUSE, Subject, Why};
pub use time::{Due, NUMBERS_END, Time, millis, ms};
pub use view::LastSuccess;

/// A waiter without a heartbeat for this long is stale: it is passed over.
pub const SILENCE: Duration = Duration::from_secs(5);
/// Time in which a waiter must confirm its grant. With [`SILENCE`] it bounds what dead waiters
/// cost: one delays the queue by 9 s at most, any number that died together by 10 s (I9).
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(4);
/// Longest time between two heartbeats of a waiter: three chances within [`SILENCE`].
pub const HEARTBEAT: Duration = Duration::from_millis(1600);
/// Longest time between two heartbeats where they cost a server more, or more than a hundred waiters
/// send them: two of them still fit into [`SILENCE`].
pub const RARER_HEARTBEAT: Duration = Duration::from_millis(2200);
/// If no heartbeat arrives for this long while somebody waits, the store could not receive any (a
/// restart, a failover, a pause), or all waiters are dead. Such a gap does not count as silence: a
/// waiter that was not stale when the gap began has a whole [`SILENCE`] once more.
pub const ABSENCE: Duration = Duration::from_millis(2 * HEARTBEAT.as_millis() as u64);
/// How long a waiter's ticket is retained after its last heartbeat.
pub const TICKET_KEPT: Duration = Duration::from_secs(60);
/// If a later request says that its run arrived earlier than recorded by more than this, it is right:
/// the first request has waited for the store. Less is the way to the store, and the drift of clocks.
pub const ARRIVAL_SLACK: Duration = Duration::from_secs(1);
/// How long a released token is remembered, and refused (I4).
pub const SPENT_KEPT: Duration = Duration::from_secs(600);
/// Most waiters of one lock that one operation grants, so that a store can write the result. When
/// one of them confirms, that operation grants more.
pub const GRANTED_AT_ONCE: usize = 64;
/// Most waiters in the queue of a lock; the next one is refused. Suspended waiters do not count,
/// and they may return to their places.
pub const QUEUE_MAX: usize = 1000;
/// How much earlier the ticket of a run with `--during-pause` is than its age says, in microseconds.
/// All such tickets come before all others.
pub const PREFERENCE: u64 = 1_000_000_000_000_000;
/// How often the head of the queue checks a lock that is not dlock's: nothing will wake it.
pub const FOREIGN_LOOK: Duration = Duration::from_millis(250);
/// How long a watcher is woken at changes of a lock before it must ask again.
pub const WATCH_KEPT: Duration = Duration::from_secs(15);
/// Most ends of holds in the log.
pub const LOG_KEPT: usize = 64;
/// How long log, fence and the record of an unfinished hold outlive their last use.
pub const HISTORY_KEPT: Duration = Duration::from_secs(40 * 24 * 60 * 60);
/// The same for a lock of which runs are expected: a job that has not run for a year is still overdue.
pub const EXPECTED_KEPT: Duration = Duration::from_secs(400 * 24 * 60 * 60);

/// The records that an operation may read. A lock without a record is free.
///
/// An operation may need records of other locks than those that it names: the locks that their
/// waiters also want, and so on. If one is missing, the operation inserts an empty record and takes
/// that lock for free, which may be wrong. The caller must then load that record and apply the
/// operation again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockTable {
    /// By full name of the lock.
    pub records: BTreeMap<String, Record>,
    /// How many times the result of this operation was too large for the store. Each time, an
    /// eighth as many waiters are granted, and in the end none.
    pub too_large: u32,
    /// [`QUEUE_MAX`]; smaller in tests.
    pub queue_max: usize,
}

impl Default for LockTable {
    fn default() -> Self {
        Self { records: BTreeMap::new(), too_large: 0, queue_max: QUEUE_MAX }
    }
}

impl LockTable {
    /// Acquire, a waiter's heartbeat, and the confirmation of a grant. They are one operation: what
    /// the records know of the token tells which one it is.
    pub fn acquire(&mut self, now: Time, names: &Names, ask: &Ask) -> Acquired {
        self.forget(now);
        let superseded =
            |record: &Record| record.tombstones.get(&ask.token).is_some_and(|tombstone| tombstone.superseded);
        if let Some(at) = names.iter().position(|name| superseded(self.record(name.as_str()))) {
            let newest = self.record(names.as_slice()[at].as_str()).newest.clone();
            let by = newest.map(|newest| newest.owner).unwrap_or_default();
            return Acquired::Superseded(Superseded { at, by });
        }
        if names.iter().any(|name| self.record(name.as_str()).tombstones.contains_key(&ask.token)) {
            return Acquired::TokenEnded;
        }
        self.expire(now, names);
        if self.holds_all(names, &ask.token) {
            if let Some(skipped) = self.date_back(now, names, ask) {
                return skipped;
            }
            self.grant_next(now, worklist(names));
        } else if let Some(refused) = self.apply(now, names, ask) {
            return refused;
        }
        if self.holds_all(names, &ask.token) {
            return Acquired::Granted(self.confirm(now, names, ask));
        }
        match ask.patience {
            Patience::None => {
                let blocker = self.blocker(now, names, ask);
                self.busy(names, blocker)
            }
            Patience::Queue => {
                let (ahead, next) = self.place(now, names, ask);
                let blocker = self.blocker(now, names, ask);
                Acquired::Waiting(Waiting { ahead, next, blocker, turn: None })
            }
        }
    }

    /// Applies for locks that the token does not hold: grants them, or gives the caller its place
    /// in the queues. Returns an answer if the caller gets neither, whatever the holders do.
    fn apply(&mut self, now: Time, names: &Names, ask: &Ask) -> Option<Acquired> {
        if !self.may_start_anew(names, &ask.token) {
            return Some(Acquired::TokenEnded);
        }
        // Not with each heartbeat: two waiters that expect different things would write in turn.
        if !names.iter().any(|name| self.record(name.as_str()).waiters.contains_key(&ask.token)) {
            self.expect(now, names, ask.terms.expect);
        }
        let (mut work, came) = (worklist(names), self.came(now, names, ask));
        if let Some(skipped) = self.skip_if_done(now, names, ask, came) {
            return Some(skipped);
        }
        if ask.patience == Patience::Queue
            && !ask.has_waited
            && let Some(at) = self.full_queue(now, names, &ask.token, &mut work)
        {
            self.grant_next(now, work);
            let blocker = self.record(names.as_slice()[at].as_str()).blocker(now, ask.mode);
            let blocker = Blocker { at, queue_full: Some(self.queue_max), ..blocker };
            return Some(self.busy(names, blocker));
        }
        if ask.terms.replaces
            && let Some(superseded) = self.supersede(now, names, ask, came, &mut work)
        {
            self.grant_next(now, work);
            return Some(Acquired::Superseded(superseded));
        }
        if ask.patience == Patience::Queue {
            self.record_heartbeat(now, names, ask, came);
            self.suspend_stale_before(now, names, &ask.token, &mut work);
        }
        self.grant_next(now, work);
        if !self.holds_all(names, &ask.token) {
            self.grant_to_newcomer(now, names, ask, came);
        }
        if ask.terms.replaces && !self.holds_all(names, &ask.token) {
            for name in names {
                self.record(name.as_str()).replace(now, came, ask);
            }
        }
        None
    }

    fn busy(&mut self, names: &Names, blocker: Blocker) -> Acquired {
        stat::count(&mut self.record(names.as_slice()[blocker.at].as_str()).stat.busy);
        Acquired::Busy(blocker)
    }

    /// Extends the lease of a token that holds all of these locks under this fence, and of no other
    /// (I2, I6, I12).
    pub fn renew(&mut self, now: Time, names: &Names, renew: &Renew<'_>) -> Renewal {
        let Renew { token, fence, ttl, rest } = *renew;
        self.expire(now, names);
        let is_of_grant = names.iter().all(|name| self.record(name.as_str()).is_of_grant(token, fence));
        let answer = if is_of_grant && self.holds_all(names, token) {
            for name in names {
                self.record(name.as_str()).renew(now, token, ttl, rest);
            }
            let answers = names.iter().filter_map(|name| self.record(name.as_str()).asked(token));
            answers.min_by_key(|answer| *answer != Renewal::Asked).unwrap_or(Renewal::Renewed)
        } else if names.iter().any(|name| self.record(name.as_str()).is_revoked_from(token)) {
            Renewal::Revoked
        } else {
            Renewal::NotHeld
        };
        self.grant_next(now, worklist(names));
        answer
    }

    /// Gives back everything that the token has of these locks (holds, places in queues), and
    /// records it as released, so that a late `acquire` with it is refused (I4).
    pub fn leave(&mut self, now: Time, names: &Names, token: &Token, end: &End) -> Left {
        self.forget(now);
        let tombstones: Vec<Tombstone> = names
            .iter()
            .filter_map(|name| self.record(name.as_str()).tombstones.get(token).copied())
            .collect();
        let tombstones =
            tombstones.iter().find(|tombstones| tombstones.released).or(tombstones.first()).copied();
        self.expire(now, names);
        let mut queued = false;
        let mut released: Option<Duration> = None;
        for name in names {
            let record = self.record(name.as_str());
            queued |= record.remove_waiter(token);
            let cooling = if !record.is_of_grant(token, end.fence) {
                record.drop_hold_of(token);
                continue;
            } else if record.is_held_by(token) {
                record.release(now, token, end)
            } else if record.is_revoked_from(token) {
                record.drop_hold(token);
                Duration::ZERO
            } else {
                continue;
            };
            released = Some(released.unwrap_or_default().max(cooling));
        }
        if queued && released.is_none() && tombstones.is_none() {
            stat::count(&mut self.record(names.first().as_str()).stat.given_up);
        }
        if tombstones.is_none_or(|tombstones| !tombstones.released && released.is_some()) {
            // One mark is enough to refuse the token. Each lock that was held gets one, because
            // `watch` learns from it that the lock was used a moment ago.
            let marked = if released.is_some() { names.as_slice().len() } else { 1 };
            for name in names.iter().take(marked) {
                self.record(name.as_str()).spend(now, token.clone(), released.is_some());
            }
        }
        self.grant_next(now, worklist(names));
        // What ran under a hold did not wait in a queue.
        left(released, tombstones, queued && end.fence.is_none())
    }

    /// Asks the hold with this fence to end its job and give the lock back. `by` is the operator.
    pub fn request(&mut self, now: Time, name: &Name, fence: Fence, by: &Owner) -> Requested {
        let record = self.record(name.as_str());
        record.expire(now);
        let answer = record.request(fence, by);
        self.grant_next(now, VecDeque::from([name.as_str().to_owned()]));
        answer
    }

    /// Has the token woken at every change (a grant, an end, a waiter that comes or goes) for
    /// [`WATCH_KEPT`].
    pub fn watch(&mut self, now: Time, name: &Name, token: &Token) {
        self.record(name.as_str()).forget(now);
        self.record(name.as_str()).watch(now, token);
    }

    /// Takes the lock away from all holders. Their renewals fail from now on.
    pub fn revoke(&mut self, now: Time, name: &Name, revoke: &Revoke) -> Revoked {
        let record = self.record(name.as_str());
        record.expire(now);
        let answer = record.revoke(now, revoke);
        self.grant_next(now, VecDeque::from([name.as_str().to_owned()]));
        answer
    }

    /// How the token holds these locks; None if it does not hold all of them.
    pub fn prove(&self, now: Time, names: &Names, token: &Token) -> Option<Proof> {
        let mut proof: Option<Proof> = None;
        for name in names {
            let mut record = self.records.get(name.as_str())?.clone();
            record.expire(now);
            if !record.is_held_by(token) {
                return None;
            }
            let mode = record.mode()?;
            let hold = record.holds.get(token).filter(|hold| hold.confirmed && !hold.until.passed(now))?;
            let (lease, asked) = (hold.until.left(now), hold.asked.clone());
            let (lease, asked) = match proof {
                Some(proof) => (proof.lease.min(lease), proof.asked.or(asked)),
                None => (lease, asked),
            };
            proof = Some(Proof { mode, slot: hold.slot, fence: Fence(hold.fence), lease, asked });
        }
        proof
    }

    /// Ends the holds and the places in queues of this token, whose process is known to be dead,
    /// with everything that ran under it. Only a store that learns of deaths can call this. A
    /// min-hold stands. Nothing is granted here: the operation that follows does that, and
    /// `inspect` must not show a grant that no operation has made.
    pub fn reap(&mut self, now: Time, token: &Token) {
        for record in self.records.values_mut() {
            record.reap(now, token);
        }
    }

    /// Records a refusal, in a record beside that of the lock ([`Name::of_refusals`]). Returns whether
    /// the caller is to announce it.
    pub fn refuse(&mut self, now: Time, beside: &Name, refusal: &Refusal) -> bool {
        let Record { refusals, announced, .. } = self.record(beside.as_str());
        refusals.push_front(Refusal { at: now.millis(), notice: None, ..refusal.clone() });
        refusals.truncate(REFUSALS_KEPT);
        refusal.notice.as_ref().is_some_and(|notice| notice.announce(now, announced))
    }

    /// Pauses the lock: it is granted to nobody for that time, and holders keep it. Without
    /// `pause`, ends the pause. Returns whether it was paused before.
    pub fn pause(&mut self, now: Time, name: &Name, pause: Option<NewPause<'_>>) -> bool {
        let record = self.record(name.as_str());
        record.expire(now);
        let was = record.pause(now, pause);
        self.grant_next(now, VecDeque::from([name.as_str().to_owned()]));
        was
    }

    fn record(&mut self, name: &str) -> &mut Record {
        self.records.entry(name.to_owned()).or_default()
    }

    fn forget(&mut self, now: Time) {
        for record in self.records.values_mut() {
            record.forget(now);
        }
    }

    fn expire(&mut self, now: Time, names: &Names) {
        for name in names {
            self.record(name.as_str()).expire(now);
        }
    }

    /// Whether the token holds all of these locks.
    fn holds_all(&mut self, names: &Names, token: &Token) -> bool {
        names.iter().all(|name| self.record(name.as_str()).is_held_by(token))
    }

    /// Whether a token that does not hold all of these locks may acquire them. A confirmed hold
    /// that was revoked or has lost one of its locks is over, and its token may only `leave`. An
    /// unconfirmed grant that has lost a lock is dropped here, and its token may acquire again.
    fn may_start_anew(&mut self, names: &Names, token: &Token) -> bool {
        let over = |hold: &Hold| hold.confirmed;
        if names.iter().any(|name| self.record(name.as_str()).holds.get(token).is_some_and(over)) {
            return false;
        }
        for name in names {
            self.record(name.as_str()).drop_hold_of(token);
        }
        true
    }
}

fn worklist(names: &Names) -> VecDeque<String> {
    names.iter().map(|name| name.as_str().to_owned()).collect()
}

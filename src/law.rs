//! What is a lock allowed to do? The law: a pure machine from (record, operation, time) to (record, answer), for one
//! exclusive lock with its queue, fence, min-hold and log. The `file:` store executes it; the Redis scripts are its
//! twin, and a property test holds the two to equal answers.
//!
//! It reads no clock and does no I/O: time comes in as [`Time`], the store's own clock. How a waiter learns that it
//! should ask again is the store's affair; the law only says, by [`Waiting::next`], when it may be worth it.
//!
//! The record is one plain value. Invariants between two operations:
//! - `hold` is what dlock knows of the holder; `lock` is the truth (I12). A hold that `lock` no longer bears out has
//!   ended, and the next operation says so in the log.
//! - A waiter is in `queue` while it is heard of. A silent one is *parked*: out of the queue, its ticket kept for
//!   [`TICKET_KEPT`], so that it comes back to its old place. A waiter that was granted the lock is parked too, until
//!   it confirms; if it never does, the next one is served.

use crate::lock::{Fence, Mode, Owner, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub mod schedule;

mod answer;
mod operation;

pub use answer::{
    Acquired, Blocker, Foreign, Grant, Holder, Left, LoggedEnd, Outcome, Proof, Renewal, Revoked, State,
    Waiting,
};
pub use operation::{Ask, End, JobEnd, Patience, Ran, Revoke, When};

/// A waiter not heard of for this long is passed over.
pub const SILENCE: Duration = Duration::from_secs(5);
/// A waiter that was granted the lock has this long to confirm. With [`SILENCE`] it bounds what the dead cost the
/// living: one at most 5 s, any number that died together at most 10 s (I9).
pub const CONFIRM_WITHIN: Duration = Duration::from_secs(4);
/// How often a waiter makes itself heard: three chances within [`SILENCE`].
pub const HEARTBEAT: Duration = Duration::from_millis(1600);
/// A silent waiter's ticket is kept this long.
pub const TICKET_KEPT: Duration = Duration::from_secs(60);
/// A token that was given back is remembered this long (I4).
pub const SPENT_KEPT: Duration = Duration::from_secs(600);
/// How often the head of the queue looks at a lock that is not dlock's: nobody will wake it.
pub const FOREIGN_LOOK: Duration = Duration::from_millis(250);
/// How many ends the log keeps.
pub const LOG_KEPT: usize = 64;
/// How long log, fence and the record of an unfinished hold outlive their last use.
pub const HISTORY_KEPT: Duration = Duration::from_secs(40 * 24 * 60 * 60);

/// A reading of the store's clock: microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// Whole milliseconds since 1970.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }
}

/// When something ends, by the store's clock, in whole milliseconds since 1970: what a Redis TTL can express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Due(pub u64);

impl Due {
    /// `span` from `now`; the milliseconds of both are cut before they are added, as the scripts do.
    pub fn after(now: Time, span: Duration) -> Self {
        Self(now.millis().saturating_add(millis(span)))
    }

    /// Whether it has come.
    pub const fn passed(self, now: Time) -> bool {
        now.millis() >= self.0
    }

    /// Whether it lies behind. So ends what Redis alone ends, a foreign lock and what is only remembered: it drops a key
    /// one tick after its expiry.
    pub const fn is_past(self, now: Time) -> bool {
        now.millis() > self.0
    }

    /// What is left of it.
    pub const fn left(self, now: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.millis()))
    }
}

/// A span in whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Everything kept of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// What the lock key says.
    pub lock: Lock,
    /// The holder, as long as it holds or was revoked.
    pub hold: Option<Hold>,
    /// Tickets of the waiters that are heard of, in order of service.
    pub queue: BTreeSet<(u64, Token)>,
    /// The waiters, parked ones included.
    pub waiters: BTreeMap<Token, Waiter>,
    /// The last fence given out.
    pub fence: u64,
    /// Tokens given back.
    pub spent: BTreeMap<Token, Spent>,
    /// The last ends, newest first.
    pub log: VecDeque<LoggedEnd>,
}

/// What the lock key says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lock {
    /// There is none.
    #[default]
    Free,
    /// The token of the holder, until both its lease and its min-hold have run out.
    Held {
        /// Whose.
        token: Token,
        /// Until when.
        until: Due,
    },
    /// A marker: given back, kept for the rest of a min-hold.
    Cooling {
        /// Until when.
        until: Due,
    },
    /// A marker: taken away by an operator while the old job may live.
    Revoked {
        /// The end of the old lease.
        until: Due,
    },
    /// Something that dlock did not write.
    Foreign {
        /// Its end, if it has one.
        until: Option<Due>,
    },
}

/// What is kept of a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Its token.
    pub token: Token,
    /// Its fence.
    pub fence: u64,
    /// The grant.
    pub since: Time,
    /// The end of its lease.
    pub until: Due,
    /// The end of its min-hold; the past if it has none.
    pub cool: Due,
    /// Whether the holder has heard of the grant.
    pub confirmed: bool,
    /// Whether its end is in the log already, because an operator forced it.
    pub forced: bool,
    /// How long it waited, in whole milliseconds.
    pub waited: u64,
    /// Who.
    pub owner: Owner,
}

/// What is kept of a waiter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its place: tickets are served in ascending order.
    pub ticket: u64,
    /// When it came.
    pub since: Time,
    /// When it counts as silent.
    pub silent: Due,
    /// When its ticket is forgotten.
    pub forget: Due,
    /// Who.
    pub owner: Owner,
}

/// What is kept of a token that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Whether it held something then.
    pub released: bool,
    /// When this is forgotten.
    pub until: Due,
}

/// A record as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// What stands in the way of a grant.
    pub blocker: Blocker,
    /// The foreign value, if it is one.
    pub foreign: Option<Foreign>,
    /// The last fence given out.
    pub fence: Option<Fence>,
    /// Who waits, in order, and since when.
    pub waiters: Vec<(Owner, Duration)>,
    /// The last ends, newest first.
    pub log: Vec<LoggedEnd>,
}

impl Record {
    /// Acquire, a waiter's heartbeat, and the confirmation of a grant: one operation, told apart by what the record
    /// knows of the token.
    pub fn acquire(&mut self, now: Time, ask: &Ask) -> Acquired {
        self.forget(now);
        if self.spent.contains_key(&ask.token) {
            return Acquired::Spent;
        }
        self.expire(now);
        if !self.is_held_by(&ask.token) {
            if ask.patience == Patience::Queue {
                self.hear(now, ask);
            }
            self.serve(now);
            if self.lock == Lock::Free {
                self.grant(now, ask.token.clone(), ask.owner.clone(), CONFIRM_WITHIN, 0);
            }
        }
        if self.is_held_by(&ask.token) {
            return Acquired::Granted(self.confirm(now, ask));
        }
        match ask.patience {
            Patience::None => Acquired::Busy(self.blocker(now)),
            Patience::Queue => {
                let (ahead, next) = self.place(now, &ask.token);
                Acquired::Waiting(Waiting { ahead, next, blocker: self.blocker(now) })
            }
        }
    }

    /// Extends the lease of the token that the lock key names, and of no other (I2, I12).
    pub fn renew(&mut self, now: Time, token: &Token, ttl: Duration) -> Renewal {
        self.expire(now);
        let answer = if self.is_held_by(token) {
            self.extend(now, ttl);
            Renewal::Renewed
        } else if self.is_revoked_from(token) {
            Renewal::Revoked
        } else {
            Renewal::NotHeld
        };
        self.serve(now);
        answer
    }

    /// Gives back the hold, or the place in the queue, and remembers the token as spent, so that an `acquire` of it
    /// that is still on its way is refused (I4).
    pub fn leave(&mut self, now: Time, token: &Token, end: &End) -> Left {
        self.forget(now);
        if let Some(spent) = self.spent.get(token) {
            return if spent.released { Left::Already } else { Left::NotHeld };
        }
        self.expire(now);
        let queued =
            self.waiters.remove(token).map(|waiter| self.queue.remove(&(waiter.ticket, token.clone())));
        let answer = if self.is_held_by(token) {
            self.release(now, end)
        } else if self.is_revoked_from(token) {
            self.hold = None;
            self.lock = Lock::Free;
            Left::Released { cooling: Duration::ZERO }
        } else if queued.is_some() {
            Left::Dequeued
        } else {
            Left::NotHeld
        };
        let released = matches!(answer, Left::Released { .. });
        self.spend(now, token.clone(), released);
        self.serve(now);
        answer
    }

    /// Takes the lock away. The renewals of whoever held it fail from now on.
    pub fn revoke(&mut self, now: Time, revoke: &Revoke) -> Revoked {
        self.expire(now);
        let answer = match self.lock.clone() {
            Lock::Free => Revoked::Free,
            Lock::Cooling { .. } => {
                self.lock = Lock::Free;
                Revoked::Cooling
            }
            Lock::Held { .. } if self.hold.as_ref().is_some_and(|hold| hold.until.passed(now)) => {
                self.end(now, Outcome::Expired, None, None);
                self.lock = Lock::Free;
                Revoked::Cooling
            }
            Lock::Held { token, .. } => self.force(now, revoke, token),
            Lock::Revoked { until } => {
                let holders = self.holder(now).into_iter().collect();
                if revoke.when == When::Now {
                    self.lock = Lock::Free;
                    if let Some(hold) = self.hold.take() {
                        self.spend(now, hold.token, false);
                    }
                }
                let left = if revoke.when == When::Now { Duration::ZERO } else { until.left(now) };
                Revoked::AlreadyRevoked { holders, left }
            }
            Lock::Foreign { .. } if revoke.when == When::Now => {
                self.lock = Lock::Free;
                Revoked::ForeignDeleted
            }
            Lock::Foreign { until } => {
                Revoked::Foreign(Foreign { kind: "string".into(), left: until.map(|until| until.left(now)) })
            }
        };
        self.serve(now);
        answer
    }

    /// What the record says at `now`; ends that no operation has noticed yet are in its log already.
    pub fn inspect(&self, now: Time) -> Seen {
        let mut record = self.clone();
        record.expire(now);
        let foreign = match record.lock {
            Lock::Foreign { until } => {
                Some(Foreign { kind: "string".into(), left: until.map(|until| until.left(now)) })
            }
            _ => None,
        };
        let heard = |(_, token): &(u64, Token)| {
            let waiter = record.waiters.get(token)?;
            let waiting = Duration::from_millis(now.millis().saturating_sub(waiter.since.millis()));
            (!waiter.silent.passed(now)).then(|| (waiter.owner.clone(), waiting))
        };
        Seen {
            blocker: record.blocker(now),
            foreign,
            fence: (record.fence > 0).then_some(Fence(record.fence)),
            waiters: record.queue.iter().filter_map(heard).collect(),
            log: record.log.into(),
        }
    }

    /// Whoever had this token is known to be dead, with everything that ran under it. Only a store that hears of
    /// deaths can say so; a min-hold stands. Nobody is served here: the operation that follows does that, and `inspect`
    /// shows what is, not what would be.
    pub fn bury(&mut self, now: Time, token: &Token) {
        self.expire(now);
        if let Some(waiter) = self.waiters.remove(token) {
            self.queue.remove(&(waiter.ticket, token.clone()));
        }
        if self.is_held_by(token) {
            let cool = self.hold.as_ref().map(|hold| hold.cool);
            self.end(now, Outcome::Expired, None, None);
            self.lock = cooling_until(cool, now);
        } else if self.is_revoked_from(token) {
            self.hold = None;
            self.lock = Lock::Free;
        }
    }

    /// Whether the token holds the lock, and how.
    pub fn prove(&self, now: Time, token: &Token) -> Option<Proof> {
        let mut record = self.clone();
        record.expire(now);
        if !record.is_held_by(token) {
            return None;
        }
        let hold = record.hold.as_ref().filter(|hold| hold.confirmed && !hold.until.passed(now))?;
        let lease = hold.until.left(now);
        Some(Proof { mode: Mode::Exclusive, slot: None, fence: Fence(hold.fence), lease })
    }

    fn is_held_by(&self, token: &Token) -> bool {
        matches!(&self.lock, Lock::Held { token: holder, .. } if holder == token)
    }

    fn is_revoked_from(&self, token: &Token) -> bool {
        matches!(self.lock, Lock::Revoked { .. })
            && self.hold.as_ref().is_some_and(|hold| hold.token == *token)
    }

    fn forget(&mut self, now: Time) {
        self.spent.retain(|_, spent| !spent.until.is_past(now));
        self.waiters.retain(|_, waiter| !waiter.forget.is_past(now));
        let waiters = &self.waiters;
        self.queue.retain(|(_, token)| waiters.contains_key(token));
    }

    fn spend(&mut self, now: Time, token: Token, released: bool) {
        self.spent.insert(token, Spent { released, until: Due::after(now, SPENT_KEPT) });
    }

    /// The first half of *settle*: what has run out, or is no longer borne out by the lock key, is over.
    fn expire(&mut self, now: Time) {
        let over = match &self.lock {
            Lock::Free => false,
            Lock::Held { until, .. } | Lock::Cooling { until } | Lock::Revoked { until } => until.passed(now),
            Lock::Foreign { until } => until.is_some_and(|until| until.is_past(now)),
        };
        if over {
            self.lock = Lock::Free;
        }
        let Some(hold) = &self.hold else { return };
        if self.is_held_by(&hold.token) || self.is_revoked_from(&hold.token) {
            return;
        }
        let ran_out = hold.until.max(hold.cool).passed(now);
        self.end(now, if ran_out { Outcome::Expired } else { Outcome::Lost }, None, None);
    }

    /// The second half of *settle*: park the silent, and grant to whoever is now entitled.
    fn serve(&mut self, now: Time) {
        while self.lock == Lock::Free {
            let Some((_, token)) = self.queue.pop_first() else { return };
            let Some(waiter) = self.waiters.get(&token) else { continue };
            if waiter.silent.passed(now) {
                continue;
            }
            let waited = now.millis().saturating_sub(waiter.since.millis());
            let owner = waiter.owner.clone();
            self.grant(now, token, owner, CONFIRM_WITHIN, waited);
        }
    }

    fn grant(&mut self, now: Time, token: Token, owner: Owner, lease: Duration, waited: u64) {
        self.fence = now.0.max(self.fence.saturating_add(1));
        let until = Due::after(now, lease);
        self.lock = Lock::Held { token: token.clone(), until };
        self.hold = Some(Hold {
            token,
            fence: self.fence,
            since: now,
            until,
            cool: Due(0),
            confirmed: false,
            forced: false,
            waited,
            owner,
        });
    }

    fn confirm(&mut self, now: Time, ask: &Ask) -> Grant {
        if let Some(waiter) = self.waiters.remove(&ask.token) {
            self.queue.remove(&(waiter.ticket, ask.token.clone()));
        }
        if let Some(hold) = &mut self.hold {
            hold.owner = ask.owner.clone();
            if !ask.min_hold.is_zero() {
                hold.cool = Due::after(hold.since, ask.min_hold);
            }
        }
        self.extend(now, ask.ttl);
        let (fence, waited) = self.hold.as_ref().map_or((0, 0), |hold| (hold.fence, hold.waited));
        Grant { fence: Fence(fence), waited: Duration::from_millis(waited), slot: None }
    }

    /// Whoever asks for more of the lease has heard of the grant.
    fn extend(&mut self, now: Time, ttl: Duration) {
        if let (Some(hold), Lock::Held { until, .. }) = (&mut self.hold, &mut self.lock) {
            hold.confirmed = true;
            hold.until = Due::after(now, ttl);
            *until = hold.until.max(hold.cool);
        }
    }

    fn release(&mut self, now: Time, end: &End) -> Left {
        let cool = self.hold.as_ref().map(|hold| hold.cool);
        match end.ran {
            Ran::Yes => {
                self.end(now, Outcome::Released, end.job, None);
                self.lock = cooling_until(cool, now);
            }
            Ran::No => {
                self.hold = None;
                self.lock = Lock::Free;
            }
        }
        let cooling = match self.lock {
            Lock::Cooling { until } => until.left(now),
            _ => Duration::ZERO,
        };
        Left::Released { cooling }
    }

    fn force(&mut self, now: Time, revoke: &Revoke, token: Token) -> Revoked {
        let Some(holder) = self.holder(now) else { return Revoked::Free };
        let hold = self.hold.clone();
        // Under a grant that was never confirmed no job runs, so there is nothing to wait for.
        let when = if holder.confirmed { revoke.when } else { When::Now };
        self.end(now, Outcome::Forced, None, Some(revoke.by.clone()));
        match when {
            When::Safe => {
                self.lock = Lock::Revoked { until: hold.as_ref().map_or(Due(0), |hold| hold.until) };
                self.hold = hold.map(|hold| Hold { forced: true, ..hold });
                Revoked::Holds { left: holder.lease, holders: vec![holder] }
            }
            When::Now => {
                self.lock = Lock::Free;
                self.spend(now, token, false);
                Revoked::Holds { left: Duration::ZERO, holders: vec![holder] }
            }
        }
    }

    /// Drops the hold and logs its end, once. A grant that nobody heard of leaves no trace.
    fn end(&mut self, now: Time, outcome: Outcome, job: Option<JobEnd>, by: Option<Owner>) {
        let Some(hold) = self.hold.take() else { return };
        if !hold.confirmed || hold.forced {
            return;
        }
        self.log.push_front(LoggedEnd {
            outcome,
            owner: hold.owner,
            fence: Fence(hold.fence),
            since: hold.since.millis(),
            ended: if outcome == Outcome::Expired { now.millis().min(hold.until.0) } else { now.millis() },
            waited: hold.waited,
            job,
            by,
        });
        self.log.truncate(LOG_KEPT);
    }

    /// A waiter makes itself heard: it gets a ticket, or comes back to its old one.
    fn hear(&mut self, now: Time, ask: &Ask) {
        let after_the_last = self.queue.last().map_or(0, |(ticket, _)| ticket + 1);
        let waiter = self.waiters.entry(ask.token.clone()).or_insert_with(|| Waiter {
            ticket: now.0.max(after_the_last),
            since: now,
            silent: Due(0),
            forget: Due(0),
            owner: ask.owner.clone(),
        });
        waiter.silent = Due::after(now, SILENCE);
        waiter.forget = Due::after(now, TICKET_KEPT);
        self.queue.insert((waiter.ticket, ask.token.clone()));
    }

    /// How many stand before a waiter, silent ones directly before it parked, and when to ask again: the head when
    /// the lock may be free, the others when the one before falls silent.
    fn place(&mut self, now: Time, token: &Token) -> (u64, Duration) {
        let Some(ticket) = self.waiters.get(token).map(|waiter| waiter.ticket) else { return (0, HEARTBEAT) };
        let mine = (ticket, token.clone());
        while let Some(before) = self.queue.range(..&mine).next_back().cloned() {
            match self.waiters.get(&before.1) {
                Some(waiter) if !waiter.silent.passed(now) => {
                    let ahead = self.queue.range(..&mine).count();
                    return (
                        u64::try_from(ahead).unwrap_or(u64::MAX),
                        waiter.silent.left(now).min(HEARTBEAT),
                    );
                }
                _ => self.queue.remove(&before),
            };
        }
        let next = match &self.lock {
            Lock::Foreign { .. } => FOREIGN_LOOK,
            _ => self.blocker(now).left.unwrap_or(HEARTBEAT).min(HEARTBEAT),
        };
        (0, next)
    }

    fn holder(&self, now: Time) -> Option<Holder> {
        let hold = self.hold.as_ref()?;
        Some(Holder {
            owner: hold.owner.clone(),
            fence: Fence(hold.fence),
            since: hold.since.millis(),
            held: Duration::from_millis(now.millis().saturating_sub(hold.since.millis())),
            lease: hold.until.left(now),
            slot: None,
            confirmed: hold.confirmed,
        })
    }

    fn blocker(&self, now: Time) -> Blocker {
        let (state, until) = match &self.lock {
            Lock::Free => (State::Free, None),
            Lock::Held { until, .. } if self.hold.as_ref().is_some_and(|hold| hold.until.passed(now)) => {
                (State::Cooling, Some(*until))
            }
            Lock::Held { until, .. } => (State::Held, Some(*until)),
            Lock::Cooling { until } => (State::Cooling, Some(*until)),
            Lock::Revoked { until } => (State::Revoked, Some(*until)),
            Lock::Foreign { until } => (State::Held, *until),
        };
        let holder = if state == State::Cooling { None } else { self.holder(now) };
        let mode = matches!(self.lock, Lock::Held { .. } | Lock::Cooling { .. } | Lock::Revoked { .. });
        Blocker {
            at: 0,
            state,
            mode: mode.then_some(Mode::Exclusive),
            holder,
            others: 0,
            left: until.map(|until| until.left(now)),
        }
    }
}

fn cooling_until(cool: Option<Due>, now: Time) -> Lock {
    match cool {
        Some(until) if !until.passed(now) => Lock::Cooling { until },
        _ => Lock::Free,
    }
}

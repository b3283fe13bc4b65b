//! What is kept of one lock, and how does it change? The record of a lock: who holds it, who waits, what was. Each step
//! here looks at one lock only; what concerns several at once (the queue of who wants more than one) is [`super::Book`]'s.
//!
//! Invariants between two operations:
//! - `holds` is what dlock knows of the holders; `lock` is the truth (I12). A hold that `lock` no longer bears out has
//!   ended, and the next operation says so in the log.
//! - A waiter is in `queue` while it is heard of. A silent one is *parked*: out of the queue, its ticket kept for
//!   [`super::TICKET_KEPT`], so that it comes back to its old place. A waiter that was granted the lock is parked too,
//!   until it confirms; if it never does, the next one is served.

use super::answer::{Blocker, Foreign, Holder, Left, LoggedEnd, Outcome, Requested, Revoked, State};
use super::operation::{Ask, JobEnd, Ran, Revoke, When};
use super::stat::Stat;
use super::time::{Due, Time};
use super::{LOG_KEPT, SPENT_KEPT, WATCH_KEPT};
use crate::lock::{Fence, Mode, Owner, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Everything kept of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// What the lock key says.
    pub lock: Lock,
    /// Who holds it, is kept in it by a min-hold, or was revoked.
    pub holds: BTreeMap<Token, Hold>,
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
    /// Who is to be woken when something changes, and until when.
    pub watchers: BTreeMap<Token, Due>,
    /// Totals.
    pub stat: Stat,
}

/// What the lock key says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lock {
    /// There is none.
    #[default]
    Free,
    /// The token of the one holder, until both its lease and its min-hold have run out.
    Exclusive {
        /// Whose.
        token: Token,
        /// Until when.
        until: Due,
    },
    /// A marker: shared by all that are in `holds`.
    Shared {
        /// Not before the last of them has run out.
        until: Due,
    },
    /// A marker: held in slots, each by one of `holds`.
    Slots {
        /// How many there are.
        slots: u32,
        /// Not before the last of them has run out.
        until: Due,
    },
    /// A marker: an exclusive lock given back, kept for the rest of a min-hold.
    Cooling {
        /// Until when.
        until: Due,
    },
    /// A marker: an exclusive lock taken away by an operator while the old job may live.
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
    /// What has become of it.
    pub phase: Phase,
    /// Its slot, of a lock with slots.
    pub slot: Option<u32>,
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
    /// How long it waited, in whole milliseconds.
    pub waited: u64,
    /// Who asked it to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Owner>,
    /// Who.
    pub owner: Owner,
}

/// What has become of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Held.
    Held,
    /// Given back, and kept for the rest of a min-hold. (Of an exclusive lock the lock key alone says so.)
    Cooling,
    /// Taken away by an operator while the job may live; its end is in the log already.
    Revoked,
}

impl Hold {
    /// When nothing is left of it: neither lease nor min-hold.
    fn due(&self) -> Due {
        match self.phase {
            Phase::Held => self.until.max(self.cool),
            Phase::Cooling => self.cool,
            Phase::Revoked => self.until,
        }
    }
}

/// What is kept of a waiter, at each of its locks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its place, the same in all its queues: tickets are served in ascending order.
    pub ticket: u64,
    /// When it came.
    pub since: Time,
    /// When it counts as silent.
    pub silent: Due,
    /// When its ticket is forgotten.
    pub forget: Due,
    /// How it wants the locks.
    pub mode: Mode,
    /// The full names of all locks that it waits for.
    pub names: Vec<String>,
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
    /// What the lock key says.
    pub state: State,
    /// How it is held or kept; null for a foreign holder and where it is free.
    pub mode: Option<Mode>,
    /// The holds (held or revoked), the oldest first.
    pub holders: Vec<Holder>,
    /// How long until the lock is free if nobody does anything more; null where it has no end.
    pub left: Option<Duration>,
    /// The foreign value, if it is one.
    pub foreign: Option<Foreign>,
    /// The last fence given out.
    pub fence: Option<Fence>,
    /// Who waits, in order, how, and since when.
    pub waiters: Vec<(Owner, Mode, Duration)>,
    /// The last ends, newest first.
    pub log: Vec<LoggedEnd>,
    /// Totals.
    pub stat: Stat,
}

/// What is granted, and to whom.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) slot: Option<u32>,
    pub(super) fence: u64,
    pub(super) waited: u64,
    pub(super) owner: Owner,
}

impl Record {
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
            (!waiter.silent.passed(now)).then(|| (waiter.owner.clone(), waiter.mode, waiting))
        };
        let state = record.state(now);
        let blocker = record.blocker(now, Mode::Exclusive);
        Seen {
            state,
            mode: blocker.mode,
            holders: record.shown(now, state).into_iter().map(|(_, hold)| hold.shown(now)).collect(),
            left: if state == State::Free { None } else { blocker.left },
            foreign,
            fence: (record.fence > 0).then_some(Fence(record.fence)),
            waiters: record.queue.iter().filter_map(heard).collect(),
            log: record.log.into(),
            stat: record.stat,
        }
    }

    pub(super) fn is_held_by(&self, token: &Token) -> bool {
        match &self.lock {
            Lock::Exclusive { token: holder, .. } => holder == token && self.holds.contains_key(token),
            Lock::Shared { .. } | Lock::Slots { .. } => {
                self.holds.get(token).is_some_and(|hold| hold.phase == Phase::Held)
            }
            Lock::Free | Lock::Cooling { .. } | Lock::Revoked { .. } | Lock::Foreign { .. } => false,
        }
    }

    pub(super) fn is_revoked_from(&self, token: &Token) -> bool {
        self.holds.get(token).is_some_and(|hold| hold.phase == Phase::Revoked)
    }

    /// How it is held or kept, if by dlock.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.lock {
            Lock::Free | Lock::Foreign { .. } => None,
            Lock::Exclusive { .. } | Lock::Cooling { .. } | Lock::Revoked { .. } => Some(Mode::Exclusive),
            Lock::Shared { .. } => Some(Mode::Shared),
            Lock::Slots { slots, .. } => Some(Mode::Slots(slots)),
        }
    }

    /// Whether one more may hold it in this mode, the queue aside. Where the key says that several hold it and nobody is
    /// known to, the server has lost who does: then nobody may before the key itself runs out.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        match (&self.lock, mode) {
            (Lock::Free, _) => true,
            (Lock::Shared { .. }, Mode::Shared) => !self.holds.is_empty(),
            (Lock::Slots { slots, .. }, Mode::Slots(wanted)) => {
                *slots == wanted && !self.holds.is_empty() && self.holds.len() < *slots as usize
            }
            _ => false,
        }
    }

    /// Whether a waiter is known and not silent.
    pub(super) fn is_heard(&self, now: Time, token: &Token) -> bool {
        self.waiters.get(token).is_some_and(|waiter| !waiter.silent.passed(now))
    }

    /// The slots that a hold has, or a min-hold keeps.
    pub(super) fn taken(&self) -> impl Iterator<Item = u32> {
        self.holds.values().filter_map(|hold| hold.slot)
    }

    /// Drops what need not be remembered any more.
    pub(super) fn forget(&mut self, now: Time) {
        self.spent.retain(|_, spent| !spent.until.is_past(now));
        self.waiters.retain(|_, waiter| !waiter.forget.is_past(now));
        let waiters = &self.waiters;
        self.queue.retain(|(_, token)| waiters.contains_key(token));
        self.watchers.retain(|_, until| !until.is_past(now));
    }

    pub(super) fn spend(&mut self, now: Time, token: Token, released: bool) {
        self.spent.insert(token, Spent { released, until: Due::after(now, SPENT_KEPT) });
    }

    /// What has run out, or is no longer borne out by the lock key, is over.
    pub(super) fn expire(&mut self, now: Time) {
        let over = match &self.lock {
            Lock::Free => false,
            Lock::Exclusive { until, .. }
            | Lock::Shared { until }
            | Lock::Slots { until, .. }
            | Lock::Cooling { until }
            | Lock::Revoked { until } => until.passed(now),
            Lock::Foreign { until } => until.is_some_and(|until| until.is_past(now)),
        };
        if over {
            self.lock = Lock::Free;
        }
        let mut ended: Vec<(Due, Token)> = self
            .holds
            .iter()
            .filter(|(token, hold)| !self.bears_out(now, token, hold))
            .map(|(token, hold)| (hold.due(), token.clone()))
            .collect();
        ended.sort();
        for (due, token) in &ended {
            let outcome = if due.passed(now) { Outcome::Expired } else { Outcome::Lost };
            self.end(now, token, outcome, None, None);
        }
        if !ended.is_empty() {
            self.free_if_left();
        }
    }

    fn bears_out(&self, now: Time, token: &Token, hold: &Hold) -> bool {
        match &self.lock {
            Lock::Exclusive { token: holder, .. } => holder == token,
            Lock::Revoked { .. } => hold.phase == Phase::Revoked,
            Lock::Shared { .. } | Lock::Slots { .. } => !hold.due().passed(now),
            Lock::Free | Lock::Cooling { .. } | Lock::Foreign { .. } => false,
        }
    }

    /// A lock of several is free when the last of them has gone.
    fn free_if_left(&mut self) {
        if self.holds.is_empty() && matches!(self.lock, Lock::Shared { .. } | Lock::Slots { .. }) {
            self.lock = Lock::Free;
        }
    }

    pub(super) fn grant(&mut self, now: Time, lease: Duration, granted: &Granted) {
        let until = Due::after(now, lease);
        self.fence = granted.fence;
        self.lock = match granted.mode {
            Mode::Exclusive => Lock::Exclusive { token: granted.token.clone(), until },
            Mode::Shared => Lock::Shared { until },
            Mode::Slots(slots) => Lock::Slots { slots, until },
        };
        let hold = Hold {
            phase: Phase::Held,
            slot: granted.slot,
            fence: granted.fence,
            since: now,
            until,
            cool: Due(0),
            confirmed: false,
            waited: granted.waited,
            asked: None,
            owner: granted.owner.clone(),
        };
        self.holds.insert(granted.token.clone(), hold);
        self.outlast();
    }

    /// The waiter has heard of its grant: it holds now, by its own lease.
    pub(super) fn confirm(&mut self, now: Time, ask: &Ask) {
        if let Some(hold) = self.holds.get_mut(&ask.token) {
            hold.owner = ask.owner.clone();
            if !ask.min_hold.is_zero() {
                hold.cool = Due::after(hold.since, ask.min_hold);
            }
        }
        self.extend(now, &ask.token, ask.ttl);
    }

    /// Whoever asks for more of the lease has heard of the grant.
    pub(super) fn extend(&mut self, now: Time, token: &Token, ttl: Duration) {
        if let Some(hold) = self.holds.get_mut(token) {
            if !hold.confirmed {
                self.stat.waited.add(Duration::from_millis(hold.waited));
            }
            hold.confirmed = true;
            hold.until = Due::after(now, ttl);
            self.outlast();
        }
    }

    /// The lock key lasts as long as the last of the holds.
    fn outlast(&mut self) {
        let last = self.holds.values().map(Hold::due).max();
        if let Lock::Exclusive { until, .. } | Lock::Shared { until } | Lock::Slots { until, .. } =
            &mut self.lock
            && let Some(last) = last
        {
            *until = last;
        }
    }

    /// Gives back a hold, and answers what is left of its min-hold.
    pub(super) fn release(&mut self, now: Time, token: &Token, ran: Ran, job: Option<JobEnd>) -> Duration {
        match ran {
            Ran::Yes => self.close(now, token, Outcome::Released, job),
            Ran::No => {
                self.drop_hold(token);
                Duration::ZERO
            }
        }
    }

    /// Ends a hold; its min-hold stands. Answers what is left of that.
    fn close(&mut self, now: Time, token: &Token, outcome: Outcome, job: Option<JobEnd>) -> Duration {
        let kept = self.holds.get(token).filter(|hold| !hold.cool.passed(now)).cloned();
        let exclusive = matches!(self.lock, Lock::Exclusive { .. });
        self.end(now, token, outcome, job, None);
        let Some(hold) = kept else {
            self.drop_hold(token);
            return Duration::ZERO;
        };
        let cool = hold.cool;
        if exclusive {
            self.lock = Lock::Cooling { until: cool };
        } else {
            self.holds.insert(token.clone(), Hold { phase: Phase::Cooling, owner: Owner::default(), ..hold });
        }
        cool.left(now)
    }

    /// Takes a hold out, without a trace.
    pub(super) fn drop_hold_of(&mut self, token: &Token) {
        if self.holds.contains_key(token) {
            self.drop_hold(token);
        }
    }

    /// Takes a hold out, and frees the lock if it was the only one.
    pub(super) fn drop_hold(&mut self, token: &Token) {
        self.holds.remove(token);
        match &self.lock {
            Lock::Exclusive { token: holder, .. } if holder == token => self.lock = Lock::Free,
            Lock::Revoked { .. } => self.lock = Lock::Free,
            _ => self.free_if_left(),
        }
    }

    /// Drops a hold and logs its end, once. A grant that nobody heard of leaves no trace.
    pub(super) fn end(
        &mut self,
        now: Time,
        token: &Token,
        outcome: Outcome,
        job: Option<JobEnd>,
        by: Option<Owner>,
    ) {
        let Some(hold) = self.holds.remove(token) else { return };
        if !hold.confirmed || hold.phase != Phase::Held {
            return;
        }
        let since = hold.since.millis();
        let ended = if outcome == Outcome::Expired { now.millis().min(hold.until.0) } else { now.millis() };
        self.stat.end(since, ended, outcome, job);
        self.log.push_front(LoggedEnd {
            outcome,
            owner: hold.owner,
            fence: Fence(hold.fence),
            since,
            ended,
            waited: hold.waited,
            job,
            by: by.or(hold.asked),
        });
        self.log.truncate(LOG_KEPT);
    }

    /// Whoever had this token is known to be dead, with everything that ran under it.
    pub fn bury(&mut self, now: Time, token: &Token) {
        self.expire(now);
        if let Some(waiter) = self.waiters.remove(token) {
            self.queue.remove(&(waiter.ticket, token.clone()));
        }
        if self.is_held_by(token) {
            self.close(now, token, Outcome::Expired, None);
        } else if self.is_revoked_from(token) {
            self.drop_hold(token);
        }
    }

    /// Asks the hold with this fence to end.
    pub(super) fn request(&mut self, fence: Fence, by: &Owner) -> Requested {
        let hold = self.holds.values_mut().find(|hold| hold.phase == Phase::Held && hold.fence == fence.0);
        match hold {
            Some(hold) => {
                hold.asked.get_or_insert_with(|| by.clone());
                Requested::Asked
            }
            None => Requested::Gone,
        }
    }

    /// Whether somebody asked this hold to end.
    pub(super) fn is_asked(&self, token: &Token) -> bool {
        self.holds.get(token).is_some_and(|hold| hold.asked.is_some())
    }

    /// Wakes the token whenever something changes, for a while.
    pub(super) fn watch(&mut self, now: Time, token: &Token) {
        self.watchers.insert(token.clone(), Due::after(now, WATCH_KEPT));
    }

    /// Takes the lock away from all who hold it.
    pub(super) fn revoke(&mut self, now: Time, revoke: &Revoke) -> Revoked {
        let was = self.state(now);
        if let Lock::Foreign { until } = self.lock {
            if revoke.when == When::Now {
                self.lock = Lock::Free;
                return Revoked::ForeignDeleted;
            }
            return Revoked::Foreign(Foreign {
                kind: "string".into(),
                left: until.map(|until| until.left(now)),
            });
        }
        let shown: Vec<(Token, Holder)> =
            self.shown(now, was).into_iter().map(|(token, hold)| (token.clone(), hold.shown(now))).collect();
        self.drop_what_cools(now);
        for (token, holder) in &shown {
            let kept = self.holds.get(token).cloned();
            self.end(now, token, Outcome::Forced, None, Some(revoke.by.clone()));
            match (revoke.when, kept) {
                // Under a grant that was never confirmed, or after its lease, no job runs: there is nothing to wait for.
                (When::Safe, Some(hold)) if holder.confirmed && !hold.until.passed(now) => {
                    self.holds.insert(token.clone(), Hold { phase: Phase::Revoked, ..hold });
                }
                _ => self.spend(now, token.clone(), false),
            }
        }
        if revoke.when == When::Now {
            // Those that were revoked before, beside the ones that held it until now.
            for token in std::mem::take(&mut self.holds).into_keys() {
                self.spend(now, token, false);
            }
        }
        let left = self.holds.values().map(|hold| hold.until.left(now)).max();
        self.lock = match (&self.lock, left) {
            // The server has lost who holds it; only the key itself tells how long.
            (Lock::Exclusive { until, .. } | Lock::Shared { until } | Lock::Slots { until, .. }, None)
                if shown.is_empty() && was == State::Held && revoke.when == When::Safe =>
            {
                Lock::Revoked { until: *until }
            }
            (Lock::Revoked { until }, None) if revoke.when == When::Safe => Lock::Revoked { until: *until },
            (_, None) => Lock::Free,
            (Lock::Exclusive { .. } | Lock::Revoked { .. }, Some(left)) => {
                Lock::Revoked { until: Due::after(now, left) }
            }
            (lock, Some(_)) => lock.clone(),
        };
        self.outlast();
        let left = match self.lock {
            Lock::Revoked { until } => until.left(now),
            _ => left.unwrap_or_default(),
        };
        let holders: Vec<Holder> = shown.into_iter().map(|(_, holder)| holder).collect();
        match was {
            State::Free => Revoked::Free,
            State::Cooling => Revoked::Cooling,
            State::Held if !holders.is_empty() => Revoked::Holds { holders, left },
            State::Held | State::Revoked => Revoked::AlreadyRevoked { holders, left },
        }
    }

    /// An operator who takes a lock away does not mean to leave what a min-hold keeps.
    fn drop_what_cools(&mut self, now: Time) {
        let cools = |hold: &Hold| hold.phase != Phase::Revoked && !self.is_live(now, hold);
        let over: Vec<Token> =
            self.holds.iter().filter(|(_, hold)| cools(hold)).map(|(token, _)| token.clone()).collect();
        for token in &over {
            self.end(now, token, Outcome::Expired, None, None);
        }
    }

    /// Whether it counts as held. An exclusive lock is seen to cool when its lease has run out and a min-hold keeps it;
    /// to know that of each of many holds would cost every waiter's heartbeat a look at all of them.
    fn is_live(&self, now: Time, hold: &Hold) -> bool {
        let exclusive = matches!(self.lock, Lock::Exclusive { .. });
        hold.phase == Phase::Held && !(exclusive && hold.until.passed(now))
    }

    /// Whether anybody at all may be admitted.
    pub(super) fn is_open(&self) -> bool {
        match self.mode() {
            None => self.lock == Lock::Free,
            Some(mode) => self.admits(mode),
        }
    }

    /// What the lock key and the holds say together.
    fn state(&self, now: Time) -> State {
        match self.lock {
            Lock::Free => State::Free,
            Lock::Foreign { .. } => State::Held,
            Lock::Cooling { .. } => State::Cooling,
            Lock::Revoked { .. } => State::Revoked,
            Lock::Exclusive { .. } | Lock::Shared { .. } | Lock::Slots { .. } => {
                if self.holds.is_empty() || self.holds.values().any(|hold| self.is_live(now, hold)) {
                    State::Held
                } else if self.holds.values().any(|hold| hold.phase == Phase::Revoked) {
                    State::Revoked
                } else {
                    State::Cooling
                }
            }
        }
    }

    /// The holds that make up the state, the oldest first.
    fn shown(&self, now: Time, state: State) -> Vec<(&Token, &Hold)> {
        let mut shown: Vec<(&Token, &Hold)> = self
            .holds
            .iter()
            .filter(|(_, hold)| match state {
                State::Held => self.is_live(now, hold),
                State::Revoked => hold.phase == Phase::Revoked,
                State::Free | State::Cooling => false,
            })
            .collect();
        shown.sort_by_key(|(token, hold)| (hold.since, (*token).clone()));
        shown
    }

    /// What is in the way of one who wants the lock in this mode.
    pub(super) fn blocker(&self, now: Time, wanted: Mode) -> Blocker {
        let state = self.state(now);
        let shown = self.shown(now, state);
        let by_due = |(token, hold): &(&Token, &Hold)| (hold.due(), (*token).clone());
        let dues = self.holds.values().map(Hold::due);
        let (first, known) = match (&self.lock, wanted) {
            // The first slot to run out will do.
            (Lock::Slots { slots, .. }, Mode::Slots(wanted)) if *slots == wanted => {
                (shown.iter().copied().min_by_key(by_due), dues.min())
            }
            (Lock::Slots { .. } | Lock::Shared { .. }, _) => {
                (shown.iter().copied().max_by_key(by_due), dues.max())
            }
            _ => (shown.first().copied(), None),
        };
        let until = match &self.lock {
            Lock::Free => None,
            Lock::Exclusive { until, .. }
            | Lock::Shared { until }
            | Lock::Slots { until, .. }
            | Lock::Cooling { until }
            | Lock::Revoked { until } => Some(known.unwrap_or(*until)),
            Lock::Foreign { until } => *until,
        };
        Blocker {
            at: 0,
            state,
            mode: self.mode(),
            holder: first.map(|(_, hold)| hold.shown(now)),
            others: u64::try_from(shown.len().saturating_sub(1)).unwrap_or(u64::MAX),
            left: until.map(|until| until.left(now)),
        }
    }
}

impl Hold {
    fn shown(&self, now: Time) -> Holder {
        Holder {
            owner: self.owner.clone(),
            fence: Fence(self.fence),
            since: self.since.millis(),
            held: Duration::from_millis(now.millis().saturating_sub(self.since.millis())),
            lease: self.until.left(now),
            slot: self.slot,
            asked: self.asked.clone(),
            confirmed: self.confirmed,
        }
    }
}

/// What became of leaving.
pub(super) fn left(released: Option<Duration>, spent: Option<Spent>, queued: bool) -> Left {
    match (released, spent) {
        (Some(cooling), _) => Left::Released { cooling },
        (None, Some(spent)) if spent.released => Left::Already,
        (None, Some(_)) => Left::NotHeld,
        (None, None) if queued => Left::Dequeued,
        (None, None) => Left::NotHeld,
    }
}

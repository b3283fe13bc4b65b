//! What is kept of one lock, and how does it change? The record of a lock: who holds it, who waits, what was. Each step
//! here looks at one lock only; what concerns several at once (the queue of who wants more than one) is [`super::LockTable`]'s.
//!
//! Invariants between two operations:
//! - `holds` is what dlock knows of the holders; `lock` is the truth (I12). A hold that `lock` no longer bears out has
//!   ended, and the next operation says so in the log.
//! - A waiter is in `queue` while it is heard of. A silent one is *parked*: out of the queue, its ticket kept for
//!   [`super::TICKET_KEPT`], so that it comes back to its old place. A waiter that was granted the lock is parked too,
//!   until it confirms; if it never does, the next one is served.
//! - One whose ticket is forgotten while it stands between others counts as before them until the queue comes to it: to look
//!   for such in the middle would cost every waiter's heartbeat a look at all of them.

use super::answer::{Left, LoggedEnd, Outcome, Pause, Success};
use super::operation::{Ask, End, Terms, is_not};
use super::refusal::Refusal;
use super::stat::{Stat, count};
use super::time::{Due, Time, millis};
use super::{ABSENCE, HISTORY_KEPT, LOG_KEPT, SILENCE, SPENT_KEPT};
use crate::exit::Ended;
use crate::lock::{Fence, Mode, ONCE_PER_MOST, Owner, PAUSE_MOST, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

mod operator;

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
    /// When waiters were heard of, and when nobody was.
    pub absence: Absence,
    /// The last fence given out.
    pub fence: u64,
    pub spent: BTreeMap<Token, Spent>,
    /// The last ends, newest first.
    pub log: VecDeque<LoggedEnd>,
    /// The last hold that succeeded of those that were asked for with [`Terms::once_per`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<Success>,
    /// Who has paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// Who came last of those that replace others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest: Option<Newest>,
    /// Who did not get a lock, newest first; in a record of its own beside that of the lock, so that those who are refused
    /// change nothing that a holder has to write.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub refusals: VecDeque<Refusal>,
    /// Who is to be woken when something changes, and until when.
    pub watchers: BTreeMap<Token, Due>,
    pub stat: Stat,
}

/// What the lock key says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lock {
    #[default]
    Free,
    /// The token of the one holder, until both its lease and its min-hold have run out.
    Exclusive {
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
    pub fence: u64,
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
    /// Whether that is one that replaces it, not an operator.
    #[serde(default, skip_serializing_if = "is_not")]
    pub superseded: bool,
    /// Whether it is not to be asked by such a one.
    #[serde(default, skip_serializing_if = "is_not")]
    pub stays: bool,
    pub owner: Owner,
}

/// The one that came last of those that replace others, whatever has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    pub token: Token,
    pub came: Time,
    pub owner: Owner,
}

/// What has become of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Held,
    /// Given back, and kept for the rest of a min-hold. (Of an exclusive lock the lock key alone says so.)
    Cooling,
    /// Taken away by an operator while the job may live; its end is in the log already.
    Revoked,
}

impl Hold {
    /// A grant that nobody heard of leaves no trace, and an end is logged once.
    fn is_logged(&self) -> bool {
        self.confirmed && self.phase == Phase::Held
    }

    /// When nothing is left of it: neither lease nor min-hold.
    pub(super) fn due(&self) -> Due {
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
    pub owner: Owner,
    #[serde(default, skip_serializing_if = "Terms::is_plain")]
    pub terms: Terms,
}

/// When waiters were heard of, and the last time in which none was: see [`super::ABSENCE`]. In whole milliseconds, zero
/// where there was no such time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// When one was heard of last.
    pub heard: Due,
    /// When one was heard of last before that time.
    pub from: Due,
    /// When that time was noticed to be over.
    pub back: Due,
    /// When the time before that one, in which none was heard of either, was noticed to be over.
    #[serde(default)]
    pub back_before: Due,
}

/// What is kept of a token that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Whether it held something then.
    pub released: bool,
    /// Whether one that came later sent it home.
    #[serde(default, skip_serializing_if = "is_not")]
    pub superseded: bool,
    /// When this is forgotten.
    pub until: Due,
}

/// What is granted, and to whom.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) slot: Option<u32>,
    pub(super) fence: u64,
    pub(super) waited: u64,
    pub(super) stays: bool,
    pub(super) owner: Owner,
}

impl Record {
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

    /// Whether one more may hold it in this mode, the queue aside.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        self.paused.is_none() && self.has_room(mode)
    }

    /// The same, whether it is paused or not. Where the key says that several hold it and nobody is
    /// known to, the server has lost who does: then nobody may before the key itself runs out.
    fn has_room(&self, mode: Mode) -> bool {
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
        self.waiters.get(token).is_some_and(|waiter| self.is_there(now, waiter))
    }

    pub(super) fn is_there(&self, now: Time, waiter: &Waiter) -> bool {
        !self.silent_at(waiter).passed(now) && !waiter.forget.is_past(now)
    }

    /// When a waiter counts as silent. One that was not silent when nobody could be heard any more, and was not heard of
    /// since, has a whole silence from when that was over; unless its ticket is forgotten before, or it was not heard of
    /// since the time before that one either.
    pub(super) fn silent_at(&self, waiter: &Waiter) -> Due {
        let Absence { from, back, back_before, .. } = self.absence;
        let silence = millis(SILENCE);
        let again = Due(back.0.saturating_add(silence));
        let heard = waiter.silent.0.saturating_sub(silence);
        let was_heard = waiter.silent > from && (back_before.0..=from.0).contains(&heard);
        if was_heard && again <= waiter.forget { waiter.silent.max(again) } else { waiter.silent }
    }

    /// To be called before it is asked who is silent. What was noticed is not noticed again, or the dead would stay.
    pub(super) fn notice_absence(&mut self, now: Time) {
        let Absence { heard, from, back, .. } = self.absence;
        if heard.0 > 0 && heard != from && now.millis().saturating_sub(heard.0) > millis(ABSENCE) {
            self.absence = Absence { heard, from: heard, back: Due(now.millis()), back_before: back };
        }
    }

    /// Forgets a waiter and its place; whether there was one.
    pub(super) fn remove_waiter(&mut self, token: &Token) -> bool {
        let waiter = self.waiters.remove(token);
        if let Some(waiter) = &waiter {
            self.queue.remove(&(waiter.ticket, token.clone()));
        }
        if self.waiters.is_empty() {
            self.absence = Absence::default();
        }
        waiter.is_some()
    }

    /// The slots that a hold has, or a min-hold keeps.
    pub(super) fn taken(&self) -> impl Iterator<Item = u32> {
        self.holds.values().filter_map(|hold| hold.slot)
    }

    /// Drops what need not be remembered any more.
    pub(super) fn forget(&mut self, now: Time) {
        self.spent.retain(|_, spent| !spent.until.is_past(now));
        self.waiters.retain(|_, waiter| !waiter.forget.is_past(now));
        self.watchers.retain(|_, until| !until.is_past(now));
        self.success.take_if(|success| now.millis().saturating_sub(success.since) > millis(ONCE_PER_MOST));
        self.newest
            .take_if(|newest| now.millis().saturating_sub(newest.came.millis()) > millis(HISTORY_KEPT));
    }

    /// For how long what is wanted once per `span` is done; nothing if it is due. A success in the future is believed
    /// for as long as one in the past: clocks are set back by a little, and some begin at zero.
    pub(super) fn done_for(&self, now: Time, span: Duration) -> Option<Duration> {
        let success = self.success.as_ref()?;
        let (now, span) = (now.millis(), millis(span));
        let until = success.since.saturating_add(span);
        (now.abs_diff(success.since) < span).then(|| Duration::from_millis(until.saturating_sub(now)))
    }

    pub(super) fn spend(&mut self, now: Time, token: Token, released: bool) {
        let until = Due::after(now, SPENT_KEPT);
        self.spent.insert(token, Spent { released, superseded: false, until });
    }

    /// One that came later sends it home.
    pub(super) fn send_home(&mut self, now: Time, token: Token) {
        count(&mut self.stat.superseded);
        let until = Due::after(now, SPENT_KEPT);
        self.spent.insert(token, Spent { released: false, superseded: true, until });
    }

    /// Who sends home one that came then: it came later, and that is not in the future, where a clock that was set back
    /// would have it.
    pub(super) fn superseded_by(&self, now: Time, token: &Token, came: Time) -> Option<&Newest> {
        self.newest
            .as_ref()
            .filter(|newest| newest.token != *token && newest.came > came && newest.came <= now)
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
        // One that ends later than any may was made by a clock that was wrong: it would never end.
        let is_in_force =
            |pause: &Pause| (1..=millis(PAUSE_MOST)).contains(&pause.until.saturating_sub(now.millis()));
        self.paused.take_if(|pause| !is_in_force(pause));
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
            superseded: false,
            stays: granted.stays,
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

    /// Whoever asks for more of the lease has heard of the grant, and waits no more.
    pub(super) fn extend(&mut self, now: Time, token: &Token, ttl: Duration) {
        let Some(hold) = self.holds.get_mut(token) else { return };
        let is_new = !std::mem::replace(&mut hold.confirmed, true);
        hold.until = Due::after(now, ttl);
        if is_new {
            self.stat.waited.add(Duration::from_millis(hold.waited));
            self.remove_waiter(token);
        }
        self.outlast();
    }

    /// Its holder has said, where only the store can see it, that its lease lasts until then.
    pub fn lasts(&mut self, token: &Token, until: Due) {
        let Some(hold) = self.holds.get_mut(token) else { return };
        hold.until = hold.until.max(until);
        if let (Phase::Revoked, Lock::Revoked { until }) = (hold.phase, &mut self.lock) {
            *until = hold.until.max(*until);
        }
        self.outlast();
    }

    /// Where a store knows by itself which leases are over, whatever the record says of their ends. `lives` tells it of a hold
    /// that its holder knows of, or that was revoked; of a grant that nobody has heard of, whether its waiter is there. The
    /// leases of those that live last for a while from now on, and the others end now.
    pub fn judge(&mut self, now: Time, mut lives: impl FnMut(&Token, &Hold) -> Option<Duration>) {
        for (token, hold) in self.holds.iter_mut().filter(|(_, hold)| hold.phase != Phase::Cooling) {
            let left = lives(token, hold);
            let until = Due::after(now, left.unwrap_or_default());
            let is_heard = hold.confirmed || hold.phase == Phase::Revoked;
            hold.until = if is_heard { until } else { hold.until.min(until) };
        }
        let revoked = self.holds.values().filter(|hold| hold.phase == Phase::Revoked);
        if let (Lock::Revoked { until }, Some(last)) = (&mut self.lock, revoked.map(|hold| hold.until).max())
        {
            *until = last;
        }
        self.outlast();
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
    pub(super) fn release(&mut self, now: Time, token: &Token, end: &End) -> Duration {
        match end.ran.outcome() {
            Some(outcome) => {
                if end.once_per && outcome == Outcome::Released && end.job == Some(Ended::Code(0)) {
                    self.remember_success(now, token);
                }
                self.close(now, token, outcome, end.job)
            }
            None => {
                self.drop_hold(token);
                Duration::ZERO
            }
        }
    }

    /// What the lock was wanted for once in a while is done. Of several that hold it together the one counts that was granted
    /// it last.
    fn remember_success(&mut self, now: Time, token: &Token) {
        let Some(hold) = self.holds.get(token).filter(|hold| hold.is_logged()) else { return };
        let is_many = matches!(self.lock, Lock::Shared { .. } | Lock::Slots { .. });
        let (since, owner, fence) = (hold.since.millis(), hold.owner.clone(), Fence(hold.fence));
        self.success.take_if(|last| !is_many || last.since <= since);
        self.success.get_or_insert(Success { owner, fence, since, ended: now.millis() });
    }

    /// Ends a hold; its min-hold stands. Answers what is left of that.
    fn close(&mut self, now: Time, token: &Token, outcome: Outcome, job: Option<Ended>) -> Duration {
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
        job: Option<Ended>,
        by: Option<Owner>,
    ) {
        let Some(hold) = self.holds.remove(token) else { return };
        if !hold.is_logged() {
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
    pub fn reap(&mut self, now: Time, token: &Token) {
        self.expire(now);
        self.remove_waiter(token);
        if self.is_held_by(token) {
            self.close(now, token, Outcome::Expired, None);
        } else if self.is_revoked_from(token) {
            self.drop_hold(token);
        }
    }

    /// Whether nothing depends on it any more but what is remembered of the past. A hold whose end has passed may still be one:
    /// a store may keep that end elsewhere.
    pub fn is_vacant(&self, now: Time) -> bool {
        let is_free = match self.lock {
            Lock::Free => true,
            Lock::Cooling { until } => until.passed(now),
            _ => false,
        };
        let is_over = |hold: &Hold| hold.phase == Phase::Cooling && hold.cool.passed(now);
        let is_open = self.paused.as_ref().is_none_or(|pause| pause.until <= now.millis());
        is_free && self.holds.values().all(is_over) && is_open
    }

    /// Whether anybody at all may be admitted.
    pub fn is_open(&self) -> bool {
        match self.mode() {
            None => self.lock == Lock::Free,
            Some(mode) => self.has_room(mode),
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

//! What does a record say to those who look at it? The view of `status`, and what is in the way of one who wants the lock.
//! Nothing is changed here.

use super::answer::{Blocker, Foreign, Holder, LoggedEnd, Outcome, Pause, State, Success};
use super::record::{Hold, Lock, Phase, Record};
use super::stat::Stat;
use super::time::{Due, Time, millis};
use crate::lock::{Fence, Mode, Name, ONCE_PER_MOST, Owner, Token};
use std::time::Duration;

/// All that is known of one lock, as who looks at it is shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub name: Name,
    pub now: u64,
    /// What the lock key says; a foreign value counts as held.
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
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
    /// The last ends, newest first, at most 64.
    pub log: Vec<LoggedEnd>,
    pub stat: Stat,
    /// Who has paused it.
    pub paused: Option<Pause>,
    /// The last hold that succeeded of those that were asked for with `--once-per`, if it was granted within
    /// [`ONCE_PER_MOST`].
    pub success: Option<Success>,
}

/// How long a run mostly takes, by the last ends in the log: the middle of those that ended by themselves. Nothing where they
/// are too few to say, or too different.
pub fn typical(log: &[LoggedEnd]) -> Option<Duration> {
    const LOOKED_AT: usize = 9;
    const ENOUGH: usize = 5;
    let ran = log.iter().filter(|end| end.outcome == Outcome::Released && end.job.is_some());
    let mut spans: Vec<u64> = ran.take(LOOKED_AT).map(|end| end.ended.saturating_sub(end.since)).collect();
    spans.sort_unstable();
    let (low, middle, high) = (spans.len() / 4, spans.len() / 2, spans.len() * 3 / 4);
    let alike = spans.get(high)?.saturating_sub(1000) <= spans.get(low)?.saturating_mul(4);
    (spans.len() >= ENOUGH && alike).then(|| spans.get(middle).copied().map(Duration::from_millis)).flatten()
}

/// How long until it is the turn of one who has so many before it, where a run takes so long and one has been under way for
/// a while. A run that takes longer than usual is about to end, as far as anybody knows.
pub fn turn_in(typical: Duration, ahead: u64, held: Option<Duration>) -> Duration {
    let rest = held.map_or(Duration::ZERO, |held| typical.saturating_sub(held));
    rest.saturating_add(typical.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX)))
}

/// The last hold that succeeded, whether it was asked for with `--once-per` or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastSuccess {
    Known(Success),
    /// So many have ended since that only the time of its end is known, in milliseconds since 1970.
    EndedAt(u64),
}

impl View {
    /// The last hold that succeeded: as the log tells it, or what is kept for `--once-per`, or the totals.
    pub fn last_success(&self) -> Option<LastSuccess> {
        /// The masters of a quorum tell of one end by clocks of their own.
        const ALIKE: u64 = 1000;
        let is_success = |end: &&LoggedEnd| end.is_success();
        let logged = self.log.iter().find(is_success).map(LoggedEnd::success);
        let known = logged.into_iter().chain(self.success.clone()).max_by_key(|success| success.ended);
        match (known, self.stat.last_success) {
            (Some(known), Some(ended)) if known.ended.saturating_add(ALIKE) < ended => {
                Some(LastSuccess::EndedAt(ended))
            }
            (Some(known), _) => Some(LastSuccess::Known(known)),
            (None, ended) => ended.map(LastSuccess::EndedAt),
        }
    }
}

impl View {
    /// How long until each of those who wait may have the lock, as far as its history tells. Only where all want it alone: how
    /// many run at a time is not known elsewhere.
    pub fn turns(&self) -> Vec<Option<Duration>> {
        let alone = self.state != State::Paused
            && self.mode.is_none_or(|mode| mode == Mode::Exclusive)
            && self.waiters.iter().all(|waiter| waiter.mode == Mode::Exclusive);
        let typical = typical(&self.log).filter(|_| alone);
        let held = self.holders.first().map(|holder| holder.held);
        (0..).zip(&self.waiters).map(|(ahead, _)| Some(turn_in(typical?, ahead, held))).collect()
    }
}

/// A waiter, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    pub owner: Owner,
    /// How it wants the lock.
    pub mode: Mode,
    /// Whether it replaces others, and is sent home by the next one that does.
    pub replaces: bool,
    /// How long it has been waiting.
    pub waiting: Duration,
}

impl View {
    /// Whether there is anything to tell of the lock: if not, nobody has used it in the last 40 days.
    pub fn is_used(&self) -> bool {
        let is_known = self.fence.is_some() || self.state != State::Free;
        is_known || !self.waiters.is_empty() || !self.log.is_empty() || self.stat != Stat::default()
    }
}

impl Record {
    /// What the record of this lock says at `now`; ends that no operation has noticed yet are in its log already.
    pub fn inspect(&self, name: &Name, now: Time) -> View {
        let mut record = self.clone();
        record.expire(now);
        record.notice_absence(now);
        let foreign = match record.lock {
            Lock::Foreign { until } => {
                Some(Foreign { kind: "string".into(), left: until.map(|until| until.left(now)) })
            }
            _ => None,
        };
        let heard = |(_, token): &(u64, Token)| {
            let waiter = record.waiters.get(token)?;
            let waiting = Duration::from_millis(now.millis().saturating_sub(waiter.since.millis()));
            let (owner, mode, replaces) = (waiter.owner.clone(), waiter.mode, waiter.terms.replaces);
            record.is_there(now, waiter).then_some(Waiter { owner, mode, replaces, waiting })
        };
        let state = record.state(now);
        let blocker = record.blocker(now, Mode::Exclusive);
        View {
            name: name.clone(),
            now: now.millis(),
            state,
            mode: blocker.mode,
            holders: record.shown(now, state).into_iter().map(|(_, hold)| hold.shown(now)).collect(),
            left: if state == State::Free { None } else { blocker.left },
            foreign,
            fence: (record.fence > 0).then_some(Fence(record.fence)),
            waiters: record.queue.iter().filter_map(heard).collect(),
            log: record.log.into(),
            stat: record.stat,
            paused: record.paused,
            success: record
                .success
                .filter(|success| now.millis().saturating_sub(success.since) <= millis(ONCE_PER_MOST)),
        }
    }

    /// Whether it counts as held. An exclusive lock is seen to cool when its lease has run out and a min-hold keeps it;
    /// to know that of each of many holds would cost every waiter's heartbeat a look at all of them.
    pub(super) fn is_live(&self, now: Time, hold: &Hold) -> bool {
        let exclusive = matches!(self.lock, Lock::Exclusive { .. });
        hold.phase == Phase::Held && !(exclusive && hold.until.passed(now))
    }

    /// What the lock key and the holds say together.
    pub(super) fn state(&self, now: Time) -> State {
        match self.lock {
            Lock::Free if self.paused.is_some() => State::Paused,
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
    pub(super) fn shown(&self, now: Time, state: State) -> Vec<(&Token, &Hold)> {
        let mut shown: Vec<(&Token, &Hold)> = self
            .holds
            .iter()
            .filter(|(_, hold)| match state {
                State::Held => self.is_live(now, hold),
                State::Revoked => hold.phase == Phase::Revoked,
                State::Free | State::Cooling | State::Paused => false,
            })
            .collect();
        shown.sort_by_key(|(token, hold)| (hold.since, (*token).clone()));
        shown
    }

    /// What is in the way of one who wants the lock in this mode.
    pub(in crate::rules) fn blocker(&self, now: Time, wanted: Mode) -> Blocker {
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
            Lock::Free => self.paused.as_ref().map(|pause| Due(pause.until)),
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
            paused: self.paused.clone(),
        }
    }
}

impl Hold {
    pub(super) fn shown(&self, now: Time) -> Holder {
        Holder {
            owner: self.owner.clone(),
            fence: Fence(self.fence),
            since: self.since.millis(),
            held: Duration::from_millis(now.millis().saturating_sub(self.since.millis())),
            lease: self.until.left(now),
            slot: self.slot,
            asked: self.asked.clone(),
            superseded: self.superseded,
            confirmed: self.confirmed,
        }
    }
}

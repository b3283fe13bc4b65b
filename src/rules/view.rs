//! What a record shows: the view for `status`, and what blocks a caller. Changes no record.

use super::Expected;
use super::answer::{Blocker, Foreign, Holder, LoggedEnd, Outcome, Pause, State, Success};
use super::operation::Terms;
use super::record::{Hold, Lock, Phase, Record};
use super::stat::Stat;
use super::time::{Due, Time, millis, ms};
use crate::lock::{Fence, Mode, Name, ONCE_PER_MOST, Owner, Token};
use serde::Deserialize;
use std::time::Duration;

/// Everything known of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub name: Name,
    pub now: u64,
    /// What the lock key says; a foreign value counts as held.
    pub state: State,
    /// Its mode while it is held, cooling or revoked; none if it is foreign or free.
    pub mode: Option<Mode>,
    /// The holds (held or revoked), the oldest first.
    pub holders: Vec<Holder>,
    /// How long until the lock is free if nothing more happens; none if it is free, or has no end.
    pub left: Option<Duration>,
    /// The foreign value, if there is one.
    pub foreign: Option<Foreign>,
    /// The last fence given out.
    pub fence: Option<Fence>,
    /// The waiters in order, without stale ones.
    pub waiters: Vec<Waiter>,
    /// The last ends, newest first, at most 64.
    pub log: Vec<LoggedEnd>,
    pub stat: Stat,
    /// The pause, if the lock is paused.
    pub paused: Option<Pause>,
    /// The last successful hold that was acquired with `--once-per`, if it was granted within
    /// [`ONCE_PER_MOST`].
    pub success: Option<Success>,
    /// How often a run is to succeed, if a run has said so.
    pub expected: Option<Expected>,
}

/// How long a run usually takes: the median of the last runs that ended by themselves. None if they
/// are too few, or too different.
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

/// Estimated time until a waiter is granted the lock. `typical` is how long a run takes, `ahead`
/// the number of waiters before it, `held` the time that the current run has taken. A run that
/// takes longer than usual is expected to end at once.
pub fn turn_in(typical: Duration, ahead: u64, held: Option<Duration>) -> Duration {
    let rest = held.map_or(Duration::ZERO, |held| typical.saturating_sub(held));
    rest.saturating_add(typical.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX)))
}

/// The last hold that succeeded, with `--once-per` or without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastSuccess {
    Known(Success),
    /// Only the time of its end is known, in milliseconds since 1970: too many holds have ended
    /// since.
    EndedAt(u64),
}

impl View {
    /// The last successful hold: from the log, from the record for `--once-per`, or from the
    /// totals.
    pub fn last_success(&self) -> Option<LastSuccess> {
        /// Masters of a quorum record the same end by their own clocks. Closer than this, in
        /// milliseconds, two times are one end.
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
    /// The success because of which `--once-per` skips a run that arrives now, and until when one must
    /// arrive. The time is unknown if an earlier build recorded the success.
    pub fn counting(&self) -> Option<(&Success, Option<u64>)> {
        let success = self.success.as_ref()?;
        match success.owner.once_per {
            Some(span) => Some((success, Some(success.counts_until(self.now, self.now, span)?))),
            None => Some((success, None)),
        }
    }

    /// Until when this end counts for `--once-per`, if it does.
    pub fn counts_until(&self, end: &LoggedEnd) -> Option<u64> {
        self.counting().filter(|(success, _)| success.fence == end.fence)?.1
    }

    /// Whether a run with `--once-per` of this span that arrived at `came` would be skipped. If no
    /// success of such a run is remembered, the last success of a run without `--once-per` counts, if
    /// the log has it: one that only the totals know may have been forgotten.
    pub fn is_done_for(&self, came: u64, span: Duration) -> bool {
        let counts = |success: &Success| success.counts_until(self.now, came, span).is_some();
        match (&self.success, self.last_success()) {
            (Some(success), _) => counts(success),
            // One with `--once-per` is forgotten.
            (None, Some(LastSuccess::Known(success))) => success.owner.once_per.is_none() && counts(&success),
            (None, Some(LastSuccess::EndedAt(_)) | None) => false,
        }
    }
}

impl View {
    /// Estimated time until each waiter is granted the lock. Only if all waiters want it
    /// exclusively: elsewhere it is unknown how many runs go on at a time.
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Waiter {
    pub owner: Owner,
    /// The mode that it wants.
    pub mode: Mode,
    /// Whether it waits with `--replace`. The next one with `--replace` supersedes it.
    pub replaces: bool,
    /// Whether a pause does not keep it out.
    #[serde(default)]
    pub during_pause: bool,
    /// How long it has been waiting.
    #[serde(with = "ms")]
    pub waiting: Duration,
}

impl View {
    /// Whether a run should have succeeded by now; None if nothing is expected.
    pub fn overdue(&self) -> Option<bool> {
        Some(self.expected?.is_overdue(self.now, self.stat.last_success))
    }

    /// Whether there is anything to show. If not, the lock was not used in the last 40 days.
    pub fn is_used(&self) -> bool {
        self.state != State::Free || self.is_known()
    }

    /// Whether the lock was used by anything but a pause.
    pub fn is_known(&self) -> bool {
        let is_taken = !matches!(self.state, State::Free | State::Paused);
        let is_known = self.fence.is_some()
            || self.expected.is_some()
            || !self.waiters.is_empty()
            || !self.log.is_empty();
        is_taken || is_known || self.stat != Stat::default()
    }
}

impl Record {
    /// The view of this lock at `now`. Ends that no operation has recorded yet are in its log
    /// already.
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
            let Terms { replaces, during_pause, .. } = waiter.terms;
            let (owner, mode) = (waiter.owner.clone(), waiter.mode);
            let shown = Waiter { owner, mode, replaces, during_pause, waiting };
            record.is_live_waiter(now, waiter).then_some(shown)
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
            expected: record.expected,
            success: record
                .success
                .filter(|success| now.millis().saturating_sub(success.since) <= millis(ONCE_PER_MOST)),
        }
    }

    /// Whether the hold counts as held. An exclusive hold counts as cooling once its lease is over
    /// and a min-hold keeps it. Where several hold the lock this is not checked: each heartbeat of
    /// a waiter would have to read every hold.
    pub(super) fn is_live(&self, now: Time, hold: &Hold) -> bool {
        let exclusive = matches!(self.lock, Lock::Exclusive { .. });
        hold.phase == Phase::Held && !(exclusive && hold.until.passed(now))
    }

    /// The state, from the lock key and the holds.
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

    /// The holds that this state is about: those that are held, or those that are revoked; the
    /// oldest first.
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

    /// What blocks a caller that wants the lock in this mode.
    pub(in crate::rules) fn blocker(&self, now: Time, wanted: Mode) -> Blocker {
        let state = self.state(now);
        let shown = self.shown(now, state);
        let by_due = |(token, hold): &(&Token, &Hold)| (hold.due(), (*token).clone());
        let dues = self.holds.values().map(Hold::due);
        let (first, known) = match (&self.lock, wanted) {
            // One free slot is enough, so the hold that runs out first counts.
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
            before: None,
            queue_full: None,
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
            waited: Duration::from_millis(self.waited),
            lease: self.until.left(now),
            slot: self.slot,
            asked: self.asked.clone(),
            superseded: self.superseded,
            confirmed: self.confirmed,
            during_pause: self.during_pause,
        }
    }
}

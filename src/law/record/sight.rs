//! What does a record say to those who look at it? The view of `status`, and what is in the way of one who wants the lock.
//! Nothing is changed here.

use super::{Hold, Lock, Phase, Record};
use crate::law::answer::{Blocker, Foreign, Holder, LoggedEnd, State};
use crate::law::stat::Stat;
use crate::law::time::Time;
use crate::lock::{Fence, Mode, Owner, Token};
use std::time::Duration;

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

impl Record {
    /// What the record says at `now`; ends that no operation has noticed yet are in its log already.
    pub fn inspect(&self, now: Time) -> Seen {
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
            record.is_there(now, waiter).then(|| (waiter.owner.clone(), waiter.mode, waiting))
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

    /// Whether it counts as held. An exclusive lock is seen to cool when its lease has run out and a min-hold keeps it;
    /// to know that of each of many holds would cost every waiter's heartbeat a look at all of them.
    pub(super) fn is_live(&self, now: Time, hold: &Hold) -> bool {
        let exclusive = matches!(self.lock, Lock::Exclusive { .. });
        hold.phase == Phase::Held && !(exclusive && hold.until.passed(now))
    }

    /// What the lock key and the holds say together.
    pub(super) fn state(&self, now: Time) -> State {
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
    pub(super) fn shown(&self, now: Time, state: State) -> Vec<(&Token, &Hold)> {
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
    pub(in crate::law) fn blocker(&self, now: Time, wanted: Mode) -> Blocker {
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
    pub(super) fn shown(&self, now: Time) -> Holder {
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

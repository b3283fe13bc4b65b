//! Faults that are planted in the records of the server.

use super::super::{ONCE_PER, Planted};
use crate::lock::Token;
use crate::rules::{Due, LockTable, Time};

impl Planted {
    /// Applies the fault to the records after an operation.
    pub(super) fn spoil(self, table: &mut LockTable, before: &LockTable, now: Time) {
        for (name, record) in &mut table.records {
            let old = before.records.get(name);
            let is_new = |token: &Token| old.is_none_or(|old| !old.holds.contains_key(token));
            match self {
                // A lease ends for others before it ends for its holder.
                Self::EndsLeasesEarly => {
                    for (token, hold) in &mut record.holds {
                        let left = hold.until.left(now);
                        if is_new(token)
                            || old
                                .and_then(|old| old.holds.get(token))
                                .is_some_and(|old| old.until != hold.until)
                        {
                            hold.until = Due(hold.until.0 - u64::try_from(left.as_millis() / 4).unwrap_or(0));
                        }
                    }
                    let until = record.holds.values().map(|hold| hold.until).max();
                    if let (crate::rules::Lock::Exclusive { until: at, .. }, Some(until)) =
                        (&mut record.lock, until)
                    {
                        *at = until.max(Due(0));
                    }
                }
                Self::ForgetsWhoLeft => record.tombstones.clear(),
                Self::RepeatsFences => {
                    if record.holds.is_empty() {
                        record.fence = 0;
                    }
                    for (token, hold) in &mut record.holds {
                        if is_new(token) {
                            hold.fence = 7;
                        }
                    }
                }
                Self::ServesTheNewest => {
                    let queue = std::mem::take(&mut record.queue);
                    for (ticket, token) in queue {
                        let is_known = old.is_some_and(|old| old.waiters.contains_key(&token));
                        let ticket = if is_known { ticket } else { u64::MAX / 2 - ticket };
                        if let Some(waiter) = record.waiters.get_mut(&token) {
                            waiter.ticket = ticket;
                        }
                        record.queue.insert((ticket, token));
                    }
                }
                Self::IgnoresMinHold => {
                    for hold in record.holds.values_mut() {
                        hold.cool = Due(0);
                    }
                    if matches!(record.lock, crate::rules::Lock::Cooling { .. }) {
                        record.lock = crate::rules::Lock::Free;
                        record.holds.clear();
                    }
                }
                Self::WaitsForTheSilent => {
                    for waiter in record.waiters.values_mut() {
                        waiter.stale_at = Due(u64::MAX);
                        waiter.forget = Due(u64::MAX);
                    }
                }
                Self::LeavesItsPlace => {
                    let Some(old) = old.filter(|_| record.queue.is_empty()) else { continue };
                    for (ticket, token) in &old.queue {
                        let waiter = old.waiters.get(token).filter(|_| !record.holds.contains_key(token));
                        let Some(mut waiter) = waiter.cloned() else { continue };
                        waiter.stale_at = Due(u64::MAX);
                        record.waiters.insert(token.clone(), waiter);
                        record.queue.insert((*ticket, token.clone()));
                    }
                }
                Self::RepeatsTicks => {
                    let span = u64::try_from(ONCE_PER.as_millis()).unwrap_or(0);
                    record.success.take_if(|success| now.millis() >= success.since + span);
                }
                Self::LosesTicks => {
                    if let Some(success) = &mut record.success {
                        success.since = now.millis() + 1;
                    }
                }
                Self::ForgetsFailures => record.paused = None,
                Self::ExpectsAtTheJoin => {
                    let Some(old) = old else { continue };
                    let was_granted = |token| old.holds.get(token).is_some_and(|hold| !hold.confirmed);
                    if record.holds.iter().any(|(token, hold)| hold.confirmed && was_granted(token)) {
                        record.expected = old.expected;
                    }
                }
                Self::DropsWhatIsExpected => {
                    record.expected.take_if(|_| record.holds.keys().any(is_new));
                }
                Self::ForgetsAnnouncements => record.announced.clear(),
                Self::AnnouncesAgain => record.announced.values_mut().for_each(|mark| mark.at = 0),
                Self::GivesOneSlotTwice => {
                    for hold in record.holds.values_mut().filter(|hold| hold.slot.is_some()) {
                        hold.slot = Some(0);
                    }
                }
                _ => {}
            }
        }
    }
}

//! Grants locks, with a slot and a fence, and confirms grants. Says what blocks a caller. Whether a
//! lock has room for one more is `Record::admits`.

use super::queue::preferred;
use super::record::Granted;
use super::{Ask, Blocker, CONFIRM_WITHIN, Grant, LockTable, Patience, Record, Time};
use crate::lock::{Fence, Mode, Name, Names};
use std::time::Duration;

impl LockTable {
    /// Grants the locks to a caller that stands in no queue, if these queues are empty and each
    /// lock admits it.
    pub(super) fn grant_to_newcomer(&mut self, now: Time, names: &Names, ask: &Ask, came: Time) {
        let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let passes = self.passes_others(ask, names.iter().map(String::as_str));
        let admitted = names.iter().all(|name| {
            let record = self.record(name);
            let is_first = match record.queue.first() {
                Some((ticket, _)) => passes && *ticket > preferred(now.0),
                None => true,
            };
            is_first && record.admits(ask.mode, &ask.terms)
        });
        if !admitted {
            return;
        }
        let Some(slot) = self.slot(&names, ask.mode) else { return };
        let (token, mode) = (ask.token.clone(), ask.mode);
        let (terms, owner) = (ask.terms.clone(), ask.owner.clone());
        self.grant(now, &names, Granted { token, mode, slot, fence: 0, came, terms, owner });
    }

    /// Whether a caller that stands in no queue goes before the waiters without `--during-pause`.
    fn passes_others<'n>(&mut self, ask: &Ask, names: impl Iterator<Item = &'n str>) -> bool {
        ask.patience == Patience::None && self.is_preferred(&ask.terms, names)
    }

    /// The lowest slot that is free in all of the locks, or None. `Some(None)` if the mode has no
    /// slots.
    #[expect(
        clippy::option_option,
        reason = "whether one may be had, and which: a mode without slots needs none"
    )]
    pub(super) fn slot(&mut self, names: &[String], mode: Mode) -> Option<Option<u32>> {
        let Mode::Slots(slots) = mode else { return Some(None) };
        let mut taken: Vec<u32> =
            names.iter().flat_map(|name| self.record(name).taken().collect::<Vec<_>>()).collect();
        taken.sort_unstable();
        taken.dedup();
        (0..slots).find(|slot| taken.binary_search(slot).is_err()).map(Some)
    }

    /// Grants all of these locks under one fence, greater than every earlier one of each.
    pub(super) fn grant(&mut self, now: Time, names: &[String], granted: Granted) {
        let last = names.iter().map(|name| self.record(name).fence).max().unwrap_or_default();
        let granted = Granted { fence: now.0.max(last.saturating_add(1)), ..granted };
        for name in names {
            self.record(name).grant(now, CONFIRM_WITHIN, &granted);
        }
    }

    pub(super) fn confirm(&mut self, now: Time, names: &Names, ask: &Ask) -> Grant {
        self.expect(now, names, ask.terms.expect);
        let mut grant = Grant { fence: Fence(0), waited: Duration::ZERO, slot: None };
        for name in names {
            let record = self.record(name.as_str());
            record.remove_waiter(&ask.token);
            record.confirm(now, ask);
            if let Some(hold) = record.holds.get(&ask.token) {
                let (fence, waited) = (Fence(hold.fence), Duration::from_millis(hold.waited));
                grant = Grant { fence, waited, slot: hold.slot };
            }
        }
        grant
    }

    /// What blocks the caller, at the first lock that does not admit it or has other waiters; if
    /// there is none, at the first lock.
    pub(super) fn blocker(&mut self, now: Time, names: &Names, ask: &Ask) -> Blocker {
        let passes = self.passes_others(ask, names.iter().map(Name::as_str));
        let first = |record: &Record| {
            let (ticket, token) = record.queue.first().filter(|(_, token)| *token != ask.token)?;
            if passes && *ticket > preferred(now.0) {
                return None;
            }
            Some(record.waiters.get(token)?.owner.clone())
        };
        let blocks = |record: &Record| !record.admits(ask.mode, &ask.terms) || first(record).is_some();
        let at = names.iter().position(|name| blocks(self.record(name.as_str()))).unwrap_or(0);
        let record = self.record(names.as_slice()[at].as_str());
        let before = if record.admits(ask.mode, &ask.terms) { first(record) } else { None };
        let blocker = Blocker { at, before, ..record.blocker(now, ask.mode) };
        if ask.terms.during_pause { blocker.without_pause() } else { blocker }
    }
}

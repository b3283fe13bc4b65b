//! What should have run: how often a run of a lock is to succeed, and whether one is overdue. No grant
//! depends on it.

use super::LockTable;
use super::time::{Time, millis, ms};
use crate::lock::{Name, Names};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The shortest time after which an expected success is overdue.
const LATE_LEAST: Duration = Duration::from_secs(30);

/// What is expected of the runs of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// A run is to succeed at least this often.
    #[serde(with = "ms")]
    pub every: Duration,
    /// When a run first named this or another time, in milliseconds since 1970.
    pub since: u64,
}

impl Expected {
    /// Whether a run should have succeeded by now. It may be late by a quarter of the time, and by
    /// [`LATE_LEAST`]. Without a success, the time counts from when a run first named one. A time that is
    /// as far ahead is of a clock that was wrong, and counts as little as one that is long ago.
    pub fn is_overdue(&self, now: u64, last_success: Option<u64>) -> bool {
        let late = LATE_LEAST.max(self.every / 4);
        let away = now.abs_diff(last_success.unwrap_or(self.since));
        away > millis(self.every.saturating_add(late))
    }
}

impl LockTable {
    /// Records what a run expects of these locks; None changes nothing, and zero ends it. The last run
    /// that says so decides.
    pub(super) fn expect(&mut self, now: Time, names: &Names, every: Option<Duration>) {
        let Some(every) = every else { return };
        for name in names {
            let expected = &mut self.record(name.as_str()).expected;
            let since = expected.map_or(now.millis(), |expected| expected.since);
            *expected = (!every.is_zero()).then_some(Expected { every, since });
        }
    }

    /// Expects no run of the lock any more. Returns whether one was expected.
    pub fn retire(&mut self, name: &Name) -> bool {
        self.record(name.as_str()).expected.take().is_some()
    }
}

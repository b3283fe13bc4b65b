//! The times of the lock rules: readings of the store's clock, and deadlines on it. No clock is
//! read here.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A reading of the store's clock: microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// Whole milliseconds since 1970.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }
}

/// A deadline on the store's clock, in whole milliseconds since 1970: what a Redis TTL can express.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Due(pub u64);

impl Due {
    /// `span` after `now`. Both are cut to milliseconds before they are added, as in the scripts.
    pub fn after(now: Time, span: Duration) -> Self {
        Self(now.millis().saturating_add(millis(span)))
    }

    /// Whether it is reached.
    pub const fn passed(self, now: Time) -> bool {
        now.millis() >= self.0
    }

    /// Whether it is past by a millisecond. Redis drops a key one millisecond after its expiry; so
    /// this is used for what only Redis ends: foreign locks, and what is merely remembered.
    pub const fn is_past(self, now: Time) -> bool {
        now.millis() > self.0
    }

    /// Time left.
    pub const fn left(self, now: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.millis()))
    }
}

/// A span in whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

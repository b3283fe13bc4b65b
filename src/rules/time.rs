//! Which time does the law count in? Readings of the store's own clock, and when something ends by it. No clock is read
//! here.

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

/// When something ends, by the store's clock, in whole milliseconds since 1970: what a Redis TTL can express.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

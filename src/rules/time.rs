//! The times of the lock rules: readings of the store's clock, and deadlines on it. No clock is
//! read here.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// Numbers in a store's answers are less than this, because a JSON library may round greater ones.
pub const NUMBERS_END: u64 = 1 << 53;

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

    /// Whether it has come.
    pub const fn passed(self, now: Time) -> bool {
        now.millis() >= self.0
    }

    /// Whether it came at least a millisecond ago. Redis drops a key one millisecond after its
    /// expiry, so this is used for what Redis alone ends: foreign locks, and what is merely
    /// remembered.
    pub const fn is_strictly_past(self, now: Time) -> bool {
        now.millis() > self.0
    }

    /// Time left.
    pub const fn left(self, now: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.millis()))
    }
}

/// Serializes a `Duration`, or an `Option` of one, as a number of whole milliseconds.
pub mod ms {
    use super::{Deserialize, Deserializer, Duration, NUMBERS_END, Serialize, Serializer, millis};

    pub fn serialize<S: Serializer>(
        span: &(impl Into<Option<Duration>> + Copy),
        to: S,
    ) -> Result<S::Ok, S::Error> {
        (*span).into().map(millis).serialize(to)
    }

    pub fn deserialize<'de, T: From<Duration>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let ms = Some(u64::deserialize(from)?).filter(|ms| *ms < NUMBERS_END);
        let ms = ms.ok_or_else(|| serde::de::Error::custom("a time that dlock does not write"))?;
        Ok(Duration::from_millis(ms).into())
    }
}

/// A span in whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

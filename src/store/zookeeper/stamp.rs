//! The leader's clock, counted on from the stamp of the last write, with bounds for the error.

use crate::clock::Moment;
use std::time::Duration;

/// Longest time to count on from a stamp of the leader's clock: that of the last renewal, if the
/// ttl is at most 40 s. A longer lease is renewed so rarely that a write for the time costs little.
const STAMP_GOOD: Duration = Duration::from_secs(10);
/// Most that two clocks may drift apart: one part in this many.
const DRIFT: u32 = 100;

/// A reading of the leader's clock.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    /// The time, in milliseconds since 1970.
    pub(super) at: u64,
    /// The leader read its clock between these two moments.
    pub(super) sent: Moment,
    pub(super) heard: Moment,
    /// The connection that it came over.
    pub(super) connection: u64,
}

impl Stamp {
    /// Whether to count on from it at this moment, on the connection with this number.
    pub(super) fn is_good(self, now: Moment, connection: u64) -> bool {
        self.connection == connection && now.since(self.heard) <= STAMP_GOOD
    }

    /// Lower bound of the leader's time at a moment, in microseconds since 1970; if the moment is
    /// before the stamp, at the stamp.
    pub(super) fn lower(self, now: Moment) -> u64 {
        let passed = now.since(self.heard);
        (self.at * 1000).saturating_add(micros(passed - passed / DRIFT))
    }

    /// Upper bound of the same.
    pub(super) fn upper(self, now: Moment) -> u64 {
        let passed = now.since(self.sent);
        (self.at * 1000 + 1000).saturating_add(micros(passed + passed / DRIFT))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

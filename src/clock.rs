//! Which clock, and why? Everything that bounds a lease on this machine is a [`Moment`] of CLOCK_BOOTTIME: it never
//! steps as the wall clock does, and unlike CLOCK_MONOTONIC it goes on while the machine is suspended, as the
//! store's clock does. Wall-clock time is only ever shown to people, and comes from the store.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A point on this machine's CLOCK_BOOTTIME, as the time since boot. Not comparable between machines or boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        let t = clock_gettime(ClockId::Boottime);
        Self(Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0)))
    }

    /// The moment this long after boot.
    pub const fn from_boot(since: Duration) -> Self {
        Self(since)
    }

    /// The time from boot to this moment.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The moment `span` later; the greatest moment there is where that would overflow.
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The moment `span` earlier; boot where that would be before it.
    pub const fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// The span from `earlier` to this moment; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The span from now to this moment; zero if it has passed.
    pub fn left(self) -> Duration {
        self.since(Self::now())
    }

    /// Whether this moment has come.
    pub fn passed(self) -> bool {
        Self::now() >= self
    }
}

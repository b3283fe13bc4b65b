//! The present boot of the machine and its time: CLOCK_BOOTTIME, which never steps and goes on
//! while the machine sleeps, and the offset that makes it readable.

use crate::clock::Moment;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A boot of the machine.
#[derive(Debug, Clone)]
pub(super) struct Boot {
    pub(super) id: String,
    /// For tests: how far the clock is ahead.
    #[cfg(test)]
    pub(super) ahead: Duration,
    /// For tests: the time at which the clock stands still.
    #[cfg(test)]
    pub(super) fixed: Option<Duration>,
}

impl Boot {
    /// The present boot.
    pub(super) fn current() -> Result<Self, std::io::Error> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self::new(id.trim()))
    }

    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.into(),
            #[cfg(test)]
            ahead: Duration::ZERO,
            #[cfg(test)]
            fixed: None,
        }
    }

    /// Time since the boot, on CLOCK_BOOTTIME.
    pub(super) fn now(&self) -> Duration {
        let now = Moment::now().since_boot();
        #[cfg(test)]
        let now = self.fixed.unwrap_or(now + self.ahead);
        now
    }

    /// For tests: the time of a record that begins now.
    #[cfg(test)]
    pub(super) fn time(&self) -> crate::rules::Time {
        crate::rules::Time(self.offset() + micros(self.now()))
    }

    /// The wall clock's time of the start of CLOCK_BOOTTIME, in microseconds since 1970. Whole
    /// milliseconds, because deadlines count in these and must be shifted without loss.
    pub(super) fn offset(&self) -> u64 {
        #[cfg(test)]
        if self.fixed.is_some() {
            return 1_700_000_000_000_000;
        }
        let wall = clock_gettime(ClockId::Realtime);
        let wall = Duration::new(wall.tv_sec.try_into().unwrap_or(0), wall.tv_nsec.try_into().unwrap_or(0));
        micros(wall.saturating_sub(Moment::now().since_boot())) / 1000 * 1000
    }
}

/// Whole microseconds.
pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

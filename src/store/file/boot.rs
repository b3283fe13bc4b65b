//! The present boot of the machine, and the offset that makes its clock readable: CLOCK_BOOTTIME
//! never steps and goes on while the machine sleeps, but counts from the boot. It is the machine's:
//! processes in other time namespaces use the same records.

use crate::clock::{Moment, Namespace};
use crate::rules::{Due, Time};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A boot of the machine.
#[derive(Debug, Clone)]
pub(super) struct Boot {
    pub(super) id: String,
    /// The wall clock's time of the boot, in microseconds since 1970, for records that begin now.
    /// Whole milliseconds, because deadlines count in these and must be shifted without loss.
    pub(super) offset: u64,
    namespace: Namespace,
}

impl Boot {
    /// The present boot.
    pub(super) fn current() -> Result<Self, std::io::Error> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let wall = clock_gettime(ClockId::Realtime);
        let wall = Duration::new(wall.tv_sec.try_into().unwrap_or(0), wall.tv_nsec.try_into().unwrap_or(0));
        // If it is unknown, it is most likely the initial one. doctor says so.
        let namespace = Namespace::of_process().unwrap_or_default();
        let offset = micros(wall.saturating_sub(namespace.machine_time(Moment::now()))) / 1000 * 1000;
        Ok(Self { id: id.trim().into(), offset, namespace })
    }

    /// Now, by the clock with this offset.
    pub(super) fn time(&self, offset: u64) -> Time {
        Time(offset.saturating_add(micros(self.machine_time(Moment::now()))))
    }

    /// A moment of this process as the time since this boot that every process understands.
    pub(super) fn machine_time(&self, at: Moment) -> Duration {
        self.namespace.machine_time(at)
    }

    /// Whether a file was last changed before this boot, by its ctime in seconds.
    pub(super) fn is_after(&self, changed: i64) -> bool {
        changed < i64::try_from(self.offset / 1_000_000).unwrap_or(i64::MAX)
    }
}

/// A deadline, by the clock with this offset.
pub(super) fn due(at: Duration, offset: u64) -> Due {
    Due(offset.saturating_add(micros(at)) / 1000)
}

/// Whole microseconds.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

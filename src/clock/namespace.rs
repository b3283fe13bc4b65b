//! The time namespace of this process (time_namespaces(7)). Processes in different time namespaces
//! read different times from CLOCK_BOOTTIME at the same moment, although the boot and its id are the
//! same. So a time that other processes read is the machine's: that of the initial namespace.

use super::Moment;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The offset of a time namespace's CLOCK_BOOTTIME from the machine's: `ahead` minus `behind`. The
/// default is the initial namespace, which has no offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Namespace {
    ahead: Duration,
    behind: Duration,
}

impl Namespace {
    /// The time namespace of this process. An error means that it is unknown.
    pub fn of_process() -> io::Result<Self> {
        let link = |name| fs::read_link(format!("/proc/self/ns/{name}"));
        let own = match link("time") {
            // A kernel without time namespaces: before 5.6, or built without them.
            Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new("/proc/self/ns").exists() => {
                return Ok(Self::default());
            }
            own => own?,
        };
        // The file has the offsets of this process's children. They differ from its own if unshare(2)
        // was called and no process was forked since (on newer kernels exec suffices).
        if own != link("time_for_children")? {
            return Err(io::Error::other("its children would be in another one"));
        }
        let offsets = fs::read_to_string("/proc/self/timens_offsets")?;
        Self::parse(&offsets).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the content of /proc/PID/timens_offsets. The nanoseconds are never negative.
    fn parse(offsets: &str) -> Option<Self> {
        let mut fields = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
        let (seconds, nanos) = (fields.next()?.parse::<i64>().ok()?, fields.next()?.parse().ok()?);
        let (span, rest) = (Duration::from_secs(seconds.unsigned_abs()), Duration::from_nanos(nanos));
        Some(match seconds {
            0.. => Self { ahead: span.saturating_add(rest), behind: Duration::ZERO },
            _ => Self { ahead: rest, behind: span },
        })
    }

    /// A moment of this process as the time since the boot of the machine.
    pub const fn machine_time(self, at: Moment) -> Duration {
        at.since_boot().saturating_add(self.behind).saturating_sub(self.ahead)
    }

    /// The same for a time in clock ticks, as in /proc/PID/stat.
    pub fn machine_ticks(self, at: u64) -> u64 {
        let ticks = |span: Duration| {
            let ticks = span.as_millis() * u128::from(rustix::param::clock_ticks_per_second()) / 1000;
            u64::try_from(ticks).unwrap_or(u64::MAX)
        };
        at.saturating_add(ticks(self.behind)).saturating_sub(ticks(self.ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_moment_is_one_machine_time_in_every_namespace() {
        let text = |offset: &str| format!("monotonic           3         0\nboottime   {offset}\n");
        for (offset, here) in
            [("0 0", 100_000), ("40 0", 140_000), ("-40 0", 60_000), ("-2 500000000", 98_500)]
        {
            let namespace = Namespace::parse(&text(offset)).unwrap_or_default();
            let at = Moment::from_boot(Duration::from_millis(here));
            assert_eq!(namespace.machine_time(at), Duration::from_secs(100), "{offset}");
            let hundredths = rustix::param::clock_ticks_per_second() * here / 1000;
            assert_eq!(namespace.machine_ticks(hundredths), rustix::param::clock_ticks_per_second() * 100);
        }
        for damaged in ["", "monotonic 0 0", "boottime", "boottime 4", "boottime x 0", "boottime 4 -1"] {
            assert_eq!(Namespace::parse(damaged), None, "{damaged}");
        }
    }
}

//! A process that dlock did not start, as for `dlock hold --pid`: named by a pidfd for as long as
//! the hold lasts. pidfd.rs sends single signals to processes of the job.

use super::procfs::{blocks, read_entry};
use crate::clock::Moment;
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Signal that tells a hold in the background, and each watcher, that the hold is over although what
/// it is for has not ended. Linux itself never sends it, and nobody sends it to a whole control group
/// by habit, as log rotation does with USR1.
pub const OVER: i32 = libc::SIGSTKFLT;

/// A process, pinned by a pidfd: never another one with its number.
#[derive(Debug, Clone)]
pub struct Pin {
    pid: i32,
    fd: Arc<OwnedFd>,
}

/// Why a process cannot be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPin {
    /// There is no process with this number, or it has ended.
    Gone,
    /// The number is that of a thread.
    Thread,
    /// pidfd_open fails for another reason: Linux before 5.3, a sandbox, no free descriptor.
    Unsupported(Errno),
}

impl Pin {
    pub fn new(pid: i32) -> Result<Self, NoPin> {
        let id = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(NoPin::Gone)?;
        let fd = pidfd_open(id, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => NoPin::Gone,
            Errno::INVAL | Errno::NOENT => NoPin::Thread,
            errno => NoPin::Unsupported(errno),
        })?;
        let pin = Self { pid, fd: Arc::new(fd) };
        if pin.has_ended() { Err(NoPin::Gone) } else { Ok(pin) }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the process has ended, reaped or not.
    pub fn has_ended(&self) -> bool {
        is_ready(self.fd.as_fd(), PollFlags::IN)
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.fd, signal)?)
    }

    /// Tells a `dlock hold` to end, and waits for that until `deadline`. Returns whether it has
    /// ended. [`OVER`] ends one in the background, TERM another one, and one of an earlier build, which
    /// OVER would kill.
    pub fn end(&self, deadline: Moment) -> bool {
        if let Some(over) = Signal::from_named_raw(OVER).filter(|_| blocks(self.pid, OVER)) {
            // If this fails, so does the next one.
            let _ = self.signal(over);
        }
        if self.signal(Signal::TERM).is_err() {
            return self.has_ended();
        }
        let left = Timespec::try_from(deadline.left()).unwrap_or_default();
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&left)).is_ok_and(|ready| ready > 0)
    }

    /// Whether this process may signal it, or need not because it has ended.
    pub fn is_ours(&self) -> bool {
        sys::kill(self.pid, 0).is_ok() || self.has_ended()
    }

    /// When it was started, in clock ticks since boot, by the clock of this process's time namespace.
    /// Together with the number this identifies it.
    pub fn started(&self) -> Option<u64> {
        // The process had not been reaped when the entry was read, so the entry is its own.
        read_entry(self.pid).map(|entry| entry.started).filter(|_| !self.has_ended())
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Pin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a descriptor is ready now.
pub(super) fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::time::Duration;

    /// As a dlock of an earlier build, which does not take OVER: dead of it, its guard would stop the
    /// process that the hold is for.
    #[test]
    fn a_process_that_does_not_know_the_signal_gets_term() -> io::Result<()> {
        let mut child = Command::new("sleep").arg("1000").spawn()?;
        let pin = Pin::new(child.id().cast_signed()).map_err(|why| io::Error::other(format!("{why:?}")))?;
        assert!(pin.end(Moment::now().after(Duration::from_secs(40))));
        assert_eq!(child.wait()?.signal(), Some(libc::SIGTERM));
        Ok(())
    }
}

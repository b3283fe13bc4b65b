//! How is one process signalled without ever hitting another? Its id may have been given away since it was read. Which
//! processes, and when, is not decided here.

use crate::sys;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;

/// What is done to each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signalling {
    /// TERM, and CONT after it: a stopped process would not see the TERM.
    Term,
    /// KILL, which a stopped process gets too.
    Kill,
    /// What somebody sent to dlock.
    Relay(Signal),
}

/// Signals the process behind an id that may have been given away since it was read: pins the process first, then makes
/// sure by `is_still` that the id stands for one of the job.
pub(super) fn pinned(pid: i32, how: Signalling, is_still: impl Fn() -> bool) -> io::Result<()> {
    let pin = match Pid::from_raw(pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
    {
        Ok(pin) => Some(pin),
        // Linux before 5.3, or a sandbox that does not know the call: the check alone must do.
        Err(Errno::NOSYS | Errno::PERM) => None,
        Err(error) => return Err(error.into()),
    };
    if is_still() { send(pid, pin.as_ref(), how) } else { Err(Errno::SRCH.into()) }
}

/// Signals a process whose id is still its own: a child, or one that is pinned.
pub(super) fn send(pid: i32, pin: Option<&OwnedFd>, how: Signalling) -> io::Result<()> {
    let signal = |signal: Signal| match pin {
        Some(pin) => Ok(pidfd_send_signal(pin, signal)?),
        None => sys::kill(pid, signal.as_raw()),
    };
    match how {
        Signalling::Term => signal(Signal::TERM).and_then(|()| signal(Signal::CONT)),
        Signalling::Kill => signal(Signal::KILL),
        Signalling::Relay(relayed) => signal(relayed),
    }
}

//! Signals one process without ever hitting another: its id may have been reused since it was read.
//! The caller decides which processes and when.

use crate::sys;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use std::io;
use std::os::fd::OwnedFd;

/// What to send to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signalling {
    /// TERM, then CONT: a stopped process does not see the TERM.
    Term,
    /// KILL, which a stopped process gets too.
    Kill,
    /// A signal that dlock received.
    Relay(Signal),
}

/// Signals a process whose id may have been reused since it was read: pins the process first, and
/// then checks by `is_still` that it is part of the job.
pub(super) fn pinned(pid: i32, how: Signalling, is_still: impl Fn() -> bool) -> io::Result<()> {
    let pin = match Pid::from_raw(pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
    {
        Ok(pin) => Some(pin),
        // Linux before 5.3, or a sandbox without the call: only the check remains.
        Err(Errno::NOSYS | Errno::PERM) => None,
        Err(error) => return Err(error.into()),
    };
    if is_still() { send(pid, pin.as_ref(), how) } else { Err(Errno::SRCH.into()) }
}

/// What can be signalled of the job without /proc: as a negative number the group that CMD leads,
/// else CMD, if this process has a child there. Only this process reaps its children, so neither
/// number can be another's.
pub(super) fn known(cmd: i32) -> Option<i32> {
    let cmd = Pid::from_raw(cmd)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let has_child = |which: WaitId<'_>| !matches!(waitid(which, options), Err(Errno::CHILD));
    if has_child(WaitId::Pgid(Some(cmd))) {
        Some(-cmd.as_raw_pid())
    } else {
        has_child(WaitId::Pid(cmd)).then_some(cmd.as_raw_pid())
    }
}

/// Signals a process whose id cannot be reused: a child, or one that is pinned.
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

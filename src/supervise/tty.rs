//! Finds out whether there is a controlling terminal, which decides CMD's process group. The
//! terminal is not touched, with one exception: after dlock has stopped a job, its modes and its
//! foreground group are as they were before the job.

use crate::sys;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::stdio::stdout;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use std::os::fd::OwnedFd;

/// The process group that CMD runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// dlock's own, so that the terminal's keys reach CMD as without dlock.
    Caller,
    /// A new one, which dlock may signal as a whole.
    Own,
}

/// CMD's process group: the caller's if there is a controlling terminal, else a new one.
///
/// Opening /dev/tty asks the kernel exactly that (ENXIO: there is none), whatever descriptors 0, 1
/// and 2 are. tcgetsid(3) needs a descriptor of the terminal, and none of the three is one in
/// `ssh host dlock … <file | tee log`. If /dev/tty cannot be opened for another reason, as in a
/// bare chroot, /proc says it too, but more slowly.
pub fn group() -> Group {
    let terminal = match open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => true,
        Err(Errno::NXIO) => false,
        Err(_) => std::fs::read("/proc/self/stat").is_ok_and(|stat| has_terminal(&stat)),
    };
    if terminal { Group::Caller } else { Group::Own }
}

/// The modes of the terminal in whose foreground a job begins. A job that is killed cannot restore
/// them, and a shell that finds an exit status, not a signal, takes them for wanted.
#[derive(Debug)]
pub(super) struct Modes {
    /// The group of dlock's caller.
    group: Pid,
    before: Termios,
}

impl Modes {
    /// None without a controlling terminal, if this group is in its background, or if stdout is a
    /// pipe: what reads it may be a pager, which sets modes of its own while the job runs.
    pub(super) fn save(group: Option<Pid>) -> Option<Self> {
        let kind = fstat(stdout()).ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_pipe = matches!(kind, Some(FileType::Fifo | FileType::Socket));
        let (group, terminal) = (group.filter(|_| !is_pipe)?, terminal()?);
        let is_in_front = tcgetpgrp(&terminal).ok()? == group;
        let before = tcgetattr(&terminal).ok()?;
        is_in_front.then_some(Self { group, before })
    }

    /// Restores them, unless the terminal belongs to another job now. Returns whether it did.
    /// Does not wait for output. The caller has TTOU blocked, so that it may change them from the
    /// background.
    pub(super) fn restore(&self) -> bool {
        let Some(terminal) = terminal() else { return false };
        let Ok(front) = tcgetpgrp(&terminal) else { return false };
        let is_gone = |group: Pid| {
            sys::kill(-group.as_raw_pid(), 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
        };
        if front != self.group && !is_gone(front) {
            return false;
        }
        // A terminal that hangs up meanwhile has no modes to restore.
        if front != self.group {
            let _ = tcsetpgrp(&terminal, self.group);
        }
        let _ = tcsetattr(&terminal, OptionalActions::Now, &self.before);
        true
    }
}

fn terminal() -> Option<OwnedFd> {
    open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Field 7 of proc_pid_stat(5): the terminal's device number, 0 if there is none.
fn has_terminal(stat: &[u8]) -> bool {
    let after_name = stat.iter().rposition(|&byte| byte == b')').map_or(0, |at| at + 1);
    let mut fields = stat[after_name..].split(|&byte| byte == b' ').skip(1);
    fields.nth(4).is_some_and(|device| device != b"0")
}

#[cfg(test)]
mod tests {
    use super::has_terminal;

    #[test]
    fn terminal_is_found_after_any_process_name() {
        assert!(has_terminal(b"12 (a) b) S 1 12 12 34816 12 0 1"));
        assert!(!has_terminal(b"12 (a) b) S 1 12 12 0 -1 0 1"));
        assert!(!has_terminal(b""));
    }
}

//! Which signals does dlock take for CMD, and what did the caller hand down? Signals are blocked and read one by one,
//! never handled: nothing runs between two instructions, and CMD gets mask and dispositions as dlock got them. What a
//! signal means is decided by the caller of this module.

use super::procfs::name_of;
use crate::sys::{self, Disposition, SignalSet};
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The signals that dlock takes. SIGCHLD is dlock's own, and not passed on; that the guard has ended shows on its socket.
const TAKEN: SignalSet = SignalSet::of(&[
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
]);

/// The signals that end a dlock which waits.
pub const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The kernel, as for the keys of a terminal: everything in the foreground group got it.
    Kernel,
    /// A process; 0 where it cannot be named, as across namespaces.
    Process(u32),
}

/// Whether it is a guard, which stops its job. A dlock that is a part of that job ends with it.
pub fn is_guard(sender: Sender) -> bool {
    let Sender::Process(pid) = sender else { return false };
    name_of(pid.cast_signed()).as_bytes() == super::GUARD_NAME.to_bytes()
}

/// One signal that dlock got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// Who sent it.
    pub from: Sender,
}

/// What dlock got from its caller and CMD is to get from dlock, and the signals that come in from now on.
#[derive(Debug)]
pub struct Inherited {
    pub(super) mask: SignalSet,
    pub(super) ignored_child: bool,
    reader: OwnedFd,
}

/// Makes this process fit to supervise: blocks and takes its signals, becomes the one that adopts the orphans among its
/// descendants. To be called before anything else of a run, and before any thread.
pub fn prepare() -> io::Result<Inherited> {
    let mask = sys::block(TAKEN);
    let ignored_child = sys::ignored(libc::SIGCHLD);
    if ignored_child {
        // With SIGCHLD ignored the kernel throws the children's statuses away.
        sys::dispose(libc::SIGCHLD, Disposition::Default);
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(Inherited { mask, ignored_child, reader: sys::signalfd(TAKEN)? })
}

impl Inherited {
    /// Readable when a signal has come.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// What breaks off a wait for a store: a signal, or news of the guard. The end of a child is none, for a command that prints
    /// a password is a child.
    pub fn alarm(&self, guard: BorrowedFd<'_>) -> io::Result<Alarm> {
        let signals = sys::signalfd(TAKEN.without(SignalSet::of(&[libc::SIGCHLD])))?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [signals.as_fd(), guard] {
            epoll::add(&either, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Alarm { either, _signals: signals })
    }

    /// The next signal that came; `None` if there is none now.
    pub fn next_signal(&self) -> io::Result<Option<Received>> {
        next_signal(&self.reader)
    }

    /// Whether the caller had dlock ignore this signal (nohup, a background job of sh). Then it does not end a dlock
    /// that waits either.
    pub fn ignored(&self, signal: i32) -> bool {
        match signal {
            libc::SIGCHLD => self.ignored_child,
            libc::SIGPIPE | libc::SIGXFSZ => sys::was_ignored(signal),
            _ => sys::ignored(signal),
        }
    }
}

/// Readable when something else is to be heeded.
#[derive(Debug)]
pub struct Alarm {
    either: OwnedFd,
    /// As long as it is open, the other one tells of it.
    _signals: OwnedFd,
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}

/// The next signal that came in by a signalfd; `None` if there is none now.
pub fn next_signal(reader: &OwnedFd) -> io::Result<Option<Received>> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(reader, &mut info) {
        Ok(_) => Ok(Some(decode(&info))),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a `signalfd_siginfo`: signo, errno, code and pid come first, four bytes each.
fn decode(info: &[u8; 128]) -> Received {
    let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let from = match word(8) {
        libc::SI_KERNEL => Sender::Kernel,
        _ => Sender::Process(word(12).cast_unsigned()),
    };
    Received { signal: word(0), from }
}

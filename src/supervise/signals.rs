//! Takes the signals for CMD, and records what the caller handed down. Signals are blocked and read
//! one by one, never handled: no handler interrupts the code, and CMD gets mask and dispositions as
//! dlock got them. The caller decides what a signal means: commands/run/session/obtain.rs while
//! dlock waits, commands/run/relay.rs while CMD runs, commands/foreground.rs for other commands.

use super::procfs::name_of;
use crate::sys::{self, Disposition, SignalSet};
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The signals that dlock takes. Not all are relayed: commands/run/relay.rs. SIGCHLD is for dlock
/// itself. The end of the guard shows on its socket.
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
    super::OVER,
]);

/// The signals that end a waiting dlock.
pub const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Who sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The kernel, as for a terminal's keys: every process in the foreground group got it.
    Kernel,
    /// A process; 0 if it cannot be named, as across namespaces.
    Process(u32),
}

/// Whether the sender is a guard that stops its job. A dlock that is part of that job ends with it.
pub fn is_guard(sender: Sender) -> bool {
    let Sender::Process(pid) = sender else { return false };
    name_of(pid.cast_signed()).as_bytes() == super::GUARD_NAME.to_bytes()
}

/// One signal that dlock received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub signal: i32,
    pub from: Sender,
}

/// The signal mask and dispositions from dlock's caller, which CMD gets, and the signals that
/// arrive from now on.
#[derive(Debug)]
pub struct Inherited {
    pub(super) mask: SignalSet,
    pub(super) ignored_child: bool,
    reader: OwnedFd,
}

/// Prepares this process to supervise: blocks its signals, opens a signalfd for them, and becomes a
/// child subreaper. Must be called before anything else of a run, and before any thread.
pub fn prepare() -> io::Result<Inherited> {
    let mask = sys::block(TAKEN);
    let ignored_child = sys::ignored(libc::SIGCHLD);
    if ignored_child {
        // If SIGCHLD is ignored, the kernel discards the children's statuses.
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

    /// Returns what interrupts a wait for a store: a signal, or news from the guard. SIGCHLD does
    /// not: a command that prints a password is a child.
    pub fn interrupt(&self, guard: BorrowedFd<'_>) -> io::Result<Interrupt> {
        let signals = sys::signalfd(TAKEN.without(SignalSet::of(&[libc::SIGCHLD])))?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [signals.as_fd(), guard] {
            epoll::add(&either, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Interrupt { either, _signals: signals })
    }

    /// The next signal; `None` if there is none now.
    pub fn next_signal(&self) -> io::Result<Option<Received>> {
        next_signal(&self.reader)
    }

    /// Whether the caller had dlock ignore this signal (nohup, a background job of sh). Then it
    /// does not end a waiting dlock either.
    pub fn ignored(&self, signal: i32) -> bool {
        match signal {
            libc::SIGCHLD => self.ignored_child,
            libc::SIGPIPE | libc::SIGXFSZ => sys::was_ignored(signal),
            _ => sys::ignored(signal),
        }
    }
}

/// Readable when a wait for a store must be interrupted.
#[derive(Debug)]
pub struct Interrupt {
    either: OwnedFd,
    /// Must stay open: the epoll instance does not hold it.
    _signals: OwnedFd,
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }
}

/// The next signal from a signalfd; `None` if there is none now.
pub fn next_signal(reader: &OwnedFd) -> io::Result<Option<Received>> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(reader, &mut info) {
        Ok(_) => Ok(Some(decode(&info))),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Decodes a `signalfd_siginfo`: signo, errno, code and pid come first, four bytes each.
fn decode(info: &[u8; 128]) -> Received {
    let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let from = match word(8) {
        libc::SI_KERNEL => Sender::Kernel,
        _ => Sender::Process(word(12).cast_unsigned()),
    };
    Received { signal: word(0), from }
}

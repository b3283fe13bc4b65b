//! Is a holder or waiter still alive, and how is it woken? A life is a FIFO that its owner keeps open for reading, from
//! before it first asks until nothing of it is left. The kernel does the rest, without a thread, a poll loop or a
//! limit on how many there are:
//!
//! - Opening a FIFO for writing fails with ENXIO when nobody reads it: its owner is dead (fifo(7)).
//! - Who has it open for writing sees POLLERR when the last reader goes: the news of a death, at once.
//! - A byte written to it wakes its owner.
//!
//! dlock and its guard share one open file description, by fork; the job does not have it (CLOEXEC). So it is closed
//! when both are gone. A life at its final name has been open since before it got that name: one that nobody reads can
//! never come back, and whoever finds it may remove it.
//!
//! Rejected: a file lock (flock) on the life file. Waiting for one needs a thread for every file that is watched, and
//! whoever grants the lock could not wake the waiter that it grants it to.

use crate::lock::Token;
use crate::store::Error;
use crate::store::file::directory::{Directory, Kind, remove};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, fchmod, mkfifoat, openat, renameat};
use rustix::io::{Errno, read, write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// The life of this process.
#[derive(Debug)]
pub(super) struct Life {
    token: Token,
    path: PathBuf,
    fifo: OwnedFd,
    given_up: AtomicBool,
    ended: AtomicBool,
}

impl Life {
    /// Begins a life for `token`.
    pub(super) fn begin(directory: &Directory, token: &Token) -> Result<Self, Error> {
        let path = directory.file(token.secret(), Kind::Life);
        let unborn = directory.file(token.secret(), Kind::Unborn);
        let fifo = Self::open(directory, &unborn, &path).map_err(|errno| {
            remove(&unborn).ok();
            match errno {
                // FAT has no FIFOs, and says so by EPERM.
                Errno::PERM => directory.error("create a FIFO", Errno::OPNOTSUPP),
                errno => directory.error("create a FIFO", errno),
            }
        })?;
        let (given_up, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { token: token.clone(), path, fifo, given_up, ended })
    }

    fn open(directory: &Directory, unborn: &Path, path: &Path) -> Result<OwnedFd, Errno> {
        mkfifoat(CWD, unborn, directory.mode())?;
        let fifo = openat(CWD, unborn, OFlags::RDWR | OPEN, Mode::empty())?;
        if directory.is_shared() {
            fchmod(&fifo, directory.mode())?;
        }
        renameat(CWD, unborn, CWD, path)?;
        Ok(fifo)
    }

    /// Whose.
    pub(super) fn token(&self) -> &Token {
        &self.token
    }

    /// The descriptor that the guard must keep.
    pub(super) fn fd(&self) -> RawFd {
        self.fifo.as_raw_fd()
    }

    /// Says that the token is about to be given back, so that no other thread of this process asks with it again.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Whether its token was given back, or is about to be.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    /// Removes the FIFO: for everybody else this life is over.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        // What cannot be removed now is swept later.
        remove(&self.path).ok();
    }

    /// Whether others may believe in it.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// What can be told of another life.
#[derive(Debug)]
pub(super) enum Pulse {
    /// Somebody reads it.
    Beats(Watch),
    /// Nobody does.
    Stopped,
    /// It cannot be told, for want of rights or of descriptors. Then only its lease or its silence ends it.
    Unknown,
}

/// A life of another process, held so that its end is seen.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    fifo: OwnedFd,
}

/// Feels the pulse of `token`.
pub(super) fn pulse(directory: &Directory, token: &Token) -> Pulse {
    let path = directory.file(token.secret(), Kind::Life);
    match openat(CWD, &path, OFlags::WRONLY | OPEN, Mode::empty()) {
        Ok(fifo) => Pulse::Beats(Watch { path, fifo }),
        Err(Errno::NXIO | Errno::NOENT) => Pulse::Stopped,
        Err(_) => Pulse::Unknown,
    }
}

/// Whether nobody reads the FIFO at `path`, for one whose token is not known.
pub(super) fn is_abandoned(path: &Path) -> bool {
    openat(CWD, path, OFlags::WRONLY | OPEN, Mode::empty()).err() == Some(Errno::NXIO)
}

impl Watch {
    /// Wakes its owner.
    pub(super) fn wake(&self) {
        // As long as this process reads too, writing cannot raise SIGPIPE if the owner dies just now. Whoever watches
        // that death hears of it when this reader is closed, a moment later.
        let reader = openat(CWD, &self.path, OFlags::RDONLY | OPEN, Mode::empty());
        if reader.is_ok() {
            // A full FIFO (EAGAIN) has bytes in it that will wake its owner.
            write(&self.fifo, b"\0").ok();
        }
    }
}

/// Sleeps until `mine` is woken or one of `others` ends, at the most for `limit`. A signal handler that ran ends it too.
pub(super) fn sleep<'a>(
    mine: Option<&'a Life>,
    others: impl Iterator<Item = &'a Watch>,
    limit: Duration,
) -> Result<(), Errno> {
    let mut fds = Vec::with_capacity(2);
    if let Some(life) = mine {
        fds.push(PollFd::new(&life.fifo, PollFlags::IN));
    }
    // POLLERR is reported unasked.
    fds.extend(others.map(|watch| PollFd::new(&watch.fifo, PollFlags::empty())));
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    if let Some(life) = mine {
        let mut bytes = [0u8; 64];
        while read(&life.fifo, &mut bytes) == Ok(bytes.len()) {}
    }
    Ok(())
}

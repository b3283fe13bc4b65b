//! Tells whether a holder or waiter is alive, wakes it, and carries its deadline. Each has a life
//! file: a FIFO that its owner keeps open for reading, from before its first request until nothing
//! of it is left. The kernel does the rest, without a thread, a poll loop or a limit on their
//! number:
//!
//! - Opening a FIFO for writing fails with ENXIO if nobody has it open for reading: its owner is
//!   dead (fifo(7)).
//! - A process that has it open for writing sees POLLERR as soon as the last reader is gone: the
//!   owner has died.
//! - A byte written to it wakes its owner.
//! - Its access time, in the machine's CLOCK_BOOTTIME, is the deadline that the owner publishes: the
//!   end of a holder's lease, or the time when a waiter becomes stale. So a renewal or a heartbeat
//!   changes nothing that another process changes: it needs no mutex, no record and no space on the
//!   disk.
//!   Only the owner sets it: the kernel would do so when a FIFO is read, but the owner reads with
//!   O_NOATIME.
//!
//! dlock and its guard share one open file description, by fork; the job does not have it
//! (CLOEXEC). So it is closed when both are gone. A FIFO is open before it gets its final name, so
//! a life file without a reader can never come alive again. A missing life file proves nothing:
//! somebody may have removed the file of a live process. So a process that renews checks that its
//! file still has its name, where others look for it ([`LifeFile::publish`]).
//!
//! Rejected: a file lock (flock) on the life file. Waiting for one needs a thread for every watched
//! file, and the process that grants a lock could not wake the waiter.

use crate::clock::Moment;
use crate::lock::{Token, Ttl};
use crate::rules::millis;
use crate::store::Error;
use crate::store::engine::coordinator::Watching;
use crate::store::file::directory::{Directory, FileName, FileRole, OPEN, kind_of};
use crate::store::net::interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, FileType, OFlags, Stat, Timestamps, UTIME_OMIT, fstat, futimens, mkfifoat, openat, renameat,
    statat,
};
use rustix::io::{Errno, read, write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The life file of this process.
#[derive(Debug)]
pub(super) struct LifeFile {
    token: Token,
    file: FileName,
    fifo: OwnedFd,
}

impl LifeFile {
    /// Creates a life file for `token`.
    pub(super) fn begin(directory: &Directory, token: &Token) -> Result<Self, Error> {
        let file = FileName::of(token.secret(), FileRole::Life);
        let unborn = file.with(FileRole::Unborn);
        let fifo = Self::open(directory, &unborn, &file).map_err(|errno| {
            directory.remove(&unborn).ok();
            match errno {
                // FAT has no FIFOs, and returns EPERM.
                Errno::PERM => directory.error("create a FIFO", Errno::OPNOTSUPP),
                errno => directory.error("create a FIFO", errno),
            }
        })?;
        Ok(Self { token: token.clone(), file, fifo })
    }

    fn open(directory: &Directory, unborn: &FileName, file: &FileName) -> Result<OwnedFd, Errno> {
        mkfifoat(directory, unborn.as_str(), directory.mode())?;
        let access = OFlags::RDWR | OPEN;
        let fifo = openat(directory, unborn.as_str(), access | OFlags::NOATIME, directory.mode())?;
        let stat = fstat(&fifo)?;
        // Another user with write access may have put something else there meanwhile.
        if kind_of(&stat) != FileType::Fifo || stat.st_nlink != 1 {
            return Err(Errno::EXIST);
        }
        directory.adopt(&fifo)?;
        renameat(directory, unborn.as_str(), directory, file.as_str())?;
        Ok(fifo)
    }

    /// The owner's token.
    pub(super) fn token(&self) -> &Token {
        &self.token
    }

    /// The descriptor that the guard must keep open.
    pub(super) fn fd(&self) -> RawFd {
        self.fifo.as_raw_fd()
    }

    /// Publishes the owner's deadline, as time since boot. Returns whether others can read it.
    pub(super) fn publish(&self, until: Duration) -> bool {
        // Every file system keeps milliseconds, except those that keep whole seconds.
        let until = Duration::from_millis(millis(until));
        let Ok(last_access) = Timespec::try_from(until) else { return false };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let said = futimens(&self.fifo, &Timestamps { last_access, last_modification: omit });
        said.is_ok()
            && fstat(&self.fifo).is_ok_and(|stat| stat.st_nlink == 1 && accessed(&stat) == Some(until))
    }

    /// Whether the FIFO still has its name, where others look for it.
    pub(super) fn has_name(&self) -> bool {
        fstat(&self.fifo).is_ok_and(|stat| stat.st_nlink == 1)
    }

    /// Removes the FIFO: for other processes this liveness has ended.
    pub(super) fn end(&self, directory: &Directory) {
        // If it cannot be removed now, a later clean-up does so.
        directory.remove(&self.file).ok();
    }
}

fn accessed(stat: &Stat) -> Option<Duration> {
    let seconds = u64::try_from(stat.st_atime).ok()?;
    Some(Duration::new(seconds, u32::try_from(stat.st_atime_nsec).ok()?))
}

/// The deadline in a life file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Published {
    /// The deadline, as time since boot.
    Until(Duration),
    /// No deadline yet, or an impossible one.
    Nothing,
    /// There is no file.
    Missing,
}

/// Reads the deadline that the owner of `token` has published. `now` is the time since boot.
pub(super) fn published(directory: &Directory, token: &Token, now: Duration) -> Published {
    let file = FileName::of(token.secret(), FileRole::Life);
    match statat(directory, file.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Published::Missing,
        Ok(stat) if kind_of(&stat) == FileType::Fifo => match accessed(&stat) {
            // A new FIFO has the wall clock's time, decades after any boot.
            Some(until) if until <= now + Ttl::MAX => Published::Until(until),
            _ => Published::Nothing,
        },
        _ => Published::Nothing,
    }
}

/// The life file of another process, open so that its end is noticed.
#[derive(Debug)]
pub struct Watch {
    fifo: OwnedFd,
}

/// Looks for the owner of `token`. It is dead if nobody has its FIFO open for reading. If there is
/// no FIFO, the token was released, or somebody removed the file.
pub(super) fn look_for(directory: &Directory, token: &Token) -> Watching<Watch> {
    look_in(directory, &FileName::of(token.secret(), FileRole::Life))
}

fn look_in(directory: &Directory, file: &FileName) -> Watching<Watch> {
    match openat(directory, file.as_str(), OFlags::WRONLY | OPEN, directory.mode()) {
        // Only a FIFO is ever written to.
        Ok(fifo) if fstat(&fifo).is_ok_and(|stat| kind_of(&stat) == FileType::Fifo) => {
            Watching::Watched(Watch { fifo })
        }
        Err(Errno::NXIO) => Watching::Ended,
        Err(Errno::NOENT) => Watching::Missing,
        Ok(_) | Err(_) => Watching::Unknown,
    }
}

/// Whether nobody has this FIFO open for reading. For a file whose token is not known.
pub(super) fn is_abandoned(directory: &Directory, file: &FileName) -> bool {
    let stat = statat(directory, file.as_str(), AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| kind_of(&stat) == FileType::Fifo)
        && matches!(look_in(directory, file), Watching::Ended)
}

impl Watch {
    /// Wakes the owner.
    pub(super) fn wake(&self) {
        // If the owner has just died, the write fails with EPIPE (SIGPIPE is ignored). A full FIFO
        // (EAGAIN) has bytes that will wake the owner.
        write(&self.fifo, b"\0").ok();
    }
}

/// Sleeps until `mine` is woken or one of `others` ends (true), or until `until` or an interrupt
/// (false). A signal handler that ran ends the sleep too (true).
pub(super) fn sleep(
    mine: Option<&LifeFile>,
    others: &mut dyn Iterator<Item = &Watch>,
    until: Moment,
) -> Result<bool, Errno> {
    let limit = Timespec::try_from(until.left()).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let is_woken = interrupt::with(|interrupts| {
        let mut fds: Vec<_> = mine.iter().map(|life| PollFd::new(&life.fifo, PollFlags::IN)).collect();
        // POLLERR is always reported.
        fds.extend(others.map(|watch| PollFd::new(&watch.fifo, PollFlags::empty())));
        let lives = fds.len();
        fds.extend(interrupts.iter().map(|interrupt| PollFd::new(interrupt, PollFlags::IN)));
        match poll(&mut fds, Some(&limit)) {
            Ok(_) => Ok(fds[..lives].iter().any(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    })?;
    if let Some(life) = mine {
        let mut bytes = [0u8; 64];
        while read(&life.fifo, &mut bytes) == Ok(bytes.len()) {}
    }
    Ok(is_woken)
}

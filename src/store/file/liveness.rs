//! Is a holder or waiter still alive, how is it woken, and how long is it to be believed? A life is a FIFO that its owner
//! keeps open for reading, from before it first asks until nothing of it is left. The kernel does the rest, without a
//! thread, a poll loop or a limit on how many there are:
//!
//! - Opening a FIFO for writing fails with ENXIO when nobody reads it: its owner is dead (fifo(7)).
//! - Who has it open for writing sees POLLERR when the last reader goes: the news of a death, at once.
//! - A byte written to it wakes its owner.
//! - Its access time is its owner's to set, and says in CLOCK_BOOTTIME until when the owner is to be believed: a holder's
//!   lease, a waiter's silence. So a renewal and a heartbeat change nothing that anybody else changes: they need no mutex,
//!   no record, and no space on the disk. Nothing else sets it: the kernel does so when a FIFO is read, and the owner reads
//!   with O_NOATIME.
//!
//! dlock and its guard share one open file description, by fork; the job does not have it (CLOEXEC). So it is closed
//! when both are gone. A life at its final name has been open since before it got that name: one that nobody reads can
//! never come back. A life that is not there says nothing: somebody may have removed the file of one who lives.
//!
//! Whoever renews looks whether its file still has its name, where the judges look for it ([`LifeFile::say`]).
//!
//! Rejected: a file lock (flock) on the life file. Waiting for one needs a thread for every file that is watched, and
//! whoever grants the lock could not wake the waiter that it grants it to.

use crate::lock::{Token, Ttl};
use crate::rules::millis;
use crate::store::Error;
use crate::store::engine::Liveness;
use crate::store::file::directory::{Directory, FileName, FileRole, OPEN, kind_of};
use crate::store::net::alarm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, FileType, OFlags, Stat, Timestamps, UTIME_OMIT, fstat, futimens, mkfifoat, openat, renameat,
    statat,
};
use rustix::io::{Errno, read, write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The life of this process.
#[derive(Debug)]
pub(super) struct LifeFile {
    token: Token,
    file: FileName,
    fifo: OwnedFd,
    given_up: AtomicBool,
    ended: AtomicBool,
}

impl LifeFile {
    /// Begins a life for `token`.
    pub(super) fn begin(directory: &Directory, token: &Token) -> Result<Self, Error> {
        let file = FileName::of(token.secret(), FileRole::Life);
        let unborn = file.with(FileRole::Unborn);
        let fifo = Self::open(directory, &unborn, &file).map_err(|errno| {
            directory.remove(&unborn).ok();
            match errno {
                // FAT has no FIFOs, and says so by EPERM.
                Errno::PERM => directory.error("create a FIFO", Errno::OPNOTSUPP),
                errno => directory.error("create a FIFO", errno),
            }
        })?;
        let (given_up, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { token: token.clone(), file, fifo, given_up, ended })
    }

    fn open(directory: &Directory, unborn: &FileName, file: &FileName) -> Result<OwnedFd, Errno> {
        mkfifoat(directory, unborn.as_str(), directory.mode())?;
        let access = OFlags::RDWR | OPEN;
        let fifo = openat(directory, unborn.as_str(), access | OFlags::NOATIME, directory.mode())?;
        let stat = fstat(&fifo)?;
        // Whoever may write the directory may have put something else there meanwhile.
        if kind_of(&stat) != FileType::Fifo || stat.st_nlink != 1 {
            return Err(Errno::EXIST);
        }
        directory.adopt(&fifo)?;
        renameat(directory, unborn.as_str(), directory, file.as_str())?;
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

    /// Says that its owner is to be believed until then, counted from the boot. Whether others can hear it.
    pub(super) fn say(&self, until: Duration) -> bool {
        // No file system keeps less than that, save those that keep whole seconds.
        let until = Duration::from_millis(millis(until));
        let Ok(last_access) = Timespec::try_from(until) else { return false };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let said = futimens(&self.fifo, &Timestamps { last_access, last_modification: omit });
        said.is_ok()
            && fstat(&self.fifo).is_ok_and(|stat| stat.st_nlink == 1 && accessed(&stat) == Some(until))
    }

    /// Whether its FIFO is where the others look for it.
    pub(super) fn has_name(&self) -> bool {
        fstat(&self.fifo).is_ok_and(|stat| stat.st_nlink == 1)
    }

    /// Removes the FIFO: for everybody else this life is over.
    pub(super) fn end(&self, directory: &Directory) {
        self.ended.store(true, Ordering::SeqCst);
        // What cannot be removed now is swept later.
        directory.remove(&self.file).ok();
    }

    /// Whether others may believe in it.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

fn accessed(stat: &Stat) -> Option<Duration> {
    let seconds = u64::try_from(stat.st_atime).ok()?;
    Some(Duration::new(seconds, u32::try_from(stat.st_atime_nsec).ok()?))
}

/// What an owner has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is to be believed until then, counted from the boot.
    Until(Duration),
    /// Nothing yet, or nothing that can be true.
    Nothing,
    /// It has no file any more.
    Missing,
}

/// What the owner of `token` has said. `now` is the time since boot.
pub(super) fn told(directory: &Directory, token: &Token, now: Duration) -> Told {
    let file = FileName::of(token.secret(), FileRole::Life);
    match statat(directory, file.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Told::Missing,
        Ok(stat) if kind_of(&stat) == FileType::Fifo => match accessed(&stat) {
            // A new one has the wall clock's time, decades after any boot.
            Some(until) if until <= now + Ttl::MAX => Told::Until(until),
            _ => Told::Nothing,
        },
        _ => Told::Nothing,
    }
}

/// A life of another process, held so that its end is seen.
#[derive(Debug)]
pub struct Watch {
    fifo: OwnedFd,
}

/// Whether the owner of `token` lives. One that nobody has open for reading is dead; one that is not there has given
/// everything back, or somebody removed its file.
pub(super) fn liveness(directory: &Directory, token: &Token) -> Liveness<Watch> {
    liveness_of(directory, &FileName::of(token.secret(), FileRole::Life))
}

fn liveness_of(directory: &Directory, file: &FileName) -> Liveness<Watch> {
    match openat(directory, file.as_str(), OFlags::WRONLY | OPEN, directory.mode()) {
        // Nothing else is ever written to.
        Ok(fifo) if fstat(&fifo).is_ok_and(|stat| kind_of(&stat) == FileType::Fifo) => {
            Liveness::Alive(Watch { fifo })
        }
        Err(Errno::NXIO) => Liveness::Dead,
        Err(Errno::NOENT) => Liveness::Missing,
        Ok(_) | Err(_) => Liveness::Unknown,
    }
}

/// Whether nobody reads this FIFO, for one whose token is not known.
pub(super) fn is_abandoned(directory: &Directory, file: &FileName) -> bool {
    let stat = statat(directory, file.as_str(), AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| kind_of(&stat) == FileType::Fifo)
        && matches!(liveness_of(directory, file), Liveness::Dead)
}

impl Watch {
    /// Wakes its owner.
    pub(super) fn wake(&self) {
        // If the owner dies just now there is nobody to wake (EPIPE; SIGPIPE is ignored). A full FIFO (EAGAIN) has bytes in
        // it that will wake its owner.
        write(&self.fifo, b"\0").ok();
    }
}

/// Sleeps until `mine` is woken or one of `others` ends, at the most for `limit` or until there is an alarm: then it answers
/// false. A signal handler that ran ends it too.
pub(super) fn sleep<'a>(
    mine: Option<&LifeFile>,
    others: impl Iterator<Item = &'a Watch>,
    limit: Duration,
) -> Result<bool, Errno> {
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let is_woken = alarm::with(|alarm| {
        let mut fds: Vec<_> = mine.iter().map(|life| PollFd::new(&life.fifo, PollFlags::IN)).collect();
        // POLLERR is reported unasked.
        fds.extend(others.map(|watch| PollFd::new(&watch.fifo, PollFlags::empty())));
        let lives = fds.len();
        fds.extend(alarm.map(|alarm| PollFd::from_borrowed_fd(alarm, PollFlags::IN)));
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

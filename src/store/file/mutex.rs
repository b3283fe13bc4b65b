//! Who may change a record now? A file lock (flock) around the few system calls of one step. Not fair, and not what
//! waiters of a lock wait for: nobody keeps it longer than a step takes.
//!
//! The file is never renamed, and removed only by whoever has it locked, together with the record. Who locked a file
//! that has been removed meanwhile starts again, so that no two processes ever guard one record by different files.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::file::directory::{Directory, Kind, remove};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The first and the longest pause between two attempts. A step takes some tens of microseconds.
const PAUSE: (Duration, Duration) = (Duration::from_micros(40), Duration::from_millis(3));

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// The mutex of one lock, taken until it is dropped.
#[derive(Debug)]
pub(super) struct Mutex {
    file: OwnedFd,
    path: PathBuf,
}

impl Mutex {
    /// Takes the mutex of the lock `name`. Whoever was stopped (SIGSTOP) with it in its hands must not stop everybody
    /// else: a blocking flock has no time limit, so this one asks again and again, and fails at `by`.
    pub(super) fn lock(directory: &Directory, name: &str, by: Moment) -> Result<Self, Error> {
        let path = directory.file(name, Kind::Mutex);
        let began = Moment::now();
        let mut pause = PAUSE.0;
        let failed = |errno| directory.error("lock the record of the lock", errno);
        let mut file = open(directory, &path)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_removed(&file).map_err(failed)? => file = open(directory, &path)?,
                Ok(()) => return Ok(Self { file, path }),
                Err(Errno::WOULDBLOCK) => {
                    let left = by.left();
                    if left.is_zero() {
                        return Err(stuck(directory, name, Moment::now().since(began)));
                    }
                    std::thread::sleep(jitter(pause).min(left));
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Takes the mutex in the file at `path` if it is there and nobody has it, to clean up. It may be that of no lock.
    pub(super) fn take_idle(path: &Path) -> Option<Self> {
        let file = openat(CWD, path, OPEN, Mode::empty()).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let taken = Self { path: path.into(), file };
        (!is_removed(&taken.file).ok()?).then_some(taken)
    }

    /// Removes the file, for a lock of which nothing is kept any more.
    pub(super) fn remove(self) -> Result<(), Errno> {
        remove(&self.path)
    }
}

impl Drop for Mutex {
    /// Closing is not enough: a child forked meanwhile by another thread would keep it locked. That unlocking fails is
    /// not known to happen, and closing follows.
    fn drop(&mut self) {
        flock(&self.file, FlockOperation::Unlock).ok();
    }
}

fn is_removed(file: &OwnedFd) -> Result<bool, Errno> {
    Ok(fstat(file)?.st_nlink == 0)
}

fn open(directory: &Directory, path: &Path) -> Result<OwnedFd, Error> {
    let file = match openat(CWD, path, OPEN, directory.mode()) {
        Err(Errno::NOENT) => {
            let new = openat(CWD, path, OPEN | OFlags::CREATE, directory.mode());
            if let (Ok(file), true) = (&new, directory.is_shared()) {
                // Only its owner may, and if another user's dlock created it just now, that one does.
                fchmod(file, directory.mode()).ok();
            }
            new
        }
        opened => opened,
    };
    file.map_err(|errno| directory.error("open the mutex of the lock", errno))
}

fn stuck(directory: &Directory, name: &str, waited: Duration) -> Error {
    Error::Unreachable(format!(
        "{}: the record of {name:?} has been locked by another process for {:.1}s; look for a stopped dlock",
        directory.shown(),
        waited.as_secs_f64(),
    ))
}

/// Half of `pause` to all of it, so that many do not ask in step.
fn jitter(pause: Duration) -> Duration {
    let noise = Moment::now().since_boot().subsec_nanos().wrapping_mul(2_654_435_761) ^ std::process::id();
    pause / 2 + pause / 2 * (noise % 1024) / 1024
}

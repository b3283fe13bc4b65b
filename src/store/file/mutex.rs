//! Who may change a record now? A file lock (flock) around the few system calls of one step. Not what waiters of a lock
//! wait for, and not what a renewal or a heartbeat needs: nobody keeps it longer than a step takes.
//!
//! Who finds it taken stands in the kernel's queue, which serves in the order of arrival and wakes one. That wait has no
//! limit of its own, so it is done by a thread that may be left behind: one that is stopped (SIGSTOP) with the mutex in its
//! hands must not stop everybody else for good.
//!
//! The file is never renamed, and removed only by whoever has it locked, together with the record. Who locked a file
//! that has been removed meanwhile starts again, so that no two processes ever guard one record by different files.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::file::directory::{Directory, FileName, FileRole};
use crate::store::net::alarm;
use rustix::fs::{FlockOperation, OFlags, flock, fstat, major, minor};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long a pause is between two attempts where no thread can be made.
const PAUSE: Duration = Duration::from_millis(1);

/// How much of /proc/locks is read to find out who has a mutex, in bytes: some 5,000 locks.
const LOCKS_SHOWN: u64 = 256 * 1024;

const OPENING: &str = "open the mutex of the lock";

/// The mutex of one lock, taken until it is dropped.
#[derive(Debug)]
pub(super) struct Mutex {
    fd: Arc<OwnedFd>,
    file: FileName,
}

impl Mutex {
    /// Takes the mutex of the lock `name`, or fails at `by`.
    pub(super) fn lock(directory: &Directory, name: &str, by: Moment) -> Result<Self, Error> {
        let file = FileName::of(name, FileRole::Mutex);
        let began = Moment::now();
        let failed = |errno| directory.error("lock the record of the lock", errno);
        loop {
            let fd = Arc::new(open(directory, &file)?);
            let is_taken = match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => true,
                Err(Errno::WOULDBLOCK) => stand_in_line(&fd, by).map_err(failed)?,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            if !is_taken {
                return Err(stuck(directory, name, &fd, Moment::now().since(began)));
            }
            let mutex = Self { fd, file: file.clone() };
            if directory.look_at(&mutex.fd, file.as_str(), OPENING)?.st_nlink > 0 {
                return Ok(mutex);
            }
        }
    }

    /// Takes the mutex in this file if it is there and nobody has it, to clean up. It may be that of no lock.
    pub(super) fn take_idle(directory: &Directory, file: &FileName) -> Option<Self> {
        let (fd, _) = directory.open_file(file.as_str(), OFlags::RDONLY, "clean up").ok()??;
        flock(&fd, FlockOperation::NonBlockingLockExclusive).ok()?;
        let taken = Self { fd: Arc::new(fd), file: file.clone() };
        (!is_removed(&taken.fd).ok()?).then_some(taken)
    }

    /// Removes the file, for a lock of which nothing is kept any more.
    pub(super) fn remove(self, directory: &Directory) -> Result<(), Errno> {
        directory.remove(&self.file)
    }
}

impl Drop for Mutex {
    /// Closing is not enough: a child forked meanwhile by another thread would keep it locked. That unlocking fails is
    /// not known to happen, and closing follows.
    fn drop(&mut self) {
        flock(&self.fd, FlockOperation::Unlock).ok();
    }
}

fn is_removed(fd: &OwnedFd) -> Result<bool, Errno> {
    Ok(fstat(fd)?.st_nlink == 0)
}

/// It is to be looked at once it is taken.
fn open(directory: &Directory, file: &FileName) -> Result<OwnedFd, Error> {
    loop {
        if let Some(fd) = directory.open_any(file.as_str(), OFlags::RDONLY, OPENING)? {
            return Ok(fd);
        }
        match directory.create_file(file.as_str(), OFlags::RDONLY) {
            // Another one was faster.
            Err(Errno::EXIST) => {}
            created => return created.map_err(|errno| directory.error(OPENING, errno)),
        }
    }
}

/// Waits until the mutex is taken, or `by`: then it answers false, and the thread that still waits lets go of what it
/// gets.
fn stand_in_line(fd: &Arc<OwnedFd>, by: Moment) -> Result<bool, Errno> {
    let (say, turn) = channel();
    let file = Arc::clone(fd);
    let waits = move || {
        let taken = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                taken => break taken,
            }
        };
        // Nobody waits for it any more. Whoever goes just now closes the file, which ends the lock, too.
        if say.send(taken).is_err() {
            flock(&file, FlockOperation::Unlock).ok();
        }
    };
    if std::thread::Builder::new().name("dlock-mutex".into()).spawn(waits).is_err() {
        return ask_again_and_again(fd, by);
    }
    alarm::receive(&turn, by).map_or(Ok(false), |taken| taken.map(|()| true))
}

fn ask_again_and_again(fd: &OwnedFd, by: Moment) -> Result<bool, Errno> {
    loop {
        match flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) if by.passed() => return Ok(false),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE.min(by.left())),
            Err(errno) => return Err(errno),
        }
    }
}

fn stuck(directory: &Directory, name: &str, fd: &OwnedFd, waited: Duration) -> Error {
    let (shown, waited) = (directory.shown(), waited.as_secs_f64());
    let who = holder(fd);
    Error::Unreachable(match who {
        Some((pid, true)) => format!(
            "{shown}: the record of {name:?} has been locked by process {pid} for {waited:.1}s, which is stopped; continue it \
             (kill -CONT {pid}) or end it"
        ),
        Some((pid, false)) => {
            format!(
                "{shown}: the record of {name:?} could not be locked for {waited:.1}s; process {pid} has it now"
            )
        }
        None => format!(
            "{shown}: the record of {name:?} could not be locked for {waited:.1}s; look for a stopped dlock"
        ),
    })
}

/// Which process has the file locked, and whether it is stopped, as far as the kernel shows it.
fn holder(fd: &OwnedFd) -> Option<(u32, bool)> {
    let stat = fstat(fd).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let pid = locker(File::open("/proc/locks").ok()?, &file)?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(')')?.1.split_whitespace().next()?;
    Some((pid, matches!(state, "T" | "t")))
}

/// Which process has the file locked by this list, as far as it is read: every user of the machine may make it as long as he
/// likes.
fn locker(locks: impl Read, file: &str) -> Option<u32> {
    // 1: FLOCK  ADVISORY  WRITE 4242 fe:00:1234 0 EOF; who waits has "->" in the second place.
    BufReader::new(locks.take(LOCKS_SHOWN)).lines().map_while(Result::ok).find_map(|line| {
        let fields = line.split_whitespace().collect::<Vec<_>>();
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file);
        is_it.then(|| fields.get(4)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_file_locked_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 41 fe:00:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 fe:00:7 0 EOF\n";
        assert_eq!(locker(locks.as_bytes(), "fe:00:7"), Some(42));
        assert_eq!(locker(locks.as_bytes(), "fe:00:70"), None);
    }

    #[test]
    fn a_list_of_locks_without_an_end_is_given_up() {
        assert_eq!(locker(std::io::repeat(b'\n'), "fe:00:7"), None);
        assert_eq!(locker(std::io::repeat(b'x'), "fe:00:7"), None);
    }
}

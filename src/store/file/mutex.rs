//! The mutex of a record: a file lock (flock) around the few system calls of one operation. Waiters
//! of a dlock lock do not wait for it, and a renewal or a heartbeat does not need it.
//!
//! A process that finds it taken waits in the kernel's queue, which is served in order of arrival.
//! That wait has no time limit, so a thread does it, and may be left behind: a process that was
//! stopped (SIGSTOP) while it has the mutex must not block all others for good.
//!
//! The file is never renamed, and only removed by a process that has it locked, together with the
//! record. A process that locked a file that was removed meanwhile starts again. So no two
//! processes guard one record by different files.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::file::directory::{Directory, FileName, FileRole, errno};
use crate::store::net::interrupt;
use rustix::fs::{FlockOperation, OFlags, flock, fstat, major, minor};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Most bytes of /proc/locks that are read to find the owner of a mutex: about 5,000 locks.
const LOCKS_SHOWN: u64 = 256 * 1024;

const OPENING: &str = "open the mutex of the lock";

/// The mutex of one lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct Mutex {
    fd: Arc<OwnedFd>,
    file: FileName,
    directory: Arc<Directory>,
    /// Whether the lock has a record. Without one, the file goes with the mutex. If it cannot be
    /// removed, a later clean-up finds it.
    pub(super) has_record: bool,
}

impl Mutex {
    /// Takes the mutex of the lock `name`, or fails at `deadline`.
    pub(super) fn lock(directory: &Arc<Directory>, name: &str, deadline: Moment) -> Result<Self, Error> {
        let file = FileName::of(name, FileRole::Mutex);
        let began = Moment::now();
        let failed = |errno| directory.error("lock the record of the lock", errno);
        loop {
            let fd = Arc::new(open(directory, &file)?);
            let is_taken = match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => true,
                Err(Errno::WOULDBLOCK) => wait_for_flock(&fd, deadline).map_err(failed)?,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            if !is_taken {
                return Err(stuck(directory, name, &fd, Moment::now().since(began)));
            }
            let mutex = Self::taken(fd, file.clone(), directory);
            if directory.look_at(&mutex.fd, file.as_str(), OPENING)?.st_nlink > 0 {
                return Ok(mutex);
            }
        }
    }

    /// Takes the mutex in this file, to clean up, if the file exists and nobody has it locked. The
    /// lock may have no record.
    pub(super) fn take_idle(directory: &Arc<Directory>, file: &FileName) -> Option<Self> {
        let (fd, _) = directory.open_file(file.as_str(), OFlags::RDONLY, "clean up").ok()??;
        flock(&fd, FlockOperation::NonBlockingLockExclusive).ok()?;
        let taken = Self::taken(Arc::new(fd), file.clone(), directory);
        (fstat(&taken.fd).ok()?.st_nlink > 0).then_some(taken)
    }

    fn taken(fd: Arc<OwnedFd>, file: FileName, directory: &Arc<Directory>) -> Self {
        Self { fd, file, directory: Arc::clone(directory), has_record: true }
    }
}

impl Drop for Mutex {
    /// Closing is not enough: a child that another thread forked meanwhile would keep it locked.
    /// Closing follows in any case.
    fn drop(&mut self) {
        if !self.has_record {
            self.directory.remove(&self.file).ok();
        }
        flock(&self.fd, FlockOperation::Unlock).ok();
    }
}

/// Opens or creates the file. The caller checks it once it is locked.
fn open(directory: &Directory, file: &FileName) -> Result<OwnedFd, Error> {
    loop {
        if let Some(fd) = directory.open_any(file.as_str(), OFlags::RDONLY, OPENING)? {
            return Ok(fd);
        }
        match directory.create_file(file.as_str(), OFlags::RDONLY) {
            // Another process has just created it.
            Err(Errno::EXIST) => {}
            created => return created.map_err(|errno| directory.error(OPENING, errno)),
        }
    }
}

/// Waits until the mutex is taken (true), or until `deadline` (false). After that the thread that still
/// waits unlocks the file as soon as it has it.
fn wait_for_flock(fd: &Arc<OwnedFd>, deadline: Moment) -> Result<bool, Errno> {
    let (say, turn) = channel();
    let file = Arc::clone(fd);
    let waits = move || {
        let taken = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                taken => break taken,
            }
        };
        // Nobody waits for it any more. If the receiver is gone just after the send, it closes the
        // file, which unlocks it too.
        if say.send(taken).is_err() {
            flock(&file, FlockOperation::Unlock).ok();
        }
    };
    // Without a thread the caller tries again, as after any failure.
    std::thread::Builder::new().name("dlock-mutex".into()).spawn(waits).map_err(|error| errno(&error))?;
    interrupt::receive(&turn, deadline).map_or(Ok(false), |taken| taken.map(|()| true))
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
                "{shown}: the record of {name:?} could not be locked for {waited:.1}s; process {pid} has locked it"
            )
        }
        None => format!(
            "{shown}: the record of {name:?} could not be locked for {waited:.1}s; look for a stopped dlock"
        ),
    })
}

/// Which process has the file locked, and whether that process is stopped, if the kernel shows it.
fn holder(fd: &OwnedFd) -> Option<(u32, bool)> {
    let stat = fstat(fd).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let pid = locker(File::open("/proc/locks").ok()?, &file)?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(')')?.1.split_whitespace().next()?;
    Some((pid, matches!(state, "T" | "t")))
}

/// Finds the process that has the file locked in /proc/locks. Reads only a part, because any user
/// of the machine can make that list long.
fn locker(locks: impl Read, file: &str) -> Option<u32> {
    // 1: FLOCK  ADVISORY  WRITE 4242 fe:00:1234 0 EOF; a process that waits has "->" in second
    // place.
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
    fn the_process_that_has_a_file_locked_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 41 fe:00:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 43 fe:00:7 0 EOF\n";
        assert_eq!(locker(locks.as_bytes(), "fe:00:7"), Some(42));
        assert_eq!(locker(locks.as_bytes(), "fe:00:70"), None);
    }

    #[test]
    fn an_endless_list_of_locks_is_not_read_to_its_end() {
        assert_eq!(locker(std::io::repeat(b'\n'), "fe:00:7"), None);
        assert_eq!(locker(std::io::repeat(b'x'), "fe:00:7"), None);
    }
}

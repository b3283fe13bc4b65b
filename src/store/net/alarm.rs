//! How is a request broken off, for the sake of something that has to be heeded at once? While the thread that asks has an
//! alarm, each of its waits for a server ends when that is readable.

use crate::clock::{self, Moment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often one who waits for a thread looks whether there is an alarm.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

thread_local! {
    static ALARM: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Does something in which each wait ends when `alarm` is readable. Without a free descriptor none does.
pub fn heeding<T>(alarm: BorrowedFd<'_>, work: impl FnOnce() -> T) -> T {
    ALARM.replace(alarm.try_clone_to_owned().ok());
    let done = work();
    ALARM.replace(None);
    done
}

/// Asks, as long as `alarm` is not readable. Nothing where that broke it off.
pub fn unless<T, E>(alarm: BorrowedFd<'_>, ask: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
    let said = heeding(alarm, ask);
    (said.is_ok() || !is_ready(alarm)).then_some(said)
}

fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)) != Ok(0)
}

/// Whether the alarm of this thread is readable.
pub fn is_raised() -> bool {
    ALARM.with_borrow(|alarm| alarm.as_ref().is_some_and(|alarm| is_ready(alarm.as_fd())))
}

/// The alarm of this thread.
pub fn with<T>(work: impl FnOnce(Option<BorrowedFd<'_>>) -> T) -> T {
    ALARM.with_borrow(|alarm| work(alarm.as_ref().map(AsFd::as_fd)))
}

/// Sleeps until then, or until an alarm.
pub fn sleep_until(moment: Moment) {
    if !ALARM.with_borrow(Option::is_some) {
        return clock::sleep_until(moment);
    }
    while !moment.passed() && pause(moment.left()).is_ok() {}
}

/// The next value that another thread sends; nothing if none has come by then, or before an alarm.
pub fn receive<T>(values: &Receiver<T>, until: Moment) -> Option<T> {
    loop {
        match values.recv_timeout(until.left().min(LOOKS_EVERY)) {
            Ok(value) => return Some(value),
            Err(RecvTimeoutError::Timeout) if !until.passed() && !is_raised() => {}
            Err(_) => return None,
        }
    }
}

/// A pause, which fails on an alarm.
pub fn pause(span: Duration) -> io::Result<()> {
    ALARM.with_borrow(|alarm| {
        let limit = Timespec::try_from(span).map_err(io::Error::other)?;
        let mut fds: Vec<_> = alarm.iter().map(|alarm| PollFd::new(alarm, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            _ => Err(ErrorKind::TimedOut.into()),
        }
    })
}

/// Waits until a descriptor is ready, at most for `limit`: then it fails, as on an alarm.
pub fn wait(fd: impl AsFd, flags: PollFlags, limit: Duration) -> io::Result<()> {
    ALARM.with_borrow(|alarm| {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut fds = vec![PollFd::from_borrowed_fd(fd.as_fd(), flags)];
        fds.extend(alarm.as_ref().map(|alarm| PollFd::new(alarm, PollFlags::IN)));
        match poll(&mut fds, Some(&limit)) {
            Ok(_) if !fds[0].revents().is_empty() => Ok(()),
            Ok(_) => Err(ErrorKind::TimedOut.into()),
            // The caller knows how much of the limit is left.
            Err(Errno::INTR) => Err(ErrorKind::Interrupted.into()),
            Err(errno) => Err(errno.into()),
        }
    })
}

//! Interrupts a request for something more urgent. While a thread has an interrupt descriptor, each
//! of its waits for a server ends when that becomes readable.

use crate::clock::{self, Moment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often a wait for another thread checks the interrupt.
const CHECK_EVERY: Duration = Duration::from_millis(20);

thread_local! {
    static INTERRUPT: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Runs `work`; each wait in it ends when `interrupt` becomes readable. Without a free descriptor to
/// duplicate `interrupt` to, no wait does.
pub fn armed<T>(interrupt: BorrowedFd<'_>, work: impl FnOnce() -> T) -> T {
    INTERRUPT.replace(interrupt.try_clone_to_owned().ok());
    let done = work();
    INTERRUPT.replace(None);
    done
}

/// Runs `ask`, interruptible by `interrupt`. None if it failed and `interrupt` is readable.
pub fn unless<T, E>(interrupt: BorrowedFd<'_>, ask: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
    let said = armed(interrupt, ask);
    (said.is_ok() || !is_ready(interrupt)).then_some(said)
}

fn is_ready(fd: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)) != Ok(0)
}

/// Whether this thread's interrupt is readable.
pub fn is_raised() -> bool {
    INTERRUPT.with_borrow(|interrupt| interrupt.as_ref().is_some_and(|interrupt| is_ready(interrupt.as_fd())))
}

/// Passes this thread's interrupt descriptor to `work`.
pub fn with<T>(work: impl FnOnce(Option<BorrowedFd<'_>>) -> T) -> T {
    INTERRUPT.with_borrow(|interrupt| work(interrupt.as_ref().map(AsFd::as_fd)))
}

/// Sleeps until `moment` or an interrupt.
pub fn sleep_until(moment: Moment) {
    if !INTERRUPT.with_borrow(Option::is_some) {
        return clock::sleep_until(moment);
    }
    while !moment.passed() && pause(moment.left()).is_ok() {}
}

/// The next value from another thread. None at `until`, on an interrupt, or if the sender is gone.
pub fn receive<T>(values: &Receiver<T>, until: Moment) -> Option<T> {
    loop {
        match values.recv_timeout(until.left().min(CHECK_EVERY)) {
            Ok(value) => return Some(value),
            Err(RecvTimeoutError::Timeout) if !until.passed() && !is_raised() => {}
            Err(_) => return None,
        }
    }
}

/// Pauses. Fails on an interrupt.
pub fn pause(span: Duration) -> io::Result<()> {
    INTERRUPT.with_borrow(|interrupt| {
        let limit = Timespec::try_from(span).map_err(io::Error::other)?;
        let mut fds: Vec<_> =
            interrupt.iter().map(|interrupt| PollFd::new(interrupt, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            _ => Err(ErrorKind::TimedOut.into()),
        }
    })
}

/// Waits until a descriptor is ready. Fails with `TimedOut` after `limit` or on an interrupt.
pub fn wait(fd: impl AsFd, flags: PollFlags, limit: Duration) -> io::Result<()> {
    INTERRUPT.with_borrow(|interrupt| {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut fds = vec![PollFd::from_borrowed_fd(fd.as_fd(), flags)];
        fds.extend(interrupt.as_ref().map(|interrupt| PollFd::new(interrupt, PollFlags::IN)));
        match poll(&mut fds, Some(&limit)) {
            Ok(_) if !fds[0].revents().is_empty() => Ok(()),
            Ok(_) => Err(ErrorKind::TimedOut.into()),
            // The caller knows how much of the limit is left.
            Err(Errno::INTR) => Err(ErrorKind::Interrupted.into()),
            Err(errno) => Err(errno.into()),
        }
    })
}

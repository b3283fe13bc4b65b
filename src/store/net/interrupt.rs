//! Interrupts a request for something more urgent. While a thread has interrupt descriptors, each of
//! its waits for a server ends when one of them becomes readable.

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
    static INTERRUPTS: RefCell<Vec<OwnedFd>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work`; each wait in it ends when `interrupt` becomes readable, or an interrupt around this
/// call. Without a free descriptor to duplicate `interrupt` to, no wait ends for it.
pub fn armed<T>(interrupt: BorrowedFd<'_>, work: impl FnOnce() -> T) -> T {
    armed_by([interrupt], work)
}

/// The same with several interrupts.
pub fn armed_by<'a, T>(interrupts: impl IntoIterator<Item = BorrowedFd<'a>>, work: impl FnOnce() -> T) -> T {
    let before = INTERRUPTS.with_borrow_mut(|all| {
        let before = all.len();
        all.extend(interrupts.into_iter().filter_map(|interrupt| interrupt.try_clone_to_owned().ok()));
        before
    });
    let done = work();
    INTERRUPTS.with_borrow_mut(|all| all.truncate(before));
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

/// Whether one of this thread's interrupts is readable.
pub fn is_raised() -> bool {
    INTERRUPTS.with_borrow(|interrupts| interrupts.iter().any(|interrupt| is_ready(interrupt.as_fd())))
}

/// Passes this thread's interrupt descriptors to `work`.
pub fn with<T>(work: impl FnOnce(&[OwnedFd]) -> T) -> T {
    INTERRUPTS.with_borrow(|interrupts| work(interrupts))
}

/// Sleeps until `moment` or an interrupt.
pub fn sleep_until(moment: Moment) {
    if INTERRUPTS.with_borrow(Vec::is_empty) {
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
    INTERRUPTS.with_borrow(|interrupts| {
        let limit = Timespec::try_from(span).map_err(io::Error::other)?;
        let mut fds: Vec<_> =
            interrupts.iter().map(|interrupt| PollFd::new(interrupt, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            _ => Err(ErrorKind::TimedOut.into()),
        }
    })
}

/// Waits until a descriptor is ready. Fails with `TimedOut` after `limit` or on an interrupt.
pub fn wait(fd: impl AsFd, flags: PollFlags, limit: Duration) -> io::Result<()> {
    INTERRUPTS.with_borrow(|interrupts| {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut fds = vec![PollFd::from_borrowed_fd(fd.as_fd(), flags)];
        fds.extend(interrupts.iter().map(|interrupt| PollFd::new(interrupt, PollFlags::IN)));
        match poll(&mut fds, Some(&limit)) {
            Ok(_) if !fds[0].revents().is_empty() => Ok(()),
            Ok(_) => Err(ErrorKind::TimedOut.into()),
            // The caller knows how much of the limit is left.
            Err(Errno::INTR) => Err(ErrorKind::Interrupted.into()),
            Err(errno) => Err(errno.into()),
        }
    })
}

//! The clock. Everything that bounds a lease on this machine is a [`Moment`] of CLOCK_BOOTTIME: it
//! never steps as the wall clock does, and unlike CLOCK_MONOTONIC it goes on while the machine is
//! suspended, as the store's clock does. Wall-clock time is only shown to people, and comes from
//! the store.

mod namespace;

pub use namespace::Namespace;

use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A point on this process's CLOCK_BOOTTIME, as the time since boot. Cannot be compared between
/// machines or boots, nor, without a [`Namespace`], between processes that dlock did not fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(Duration);

impl Moment {
    pub fn now() -> Self {
        #[cfg(test)]
        if let Some(clock) = simulated::of_this_thread() {
            return clock.now();
        }
        let t = clock_gettime(ClockId::Boottime);
        Self(Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0)))
    }

    /// The moment this long after boot.
    pub const fn from_boot(since: Duration) -> Self {
        Self(since)
    }

    /// The time from boot to this moment.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The moment `span` later; the greatest possible moment on overflow.
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The moment `span` earlier; boot at the earliest.
    pub const fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// The span from `earlier` to this moment; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The span from now to this moment; zero if it has passed.
    pub fn left(self) -> Duration {
        self.since(Self::now())
    }

    /// Whether this moment has come.
    pub fn passed(self) -> bool {
        Self::now() >= self
    }
}

/// Sleeps until a moment, counting the time that the machine is suspended.
pub fn sleep_until(at: Moment) {
    #[cfg(test)]
    if let Some(clock) = simulated::of_this_thread() {
        return clock.sleep_until(at);
    }
    if let Ok(at) = Timespec::try_from(at.since_boot()) {
        while clock_nanosleep_absolute(ClockId::Boottime, &at) == Err(Errno::INTR) {}
    }
}

/// Sleeps for `span`, counting the time that the machine is suspended.
pub fn sleep(span: Duration) {
    sleep_until(Moment::now().after(span));
}

/// A clock that a test controls, for the threads of the test.
#[cfg(test)]
pub mod simulated {
    use super::Moment;
    use std::cell::RefCell;
    use std::rc::Rc;

    pub trait Clock {
        fn now(&self) -> Moment;
        fn sleep_until(&self, at: Moment);
    }

    thread_local! {
        static CLOCK: RefCell<Option<Rc<dyn Clock>>> = const { RefCell::new(None) };
    }

    /// Makes this the clock of the calling thread.
    pub fn set(clock: Rc<dyn Clock>) {
        CLOCK.set(Some(clock));
    }

    pub(super) fn of_this_thread() -> Option<Rc<dyn Clock>> {
        CLOCK.with_borrow(Clone::clone)
    }
}

/// Becomes readable at a moment. The timeouts of poll(2) and of channels are no substitute: they do
/// not count the time that the machine is suspended.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Makes a timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Makes it readable from `at` on, or never for `None`. Resets it if it was readable before.
    pub fn set(&self, at: Option<Moment>) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = match at {
            None => zero,
            // A value of zero means never, so boot itself becomes 1 ns. A moment too far away for
            // the kernel becomes never, too.
            Some(at) => Timespec::try_from(at.since_boot().max(Duration::from_nanos(1))).unwrap_or(zero),
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: zero, it_value })?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

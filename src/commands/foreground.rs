//! How does a command without a job wait, and stay interruptible? A worker thread talks to the store, which may hang, and
//! sends what it learns. The main thread takes that, the signals and the time, and decides: so a signal is heeded at once,
//! whatever the store does. What a signal means, the command says.
//!
//! `run` and the commands here read signals from a signalfd: they must know which signal came, to pass it on or to die of
//! the same. The handler of the crate ctrlc does not say which, so only `watch` uses it, which just has to end.

use crate::clock::{Moment, Timer};
use crate::error::Error;
use crate::lease::event_fd::EventFd;
use crate::output::live::Line;
use crate::supervise;
use crate::sys::{self, SignalSet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

/// Signals that come in to be read, but those that dlock's caller had it ignore.
pub struct Signals(OwnedFd);

impl Signals {
    /// To be called before any thread, of which there may be one as soon as a store is opened.
    pub fn take(signals: &[i32]) -> Result<Self, Error> {
        let heeded: Vec<i32> = signals.iter().copied().filter(|signal| !sys::ignored(*signal)).collect();
        sys::block(SignalSet::of(&heeded));
        Ok(Self(sys::signalfd(SignalSet::of(&heeded)).map_err(|error| cannot("take signals", &error))?))
    }
}

/// What the main thread waits with.
pub struct Foreground<T> {
    signals: Signals,
    learned: Receiver<T>,
    wake: Arc<EventFd>,
    timer: Timer,
}

pub enum News<T> {
    Signal(i32),
    Learned(T),
    /// The descriptor that was given is ready.
    Ready,
    Nothing,
}

/// What the worker tells by.
pub struct Teller<T> {
    told: Sender<T>,
    wake: Arc<EventFd>,
}

impl<T> Teller<T> {
    /// Tells the main thread; nothing happens if that does not listen any more.
    pub fn tell(&self, what: T) {
        let _ended = self.told.send(what);
        self.wake.notify();
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        self.wake.notify();
    }
}

impl<T: Send + 'static> Foreground<T> {
    /// Starts the worker. It is left behind when the main thread has heard enough.
    pub fn start(signals: Signals, work: impl FnOnce(&Teller<T>) + Send + 'static) -> Result<Self, Error> {
        let start = || {
            let (wake, timer) = (Arc::new(EventFd::new()?), Timer::new()?);
            let (told, learned) = channel();
            let teller = Teller { told, wake: wake.clone() };
            thread::Builder::new().name("dlock-worker".into()).spawn(move || work(&teller))?;
            Ok(Self { signals, learned, wake, timer })
        };
        start().map_err(|error: io::Error| cannot("start a thread", &error))
    }

    /// Waits for news, at most until `until`; also for `other` to be ready.
    pub fn next(&self, until: Option<Moment>, other: Option<PollFd<'_>>) -> Result<News<T>, Error> {
        self.wait(until, other).map_err(|error| cannot("wait", &error))
    }

    /// What is learned next, while the line about waiting moves on; or the signal that came first.
    pub fn learn(&self, line: &mut Line) -> Result<ControlFlow<i32, T>, Error> {
        loop {
            match self.next(line.next(), None)? {
                News::Signal(signal) => return Ok(ControlFlow::Break(signal)),
                News::Learned(learned) => return Ok(ControlFlow::Continue(learned)),
                News::Ready | News::Nothing => line.go_on(),
            }
        }
    }

    fn wait(&self, until: Option<Moment>, other: Option<PollFd<'_>>) -> io::Result<News<T>> {
        self.timer.set(until)?;
        let mut fds = vec![
            PollFd::new(&self.signals.0, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
        ];
        fds.extend(other);
        loop {
            // Signals first: what comes after a dlock was told to end, it must not print any more.
            if let Some(received) = supervise::next_signal(&self.signals.0)? {
                return Ok(News::Signal(received.signal));
            }
            self.wake.drain();
            match self.learned.try_recv() {
                Ok(what) => return Ok(News::Learned(what)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("the other thread died")),
            }
            if fds.get(3).is_some_and(|other| !other.revents().is_empty()) {
                return Ok(News::Ready);
            }
            if until.is_some_and(Moment::passed) {
                return Ok(News::Nothing);
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::Internal(format!("cannot {what}: {error}"))
}

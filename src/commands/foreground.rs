//! Waits in a command without a job, and stays interruptible. A worker thread talks to the store,
//! which may hang, and sends what it learns. The main thread receives that, the signals and
//! timeouts, so it acts on a signal at once, whatever the store does. The command decides what a
//! signal means.
//!
//! `run` and these commands read signals from a signalfd: they must know which signal came, to
//! relay it or to die of it. The handler of the crate ctrlc does not say which, so only `watch`
//! uses it, which just has to end.

use crate::clock::{Moment, Timer};
use crate::config;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::event_fd::EventFd;
use crate::lease::observer::Remark;
use crate::output::live::Line;
use crate::output::{Event, Kind, What};
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

/// Signals read from a signalfd, without those that dlock's caller had it ignore.
pub struct Signals(OwnedFd);

impl Signals {
    /// Must be called before any thread starts; opening a store may start one.
    pub fn take(signals: &[i32]) -> Result<Self, Error> {
        let not_ignored: Vec<i32> = signals.iter().copied().filter(|signal| !sys::ignored(*signal)).collect();
        sys::block(SignalSet::of(&not_ignored));
        Ok(Self(sys::signalfd(SignalSet::of(&not_ignored)).map_err(|error| cannot("take signals", &error))?))
    }
}

/// The main thread's side.
pub struct Foreground<T> {
    signals: Signals,
    learned: Receiver<T>,
    wake: Arc<EventFd>,
    timer: Timer,
}

enum News<T> {
    Signal(i32),
    Learned(T),
    Nothing,
}

/// The worker's side.
pub struct Teller<T> {
    told: Sender<T>,
    wake: Arc<EventFd>,
}

impl<T> Teller<T> {
    /// Sends to the main thread. Has no effect if the main thread no longer listens.
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
    /// Starts the worker. It is left behind when the main thread is done.
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

    /// Returns what the worker sends next, or the signal that came first. Meanwhile updates the
    /// line about waiting.
    pub fn learn(&self, line: &mut Line) -> Result<ControlFlow<i32, T>, Error> {
        loop {
            match self.news(line.next()).map_err(|error| cannot("wait", &error))? {
                News::Signal(signal) => return Ok(ControlFlow::Break(signal)),
                News::Learned(learned) => return Ok(ControlFlow::Continue(learned)),
                News::Nothing => line.go_on(),
            }
        }
    }

    /// Waits for news until `until`.
    fn news(&self, until: Option<Moment>) -> io::Result<News<T>> {
        self.timer.set(until)?;
        let mut fds = [
            PollFd::new(&self.signals.0, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
        ];
        loop {
            // Signals first: after a signal to end, dlock must not print what comes next.
            if let Some(received) = supervise::next_signal(&self.signals.0)? {
                return Ok(News::Signal(received.signal));
            }
            self.wake.drain();
            match self.learned.try_recv() {
                Ok(what) => return Ok(News::Learned(what)),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("the other thread died")),
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

/// What the worker of [`wait`] sends.
pub enum Told {
    /// Something to print beside the line about waiting.
    Say(Box<dyn FnOnce(&mut Line) + Send>),
    /// The last report.
    Over(Result<Exit, Error>),
}

impl Teller<Told> {
    /// Has something printed beside the line about waiting.
    pub fn say(&self, what: impl FnOnce(&mut Line) + Send + 'static) {
        self.tell(Told::Say(Box::new(what)));
    }

    /// Prints what the observer remarks about the store while the command waits for `key`.
    pub fn remark(&self, store: &config::Store, key: &str, remark: Remark) {
        let key = key.to_owned();
        match remark {
            Remark::Trouble(error) => {
                let text = format!("{error} ({}); still waiting for {key}, trying again", store.origin());
                self.say(move |line| line.announce(Event::from(What::Trouble).about(&key), &text));
            }
            Remark::Recovered => {
                let text = format!("{store} answers again");
                self.say(move |line| line.say(Kind::Note, What::Recovered, &text));
            }
        }
    }
}

/// Runs `work` on a worker thread, and waits for its result. A signal ends the wait.
pub fn wait(
    signals: Signals,
    mut line: Line,
    work: impl FnOnce(&Teller<Told>) -> Result<Exit, Error> + Send + 'static,
) -> anyhow::Result<Exit> {
    let foreground = Foreground::start(signals, move |teller| teller.tell(Told::Over(work(teller))))?;
    loop {
        match foreground.learn(&mut line)? {
            ControlFlow::Break(signal) => return Ok(Exit::Signal(signal)),
            ControlFlow::Continue(Told::Say(say)) => say(&mut line),
            ControlFlow::Continue(Told::Over(over)) => return Ok(over?),
        }
    }
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::Internal(format!("cannot {what}: {error}"))
}

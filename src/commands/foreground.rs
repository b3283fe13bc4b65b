//! Waits in a command without a job, and stays interruptible: a signal ends each wait for the store,
//! and with it the command.
//!
//! `run` and these commands read signals from a signalfd: they must know which signal came, to
//! relay it or to die of it. The handler of the crate ctrlc does not say which, so only `watch`
//! uses it, which just has to end.

use super::context::{Context, riding_out};
use crate::clock::Moment;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::observer::{Observer, WATCH_EVERY};
use crate::lease::{RIDE_OUT_PAUSE, Until};
use crate::lock::Name;
use crate::output::live::Line;
use crate::output::{Event, Kind, What};
use crate::store::net::interrupt;
use crate::store::{self, Store, View};
use crate::supervise;
use crate::sys::{self, SignalSet};
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};

/// The signals that end the command, without those that dlock's caller had it ignore.
pub struct Signals(OwnedFd);

impl Signals {
    /// Must be called before any thread starts; opening a store may start one.
    pub fn take() -> Result<Self, Error> {
        let not_ignored: Vec<i32> =
            supervise::ENDING.into_iter().filter(|signal| !sys::ignored(*signal)).collect();
        sys::block(SignalSet::of(&not_ignored));
        Ok(Self(sys::signalfd(SignalSet::of(&not_ignored)).map_err(|error| cannot("take signals", &error))?))
    }

    /// Runs `work`, whose waits for the store a signal ends. If a signal has come, the result of
    /// `work` does not count.
    pub fn or<T>(&self, work: impl FnOnce() -> T) -> Result<ControlFlow<i32, T>, Error> {
        let done = interrupt::armed(self.0.as_fd(), work);
        let received = supervise::next_signal(&self.0).map_err(|error| cannot("read a signal", &error))?;
        Ok(match received {
            Some(received) => ControlFlow::Break(received.signal),
            None => ControlFlow::Continue(done),
        })
    }

    /// Runs `work` to the end of the command.
    pub fn or_exit(&self, work: impl FnOnce() -> Result<Exit, Error>) -> anyhow::Result<Exit> {
        Ok(match self.or(work)? {
            ControlFlow::Break(signal) => Exit::Signal(signal),
            ControlFlow::Continue(done) => done?,
        })
    }
}

/// Waits for what other processes do to locks. Takes none.
pub struct Onlooker<'a> {
    pub context: &'a Context,
    pub observer: Observer,
    /// The line about waiting.
    pub line: Line,
    pub until: Until,
}

impl Onlooker<'_> {
    /// Reads a lock at least once, and again until `look_at` returns something. None if the time is
    /// over first.
    pub fn look_for<T>(
        &mut self,
        name: &Name,
        mut look_at: impl FnMut(View, &mut Line) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let only = BTreeSet::from([name.clone()]);
        let mut is_troubled = false;
        loop {
            match self.observer.look(name, self.observer.deadline(self.until)) {
                Ok(view) => {
                    if std::mem::take(&mut is_troubled) {
                        let text = format!("{} answers again", self.context.settings.store);
                        self.line.say(Kind::Note, What::Recovered, &text);
                    }
                    if let Some(found) = look_at(view, &mut self.line) {
                        return Ok(Some(found));
                    }
                    if self.until.is_over() {
                        return Ok(None);
                    }
                    // The first read was without a watch, for a caller that finds at once what it
                    // looks for. With the watch no change is missed.
                    self.observer.watch(&only);
                }
                Err(error) if self.observer.rides_out(&error, self.until) && !interrupt::is_raised() => {
                    self.observer.start_over();
                    self.observer.watch(&only);
                    if !std::mem::replace(&mut is_troubled, true) {
                        let error = self.context.with_origin(error);
                        trouble(&mut self.line, name.key(), &error);
                    }
                    self.observer.pause();
                }
                Err(error) => return Err(self.context.with_origin(error).into()),
            }
            while self.observer.due().is_empty() && !self.until.is_over() {
                if interrupt::is_raised() {
                    return Err(Error::Internal("interrupted".into()));
                }
                let again = Moment::now().after(WATCH_EVERY);
                let until = self.line.next().into_iter().chain(self.until.end()).fold(again, Moment::min);
                if self.observer.listen(until).is_err() {
                    // Without a subscription the lock is read now and then.
                    interrupt::sleep_until(until.min(Moment::now().after(RIDE_OUT_PAUSE)));
                    break;
                }
                self.line.go_on();
            }
        }
    }

    /// Asks the store about these keys before the wait. An outage is waited out here, too.
    pub fn ask<T>(
        &mut self,
        keys: &str,
        mut ask: impl FnMut(&mut dyn Store) -> Result<T, store::Error>,
    ) -> Result<T, Error> {
        let Self { context, observer, line, until } = self;
        let trouble = |error: &store::Error| trouble(line, keys, error);
        riding_out(*until, trouble, || {
            ask(observer.store()).map_err(|error| context.with_origin(error).into())
        })
    }
}

/// Prints that the store cannot be reached while the command waits for these keys.
fn trouble(line: &mut Line, keys: &str, error: &store::Error) {
    let text = format!("{error}; still waiting for {keys}, trying again");
    line.announce(Event::from(What::Trouble).about(keys), &text);
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::Internal(format!("cannot {what}: {error}"))
}

//! How does a command see a lock change without asking all the time? It has itself woken whenever something changes, and
//! looks then; by itself it looks when a lease ends, which nobody need notice. What it looks for, it is told.

use super::context::Context;
use crate::clock::{self, Moment};
use crate::error::Error;
use crate::law::{FOREIGN_LOOK, WATCH_KEPT};
use crate::lease::RIDE_OUT_PAUSE;
use crate::lock::{Name, Token};
use crate::store::{self, Ear, Listener, Store, View};
use std::time::Duration;

/// Two looks are at least this far apart, whatever wakes.
const APART: Duration = Duration::from_millis(5);

/// One who looks on.
pub struct Lookout<'a> {
    context: &'a Context,
    store: Box<dyn Store>,
    token: Token,
    reached: Reached,
    first: First,
}

/// What a failure means before the store has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The end.
    Counts,
    /// An outage, that is waited out.
    RiddenOut,
}

/// Whether the store has answered yet. Later failures are ridden out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    NotYet,
    Before,
}

/// What there is to say while looking on.
#[derive(Debug)]
pub enum Remark {
    /// The store does not answer any more.
    Trouble(store::Error),
    /// It answers again.
    Recovered,
}

/// What came of looking on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<T> {
    /// What was looked for.
    It(T),
    /// The time was over.
    Nothing,
}

impl<'a> Lookout<'a> {
    /// One who has not looked yet.
    pub fn open(context: &'a Context, first: First) -> Result<Self, Error> {
        let token = Token::random()
            .map_err(|error| Error::Internal(format!("the system has no random bytes: {error}")))?;
        Ok(Self { context, store: context.open()?, token, reached: Reached::NotYet, first })
    }

    /// The store, for what there is to do beside.
    pub fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// Looks at the lock until `looked_for` finds something, at most until `end`; once in any case.
    pub fn look<T>(
        &mut self,
        name: &Name,
        end: Option<Moment>,
        mut looked_for: impl FnMut(&View) -> Option<T>,
        mut remark: impl FnMut(Remark),
    ) -> Result<Seen<T>, Error> {
        let mut watch = Watch { until: None, ear: None };
        let mut troubled = false;
        let is_over = || end.is_some_and(Moment::passed);
        loop {
            let by = self.by(end);
            let answer = watch.keep(self, name, by).and_then(|()| self.store.inspect(name, by));
            let next = match answer {
                Ok(view) => {
                    self.reached = Reached::Before;
                    if std::mem::take(&mut troubled) {
                        remark(Remark::Recovered);
                    }
                    if let Some(it) = looked_for(&view) {
                        return Ok(Seen::It(it));
                    }
                    if is_over() {
                        return Ok(Seen::Nothing);
                    }
                    if watch.until.is_none() {
                        // The first look is for one who finds at once what is looked for. The next one misses nothing.
                        watch.until = Some(Moment::now());
                        continue;
                    }
                    next(&view)
                }
                Err(error) if self.rides_out(&error) && !is_over() => {
                    self.store.reset();
                    watch = Watch { until: Some(Moment::now()), ear: None };
                    if !std::mem::replace(&mut troubled, true) {
                        remark(Remark::Trouble(error));
                    }
                    clock::sleep_until(Moment::now().after(RIDE_OUT_PAUSE));
                    continue;
                }
                Err(error) => return Err(self.context.with_origin(error).into()),
            };
            let next = next.min(watch.until.unwrap_or(next));
            watch.sleep(end.map_or(next, |end| next.min(end)));
        }
    }

    fn rides_out(&self, error: &store::Error) -> bool {
        match (self.reached, self.first) {
            (Reached::Before, _) => error.is_transient(),
            (Reached::NotYet, First::RiddenOut) => error.is_outage(),
            (Reached::NotYet, First::Counts) => false,
        }
    }

    fn by(&self, end: Option<Moment>) -> Moment {
        let now = Moment::now();
        let by = self.context.deadline();
        match (end, self.reached) {
            (Some(end), Reached::Before) => by.min(end.max(now.after(RIDE_OUT_PAUSE))),
            _ => by,
        }
    }
}

/// When something may have changed that nobody is woken for.
fn next(view: &View) -> Moment {
    let now = Moment::now();
    let foreign = view.foreign.as_ref().map(|_| FOREIGN_LOOK);
    let leases = view.holders.iter().map(|holder| holder.lease);
    let first = leases.chain(view.left).chain(foreign).min().unwrap_or(WATCH_KEPT);
    now.after(first.max(APART))
}

/// How changes are heard of.
struct Watch {
    /// When it has to be said again that somebody watches; not said yet, if null.
    until: Option<Moment>,
    ear: Option<Box<dyn Ear>>,
}

impl Watch {
    /// Says that somebody watches, when it is time. Before the look, so that no change falls in between.
    fn keep(&mut self, lookout: &mut Lookout<'_>, name: &Name, by: Moment) -> Result<(), store::Error> {
        if !self.until.is_some_and(Moment::passed) {
            return Ok(());
        }
        if self.ear.is_none() {
            lookout.store.prepare(&lookout.token)?;
        }
        lookout.store.watch(name, &lookout.token, by)?;
        if self.ear.is_none() {
            self.ear =
                Some(lookout.store.ear(std::slice::from_ref(name), &lookout.token, Listener::Watcher)?);
        }
        self.until = Some(Moment::now().after(WATCH_KEPT / 3));
        Ok(())
    }

    fn sleep(&mut self, until: Moment) {
        let heard = self.ear.as_mut().map(|ear| ear.sleep(until));
        if !matches!(heard, Some(Ok(_))) {
            // Deaf: looking now and then has to do.
            clock::sleep_until(until.min(Moment::now().after(RIDE_OUT_PAUSE)));
        }
    }
}

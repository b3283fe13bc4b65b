//! `dlock wait`: watches locks, one after the other, until each was seen free. Takes none and
//! stands in no queue.

use super::context::{Context, riding_out};
use super::foreground::{self, Signals, Teller, Told};
use super::held::Holds;
use super::key_operands::KeyOperands;
use crate::cli;
use crate::clock::Moment;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::Until;
use crate::lease::observer::{First, Observer, Remark};
use crate::lock::Name;
use crate::output::describe;
use crate::output::live::Line;
use crate::output::time::span;
use crate::output::{Event, Kind, What};
use crate::rules::{FOREIGN_LOOK, State};
use crate::store::{self, View};
use crate::supervise;
use std::time::Duration;

pub fn wait(context: &Context, flags: &cli::wait::Wait) -> anyhow::Result<Exit> {
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let (since, end) = (Moment::now(), flags.wait.map(|bound| Moment::now().after(bound)));
    // Before the store is opened, which may start a thread.
    let signals = Signals::take(&supervise::ENDING)?;
    // Without a bound, an unreachable store at first contact is an error: it may never have
    // existed.
    let bound = flags.wait.filter(|bound| !bound.is_zero());
    let first = if bound.is_some() { First::RiddenOut } else { First::Counts };
    let mut observer = context.observe(FOREIGN_LOOK)?;
    let line = Line::new(&context.printer, since);
    let context = context.clone();
    foreground::wait(signals, line, move |teller| {
        let until = end.filter(|_| first == First::RiddenOut).map_or(Until::No, Until::At);
        let asking = Asking { context: &context, until, teller };
        let names = asking.locks_to_wait_for(&mut observer, &wanted)?;
        asking.refuse_own_locks(&mut observer, &names)?;
        let waiting = Waiting { context: &context, since, end, bound, first, teller };
        for name in &names {
            if let Some(over) = waiting.until_free(&mut observer, name)? {
                return Ok(over);
            }
        }
        Ok(Exit::Ok)
    })
}

struct Waiting<'a> {
    context: &'a Context,
    since: Moment,
    end: Option<Moment>,
    bound: Option<Duration>,
    first: First,
    teller: &'a Teller<Told>,
}

impl Waiting<'_> {
    /// Watches a lock until it is free. Returns the exit status if the time runs out.
    fn until_free(&self, observer: &mut Observer, name: &Name) -> Result<Option<Exit>, Error> {
        let Self { context, since, teller, .. } = *self;
        let (store, key) = (context.settings.store.to_string(), name.key().to_owned());
        let mut last = None;
        let free = |view: View| match view.state {
            State::Free => Some(()),
            _ => {
                let (store, seen) = (store.clone(), view.clone());
                teller.say(move |line| line.waits(describe::line(store, seen, since)));
                last = Some(view);
                None
            }
        };
        let remark = |remark| teller.remark(&context.settings.store, &key, remark);
        let found = observer.wait_for(name, self.end, self.first, free, remark);
        if found.map_err(|error| context.with_origin(error))?.is_none() {
            return Ok(Some(self.ran_out(name, last)));
        }
        teller.say(move |line| {
            let (kind, after) = match line.has_announced() {
                true => (Kind::Note, format!(" after {}", span(Moment::now().since(since)))),
                false => (Kind::Detail, String::new()),
            };
            let text = format!("{key} in {store} is free{after}");
            line.say(kind, Event::from(What::Free).about(&key), &text);
        });
        Ok(None)
    }

    /// Reports that the time ran out before this lock was free. Returns the exit status.
    fn ran_out(&self, name: &Name, last: Option<View>) -> Exit {
        let state = last.as_ref().map(describe::state).unwrap_or_default();
        let over = self.bound.map(|bound| format!("; --wait ({}) ran out", span(bound))).unwrap_or_default();
        let (key, exit) = (name.key().to_owned(), Exit::Busy(Exit::BUSY));
        let text = format!("{key} in {} {state}{over}", self.context.settings.store);
        self.teller.say(move |line| {
            let holder = last.as_ref().and_then(|view| view.holders.first());
            line.say(Kind::Note, Event::from(What::Busy).about(&key).held_by(holder).ends(exit), &text);
        });
        exit
    }
}

/// What is asked before the wait. An outage is waited out here, too.
struct Asking<'a> {
    context: &'a Context,
    until: Until,
    teller: &'a Teller<Told>,
}

impl Asking<'_> {
    fn ask<T>(&self, keys: &str, ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let store = &self.context.settings.store;
        let trouble = |error: &store::Error| self.teller.remark(store, keys, Remark::Trouble(error.clone()));
        riding_out(self.until, trouble, ask).map_err(|error| match error {
            Error::Store(error) => self.context.with_origin(error).into(),
            error => error,
        })
    }

    fn locks_to_wait_for(&self, observer: &mut Observer, wanted: &KeyOperands) -> Result<Vec<Name>, Error> {
        if wanted.patterns.is_empty() {
            return Ok(wanted.named.clone());
        }
        let matched = |text: String| self.teller.say(move |line| line.say(Kind::Note, What::Matched, &text));
        let names = self.ask(&wanted.patterns().join(", "), || Ok(wanted.known(observer.store())?))?;
        let place = &self.context.settings.store;
        if let Some(none) = wanted.unmatched(&names, place) {
            matched(format!("{none}: nothing to wait for"));
        }
        if !names.is_empty() {
            let keys: Vec<&str> = names.iter().map(Name::key).collect();
            matched(format!("waiting for {} in {place}", keys.join(", ")));
        }
        Ok(names)
    }

    /// Refuses to wait for a lock that this process runs under: it would wait for its own end.
    fn refuse_own_locks(&self, observer: &mut Observer, names: &[Name]) -> Result<(), Error> {
        let holds = Holds::of_process();
        for name in names {
            for held in holds.of_lock(name) {
                let proof = self.ask(name.key(), || {
                    let proof = self.context.verify_in(observer.store(), held, &name.clone().into());
                    Ok(proof.inspect_err(|_| observer.store().reset())?)
                });
                if proof?.is_some() {
                    return Err(Error::Usage(format!(
                        "this process itself runs under {} in {}, and would wait for itself",
                        name.key(),
                        self.context.settings.store
                    )));
                }
            }
        }
        Ok(())
    }
}

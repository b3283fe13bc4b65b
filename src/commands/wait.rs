//! `dlock wait`: watches locks, one after the other, until each was seen free. Takes none and
//! stands in no queue.

use super::context::{Context, riding_out};
use super::foreground::{Foreground, Signals, Teller};
use super::held::Holds;
use super::key_operands::KeyOperands;
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::Until;
use crate::lease::observer::{First, Observer, Remark};
use crate::lock::{Key, Name};
use crate::output::describe;
use crate::output::live::Line;
use crate::output::time::span;
use crate::output::{Event, Kind, What};
use crate::rules::{FOREIGN_LOOK, State};
use crate::store::{self, View};
use crate::supervise;
use std::ops::ControlFlow;
use std::time::Duration;

/// What the worker thread, which watches the locks, reports.
enum Learned {
    NotFree(Box<View>),
    Remark(Remark, String),
    /// Which locks the patterns match.
    Meant(String),
    Free(Name),
    /// The last report: all are free, or the lock at which the time ran out.
    Over(Result<Option<Name>, Error>),
}

pub fn wait(context: &Context, flags: &cli::wait::Wait) -> anyhow::Result<Exit> {
    let settings = &context.settings;
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let (since, end) = (Moment::now(), flags.wait.map(|bound| Moment::now().after(bound)));
    // Before the store is opened, which may start a thread.
    let signals = Signals::take(&supervise::ENDING)?;
    // Without a bound, an unreachable store at first contact is an error: it may never have
    // existed.
    let bound = flags.wait.filter(|bound| !bound.is_zero());
    let first = if bound.is_some() { First::RiddenOut } else { First::Counts };
    let mut observer = context.observe(FOREIGN_LOOK)?;
    let inside = context.clone();
    let foreground = Foreground::start(signals, move |teller| {
        let over = locks_to_wait_for(&inside, &mut observer, &wanted, first, end, teller).and_then(|names| {
            refuse_own_locks(&inside, &mut observer, &names)?;
            let over = watch_until_free(&mut observer, &names, end, first, teller);
            Ok(over.map_err(|error| inside.with_origin(error))?)
        });
        teller.tell(Learned::Over(over));
    })?;
    let mut line = Line::new(&context.printer, since);
    let mut last: Option<Box<View>> = None;
    loop {
        let learned = match foreground.learn(&mut line)? {
            ControlFlow::Break(signal) => return Ok(Exit::Signal(signal)),
            ControlFlow::Continue(learned) => learned,
        };
        match learned {
            Learned::NotFree(view) => {
                line.waits(describe::line(settings.store.to_string(), (*view).clone(), since));
                last = Some(view);
            }
            Learned::Meant(text) => line.say(Kind::Note, What::Matched, &text),
            Learned::Remark(Remark::Trouble(error), key) => {
                let origin = settings.store.origin();
                let text = format!("{error} ({origin}); still waiting for {key}, trying again");
                line.announce(Event::from(What::Trouble).about(&key), &text);
            }
            Learned::Remark(Remark::Recovered, _) => {
                line.say(Kind::Note, What::Recovered, &format!("{} answers again", settings.store));
            }
            Learned::Free(name) => {
                let (kind, after) = match line.has_announced() {
                    true => (Kind::Note, format!(" after {}", span(Moment::now().since(since)))),
                    false => (Kind::Detail, String::new()),
                };
                let text = format!("{} in {} is free{after}", name.key(), settings.store);
                line.say(kind, Event::from(What::Free).about(name.key()), &text);
                last = None;
            }
            Learned::Over(Ok(None)) => return Ok(Exit::Ok),
            Learned::Over(Ok(Some(name))) => {
                return Ok(ran_out(settings, &mut line, &name, last.as_deref(), bound));
            }
            Learned::Over(Err(error)) => return Err(error.into()),
        }
    }
}

/// The time is over while this lock is not free.
fn ran_out(
    settings: &Settings,
    line: &mut Line,
    name: &Name,
    last: Option<&View>,
    bound: Option<Duration>,
) -> Exit {
    let state = last.map(describe::state).unwrap_or_default();
    let over = bound.map(|bound| format!("; --wait ({}) ran out", span(bound))).unwrap_or_default();
    let holder = last.and_then(|view| view.holders.first());
    let text = format!("{} in {} {state}{over}", name.key(), settings.store);
    let (event, exit) = (Event::from(What::Busy).about(name.key()), Exit::Busy(Exit::BUSY));
    line.say(Kind::Note, event.held_by(holder).ends(exit), &text);
    exit
}

/// Returns the locks to wait for. An outage is waited out here, too.
fn locks_to_wait_for(
    context: &Context,
    observer: &mut Observer,
    wanted: &KeyOperands,
    first: First,
    end: Option<Moment>,
    teller: &Teller<Learned>,
) -> Result<Vec<Name>, Error> {
    if wanted.patterns.is_empty() {
        return Ok(wanted.named.clone());
    }
    let until = match end {
        Some(end) if first == First::RiddenOut => Until::At(end),
        _ => Until::No,
    };
    let patterns = wanted.patterns().join(", ");
    let trouble = |error: &store::Error| {
        teller.tell(Learned::Remark(Remark::Trouble(error.clone()), patterns.clone()));
    };
    let names = riding_out(until, trouble, || Ok(wanted.known(observer.store())?));
    let names = names.map_err(|error| match error {
        Error::Store(error) => context.with_origin(error).into(),
        error => error,
    })?;
    let place = &context.settings.store;
    if let Some(none) = wanted.unmatched(&names, place) {
        teller.tell(Learned::Meant(format!("{none}: nothing to wait for")));
    }
    if !names.is_empty() {
        let keys: Vec<&str> = names.iter().map(Name::key).collect();
        teller.tell(Learned::Meant(format!("waiting for {} in {place}", keys.join(", "))));
    }
    Ok(names)
}

/// Watches one lock after the other until it is free. Returns the one at which the time ran out.
fn watch_until_free(
    observer: &mut Observer,
    names: &[Name],
    end: Option<Moment>,
    first: First,
    teller: &Teller<Learned>,
) -> Result<Option<Name>, store::Error> {
    for name in names {
        let free = |view: View| match view.state {
            State::Free => Some(()),
            _ => {
                teller.tell(Learned::NotFree(Box::new(view)));
                None
            }
        };
        let remark = |remark| teller.tell(Learned::Remark(remark, name.key().to_owned()));
        if observer.wait_for(name, end, first, free, remark)?.is_none() {
            return Ok(Some(name.clone()));
        }
        teller.tell(Learned::Free(name.clone()));
    }
    Ok(None)
}

/// Refuses to wait for a lock that this process runs under: it would wait for its own end.
fn refuse_own_locks(context: &Context, observer: &mut Observer, names: &[Name]) -> Result<(), Error> {
    let (holds, settings) = (Holds::of_process(), &context.settings);
    for name in names {
        let key = Key::new(name.key()).map_err(Error::Usage)?;
        for held in holds.of_key(settings, &key) {
            if context.verify(observer.store(), held)?.is_some() {
                return Err(Error::Usage(format!(
                    "this process itself runs under {key} in {}, and would wait for itself",
                    settings.store
                )));
            }
        }
    }
    Ok(())
}

//! When are these locks free? Looks on, one lock after the other, and takes none. Nobody is held up by it: it stands in no
//! queue.

use super::context::Context;
use super::foreground::{Foreground, Signals, Teller};
use super::held::Holds;
use crate::cli;
use crate::clock::Moment;
use crate::error::Error;
use crate::exit::Exit;
use crate::job;
use crate::law::{FOREIGN_LOOK, State};
use crate::lease::observer::{First, Observer, Remark};
use crate::lock::{Key, Name};
use crate::output::Kind;
use crate::output::describe;
use crate::output::live::Line;
use crate::output::time::span;
use crate::store::{self, View};
use std::ops::ControlFlow;

/// What the thread that looks tells.
enum Learned {
    NotFree(Box<View>),
    Remark(Remark, Name),
    Free(Name),
    /// Nothing follows: all are free, or the time was over before this one was.
    Over(Result<Option<Name>, Error>),
}

pub fn wait(context: &Context, flags: &cli::wait::Wait) -> anyhow::Result<Exit> {
    let settings = &context.settings;
    let names = flags.keys.iter().map(|key| context.name(key)).collect::<Result<Vec<_>, _>>()?;
    let (since, end) = (Moment::now(), flags.wait.map(|bound| Moment::now().after(bound)));
    // Before the store is opened, which may start a thread.
    let signals = Signals::take(&job::ENDING)?;
    // Without a bound the store that cannot be reached may be one that never was.
    let bound = flags.wait.filter(|bound| !bound.is_zero());
    let first = if bound.is_some() { First::RiddenOut } else { First::Counts };
    let mut observer = context.observe(FOREIGN_LOOK)?;
    let (inside, keys) = (context.clone(), flags.keys.clone());
    let foreground = Foreground::start(signals, move |teller| {
        let over = refuse_own(&inside, &mut observer, &keys).and_then(|()| {
            let over = look_on(&mut observer, &names, end, first, teller);
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
            Learned::Remark(Remark::Trouble(error), name) => line.announce(&format!(
                "{error} ({}); still waiting for {}, trying again",
                settings.store.origin(),
                name.key()
            )),
            Learned::Remark(Remark::Recovered, _) => {
                line.speak(Kind::Note, &format!("{} answers again", settings.store));
            }
            Learned::Free(name) => {
                let (kind, after) = match line.has_announced() {
                    true => (Kind::Note, format!(" after {}", span(Moment::now().since(since)))),
                    false => (Kind::Detail, String::new()),
                };
                line.speak(kind, &format!("{} in {} is free{after}", name.key(), settings.store));
                last = None;
            }
            Learned::Over(Ok(None)) => return Ok(Exit::Ok),
            Learned::Over(Ok(Some(name))) => {
                let state = last.as_deref().map(describe::state).unwrap_or_default();
                let over = bound.map(|bound| format!("; the {} of --wait are over", span(bound)));
                let over = over.unwrap_or_default();
                line.speak(Kind::Note, &format!("{} in {} {state}{over}", name.key(), settings.store));
                return Ok(Exit::Busy(Exit::BUSY));
            }
            Learned::Over(Err(error)) => return Err(error.into()),
        }
    }
}

/// Looks at one lock after the other until it is free; the one at which the time was over.
fn look_on(
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
        let remark = |remark| teller.tell(Learned::Remark(remark, name.clone()));
        if observer.wait_for(name, end, first, free, remark)?.is_none() {
            return Ok(Some(name.clone()));
        }
        teller.tell(Learned::Free(name.clone()));
    }
    Ok(None)
}

/// Nobody lives to see the end of what ends with himself.
fn refuse_own(context: &Context, observer: &mut Observer, keys: &[Key]) -> Result<(), Error> {
    let (holds, settings) = (Holds::of_process(), &context.settings);
    for key in keys {
        for held in holds.of_key(settings, key) {
            if context.verify(observer.store(), held)?.is_some() {
                return Err(Error::Usage(format!(
                    "this process itself runs under {key} in {}, and would wait for its own end",
                    settings.store
                )));
            }
        }
    }
    Ok(())
}

//! `dlock wait`: watches locks, one after the other, until each was seen free or done. Takes none
//! and stands in no queue.

use super::context::Context;
use super::foreground::{Onlooker, Signals};
use super::key_operands::KeyOperands;
use super::pause::unknown;
use crate::cli;
use crate::clock::Moment;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::Until;
use crate::lock::{Name, Period};
use crate::output::describe;
use crate::output::live::Line;
use crate::output::time::span;
use crate::output::{Event, Kind, What};
use crate::rules::{FOREIGN_LOOK, State};
use std::time::Duration;

pub fn wait(context: &Context, flags: &cli::wait::Wait) -> anyhow::Result<Exit> {
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let since = Moment::now();
    let until = flags.wait.map_or(Until::No, |bound| Until::At(since.after(bound)));
    // Before the store is opened, which may start a thread.
    let signals = Signals::take()?;
    let (observer, line) = (context.observe(FOREIGN_LOOK)?, Line::new(&context.printer, since));
    let onlooker = Onlooker { context, observer, line, until };
    let bound = flags.wait.filter(|bound| !bound.is_zero());
    let mut waiting = Waiting { onlooker, since, bound, done: flags.done.map(Period::counts), came: None };
    signals.or_exit(|| waiting.go(&wanted))
}

struct Waiting<'a> {
    onlooker: Onlooker<'a>,
    since: Moment,
    /// The `--wait` to name in messages.
    bound: Option<Duration>,
    /// The span of `--done`.
    done: Option<Duration>,
    /// The store's time at its first answer, which is when `--done` asks from.
    came: Option<u64>,
}

impl Waiting<'_> {
    fn go(&mut self, wanted: &KeyOperands) -> Result<Exit, Error> {
        let names = self.locks_to_wait_for(wanted)?;
        // B must not run after A because nothing is known of A.
        if self.done.is_some() && wanted.unmatched(&names, &"").is_some() {
            return Ok(Exit::Busy(Exit::BUSY));
        }
        self.refuse_own_locks(&names)?;
        for name in &names {
            if wanted.named.contains(name) {
                self.say_if_unknown(name)?;
            }
            if let Some(over) = self.until_over(name)? {
                return Ok(over);
            }
        }
        Ok(Exit::Ok)
    }

    /// Watches a lock until it is free or, with `--done`, done. Returns the exit status if the time
    /// runs out.
    fn until_over(&mut self, name: &Name) -> Result<Option<Exit>, Error> {
        let (since, done) = (self.since, self.done);
        let (store, key) = (self.onlooker.context.settings.store.to_string(), name.key());
        let (mut last, came) = (None, &mut self.came);
        let over = self.onlooker.look_for(name, |view, line| {
            let came = *came.get_or_insert(view.now);
            let is_over = done.map_or(view.state == State::Free, |span| view.is_done_for(came, span));
            if is_over {
                return Some(());
            }
            line.waits(describe::line(store.clone(), view.clone(), done.is_some(), since));
            last = Some(view);
            None
        });
        let line = &mut self.onlooker.line;
        if over?.is_some() {
            let (kind, after) = match line.has_announced() {
                true => (Kind::Note, format!(" after {}", span(Moment::now().since(since)))),
                false => (Kind::Detail, String::new()),
            };
            let (what, word) = if done.is_some() { (What::Done, "done") } else { (What::Free, "free") };
            line.say(kind, Event::from(what).about(key), &format!("{key} in {store} is {word}{after}"));
            return Ok(None);
        }
        let state = last.as_ref().map(|view| describe::awaited(view, done.is_some())).unwrap_or_default();
        let over = self.bound.map(|bound| format!("; --wait ({}) ran out", span(bound))).unwrap_or_default();
        let holder = last.as_ref().and_then(|view| view.holders.first());
        let exit = Exit::Busy(Exit::BUSY);
        let event = Event::from(What::Busy).about(key).held_by(holder).ends(exit);
        line.say(Kind::Note, event, &format!("{key} in {store} {state}{over}"));
        Ok(Some(exit))
    }

    fn say_if_unknown(&mut self, name: &Name) -> Result<(), Error> {
        let (context, key) = (self.onlooker.context, name.key());
        let unknown = self.onlooker.ask(key, |store| unknown(context, store, name))?;
        if !unknown.is_empty() {
            let text = format!("{key} in {} is{}", context.settings.store, unknown.trim_start_matches(';'));
            self.onlooker.line.say(Kind::Note, Event::from(What::Waiting).about(key), &text);
        }
        Ok(())
    }

    fn locks_to_wait_for(&mut self, wanted: &KeyOperands) -> Result<Vec<Name>, Error> {
        if wanted.patterns.is_empty() {
            return Ok(wanted.named.clone());
        }
        let names = self.onlooker.ask(&wanted.patterns().join(", "), |store| wanted.known(store))?;
        let Onlooker { context, line, .. } = &mut self.onlooker;
        let place = &context.settings.store;
        if let Some(none) = wanted.unmatched(&names, place) {
            line.say(Kind::Note, What::Matched, &format!("{none}: nothing to wait for"));
        }
        if !names.is_empty() {
            let keys: Vec<&str> = names.iter().map(Name::key).collect();
            line.say(Kind::Note, What::Matched, &format!("waiting for {} in {place}", keys.join(", ")));
        }
        Ok(names)
    }

    /// Refuses to wait for a lock that this process runs under: it would wait for its own end.
    fn refuse_own_locks(&mut self, names: &[Name]) -> Result<(), Error> {
        let context = self.onlooker.context;
        for name in names {
            if !self.onlooker.ask(name.key(), |store| context.own_holds(store, name))?.is_empty() {
                let (key, store) = (name.key(), &context.settings.store);
                let text =
                    format!("this process itself runs under {key} in {store}, and would wait for itself");
                return Err(Error::Usage(text));
            }
        }
        Ok(())
    }
}

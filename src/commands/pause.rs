//! How is a lock paused, so that nobody is granted it for a while? Whoever holds it goes on, or is asked to end. And how does
//! that end before its time?
//!
//! A pattern is said to the store first, which heeds it from then on for locks that were never granted. Then each lock that
//! the store knows and that looks like it is paused by itself. So between the two no lock gets through, whenever it was first
//! asked for, and whoever takes a lock that is known need not look at patterns.

use super::context::Context;
use super::owner::owner;
use super::wanted::Wanted;
use crate::cli::pause::{Pause, Resume};
use crate::exit::Exit;
use crate::law::{self, Became, NewPattern, NewPause, Patterns};
use crate::lock::{Key, Name, Owner, PATTERNS_MOST, Pattern};
use crate::output::Kind;
use crate::output::owner::{because, who};
use crate::output::time::span;
use crate::store::{self, Store, Which};
use std::time::Duration;

/// `dlock pause`.
pub fn pause(context: &Context, flags: &Pause) -> anyhow::Result<Exit> {
    let by = owner("dlock pause".into(), Some(flags.reason.clone()).filter(|text| !text.is_empty()));
    let mut locks = Locks::open(context, &flags.keys)?;
    for pattern in locks.wanted.patterns.clone() {
        let new = NewPattern { pattern: &pattern, pause: Some((&by, flags.lasts)) };
        if locks.change(&new)? == Became::Full {
            let text = format!(
                "{pattern} in {} is not paused: {PATTERNS_MOST} patterns are in force there already, as many as there may be; \
                 'dlock status' shows them, 'dlock resume' ends one",
                context.settings.store
            );
            context.printer.say(Kind::Error, &text);
            return Ok(Exit::Busy(Exit::BUSY));
        }
        locks.say(
            Kind::Done,
            pattern.as_str(),
            &format!("is paused for {}: nobody is granted what looks like it", span(flags.lasts)),
        );
    }
    let (patterns, said) = (locks.patterns()?, locks.wanted.patterns.clone());
    let count = locks.each(|store, name, is_named| {
        let new = NewPause { by: &by, lasts: flags.lasts, pattern: None };
        let until = patterns.now.saturating_add(law::millis(flags.lasts));
        // The pause that ends last counts: a pattern goes on for a lock that is paused by its name for a shorter time.
        let longer = patterns.of(name.key()).filter(|pause| !is_named || pause.until > until);
        let new = longer.map_or(new, |pause| NewPause::rest_of(pause, patterns.now));
        if !is_named && let Some((own, left)) = longer_of_its_own(context, store, name, new.lasts)? {
            let held = stop_or_not(context, store, name, flags.stop.then_some(&by))?;
            let (whose, why) = (who(&own.by), because(&own.by));
            return Ok((format!("stays paused for {}, by {whose}{why}{held}", span(left)), Stays::No));
        }
        store.pause(name, Some(new), context.deadline())?;
        let of = new.pattern.filter(|pattern| is_named || !said.contains(pattern));
        let of = of.map(|pattern| format!(" by {pattern}")).unwrap_or_default();
        let held = stop_or_not(context, store, name, flags.stop.then_some(&by))?;
        Ok((format!("is paused for {}{of}: nobody is granted it{held}", span(new.lasts)), Stays::No))
    })?;
    if count.locks == 0 {
        context.printer.say(Kind::Note, &format!("{} yet", locks.no_lock()));
    }
    Ok(Exit::Ok)
}

/// The pause of a lock by its name, if that lasts longer, and for how long.
fn longer_of_its_own(
    context: &Context,
    store: &mut dyn Store,
    name: &Name,
    lasts: Duration,
) -> Result<Option<(law::Pause, Duration)>, store::Error> {
    let view = store.inspect(name, context.deadline())?;
    let own = view.paused.filter(|own| own.pattern.is_none());
    let own = own.map(|own| (Duration::from_millis(own.until.saturating_sub(view.now)), own));
    Ok(own.filter(|(left, _)| *left > lasts).map(|(left, own)| (own, left)))
}

/// What becomes of those who hold it, or were granted it just before: they go on, or are asked to end.
fn stop_or_not(
    context: &Context,
    store: &mut dyn Store,
    name: &Name,
    by: Option<&Owner>,
) -> Result<String, store::Error> {
    let view = store.inspect(name, context.deadline())?;
    let goes_on = if by.is_some() { "is asked to end" } else { "goes on" };
    let mut said = String::new();
    for holder in &view.holders {
        if let Some(by) = by {
            store.request(name, holder.fence, by, context.deadline())?;
        }
        let just = if holder.confirmed { "" } else { "was granted it just before and " };
        said.push_str(&format!("; {} {just}{goes_on}", who(&holder.owner)));
    }
    Ok(said)
}

/// `dlock resume`.
pub fn resume(context: &Context, flags: &Resume) -> anyhow::Result<Exit> {
    let mut locks = Locks::open(context, &flags.keys)?;
    let mut ended = false;
    for pattern in locks.wanted.patterns.clone() {
        if locks.change(&NewPattern { pattern: &pattern, pause: None })? == Became::Was {
            ended = true;
            locks.say(Kind::Done, pattern.as_str(), "is not paused any more");
        }
    }
    let patterns = locks.patterns()?;
    let count = locks.each(|store, name, _| {
        if let Some(pause) = patterns.of(name.key()) {
            let again = NewPause::rest_of(pause, patterns.now);
            store.pause(name, Some(again), context.deadline())?;
            let pattern = again.pattern.map_or("", Pattern::as_str);
            let (by, left) = (who(&pause.by), span(again.lasts));
            let text = format!(
                "stays paused for {left}: {by} has paused {pattern}{}; 'dlock resume {}' ends that",
                because(&pause.by),
                crate::shell::quoted(pattern)
            );
            return Ok((text, Stays::Yes));
        }
        let was = store.pause(name, None, context.deadline())?;
        Ok((if was { "is not paused any more".into() } else { "was not paused".into() }, Stays::No))
    })?;
    if count.locks == 0 && !ended {
        let text =
            format!("{}, and nobody has paused that; 'dlock status' shows what is paused", locks.no_lock());
        context.printer.say(Kind::Warning, &text);
    }
    Ok(if count.stay > 0 { Exit::Busy(Exit::BUSY) } else { Exit::Ok })
}

/// Whether a lock is paused although it was to be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Yes,
    No,
}

/// How many locks there were, and how many of them stay paused.
#[derive(Default)]
struct Count {
    locks: usize,
    stay: usize,
}

/// The locks that are meant, and where they are.
struct Locks<'c> {
    context: &'c Context,
    wanted: Wanted,
    store: Box<dyn Store>,
}

impl<'c> Locks<'c> {
    fn open(context: &'c Context, keys: &[Key]) -> anyhow::Result<Self> {
        // A pattern that no key can look like is refused as the key would be.
        keys.iter().try_for_each(|key| context.name(key).map(drop))?;
        Ok(Self { context, wanted: Wanted::of(context, keys)?, store: context.open()? })
    }

    fn change(&mut self, change: &NewPattern<'_>) -> anyhow::Result<Became> {
        self.ask(Some(change)).map(|patterns| patterns.became)
    }

    /// Those in force.
    fn patterns(&mut self) -> anyhow::Result<Patterns> {
        self.ask(None)
    }

    fn ask(&mut self, change: Option<&NewPattern<'_>>) -> anyhow::Result<Patterns> {
        let Self { context, store, .. } = self;
        let said = store.patterns(&context.settings.prefix, change, context.deadline());
        said.map_err(|error| context.with_origin(error).into())
    }

    fn say(&self, kind: Kind, key: &str, said: &str) {
        let text = format!("{key} in {} {said}", self.context.settings.store);
        self.context.printer.say(kind, &text);
    }

    /// What is said where nothing looks like a pattern.
    fn no_lock(&self) -> String {
        let patterns: Vec<_> = self.wanted.patterns.iter().map(Pattern::as_str).collect();
        format!("{} knows no lock like {}", self.context.settings.store, patterns.join(" or "))
    }

    /// Does it to each lock, which is named or was found, and says what has become of it.
    fn each(
        &mut self,
        act: impl Fn(&mut dyn Store, &Name, bool) -> Result<(String, Stays), store::Error>,
    ) -> anyhow::Result<Count> {
        let (context, mut count) = (self.context, Count::default());
        let origin = |error| context.with_origin(error);
        let found = self.wanted.found(&mut *self.store, Which::Known).map_err(origin)?;
        if let Some(missing) = found.missing.into_iter().next() {
            return Err(origin(missing).into());
        }
        let named = self.wanted.named.iter().map(|name| (name, true));
        let names: Vec<_> = named.chain(found.names.iter().map(|name| (name, false))).collect();
        for (at, (name, is_named)) in names.iter().enumerate() {
            let (said, stays) = act(&mut *self.store, name, *is_named).map_err(|error| {
                if names.len() > 1 {
                    let text = format!("{at} of {} locks were reached before {}", names.len(), name.key());
                    context.printer.say(Kind::Warning, &text);
                }
                origin(error)
            })?;
            count.locks += 1;
            let kind = match stays {
                Stays::Yes => Kind::Warning,
                Stays::No => Kind::Done,
            };
            count.stay += usize::from(stays == Stays::Yes);
            self.say(kind, name.key(), &said);
        }
        Ok(count)
    }
}

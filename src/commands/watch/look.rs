//! What happened to the locks? Looks at them when the observer says so; what happened is the difference to the last look.
//! New locks are looked for now and then. A store that goes away is ridden out.

use crate::clock::{Moment, sleep_until};
use crate::commands::context::Context;
use crate::commands::wanted::{Wanted, its_locks};
use crate::error::Error;
use crate::lease::observer::{LISTEN_AT_LEAST, Observer, WATCH_EVERY};
use crate::lock::Name;
use crate::output::time::span;
use crate::output::{self, Coloured, Event, Kind, What};
use crate::rules::millis;
use crate::store::{self, View, Which, events};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often new locks are looked for, at most.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// Of the time at most one part in so many goes into listing: a server with many keys has other work.
const LIST_SHARE: u32 = 75;
/// How much the two clocks may differ that tell how old an event is. What was not found was idle for far longer.
const SINCE_MARGIN: Duration = Duration::from_secs(1);
/// How long to pause before a store that is gone is tried again.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    Text(Coloured),
    Json,
}

/// Looks at the locks and prints what happened.
pub(super) struct Look {
    context: Context,
    observer: Observer,
    form: Form,
    wanted: Wanted,
    watched: BTreeMap<Name, Watched>,
    /// None where all keys were named.
    list_at: Option<Moment>,
    /// Locks whose records cannot be read: said once.
    damaged: BTreeSet<Name>,
    /// Which parts of the store did not answer when the locks were listed.
    missing: BTreeSet<String>,
    /// When locks were looked for the last time. What was not found then was not used for a while: of what is found later,
    /// only what came since is told.
    listed: Option<Moment>,
    cut_off: Option<Moment>,
}

/// A lock, as it was when it was last looked at.
struct Watched {
    view: View,
    /// Of one that was found and not looked at yet: since when there may be something to tell.
    found: Option<Moment>,
}

impl Look {
    /// Takes the first look.
    pub(super) fn new(context: Context, wanted: Wanted, form: Form) -> Result<Self, Error> {
        let mut look = Self {
            observer: context.observe(WATCH_EVERY)?,
            context,
            form,
            list_at: wanted.searches().then(Moment::now),
            wanted,
            watched: BTreeMap::new(),
            damaged: BTreeSet::new(),
            missing: BTreeSet::new(),
            listed: None,
            cut_off: None,
        };
        look.begin().map_err(|error| look.context.with_origin(error))?;
        let (count, place) = (look.watched.len(), &look.context.settings.store);
        let names: Vec<Name> = look.watched.keys().cloned().collect();
        if let Some(none) = look.wanted.unmatched(&names, place) {
            look.context.printer.say(
                Kind::Note,
                What::Matched,
                &format!("{none} that was used lately; new ones are watched"),
            );
        }
        look.context.printer.say(
            Kind::Detail,
            What::Watching,
            &format!("watching from now on; {place} has {count} of the locks"),
        );
        Ok(look)
    }

    /// What there is to see before anything is told.
    fn begin(&mut self) -> Result<(), store::Error> {
        let names = if self.wanted.searches() { self.list()? } else { self.wanted.named.clone() };
        self.observer.watch(&names.iter().cloned().collect());
        for name in names {
            if let Some(view) = self.view(&name)? {
                self.watched.insert(name, Watched { view, found: None });
            }
        }
        Ok(())
    }

    /// Looks on until it fails for good.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        loop {
            match self.turn() {
                Ok(()) => {}
                Err(Error::Store(error)) if error.is_transient() => self.ride_out(&error),
                Err(Error::Store(error)) => return Err(self.context.with_origin(error).into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// A look. None where the record is damaged, if not this lock alone was asked for.
    fn view(&mut self, name: &Name) -> Result<Option<View>, store::Error> {
        match self.observer.look(name, self.context.deadline()) {
            Ok(view) => {
                self.damaged.remove(name);
                Ok(Some(view))
            }
            Err(error @ store::Error::Garbled(_)) if self.wanted.single().is_none() => {
                // It is looked at when it is time to say again that one watches.
                self.observer.postpone(name);
                if self.damaged.insert(name.clone()) {
                    let text = format!("{} is not watched: {error}", name.key());
                    let event = Event::from(What::Unreadable).about(name.key());
                    self.context.printer.say(Kind::Error, event, &text);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn list(&mut self) -> Result<Vec<Name>, store::Error> {
        let begun = Moment::now();
        let mut names = self.wanted.named.clone();
        // What was idle for long is not looked at. What was used since the last time is found all the same, and its
        // log tells how.
        let found = self.wanted.found(self.observer.store(), Which::Recent)?;
        names.extend(found.names);
        self.say_missing(&found.missing);
        self.listed = Some(begun);
        let took = Moment::now().since(begun);
        self.list_at = Some(Moment::now().after(LIST_EVERY.max(took * LIST_SHARE)));
        Ok(names)
    }

    /// What of the store is not seen, once.
    fn say_missing(&mut self, missing: &[store::Error]) {
        let missing: BTreeSet<String> =
            missing.iter().map(|what| format!("{what}; {} not watched", its_locks(what))).collect();
        for what in missing.difference(&self.missing) {
            self.context.printer.say(Kind::Warning, What::Unreadable, what);
        }
        self.missing = missing;
    }

    /// New locks come in as never used; those that are gone and of which nothing is left to tell go.
    fn find(&mut self) -> Result<(), store::Error> {
        let since = self.listed;
        let names: BTreeSet<Name> = self.list()?.into_iter().collect();
        self.watched.retain(|name, watched| {
            names.contains(name) || !watched.view.holders.is_empty() || !watched.view.waiters.is_empty()
        });
        for name in names {
            let unused = || Watched { view: events::unused(name.clone()), found: since };
            self.watched.entry(name.clone()).or_insert_with(unused);
        }
        self.observer.watch(&self.watched.keys().cloned().collect());
        Ok(())
    }

    /// Looks at what is due, then listens until something else is.
    fn turn(&mut self) -> Result<(), Error> {
        if self.list_at.is_some_and(Moment::passed) {
            self.find()?;
        }
        for name in &self.observer.due() {
            match self.look(name) {
                // What the part of the store has that is missing. The others are looked at all the same.
                Err(Error::Store(error)) if error.is_transient() && !self.missing.is_empty() => {
                    self.observer.store().reset();
                    self.observer.postpone(name);
                }
                looked => looked?,
            }
        }
        self.answered();
        let list_at = self.list_at.unwrap_or_else(|| Moment::now().after(WATCH_EVERY));
        Ok(self.observer.listen(list_at.max(Moment::now().after(LISTEN_AT_LEAST)))?)
    }

    fn look(&mut self, name: &Name) -> Result<(), Error> {
        let Some(view) = self.view(name)? else { return Ok(()) };
        self.answered();
        let now = view.now;
        let mut text = String::new();
        let watched = match self.watched.entry(name.clone()) {
            Entry::Occupied(watched) => watched.into_mut(),
            // It was damaged until now.
            Entry::Vacant(new) => {
                new.insert(Watched { view, found: None });
                return Ok(());
            }
        };
        if let Some(since) = watched.found.take() {
            let ago = millis(Moment::now().since(since) + SINCE_MARGIN);
            watched.view = events::before(&view, now.saturating_sub(ago));
        }
        for event in events::advance(&mut watched.view, view) {
            text += &match self.form {
                Form::Text(colours) => output::watch::line(name.key(), &event, now, colours),
                Form::Json => output::watch::object(name.key(), &event)?,
            };
        }
        output::print(&text)
    }

    fn ride_out(&mut self, error: &store::Error) {
        if self.cut_off.is_none() {
            self.cut_off = Some(Moment::now());
            self.context.printer.say(
                Kind::Passing,
                What::Trouble,
                &format!("{error}; nothing is seen until it answers again, and then what the log has of it"),
            );
        }
        self.observer.start_over();
        self.list_at = self.list_at.map(|_| Moment::now());
        sleep_until(Moment::now().after(PAUSE));
    }

    fn answered(&mut self) {
        if let Some(since) = self.cut_off.take() {
            let (place, since) = (&self.context.settings.store, span(Moment::now().since(since)));
            let text = format!("{place} answers again, after {since}");
            self.context.printer.say(Kind::Passing, What::Recovered, &text);
        }
    }
}

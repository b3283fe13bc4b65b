//! Reads the locks when the observer says so, and prints what has changed since the last read.
//! Searches for new locks now and then. An outage is waited out.

use crate::clock::{Moment, sleep_until};
use crate::commands::context::Context;
use crate::commands::key_operands::{KeyOperands, its_locks};
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

/// Shortest time between two searches for new locks.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// The pause after a search, as a multiple of the time that the search took: a search loads a
/// server with many keys.
const LIST_SHARE: u32 = 75;
/// Longest pause after a search of less than three seconds: on a long line or a busy machine it takes
/// longer than its load on the server.
const LIST_AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// Least pause after a longer search, as a multiple of its time.
const LIST_LEAST_SHARE: u32 = 10;
/// Margin for dating the last search by the store's clock. It reports no old event as new, because
/// a lock that the search did not find had been idle for far longer.
const SINCE_MARGIN: Duration = Duration::from_secs(1);
/// Pause before an unreachable store is tried again.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    Text(Coloured),
    Json,
}

/// Reads the locks and prints what happened.
pub(super) struct Look {
    context: Context,
    observer: Observer,
    form: Form,
    wanted: KeyOperands,
    watched: BTreeMap<Name, Watched>,
    /// When to search next; `None` if all keys were named.
    list_at: Option<Moment>,
    /// Locks whose records cannot be read. Each is reported once.
    damaged: BTreeSet<Name>,
    /// Parts of the store that did not answer the last search.
    missing: BTreeSet<String>,
    /// When the last search began. A lock that it did not find had been idle, so of a lock found
    /// later only events since then are printed.
    listed: Option<Moment>,
    cut_off: Option<Moment>,
}

/// A lock as last read.
struct Watched {
    view: View,
    /// For a lock that was found but not read yet: since when it may have events.
    found: Option<Moment>,
}

impl Look {
    /// Reads all locks once.
    pub(super) fn new(context: Context, wanted: KeyOperands, form: Form) -> Result<Self, Error> {
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
            let text = format!("{none}; keys used from now on are watched");
            look.context.printer.say(Kind::Note, What::Matched, &text);
        }
        let text = format!("watching from now on; {place} has {count} of the locks");
        look.context.printer.say(Kind::Detail, What::Watching, &text);
        Ok(look)
    }

    /// Reads the initial state, of which nothing is printed.
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

    /// Runs until a permanent error.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        loop {
            match self.run_once() {
                Ok(()) => {}
                Err(Error::Store(error)) if error.is_transient() => self.ride_out(&error),
                Err(Error::Store(error)) => return Err(self.context.with_origin(error).into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads a lock. `None` if its record is damaged and it is not the only lock asked for.
    fn view(&mut self, name: &Name) -> Result<Option<View>, store::Error> {
        match self.observer.look(name, self.context.deadline()) {
            Ok(view) => {
                self.damaged.remove(name);
                Ok(Some(view))
            }
            Err(error @ store::Error::Garbled(_)) if self.wanted.single().is_none() => {
                // It is read again when the watch must be renewed.
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
        // The first search, and one after an outage, has to connect: its time says nothing.
        let connects = self.listed.is_none() || self.cut_off.is_some();
        let mut names = self.wanted.named.clone();
        // Locks idle for long are not read. A lock used since the last search is found, and its log
        // has the events.
        let found = self.wanted.found(self.observer.store(), Which::Recent)?;
        names.extend(found.names);
        self.say_missing(&found.missing);
        self.listed = Some(begun);
        let took = Moment::now().since(begun);
        let most = LIST_AT_LEAST_EVERY.max(took * LIST_LEAST_SHARE);
        let pause = if connects { LIST_EVERY } else { took * LIST_SHARE };
        self.list_at = Some(Moment::now().after(pause.clamp(LIST_EVERY, most)));
        Ok(names)
    }

    /// Reports each missing part of the store once.
    fn say_missing(&mut self, missing: &[store::Error]) {
        let missing: BTreeSet<String> =
            missing.iter().map(|what| format!("{what}; {} not watched", its_locks(what))).collect();
        for what in missing.difference(&self.missing) {
            self.context.printer.say(Kind::Warning, What::Unreadable, what);
        }
        self.missing = missing;
    }

    /// Adds new locks as never used. Drops locks that are gone and have no holder or waiter.
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

    /// Reads what is due, then waits until something else is.
    fn run_once(&mut self) -> Result<(), Error> {
        if self.list_at.is_some_and(Moment::passed) {
            self.find()?;
        }
        for name in &self.observer.due() {
            match self.look(name) {
                // This lock is in the missing part of the store. The others are still read.
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
            // Its record was damaged until now.
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
            let text = format!("{error}; no events until it answers again, then those that the log has");
            self.context.printer.say(Kind::Passing, What::Trouble, &text);
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

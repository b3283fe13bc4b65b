//! How are the locks looked at? When the ear says that something happened, when a lease runs out (nobody wakes for that),
//! and every few seconds in any case, because that one watches has to be said again. What happened is the difference to
//! the last look. A store that goes away is ridden out.

use crate::clock::{Moment, sleep_until};
use crate::commands::context::Context;
use crate::commands::wanted::{Wanted, its_locks};
use crate::error::Error;
use crate::law::{WATCH_KEPT, millis};
use crate::lock::{Name, Token};
use crate::output::time::span;
use crate::output::{self, Coloured, Kind};
use crate::store::{self, Ear, Listener, Store, View, Which, events};
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Two of three may be late.
const WATCH_EVERY: Duration = Duration::from_secs(WATCH_KEPT.as_secs() / 3);
/// How often new locks are looked for, at most.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// Of the time at most one part in so many goes into listing: a server with many keys has other work.
const LIST_SHARE: u32 = 75;
/// How much the two clocks may differ that tell how old an event is. What was not found was idle for far longer.
const SINCE_MARGIN: Duration = Duration::from_secs(1);
/// A lease is over when its last millisecond is.
const AFTER_LEASE: Duration = Duration::from_millis(5);
/// An ear has at least so long, or it could not even connect over a long way; what is due may be looked at so late.
const LISTEN_AT_LEAST: Duration = Duration::from_millis(250);
/// How long to pause before a store that is gone is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What is printed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// Lines for people.
    Text(Coloured),
    /// Objects for programs.
    Json,
}

/// Looks at the locks and prints what happened.
pub(super) struct Look {
    context: Context,
    store: Box<dyn Store>,
    form: Form,
    token: Token,
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
    ear: Option<Box<dyn Ear>>,
    cut_off: Option<Moment>,
}

/// A lock, as it was when it was last looked at.
struct Watched {
    view: View,
    /// Of one that was found and not looked at yet: since when there may be something to tell.
    found: Option<Moment>,
    /// When to look at it again, whether something is heard of it or not.
    look_at: Moment,
    watch_at: Moment,
}

/// Why it does not go on.
enum Stopped {
    Store(store::Error),
    Output(Error),
}

impl From<store::Error> for Stopped {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl Look {
    /// Takes the first look.
    pub(super) fn new(context: Context, wanted: Wanted, form: Form) -> anyhow::Result<Self> {
        let mut store = context.open()?;
        let token = Token::random().context("the operating system has no randomness")?;
        store.prepare(&token).map_err(|error| context.with_origin(error))?;
        let now = Moment::now();
        let mut look = Self {
            context,
            store,
            form,
            token,
            list_at: wanted.searches().then_some(now),
            wanted,
            watched: BTreeMap::new(),
            damaged: BTreeSet::new(),
            missing: BTreeSet::new(),
            listed: None,
            ear: None,
            cut_off: None,
        };
        let names = if look.wanted.searches() { look.list() } else { Ok(look.wanted.named().to_vec()) };
        let first = names.and_then(|names| names.into_iter().try_for_each(|name| look.begin(name)));
        first.map_err(|error| look.context.with_origin(error))?;
        let (count, place) = (look.watched.len(), &look.context.settings.store);
        look.context
            .printer
            .say(Kind::Detail, &format!("watching from now on; {place} has {count} of the locks"));
        Ok(look)
    }

    /// Looks on until it fails for good.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        loop {
            match self.turn() {
                Ok(()) => {}
                Err(Stopped::Output(error)) => return Err(error),
                Err(Stopped::Store(error)) if error.is_transient() => self.ride_out(&error),
                Err(Stopped::Store(error)) => return Err(self.context.with_origin(error).into()),
            }
        }
    }

    /// What there is to see of a lock before anything is told of it.
    fn begin(&mut self, name: Name) -> Result<(), store::Error> {
        if let Some(view) = self.view(&name, Moment::now())? {
            let look_at = when_to_look(&view);
            self.watched.insert(
                name,
                Watched { view, found: None, look_at, watch_at: Moment::now().after(WATCH_EVERY) },
            );
        }
        Ok(())
    }

    /// A look, after it was said that one watches if it is time to: so nothing comes between. None where the record is
    /// damaged, if not this lock alone was asked for.
    fn view(&mut self, name: &Name, watch_at: Moment) -> Result<Option<View>, store::Error> {
        let by = self.context.deadline();
        let watches = if watch_at.passed() { self.store.watch(name, &self.token, by) } else { Ok(()) };
        match watches.and_then(|()| self.store.inspect(name, by)) {
            Ok(view) => {
                self.damaged.remove(name);
                Ok(Some(view))
            }
            Err(error @ store::Error::Garbled(_)) if self.wanted.single().is_none() => {
                if self.damaged.insert(name.clone()) {
                    self.context.printer.say(Kind::Error, &format!("{} is not watched: {error}", name.key()));
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn list(&mut self) -> Result<Vec<Name>, store::Error> {
        let begun = Moment::now();
        let mut names = self.wanted.named().to_vec();
        // What was idle for long is not looked at. What was used since the last time is found all the same, and its
        // log tells how.
        let found = self.wanted.found(&mut *self.store, Which::Recent)?;
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
            self.context.printer.say(Kind::Warning, what);
        }
        self.missing = missing;
    }

    /// New locks come in as never used; those that are gone and of which nothing is left to tell go.
    fn find(&mut self) -> Result<(), store::Error> {
        let since = self.listed;
        let names: BTreeSet<Name> = self.list()?.into_iter().collect();
        let before = self.watched.len();
        self.watched.retain(|name, watched| {
            names.contains(name) || !watched.view.holders.is_empty() || !watched.view.waiters.is_empty()
        });
        let mut has_changed = self.watched.len() != before;
        for name in names {
            let now = Moment::now();
            self.watched.entry(name.clone()).or_insert_with(|| {
                has_changed = true;
                Watched { view: events::unused(name), found: since, look_at: now, watch_at: now }
            });
        }
        if has_changed {
            self.ear = None;
        }
        Ok(())
    }

    /// Looks at what is due, then listens until something else is.
    fn turn(&mut self) -> Result<(), Stopped> {
        if self.list_at.is_some_and(Moment::passed) {
            self.find()?;
        }
        let now = Moment::now();
        let due: Vec<Name> = self
            .watched
            .iter()
            .filter(|(_, watched)| watched.look_at.min(watched.watch_at) <= now)
            .map(|(name, _)| name.clone())
            .collect();
        for name in &due {
            match self.look(name) {
                // What the part of the store has that is missing. The others are looked at all the same.
                Err(Stopped::Store(error)) if error.is_transient() && !self.missing.is_empty() => {
                    self.store.reset();
                    let later = Moment::now().after(WATCH_EVERY);
                    if let Some(watched) = self.watched.get_mut(name) {
                        (watched.look_at, watched.watch_at) = (later, later);
                    }
                }
                looked => looked?,
            }
        }
        self.answered();
        self.listen()
    }

    fn look(&mut self, name: &Name) -> Result<(), Stopped> {
        let Some(watched) = self.watched.get(name) else { return Ok(()) };
        let watch_at = watched.watch_at;
        let watch_next = if watch_at.passed() { Moment::now().after(WATCH_EVERY) } else { watch_at };
        let view = self.view(name, watch_at)?;
        self.answered();
        let Some(watched) = self.watched.get_mut(name) else { return Ok(()) };
        watched.watch_at = watch_next;
        // A damaged one is looked at when it is time to say again that one watches.
        let Some(view) = view else {
            watched.look_at = watch_next;
            return Ok(());
        };
        watched.look_at = when_to_look(&view);
        let now = view.now;
        if let Some(since) = watched.found.take() {
            let ago = millis(Moment::now().since(since) + SINCE_MARGIN);
            watched.view = events::before(&view, now.saturating_sub(ago));
        }
        let mut text = String::new();
        for event in events::advance(&mut watched.view, view) {
            text += &match self.form {
                Form::Text(colours) => output::watch::line(name.key(), &event, now, colours),
                Form::Json => output::watch::object(name.key(), &event)
                    .map_err(|error| Stopped::Output(Error::Internal(error.to_string())))?,
            };
        }
        output::print(&text).map_err(Stopped::Output)
    }

    /// Listens until there is something to look at.
    fn listen(&mut self) -> Result<(), Stopped> {
        let dues = self.watched.values().map(|watched| watched.look_at.min(watched.watch_at));
        let until = dues.chain(self.list_at).min().unwrap_or_else(|| Moment::now().after(WATCH_EVERY));
        if self.ear.is_none() {
            let names: Vec<Name> = self.watched.keys().cloned().collect();
            if names.is_empty() {
                sleep_until(until);
                return Ok(());
            }
            self.ear = Some(self.store.ear(&names, &self.token, Listener::Watcher)?);
        }
        let Some(ear) = &mut self.ear else { return Ok(()) };
        match ear.sleep(until.max(Moment::now().after(LISTEN_AT_LEAST))) {
            Ok(true) => {
                let now = Moment::now();
                match ear.about().and_then(|name| self.watched.get_mut(name)) {
                    Some(watched) => watched.look_at = now,
                    None => self.watched.values_mut().for_each(|watched| watched.look_at = now),
                }
                Ok(())
            }
            Ok(false) => Ok(()),
            // What was said to the store may be lost with the connection. The ear rests before it tries again, and
            // whether the store is gone the looks tell.
            Err(error) if error.is_transient() => {
                self.start_over();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Everything is looked at, and the store told again that one watches.
    fn start_over(&mut self) {
        let now = Moment::now();
        self.watched.values_mut().for_each(|watched| watched.watch_at = now);
    }

    fn ride_out(&mut self, error: &store::Error) {
        if self.cut_off.is_none() {
            self.cut_off = Some(Moment::now());
            self.context.printer.say(
                Kind::Warning,
                &format!("{error}; nothing is seen until it answers again, and then what the log has of it"),
            );
        }
        self.store.reset();
        self.ear = None;
        self.start_over();
        self.list_at = self.list_at.map(|_| Moment::now());
        sleep_until(Moment::now().after(PAUSE));
    }

    fn answered(&mut self) {
        if let Some(since) = self.cut_off.take() {
            let (place, since) = (&self.context.settings.store, span(Moment::now().since(since)));
            self.context.printer.say(Kind::Warning, &format!("{place} answers again, after {since}"));
        }
    }
}

/// When a lease runs out that nobody renews: no news will come of it.
fn when_to_look(view: &View) -> Moment {
    let now = Moment::now();
    // One whose lease is over and that is still there is kept by its min-hold.
    let leases = view.holders.iter().map(|holder| holder.lease).filter(|lease| !lease.is_zero());
    leases.map(|lease| now.after(lease + AFTER_LEASE)).min().unwrap_or_else(|| now.after(WATCH_EVERY))
}

//! Resolves KEY operands: each names one lock, or with `*` or `?` in it every lock that the store
//! knows now and whose key matches. Commands that take a lock take no patterns.

use super::context::{Context, IDENTITY_KEY};
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Key, Name, Pattern};
use crate::output::{Event, Kind, What};
use crate::store::{self, Found, Store, View, Which};
use std::collections::BTreeSet;
use std::fmt::Display;

/// The locks that a command is about.
#[derive(Debug, Clone)]
pub struct KeyOperands {
    /// The named locks, in the order given.
    pub named: Vec<Name>,
    /// The patterns.
    pub patterns: Vec<Pattern>,
    prefix: String,
}

impl KeyOperands {
    /// Resolves the KEYs of a command line. Without any, all locks under the prefix are meant.
    pub fn of(context: &Context, keys: &[Key]) -> Result<Self, Error> {
        let patterns = keys.iter().filter_map(Pattern::of).collect();
        let named = keys.iter().filter(|key| Pattern::of(key).is_none());
        let named = named.map(|key| context.name(&key.unescaped())).collect::<Result<_, _>>()?;
        Ok(Self { named, patterns, prefix: context.settings.prefix.clone() })
    }

    /// The lock, if exactly one was named and there is no pattern.
    pub fn single(&self) -> Option<&Name> {
        match self.named.as_slice() {
            [name] if self.patterns.is_empty() => Some(name),
            _ => None,
        }
    }

    /// The patterns, as they were given.
    pub fn patterns(&self) -> Vec<&str> {
        self.patterns.iter().map(Pattern::as_str).collect()
    }

    /// Whether locks must be searched for in the store.
    pub fn searches(&self) -> bool {
        self.named.is_empty() || !self.patterns.is_empty()
    }

    /// Finds the matching locks that were not named, in order of name.
    pub fn found(&self, store: &mut dyn Store, which: Which) -> Result<Found, store::Error> {
        if !self.searches() {
            return Ok(Found::default());
        }
        let mut found = store.find(&self.prefix, which)?;
        found.names.retain(|name| name.key() != IDENTITY_KEY);
        if !self.patterns.is_empty() {
            found.names.retain(|name| self.patterns.iter().any(|pattern| pattern.matches(name.key())));
        }
        let named: BTreeSet<&Name> = self.named.iter().collect();
        found.names.retain(|name| !named.contains(name));
        Ok(found)
    }

    /// All matching locks, the named ones first, then those that the store has any record of. Fails
    /// if a part of the store is missing.
    pub fn known(&self, store: &mut dyn Store) -> Result<Vec<Name>, store::Error> {
        let mut found = self.found(store, Which::Known)?;
        match found.missing.pop() {
            Some(missing) => Err(missing),
            None => Ok(self.named.iter().cloned().chain(found.names).collect()),
        }
    }

    /// The first pattern that matches none of these locks, as a clause.
    pub fn unmatched(&self, names: &[Name], place: &impl Display) -> Option<String> {
        let is_matched = |pattern: &Pattern| names.iter().any(|name| pattern.matches(name.key()));
        let pattern = self.patterns.iter().find(|pattern| !is_matched(pattern))?;
        Some(format!("{place} has no key that matches {pattern}"))
    }

    /// Says that a pattern matches none of these locks, if the output does not show that.
    pub fn say_unmatched(&self, context: &Context, views: &[View]) {
        let names: Vec<Name> = views.iter().map(|view| view.name.clone()).collect();
        if let Some(none) = self.unmatched(&names, &context.settings.store) {
            context.printer.say(Kind::Note, What::Matched, &none);
        }
    }

    /// The lock, if one was named that was never used: what is printed about it says so.
    pub fn unused<'v>(&self, views: &'v [View]) -> Option<&'v View> {
        self.single().and(views.first()).filter(|view| !view.is_used())
    }

    /// Says which of the named locks the store does not know, where `says` agrees, given the suggestion.
    pub fn say_unknown(
        &self,
        context: &Context,
        store: &mut dyn Store,
        views: &[View],
        says: impl Fn(&str) -> bool,
    ) {
        for view in views.iter().filter(|view| self.named.contains(&view.name) && !view.is_known()) {
            let (key, near) = (view.name.key(), context.suggestion(store, view));
            if says(&near) {
                let text = format!("{key} in {}: not known here{near}", context.settings.store);
                context.printer.say(Kind::Note, Event::from(What::Unchanged).about(key), &text);
            }
        }
    }

    /// Changes each lock, the named ones first. `act` gets how the lock was named, prints the
    /// result, and returns whether there was something to change. If a pattern matches nothing,
    /// returns an error and changes nothing. `lacking` ("was paused") completes the message that no
    /// lock which matches a pattern had anything to change.
    pub fn change(
        &self,
        context: &Context,
        lacking: &str,
        mut act: impl FnMut(&mut dyn Store, &Name, Meant) -> Result<bool, store::Error>,
    ) -> Result<Exit, Error> {
        let mut store = context.open()?;
        let origin = |error| context.with_origin(error);
        let names = self.known(&mut *store).map_err(origin)?;
        let place = &context.settings.store;
        if let Some(none) = self.unmatched(&names, place) {
            return Err(Error::Usage(format!("{none}; nothing was changed")));
        }
        let mut has_changed = false;
        for (at, name) in names.iter().enumerate() {
            let how = if at < self.named.len() { Meant::ByName } else { Meant::ByPattern };
            has_changed |= act(&mut *store, name, how).map_err(|error| {
                if names.len() > 1 {
                    let text = format!("{at} of {} locks were done before {}", names.len(), name.key());
                    context.printer.say(Kind::Warning, What::Trouble, &text);
                }
                origin(error)
            })?;
        }
        if !has_changed && !self.patterns.is_empty() {
            let patterns = self.patterns().join(" or ");
            let text = format!("no lock that matches {patterns} in {place} {lacking}");
            context.printer.say(Kind::Note, What::Unchanged, &text);
        }
        Ok(Exit::Ok)
    }

    /// Reads each lock, with at most the last `ends` ends of each, and reports what cannot be read.
    /// `done` says in messages what the command does with the locks ("shown").
    pub fn look(
        &self,
        context: &Context,
        store: &mut dyn Store,
        which: Which,
        ends: usize,
        done: &str,
    ) -> Result<Overview, store::Error> {
        let found = self.found(store, which)?;
        let mut seen = Overview { views: Vec::new(), is_damaged: false, exit: Exit::Ok };
        let mut damaged = Vec::new();
        for missing in &found.missing {
            let line = format!("{missing}; {} not {done}", its_locks(missing));
            damaged.push((line, !is_damaged(missing)));
        }
        for (names, is_named) in [(&self.named, true), (&found.names, false)] {
            let mut rest = names.as_slice();
            while let Some(first) = rest.first() {
                let mut looked_at = 1;
                match store.inspect_some(rest, ends, context.deadline()) {
                    Ok(read) => {
                        looked_at = read.len().max(1);
                        seen.views.extend(read);
                    }
                    Err(error @ store::Error::Garbled(_)) => {
                        damaged.push((format!("{} is not {done}: {error}", first.key()), is_named));
                    }
                    // It is in the missing part of the store.
                    Err(error) if !is_named && !found.missing.is_empty() && error.is_transient() => {}
                    Err(error) => return Err(error),
                }
                rest = rest.get(looked_at..).unwrap_or_default();
            }
        }
        for (line, is_asked_for) in damaged {
            context.printer.say(Kind::Error, What::Unreadable, &line);
            seen.is_damaged = true;
            if is_asked_for {
                seen.exit = Exit::Unavailable;
            }
        }
        Ok(seen)
    }
}

/// How a lock was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant {
    ByName,
    ByPattern,
}

/// The locks of a command, as they were read.
pub struct Overview {
    /// The named ones first.
    pub views: Vec<View>,
    /// Whether something cannot be read. The others are still shown.
    pub is_damaged: bool,
    /// Not 0 if any of that was asked for: by name, or because everything was.
    pub exit: Exit,
}

/// Whether one damaged record is missing, not a part of the store.
fn is_damaged(missing: &store::Error) -> bool {
    matches!(missing, store::Error::Garbled(_))
}

/// Subject of a clause about what is missing, to be followed by what cannot be done.
pub fn its_locks(missing: &store::Error) -> &'static str {
    if is_damaged(missing) { "its lock is" } else { "its locks are" }
}

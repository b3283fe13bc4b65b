//! Which locks does a KEY mean? One, or, with `*` or `?` in it, each one that the store knows at that moment and whose key
//! matches. Commands that take a lock take no patterns.

use super::context::Context;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::lock::{Key, Name, Pattern};
use crate::output::{Kind, What};
use crate::store::{self, Found, Store, View, Which};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

/// The locks that a command was asked about.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Those named, in the order given.
    pub named: Vec<Name>,
    /// Those whose keys look like one of these.
    pub patterns: Vec<Pattern>,
    prefix: String,
    /// How long one lock may take.
    within: Duration,
}

impl Wanted {
    /// What the KEYs of a command line mean. Without any, all locks under the prefix are meant.
    pub fn of(context: &Context, keys: &[Key]) -> Result<Self, Error> {
        let patterns = keys.iter().filter_map(Pattern::of).collect();
        let named = keys.iter().filter(|key| Pattern::of(key).is_none());
        let named = named.map(|key| context.name(&key.unescaped())).collect::<Result<_, _>>()?;
        let Settings { connect_timeout, op_timeout, prefix, .. } = &context.settings;
        Ok(Self { named, patterns, prefix: prefix.clone(), within: *connect_timeout + *op_timeout })
    }

    /// The one lock that is meant, if it is one that was named.
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

    /// Whether there are locks to be looked for.
    pub fn searches(&self) -> bool {
        self.named.is_empty() || !self.patterns.is_empty()
    }

    /// The locks that the store has and that were not named, in order of name.
    pub fn found(&self, store: &mut dyn Store, which: Which) -> Result<Found, store::Error> {
        if !self.searches() {
            return Ok(Found::default());
        }
        let mut found = store.find(&self.prefix, which)?;
        if !self.patterns.is_empty() {
            found.names.retain(|name| self.patterns.iter().any(|pattern| pattern.matches(name.key())));
        }
        let named: BTreeSet<&Name> = self.named.iter().collect();
        found.names.retain(|name| !named.contains(name));
        Ok(found)
    }

    /// All the locks that are meant, those named first: of the others each that the store has any record of. Fails where
    /// a part of the store is missing.
    pub fn known(&self, store: &mut dyn Store) -> Result<Vec<Name>, store::Error> {
        let mut found = self.found(store, Which::Known)?;
        match found.missing.pop() {
            Some(missing) => Err(missing),
            None => Ok(self.named.iter().cloned().chain(found.names).collect()),
        }
    }

    /// The first pattern that none of these locks matches, as a clause.
    pub fn unmatched(&self, names: &[Name], place: &impl Display) -> Option<String> {
        let is_matched = |pattern: &Pattern| names.iter().any(|name| pattern.matches(name.key()));
        let pattern = self.patterns.iter().find(|pattern| !is_matched(pattern))?;
        Some(format!("{place} knows no key that matches {pattern}"))
    }

    /// Changes each of the locks, those named first; `act` is told how the lock was meant, and says what it did. A pattern that
    /// matches nothing is an error, and then nothing is changed.
    pub fn change(
        &self,
        context: &Context,
        store: &mut dyn Store,
        mut act: impl FnMut(&mut dyn Store, &Name, Meant) -> Result<(), store::Error>,
    ) -> Result<(), Error> {
        let origin = |error| context.with_origin(error);
        let names = self.known(store).map_err(origin)?;
        if let Some(none) = self.unmatched(&names, &context.settings.store) {
            return Err(Error::Usage(format!("{none}; nothing was changed")));
        }
        for (at, name) in names.iter().enumerate() {
            let how = if at < self.named.len() { Meant::ByName } else { Meant::ByPattern };
            act(store, name, how).map_err(|error| {
                if names.len() > 1 {
                    let text = format!("{at} of {} locks were reached before {}", names.len(), name.key());
                    context.printer.say(Kind::Warning, What::Trouble, &text);
                }
                origin(error)
            })?;
        }
        Ok(())
    }

    /// Looks at each of the locks, those named first, and says whether it was named. Of each, at most so many of the last
    /// `ends` are told. `done` is what is to be done with it ("shown").
    pub fn look(
        &self,
        store: &mut dyn Store,
        which: Which,
        ends: usize,
        done: &str,
        mut seen: impl FnMut(View, bool),
        mut lacks: impl FnMut(Damaged),
    ) -> Result<(), store::Error> {
        let found = self.found(store, which)?;
        for missing in &found.missing {
            let line = format!("{missing}; {} not {done}", its_locks(missing));
            lacks(Damaged { line, is_asked_for: !is_damaged(missing) });
        }
        for (names, is_named) in [(&self.named, true), (&found.names, false)] {
            let mut rest = names.as_slice();
            while let Some(first) = rest.first() {
                let mut looked_at = 1;
                match store.inspect_some(rest, ends, Moment::now().after(self.within)) {
                    Ok(views) => {
                        looked_at = views.len().max(1);
                        views.into_iter().for_each(|view| seen(view, is_named));
                    }
                    Err(error @ store::Error::Garbled(_)) => {
                        let line = format!("{} is not {done}: {error}", first.key());
                        lacks(Damaged { line, is_asked_for: is_named });
                    }
                    // The part of the store that is missing has it.
                    Err(error) if !is_named && !found.missing.is_empty() && error.is_transient() => {}
                    Err(error) => return Err(error),
                }
                rest = rest.get(looked_at..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

/// How a lock was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant {
    ByName,
    ByPattern,
}

/// A lock, or a part of the store, that cannot be looked at. It hides no other.
pub struct Damaged {
    pub line: String,
    /// Whether something is missing that was asked for: by name, or because everything was.
    pub is_asked_for: bool,
}

/// Whether it is one damaged record that is missing, not a part of the store.
fn is_damaged(missing: &store::Error) -> bool {
    matches!(missing, store::Error::Garbled(_))
}

/// What is missing with it, to be followed by what cannot be done.
pub fn its_locks(missing: &store::Error) -> &'static str {
    if is_damaged(missing) { "its lock is" } else { "its locks are" }
}

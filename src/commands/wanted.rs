//! Which locks does a KEY mean? One, or, with `*` or `?` in it, every one whose key looks like that. For the commands that
//! look at locks and change nothing; who takes a lock names it.

use super::context::Context;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::law::{Patterns, Pause};
use crate::lock::{Key, Name, Pattern};
use crate::store::{self, Found, Store, View, Which};
use std::collections::BTreeSet;
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
        let named = named.map(|key| context.name(key)).collect::<Result<_, _>>()?;
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
        let named: BTreeSet<&Name> = self.named.iter().collect();
        let is_meant = |name: &Name| {
            let any = self.patterns.is_empty();
            (any || self.patterns.iter().any(|pattern| pattern.matches(name.key()))) && !named.contains(name)
        };
        let mut found = store.find(&self.prefix, which)?;
        found.names.retain(is_meant);
        Ok(found)
    }

    /// The patterns by which keys are paused, as far as they are meant, in the order in which they were said.
    pub fn paused(&self, store: &mut dyn Store) -> Result<Vec<View>, store::Error> {
        let Patterns { now, pauses, .. } =
            store.patterns(&self.prefix, None, Moment::now().after(self.within))?;
        let shown = |pause: &Pause| {
            let key = Key::new(pause.pattern.as_ref()?.as_str()).ok()?;
            let any = self.patterns.is_empty();
            let is_meant = any || self.patterns.iter().any(|pattern| pattern.matches(key.as_str()));
            let name = Name::new(&self.prefix, &key).ok().filter(|_| is_meant)?;
            Some(View::of_pattern(name, now, pause))
        };
        Ok(pauses.iter().filter_map(shown).collect())
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

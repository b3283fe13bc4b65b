//! Which locks does a KEY mean? One, or, with `*` or `?` in it, every one whose key looks like that. For the commands that
//! look at locks and change nothing; who takes a lock names it.

use super::context::Context;
use crate::error::Error;
use crate::lock::{Key, Name};
use crate::store::{self, Found, Store, Which};
use std::collections::BTreeSet;

/// The locks that a command was asked about.
#[derive(Debug, Clone)]
pub struct Wanted {
    named: Vec<Name>,
    /// Those whose keys look like one of these.
    patterns: Vec<Pattern>,
    prefix: String,
}

impl Wanted {
    /// What the KEYs of a command line mean. Without any, all locks under the prefix are meant.
    pub fn of(context: &Context, keys: &[Key]) -> Result<Self, Error> {
        let patterns = keys.iter().filter_map(Pattern::of).collect();
        let named = keys.iter().filter(|key| Pattern::of(key).is_none());
        let named = named.map(|key| context.name(key)).collect::<Result<_, _>>()?;
        Ok(Self { named, patterns, prefix: context.settings.prefix.clone() })
    }

    /// Those named, in the order given.
    pub fn named(&self) -> &[Name] {
        &self.named
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
        self.patterns.iter().map(|pattern| pattern.0.as_str()).collect()
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
}

/// Whether it is one damaged record that is missing, not a part of the store.
pub fn is_damaged(missing: &store::Error) -> bool {
    matches!(missing, store::Error::Garbled(_))
}

/// What is missing with it, to be followed by what cannot be done.
pub fn its_locks(missing: &store::Error) -> &'static str {
    if is_damaged(missing) { "its lock is" } else { "its locks are" }
}

/// A key in which `*` stands for any text and `?` for one character.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern(String);

impl Pattern {
    /// The pattern that a KEY is, if it is one.
    fn of(key: &Key) -> Option<Self> {
        key.as_str().contains(['*', '?']).then(|| Self(key.as_str().into()))
    }

    /// Whether a key looks like that.
    fn matches(&self, key: &str) -> bool {
        let (mut pattern, mut rest) = (self.0.chars(), key.chars());
        // Behind the last star, and what it has not swallowed yet.
        let mut star = None;
        loop {
            let (wanted, found) = (pattern.clone().next(), rest.clone().next());
            match (wanted, found) {
                (None, None) => return true,
                (Some('*'), _) => {
                    pattern.next();
                    star = Some((pattern.clone(), rest.clone()));
                }
                (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
                    pattern.next();
                    rest.next();
                }
                _ => {
                    let Some((behind, mut swallows)) = star.take() else { return false };
                    if swallows.next().is_none() {
                        return false;
                    }
                    (pattern, rest) = (behind.clone(), swallows.clone());
                    star = Some((behind, swallows));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_looks_like_it() -> Result<(), String> {
        for (pattern, key, expected) in [
            ("deploy-*", "deploy-web", true),
            ("deploy-*", "deploy-", true),
            ("deploy-*", "redeploy-web", false),
            ("*-web", "deploy-web-web", true),
            ("*-web", "deploy-webs", false),
            ("a?c", "abc", true),
            ("a?c", "aéc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*?", "x", true),
            ("a*", "a*", true),
        ] {
            let pattern = Pattern::of(&Key::new(pattern)?).ok_or("no pattern")?;
            assert_eq!(pattern.matches(key), expected, "{pattern:?} {key}");
        }
        assert_eq!(Pattern::of(&Key::new("a[1]")?), None);
        Ok(())
    }
}

//! DLOCK_HELD: the list of the locks that this process's parent jobs hold. Read here, and written
//! for the jobs that this process starts. The list is only a claim: it may be stale, forged or
//! garbage. So nothing may depend on it before the store has confirmed it
//! ([`Context::own_holds`](super::context::Context::own_holds)).

use crate::clock::Namespace;
use crate::config::Settings;
use crate::config::access::Access;
use crate::error::Error;
use crate::lock::{Fence, Key, Name, Names, Token, Ttl};
use crate::output::busy::listed;
use crate::rules::Proof;
use crate::supervise::Pin;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

pub use crate::lock::By;

pub const VARIABLE: &str = "DLOCK_HELD";

/// Longest variable for a command. It has all keys, so DLOCK_KEYS is shorter. Linux starts no command
/// with a variable of 128 KiB; the rest is for the name, and for what an acquired hold says of itself.
const LENGTH_MOST: usize = 120 * 1024;

/// A hold that DLOCK_HELD claims: an entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The store's normalized URL, without a secret.
    pub store: String,
    #[serde(flatten)]
    pub access: Access,
    /// The prefix of the locks' names.
    pub prefix: String,
    /// The keys in the order given, each once; at least one.
    pub keys: Vec<Key>,
    pub token: Token,
    pub fence: Fence,
    #[serde(default)]
    pub by: By,
    /// The lease that the script asked for, if a script must renew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The `dlock hold` process that renews it.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "keeper")]
    pub process: Option<HoldProcess>,
}

/// A process of this machine. Its number may be reused; number and start time together identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldProcess {
    pub pid: i32,
    /// In clock ticks since boot, the same in every time namespace.
    pub started: u64,
}

impl HoldProcess {
    /// This process.
    pub fn own() -> Option<Self> {
        let pid = rustix::process::getpid().as_raw_pid();
        Some(Self { pid, started: Self::started(&Pin::new(pid).ok()?)? })
    }

    fn started(pin: &Pin) -> Option<u64> {
        Some(Namespace::of_process().unwrap_or_default().machine_ticks(pin.started()?))
    }

    /// Finds the process, if it still exists and is a dlock of this user: it will be sent a signal,
    /// and the variable may be forged.
    pub fn find(self) -> Option<Pin> {
        let pin = Pin::new(self.pid).ok()?;
        let file = |path: String| fs::metadata(path).ok();
        let [theirs, own] = [self.pid.to_string(), "self".into()].map(|process| {
            let program = file(format!("/proc/{process}/exe"))?;
            Some((file(format!("/proc/{process}"))?.uid(), program.dev(), program.ino()))
        });
        // Checked last: until here the number was this process's.
        // An offset that is no whole number of ticks is rounded.
        let is_same = |started: u64| started.abs_diff(self.started) <= 1;
        (theirs.is_some() && theirs == own && Self::started(&pin).is_some_and(is_same)).then_some(pin)
    }
}

impl Held {
    /// A hold of these keys in the store and under the prefix of the settings.
    pub fn new(settings: &Settings, keys: Vec<Key>, token: Token, fence: Fence, by: By) -> Self {
        Self {
            store: settings.store.to_string(),
            access: settings.store.access.clone(),
            prefix: settings.prefix.clone(),
            keys,
            token,
            fence,
            by,
            ttl_ms: None,
            process: None,
        }
    }

    /// Whether the hold is in the store of the settings, by its URL.
    pub fn is_in(&self, settings: &Settings) -> bool {
        is_same_store(&self.store, &settings.store.to_string())
    }

    /// Whether the store of the settings may be the hold's under another URL. A quorum is another
    /// store than each of its members.
    pub fn may_be_in(&self, settings: &Settings) -> bool {
        let is_quorum = |url: &str| url.contains("+quorum:");
        is_quorum(&self.store) == is_quorum(&settings.store.to_string())
    }

    /// Whether the hold is in the store and under the prefix of the settings.
    pub fn is_here(&self, settings: &Settings) -> bool {
        self.prefix == settings.prefix && self.is_in(settings)
    }

    /// Whether a command with these settings may mean this hold: not if --store or --prefix names
    /// another place.
    fn may_be_meant(&self, settings: &Settings) -> bool {
        (!settings.is_store_given() || self.is_in(settings))
            && (!settings.is_prefix_given || self.prefix == settings.prefix)
    }

    /// The settings for its store.
    pub fn settings(&self, settings: &Settings) -> Result<Settings, Error> {
        settings.at(&self.store, &self.access, &self.prefix, VARIABLE)
    }

    /// The lease that the script asked for, if a valid one is known.
    pub fn ttl(&self) -> Option<Ttl> {
        Ttl::new(Duration::from_millis(self.ttl_ms?)).ok()
    }

    /// Its fence; None if only its token is known.
    pub fn known_fence(&self) -> Option<Fence> {
        Some(self.fence).filter(|fence| fence.0 > 0)
    }

    /// Whether the proof is of this hold, and not of one that a late request was granted with its
    /// token after it had ended.
    pub fn is_proved_by(&self, proof: &Proof) -> bool {
        self.known_fence().is_none_or(|fence| fence == proof.fence)
    }

    /// Whether it includes this key.
    pub fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether it includes the lock of this name.
    pub fn has_lock(&self, name: &Name) -> bool {
        let key = name.as_str().strip_prefix(&self.prefix);
        self.keys.iter().any(|held| Some(held.as_str()) == key)
    }

    /// The full names of its locks. The error names a key that is invalid.
    pub fn names(&self) -> Result<Names, String> {
        let names = self.keys.iter().map(|key| Name::new(&self.prefix, key));
        let mut names = names.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = names.next().ok_or("a hold has a key")?;
        Ok(Names::new(first, names))
    }
}

/// A hold of this process, confirmed by the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnHold {
    /// What DLOCK_HELD says of it.
    pub held: Held,
    /// What the store says of it.
    pub proof: Proof,
}

/// Every hold of this process tree, as DLOCK_HELD claims them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holds {
    /// Outermost first.
    holds: Vec<Held>,
}

impl Holds {
    /// The holds in this process's environment. None if the variable is unset or garbage.
    pub fn of_process() -> Self {
        std::env::var(VARIABLE).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Parses the variable. A text that is not a list gives no holds. An entry that is not a hold
    /// is left out, and does not hide the others.
    pub fn parse(text: &str) -> Self {
        let entries: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let read = |entry| serde_json::from_value(entry).ok().filter(|held: &Held| held.names().is_ok());
        Self { holds: entries.into_iter().filter_map(read).collect() }
    }

    /// All holds, innermost first.
    pub fn inside_out(&self) -> impl Iterator<Item = &Held> + Clone {
        self.holds.iter().rev()
    }

    /// The holds in the store and under the prefix of the settings, innermost first.
    pub fn here<'a>(&'a self, settings: &'a Settings) -> impl Iterator<Item = &'a Held> {
        self.inside_out().filter(|held| held.is_here(settings))
    }

    /// The holds that have this lock if their store is the one meant, innermost first. Only that
    /// store can tell ([`Context::own_holds`](super::context::Context::own_holds)): a store has more
    /// than one URL.
    pub fn of_lock<'a, 'n>(&'a self, name: &'n Name) -> impl Iterator<Item = &'a Held> + use<'a, 'n> {
        self.inside_out().filter(|held| held.has_lock(name))
    }

    /// The innermost hold of this key: in the store and under the prefix of the settings if there
    /// is one, else anywhere that the flags allow.
    pub fn meant<'a>(&'a self, settings: &'a Settings, key: &Key) -> Option<&'a Held> {
        let name = Name::new(&settings.prefix, key).ok();
        let is_lock = |held: &&Held| name.as_ref().is_some_and(|name| held.has_lock(name));
        let here = self.inside_out().filter(is_lock).find(|held| held.is_in(settings));
        here.or_else(|| self.inside_out().find(|held| held.may_be_meant(settings) && held.has(key)))
    }

    /// The hold under which this process runs: the one that DLOCK_TOKEN names (the other variables
    /// describe it), else the innermost.
    pub fn current<'a>(&'a self, settings: &'a Settings) -> Option<&'a Held> {
        let token = std::env::var("DLOCK_TOKEN").ok().and_then(|text| Token::parse(&text).ok());
        let mut all = self.inside_out().filter(|held| held.may_be_meant(settings));
        let named = token.and_then(|token| all.clone().find(|held| held.token == token));
        named.or_else(|| all.next())
    }

    /// The error of a command that finds no hold of this key; without `key`, no hold at all.
    pub fn lack(&self, settings: &Settings, key: Option<&Key>) -> Error {
        let is_anywhere = !settings.is_store_given() && !settings.is_prefix_given;
        let of = key.map(|key| format!(" of {key}")).unwrap_or_default();
        let others: Vec<String> =
            self.inside_out().map(|held| format!("{} in {}", listed(&held.keys), held.store)).collect();
        let next = if others.is_empty() {
            "'dlock run', 'dlock hold --export' and 'dlock acquire --export' set DLOCK_HELD".into()
        } else if is_anywhere || self.here(settings).next().is_some() {
            format!("it holds {}", others.join(", "))
        } else {
            format!("it holds {}; --store and --prefix have to name the same place", others.join(", "))
        };
        let place = if is_anywhere { String::new() } else { format!(" in {}", settings.store) };
        Error::NotHeld(format!("this process runs under no lock{of}{place}: {next}"))
    }

    /// The hold that the script acquired last.
    pub fn acquired<'a>(&'a self, settings: &'a Settings) -> Option<&'a Held> {
        self.inside_out().find(|held| held.may_be_meant(settings) && held.by == By::Acquire)
    }

    /// Refuses keys with which no command could be started, because the variable is too long. `unrun`
    /// is the end of the refusal's text.
    pub fn check_room(
        &self,
        settings: &Settings,
        keys: &[Key],
        token: &Token,
        unrun: &str,
    ) -> Result<(), Error> {
        let held = Held::new(settings, keys.to_vec(), token.clone(), Fence(u64::MAX), By::Run);
        let length = self.clone().with(held).to_string().len();
        if length <= LENGTH_MOST {
            return Ok(());
        }
        let (long, most) = (length.div_ceil(1024), LENGTH_MOST / 1024);
        Err(Error::Usage(format!(
            "the names of the locks make the variable {VARIABLE} {long} KiB long, and no command can be started with more than {most} KiB; take fewer keys or shorter ones; {unrun}"
        )))
    }

    /// Adds a hold as the innermost, and removes an older entry of the same hold.
    pub fn with(mut self, held: Held) -> Self {
        self.holds.retain(|other| other.token != held.token);
        self.holds.push(held);
        self
    }
}

/// The variable's text: JSON in one line.
impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.holds).map_err(|_| fmt::Error)?)
    }
}

/// Whether the URLs name one store: they are the same, or two paths to one directory.
fn is_same_store(one: &str, other: &str) -> bool {
    let directory = |url: &str| fs::canonicalize(url.strip_prefix("file:")?).ok();
    one == other || directory(one).is_some_and(|there| directory(other) == Some(there))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn entry(change: &str, to: &str) -> String {
        let entry = format!(
            r#"{{"store":"file:/d","prefix":"dlock:","keys":["a","b"],"token":"{TOKEN}","fence":7,"by":"run"}}"#
        );
        entry.replace(change, to)
    }

    fn parse(entries: &[String]) -> Holds {
        Holds::parse(&format!("[{}]", entries.join(",")))
    }

    #[test]
    fn written_list_is_read_back() -> Result<(), String> {
        let other = entry("0123", "ffff");
        let holds = parse(&[entry("", ""), other.clone()]);
        assert_eq!(Holds::parse(&holds.to_string()), holds);
        let innermost = holds.inside_out().next().ok_or("two holds")?;
        assert!(innermost.token.secret().starts_with("ffff") && innermost.has(&Key::new("b")?));
        assert_eq!(innermost.fence, Fence(7));
        assert_eq!(innermost.names()?.as_slice().len(), 2);
        assert_eq!(parse(&[entry(r#","by":"run""#, "")]), parse(&[entry("", "")]));
        Ok(())
    }

    #[test]
    fn garbage_holds_nothing() {
        for text in ["", "x", "{}", "null", "[", "[[]]", "[7]", "[{}]", &entry("", ""), "\u{0}", "[null]"] {
            assert_eq!(Holds::parse(text), Holds::default(), "{text}");
        }
    }

    #[test]
    fn one_bad_entry_does_not_hide_the_others() {
        for (change, to) in [
            (TOKEN, "0123"),
            (TOKEN, ""),
            ("0123", "ABCD"),
            (r#"["a","b"]"#, "[]"),
            (r#""a""#, r#""""#),
            (r#""a""#, r#""a\n""#),
            (r#""a""#, r#""}""#),
            (r#""a""#, "7"),
            (":7", ":-7"),
            (":7", ":\"x\""),
            (r#""by":"run""#, r#""by":"him""#),
            (r#""store":"file:/d","#, ""),
        ] {
            let bad = entry(change, to);
            assert_ne!(bad, entry("", ""), "{change}");
            assert_eq!(parse(&[bad.clone(), entry("", "")]), parse(&[entry("", "")]), "{bad}");
        }
    }

    #[test]
    fn adding_a_hold_again_moves_it_inside() -> Result<(), String> {
        let holds = parse(&[entry("", ""), entry("0123", "ffff")]);
        let outermost = holds.inside_out().last().cloned().ok_or("two holds")?;
        let again = holds.with(outermost.clone());
        assert_eq!(again.inside_out().next(), Some(&outermost));
        assert_eq!(again.inside_out().count(), 2);
        Ok(())
    }
}

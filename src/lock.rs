//! The basic types: key, name, mode, token, fence, ttl, owner. Values are checked here, at the
//! border, so that the code below may rely on them. Knows no store, no clock and no output.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

/// Longest [`Key`], in bytes.
pub const KEY_MAX: usize = 512;

/// A key as the user gave it, without the prefix: 1–512 bytes of UTF-8 without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Key(String);

impl TryFrom<String> for Key {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text)
    }
}

impl Key {
    /// Checks a key. The error says what is allowed.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > KEY_MAX {
            return Err(format!("a key is 1 to {KEY_MAX} bytes long, this one has {}", text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err("a key must not contain control characters".into());
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a lock in its store, the `L` of the protocol: prefix + key.
///
/// Keys derived from it are `dlock.<kind>:{tag}:L`, where the tag is L's own Redis Cluster hash
/// tag, else all of L, so that all keys of a lock share one slot. A name for which that cannot hold
/// is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    full: String,
    prefix: usize,
}

impl Name {
    /// Joins prefix and key. Refuses a name that contains `}` but no hash tag, and one that begins
    /// like a derived key. The error says what is allowed.
    pub fn new(prefix: &str, key: &Key) -> Result<Self, String> {
        let full = format!("{prefix}{key}");
        if hash_tag(&full).is_none() && full.contains('}') {
            return Err(format!(
                "the key {full:?} contains }} but no {{hash tag}}; allowed is a}} only after {{a"
            ));
        }
        if full.starts_with("dlock.") {
            return Err(format!(
                "the key {full:?} begins with \"dlock.\", which is kept for dlock's own records"
            ));
        }
        Ok(Self { full, prefix: prefix.len() })
    }

    /// The name of the separate record with the lock's refusals. No lock has such a name.
    pub fn of_refusals(&self) -> Self {
        const KIND: &str = "dlock.refused:";
        Self { full: format!("{KIND}{}", self.full), prefix: KIND.len() + self.prefix }
    }

    /// Prefix and key together.
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// The key without the prefix.
    pub fn key(&self) -> &str {
        &self.full[self.prefix..]
    }

    /// The prefix without the key.
    pub fn prefix(&self) -> &str {
        &self.full[..self.prefix]
    }

    /// The part in braces of the derived keys: L's own hash tag, else all of L.
    pub fn tag(&self) -> &str {
        hash_tag(&self.full).unwrap_or(&self.full)
    }
}

/// A KEY in which `*` matches any text and `?` one character. A backslash before `*`, `?` or a
/// backslash makes it literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    AnyText,
    AnyCharacter,
    Character(char),
}

/// Parses a text as a pattern.
fn parts(text: &str) -> Vec<Part> {
    let (mut parts, mut rest) = (Vec::new(), text.chars().peekable());
    while let Some(c) = rest.next() {
        parts.push(match c {
            '*' => Part::AnyText,
            '?' => Part::AnyCharacter,
            '\\' => Part::Character(rest.next_if(|next| matches!(next, '*' | '?' | '\\')).unwrap_or(c)),
            _ => Part::Character(c),
        });
    }
    parts
}

impl Key {
    /// The key meant by a KEY that is not a pattern: without the backslashes.
    pub fn unescaped(&self) -> Self {
        let character = |part| if let Part::Character(c) = part { Some(c) } else { None };
        Self(parts(&self.0).into_iter().filter_map(character).collect())
    }
}

impl Pattern {
    /// The pattern, if the KEY is one.
    pub fn of(key: &Key) -> Option<Self> {
        let parts = parts(key.as_str());
        let is_one = parts.iter().any(|part| !matches!(part, Part::Character(_)));
        is_one.then(|| Self { text: key.as_str().into(), parts })
    }

    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, key: &str) -> bool {
        let key: Vec<char> = key.chars().collect();
        // `matched[n]`: the parts so far match the first `n` characters of the key.
        let mut matched = vec![false; key.len() + 1];
        matched[0] = true;
        for wanted in &self.parts {
            if *wanted == Part::AnyText {
                let shortest = matched.iter().position(|is_match| *is_match).unwrap_or(matched.len());
                matched[shortest..].fill(true);
            } else {
                for (at, found) in key.iter().enumerate().rev() {
                    matched[at + 1] =
                        matched[at] && [Part::AnyCharacter, Part::Character(*found)].contains(wanted);
                }
                matched[0] = false;
            }
        }
        matched[key.len()]
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The locks that one hold takes together: at least one, each once, in order of name, so that the
/// order in which they were given does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names(Vec<Name>);

impl Names {
    pub fn new(first: Name, more: impl IntoIterator<Item = Name>) -> Self {
        let names: BTreeSet<Name> = std::iter::once(first).chain(more).collect();
        Self(names.into_iter().collect())
    }

    /// The first in order of name.
    pub fn first(&self) -> &Name {
        &self.0[0]
    }

    /// All of them, in order of name.
    pub fn as_slice(&self) -> &[Name] {
        &self.0
    }

    /// Iterates in order of name.
    pub fn iter(&self) -> std::slice::Iter<'_, Name> {
        self.0.iter()
    }
}

impl From<Name> for Names {
    fn from(name: Name) -> Self {
        Self(vec![name])
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a Name;
    type IntoIter = std::slice::Iter<'a, Name>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// How many may hold a lock at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Exclusive,
    /// Any number of holders that share it.
    Shared,
    /// This many, 1 to [`SLOTS_MAX`], each with its own slot number from 0 on.
    Slots(u32),
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    No,
    For(Duration),
    Forever,
}

impl Wait {
    /// The meaning of `-w [DUR]`: without DUR for ever; zero means not to wait.
    pub const fn given(bound: Option<Duration>) -> Self {
        match bound {
            None => Self::Forever,
            Some(Duration::ZERO) => Self::No,
            Some(bound) => Self::For(bound),
        }
    }
}

/// How many replicas of the store must acknowledge a grant, a renewal or a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replicas {
    #[default]
    None,
    AtLeast(NonZeroU32),
    /// All that the store knows of; there must be at least one.
    All,
}

impl Replicas {
    /// Parses `N` or `all`. The error says what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<u32>() {
            _ if text == "all" => Ok(Self::All),
            Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(NonZeroU32::new(number).map_or(Self::None, Self::AtLeast))
            }
            _ => Err("it is a number of replicas, or 'all'".into()),
        }
    }
}

/// Largest number of slots. It is bounded because a grant searches all taken slots for the lowest
/// free one.
pub const SLOTS_MAX: u32 = 1000;

/// Longest time for which one `dlock pause` blocks a lock.
pub const PAUSE_MOST: Duration = Duration::from_secs(40 * 24 * 60 * 60);

/// How long the store remembers a successful run, and so the longest `--once-per`.
pub const ONCE_PER_MOST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The longest `--expect`: a month.
pub const EXPECT_MOST: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// A PERIOD of the command line, as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Minute,
    Hour,
    Day,
    Week,
    /// A DUR.
    Span(Duration),
}

impl Period {
    /// The words.
    pub const WORDS: [(&'static str, Self); 4] =
        [("minute", Self::Minute), ("hour", Self::Hour), ("day", Self::Day), ("week", Self::Week)];

    pub const fn whole(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(60),
            Self::Hour => Duration::from_secs(60 * 60),
            Self::Day => Duration::from_secs(24 * 60 * 60),
            Self::Week => Duration::from_secs(7 * 24 * 60 * 60),
            Self::Span(span) => span,
        }
    }

    /// How long a success counts with `--once-per`. A word means half of its period: runs of one tick
    /// arrive less than this apart, runs of two ticks more, however late a machine or its clock is.
    pub fn counts(self) -> Duration {
        match self {
            Self::Span(span) => span,
            word => word.whole() / 2,
        }
    }

    /// The word, if it is one.
    pub fn word(self) -> Option<&'static str> {
        Self::WORDS.into_iter().find(|(_, period)| *period == self).map(|(word, _)| word)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Slots(1) => f.write_str("1 slot"),
            Self::Slots(slots) => write!(f, "{slots} slots"),
        }
    }
}

/// The hash tag by the rule of Redis Cluster: the text between the first `{` and the next `}`, if
/// not empty.
fn hash_tag(name: &str) -> Option<&str> {
    let after = &name[name.find('{')? + 1..];
    let tag = &after[..after.find('}')?];
    (!tag.is_empty()).then_some(tag)
}

/// The secret that proves a hold: 128 random bits from the operating system as 32 hex digits,
/// constant for the hold. `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Token(String);

impl TryFrom<String> for Token {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl Token {
    /// A new token. Fails only if the operating system provides no random bytes, and says so.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| io::Error::other(format!("the system gave no random bytes: {error}")))?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Parses a token from `acquire` or DLOCK_TOKEN. The error says what is allowed, and does not
    /// repeat the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if text.len() == 32 && digits {
            Ok(Self(text.into()))
        } else {
            Err("a token is 32 lower-case hex digits".into())
        }
    }

    /// A token that does not reveal this one: the first half of its SHA-256. For a store in which
    /// others can see the names of keys.
    #[cfg(feature = "etcd")]
    pub fn hashed(&self) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, self.0.as_bytes());
        Self(digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token itself. For the store and CMD's environment; never for a message.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The number of a grant, greater than that of every earlier grant of the same key (I5). Roughly
/// the store's clock in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fence(pub u64);

/// A number, or text: the scripts of Redis write long numbers as text, because their JSON library
/// cuts a number after 14 digits.
impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(source)?;
        let fence = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        fence.map(Self).ok_or_else(|| serde::de::Error::custom("a fence that is no number"))
    }
}

impl Fence {
    /// Writes a fence as text, for the scripts of Redis.
    pub fn as_text<S: Serializer>(
        fence: &(impl Into<Option<Self>> + Copy),
        to: S,
    ) -> Result<S::Ok, S::Error> {
        (*fence).into().map(|fence| fence.to_string()).serialize(to)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The length of a lease: 500 ms to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl(Duration);

impl Ttl {
    pub const MIN: Duration = Duration::from_millis(500);
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);

    /// Checks the length of a lease, and rounds it down to whole milliseconds. The error says what
    /// is allowed.
    pub fn new(span: Duration) -> Result<Self, String> {
        if !(Self::MIN..=Self::MAX).contains(&span) {
            return Err("a ttl is between 500ms and 24h".into());
        }
        Ok(Self(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))))
    }

    pub const fn get(self) -> Duration {
        self.0
    }
}

/// Which command took a hold. It decides what renews the hold and gives it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// `dlock run`: renews the hold, reacts to operators, and gives it back when its job ends.
    #[default]
    Run,
    /// `dlock acquire`: the script that called it renews the hold and gives it back.
    Acquire,
    /// `dlock hold`: as `run`, for a process that it did not start.
    Hold,
}

impl By {
    /// The default, which is not written to the store.
    fn is_usual(&self) -> bool {
        *self == Self::Run
    }
}

/// A holder or waiter as `status` shows it. The store does not interpret it. Deserializing refuses
/// a text longer than dlock writes, because a forged one could fill the screen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    #[serde(deserialize_with = "bounded::<NAME_MAX, _>")]
    pub host: String,
    /// Process id on that host: of dlock, or of the script that has the hold.
    pub pid: u32,
    /// Login name, else the numeric user id.
    #[serde(deserialize_with = "bounded::<NAME_MAX, _>")]
    pub user: String,
    /// `--label`, else the first 200 bytes of the command line.
    #[serde(deserialize_with = "bounded::<TEXT_MAX, _>")]
    pub command: String,
    #[serde(deserialize_with = "bounded_if_any::<TEXT_MAX, _>")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "By::is_usual")]
    pub by: By,
    /// The ttl of a hold that a dlock renews; `None` for a script's hold and for a process that
    /// holds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Duration>,
    /// How long a success of this run counts; `None` without `--once-per`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once_per: Option<Duration>,
    /// With `--tree`, the processes that kept the hold when the one it was for had ended; `None`
    /// before that.
    #[serde(deserialize_with = "bounded_if_any::<TEXT_MAX, _>", skip_serializing_if = "Option::is_none")]
    pub rest: Option<String>,
}

/// Deserializes an owner on which no decision depends. An owner that cannot be read becomes `?`.
pub fn owner_or_unknown<'de, D: Deserializer<'de>>(source: D) -> Result<Owner, D::Error> {
    let unknown = |_| Owner { host: "?".into(), user: "?".into(), ..Owner::default() };
    let value = serde_json::Value::deserialize(source)?;
    Ok(serde_json::from_value(value).unwrap_or_else(unknown))
}

/// Longest name of a host or a user, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest command line, label or reason, in bytes.
pub const TEXT_MAX: usize = 4096;

impl Owner {
    /// The same, with every text cut to the length that a store accepts.
    pub fn shortened(mut self) -> Self {
        shorten(&mut self.host, NAME_MAX);
        shorten(&mut self.user, NAME_MAX);
        shorten(&mut self.command, TEXT_MAX);
        self.reason.iter_mut().for_each(|reason| shorten(reason, TEXT_MAX));
        self
    }
}

/// Cuts a text to at most `most` bytes, between characters.
pub fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
}

/// Deserializes a text of at most `MOST` bytes.
fn bounded<'de, const MOST: usize, D: Deserializer<'de>>(source: D) -> Result<String, D::Error> {
    let text = String::deserialize(source)?;
    if text.len() > MOST {
        let why = format!("a text of {} bytes where dlock writes {MOST} at most", text.len());
        return Err(serde::de::Error::custom(why));
    }
    Ok(text)
}

fn bounded_if_any<'de, const MOST: usize, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Text<const MOST: usize>(#[serde(deserialize_with = "bounded::<MOST, _>")] String);
    Ok(Option::<Text<MOST>>::deserialize(source)?.map(|text| text.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlong_owner_is_refused() -> Result<(), serde_json::Error> {
        let long = |length| Owner { command: "x".repeat(length), ..Owner::default() };
        let most = serde_json::to_string(&long(TEXT_MAX))?;
        assert_eq!(serde_json::from_str::<Owner>(&most)?, long(TEXT_MAX));
        for owner in [
            long(TEXT_MAX + 1),
            Owner { host: "h".repeat(65_536), ..Owner::default() },
            Owner { user: "u".repeat(NAME_MAX + 1), ..Owner::default() },
            Owner { reason: Some("r".repeat(70_000)), ..Owner::default() },
        ] {
            let json = serde_json::to_string(&owner)?;
            assert!(serde_json::from_str::<Owner>(&json).is_err());
            let json = serde_json::to_string(&owner.shortened())?;
            assert!(serde_json::from_str::<Owner>(&json).is_ok());
        }
        assert_eq!(serde_json::from_str::<Owner>("{}")?, Owner::default());
        Ok(())
    }

    #[test]
    fn shorten_cuts_between_characters() {
        let mut text = "é".repeat(3);
        shorten(&mut text, 5);
        assert_eq!(text, "éé");
    }

    #[test]
    fn pattern_matches_whole_keys() -> Result<(), String> {
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
            (r"a\*b*", "a*bc", true),
            (r"a\*b*", "axbc", false),
            (r"a\?*", "ab", false),
            (r"a\\*", r"a\b", true),
            (r"a\\*", "a*", false),
            (r"a\b?", r"a\bc", true),
        ] {
            let pattern = Pattern::of(&Key::new(pattern)?).ok_or("no pattern")?;
            assert_eq!(pattern.matches(key), expected, "{pattern:?} {key}");
        }
        for (operand, key) in
            [("a[1]", "a[1]"), (r"a\*", "a*"), (r"\?", "?"), (r"a\\b", r"a\b"), (r"a\b\", r"a\b\")]
        {
            assert_eq!(Pattern::of(&Key::new(operand)?), None, "{operand}");
            assert_eq!(Key::new(operand)?.unescaped().as_str(), key);
        }
        Ok(())
    }
}

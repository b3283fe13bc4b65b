//! Reads a configuration file: TOML, one flat table, keys named as the long flags. An unknown key
//! or a value of the wrong type is an error with file, line and what is allowed: a misspelt setting
//! must not be ignored. `config` decides which file wins.

use super::{Set, Source, choice, invalid};
use crate::cli::duration;
use crate::cli::options::{Color, LogFormat};
use crate::cli::usage::{is_option, nearest};
use crate::error::Error;
use crate::exit::OnLost;
use crate::lock::{Replicas, Ttl};
use crate::sys::named_file::{Fault, Owner, read_settings};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// Checks that a value is what its key requires, and returns its text. The error reads after the
/// key's name.
type Read = fn(&DeValue<'_>) -> Result<String, String>;

/// Every key, and how its value is read.
const KEYS: [(&str, Read); 20] = [
    ("store", text),
    // It may be empty.
    ("prefix", |value| word(value, |_| Ok(()))),
    ("username", text),
    ("password", text),
    ("password-file", text),
    ("password-command", text),
    ("connect-timeout", timeout),
    ("op-timeout", timeout),
    ("quiet", flag),
    ("verbose", flag),
    ("log-format", |value| word(value, |text| choice::<LogFormat>(text).map(drop))),
    ("color", |value| word(value, |text| choice::<Color>(text).map(drop))),
    ("ttl", |value| span(value, |text| Ttl::new(duration::parse(text)?).map(Ttl::get))),
    // true is for ever.
    ("wait", |value| flag(value).or_else(|_| span(value, duration::parse))),
    ("max-lease", timeout),
    ("max-run", |value| span(value, duration::parse)),
    ("grace", |value| span(value, duration::parse)),
    ("on-lost", |value| word(value, |text| choice::<OnLost>(text).map(drop))),
    ("busy-exit-code", status),
    ("replicas", replicas),
];

/// What describes one job. In a file it would change jobs that somebody else wrote: a shared lock
/// excludes no other run.
const OF_ONE_JOB: &str = "shared exclusive slots tree label reason min-hold once-per expect pause-on-failure \
     during-pause replace no-replace report";

/// One configuration file, or several merged. `Debug` shows no values: one may be a password.
#[derive(Clone, Default)]
pub struct File {
    /// Its path; empty for a merged one.
    pub path: PathBuf,
    entries: BTreeMap<&'static str, Set<String>>,
    /// The settings of one job that are in it.
    misplaced: BTreeMap<&'static str, Source>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

impl File {
    /// Reads a file. The inner error is of the file, the outer one of a setting in it.
    pub fn read(path: &Path, owner: Owner) -> Result<Result<Self, Fault>, Error> {
        let bytes = match read_settings(path, owner) {
            Ok(bytes) => bytes,
            Err(fault) => return Ok(Err(fault)),
        };
        Self::parse(path, &bytes).map(Ok)
    }

    /// Parses the content of a file.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let not_text = |_| Error::Config(format!("{} is not valid UTF-8", path.display()));
        let text = std::str::from_utf8(bytes).map_err(not_text)?;
        let source = |at: usize| {
            let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
            Source::File { path: path.into(), line }
        };
        let table = DeTable::parse(text).map_err(|error| {
            // Only the parser's message, not its excerpt of the line: that may contain a password.
            let why = error.message().replace('\n', "; ");
            let span = error.span().unwrap_or_default();
            let key = text.get(span.clone()).filter(|word| KEYS.iter().any(|(name, _)| name == word));
            let key = key.map(|key| format!(" '{key}'")).unwrap_or_default();
            invalid(&source(span.start), &format!("this is not TOML: {why}{key}"))
        })?;
        let (mut entries, mut misplaced) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in table.get_ref() {
            let source = source(key.span().start);
            if let Some(name) = OF_ONE_JOB.split(' ').find(|name| *name == key.get_ref().as_ref()) {
                misplaced.insert(name, source);
                continue;
            }
            let Some((name, read)) = KEYS.iter().find(|(name, _)| *name == key.get_ref().as_ref()) else {
                return Err(invalid(&source, &unknown(key.get_ref(), value.get_ref())));
            };
            let value = read(value.get_ref()).map_err(|why| invalid(&source, &format!("{name} {why}")))?;
            entries.insert(*name, Set { value, source });
        }
        Ok(Self { path: path.into(), entries, misplaced })
    }

    /// Merges files; for each key the later file wins.
    pub fn merged(files: &[Self]) -> Self {
        let entries = files.iter().flat_map(|file| file.entries.clone()).collect();
        let misplaced = files.iter().flat_map(|file| file.misplaced.clone()).collect();
        Self { path: PathBuf::new(), entries, misplaced }
    }

    /// A message about the settings of one job, if there are any.
    pub fn misplaced(&self) -> Option<String> {
        let named = self.misplaced.iter().map(|(name, source)| format!("{name} ({source})"));
        let named = named.collect::<Vec<_>>().join(", ");
        (!named.is_empty()).then(|| {
            format!("settings of one job are not read from a file, they belong on the command line: {named}")
        })
    }

    pub fn get(&self, key: &str) -> Option<&Set<String>> {
        self.entries.get(key)
    }

    /// A value of another type. Its text was checked when the file was read.
    pub fn parsed<T>(&self, key: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        parse(&self.get(key)?.value).ok()
    }

    pub fn span(&self, key: &str) -> Option<Duration> {
        self.parsed(key, duration::parse)
    }

    /// A boolean; false if it is not set.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|set| set.value == "true")
    }

    /// One of a closed set of words.
    pub fn choice<T: ValueEnum>(&self, key: &str) -> Option<T> {
        self.parsed(key, choice)
    }
}

fn word(value: &DeValue<'_>, check: impl Fn(&str) -> Result<(), String>) -> Result<String, String> {
    match value {
        DeValue::String(text) => check(text).map(|()| text.to_string()),
        _ => Err("must be a string".into()),
    }
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    word(value, |text| if text.is_empty() { Err("must not be empty".into()) } else { Ok(()) })
}

fn flag(value: &DeValue<'_>) -> Result<String, String> {
    value.as_bool().map(|flag| flag.to_string()).ok_or_else(|| "must be true or false".into())
}

/// The digits of a whole number.
fn number<'a>(value: &'a DeValue<'_>) -> Option<&'a str> {
    value.as_integer().filter(|number| number.radix() == 10).map(|number| number.as_str())
}

fn span(value: &DeValue<'_>, read: fn(&str) -> Result<Duration, String>) -> Result<String, String> {
    let float = || value.as_float().map(|number| number.as_str());
    let text = value.as_str().or_else(|| number(value)).or_else(float);
    let text = text.ok_or("must be a duration like \"90s\", or seconds")?;
    read(text).map(|_| text.into()).map_err(|why| format!("'{text}': {why}"))
}

fn timeout(value: &DeValue<'_>) -> Result<String, String> {
    span(value, duration::parse_positive)
}

fn status(value: &DeValue<'_>) -> Result<String, String> {
    let digits = number(value).ok_or("must be a number from 0 to 255")?;
    digits.parse::<u8>().map(|_| digits.into()).map_err(|_| "must be from 0 to 255".into())
}

fn replicas(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().or_else(|| number(value)).ok_or("must be a number, or \"all\"")?;
    Replicas::parse(text).map(|_| text.into()).map_err(|why| format!("'{text}': {why}"))
}

/// The message for an unknown key.
fn unknown(key: &str, value: &DeValue<'_>) -> String {
    if matches!(value, DeValue::Table(_)) {
        return format!("there are no sections such as '{key}': write each setting on a line of its own");
    }
    if matches!(key, "key" | "keys") {
        return "a lock's key can only be given on the command line: -k KEY".into();
    }
    if is_option(key) {
        return format!("'{key}' can only be given on the command line: --{key}");
    }
    let near =
        nearest(key, KEYS.iter().map(|(name, _)| *name)).map(|name| format!("; did you mean '{name}'?"));
    format!("unknown setting '{key}'{}", near.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{File, KEYS};
    use std::path::Path;

    #[test]
    fn unknown_key_gets_only_a_close_suggestion() {
        let refused = |text: &str| match File::parse(Path::new("c.toml"), text.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(file) => unreachable!("{text} gave {file:?}"),
        };
        for (text, meant) in [
            ("stroe = 'x'", "did you mean 'store'?"),
            ("conect-timeout = 1", "did you mean 'connect-timeout'?"),
            ("busy = 1", "did you mean 'busy-exit-code'?"),
            ("pid = 3", "only be given on the command line: --pid"),
        ] {
            let said = refused(text);
            assert!(said.contains(meant), "{said}");
        }
        for text in ["min-run = 1", "frobnicate = 1", "host = 'x'"] {
            let said = refused(text);
            assert!(said.contains("unknown setting") && !said.contains("did you mean"), "{said}");
        }
    }

    /// The file that packages install sets nothing, and has for every key a line that is valid when
    /// its # is removed.
    #[test]
    fn packaged_file_has_every_setting_as_a_comment() -> Result<(), Box<dyn std::error::Error>> {
        let text = include_str!("../../packaging/dlock.toml");
        assert!(File::parse(Path::new("dlock.toml"), text.as_bytes())?.entries.is_empty());
        let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
        let settings = lines.filter(|line| !line.is_empty() && !line.starts_with(' ')).collect::<Vec<_>>();
        let set = File::parse(Path::new("dlock.toml"), settings.join("\n").as_bytes())?;
        let missing = KEYS.iter().filter(|(name, _)| set.get(name).is_none()).collect::<Vec<_>>();
        assert!(missing.is_empty(), "{missing:?}");
        Ok(())
    }
}

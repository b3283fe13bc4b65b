//! Parses an unfinished command line for shell completion: whether a key goes where the cursor is,
//! and which store the line names. Does not expand words as a shell would: a word that needs
//! expansion counts as unknown. No line is an error.

use super::{Cli, Common, leading};
use clap::FromArgMatches as _;
use std::ffi::OsString;
use std::path::Path;

/// Put at the end of the word at the cursor, to find the argument that the parser gives it to.
const CURSOR: char = '\u{e000}';

/// Put in place of what a shell would expand.
const EXPANDED: char = '\u{e001}';

/// A question from a completion script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The shell that asks.
    pub shell: Shell,
    /// The line, up to the cursor.
    pub line: String,
    /// The text that the shell will replace by the answer; less than a word if it breaks words at a
    /// `:`.
    pub word: String,
}

/// The kind of a shell, by what it leaves to dlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    /// Needs to know whether a key goes here, and inserts the answer unchanged.
    Bash,
    /// Knows where keys go, selects the matching ones, and escapes them itself.
    Other,
}

impl Question {
    /// The hidden subcommand that asks the question. The parser does not know it, or it would be
    /// completed, too.
    pub const WORD: &'static str = "complete-keys";

    /// Parses what follows [`Question::WORD`]: the shell, the line, and the word if the shell gives
    /// it.
    pub fn read(arguments: &[OsString]) -> Option<Self> {
        let text = |at: usize| arguments.get(at).and_then(|text| text.to_str());
        let shell = if text(0)? == "bash" { Shell::Bash } else { Shell::Other };
        Some(Self { shell, line: text(1)?.into(), word: text(2).unwrap_or_default().into() })
    }
}

/// An unfinished line, up to the cursor.
#[derive(Debug, Default)]
pub struct CommandLine {
    /// The options on it that select the store and the prefix.
    pub common: Common,
    /// The assignments before the command, by name.
    pub variables: Vec<(String, OsString)>,
    /// Whether one of these is unknown until the shell expands it.
    pub expands: bool,
    /// The start of a key at the cursor, if a key goes there.
    pub key: Option<Partial>,
}

/// The start of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// The text before it in the same word: nothing, `-k` or `--key=`.
    pub lead: String,
    /// The typed part of the key.
    pub text: String,
    /// Whether a quote is open, so that the rest needs no escapes.
    pub quote_is_open: bool,
}

impl CommandLine {
    /// Parses a line.
    pub fn read(line: &str) -> Self {
        let Words { mut before, last, quote_is_open } = split(line);
        let mut this = Self::default();
        let is_dlock = |word: &String| Path::new(word).file_name().is_some_and(|name| name == "dlock");
        let Some(at) = before.iter().position(is_dlock) else { return this };
        let mut arguments: Vec<OsString> = before.split_off(at).into_iter().map(Into::into).collect();
        let assigned = before.iter().filter_map(|word| word.split_once('='));
        let assigned = assigned.filter(|(name, _)| name.starts_with("DLOCK_"));
        this.variables = assigned.map(|(name, value)| (name.into(), value.into())).collect();
        arguments.push(format!("{last}{CURSOR}").into());
        let parser = Cli::command().ignore_errors(true);
        let matches = parser.clone().try_get_matches_from(leading::moved(arguments));
        if let Some((name, given)) = matches.as_ref().ok().and_then(|matches| matches.subcommand()) {
            this.common = Common::from_arg_matches(given).unwrap_or_default();
            let mut arguments = parser.find_subcommand(name).into_iter().flat_map(|of| of.get_arguments());
            this.key = arguments.find_map(|argument| {
                let value = given.get_raw(argument.get_id().as_str())?.next_back()?.to_str()?;
                let text = value.strip_suffix(CURSOR).filter(|_| is_key(argument))?;
                let lead = last.strip_suffix(text)?.to_owned();
                Some(Partial { lead, text: text.to_owned(), quote_is_open })
            });
        }
        let Common { store, prefix, config, username, password_file, password_command, .. } = &this.common;
        let options = [prefix, config, username, password_file, password_command].into_iter().flatten();
        let assigned = this.variables.iter().map(|(_, value)| value);
        this.expands =
            store.iter().chain(options).chain(assigned).any(|text| text.to_string_lossy().contains(EXPANDED));
        this
    }
}

/// Whether the argument takes a key.
pub fn is_key(argument: &clap::Arg) -> bool {
    argument.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "KEY"))
}

/// The words of a command, without their quotes.
#[derive(Default)]
struct Words {
    /// Those before the one at the cursor.
    before: Vec<String>,
    last: String,
    quote_is_open: bool,
}

/// The words of the last command on the line.
fn split(line: &str) -> Words {
    let mut words = Words::default();
    let mut begun = false;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => words.last.push(c),
            (_, '\\') => {
                words.last.extend(chars.next());
                begun = true;
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                begun = true;
            }
            (None, ' ' | '\t') => {
                if begun {
                    words.before.push(std::mem::take(&mut words.last));
                }
                begun = false;
            }
            (None, ';' | '|' | '&' | '\n' | '(' | ')') => {
                words = Words::default();
                begun = false;
            }
            (_, c) => {
                let is_expanded =
                    matches!(c, '$' | '`') || quote.is_none() && c == '~' && words.last.is_empty();
                words.last.push(if is_expanded { EXPANDED } else { c });
                begun = true;
            }
        }
    }
    words.quote_is_open = quote.is_some();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(line: &str) -> Option<(String, String)> {
        CommandLine::read(line).key.map(|key| (key.lead, key.text))
    }

    #[test]
    fn keys_are_completed_where_they_go() {
        let at = |lead: &str, text: &str| Some((lead.to_owned(), text.to_owned()));
        for (line, expected) in [
            ("dlock status ", at("", "")),
            ("dlock status a b:c", at("", "b:c")),
            ("dlock status --json -v a", at("", "a")),
            ("dlock status --store file:/x a", at("", "a")),
            ("dlock status --store fil", None),
            ("dlock status --color ", None),
            ("dlock status --js", None),
            ("dlock status -- -a", at("", "-a")),
            ("dlock release ", at("", "")),
            ("dlock release a ", None),
            ("dlock release --force a", at("", "a")),
            ("dlock history 'a b", at("", "a b")),
            ("dlock history a\\ b", at("", "a b")),
            ("dlock run -k ", at("", "")),
            ("dlock run -k a", at("", "a")),
            ("dlock run -ka", at("-k", "a")),
            ("dlock run -qk a", at("", "a")),
            ("dlock run --key a", at("", "a")),
            ("dlock run --key=a", at("--key=", "a")),
            ("dlock run --key=", at("--key=", "")),
            ("dlock run a", None),
            ("dlock run -k a rsync -k ", None),
            ("dlock --store file:/x -q status a", at("", "a")),
            ("dlock --store file:/x run -k a", at("", "a")),
            ("dlock release -k a", at("", "a")),
            ("dlock run -k a -- rsync -k ", None),
            ("dlock run -w -k ", at("", "")),
            ("dlock completions ", None),
            ("dlock st", None),
            ("dlock", None),
            ("", None),
            ("ls | sudo dlock status a", at("", "a")),
            ("dlock status a; ls ", None),
            ("/usr/bin/dlock status a", at("", "a")),
            ("nodlock status a", None),
        ] {
            // To the parser, a word after -w is its value, too.
            assert_eq!(key(line), expected, "{line}");
        }
    }

    #[test]
    fn store_on_the_line_is_found() {
        let line = CommandLine::read(
            "DLOCK_STORE=file:/a env DLOCK_PREFIX= X=1 dlock status --prefix=p --config 'a b' k",
        );
        assert_eq!(line.variables.len(), 2);
        assert_eq!(line.variables[0], ("DLOCK_STORE".into(), "file:/a".into()));
        assert_eq!(line.common.prefix, Some("p".into()));
        assert_eq!(line.common.config, Some("a b".into()));
        assert!(!line.expands);
        assert_eq!(CommandLine::read("dlock status --store file:/a k").common.store, ["file:/a"]);
        for line in
            ["dlock status --store $S ", "dlock status --config ~/x ", "DLOCK_STORE=\"$S\" dlock status "]
        {
            assert!(CommandLine::read(line).expands, "{line}");
        }
        for line in ["dlock status --store '$S' ", "dlock status '$S' ", "dlock status --store \\$S "] {
            assert!(!CommandLine::read(line).expands, "{line}");
        }
    }
}

//! Parses an unfinished command line for shell completion: whether a key goes where the cursor is,
//! and which store the line names. Does not expand words as a shell would: a word that needs
//! expansion counts as unknown. No line is an error.

use super::leading::option;
use super::{Cli, Common, leading};
use clap::ArgAction;
use std::ffi::OsString;
use std::path::Path;

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
        let (words, last) = split(line);
        let mut this = Self::default();
        let is_dlock = |word: &Word| Path::new(&word.text).file_name().is_some_and(|name| name == "dlock");
        let Some(at) = words.iter().position(is_dlock) else { return this };
        for word in &words[..at] {
            if let Some((name, value)) =
                word.text.split_once('=').filter(|(name, _)| name.starts_with("DLOCK_"))
            {
                this.note(word);
                this.variables.push((name.into(), value.into()));
            }
        }
        let texts = words[at + 1..].iter().map(|word| word.text.as_str());
        let Some(leading) = leading::count(texts) else { return this };
        let (options, rest) = words[at + 1..].split_at(leading);
        let Some((command, arguments)) = rest.split_first() else { return this };
        let cli = Cli::command();
        let Some(command) = cli.find_subcommand(&command.text) else { return this };
        this.walk(command, &[options, arguments].concat(), &last);
        this
    }

    /// Walks the arguments as the parser would.
    fn walk(&mut self, command: &clap::Command, arguments: &[Word], last: &Word) {
        let mut operands = 0;
        let mut options = true;
        let mut wants: Option<&clap::Arg> = None;
        for word in arguments {
            if let Some(option) = wants.take().filter(|option| takes(option, &word.text)) {
                self.set(option, word, &word.text);
            } else if options && word.text == "--" {
                options = false;
            } else if options && word.text.len() > 1 && word.text.starts_with('-') {
                match option(command, &word.text) {
                    Some((option, _, Some(value))) => self.set(option, word, value),
                    Some((option, _, None)) => wants = Some(option),
                    None => {}
                }
            } else {
                operands += 1;
                // From the first word of CMD on, every word belongs to CMD.
                options &= !command.get_positionals().any(clap::Arg::is_trailing_var_arg_set);
            }
        }
        let partial = |lead: &str, text: &str| {
            Some(Partial { lead: lead.into(), text: text.into(), quote_is_open: last.quote_is_open })
        };
        self.key = match wants.filter(|option| takes(option, &last.text)) {
            Some(option) if is_key(option) => partial("", &last.text),
            Some(_) => None,
            None if options && last.text.starts_with('-') => match option(command, &last.text) {
                Some((option, lead, Some(value))) if is_key(option) => partial(lead, value),
                _ => None,
            },
            None => {
                let operand = command.get_positionals().find(|operand| is_key(operand));
                let more =
                    |operand: &clap::Arg| operands == 0 || matches!(operand.get_action(), ArgAction::Append);
                operand.filter(|operand| more(operand)).and_then(|_| partial("", &last.text))
            }
        };
    }

    fn set(&mut self, option: &clap::Arg, word: &Word, value: &str) {
        let place = match option.get_long() {
            Some("store") => {
                self.common.store = vec![value.into()];
                return self.note(word);
            }
            Some("prefix") => &mut self.common.prefix,
            Some("config") => &mut self.common.config,
            Some("username") => &mut self.common.username,
            Some("password-file") => &mut self.common.password_file,
            Some("password-command") => &mut self.common.password_command,
            _ => return,
        };
        *place = Some(value.into());
        self.note(word);
    }

    fn note(&mut self, word: &Word) {
        self.expands |= word.expands;
    }
}

/// Whether the argument takes a key.
pub fn is_key(argument: &clap::Arg) -> bool {
    argument.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "KEY"))
}

/// Whether the next word is the option's value.
fn takes(option: &clap::Arg, word: &str) -> bool {
    let may_be_left_out = option.get_num_args().is_some_and(|number| number.min_values() == 0);
    !(may_be_left_out && word.starts_with('-'))
}

/// A word without its quotes.
#[derive(Debug, Default, Clone)]
struct Word {
    text: String,
    expands: bool,
    quote_is_open: bool,
}

/// The words of the last command on the line, and separately the one at the cursor.
fn split(line: &str) -> (Vec<Word>, Word) {
    let mut words = Vec::new();
    let mut word = Word::default();
    let mut begun = false;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => word.text.push(c),
            (_, '\\') => {
                word.text.extend(chars.next());
                begun = true;
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                begun = true;
            }
            (None, ' ' | '\t') => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (None, ';' | '|' | '&' | '\n' | '(' | ')') => {
                words.clear();
                word = Word::default();
                begun = false;
            }
            (_, c) => {
                if matches!(c, '$' | '`') || quote.is_none() && c == '~' && word.text.is_empty() {
                    word.expands = true;
                }
                word.text.push(c);
                begun = true;
            }
        }
    }
    word.quote_is_open = quote.is_some();
    (words, word)
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

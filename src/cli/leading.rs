//! Moves the options that every command takes behind the command, where the parser needs them;
//! users may write them before it. Other words stay in place, so that the parser reports them.

use super::options::Common;
use clap::{Arg, ArgAction, Args as _, Command};
use std::ffi::OsString;

/// The arguments (the first is the program's name) with the leading options moved behind the
/// command.
pub fn moved(arguments: Vec<OsString>) -> Vec<OsString> {
    let is_option = arguments.get(1).is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
    let words = || arguments[1..].iter().map(|word| word.to_str().unwrap_or_default());
    match is_option.then(|| count(words())).flatten() {
        Some(leading) if arguments.len() > 1 + leading => {
            let (program, rest) = arguments.split_at(1);
            let (options, rest) = rest.split_at(leading);
            let (command, rest) = rest.split_at(1);
            [program, command, options, rest].concat()
        }
        _ => arguments,
    }
}

/// The number of words that belong to options before the command; `None` if there is another option
/// among them.
pub fn count<'a>(words: impl Iterator<Item = &'a str>) -> Option<usize> {
    let options = Common::augment_args(Command::new(""));
    let mut words = words.enumerate();
    while let Some((at, word)) = words.next() {
        if word.len() < 2 || !word.starts_with('-') || word == "--" {
            return Some(at);
        }
        match option(&options, word) {
            Some((_, _, Some(_))) => {}
            Some((_, _, None)) => drop(words.next()),
            None if is_flag(&options, word) => {}
            None => return None,
        }
    }
    None
}

/// The first option that no command would take there, on a line without a command.
pub fn stranger(arguments: &[OsString]) -> Option<String> {
    let options = Common::augment_args(Command::new(""));
    let words = arguments.iter().skip(1).map(|word| word.to_string_lossy());
    let is_known = |word: &str| option(&options, word).is_some() || is_flag(&options, word);
    words.filter(|word| word.starts_with('-')).find(|word| !is_known(word)).map(|word| word.into_owned())
}

/// The option that a word names, if it takes a value: with the part of the word that names it, and
/// the value in the same word.
pub(super) fn option<'c, 'w>(
    command: &'c Command,
    word: &'w str,
) -> Option<(&'c Arg, &'w str, Option<&'w str>)> {
    let takes = |argument: &&Arg| matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let option = command.get_arguments().filter(takes).find(|option| option.get_long() == Some(name))?;
        let lead = &word[..word.len() - value.map_or(0, str::len)];
        return Some((option, lead, value));
    }
    // Of several letters in one word, the first that takes a value takes the rest of the word.
    let letters = word.strip_prefix('-')?;
    letters.char_indices().find_map(|(at, letter)| {
        let option =
            command.get_arguments().filter(takes).find(|option| option.get_short() == Some(letter))?;
        let (lead, value) = word.split_at(1 + at + letter.len_utf8());
        Some((option, lead, Some(value).filter(|value| !value.is_empty())))
    })
}

/// Whether a word is one or several options without a value.
fn is_flag(options: &Command, word: &str) -> bool {
    let mut flags =
        options.get_arguments().filter(|option| matches!(option.get_action(), ArgAction::SetTrue));
    match word.strip_prefix("--") {
        Some(name) => flags.any(|flag| flag.get_long() == Some(name)),
        None => {
            let known: Vec<_> = flags.filter_map(Arg::get_short).collect();
            word.chars().skip(1).all(|letter| known.contains(&letter))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_options_are_moved() {
        for (line, expected) in [
            ("status", "status"),
            ("--store U status k", "status --store U k"),
            ("--store=U -qv --log-format json run -k k", "run --store=U -qv --log-format json -k k"),
            ("-q --prefix -- status", "status -q --prefix --"),
            ("--help status", "--help status"),
            ("-k k run", "-k k run"),
            ("--store", "--store"),
            ("-q", "-q"),
            ("run --store U", "run --store U"),
        ] {
            let words = ["dlock"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let moved = moved(words);
            let shown: Vec<_> = moved[1..].iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(shown.join(" "), expected, "{line}");
        }
    }
}

//! Moves the options that every command takes behind the command, where the parser needs them;
//! users may write them before it. Other words stay in place, so that the parser reports them.

use super::options::Common;
use clap::{Arg, ArgAction, Args as _, Command, value_parser};
use std::ffi::OsString;

/// The arguments (the first is the program's name) with the leading options moved behind the
/// command.
pub fn moved(arguments: Vec<OsString>) -> Vec<OsString> {
    if !arguments.get(1).is_some_and(is_option) {
        return arguments;
    }
    let (program, rest) = arguments.split_at(1);
    match rest.split_at(count(&arguments)) {
        (options, [command, rest @ ..]) if !is_option(command) => {
            [program, std::slice::from_ref(command), options, rest].concat()
        }
        _ => arguments,
    }
}

/// The first option that not every command takes, on a line without a command.
pub fn stranger(arguments: &[OsString]) -> Option<&OsString> {
    arguments.get(1 + count(arguments)).filter(|word| word.as_encoded_bytes().starts_with(b"-"))
}

fn is_option(word: &OsString) -> bool {
    word.as_encoded_bytes().starts_with(b"-") && word != "-" && word != "--"
}

/// The number of words that belong to leading options.
fn count(arguments: &[OsString]) -> usize {
    let unchecked = |option: Arg| match option.get_action() {
        ArgAction::SetTrue => option,
        _ => option.value_parser(value_parser!(OsString)).allow_hyphen_values(true),
    };
    let rest = Arg::new("rest").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    let parser = Common::augment_args(Command::new("")).mut_args(unchecked);
    let parser = parser.arg(rest.value_parser(value_parser!(OsString)));
    let parser = parser.disable_help_flag(true).args_override_self(true).ignore_errors(true);
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let matches = parser.try_get_matches_from(&arguments[..end]).ok();
    let rest = matches.as_ref().and_then(|matches| matches.get_raw("rest")).map_or(0, Iterator::count);
    end - 1 - rest
}

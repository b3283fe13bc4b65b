//! A key as an operand: as KEY, and by -k KEY for those who are used to `run`.

use crate::lock::Key;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, ValueHint};

/// The keys that are named by -k; they count as operands.
#[derive(Debug, Default, Args)]
pub struct Named {
    /// The same as KEY
    #[arg(id = NAMED, short = 'k', long = "key", hide = true, value_name = "KEY", value_hint = ValueHint::Other,
        value_parser = Key::new, action = ArgAction::Append)]
    pub keys: Vec<Key>,
}

/// The keys in the order given, each once.
pub fn each_once(given: &[Key]) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for key in given {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// The argument id of [`Named`].
pub const NAMED: &str = "named";

impl Named {
    /// Appends the keys to the operands.
    pub fn join(&mut self, operands: &mut Vec<Key>) {
        operands.append(&mut self.keys);
    }

    /// Makes the key the operand. At most one key is allowed.
    pub fn join_one(&mut self, operand: &mut Option<Key>) -> Result<(), String> {
        let mut keys: Vec<Key> = operand.take().into_iter().chain(self.keys.drain(..)).collect();
        *operand = keys.pop();
        if keys.is_empty() { Ok(()) } else { Err(TOO_MANY.into()) }
    }
}

const TOO_MANY: &str = "one KEY is enough here; leave the others out";

/// The key of a command that needs exactly one.
#[derive(Debug, Clone)]
pub struct OneKey(pub Key);

impl Args for OneKey {
    fn augment_args(command: Command) -> Command {
        let operand = Arg::new("KEY").help("The lock").required_unless_present(NAMED);
        let operand = operand.value_name("KEY").value_hint(ValueHint::Other).value_parser(Key::new);
        Named::augment_args(command.arg(operand))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OneKey {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut key = matches.get_one::<Key>("KEY").cloned();
        let join = Named::from_arg_matches(matches)?.join_one(&mut key);
        join.map_err(|why| Error::raw(ErrorKind::TooManyValues, why))?;
        key.map(Self).ok_or_else(|| Error::raw(ErrorKind::MissingRequiredArgument, "KEY is missing"))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

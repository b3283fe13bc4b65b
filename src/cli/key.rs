//! A key as an operand: as KEY, and by -k KEY for those who are used to `run`.

use crate::lock::Key;
use clap::{ArgAction, Args, ValueHint};

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
        if keys.is_empty() { Ok(()) } else { Err("one KEY is enough here; leave the others out".into()) }
    }
}

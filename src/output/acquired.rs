//! The output of `acquire`: the token, a JSON object, or shell code that sets the variables which
//! `run` sets for its command. This output contains the secret.

use crate::lock::{Fence, Key, Token};
use crate::shell::quoted;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;

/// The object of `--json`. docs/dlock.schema.json explains the fields; a new field is a minor
/// change.
#[derive(Serialize)]
pub struct Acquired<'a> {
    /// The keys in the order given.
    pub keys: &'a [Key],
    /// The store's name without its secret.
    pub store: String,
    pub mode: &'static str,
    pub slots: Option<u32>,
    pub slot: Option<u32>,
    pub fence: Fence,
    pub token: &'a Token,
    /// Time left of the lease.
    pub lease_ms: u64,
    /// How long the grant took.
    pub waited_ms: u64,
}

/// Code for sh, bash, dash, ksh and zsh that sets or unsets these variables.
pub fn shell(environment: &[(OsString, Option<OsString>)]) -> String {
    // Semicolons, for an eval without quotes.
    environment.iter().fold(String::new(), |mut code, (name, value)| {
        let name = name.display();
        let _infallible = match value {
            Some(value) => writeln!(code, "export {name}={};", quoted(&value.to_string_lossy())),
            None => writeln!(code, "unset {name};"),
        };
        code
    })
}

/// The set variables, one a line without quotes. Leaves out values with a line end, which would
/// start another line.
pub fn lines(environment: &[(OsString, Option<OsString>)]) -> String {
    let set = environment.iter().filter_map(|(name, value)| Some((name, value.as_ref()?.to_str()?)));
    let in_lines = set.filter(|(_, value)| !value.contains(['\n', '\r']));
    in_lines.map(|(name, value)| format!("{}={value}\n", name.display())).collect()
}

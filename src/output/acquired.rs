//! The output of `acquire`: the token, a JSON object, or shell code that sets the variables which
//! `run` sets for its command. This output contains the secret.

use super::json;
use crate::error::Error;
use crate::lock::{Fence, Key, Mode, Token};
use crate::shell::quoted;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Acquired {
    /// The keys in the order given; at least one.
    pub keys: Vec<Key>,
    /// The store's name without its secret.
    pub store: String,
    /// How the lock is shared.
    pub mode: Mode,
    /// The slot, for a lock with slots.
    pub slot: Option<u32>,
    pub fence: Fence,
    pub token: Token,
    /// Time left of the lease.
    pub lease: Duration,
    /// How long the grant took.
    pub waited: Duration,
    /// The variables that `run` would set or unset for its command.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

impl Acquired {
    /// The token on a line.
    pub fn plain(&self) -> String {
        format!("{}\n", self.token.secret())
    }

    /// An array with one object. docs/dlock.schema.json explains the fields; adding one is a minor
    /// change.
    pub fn json(&self) -> Result<String, Error> {
        #[derive(Serialize)]
        struct Object<'a> {
            keys: Vec<&'a str>,
            store: &'a str,
            mode: &'static str,
            slots: Option<u32>,
            slot: Option<u32>,
            fence: Fence,
            token: &'a str,
            lease_ms: u64,
            waited_ms: u64,
        }
        let (mode, slots) = json::mode(self.mode);
        let object = Object {
            keys: self.keys.iter().map(Key::as_str).collect(),
            store: &self.store,
            mode,
            slots,
            slot: self.slot,
            fence: self.fence,
            token: self.token.secret(),
            lease_ms: super::time::millis(self.lease),
            waited_ms: super::time::millis(self.waited),
        };
        json::line(&[object])
    }

    /// Code for sh, bash, dash, ksh and zsh.
    pub fn shell(&self) -> String {
        shell(&self.environment)
    }
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

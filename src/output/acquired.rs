//! What does `acquire` print? The token, a JSON object, or shell code that sets the variables which `run` sets for its
//! command. It is the one output that has the secret in it, for it is what was asked for.

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
    /// The keys, in the order given; at least one.
    pub keys: Vec<Key>,
    /// The store's name without its secret.
    pub store: String,
    /// With whom the lock is shared.
    pub mode: Mode,
    /// The slot, of a lock with slots.
    pub slot: Option<u32>,
    pub fence: Fence,
    pub token: Token,
    /// What is left of the lease.
    pub lease: Duration,
    /// How long it was waited for.
    pub waited: Duration,
    /// The variables that `run` would set for its command, or unset.
    pub environment: Vec<(OsString, Option<OsString>)>,
}

impl Acquired {
    /// The token in a line of its own.
    pub fn plain(&self) -> String {
        format!("{}\n", self.token.secret())
    }

    /// An array with one object. docs/dlock.schema.json explains the fields; adding one is a minor change.
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

/// Code for sh, bash, dash, ksh and zsh that sets these variables, or unsets them.
pub fn shell(environment: &[(OsString, Option<OsString>)]) -> String {
    // Semicolons, for an eval whose quotes were forgotten.
    environment.iter().fold(String::new(), |mut code, (name, value)| {
        let name = name.display();
        let _infallible = match value {
            Some(value) => writeln!(code, "export {name}={};", quoted(&value.to_string_lossy())),
            None => writeln!(code, "unset {name};"),
        };
        code
    })
}

/// The variables that are set, one a line without quotes; not those whose value has a line end, which would be another line.
pub fn lines(environment: &[(OsString, Option<OsString>)]) -> String {
    let set = environment.iter().filter_map(|(name, value)| Some((name, value.as_ref()?.to_str()?)));
    let in_lines = set.filter(|(_, value)| !value.contains(['\n', '\r']));
    in_lines.map(|(name, value)| format!("{}={value}\n", name.display())).collect()
}

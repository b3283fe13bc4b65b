//! The output of `acquire`: the token, a JSON object, or shell code that sets the variables which
//! `run` sets for its command. This output contains the secret.

use crate::shell::quoted;
use std::ffi::OsString;
use std::fmt::Write as _;

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

/// The set variables, one a line without quotes. A value with a line end would start another line,
/// and a file cannot unset a variable: what an earlier hold has written would stay. So DLOCK_SLOT
/// and DLOCK_KEYS, which dlock does not read, are empty then. Others are left out.
pub fn lines(environment: &[(OsString, Option<OsString>)]) -> String {
    let mut lines = String::new();
    for (name, value) in environment {
        let value = value.as_ref().and_then(|value| value.to_str());
        let value = value.filter(|value| !value.contains(['\n', '\r']));
        let empty = (name == "DLOCK_SLOT" || name == "DLOCK_KEYS").then_some("");
        if let Some(value) = value.or(empty) {
            lines.extend([&name.to_string_lossy(), "=", value, "\n"]);
        }
    }
    lines
}

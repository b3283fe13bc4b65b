//! Who am I, as the store shows it to others? Host, process, user and what is run.

use crate::lock::Owner;
use rustix::process::{getpid, getuid};
use std::ffi::OsString;

/// How much of a command line is stored, in bytes.
const COMMAND_MAX: usize = 200;

/// The owner of a hold of this process.
pub fn owner(command: String, reason: Option<String>) -> Owner {
    Owner {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: getpid().as_raw_pid().cast_unsigned(),
        user: user(),
        command,
        reason,
    }
}

/// A command line as one text of at most [`COMMAND_MAX`] bytes.
pub fn command_line(argv: &[OsString]) -> String {
    let mut line = argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
    if line.len() > COMMAND_MAX {
        let end = (0..=COMMAND_MAX).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
    }
    line
}

/// The login name by /etc/passwd, else by the environment, else the number. The name service is not asked: a directory
/// server that is down must not hold up a cron job for the sake of a name.
fn user() -> String {
    let uid = getuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid));
    let name = entry.and_then(|line| line.split(':').next()).map(str::to_owned);
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    name.or_else(|| variable("LOGNAME")).or_else(|| variable("USER")).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_line_is_cut_between_characters() {
        let line = command_line(&["é".repeat(150).into(), "x".into()]);
        assert_eq!(line, "é".repeat(100));
        assert_eq!(command_line(&["a".into(), "b c".into()]), "a b c");
    }
}

//! Describes this process for the store: host, process, user and command.

use crate::lock::{By, Owner, shorten};
use crate::rules::Holder;
use crate::supervise;
use rustix::process::{geteuid, getpid, getppid, getuid};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;

/// Longest stored command line, in bytes.
const COMMAND_MAX: usize = 200;

/// The owner of a hold of this process.
pub fn owner(command: String, reason: Option<String>) -> Owner {
    Owner {
        host: host(),
        pid: getpid().as_raw_pid().cast_unsigned(),
        user: user(),
        command,
        reason,
        by: By::Run,
        ttl: None,
        once_per: None,
        rest: None,
    }
    .shortened()
}

/// The owner of a hold that this process takes for its parent, usually a script. The parent has the
/// hold after this process ends.
pub fn parent(label: Option<String>, reason: Option<String>) -> Owner {
    let parent = getppid().map(|pid| pid.as_raw_pid().cast_unsigned());
    let command = label.or_else(|| parent.and_then(command_line_of)).unwrap_or_default();
    let own = owner(command, reason);
    // A parent outside this PID namespace has no id here.
    Owner { pid: parent.unwrap_or(own.pid), by: By::Acquire, ..own }
}

/// The owner of a hold for a process that dlock did not start. Without `pid`, that is the parent
/// process.
pub fn held_for(pid: Option<i32>, label: Option<String>, reason: Option<String>) -> Owner {
    let pid = pid.map(i32::cast_unsigned);
    let Some(pid) = pid else { return Owner { by: By::Hold, ..parent(label, reason) } };
    // The arguments of another user's process may lie in a file system that never answers.
    let is_own = std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|at| at.uid() == geteuid().as_raw());
    let name =
        || std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().into());
    let command = label.or_else(|| if is_own { command_line_of(pid) } else { name() }).unwrap_or_default();
    Owner { pid, by: By::Hold, ..owner(command, reason) }
}

/// Whether a holder is a `dlock hold` for a process that this one descends from, as far as its record
/// says: another container may have the same host name. `acquire` does not count. The process that
/// called it may be a cron daemon or an init, from which many processes descend.
pub fn is_around(holder: Option<&Holder>) -> bool {
    holder.is_some_and(|Holder { owner, confirmed, .. }| {
        let is_hold = owner.by == By::Hold && *confirmed;
        is_hold && owner.host == host() && supervise::is_ancestor(owner.pid.cast_signed())
    })
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn command_line_of(pid: u32) -> Option<String> {
    // A process may have gigabytes of arguments, and only the first bytes are stored.
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(2 * COMMAND_MAX as u64).read_to_end(&mut bytes).ok()?;
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
    let words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
    Some(command_line(&words))
}

/// A command line as one text of at most [`COMMAND_MAX`] bytes.
pub fn command_line(argv: &[OsString]) -> String {
    let mut line = argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
    shorten(&mut line, COMMAND_MAX);
    line
}

/// The login name from /etc/passwd, else from the environment, else the user id. The name service
/// is not asked: a directory server that is down must not delay a cron job for a name.
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
    fn long_command_line_is_cut_between_characters() {
        let line = command_line(&["é".repeat(150).into(), "x".into()]);
        assert_eq!(line, "é".repeat(100));
        assert_eq!(command_line(&["a".into(), "b c".into()]), "a b c");
    }
}

//! Judges the directory of a `file:` store.

use super::{bad, ok, warn};
use crate::output::doctor::Finding;
use crate::store::probe::{Directory, Disk};

pub(super) fn of_directory(directory: &Directory) -> Vec<Finding> {
    match &directory.found {
        None => vec![warn(
            "directory",
            format!(
                "{} does not exist; the first run makes it, for its user alone",
                directory.path.display()
            ),
            "make it yourself if several users share locks: group-writable, set-gid and not sticky",
        )],
        Some(Err(error)) => {
            vec![bad("directory", error.to_string(), "correct the directory, or name another one")]
        }
        Some(Ok(disk)) => of_disk(disk),
    }
}

fn of_disk(disk: &Disk) -> Vec<Finding> {
    let mode = disk.mode;
    let whose = match mode & 0o020 {
        0 => "its owner's alone",
        _ => "shared with its group, whose members can take and delete every lock",
    };
    let tried = |check, result: &Result<(), String>, good: &str| match result {
        Ok(()) => ok(check, good),
        Err(why) => bad(check, why.clone(), "name a directory on another file system"),
    };
    let clock = match &disk.clock {
        Ok(()) => ok("clock", "the time of this process is the machine's, or its offset is known"),
        Err(why) => warn(
            "clock",
            format!(
                "the time namespace of this process is unknown ({why}); dlock takes it for the machine's"
            ),
            "let /proc/self/timens_offsets be read; without that, a process in another time namespace must not use this directory",
        ),
    };
    vec![
        ok("file system", format!("{}, of this machine", disk.file_system)),
        // A directory that all may write is refused before this.
        ok("mode", format!("{mode:04o}, {whose}")),
        tried("file locks", &disk.locks, "a second lock of the same file is refused"),
        tried("FIFOs", &disk.fifos, "dlock sees when a reader ends"),
        clock,
    ]
}

//! Kills a job at once, including processes that dlock may not signal, by a control group
//! (cgroups(7), version 2). The group is made only when it is needed. One write to `cgroup.kill`
//! (Linux 5.14) kills everything in it and all that is forked there. If no group can be made, there
//! is no error: the caller kills the processes one by one anyway.
//!
//! The group lies below the group of this process, so it needs root or a delegated subtree. A
//! process in another group (a container) stays there. The caller decides which processes are part
//! of the job.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Start of the group's name; the id of the process that made it follows.
const NAME: &str = "dlock-stop-";

#[derive(Debug)]
pub(super) enum Cgroup {
    /// Not needed yet.
    Unmade,
    /// No group can be made here.
    Unavailable,
    Made(Made),
}

#[derive(Debug)]
pub(super) struct Made {
    /// Directory of this process's own group.
    around: PathBuf,
    /// Path of this process's own group, as in /proc/PID/cgroup.
    around_path: String,
    directory: PathBuf,
    path: String,
    procs: File,
    kill: File,
}

/// Result of moving a process into the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// This call moved it.
    Now,
    /// It was in the group before.
    Before,
    No,
}

impl Cgroup {
    /// Whether a group can be made here, as far as is known.
    pub(super) fn is_available(&self) -> bool {
        !matches!(self, Self::Unavailable)
    }

    /// Moves a process into the group; makes the group if there is none. The caller must make sure
    /// that the id still is that of the right process.
    pub(super) fn take(&mut self, pid: i32) -> Taken {
        if let Self::Unmade = self {
            *self = Made::new().map_or(Self::Unavailable, Self::Made);
        }
        let Self::Made(made) = self else { return Taken::No };
        let Some(path) = path_of(&pid.to_string()) else { return Taken::No };
        if made.is_within(&path) {
            Taken::Before
        } else if made.may_leave(&path) && made.procs.write_all(pid.to_string().as_bytes()).is_ok() {
            Taken::Now
        } else {
            Taken::No
        }
    }

    /// Moves back a process that should not be in the group.
    pub(super) fn put_back(&mut self, pid: i32) {
        let Self::Made(made) = self else { return };
        if path_of(&pid.to_string()).is_some_and(|path| made.is_within(&path))
            && fs::write(made.around.join("cgroup.procs"), pid.to_string()).is_err()
        {
            // A process that is not part of the job is in the group, so the group must not be
            // killed.
            *self = Self::Unavailable;
        }
    }

    /// Kills everything in the group.
    pub(super) fn kill(&mut self) {
        if let Self::Made(made) = self {
            let _ = made.kill.write_all(b"1");
        }
    }

    /// Removes the group when all in it are dead, and leftover groups of guards that were killed.
    pub(super) fn remove(&mut self) {
        if let Self::Made(made) = std::mem::replace(self, Self::Unmade) {
            // The job may itself have been a dlock that was stopping its own job.
            remove_leftovers(&made.directory);
            let _ = fs::remove_dir(&made.directory);
            remove_leftovers(&made.around);
        }
    }
}

impl Made {
    fn new() -> Option<Self> {
        let around_path = path_of("self")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let around = directory_of(&around_path, &mounts)?;
        let name = format!("{NAME}{}", std::process::id());
        let path = format!("{}/{name}", around_path.trim_end_matches('/'));
        let directory = around.join(name);
        fs::create_dir(&directory)
            .or_else(|_| {
                // An earlier process with this id left the directory behind.
                fs::remove_dir(&directory)?;
                fs::create_dir(&directory)
            })
            .ok()?;
        let open = |file: &str| OpenOptions::new().write(true).open(directory.join(file));
        let files = open("cgroup.procs").and_then(|procs| Ok((procs, open("cgroup.kill")?)));
        let Ok((procs, kill)) = files else {
            let _ = fs::remove_dir(&directory);
            return None;
        };
        Some(Self { around, around_path, directory, path, procs, kill })
    }

    /// Whether this is the path of the group, or of one in it.
    fn is_within(&self, path: &str) -> bool {
        path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether a process may be moved out of the group `path`: only if that is the group of this
    /// process, or one to which another guard moved it to be killed.
    fn may_leave(&self, path: &str) -> bool {
        let below = path.strip_prefix(self.around_path.trim_end_matches('/'));
        below.is_some_and(|rest| matches!(rest, "" | "/") || rest.trim_start_matches('/').starts_with(NAME))
    }
}

/// Removes empty groups whose guards are gone.
fn remove_leftovers(within: &Path) {
    for entry in fs::read_dir(within).into_iter().flatten().flatten() {
        let maker = entry.file_name().to_str().and_then(|name| name.strip_prefix(NAME)?.parse().ok());
        let gone =
            |pid: i32| crate::sys::kill(pid, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
        if maker.is_some_and(gone) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The path of a process's version 2 group.
fn path_of(pid: &str) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The directory at which the group with this path is mounted.
fn directory_of(path: &str, mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = path.strip_prefix(root.trim_end_matches('/'))?;
        // proc(5) escapes some characters; mount points with these are not supported.
        let fits = kind.starts_with("cgroup2 ")
            && (below.is_empty() || below.starts_with('/'))
            && !point.contains('\\');
        // The path of a group outside the namespace contains "/..".
        (fits && !below.contains("/..")).then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_found_by_path_and_mounts() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:41 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let part = "41 31 0:41 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found =
            |path, mounts| directory_of(path, mounts).and_then(|found| found.to_str().map(str::to_owned));
        assert_eq!(found("/", hybrid).as_deref(), Some("/sys/fs/cgroup/unified/"));
        assert_eq!(found("/a/b", hybrid).as_deref(), Some("/sys/fs/cgroup/unified/a/b"));
        assert_eq!(found("/docker/abc/d", part).as_deref(), Some("/sys/fs/cgroup/d"));
        assert_eq!(found("/docker/abcd", part), None);
        assert_eq!(found("/../x", hybrid), None);
        assert_eq!(found("/", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"), None);
    }
}

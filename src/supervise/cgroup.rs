//! How is a job killed in one step, also what this process may not signal? By a control group (cgroups(7), version 2) of its
//! own, made only when it is needed: what is in it, and all that is forked there, dies of one write to `cgroup.kill`
//! (Linux 5.14). Where none can be had, nothing is said and nothing lost: whoever calls kills one by one beside it.
//!
//! It lies below the group that this process is in, so it needs root or a delegated subtree. What has been given another
//! group than that (a container) stays there. Whether a process is of the job is not asked here.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// What the names of such groups begin with; the id of the process that made it follows.
const NAME: &str = "dlock-stop-";

/// The control group, if there is one.
#[derive(Debug)]
pub(super) enum Cgroup {
    /// Nobody has needed it.
    Unmade,
    /// It cannot be had here.
    Unavailable,
    Made(Made),
}

#[derive(Debug)]
pub(super) struct Made {
    /// The group of this process: its directory, and its path as /proc/PID/cgroup has it.
    around: PathBuf,
    around_path: String,
    directory: PathBuf,
    path: String,
    procs: File,
    kill: File,
}

/// Where a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// In the group, by this call.
    Now,
    /// In the group before.
    Before,
    No,
}

impl Cgroup {
    /// Whether anything can be done here, as far as is known.
    pub(super) fn is_available(&self) -> bool {
        !matches!(self, Self::Unavailable)
    }

    /// Takes a process in, and makes the group if there is none. The caller answers for the id.
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

    /// Puts a process back that should not have been taken.
    pub(super) fn put_back(&mut self, pid: i32) {
        let Self::Made(made) = self else { return };
        if path_of(&pid.to_string()).is_some_and(|path| made.is_within(&path))
            && fs::write(made.around.join("cgroup.procs"), pid.to_string()).is_err()
        {
            // Then this group is not killed.
            *self = Self::Unavailable;
        }
    }

    /// Kills whatever is in it.
    pub(super) fn kill(&mut self) {
        if let Self::Made(made) = self {
            let _ = made.kill.write_all(b"1");
        }
    }

    /// Removes the group when all in it are dead, and those that others left who were killed themselves.
    pub(super) fn remove(&mut self) {
        if let Self::Made(made) = std::mem::replace(self, Self::Unmade) {
            // A job that was stopped here may have been about to stop one.
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
                // Somebody had this id before.
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

    /// Whether who is there may be taken away: from the group of this process, or where another guard put it to be killed.
    fn may_leave(&self, path: &str) -> bool {
        let below = path.strip_prefix(self.around_path.trim_end_matches('/'));
        below.is_some_and(|rest| matches!(rest, "" | "/") || rest.trim_start_matches('/').starts_with(NAME))
    }
}

/// Removes the groups that nobody is in and whose makers are gone.
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

/// The path of a process's group of version 2.
fn path_of(pid: &str) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Where the group with this path is mounted.
fn directory_of(path: &str, mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = path.strip_prefix(root.trim_end_matches('/'))?;
        // What proc(5) writes with escapes nobody names a mount point.
        let fits = kind.starts_with("cgroup2 ")
            && (below.is_empty() || below.starts_with('/'))
            && !point.contains('\\');
        // A group outside of the namespace's own has "/.." in it.
        (fits && !below.contains("/..")).then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_found() {
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

//! Are control groups left in which jobs were stopped (`dlock-stop-`)? All runs of a round are in a
//! version 2 group of its own, so what is found there is theirs, whatever else runs on this
//! machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

/// Prefix of the name of a round's group; the id of the suite's process follows.
const NAME: &str = "dlock-round-";

/// The group, with this process in it. Dropping it moves this process out.
pub struct Groups {
    group: PathBuf,
    before: PathBuf,
}

impl Groups {
    /// Returns None where the test may not create one; then dlock cannot either.
    pub fn new() -> Option<Self> {
        let is_second = |root: &&str| Path::new(root).join("cgroup.controllers").exists();
        let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().find(is_second)?;
        let all = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = all.lines().find_map(|line| line.strip_prefix("0::/"))?;
        for left in fs::read_dir(root).ok()?.flatten() {
            let name = left.file_name().into_string().unwrap_or_default();
            if name.strip_prefix(NAME).is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&left.path());
            }
        }
        let group = Path::new(root).join(format!("{NAME}{}", process::id()));
        // The group may still be there, with a server of the previous round.
        drop(fs::create_dir(&group));
        fs::write(group.join("cgroup.procs"), "0").ok()?;
        Some(Self { group, before: Path::new(root).join(own) })
    }

    /// The groups that are left, and whether a process is in them.
    pub fn left(&self) -> Vec<(String, bool)> {
        let of_dlock =
            |path: &PathBuf| path.file_name().is_some_and(|name| is_of_dlock(&name.to_string_lossy()));
        let all = below(&self.group).into_iter().filter(of_dlock);
        all.map(|path| {
            let inside = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            (format!("control group {}", path.display()), !inside.is_empty())
        })
        .collect()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        drop(fs::write(self.before.join("cgroup.procs"), "0"));
        remove(&self.group);
    }
}

fn is_of_dlock(name: &str) -> bool {
    name.starts_with("dlock-stop-")
}

/// All groups below one, inner ones first.
fn below(group: &Path) -> Vec<PathBuf> {
    let inner = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    let inner = inner.filter(|path| path.is_dir());
    inner.flat_map(|path| below(&path).into_iter().chain([path])).collect()
}

/// Removes the groups without processes.
fn remove(group: &Path) {
    for group in below(group).into_iter().chain([group.into()]) {
        drop(fs::remove_dir(group));
    }
}

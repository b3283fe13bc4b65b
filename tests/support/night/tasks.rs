//! Limits on the number of processes and threads of a run: control groups with `pids.max`, which
//! binds root as well.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;

/// Prefix of the name of a suite's group; its process id follows.
const NAME: &str = "dlock-night-";

/// The group of this suite, with a group in it for each limited run. Dropping it removes them.
pub struct TaskLimits(PathBuf);

impl TaskLimits {
    /// Returns None where the test may not create such groups.
    pub fn new() -> Option<Self> {
        // Version 1, and version 2.
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().find_map(|root| Self::below(Path::new(root)))
    }

    fn below(root: &Path) -> Option<Self> {
        for left in fs::read_dir(root).ok()?.flatten() {
            let name = left.file_name().into_string().unwrap_or_default();
            let suite = name.strip_prefix(NAME);
            if suite.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&left.path());
            }
        }
        let group = root.join(format!("{NAME}{}", process::id()));
        // The group may still be there, with a process of the previous round.
        drop(fs::create_dir(&group));
        let limits = Self(group);
        // Version 1 has no such file and needs none.
        drop(fs::write(limits.0.join("cgroup.subtree_control"), "+pids"));
        limits.0.join("pids.max").exists().then_some(limits)
    }

    /// The words before a command that limit its processes and threads. It gets a group with this
    /// number.
    pub fn words(&self, number: u64, most: u64) -> [OsString; 5] {
        let group = self.0.join(number.to_string());
        let enter = r#"mkdir "$0" && echo "$1" > "$0/pids.max" && echo $$ > "$0/cgroup.procs" || exit 97; shift; exec "$@""#;
        ["sh".into(), "-c".into(), enter.into(), group.into(), most.to_string().into()]
    }
}

impl Drop for TaskLimits {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes the groups without processes.
fn remove(group: &Path) {
    for inner in fs::read_dir(group).into_iter().flatten().flatten() {
        // The files in it are the kernel's.
        drop(fs::remove_dir(inner.path()));
    }
    drop(fs::remove_dir(group));
}

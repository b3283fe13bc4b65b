//! A job that is being stopped is moved into a cgroup if dlock can make one. Then processes that
//! fork and end all the time are killed at once, and processes of another user as well. No cgroup
//! is left behind.

use crate::support::dlock::Dlock;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::{Signal, geteuid};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;

const NOBODY: u32 = 65534;
/// Logs when it is in a cgroup of its own, and does not end.
const STUBBORN: &str = "trap '' TERM; echo $$ > job.pid
    while ! grep -q dlock-stop- /proc/self/cgroup; do sleep 0.1; done; echo taken >> log; exec sleep 1000";

/// A cgroup for one test, removed when it is dropped.
struct Group(PathBuf);

impl Group {
    /// Prints the reason and returns `None` if this user cannot make one.
    fn make(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let own = fs::read_to_string("/proc/self/cgroup").expect("/proc is mounted");
        let made = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|mount| {
            let point = mount.split(' ').nth(4)?;
            let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
            let group = PathBuf::from(format!("{point}{own}/dlock-test-{name}-{}", std::process::id()));
            fs::create_dir(&group).ok()?;
            let group = Self(group);
            group.0.join("cgroup.kill").exists().then_some(group)
        });
        if made.is_none() {
            println!("skipped: no control group with cgroup.kill can be had here");
        }
        made
    }

    /// Runs dlock in this cgroup, as `user` if it is given.
    fn around<'w>(&self, run: Dlock<'w>, user: Option<u32>) -> Dlock<'w> {
        let enter = format!("echo $$ > {}/cgroup.procs || exit 99; exec \"$@\"", self.0.display());
        let user = user.map(|user| user.to_string()).unwrap_or_default();
        let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let become_user = ["setpriv", &uid, &gid, "--clear-groups", "--"];
        let words = ["sh", "-c", &enter, "sh"].into_iter();
        let words = words.chain(become_user.into_iter().filter(|_| !user.is_empty()));
        run.under(&words.collect::<Vec<_>>())
    }

    fn delegate(&self, user: u32) {
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(self.0.join(file), Some(user), Some(user)).expect("root may");
        }
    }

    /// The cgroups below this one.
    fn inner(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).expect("it is there").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        for group in self.inner() {
            let _ = fs::remove_dir(group);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn chains_that_fork_all_the_time_are_dead_when_the_run_is_over() {
    let Some(group) = Group::make("chain") else { return };
    let world = World::new(Backend::Redis);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/crowd.c");
    let compiled =
        Command::new("gcc").args(["-o".as_ref(), world.path("crowd").as_path(), source.as_ref()]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: no gcc");
        return;
    }
    let run = world.run("k", &["--max-run", "1s", "--grace", "2s"], "exec ./crowd chains lock 20 500");
    let holder = group.around(run, None).status(124).any_stderr().spawn();
    wait_until("the job runs", || world.path("up").exists());
    holder.finish();
    let crowd = world.path("crowd");
    let lives = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == crowd);
    assert_eq!(proc::pids().into_iter().filter(lives).count(), 0);
    assert_eq!(group.inner(), [""; 0].map(PathBuf::from));
}

/// The guard is killed while it stops the job.
#[test]
fn nothing_is_left_of_a_group_whose_maker_is_killed() {
    let Some(group) = Group::make("left") else { return };
    let world = World::new(Backend::Redis);
    let run = world.run("k", &["--max-run", "1s", "--grace", "3s"], STUBBORN);
    let holder = group.around(run, None).status(124).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    world.wait_for_log("taken");
    let made = group.inner();
    proc::signal(holder.guard(), Signal::KILL);
    holder.finish();
    assert!(!proc::alive(job));
    assert_eq!((made.len(), group.inner().len()), (1, 0));
}

/// The job becomes root, as with sudo. dlock's user owns a subtree of cgroups, as the services of a
/// user do under systemd.
#[test]
fn a_process_that_may_not_be_signalled_is_killed_with_its_cgroup() {
    let Some(group) = Group::make("risen") else { return };
    let world = World::new(Backend::Redis);
    world.open_to_all();
    let made =
        world.command("cp").args(["/usr/bin/setpriv", "rise"]).status().is_ok_and(|status| status.success());
    if !made || !geteuid().is_root() {
        println!("skipped: this user cannot become another one");
        return;
    }
    fs::set_permissions(world.path("rise"), fs::Permissions::from_mode(0o4755)).expect("permissions");
    group.delegate(NOBODY);
    for grace in ["0s", "1s"] {
        let job = format!("exec ./rise --reuid=0 sh -c 'echo $$ > risen.{grace}; exec sleep 1000'");
        let run = world.run("k", &["--max-run", "2s", "--grace", grace], &job);
        let holder = group.around(run, Some(NOBODY)).status(124).any_stderr().spawn();
        let risen = world.wait_for_pid(&format!("risen.{grace}"));
        let output = holder.finish();
        assert!(!proc::alive(risen), "grace {grace}");
        assert!(!output.stderr.contains(&risen.to_string()), "{}", output.stderr);
        assert_eq!(group.inner().len(), 0);
    }
}

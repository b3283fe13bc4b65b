//! `dlock hold`: a lock for a process that dlock did not start (`--pid`), or for the program at its
//! stdin. The process is dead before another run gets the lock.

mod background;
mod killed;
mod pipe;
mod stopped;
mod tree;

use crate::support::dlock::{Dlock, End};
use crate::support::job;
use crate::support::proc;
use crate::support::storm::is_soak;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Child;
use std::thread;
use std::time::Duration;

on_every_store!(
    a_lock_is_held_until_the_process_ends,
    a_process_that_executes_another_program_keeps_the_lock,
    the_token_releases_the_lock_from_outside,
    many_holds_leave_nothing_behind,
);

const LONG: &str = "10m";

/// The processes of [`FAMILY`].
const MEMBERS: [&str; 6] = ["leader", "session", "naked", "stranger", "deaf", "frozen"];

const FAMILY: &str = r"
setsid sh member session &
env -i sh member naked &
env -i setsid sh member stranger &
sh member deaf &
sh member frozen &
exec sh member leader
";

/// A process that dlock did not start. Dropping it kills it.
struct Target(Child);

impl Target {
    fn sh(world: &World, script: &str) -> Self {
        Self(world.command("sh").args(["-c", script]).spawn().expect("a process"))
    }

    /// A process whose descendants try to escape: new sessions, empty environments, ignored
    /// signals.
    fn family(world: &World) -> Self {
        job::prepare(world);
        let target = Self::sh(world, FAMILY);
        for name in MEMBERS {
            world.wait_for_pid(&format!("{name}.pid"));
        }
        let frozen = world.wait_for_pid("frozen.pid");
        wait_until("the frozen one stops", || proc::stopped(frozen));
        target
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a process id")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn survivors(world: &World) -> Vec<&'static str> {
    MEMBERS.into_iter().filter(|name| proc::acts(world.wait_for_pid(&format!("{name}.pid")))).collect()
}

fn hold<'w>(world: &'w World, key: &str, options: &[&str], target: &Target) -> Dlock<'w> {
    world.dlock(["hold", "-k", key, "--pid", &target.pid().to_string()]).args(options)
}

fn next_is_alone(world: &World) {
    wait_until("the next one runs", || world.log().contains(&"next".into()));
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

fn a_lock_is_held_until_the_process_ends(backend: Backend) {
    let world = World::new(backend);
    let mut target = Target::sh(&world, "exec sleep 1000");
    wait_until("it sleeps", || proc::arguments(target.pid()).starts_with("sleep"));
    let holder = hold(&world, "k", &["-t", LONG, "--reason", "why"], &target).spawn();
    world.wait_for_state("k", "held");
    let shown = &world.status("k")["holders"][0];
    assert_eq!(
        (shown["pid"].as_i64(), shown["command"].as_str(), shown["reason"].as_str()),
        (Some(target.pid().into()), Some("sleep 1000"), Some("why"))
    );
    world.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    hold(&world, "k", &[], &target).status(75).any_stderr().run();
    let next = world.run("k", &["--wait"], "echo next >> log").spawn();
    world.wait_for_waiters("k", 1);
    target.0.kill().expect("it lives");
    holder.finish();
    next.finish();
    assert_eq!(world.log(), ["next"]);
    // Nobody knows how the process ended: neither success nor failure.
    let ends = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    let ends: Value = serde_json::from_str(&ends).expect("JSON");
    let end = |at: usize| (ends[at]["outcome"].as_str(), ends[at]["exit_status"].as_i64());
    assert_eq!([end(0), end(1)], [(Some("released"), Some(0)), (Some("ended"), None)], "{ends:#?}");
    let metrics = world.dlock(["metrics", "k"]).any_stdout().run().stdout;
    for line in [r#"{key="k",result="succeeded"} 1"#, r#"{key="k",result="failed"} 0"#] {
        assert!(metrics.contains(&format!("dlock_jobs_total{line}\n")), "{metrics}");
    }
}

/// Processes that it leaves behind are not stopped, as with `run`.
fn a_process_that_executes_another_program_keeps_the_lock(backend: Backend) {
    let world = World::new(backend);
    let script = "until [ -e go ]; do sleep 0.1; done; sleep 1000 & echo $! > left.pid; \
                  exec sh -c 'echo again >> log; until [ -e stop ]; do sleep 0.1; done'";
    let target = Target::sh(&world, script);
    let holder = hold(&world, "k", &["-t", LONG], &target).spawn();
    world.wait_for_state("k", "held");
    world.write("go", "");
    world.wait_for_log("again");
    world.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    world.write("stop", "");
    holder.finish();
    assert!(proc::alive(world.wait_for_pid("left.pid")), "what it left behind");
    world.run("k", &[], "").run();
    proc::signal(world.wait_for_pid("left.pid"), Signal::KILL);
}

/// The release has only the token, as on another machine.
fn the_token_releases_the_lock_from_outside(backend: Backend) {
    let world = World::new(backend);
    let mut target = Target::sh(&world, "exec sleep 1000");
    let options = ["-t", "4s", "--json"];
    let holder =
        hold(&world, "k", &options, &target).stdout_like("(?s).*\"released\".*").any_stderr().spawn();
    wait_until("it is granted", || holder.printed().contains("granted"));
    let printed = holder.printed();
    let line = printed.lines().find(|line| line.contains("granted")).expect("a line");
    let granted: Value = serde_json::from_str(line).expect("JSON");
    world.write("token", granted["token"].as_str().expect("a token"));
    world.dlock(["release", "k", "--token-file", "token"]).any_stderr().run();
    let next =
        world.run("k", &["-w"], "echo next >> log; until [ -e go ]; do sleep 0.1; done").any_stderr().spawn();
    world.wait_for_log("next");
    holder.finish();
    assert_eq!(target.0.try_wait().expect("our child"), None, "nothing is lost");
    world.write("go", "");
    next.finish();
}

/// Holds start and end side by side: processes end, holds get a signal, operators ask for the lock.
fn many_holds_leave_nothing_behind(backend: Backend) {
    let world = World::new(backend);
    let each = if is_soak() { 50 } else { 6 };
    thread::scope(|scope| {
        for worker in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for turn in 0..each {
                    one_of_many(world, worker, turn);
                }
            });
        }
    });
    wait_within(Duration::from_secs(60), "nothing is left", || {
        let ours = |pid: &i32| ["dlock", "dlock-guard", "dlock-watch"].contains(&&*proc::name(*pid));
        let here = |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|at| at == world.path("").canonicalize().expect("a path"))
        };
        (!proc::pids().iter().any(|pid| ours(pid) && here(pid))).then_some(())
    });
    for key in ["k0", "k1"] {
        assert_eq!(world.state(key), "free");
    }
}

fn one_of_many(world: &World, worker: usize, turn: usize) {
    let key = format!("k{}", worker % 2);
    let mut target = Target::sh(world, "exec sleep 1000");
    let pid = target.pid().to_string();
    let options = ["hold", "-k", &key, "-w", "-t", "60s", "--pid", &pid];
    match turn % 3 {
        0 => {
            world.dlock(options).args(["--background"]).any_stderr().run();
            target.0.kill().expect("it lives");
        }
        1 => {
            let holder = world.dlock(options).any_stderr().spawn();
            if turn.is_multiple_of(2) {
                wait_until("it is held", || world.status(&key)["holders"][0]["pid"] == target.pid());
                holder.signal(Signal::TERM);
                // If the signal arrives with the grant, dlock still ends as a waiter.
                assert!([End::Status(0), End::Signal(15)].contains(&holder.output().end()));
                assert_eq!(target.0.try_wait().expect("our child"), None, "it goes on");
            } else {
                // At any moment, even while dlock waits.
                target.0.kill().expect("it lives");
                let status = holder.output().status.code();
                assert!([Some(0), Some(64), Some(75)].contains(&status), "{status:?}");
            }
        }
        _ => {
            let holder = world.dlock(options).any_stderr().status(79).spawn();
            wait_until("it is held", || world.status(&key)["holders"][0]["pid"] == target.pid());
            world.dlock(["release", &key, "-y"]).any_stderr().run();
            holder.finish();
            assert!(target.0.try_wait().expect("our child").is_some(), "it was stopped");
        }
    }
}

#[test]
fn a_stdin_or_pid_that_cannot_keep_a_lock_is_refused() {
    let world = World::without_redis();
    for (after, why) in [
        ("exec < /dev/null", "stdin is not a pipe, socket or terminal"),
        ("exec <&-", "stdin is not a pipe, socket or terminal"),
        ("echo > file; exec < file", "stdin is not a pipe, socket or terminal"),
    ] {
        let pattern = format!("dlock: {why}.*\n");
        world.dlock(["hold", "-k", "k"]).after_shell(after).status(64).stderr_like(&pattern).run();
    }
    let gone = world.command("true").spawn().map(|mut child| {
        child.wait().expect("our child");
        child.id().to_string()
    });
    let gone = gone.expect("a process");
    let like = format!("dlock: --pid: there is no process {gone}\n");
    world.dlock(["hold", "-k", "k", "--pid", &gone]).status(64).stderr_like(&like).run();
    for words in [&["--background"][..], &["--pid", "1", "--export"], &["--pid", "1", "--env-file", "f"]] {
        world.dlock(["hold", "-k", "k"]).args(words).status(64).any_stderr().any_stdout().run();
    }
    for (pid, why) in
        [("", "it is empty"), ("abc", "that is no process id"), ("0", "that is no process: in a container")]
    {
        let pattern = format!("dlock: --pid '{pid}': {why}.*\n");
        world.dlock(["hold", "-k", "k", "--pid", pid]).status(64).stderr_like(&pattern).run();
    }
    let env = ["--background", "--env-file", "no/such/file"];
    world.dlock(["hold", "-k", "k", "--pid", "1"]).args(env).status(78).any_stderr().run();
    assert_eq!(world.state("k"), "free");
}

/// The process has ended, and its parent has not reaped it.
#[test]
fn a_zombie_is_no_process() {
    let world = World::without_redis();
    let mut target = Target::sh(&world, "exit");
    wait_until("it has ended", || !proc::alive(target.pid()));
    hold(&world, "k", &[], &target).status(64).stderr_like("dlock: --pid: there is no process \\d+\n").run();
    target.0.wait().expect("our child");
}

/// INT, TERM and HUP release the lock, and the process goes on.
#[test]
fn a_signal_releases_the_lock() {
    let world = World::without_redis();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut target = Target::sh(&world, "exec sleep 1000");
        let holder =
            hold(&world, "k", &["-t", LONG, "--json"], &target).stdout_like("(?s).*\"released\".*").spawn();
        wait_until("it is granted", || holder.printed().contains("granted"));
        holder.signal(signal);
        holder.finish();
        world.run("k", &[], "").run();
        assert_eq!(target.0.try_wait().expect("our child"), None);
    }
}

/// If the process ends while dlock waits for the lock, dlock leaves the queue.
#[test]
fn a_process_that_ends_is_not_waited_for() {
    let world = World::without_redis();
    let holder = world.run("k", &["-t", LONG], "until [ -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_state("k", "held");
    let mut target = Target::sh(&world, "exec sleep 1000");
    let waiter = hold(&world, "k", &["-w"], &target).status(75).any_stderr().spawn();
    let background = hold(&world, "k", &["-w", "--background"], &target).status(75).any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    target.0.kill().expect("it lives");
    let said = "the process or program that the lock is for has ended; nothing is held";
    assert!(waiter.finish().stderr.contains(said));
    assert!(background.finish().stderr.contains(said));
    let target = Target::sh(&world, "exec sleep 1000");
    let caller = hold(&world, "k", &["-w", "--background"], &target).dies_of(15).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    caller.signal(Signal::TERM);
    caller.finish();
    wait_until("nobody waits", || world.waiters("k") == 0);
    world.write("go", "");
    holder.finish();
}

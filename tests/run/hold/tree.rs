//! `dlock hold --tree`: the lock is kept until what the process has started has ended, too. And what
//! does not end a hold: signals in the background, a watcher that is stopped.

use super::{LONG, Target, hold};
use crate::support::dlock::{BINARY, Running};
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::Signal;
use serde_json::Value;

/// A hold for this process that has begun: it has looked for what is below the process.
fn begun(world: &World, options: &[&str], status: i32, target: &Target) -> Running {
    let dlock = hold(world, "k", options, target).args(["--json"]).status(status);
    let holder = dlock.any_stdout().any_stderr().spawn();
    wait_until("it is held", || holder.printed().contains("granted"));
    holder
}

/// Expects that the hold waits for this process, and ends with it.
fn waits_for(world: &World, holder: Running, pid: i32) {
    let named = format!("until what it has started has ended (--tree): {pid} (");
    wait_until("it says for whom it waits", || holder.messages().contains(&named));
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(pid, Signal::KILL);
    holder.finish();
    next.finish();
}

/// It is no leader of a session, as a script under a terminal, cron or a CI runner. The hold has seen
/// the child when it began.
#[test]
fn a_child_of_a_killed_script_keeps_the_lock() {
    let world = World::without_redis();
    let mut target = Target::sh(&world, "sleep 1000 & echo $! > child.pid; wait");
    let child = world.wait_for_pid("child.pid");
    let holder = begun(&world, &["--tree", "-t", "4s"], 0, &target);
    let rest = || world.status("k")["holders"][0]["rest"].clone();
    assert_eq!(rest(), Value::Null);
    target.0.kill().expect("it lives");
    let kept = format!("{child} (sleep)");
    wait_until("status names the child", || rest() == kept.as_str());
    let shown = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(
        shown.contains(&format!("kept by  what the command left behind when it ended: {kept}")),
        "{shown}"
    );
    let shown = world.dlock(["status"]).any_stdout().run().stdout;
    assert!(
        shown.contains(&format!("(has ended; what it left behind then keeps the lock: {kept})")),
        "{shown}"
    );
    waits_for(&world, holder, child);
}

/// No look can have seen the child, which is found by its session.
#[test]
fn what_is_left_of_a_session_keeps_the_lock() {
    let world = World::without_redis();
    let script = "until [ -e go ]; do sleep 0.05; done; sleep 1000 & echo $! > child.pid; kill -9 $$";
    let target = Target(world.command("setsid").args(["sh", "-c", script]).spawn().expect("a process"));
    let holder = begun(&world, &["--tree", "-t", LONG], 0, &target);
    world.write("go", "");
    waits_for(&world, holder, world.wait_for_pid("child.pid"));
}

/// The daemon was seen below the process, and its parent ended before the process did.
#[test]
fn a_daemon_is_not_waited_for() {
    let world = World::without_redis();
    let script = "setsid sh -c 'sleep 1000 & echo $! > daemon.pid; until [ -e leave ]; do sleep 0.05; done' &
        echo $! > parent.pid; until [ -e end ]; do sleep 0.05; done";
    let target = Target::sh(&world, script);
    let (daemon, parent) = (world.wait_for_pid("daemon.pid"), world.wait_for_pid("parent.pid"));
    let holder = begun(&world, &["--tree", "-t", LONG], 0, &target);
    world.write("leave", "");
    wait_until("its parent has ended", || !proc::acts(parent));
    world.write("end", "");
    holder.finish();
    assert!(proc::acts(daemon));
    proc::signal(daemon, Signal::KILL);
}

#[test]
fn an_operator_stops_what_is_waited_for() {
    let world = World::without_redis();
    let mut target = Target::sh(&world, "sleep 1000 & echo $! > child.pid; wait");
    let child = world.wait_for_pid("child.pid");
    let holder = begun(&world, &["--tree", "-t", LONG], 79, &target);
    target.0.kill().expect("it lives");
    wait_until("it waits", || holder.messages().contains("(--tree)"));
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    assert!(!proc::acts(child), "it returns when the child is dead");
    holder.finish();
}

/// Two holds of one script are below it, and do not wait for each other.
#[test]
fn a_dlock_is_not_waited_for() {
    let world = World::without_redis();
    let script = r#"for key in a b; do "$D" hold -k $key --pid $$ --tree & done; until [ -e end ]; do sleep 0.05; done"#;
    let mut command = world.command("sh");
    command.args(["-c", script]).env("D", BINARY).env("DLOCK_STORE", world.url());
    let mut target = Target(command.spawn().expect("sh"));
    for key in ["a", "b"] {
        world.wait_for_state(key, "held");
    }
    world.write("end", "");
    assert!(target.0.wait().expect("our child").success());
    for key in ["a", "b"] {
        world.wait_for_state(key, "free");
    }
}

/// systemd stops a whole control group, and the process cleans up.
#[test]
fn a_signal_does_not_end_a_hold_in_the_background() {
    let world = World::without_redis();
    let target = Target::sh(&world, "sleep 1000 & echo $! > child.pid; wait");
    let child = world.wait_for_pid("child.pid");
    let options = ["-t", LONG, "--tree", "--background", "--export", "--log", "messages"];
    let output = hold(&world, "k", &options, &target).any_stdout().run();
    let pid = output.stdout.split(r#""process":{"pid":"#).nth(1).and_then(|rest| rest.split(',').next());
    let pid: i32 = pid.and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{}", output.stdout));
    let stays = || {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            proc::signal(pid, signal);
            wait_until("it has read the signal", || !proc::awaits(pid, signal.as_raw()));
        }
        world.run("k", &["-w", "0.5"], "true").status(75).any_stderr().run();
    };
    stays();
    drop(target);
    wait_until("only the child is left", || world.read("messages").contains("(--tree)"));
    stays();
    proc::signal(child, Signal::KILL);
    world.wait_for_state("k", "free");
}

#[test]
fn a_stopped_watcher_keeps_no_lock() {
    let world = World::without_redis();
    let target = Target::sh(&world, "exec sleep 1000");
    let holder = begun(&world, &["-t", LONG], 0, &target);
    let watcher = proc::children(holder.guard()).into_iter().find(|pid| proc::name(*pid) == "dlock-watch");
    proc::signal(watcher.expect("a watcher"), Signal::STOP);
    drop(target);
    holder.finish();
}

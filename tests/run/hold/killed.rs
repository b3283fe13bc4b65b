//! dlock, its guard or its watcher is killed or stopped while `dlock hold` holds a lock for a
//! process.

use super::{LONG, Target, hold, next_is_alone, survivors};
use crate::support::dlock::{Dlock, Running};
use crate::support::job;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

/// So long that only the guard's stop ends the job in time.
const SLOWLY: [&str; 4] = ["-t", LONG, "--grace", "2s"];

on_every_store!(hold_killed, hold_stopped, its_guard_killed, its_guard_stopped, both_stopped);

/// A hold, and a run that waits for its end.
fn held_and_awaited<'w>(world: &'w World, holder: Dlock<'w>) -> (Running, Running) {
    let holder = holder.any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    (holder, next)
}

fn hold_killed(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let (holder, next) = held_and_awaited(&world, hold(&world, "k", &SLOWLY, &target).dies_of(9));
    let guard = holder.guard();
    holder.signal(Signal::KILL);
    next.finish();
    wait_until("the guard ends", || !proc::alive(guard));
    let printed = holder.finish().stderr;
    assert!(printed.lines().all(|line| line.starts_with("dlock: ")), "also by its guard: {printed}");
    next_is_alone(&world);
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    assert!(world.log().contains(&"thawed".into()), "with TERM comes CONT");
    assert_eq!(survivors(&world), [""; 0]);
}

fn hold_stopped(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let (holder, next) = held_and_awaited(&world, hold(&world, "k", &["-t", "10s"], &target).status(79));
    holder.signal(Signal::STOP);
    next.finish();
    next_is_alone(&world);
    holder.signal(Signal::CONT);
    holder.finish();
    drop(target);
}

fn its_guard_killed(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let (holder, next) = held_and_awaited(&world, hold(&world, "k", &SLOWLY, &target).status(70));
    proc::signal(holder.guard(), Signal::KILL);
    next.finish();
    let output = holder.finish();
    assert!(
        output.stderr.contains("the guard process was killed; the process it is held for"),
        "{}",
        output.stderr
    );
    next_is_alone(&world);
    assert_eq!(survivors(&world), [""; 0]);
    drop(target);
}

fn its_guard_stopped(backend: Backend) {
    let world = World::new(backend);
    let mut target = Target::sh(&world, "exec sleep 1000");
    let holder = hold(&world, "k", &["-t", "5s"], &target).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let guard = holder.guard();
    proc::signal(guard, Signal::STOP);
    wait_until("the guard stops", || proc::stopped(guard));
    // The wait is longer than the lease: the lock stays held all the time.
    world.run("k", &["-w", "6s"], "echo overlap >> log").status(75).any_stderr().run();
    target.0.kill().expect("it lives");
    holder.finish();
    world.run("k", &["-w", "20s"], "echo next >> log").any_stderr().run();
    assert_eq!(world.log(), ["next"]);
}

/// While both are stopped, nothing stops the process. When they go on, the lease is over, and they
/// kill the process and its descendants.
fn both_stopped(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "3s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let guard = holder.guard();
    for pid in [holder.pid(), guard] {
        proc::signal(pid, Signal::STOP);
        wait_until("it stops", || proc::stopped(pid));
    }
    world.run("k", &["--wait"], "echo next >> log").any_stderr().run();
    for pid in [guard, holder.pid()] {
        proc::signal(pid, Signal::CONT);
    }
    holder.finish();
    assert_eq!(survivors(&world), [""; 0]);
    drop(target);
}

#[test]
fn its_watcher_killed() {
    let world = World::without_redis();
    let target = Target::family(&world);
    let (holder, next) = held_and_awaited(&world, hold(&world, "k", &SLOWLY, &target).status(70));
    let guard = holder.guard();
    let watcher = proc::children(guard).into_iter().find(|pid| proc::name(*pid) == "dlock-watch");
    proc::signal(watcher.expect("a watcher"), Signal::KILL);
    next.finish();
    next_is_alone(&world);
    let output = holder.finish();
    assert!(output.stderr.contains("the watcher process was killed"), "{}", output.stderr);
    drop(target);
}

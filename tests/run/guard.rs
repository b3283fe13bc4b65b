//! dlock or its guard is killed or stopped: the whole job is dead before another run gets the lock.
//! After a kill the next waiter gets the lock at once, not when the lease ends.

mod late_starts;
mod processes;
mod waiters;
mod without_proc;

use crate::support::job;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::{Pid, Signal, kill_process_group};
use std::process::Command;
use std::thread;

on_every_store!(
    dlock_killed,
    dlock_stopped,
    guard_killed,
    guard_stopped,
    guard_killed_before_the_start,
    a_stopped_guard_keeps_no_ended_job,
    on_lost_warn_ends_with_dlock,
);

/// A lease so long that a test would fail if a waiter had to wait for its end.
const LONG: &str = "10m";

fn dlock_killed(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let holder = world.run("k", &["-t", LONG, "--grace", "2s"], job::FAMILY).dies_of(9).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::KILL);
    holder.finish();
    next.finish();
    assert_eq!(world.log().last().map(String::as_str), Some("next"));
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    assert!(world.log().contains(&"thawed".into()), "with TERM comes CONT");
}

fn dlock_stopped(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let holder = world.run("k", &["-t", "10s"], job::FAMILY).status(79).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::STOP);
    next.finish();
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    holder.signal(Signal::CONT);
    holder.finish();
}

fn guard_killed(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-t", LONG, "--grace", "2s"];
    let holder = world.run("k", &options, job::FAMILY).status(70).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(holder.guard(), Signal::KILL);
    next.finish();
    let output = holder.finish();
    assert!(output.stderr.contains("dlock: the guard"), "it says why: {}", output.stderr);
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    assert_eq!(job::survivors(&world), [""; 0]);
}

/// The job is being stopped because its lease runs out. The status stays 79, even if the store
/// comes back and the guard is killed.
#[test]
fn guard_killed_while_it_stops_a_job_that_lost_its_lease() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    // The job survives TERM, so that only KILL ends it.
    let job = "trap 'echo term >> log' TERM; echo up >> log; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "15s"], job).env("DLOCK_STORE", proxy.url()).status(79);
    let holder = holder.any_stderr().spawn();
    world.wait_for_log("up");
    proxy.begin_outage();
    world.wait_for_log("term");
    proxy.end_outage();
    wait_until("it can be renewed again", || holder.messages().contains("answers again"));
    proc::signal(holder.guard(), Signal::KILL);
    let output = holder.finish();
    assert_eq!(output.stderr.matches("is being stopped").count(), 1, "{}", output.stderr);
}

/// While the guard is stopped, dlock renews the lease. When the guard goes on, the run ends as
/// usual.
fn guard_stopped(backend: Backend) {
    let world = World::new(backend);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done; echo end >> log; exit 4";
    let holder = world.run("k", &["-t", "5s"], job).status(4).any_stderr().spawn();
    world.wait_for_log("up");
    let guard = holder.guard();
    proc::signal(guard, Signal::STOP);
    wait_until("the guard stops", || proc::stopped(guard));
    // The wait is longer than the lease: the lock stays held all the time.
    world.run("k", &["-w", "6s"], "echo overlap >> log").status(75).any_stderr().run();
    proc::signal(guard, Signal::CONT);
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "end"]);
}

/// Without a guard dlock itself releases the granted lock, instead of leaving it to the lease.
fn guard_killed_before_the_start(backend: Backend) {
    let world = World::new(backend);
    // On `file:` the dlock that is stopped below may hold the lock's mutex, and the holder then
    // reports that it waits.
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &[], job).any_stderr().spawn();
    world.wait_for_log("up");
    let queued = world.run("k", &["-w", "-t", LONG], "echo ran >> log").status(70).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(queued.guard(), Signal::KILL);
    queued.finish();
    assert_eq!(world.waiters("k"), 0, "it has left the queue");
    let granted = world.run("k", &["-w", "-t", LONG], "echo ran >> log").status(70).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    granted.signal(Signal::STOP);
    proc::signal(granted.guard(), Signal::KILL);
    world.write("go", "");
    holder.finish();
    granted.signal(Signal::CONT);
    granted.finish();
    assert_eq!((world.state("k").as_str(), world.log()), ("free", vec!["up".to_owned()]));
}

/// If CMD has ended and its guard is stopped, dlock still exits with CMD's status and releases the
/// lock.
fn a_stopped_guard_keeps_no_ended_job(backend: Backend) {
    thread::scope(|scope| {
        for options in [&["-t", LONG][..], &["-t", LONG, "--tree"], &["-t", LONG, "--on-lost", "warn"]] {
            scope.spawn(move || {
                let world = World::new(backend);
                let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 4";
                let holder = world.run("k", options, job).status(4).any_stderr().spawn();
                world.wait_for_log("up");
                let guard = holder.guard();
                proc::signal(guard, Signal::STOP);
                wait_until("the guard stops", || proc::stopped(guard));
                world.write("go", "");
                holder.finish();
                assert_eq!(world.state("k"), "free");
            });
        }
    });
}

/// CMD has ended by the TERM, but other processes of the job live, and the guard that would kill
/// them is stopped. dlock must not take the job for ended.
#[test]
fn a_guard_stopped_in_the_middle_of_a_stop_spares_no_process() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let script = "sh family & trap 'echo left >> log; exit 0' TERM; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "8s", "--max-run", "2s", "--grace", "10m"], script).status(79);
    let holder = holder.any_stderr().spawn();
    job::family(&world);
    let guard = holder.guard();
    world.wait_for_log("left");
    proc::signal(guard, Signal::STOP);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    // With its guard stopped, dlock goes on renewing. It stops the job when it cannot renew any
    // more.
    world.redis().pause();
    holder.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
    world.redis().resume();
    next.finish();
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

/// With `--on-lost warn` a job may outlive its lease, but not its dlock.
fn on_lost_warn_ends_with_dlock(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-t", LONG, "--grace", "300ms", "--on-lost", "warn"];
    let holder = world.run("k", &options, job::FAMILY).dies_of(9).any_stderr().spawn();
    job::family(&world);
    holder.signal(Signal::KILL);
    holder.finish();
    wait_until("the job is dead", || job::survivors(&world).is_empty());
    world.wait_for_state("k", "free");
}

/// A shell or a supervisor may kill dlock's whole process group. The guard is not in it.
#[test]
fn the_group_of_dlock_killed() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let options = ["-t", LONG, "--grace", "300ms"];
    let holder = world.run("k", &options, job::FAMILY).dies_of(9).any_stderr().spawn();
    job::family(&world);
    let group = Pid::from_raw(holder.pid()).expect("a process id");
    kill_process_group(group, Signal::KILL).expect("dlock leads a group");
    holder.finish();
    wait_until("the job is dead", || job::survivors(&world).is_empty());
    world.wait_for_state("k", "free");
}

/// The guard must get the processor even on a busy machine.
#[test]
fn a_guard_that_stops_a_job_has_real_time_priority() {
    if !Command::new("chrt").args(["-r", "1", "true"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: this user may not have a real-time priority");
        return;
    }
    let world = World::new(Backend::Redis);
    let job = "trap 'while [ ! -e go ]; do sleep 0.1; done; exit' TERM; echo up >> log; while :; do sleep 0.1; done";
    let options = ["--max-run", "2s", "--grace", "1m"];
    let holder = world.run("k", &options, job).status(124).any_stderr().spawn();
    world.wait_for_log("up");
    let guard = holder.guard();
    assert!(!proc::is_real_time(guard), "not before");
    wait_until("it has a real-time priority", || proc::is_real_time(guard));
    world.write("go", "");
    holder.finish();
}

//! dlock or its guard is killed or stopped: the whole job is dead before anybody else has the lock, and the next
//! waiter gets it, after a kill without waiting for the lease to end.

mod processes;
mod waiters;

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
    guard_stopped_keeps_no_ended_job,
    on_lost_warn_ends_with_dlock,
);

/// A lease so long that whoever waits for its end is found out.
const LONG: &str = "10m";

fn dlock_killed(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let holder =
        world.run("k", &["-t", LONG, "--grace", "500ms"], job::FAMILY).dies_of(9).any_stderr().spawn();
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
    let options = ["-t", LONG, "--grace", "500ms"];
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

/// The lease has run out, and the job is being stopped for that, whatever becomes of the store and of the guard: 79.
#[test]
fn guard_killed_while_it_stops_a_job_that_lost_its_lease() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    // Deaf to TERM, so that only KILL ends it.
    let job = "trap 'echo term >> log' TERM; echo up >> log; while :; do sleep 0.05; done";
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

/// A stopped guard harms nobody while dlock renews; once it goes on, all ends as usual.
fn guard_stopped(backend: Backend) {
    let world = World::new(backend);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done; echo end >> log; exit 4";
    let holder = world.run("k", &["-t", "5s"], job).status(4).any_stderr().spawn();
    world.wait_for_log("up");
    let guard = holder.guard();
    proc::signal(guard, Signal::STOP);
    wait_until("the guard stops", || proc::stopped(guard));
    // Longer than the lease, by a clock of its own: the lock is somebody's all the time.
    world.run("k", &["-w", "6s"], "echo overlap >> log").status(75).any_stderr().run();
    proc::signal(guard, Signal::CONT);
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "end"]);
}

/// Where there is no guard to give back what was granted, dlock does it, and does not leave it to the lease.
fn guard_killed_before_the_start(backend: Backend) {
    let world = World::new(backend);
    // On `file:` the dlock that is stopped below may have the mutex of the lock, and the holder says that it waits for it.
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";
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

/// A job that ended is over, and ended as it did, also when its guard does not say so.
fn guard_stopped_keeps_no_ended_job(backend: Backend) {
    thread::scope(|scope| {
        for options in [&["-t", LONG][..], &["-t", LONG, "--tree"], &["-t", LONG, "--on-lost", "warn"]] {
            scope.spawn(move || {
                let world = World::new(backend);
                let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done; exit 4";
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

/// CMD has ended of the TERM, the rest has not, and the guard that was to kill it is stopped: the job is not over.
#[test]
fn a_guard_stopped_in_the_middle_of_a_stop_spares_nobody() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let script = "sh family & trap 'echo left >> log; exit 0' TERM; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "8s", "--max-run", "2s", "--grace", "10m"], script).status(79);
    let holder = holder.any_stderr().spawn();
    job::family(&world);
    let guard = holder.guard();
    world.wait_for_log("left");
    proc::signal(guard, Signal::STOP);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    // With its guard stopped the lock is renewed, and the job is stopped when that ends.
    world.redis().pause();
    holder.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
    world.redis().resume();
    next.finish();
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

/// `--on-lost warn` lets the lease pass, but no job outlives its dlock.
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

/// Somebody kills dlock's whole process group, as a shell or a supervisor may: the guard is not in it.
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

/// However busy the machine is.
#[test]
fn a_guard_that_stops_a_job_comes_before_others() {
    if !Command::new("chrt").args(["-r", "1", "true"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: this user may not have a real-time priority");
        return;
    }
    let world = World::new(Backend::Redis);
    let job = "trap 'while [ ! -e go ]; do sleep 0.02; done; exit' TERM; echo up >> log; while :; do sleep 0.02; done";
    let options = ["--max-run", "2s", "--grace", "1m"];
    let holder = world.run("k", &options, job).status(124).any_stderr().spawn();
    world.wait_for_log("up");
    let guard = holder.guard();
    assert!(!proc::is_real_time(guard), "not before");
    wait_until("it has a real-time priority", || proc::is_real_time(guard));
    world.write("go", "");
    holder.finish();
}

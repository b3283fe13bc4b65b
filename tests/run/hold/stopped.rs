//! If the lock is lost or taken away, the process that it is held for is stopped, with all of its
//! descendants.

use super::{LONG, MEMBERS, Target, hold, next_is_alone, survivors};
use crate::support::deadline::{dead_in_time, end_of_last_lease, now};
use crate::support::dlock::BINARY;
use crate::support::job;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::geteuid;
use std::thread;
use std::time::Duration;

on_every_store!(an_operator_stops_the_process, a_lost_lock_stops_the_process);

fn an_operator_stops_the_process(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", LONG, "--grace", "2s"], &target).status(79);
    let holder = holder
        .stderr_like("dlock: .*asked for k in .* back; the process it is held for is being stopped\n")
        .spawn();
    world.wait_for_state("k", "held");
    world.dlock(["release", "k", "-y", "--reason", "upgrade"]).any_stderr().run();
    assert_eq!(survivors(&world), [""; 0], "it returns when the hold has ended");
    let output = holder.finish();
    assert!(output.stderr.contains("(upgrade)"), "{}", output.stderr);
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    drop(target);
}

fn a_lost_lock_stops_the_process(backend: Backend) {
    let world = World::new(backend);
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "6s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "--force", "-y"]).any_stderr().run();
    next.finish();
    next_is_alone(&world);
    holder.finish();
    drop(target);
}

/// The store is away for half a lease, and later for good.
#[test]
fn an_outage_of_half_the_lease_disturbs_nothing_and_a_longer_one_ends_in_time() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let target = Target::family(&world);
    let holder = hold(&world, "k", &["-t", "8s"], &target).env("DLOCK_STORE", proxy.url()).status(79);
    let holder = holder.any_stderr().spawn();
    world.wait_for_state("k", "held");
    world.redis().after_renewal("dlock:k");
    proxy.begin_outage();
    // The outage itself: half of the lease.
    thread::sleep(Duration::from_secs(4));
    proxy.end_outage();
    wait_until("it is renewed again", || holder.messages().contains("answers again"));
    assert_eq!(survivors(&world), MEMBERS);
    let expires = world.redis().after_renewal("dlock:k");
    proxy.begin_outage();
    let end = end_of_last_lease(expires, now(), Duration::from_secs(8));
    dead_in_time(|| now() >= end, || survivors(&world));
    holder.finish();
    drop(target);
}

#[test]
fn on_lost_warn_only_warns() {
    let world = World::new(Backend::Redis);
    let mut target = Target::sh(&world, "exec sleep 1000");
    let holder =
        hold(&world, "k", &["-t", "2s", "--on-lost", "warn"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    world.dlock(["release", "k", "--force", "-y"]).any_stderr().run();
    wait_until("it says so", || holder.messages().contains("runs on without it"));
    assert_eq!(target.0.try_wait().expect("our child"), None);
    target.0.kill().expect("it lives");
    holder.finish();
}

/// dlock may not signal the process, so it names it, and keeps the lock until the process ends.
#[test]
fn a_process_of_another_user_is_named_and_waited_for() {
    if !geteuid().is_root() {
        println!("skipped: this takes root");
        return;
    }
    let world = World::new(Backend::Redis);
    world.open_to_all();
    let target = Target::sh(&world, "until [ -e go ]; do sleep 0.1; done");
    let pid = target.pid().to_string();
    let dlock = world.dlock(["hold", "-k", "k", "-t", LONG, "--grace", "200ms", "--pid", &pid]);
    let holder =
        dlock.under(&["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]).status(79);
    let holder = holder.any_stderr().any_stdout().spawn();
    wait_until("it says so", || holder.messages().contains("if the lock is lost: it runs as another user"));
    world.wait_for_state("k", "held");
    let release = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    wait_until("it says so again", || holder.messages().contains(&format!("process {pid} (sh)")));
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
    release.finish();
}

/// A script starts the dlock that holds a lock for it. That dlock is a descendant of the script,
/// but is not stopped with it.
#[test]
fn dlock_may_descend_from_the_process_that_it_holds_the_lock_for() {
    let world = World::without_redis();
    let script = format!(
        "trap 'echo term >> log; sleep 1; exit' TERM; '{BINARY}' hold -k k -t 10m --pid $$ 2> messages & \
         echo $! > dlock.pid; sleep 1000 & wait"
    );
    let mut command = world.command("sh");
    let child = command.args(["-c", &script]).env("DLOCK_STORE", world.url()).spawn();
    let mut target = Target(child.expect("a process"));
    world.wait_for_state("k", "held");
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    assert!(target.0.wait().is_ok());
    assert_eq!(world.log(), ["term"]);
    let history = world.dlock(["history", "--json", "k"]).any_stdout().run().stdout;
    assert!(history.contains("\"stopped\""), "{history}");
}

/// The process ends at once by the TERM, and its child gets another parent.
#[test]
fn orphans_of_a_process_that_is_stopped_are_stopped_too() {
    let world = World::without_redis();
    job::prepare(&world);
    let target = Target::sh(&world, "sh member deaf & wait");
    let deaf = world.wait_for_pid("deaf.pid");
    let holder = hold(&world, "k", &["-t", LONG, "--grace", "1s"], &target).status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    next.finish();
    next_is_alone(&world);
    assert!(!proc::acts(deaf));
    holder.finish();
    drop(target);
}

/// Processes that are started while others get TERM or KILL are found.
#[test]
fn a_process_that_keeps_forking_is_stopped_with_all_its_children() {
    // One process ends by the TERM while its child forks; the other one forks itself until the
    // KILL.
    for (before, behind) in [("(", ") & wait"), ("trap '' TERM; ", "")] {
        let world = World::without_redis();
        let script = format!(
            "{before}while :; do sleep 1000 & sleep 1000 & sleep 0.001; n=$((n + 1)); [ $n -lt 50 ] || echo up > up; \
             [ $n -lt 1000 ] || exec sleep 1000; done{behind}"
        );
        let target = Target::sh(&world, &script);
        let holder =
            hold(&world, "k", &["-t", LONG, "--grace", "20ms"], &target).status(79).any_stderr().spawn();
        wait_until("many are there", || world.path("up").exists());
        world.wait_for_state("k", "held");
        world.dlock(["release", "k", "-y"]).any_stderr().run();
        holder.finish();
        let home = world.path("").canonicalize().expect("a path");
        let here = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at == home);
        let left: Vec<i32> = proc::pids().into_iter().filter(|pid| here(pid) && proc::acts(*pid)).collect();
        assert_eq!(left, [0; 0], "{before}");
        drop(target);
    }
}

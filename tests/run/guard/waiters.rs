//! A waiter is killed or stopped, or its whole machine dies: the queue goes on, in order.

use super::LONG;
use crate::support::dlock::Running;
use crate::support::proc;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use std::time::{Duration, Instant};

on_every_store!(
    waiter_killed,
    stopped_waiter_does_not_run_late,
    a_waiter_whose_guard_was_stopped_goes_on,
    crashed_waiters_delay_the_queue_once,
    newcomer_does_not_overtake_after_a_crash,
);

/// The next waiter gets the lock, although the waiter before it was killed.
fn waiter_killed(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let doomed = world.run("k", &["-w"], "echo doomed >> log").any_stderr().dies_of(9).spawn();
    world.wait_for_waiters("k", 1);
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    doomed.signal(Signal::KILL);
    doomed.finish();
    world.write("go", "");
    holder.finish();
    next.finish();
    assert_eq!(world.log(), ["up", "next"]);
}

/// A waiter is stopped while it is granted the lock and the grant ends. It must not start its job
/// then.
fn stopped_waiter_does_not_run_late(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let job = "echo sleeper $(ls running 2> /dev/null) >> log";
    let sleeper = world.run("k", &["-w", "-t", "4s"], job).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    sleeper.signal(Signal::STOP);
    let job = "echo next >> log; : > running; while [ ! -e done ]; do sleep 0.1; done; rm running";
    let next = world.run("k", &["-w"], job).any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    world.write("go", "");
    holder.finish();
    // The grant lasts 4 s, and the waiter is stale after 5 s. Then the queue goes on.
    wait_within(Duration::from_secs(20), "the next in line runs", || {
        world.log().contains(&"next".into()).then_some(())
    });
    sleeper.signal(Signal::CONT);
    wait_until("the sleeper waits again", || world.waiters("k") == 1);
    world.write("done", "");
    next.finish();
    sleeper.finish();
    assert_eq!(world.log(), ["up", "next", "sleeper"]);
}

fn a_waiter_whose_guard_was_stopped_goes_on(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(waiter.guard(), Signal::STOP);
    let waiting = || world.status("k")["waiters"][0]["waiting_ms"].as_u64();
    let stopped = waiting().expect("it waits");
    wait_until("it has waited for long without its guard", || {
        waiting().is_none_or(|waiting| waiting > stopped + 2500)
    });
    assert_eq!(world.waiters("k"), 1);
    proc::signal(waiter.guard(), Signal::CONT);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

/// A machine with many waiters dies, so none of them leaves the queue. Together they delay it once,
/// not one after the other.
fn crashed_waiters_delay_the_queue_once(backend: Backend) {
    let world = World::new(backend);
    let hold = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", LONG], hold).spawn();
    world.wait_for_log("up");
    let doomed = world.queue("k", &["-w", "-t", LONG], ["echo doomed >> log"; 6]);
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    wait_until("the next waits", || world.waiters("k") == 7);
    doomed.iter().for_each(crash);
    world.write("go", "");
    holder.finish();
    // 10 s are promised; a busy machine takes longer.
    wait_within(Duration::from_secs(20), "the next in line runs", || {
        (world.lines("next") == 1).then_some(())
    });
    next.finish();
    assert_eq!(world.log(), ["up", "next"]);
}

/// The holder's machine dies, its lease ends, and the head of the queue notices late. A newcomer
/// must not get the lock before the head.
fn newcomer_does_not_overtake_after_a_crash(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "5s"], "echo up >> log; exec sleep 1000").any_stderr().spawn();
    world.wait_for_log("up");
    let head = world.run("k", &["-w"], "echo head >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    match backend {
        // On a directory the death is noticed at once.
        Backend::File => {
            head.signal(Signal::STOP);
            crash(&holder);
        }
        // The head must miss the end of the lease, but not be stopped for so long that it is stale.
        _ => {
            crash(&holder);
            let left = || world.status("k")["holders"][0]["lease_ms"].as_u64();
            wait_until("the lease is nearly over", || left().is_some_and(|left| left < 1000));
            head.signal(Signal::STOP);
        }
    }
    let over = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < over {
        world.run("k", &[], "echo overtook >> log").status(75).any_stderr().run();
    }
    head.signal(Signal::CONT);
    head.finish();
    assert_eq!(world.log(), ["up", "head"]);
}

/// Kills dlock and its guard at the same moment, as a power failure would.
fn crash(dlock: &Running) {
    let guard = dlock.guard();
    dlock.signal(Signal::STOP);
    proc::signal(guard, Signal::KILL);
    dlock.signal(Signal::KILL);
}

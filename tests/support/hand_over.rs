//! A holder, a waiter, and a hand-over: the basic check that a client can use a store.

use super::dlock::{Dlock, finish_all};
use super::proc;
use super::wait::wait_within;
use super::world::World;
use rustix::process::Signal;
use std::time::Duration;

/// A job that runs until `go` exists.
pub const JOB: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done; echo done >> log";

/// `dlock` adds what both need to log in.
#[track_caller]
pub fn hand_over<'w>(world: &'w World, dlock: impl Fn(Dlock<'w>) -> Dlock<'w>) {
    let holder = dlock(world.run("k", &["-t", "60s"], JOB)).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = dlock(world.run("k", &["-w"], "echo next >> log")).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// A crowd of readers is granted the lock together, in more than one transaction.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub fn hand_over_to_readers(world: &World) {
    const CROWD: usize = dlock::rules::GRANTED_AT_ONCE + 6;
    let holder = world.run("k", &["-t", "2m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let job = "echo in >> log; while [ ! -e over ]; do sleep 0.2; done";
    let mut readers = Vec::new();
    while readers.len() < CROWD {
        readers.push(world.run("k", &["-w", "-s", "-t", "2m"], job).any_stderr().spawn());
        // Not all at once, because they would conflict for long.
        if readers.len() % 10 == 0 || readers.len() == CROWD {
            world.wait_for_waiters("k", readers.len());
        }
    }
    world.write("go", "");
    holder.finish();
    world.wait_for_lines("in", CROWD);
    world.write("over", "");
    finish_all(readers);
}

/// Far back in a queue a waiter reads the lock rarely. It must notice all the same that those before
/// it have died, one of them with a new grant, which lapses after four seconds.
pub fn notices_deaths(world: &World) {
    let options = ["-w", "-t", "1m"];
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let wait = |script: &str| world.run("k", &options, script).any_stderr().spawn();
    let crowd: Vec<_> = (0..57).map(|_| wait("true")).collect();
    world.wait_for_waiters("k", 57);
    let next = wait("while [ ! -e on ]; do sleep 0.1; done");
    world.wait_for_waiters("k", 58);
    let few = [59, 60].map(|number| {
        let waiter = wait("true");
        world.wait_for_waiters("k", number);
        waiter
    });
    let dead = [61, 62].map(|number| {
        let waiter = world.run("k", &options, "true").dies_of(9).any_stderr().spawn();
        world.wait_for_waiters("k", number);
        waiter
    });
    let last = wait("echo last >> log");
    world.wait_for_waiters("k", 63);
    world.write("go", "");
    holder.finish();
    finish_all(crowd);
    world.wait_for_waiters("k", 5);
    for waiter in &dead {
        // Neither may see the other's death.
        waiter.signal(Signal::STOP);
        proc::signal(waiter.guard(), Signal::KILL);
        waiter.signal(Signal::KILL);
    }
    world.write("on", "");
    next.finish();
    finish_all(few);
    wait_within(Duration::from_secs(25), "its turn", || world.log().contains(&"last".into()).then_some(()));
    last.finish();
    finish_all(dead);
}

//! A holder, a waiter, and a hand-over: the basic check that a client can use a store.

use super::dlock::Dlock;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use super::dlock::finish_all;
use super::world::World;

/// A job that runs until `go` exists.
pub const JOB: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done; echo done >> log";

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

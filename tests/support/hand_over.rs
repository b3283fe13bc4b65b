//! One holds a lock, one waits, and it is handed over: who can do that at a store can use it.

use super::dlock::Dlock;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use super::dlock::finish_all;
use super::world::World;

/// A job that goes on until `go` is there.
pub const JOB: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done; echo done >> log";

/// `dlock` is given what both need to get in.
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

/// A crowd that may have the lock together is let in, in more than one step.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub fn hand_over_to_readers(world: &World) {
    const CROWD: usize = dlock::rules::GRANTED_AT_ONCE + 6;
    let holder = world.run("k", &["-t", "2m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let job = "echo in >> log; while [ ! -e over ]; do sleep 0.2; done";
    let mut readers = Vec::new();
    while readers.len() < CROWD {
        readers.push(world.run("k", &["-w", "-s", "-t", "2m"], job).any_stderr().spawn());
        // Not all at once: they would get into each other's way for long.
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

//! One holds a lock, one waits, and it is handed over: who can do that at a store can use it.

use super::dlock::Dlock;
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

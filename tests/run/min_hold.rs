//! `--min-hold`: a job runs once per cron tick, even if the clocks of the hosts differ.

use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    the_second_host_is_busy,
    it_counts_from_the_grant,
    it_outlives_a_kill,
    it_applies_after_a_failure,
    a_waiter_gets_the_lock_when_it_is_over,
    it_excludes_waiting,
);

fn the_second_host_is_busy(backend: Backend) {
    let world = World::new(backend);
    world.run("tick", &["--min-hold", "5m"], "echo ran >> log").run();
    // The first run has ended, and the lock is still kept.
    assert_eq!(world.state("tick"), "cooling");
    let busy = "dlock: .*tick.*\n";
    world.run("tick", &["--min-hold", "5m"], "echo ran >> log").status(75).stderr_like(busy).run();
    world.run("tick", &[], "echo ran >> log").status(75).stderr_like(busy).run();
    world.run("tick", &["-w", "200ms"], "echo ran >> log").status(75).stderr_like(busy).run();
    assert_eq!(world.log(), ["ran"]);
    assert_eq!(world.state("tick"), "cooling");
}

fn it_counts_from_the_grant(backend: Backend) {
    let world = World::new(backend);
    // The job takes longer than the min-hold, so the lock is free at its end.
    world.run("tick", &["--min-hold", "1s"], "sleep 1.2").run();
    assert_eq!(world.state("tick"), "free");
    // After a shorter job the lock is free a little later.
    world.run("tick", &["--min-hold", "1s"], "true").run();
    wait_until("the min-hold ends", || {
        let second = world.run("tick", &[], "echo ran >> log").any_stderr().spawn().output();
        second.status.success()
    });
}

fn it_outlives_a_kill(backend: Backend) {
    let world = World::new(backend);
    let options = ["-t", "6s", "--min-hold", "5m", "--grace", "200ms"];
    let holder =
        world.run("tick", &options, "echo up >> log; exec sleep 1000").dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    holder.signal(Signal::KILL);
    holder.finish();
    world.wait_for_state("tick", "cooling");
    world.run("tick", &[], "echo ran >> log").status(75).any_stderr().run();
}

fn it_applies_after_a_failure(backend: Backend) {
    let world = World::new(backend);
    world.run("tick", &["--min-hold", "5m"], "exit 1").status(1).run();
    world.run("tick", &[], "echo ran >> log").status(75).any_stderr().run();
    world.run("tock", &["--min-hold", "5m"], "kill -9 $$").dies_of(9).run();
    world.run("tock", &[], "echo ran >> log").status(75).any_stderr().run();
    // An operator may end the min-hold.
    world.dlock(["release", "tick", "--force"]).any_stdout().any_stderr().run();
    world.run("tick", &[], "echo ran >> log").run();
    assert_eq!(world.log(), ["ran"]);
}

fn a_waiter_gets_the_lock_when_it_is_over(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run(
        "tick",
        &["--min-hold", "2s", "-t", "10m"],
        "echo up >> log; while [ ! -e go ]; do sleep 0.1; done",
    );
    let holder = holder.spawn();
    world.wait_for_log("up");
    let waiter = world.run("tick", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("tick", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

fn it_excludes_waiting(backend: Backend) {
    let world = World::new(backend);
    let both = world.run("tick", &["--min-hold", "5s", "--wait"], "echo ran >> log");
    both.status(64).stderr_like("dlock: .*(\n.*)?\n").run();
    assert_eq!(world.log(), [""; 0]);
}

//! A guard that is stopped in the middle of starting the job.

use crate::support::dlock::Running;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library behind `stop_at_start.c`.
fn stopper(world: &World) -> PathBuf {
    let library = world.path("stop_at_start.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/stop_at_start.c");
    let options = ["-shared", "-fPIC", "-O1", "-w", "-o"];
    let built = Command::new("cc").args(options).arg(&library).arg(&source).arg("-ldl").status();
    assert!(built.expect("cc is installed").success(), "cc cannot build stop_at_start.c");
    library
}

/// Waits until dlock and its guard are stopped, lets another run have the lock when the lease is
/// over, and continues both.
fn outsleep_the_lease(world: &World, holder: &Running) {
    let guard = holder.guard();
    wait_until("both are stopped", || proc::stopped(guard) && proc::stopped(holder.pid()));
    world.run("k", &["-w"], "echo next >> log").any_stderr().run();
    proc::signal(guard, Signal::CONT);
    wait_until("the guard goes on", || !proc::stopped(guard));
    holder.signal(Signal::CONT);
}

/// CMD is not executed under a lease that is over.
#[test]
fn a_guard_stopped_just_before_the_start_starts_nothing_late() {
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let holder = world.run("k", &["-t", "1s"], "echo ran >> log").env("LD_PRELOAD", stopper(&world));
        let holder = holder
            .env("STOP_NOTES", world.path("log"))
            .status(69)
            .stderr_like("dlock: .* was granted, but too late to rely on it; .*\n");
        let holder = holder.spawn();
        outsleep_the_lease(&world, &holder);
        holder.finish();
        assert_eq!(world.log(), ["next"]);
    }
}

/// A hold is not called granted under a lease that is over, and its process is left alone.
#[test]
fn a_guard_stopped_just_before_the_start_grants_no_hold_late() {
    let world = World::new(Backend::Redis);
    let mut process = world.command("sleep").arg("1000").spawn().expect("a process");
    let pid = i32::try_from(process.id()).expect("a process id");
    let holder = world.dlock(["hold", "-k", "k", "-t", "1s", "--json", "--pid", &pid.to_string()]);
    let holder = holder.env("LD_PRELOAD", stopper(&world)).status(69);
    let holder = holder.stderr_like("dlock: .* was granted, but too late to rely on it; .*\n").spawn();
    outsleep_the_lease(&world, &holder);
    holder.finish();
    assert!(proc::acts(pid), "no hold was ever said to be granted to it");
    process.kill().expect("it lives");
    process.wait().expect("it is our child");
}

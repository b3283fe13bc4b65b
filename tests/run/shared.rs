//! Readers share a lock, and a writer has it alone. Both are granted it in the order of arrival.

use crate::support::dlock::{Running, finish_all};
use crate::support::storm::{Wish, storm};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;

on_every_store!(
    readers_run_beside_each_other,
    a_writer_does_not_run_beside_a_reader,
    a_queued_writer_holds_back_later_readers,
    all_readers_at_the_head_come_in_together,
    the_order_of_arrival_is_kept_between_modes,
    a_reader_that_dies_disturbs_no_other,
    a_reader_that_is_lost_with_its_guard_delays_the_writer_by_its_lease,
    readers_and_writers_that_are_killed_at_random,
);

/// A job that runs until the file `NAME.go` exists.
fn hold(name: &str) -> String {
    format!("echo start {name} >> log; while [ ! -e {name}.go ]; do sleep 0.1; done; echo end {name} >> log")
}

fn reader(world: &World, name: &str) -> Running {
    let reader = world.run("k", &["-s"], &hold(name)).spawn();
    world.wait_for_log(&format!("start {name}"));
    reader
}

fn readers_run_beside_each_other(backend: Backend) {
    let world = World::new(backend);
    let readers = ["a", "b", "c"].map(|name| reader(&world, name));
    let status = world.status("k");
    assert_eq!((&status["state"], &status["mode"]), (&"held".into(), &"shared".into()));
    let holders = status["holders"].as_array().expect("holders");
    let pids = holders.iter().map(|holder| holder["pid"].as_i64()).collect::<Vec<_>>();
    assert_eq!(pids, readers.each_ref().map(|reader| Some(i64::from(reader.pid()))), "the oldest first");
    let fences = holders.iter().map(|holder| holder["fence"].as_u64()).collect::<Vec<_>>();
    assert!(fences.is_sorted_by(|a, b| a < b), "each has a fence of its own: {fences:?}");
    let table = world.dlock(["status"]).any_stdout().run().stdout;
    for reader in &readers {
        assert!(table.contains(&reader.pid().to_string()) && table.contains("shared"), "{table}");
    }
    world.write("b.go", "");
    world.wait_for_log("end b");
    wait_until("two are left", || world.status("k")["holders"].as_array().is_some_and(|all| all.len() == 2));
    world.write("a.go", "");
    world.write("c.go", "");
    finish_all(readers);
    assert_eq!(world.state("k"), "free");
}

fn a_writer_does_not_run_beside_a_reader(backend: Backend) {
    let world = World::new(backend);
    let first = reader(&world, "a");
    let second = reader(&world, "b");
    let busy = r"dlock: k in .* held shared by .*@.* and by one other; exclusive was asked for; the command did not run.*\n";
    world.run("k", &[], "echo ran >> log").status(75).stderr_like(busy).run();
    world.run("k", &["-x", "-w", "100ms"], "echo ran >> log").status(75).any_stderr().run();
    let writer = world.run("k", &["-w"], &hold("w")).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    assert_eq!(world.status("k")["waiters"][0]["mode"], "exclusive");
    world.write("a.go", "");
    first.finish();
    world.write("b.go", "");
    second.finish();
    world.wait_for_log("start w");
    let busy = r"dlock: k in .* held exclusive by .*@.*; shared was asked for; the command did not run.*\n";
    world.run("k", &["-s"], "echo ran >> log").status(75).stderr_like(busy).run();
    world.write("w.go", "");
    writer.finish();
    assert_eq!(world.log(), ["start a", "start b", "end a", "end b", "start w", "end w"]);
}

fn a_queued_writer_holds_back_later_readers(backend: Backend) {
    let world = World::new(backend);
    let first = reader(&world, "a");
    let writer = world.run("k", &["-w"], &hold("w")).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world
        .run("k", &["-s"], "echo overtook >> log")
        .status(75)
        .stderr_like(r"dlock: k in .* held shared by .*; .*@.* \(pid \d+\) already waits for it \(.*\); .*\n")
        .run();
    let said =
        world.dlock(["acquire", "--log-format", "json", "-s", "-k", "k"]).status(75).any_stderr().run();
    let said: Value = serde_json::from_str(&said.stderr).expect("JSON");
    assert_eq!((&said["event"], &said["by"]["pid"]), (&"busy".into(), &writer.pid().into()));
    let later = world.run("k", &["-s", "-w"], &hold("b")).any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    world.write("a.go", "");
    first.finish();
    world.wait_for_log("start w");
    world.write("w.go", "");
    world.write("b.go", "");
    writer.finish();
    later.finish();
    assert_eq!(world.log(), ["start a", "end a", "start w", "end w", "start b", "end b"]);
}

/// All these readers run at the same time: none ends before all have begun.
fn all_readers_at_the_head_come_in_together(backend: Backend) {
    const READERS: usize = 6;
    let world = World::new(backend);
    let first = world.run("k", &[], &hold("w")).spawn();
    world.wait_for_log("start w");
    let together =
        format!("echo start r >> log; until [ $(grep -c 'start r' log) = {READERS} ]; do sleep 0.1; done");
    let mut crowd = world.queue("k", &["-s", "-w"], [&together; READERS]);
    crowd.push(world.run("k", &["-w"], "echo second writer >> log").any_stderr().spawn());
    world.wait_for_waiters("k", READERS + 1);
    crowd.push(world.run("k", &["-s", "-w"], "echo later reader >> log").any_stderr().spawn());
    world.wait_for_waiters("k", READERS + 2);
    world.write("w.go", "");
    first.finish();
    finish_all(crowd);
    let log = world.log();
    assert_eq!(log[2 + READERS..], ["second writer", "later reader"], "{log:?}");
}

fn the_order_of_arrival_is_kept_between_modes(backend: Backend) {
    let world = World::new(backend);
    let first = world.run("k", &[], &hold("w")).spawn();
    world.wait_for_log("start w");
    let kinds = ["-x", "-s", "-s", "-x", "-n2", "-n2", "-x", "-n3", "-s", "-x"];
    let mut crowd = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        crowd.push(
            world.run("k", &[kind, "-w"], &format!("echo {at} >> log; sleep 0.2")).any_stderr().spawn(),
        );
        world.wait_for_waiters("k", at + 1);
    }
    world.write("w.go", "");
    first.finish();
    finish_all(crowd);
    let log = world.log();
    // Readers that are granted the lock together have no order among them.
    let mut order = log[2..].iter().map(|line| line.parse().expect("a number")).collect::<Vec<usize>>();
    order[1..3].sort_unstable();
    order[4..6].sort_unstable();
    assert_eq!(order, (0..kinds.len()).collect::<Vec<_>>(), "{log:?}");
}

/// Only dlock is killed, so its guard releases the hold. The others go on for more than a lease.
fn a_reader_that_dies_disturbs_no_other(backend: Backend) {
    let world = World::new(backend);
    let short = ["-s", "-t", "5s", "--grace", "100ms"];
    let mut dying = world.run("k", &short, &hold("dying")).spawn();
    world.wait_for_log("start dying");
    let stays = world.run("k", &short, &hold("stays")).spawn();
    world.wait_for_log("start stays");
    dying.signal(Signal::KILL);
    wait_until("one is left", || world.status("k")["holders"].as_array().is_some_and(|all| all.len() == 1));
    wait_until("the dead one has ended", || dying.has_ended());
    let held = || world.status("k")["holders"][0]["held_ms"].as_u64() > Some(6000);
    wait_until("it is kept for more than a lease", held);
    world.run("k", &[], "true").status(75).any_stderr().run();
    let writer = world.run("k", &["-w"], "echo writer >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("stays.go", "");
    stays.finish();
    writer.finish();
    assert_eq!(world.log(), ["start dying", "start stays", "end stays", "writer"]);
}

/// dlock and its guard are killed, so the hold ends with its own lease. The lease of the other
/// reader does not keep it.
fn a_reader_that_is_lost_with_its_guard_delays_the_writer_by_its_lease(backend: Backend) {
    let world = World::new(backend);
    let lost = world.run("k", &["-s", "-t", "6s"], &format!("echo $$ > lost.pid; {}", hold("lost"))).spawn();
    world.wait_for_log("start lost");
    let stays = world.run("k", &["-s", "-t", "8s"], &hold("stays")).any_stderr().spawn();
    world.wait_for_log("start stays");
    let job = world.wait_for_pid("lost.pid");
    for pid in [lost.guard(), lost.pid(), job] {
        crate::support::proc::signal(pid, Signal::KILL);
    }
    let one = || world.status("k")["holders"].as_array().is_some_and(|all| all.len() == 1);
    wait_until("its hold has ended", one);
    assert_eq!(world.status("k")["holders"][0]["pid"], stays.pid());
    world.run("k", &[], "true").status(75).any_stderr().run();
    world.write("stays.go", "");
    stays.finish();
    world.run("k", &[], "true").run();
}

fn readers_and_writers_that_are_killed_at_random(backend: Backend) {
    let world = World::new(backend);
    let reader = || Wish { keys: &["k"], options: &["-s"], kind: "shared" };
    let writer = || Wish { keys: &["k"], options: &[], kind: "alone" };
    storm(&world, 6, 25, &[reader(), writer(), reader()]);
}

//! Up to N runs hold a lock, each in its own slot.

use crate::support::dlock::{Running, finish_all};
use crate::support::storm::{Wish, storm};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;

on_every_store!(
    each_gets_the_lowest_free_slot,
    a_freed_slot_goes_to_the_first_waiter,
    another_number_of_slots_is_busy,
    only_a_job_with_slots_has_a_slot_number,
    a_dead_holders_slot_is_used_again,
    slots_under_churn,
);

/// A job that logs its slot, and runs until the file `NAME.go` exists.
fn hold(name: &str) -> String {
    format!("echo {name} $DLOCK_SLOT >> log; while [ ! -e {name}.go ]; do sleep 0.1; done")
}

fn holder(world: &World, name: &str, slot: usize) -> Running {
    let holder = world.run("k", &["-n", "3"], &hold(name)).spawn();
    world.wait_for_log(&format!("{name} {slot}"));
    holder
}

fn each_gets_the_lowest_free_slot(backend: Backend) {
    let world = World::new(backend);
    let [a, b, c] = ["a", "b", "c"].map(|name| holder(&world, name, usize::from(name.as_bytes()[0] - b'a')));
    let busy =
        r"dlock: k in .* is busy: all its 3 slots are held, one by .*@.*; the command did not run; .*\n";
    world.run("k", &["-n", "3"], "echo ran >> log").status(75).stderr_like(busy).run();
    let status = world.status("k");
    assert_eq!((&status["mode"], &status["slots"]), (&"slots".into(), &3.into()));
    let holders = status["holders"].as_array().expect("holders");
    let shown = holders.iter().map(|holder| (holder["slot"].as_u64(), holder["pid"].as_i64()));
    let expected =
        [&a, &b, &c].into_iter().zip(0..).map(|(one, slot)| (Some(slot), Some(i64::from(one.pid()))));
    assert_eq!(shown.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let table = world.dlock(["status"]).any_stdout().run().stdout;
    assert!(["slot 0/3", "slot 1/3", "slot 2/3"].iter().all(|slot| table.contains(slot)), "{table}");
    world.write("b.go", "");
    b.finish();
    let again = holder(&world, "d", 1);
    world.write("a.go", "");
    world.write("c.go", "");
    a.finish();
    c.finish();
    let again = [again, holder(&world, "e", 0), holder(&world, "f", 2)];
    for name in ["d", "e", "f"] {
        world.write(&format!("{name}.go"), "");
    }
    finish_all(again);
    assert_eq!(world.state("k"), "free");
}

fn a_freed_slot_goes_to_the_first_waiter(backend: Backend) {
    let world = World::new(backend);
    let holders = ["a", "b", "c"].map(|name| holder(&world, name, usize::from(name.as_bytes()[0] - b'a')));
    let waiters = world.queue("k", &["-n3", "-w"], (0..4).map(|at| hold(&format!("w{at}"))));
    // No newcomer overtakes, although a slot is free for a moment.
    world.write("b.go", "");
    world.wait_for_log("w0 1");
    world.run("k", &["-n3"], "echo overtook >> log").status(75).any_stderr().run();
    world.write("w0.go", "");
    world.wait_for_log("w1 1");
    world.write("c.go", "");
    world.wait_for_log("w2 2");
    world.write("a.go", "");
    world.wait_for_log("w3 0");
    for name in ["w1", "w2", "w3"] {
        world.write(&format!("{name}.go"), "");
    }
    finish_all(holders);
    finish_all(waiters);
    assert_eq!(world.lines("overtook"), 0);
}

fn another_number_of_slots_is_busy(backend: Backend) {
    let world = World::new(backend);
    let first = holder(&world, "a", 0);
    for (options, asked) in [
        (&["-n", "5"][..], "5 slots were asked for"),
        (&["-n", "1"], "1 slot was asked for"),
        (&["-s"], "shared was asked for"),
        (&[], "exclusive was asked for"),
    ] {
        let busy = format!(
            r"dlock: k in .* 1 of its 3 slots held, by .*@.*; {asked}; the command did not run; .*\n"
        );
        world.run("k", options, "echo ran >> log").status(75).stderr_like(&busy).run();
    }
    let waits = world.run("k", &["-n", "5", "-w"], &hold("five")).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let waiting = world.status("k")["waiters"][0].clone();
    assert_eq!((&waiting["mode"], &waiting["slots"]), (&"slots".into(), &5.into()));
    world.write("a.go", "");
    first.finish();
    world.wait_for_log("five 0");
    assert_eq!(world.status("k")["slots"], 5);
    world.run("k", &["-n", "3"], "echo ran >> log").status(75).any_stderr().run();
    world.write("five.go", "");
    waits.finish();
    let many = world.run("k", &["-n", "1000"], &hold("many")).spawn();
    world.wait_for_log("many 0");
    world.write("many.go", "");
    many.finish();
    assert!(!world.log().contains(&"ran".to_owned()));
}

/// A job without slots has no slot number, even if a surrounding job has one. A report has the
/// number.
fn only_a_job_with_slots_has_a_slot_number(backend: Backend) {
    let world = World::new(backend);
    let told = "echo ${DLOCK_SLOT-none}";
    world.run("k", &["-n2"], told).stdout("0\n").run();
    world.run("k", &[], told).env("DLOCK_SLOT", "7").stdout("none\n").run();
    world.run("k", &["-s"], told).env("DLOCK_SLOT", "7").stdout("none\n").run();
    world.run("k", &["-n2", "--report", "r.json"], "true").run();
    let report: Value = serde_json::from_str(&world.read("r.json")).expect("JSON");
    assert_eq!(report["slot"], 0);
}

fn a_dead_holders_slot_is_used_again(backend: Backend) {
    let world = World::new(backend);
    let dying = world.run("k", &["-n3", "-t", "8s", "--grace", "100ms"], &hold("dying")).spawn();
    world.wait_for_log("dying 0");
    let stays = world.run("k", &["-n3", "-t", "8s"], &hold("stays")).spawn();
    world.wait_for_log("stays 1");
    dying.signal(Signal::KILL);
    wait_until("one is left", || world.status("k")["holders"].as_array().is_some_and(|all| all.len() == 1));
    let next = holder(&world, "next", 0);
    world.write("stays.go", "");
    world.write("next.go", "");
    stays.finish();
    next.finish();
}

fn slots_under_churn(backend: Backend) {
    let world = World::new(backend);
    let slot = || Wish { keys: &["k"], options: &["-n", "3"], kind: "slot" };
    let alone = || Wish { keys: &["k"], options: &[], kind: "alone" };
    storm(&world, 7, 22, &[slot(), slot(), slot(), slot(), slot(), alone()]);
    let started = |kind: &str| world.log().iter().any(|line| line.starts_with(&format!("start {kind} ")));
    assert!(started("slot") && started("alone"));
}

//! Processes of one machine whose CLOCK_BOOTTIME differs, in time namespaces: containers with time
//! offsets. All see the same boot.

use crate::support::dlock::Running;
use crate::support::job;
use crate::support::proc;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

type Namespace = &'static [&'static str];

const MACHINE: Namespace = &[];
const AHEAD: Namespace = &["unshare", "--time", "--boottime", "40", "--fork", "--kill-child"];
const BEHIND: Namespace = &["unshare", "--time", "--boottime", "-40", "--fork", "--kill-child"];
const A_DAY_AHEAD: Namespace = &["unshare", "--time", "--boottime", "86400", "--fork", "--kill-child"];

const UNTIL_END: &str = "echo up >> log; while [ ! -e end ]; do sleep 0.1; done";

/// Whether the test may make such namespaces. The machine must have been up for 40 s.
fn may_shift() -> bool {
    let may = |words: Namespace| {
        let status = Command::new(words[0]).args(&words[1..]).arg("true").status();
        status.is_ok_and(|status| status.success())
    };
    let may = may(AHEAD) && may(BEHIND);
    if !may {
        println!("skipped: this user cannot make time namespaces");
    }
    may
}

/// The dlock itself, which `unshare` may have started.
fn dlock_of(run: &Running) -> i32 {
    wait_for("dlock", || {
        let below = proc::children(run.pid()).into_iter().find(|pid| proc::name(*pid) == "dlock");
        below.or_else(|| (proc::name(run.pid()) == "dlock").then_some(run.pid()))
    })
}

fn guard_of(run: &Running) -> i32 {
    let dlock = dlock_of(run);
    wait_for("a guard", || proc::children(dlock).into_iter().find(|pid| proc::name(*pid) == "dlock-guard"))
}

/// The lease is renewed meanwhile: the second run waits longer than it.
#[test]
fn a_held_lock_is_held_whatever_the_clock_shows() {
    if !may_shift() {
        return;
    }
    for (first, second) in [(MACHINE, AHEAD), (BEHIND, MACHINE), (BEHIND, AHEAD), (AHEAD, BEHIND)] {
        let world = World::new(Backend::File);
        let holder = world.run("k", &["-t", "2s"], UNTIL_END).under(first).any_stderr().spawn();
        world.wait_for_log("up");
        let second = world.run("k", &["-w", "3s"], "echo overlap >> log").under(second);
        second.status(75).any_stderr().run();
        world.write("end", "");
        holder.finish();
        assert_eq!(world.log(), ["up"]);
    }
}

/// dlock and its guard are stopped, so nobody renews the lease.
#[test]
fn a_lease_runs_out_in_its_own_time_whatever_the_clock_shows() {
    if !may_shift() {
        return;
    }
    for (first, second) in [(A_DAY_AHEAD, MACHINE), (MACHINE, BEHIND)] {
        let world = World::new(Backend::File);
        let holder = world.run("k", &["-t", "2s"], UNTIL_END).under(first).any_stderr().spawn();
        world.wait_for_log("up");
        let (dlock, guard) = (dlock_of(&holder), guard_of(&holder));
        for pid in [dlock, guard] {
            proc::signal(pid, Signal::STOP);
        }
        world.run("k", &["-w", "20s"], "echo next >> log").under(second).any_stderr().run();
        assert_eq!(world.log(), ["up", "next"]);
        for pid in [dlock, guard] {
            proc::signal(pid, Signal::CONT);
        }
        holder.output();
    }
}

#[test]
fn waiters_come_in_order_whatever_the_clock_shows() {
    if !may_shift() {
        return;
    }
    let world = World::new(Backend::File);
    let holder = world.run("k", &[], UNTIL_END).any_stderr().spawn();
    world.wait_for_log("up");
    let mut waiters = Vec::new();
    for (number, namespace) in [BEHIND, MACHINE, AHEAD, MACHINE].into_iter().enumerate() {
        let job = format!("echo {number} >> log");
        waiters.push(world.run("k", &["-w"], &job).under(namespace).any_stderr().spawn());
        world.wait_for_waiters("k", number + 1);
    }
    world.write("end", "");
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    assert_eq!(world.log(), ["up", "0", "1", "2", "3"]);
}

#[test]
fn a_killed_dlock_leaves_nothing_to_overlap_whatever_the_clock_shows() {
    if !may_shift() {
        return;
    }
    for namespace in [BEHIND, AHEAD] {
        let world = World::new(Backend::File);
        job::prepare(&world);
        let options = ["-t", "10m", "--grace", "500ms"];
        let holder = world.run("k", &options, job::FAMILY).under(namespace).any_stderr().spawn();
        job::family(&world);
        let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        proc::signal(dlock_of(&holder), Signal::KILL);
        next.finish();
        holder.output();
        assert_eq!(world.log().last().map(String::as_str), Some("next"));
        assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    }
}

/// A script in another namespace finds the process of its hold by number and start.
#[test]
fn the_process_of_a_hold_is_named_by_the_time_of_the_machine() {
    if !may_shift() {
        return;
    }
    let started = |pid: i64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        let fields = stat.rsplit_once(')').expect("a name").1.split_whitespace().nth(19).map(str::parse);
        fields.expect("a start").expect("a number")
    };
    for namespace in [MACHINE, BEHIND, AHEAD] {
        let world = World::new(Backend::File);
        let words = ["hold", "-k", "k", "--pid", &std::process::id().to_string(), "--background"];
        let script = format!(
            "\"$0\" {} --env-file variables && echo done >> log; while [ ! -e end ]; do sleep 0.1; done",
            words.join(" ")
        );
        let mut holder = world.command(namespace.first().unwrap_or(&"env"));
        holder.args(namespace.get(1..).unwrap_or_default());
        holder.args(["sh", "-c", &script, crate::support::dlock::BINARY]);
        let mut holder = holder.env("DLOCK_STORE", world.url()).spawn().expect("a shell");
        world.wait_for_log("done");
        let variables = world.read("variables");
        let held = variables.lines().find_map(|line| line.strip_prefix("DLOCK_HELD=")).expect("a hold");
        let held: Value = serde_json::from_str(held.trim_matches('\'')).expect("JSON");
        let process = &held[0]["process"];
        let pid = process["pid"].as_i64().expect("a process");
        let said = process["started"].as_u64().expect("a start");
        let seen: u64 = started(pid);
        assert!(said.abs_diff(seen) <= 1, "{said} for {seen}");
        proc::signal(i32::try_from(pid).expect("a process id"), Signal::STKFLT);
        wait_until("the hold ends", || world.state("k") == "free");
        world.write("end", "");
        holder.wait().expect("it is our child");
    }
}

//! The record of refused runs: each run that does not get a lock is recorded beside it, on every
//! store.

use crate::support::dlock::finish_all;
use crate::support::masters::Masters;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;

on_every_store!(
    each_reason_is_recorded,
    a_waiter_that_is_ended_is_recorded,
    the_last_64_are_recorded,
    a_crowd_that_is_refused_does_the_holder_no_harm
);

const HOLD: &str = "echo up >> log; while ! [ -e go ]; do sleep 0.1; done";

/// What `history --refused` shows, newest first.
fn told(world: &World, key: &str) -> Vec<Value> {
    let printed = world.dlock(["history", "--refused", "--json", key]).any_stdout().run().stdout;
    serde_json::from_str(&printed).expect("JSON")
}

fn reasons(told: &[Value]) -> Vec<&str> {
    told.iter().map(|one| one["why"].as_str().unwrap_or("ended")).collect()
}

fn each_reason_is_recorded(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["--reason", "month end"], HOLD).spawn();
    world.wait_for_log("up");
    world.run("k", &["-q", "--label", "second"], "true").status(75).run();
    world.run("k", &["-q", "-w", "0.2"], "true").status(75).run();
    world.dlock(["acquire", "-q", "-k", "k"]).status(75).run();
    // The holder and the record of the lock are unchanged.
    let status = world.status("k");
    assert_eq!((&status["state"], &status["holders"][0]["pid"]), (&"held".into(), &holder.pid().into()));
    world.write("go", "");
    let holder_pid = holder.pid();
    holder.finish();
    let all = told(&world, "k");
    assert_eq!(reasons(&all), ["ended", "busy", "gave-up", "busy"]);
    let first = &all[3];
    assert_eq!((&first["outcome"], &first["command"]), (&"refused".into(), &"second".into()));
    assert_eq!((&first["refused_by"]["pid"], &first["key"]), (&holder_pid.into(), &"k".into()));
    assert_eq!(first["refused_by"]["reason"], "month end");
    assert!(all[2]["waited_ms"].as_u64() >= Some(200), "{all:#?}");
    let last = world.status("k")["last_refusal"].clone();
    assert_eq!(last, all[1]);
    let record = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(record.contains("refused") && record.contains("busy: held by"), "{record}");
    let lines = world.dlock(["history", "--refused", "k"]).any_stdout().run().stdout;
    assert_eq!(
        (lines.matches(" refused ").count(), lines.matches("gave up after").count()),
        (3, 1),
        "{lines}"
    );
    assert!(!world.dlock(["history", "k"]).any_stdout().run().stdout.contains("refused"));
    // A refusal creates no record of a lock that was never held.
    world.dlock(["pause", "-q", "p", "--reason", "freeze"]).run();
    world.run("p", &["-q"], "true").status(75).run();
    let all = told(&world, "p");
    assert_eq!((reasons(&all), &all[0]["refused_by"]["reason"]), (vec!["paused"], &"freeze".into()));
    assert_eq!(world.status("p")["fence"], Value::Null);
    world.run("o", &["-q", "--once-per", "1h"], "true").run();
    world.run("o", &["-q", "--once-per", "1h"], "true").run();
    assert_eq!(reasons(&told(&world, "o")), ["done", "ended"]);
    // The record of refusals is not listed as a lock.
    let known = world.dlock(["status", "--all", "--json"]).any_stdout().run().stdout;
    let known: Vec<Value> = serde_json::from_str(&known).expect("JSON");
    assert_eq!(
        known.iter().map(|lock| lock["key"].as_str().expect("a key")).collect::<Vec<_>>(),
        ["k", "o", "p"]
    );
    let known = world.dlock(["status", "--all", "--json", "--prefix", ""]).any_stdout().run().stdout;
    assert!(!known.contains("refused:"), "{known}");
}

/// A waiter with `--replace` is superseded by a newer one.
#[test]
fn a_replaced_waiter_is_recorded() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &["--no-replace"], HOLD).spawn();
    world.wait_for_log("up");
    let older = world.run("k", &["-q", "-w", "--replace"], "true").status(75).spawn();
    world.wait_for_waiters("k", 1);
    let newer = world.run("k", &["-q", "-w", "--replace"], "true").spawn();
    let newer_pid = newer.pid();
    older.finish();
    let all = told(&world, "k");
    assert_eq!((reasons(&all), &all[0]["refused_by"]["pid"]), (vec!["superseded"], &newer_pid.into()));
    world.write("go", "");
    finish_all([holder, newer]);
}

fn a_waiter_that_is_ended_is_recorded(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    for signal in [Signal::TERM, Signal::KILL] {
        let waiter = world.run("k", &["-q", "-w"], "true").dies_of(signal.as_raw()).spawn();
        world.wait_for_waiters("k", 1);
        waiter.signal(signal);
        waiter.finish();
        world.wait_for_waiters("k", 0);
    }
    // The record is at the lock that was in the way.
    let waiter = world.dlock(["run", "-q", "-k", "k", "-k", "a", "-w", "--", "true"]);
    let waiter = waiter.dies_of(Signal::TERM.as_raw()).spawn();
    world.wait_for_waiters("a", 1);
    waiter.signal(Signal::TERM);
    waiter.finish();
    wait_until("it is noted", || reasons(&told(&world, "k")).len() == 3);
    assert_eq!(told(&world, "k")[0]["refused_by"]["pid"], holder.pid());
    assert_eq!(reasons(&told(&world, "a")), [""; 0]);
    wait_until("all are noted", || reasons(&told(&world, "k")) == ["interrupted"; 3]);
    world.write("go", "");
    holder.finish();
}

/// The lock is free, and its first waiter needs another one as well.
#[test]
fn who_waited_before_is_recorded() {
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let holder = world.run("k", &[], HOLD).spawn();
        world.wait_for_log("up");
        let waiter = world.dlock(["run", "-q", "-k", "k", "-k", "other", "-w", "--", "true"]).spawn();
        world.wait_for_waiters("other", 1);
        let before = format!(
            r"dlock: other in .* is busy: .* \(pid {}\) already waits for it \('true'\); .*\n",
            waiter.pid()
        );
        world.run("other", &[], "true").status(75).stderr_like(&before).run();
        let all = told(&world, "other");
        assert_eq!((reasons(&all), &all[0]["refused_by"]["pid"]), (vec!["behind"], &waiter.pid().into()));
        world.write("go", "");
        finish_all([holder, waiter]);
    }
}

fn the_last_64_are_recorded(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    for number in 0..70 {
        let label = format!("{}{number}", "x".repeat(300));
        world.run("k", &["-q", "--label", &label], "true").status(75).run();
    }
    let all = told(&world, "k");
    assert_eq!(all.len(), 64);
    assert!(all.iter().all(|one| one["command"].as_str().is_some_and(|text| text.len() == 200)), "{all:#?}");
    world.write("go", "");
    holder.finish();
}

/// All at the same moment, as with cron.
fn a_crowd_that_is_refused_does_the_holder_no_harm(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "10s"], HOLD).spawn();
    world.wait_for_log("up");
    let crowd: Vec<_> = (0..40).map(|_| world.run("k", &["-q"], "true").status(75).spawn()).collect();
    finish_all(crowd);
    wait_until("some are noted", || !told(&world, "k").is_empty());
    world.write("go", "");
    holder.finish();
}

/// Each master records the refusal, and `history` shows it once.
#[test]
fn a_quorum_lists_each_refusal_once() {
    let masters = Masters::aged(3);
    let holder = masters.run("k", &[], HOLD).spawn();
    masters.world().wait_for_log("up");
    for _ in 0..2 {
        masters.run("k", &["-q"], "true").status(75).run();
    }
    let printed = masters.dlock(&["history", "--refused", "--json", "k"]).any_stdout().run().stdout;
    let all: Vec<Value> = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(reasons(&all), ["busy", "busy"]);
    masters.world().write("go", "");
    holder.finish();
}

/// Values that dlock did not write are no refusals, and do not prevent new ones.
#[test]
fn foreign_entries_are_skipped() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &[], HOLD).spawn();
    world.wait_for_log("up");
    let list = "dlock.refused:{dlock:k}:dlock:k";
    let refuse = || world.run("k", &["-q"], "true").status(75).run();
    world.redis().ask::<()>(&["SET", list, "no list"]);
    assert!(told(&world, "k").is_empty());
    refuse();
    let owner = format!(r#"{{"host":"{}"}}"#, "h".repeat(60_000));
    for other in [
        "",
        "1",
        "{}",
        r#"{"at":1,"why":"busy"}"#,
        &format!(r#"{{"at":1,"owner":{owner},"why":"busy"}}"#),
        r#"{"at":18446744073709551615,"owner":{},"why":"busy"}"#,
    ] {
        world.redis().ask::<()>(&["LPUSH", list, other]);
    }
    refuse();
    assert_eq!(reasons(&told(&world, "k")), ["busy", "busy"]);
    world.write("go", "");
    holder.finish();
}

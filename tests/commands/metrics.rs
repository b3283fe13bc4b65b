//! `dlock metrics`: counters and gauges, in a format that promtool accepts.

use crate::docs::observability::of_prometheus;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use std::fs::File;
use std::process::Command;

on_every_store!(
    known_histories_are_counted,
    holders_and_waiters_are_shown,
    an_unused_lock_is_shown_if_it_is_named,
    a_lock_has_few_series,
    promtool_finds_nothing_wrong,
    control_characters_are_escaped,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

#[track_caller]
fn metrics(world: &World, arguments: &[&str]) -> String {
    world.dlock(["metrics"]).args(arguments).any_stdout().run().stdout
}

/// The value of a series, by its name and labels.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().expect("a number"))
}

/// Makes a history with two successes, a failure, a signal, a refusal, a waiter that gave up, a
/// granted waiter, a crash, and a lock that was taken away.
fn history(world: &World, key: &str) {
    world.run(key, &[], "exit 0").run();
    world.run(key, &[], "exit 3").status(3).run();
    world.run(key, &[], "kill -TERM $$").dies_of(15).run();
    let holder = world.run(key, &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    world.run(key, &[], "true").status(75).any_stderr().run();
    world.run(key, &["-w", "50ms"], "true").status(75).any_stderr().run();
    let waiter = world.run(key, &["-w"], "exit 0").any_stderr().spawn();
    world.wait_for_waiters(key, 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    std::fs::remove_file(world.path("go")).expect("it was there");
    let crashed = world.run(key, &["-t", "5s"], HOLD).any_stderr().spawn();
    world.wait_for_lines("up", 2);
    let pids = [crashed.guard(), crashed.pid()];
    pids.into_iter().for_each(|pid| proc::signal(pid, Signal::STOP));
    pids.into_iter().for_each(|pid| proc::signal(pid, Signal::KILL));
    wait_until("the lock is free", || world.state(key) == "free");
    let forced = world.run(key, &["-t", "6s"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_lines("up", 3);
    world.dlock(["release", key, "--force"]).any_stderr().run();
    forced.finish();
}

fn known_histories_are_counted(backend: Backend) {
    let world = World::new(backend);
    history(&world, "k");
    world.run("l", &[], "exit 0").run();
    let text = metrics(&world, &["k"]);
    for (series, count) in [
        ("dlock_grants_total{key=\"k\"}", 7.0),
        ("dlock_busy_total{key=\"k\"}", 1.0),
        ("dlock_given_up_total{key=\"k\"}", 1.0),
        ("dlock_jobs_total{key=\"k\",result=\"succeeded\"}", 3.0),
        // An exit 3, a signal, the crash, and the lock that was taken away.
        ("dlock_jobs_total{key=\"k\",result=\"failed\"}", 4.0),
        ("dlock_hold_seconds_count{key=\"k\"}", 7.0),
        ("dlock_hold_seconds_bucket{key=\"k\",le=\"60\"}", 7.0),
        ("dlock_holders{key=\"k\"}", 0.0),
        ("dlock_queue_length{key=\"k\"}", 0.0),
        ("dlock_keys", 1.0),
    ] {
        assert_eq!(value(&text, series), Some(count), "{series}\n{text}");
    }
    let waited = value(&text, "dlock_wait_seconds_total{key=\"k\"}").expect("a sum");
    let held = value(&text, "dlock_hold_seconds_sum{key=\"k\"}").expect("a sum");
    assert!(waited > 0.0 && held > 0.0, "{waited} {held}");
    let at = |series: &str| value(&text, series).unwrap_or_else(|| panic!("{series}\n{text}"));
    let success = at("dlock_last_success_timestamp_seconds{key=\"k\"}");
    let expired = at("dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"expired\"}");
    let forced = at("dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"forced\"}");
    assert_eq!(at("dlock_last_failure_timestamp_seconds{key=\"k\"}"), forced);
    assert!(1.7e9 < success && success <= expired && expired <= forced, "{success} {expired} {forced}");
    assert!(!text.contains("outcome=\"lost\""), "never lost: {text}");
    let text = metrics(&world, &[]);
    assert_eq!(value(&text, "dlock_grants_total{key=\"l\"}"), Some(1.0));
    assert_eq!(value(&text, "dlock_keys"), Some(2.0));
}

fn control_characters_are_escaped(backend: Backend) {
    let world = World::new(backend);
    world.run("a\u{202e}b", &[], "true").run();
    world.run("a\\u{202e}b", &[], "true").run();
    let text = metrics(&world, &[]);
    assert_eq!(value(&text, r#"dlock_grants_total{key="a\\u{202e}b"}"#), Some(1.0), "{text}");
    assert_eq!(value(&text, r#"dlock_grants_total{key="a\\u{5c}u{202e}b"}"#), Some(1.0), "{text}");
    assert!(text.is_ascii(), "{text}");
}

fn holders_and_waiters_are_shown(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let text = metrics(&world, &[]);
    assert_eq!(value(&text, "dlock_holders{key=\"k\"}"), Some(1.0));
    assert_eq!(value(&text, "dlock_queue_length{key=\"k\"}"), Some(1.0));
    world.write("go", "");
    holder.finish();
    waiter.finish();
}

/// A named lock is shown with zeros, so an alert on it needs no `absent`. A lock that was only
/// watched is not shown.
fn an_unused_lock_is_shown_if_it_is_named(backend: Backend) {
    let world = World::new(backend);
    assert_eq!(value(&metrics(&world, &["k"]), "dlock_grants_total{key=\"k\"}"), Some(0.0));
    let watch = world.dlock(["watch", "-v", "k"]).any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    let text = metrics(&world, &[]);
    assert_eq!(value(&text, "dlock_keys"), Some(0.0));
    assert!(!text.contains("key="), "{text}");
    watch.signal(Signal::TERM);
    watch.finish();
}

/// A dashboard pays for each series of each key.
fn a_lock_has_few_series(backend: Backend) {
    let world = World::new(backend);
    for key in ["a", "b"] {
        world.run(key, &["--expect", "day"], "exit 0").run();
    }
    // A key that is given twice is shown once, or Prometheus refuses the page.
    for keys in [&[][..], &["a", "a"]] {
        let text = metrics(&world, keys);
        assert_eq!(text.matches("{key=\"a\"").count(), 25, "{text}");
        assert_eq!(text.matches("# TYPE ").count(), 16, "{text}");
    }
}

fn promtool_finds_nothing_wrong(backend: Backend) {
    let Some(promtool) = of_prometheus("promtool") else { return };
    let world = World::new(backend);
    let holder = world.run("quote\"back\\slash ünï", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    world.run("k", &[], "exit 0").run();
    world.run("k", &[], "exit 1").status(1).run();
    for arguments in [&[][..], &["never"]] {
        let text = metrics(&world, arguments);
        world.write("page", &text);
        let page = File::open(world.path("page")).expect("a page");
        let output = Command::new(&promtool).args(["check", "metrics"]).stdin(page).output();
        let output = output.expect("promtool runs");
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
    }
    assert!(
        metrics(&world, &[]).contains("key=\"quote\\\"back\\\\slash ünï\""),
        "escaped as the format says"
    );
    world.write("go", "");
    holder.finish();
}

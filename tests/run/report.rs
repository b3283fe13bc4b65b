//! `--report`: one JSON object about the run, however it ended. The file is complete or missing,
//! and a failure to write it changes nothing else.

mod report_file;

use crate::support::dlock::Dlock;
use crate::support::proc;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

on_every_store!(
    a_run_that_ends_by_itself,
    a_lock_that_is_busy,
    a_waiter_that_is_interrupted,
    a_command_that_does_not_start,
    max_run_and_the_status_of_the_command,
    a_lock_that_an_operator_takes_away,
);

const FIELDS: [&str; 16] = [
    "outcome",
    "status",
    "started",
    "exit_status",
    "signal",
    "lost",
    "forced_by",
    "key",
    "keys",
    "store",
    "waited_ms",
    "held_ms",
    "fence",
    "slot",
    "nested",
    "error",
];

const OUTCOMES: [&str; 10] = [
    "ran",
    "busy",
    "lost",
    "timeout",
    "interrupted",
    "not-started",
    "unreachable",
    "denied",
    "invalid",
    "fault",
];

const LOST: [&str; 3] = ["expired", "vanished", "forced"];

/// Reads and removes the report `r.json`, and checks its fields, types and words.
#[track_caller]
fn report(world: &World) -> Value {
    let text = world.read("r.json");
    fs::remove_file(world.path("r.json")).expect("a report");
    assert!(text.ends_with("}\n"), "{text:?}");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let object = report.as_object().expect("an object");
    let mut fields = object.keys().map(String::as_str).collect::<Vec<_>>();
    let mut expected = FIELDS.to_vec();
    fields.sort_unstable();
    expected.sort_unstable();
    assert_eq!(fields, expected);
    let word = |field: &str, words: &[&str]| words.contains(&report[field].as_str().unwrap_or("?"));
    assert!(word("outcome", &OUTCOMES), "{report}");
    assert!(report["lost"].is_null() || word("lost", &LOST), "{report}");
    assert_eq!(report["lost"].is_string(), report["outcome"] == "lost", "{report}");
    assert!(report["status"].is_u64() && report["started"].is_boolean());
    assert!(
        report["nested"].is_boolean() && (report["slot"].is_null() || report["slot"].is_u64()),
        "{report}"
    );
    for field in ["exit_status", "signal", "waited_ms", "held_ms", "fence"] {
        assert!(report[field].is_null() || report[field].is_u64(), "{field}: {report}");
    }
    assert_eq!(report["held_ms"].is_null(), report["fence"].is_null(), "{report}");
    assert!(report["store"].is_null() || report["store"] == world.shown(), "{report}");
    assert_eq!(report["keys"][0], report["key"]);
    report
}

/// Compares the fields in `expected` with those of the report.
#[track_caller]
fn expect(world: &World, expected: Value) -> Value {
    let report = report(world);
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&report[field], value, "{field} in {report}");
    }
    report
}

fn reported<'w>(world: &'w World, key: &str, options: &[&str], script: &str) -> Dlock<'w> {
    world.run(key, &[&["--report", "r.json"], options].concat(), script)
}

fn a_run_that_ends_by_itself(backend: Backend) {
    let world = World::new(backend);
    for status in [0, 3, 75, 79, 124, 255] {
        let script = format!("echo $DLOCK_FENCE > fence; sleep 0.1; exit {status}");
        reported(&world, "k", &[], &script).status(status).run();
        let report = expect(
            &world,
            json!({"outcome": "ran", "status": status, "started": true, "exit_status": status, "signal": null,
                   "key": "k", "error": null}),
        );
        assert_eq!(report["fence"].to_string(), world.read("fence").trim());
        assert!(report["held_ms"].as_u64() >= Some(100) && report["waited_ms"].is_u64(), "{report}");
        assert_eq!(report["store"], world.shown());
    }
    reported(&world, "k", &[], "kill -TERM $$").dies_of(15).run();
    expect(
        &world,
        json!({"outcome": "ran", "status": 143, "started": true, "exit_status": null, "signal": 15}),
    );
    // With --tree the status is that of CMD, and the lock is held until the last process ends.
    reported(&world, "k", &["--tree"], "sleep 0.3 & exit 6").status(6).run();
    let report = expect(&world, json!({"outcome": "ran", "status": 6, "exit_status": 6}));
    assert!(report["held_ms"].as_u64() >= Some(300), "{report}");
}

fn a_lock_that_is_busy(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    let busy = |status| {
        json!({"outcome": "busy", "status": status, "started": false, "exit_status": null, "signal": null,
               "held_ms": null, "fence": null, "error": null})
    };
    reported(&world, "k", &[], "true").status(75).any_stderr().run();
    expect(&world, busy(75));
    reported(&world, "k", &["-E", "0", "-q"], "true").run();
    expect(&world, busy(0));
    reported(&world, "k", &["-w", "300ms"], "true").status(75).any_stderr().run();
    let report = expect(&world, busy(75));
    assert!(report["waited_ms"].as_u64() >= Some(300), "{report}");
    let waiter = reported(&world, "k", &["-w"], "true").spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    expect(&world, json!({"outcome": "ran", "status": 0}));
}

fn a_waiter_that_is_interrupted(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    for signal in [Signal::INT, Signal::TERM] {
        let waiter = reported(&world, "k", &["-w"], "true").dies_of(signal.as_raw()).spawn();
        world.wait_for_waiters("k", 1);
        waiter.signal(signal);
        waiter.finish();
        let number = signal.as_raw();
        let report = expect(
            &world,
            json!({"outcome": "interrupted", "status": 128 + number, "started": false, "signal": number,
                   "exit_status": null, "fence": null}),
        );
        assert!(report["waited_ms"].is_u64());
        world.wait_for_waiters("k", 0);
    }
    world.write("go", "");
    holder.finish();
}

fn a_command_that_does_not_start(backend: Backend) {
    let world = World::new(backend);
    for (program, status) in [("no-such-program", 127), ("/", 126)] {
        let words = ["run", "-k", "k", "--report", "r.json", "--", program];
        world.dlock(words).status(status).any_stderr().run();
        expect(
            &world,
            json!({"outcome": "not-started", "status": status, "started": false, "exit_status": null}),
        );
    }
}

fn max_run_and_the_status_of_the_command(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'exit 5' TERM; while :; do sleep 0.1; done";
    reported(&world, "k", &["--max-run", "300ms"], job).status(124).any_stderr().run();
    expect(&world, json!({"outcome": "timeout", "status": 124, "started": true, "exit_status": 5}));
}

fn a_lock_that_an_operator_takes_away(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'exit 6' TERM; echo up >> log; while :; do sleep 0.1; done";
    let holder = reported(&world, "k", &["-t", "5s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    holder.finish();
    expect(
        &world,
        json!({"outcome": "lost", "lost": "forced", "status": 79, "started": true, "exit_status": 6}),
    );
}

#[test]
fn a_lock_that_vanishes_and_one_that_runs_out() {
    let mut world = World::new(Backend::Redis);
    let job = "echo up >> log; exec sleep 1000";
    let holder = reported(&world, "k", &["-t", "5s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<String>(&["FLUSHALL"]);
    holder.finish();
    expect(&world, json!({"outcome": "lost", "lost": "vanished", "exit_status": null, "signal": 15}));
    world.write("log", "");
    let holder = reported(&world, "k", &["-t", "5s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis_mut().kill();
    holder.finish();
    expect(&world, json!({"outcome": "lost", "lost": "expired", "signal": 15}));
}

/// The report has the message that dlock printed.
#[test]
fn an_error_of_dlock_itself() {
    let mut world = World::with_redis(&["--requirepass", "sesame"]);
    let failed = |world: &World, call: Dlock<'_>, outcome: &str, status: i32| {
        let output = call.status(status).any_stderr().run();
        let report = expect(
            world,
            json!({"outcome": outcome, "status": status, "started": false, "exit_status": null, "held_ms": null}),
        );
        let error = report["error"].as_str().expect("an error");
        assert_eq!(format!("dlock: {error}\n"), output.stderr);
        report
    };
    let call = || reported(&world, "k", &[], "true");
    failed(&world, call(), "denied", 77);
    failed(&world, call().env("DLOCK_PASSWORD", "wr0ng"), "denied", 77);
    let report = failed(&world, call().env("DLOCK_STORE", "gopher://x"), "invalid", 78);
    assert!(report["store"].is_null() && report["waited_ms"].is_null(), "{report}");
    world.write("c.toml", "tll = 3\n");
    failed(&world, call().env("DLOCK_CONFIG", "c.toml"), "invalid", 78);
    failed(&world, reported(&world, "a}b", &[], "true"), "invalid", 64);
    world.redis_mut().kill();
    let call = reported(&world, "k", &[], "true");
    failed(&world, call, "unreachable", 69);
}

/// The guard is killed.
#[test]
fn a_fault() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; exec sleep 1000";
    let holder = reported(&world, "k", &["--grace", "1s"], job).status(70).any_stderr().spawn();
    world.wait_for_log("up");
    proc::signal(holder.guard(), Signal::KILL);
    holder.finish();
    expect(&world, json!({"outcome": "fault", "status": 70, "started": true, "signal": 15}));
}

#[test]
fn the_password_is_not_in_it() {
    let world = World::with_redis(&["--requirepass", "sesame"]);
    let url = world.url().replace("redis://", "redis://:sesame@");
    reported(&world, "k", &[], "true").env("DLOCK_STORE", url).run();
    let text = world.read("r.json");
    assert!(text.contains(&world.redis().port().to_string()) && !text.contains("sesame"), "{text}");
}

/// docs/report.md names every field and every word.
#[test]
fn the_page_is_complete() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/report.md");
    let page = fs::read_to_string(page).expect("docs/report.md");
    for word in FIELDS.iter().chain(&OUTCOMES).chain(&LOST) {
        assert!(page.contains(&format!("`{word}`")), "{word}");
    }
    let example = page.lines().find(|line| line.starts_with('{')).expect("an example");
    let example: Value = serde_json::from_str(example).expect("JSON");
    assert!(FIELDS.iter().all(|field| example.get(field).is_some()) && example["outcome"] == "ran");
}

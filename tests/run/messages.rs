//! The messages of `--log-format json`. Each is valid by docs/dlock.schema.json, and in each
//! situation one of them has the event, the key, the store, the process concerned, and dlock's exit
//! status.

use crate::docs::schema::Definitions;
use crate::support::dlock::{Output, Running};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use serde_json::{Value, json};
use std::fs::File;
use std::process::Stdio;

on_every_store!(
    busy_messages_name_the_holder,
    waiters_report_their_place_and_their_grant,
    a_stopped_job_reports_the_reason,
    commands_report_the_state_of_the_lock,
    operator_commands_report_their_effect,
    a_hold_prints_its_events
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
const JSON: [&str; 2] = ["--log-format", "json"];

/// The messages in `text`, each of them checked against the schema.
#[track_caller]
fn messages(text: &str) -> Vec<Value> {
    let mut definitions = Definitions::read();
    text.lines().map(|line| definitions.check("message", line)).collect()
}

/// The message with this event; it must have the key, the store and the status.
#[track_caller]
fn told(world: &World, text: &str, event: &str, key: &str, status: Option<i32>) -> Value {
    let all = messages(text);
    let mut found = all.iter().filter(|message| message["event"] == event);
    let message = found.next().unwrap_or_else(|| panic!("no {event} in {text}"));
    assert_eq!(message["key"], key, "{text}");
    assert_eq!(message["store"], world.shown(), "{text}");
    assert_eq!(message["status"], json!(status), "{text}");
    message.clone()
}

/// The only message of a command.
#[track_caller]
fn last(output: &Output) -> Value {
    let all = messages(&output.stderr);
    assert_eq!(all.len(), 1, "{}", output.stderr);
    all[0].clone()
}

fn holder(world: &World, key: &str, options: &[&str]) -> Running {
    let before = world.lines("up");
    let holder = world.run(key, options, HOLD).any_stderr().spawn();
    world.wait_for_lines("up", before + 1);
    holder
}

fn busy_messages_name_the_holder(backend: Backend) {
    let world = World::new(backend);
    let dlock = |words: &[&str]| world.dlock(words.iter().chain(&JSON)).any_stderr().any_stdout();
    let run = |options: &[&str]| world.run("k", &[&JSON, options].concat(), "true").any_stderr();
    let first = holder(&world, "k", &["--reason", "why"]);
    let is_first = |message: &Value| {
        let holder = &message["holder"];
        let since = holder["acquired_at"].is_string() && holder["lease_ms"].is_number();
        assert!(since && holder["user"].is_string() && holder["host"].is_string(), "{message}");
        assert_eq!((&holder["pid"], &holder["reason"]), (&json!(first.pid()), &json!("why")));
    };
    let busy = |text: &str, status| is_first(&told(&world, text, "busy", "k", Some(status)));
    busy(&run(&["-E", "9"]).status(9).run().stderr, 9);
    busy(&run(&["-w", "100ms"]).status(75).run().stderr, 75);
    busy(&dlock(&["acquire", "-k", "k"]).status(75).run().stderr, 75);
    busy(&dlock(&["hold", "-k", "k", "--pid", "1"]).status(75).run().stderr, 75);
    busy(&dlock(&["wait", "k", "-w", "100ms"]).status(75).run().stderr, 75);
    // Of several keys the message names the busy one.
    let several = run(&["-k", "a"]).status(75).run();
    busy(&several.stderr, 75);
    world.write("go", "");
    first.finish();

    dlock(&["pause", "k", "--reason", "migration"]).run();
    let paused = told(&world, &run(&[]).status(75).run().stderr, "busy", "k", Some(75));
    assert_eq!((&paused["by"]["reason"], &paused["holder"]), (&json!("migration"), &Value::Null));
    dlock(&["resume", "k"]).run();
    run(&["--once-per", "1h"]).run();
    let done = told(&world, &run(&["--once-per", "1h"]).run().stderr, "done", "k", Some(0));
    assert!(done["by"]["pid"].is_number(), "{done}");
}

fn waiters_report_their_place_and_their_grant(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world, "k", &[]);
    let waiter = world.run("k", &[&JSON[..], &["-w"]].concat(), "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let looker = world.dlock(["wait", "k"].iter().chain(&JSON)).any_stderr().spawn();
    let second = world.run("k", &[&JSON[..], &["-w"]].concat(), "true").any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    // Without a terminal a waiter reports only after ten seconds.
    wait_until("all say that they wait", || {
        [&waiter, &looker, &second].iter().all(|one| one.messages().contains("\"waiting\""))
    });
    for (one, ahead) in [(&waiter, Some(0)), (&second, Some(1)), (&looker, None)] {
        let waiting = told(&world, &one.messages(), "waiting", "k", None);
        assert_eq!(waiting["ahead"], json!(ahead), "{waiting}");
        assert_eq!(waiting["holder"]["pid"], holder.pid(), "{waiting}");
        assert!(waiting["holder"]["held_ms"].as_u64() > Some(5000), "{waiting}");
    }
    world.write("go", "");
    holder.finish();
    for waiter in [waiter, second] {
        told(&world, &waiter.finish().stderr, "granted", "k", None);
    }
    told(&world, &looker.finish().stderr, "free", "k", None);
}

fn a_stopped_job_reports_the_reason(backend: Backend) {
    let world = World::new(backend);
    let run = |options: &[&str]| world.run("k", &[&JSON[..], &["-t", "30s"], options].concat(), HOLD);
    let timeout = run(&["--max-run", "100ms"]).status(124).any_stderr().run();
    told(&world, &timeout.stderr, "timeout", "k", Some(124));

    for (options, event, way) in
        [(&[][..], "asked", &["-y"][..]), (&[], "lost", &["--force", "-y"]), (&[], "superseded", &[])]
    {
        let before = world.lines("up");
        let job = run(options).status(79).any_stderr().spawn();
        world.wait_for_lines("up", before + 1);
        if way.is_empty() {
            world.run("k", &["--replace", "-w", "--reason", "why"], "true").any_stderr().run();
        } else {
            world.dlock(["release", "k", "--reason", "why"]).args(way).any_stderr().run();
        }
        let ended = job.finish();
        let by = &told(&world, &ended.stderr, event, "k", Some(79))["by"];
        assert_eq!(by["reason"], "why", "{}", ended.stderr);
        assert!(by["host"].is_string() && by["pid"].is_number(), "{by}");
        world.wait_for_state("k", "free");
    }
    let unfound = world.dlock(["run", "-k", "k"].iter().chain(&JSON).chain(&["--", "/no/such"]));
    told(&world, &unfound.status(127).any_stderr().run().stderr, "not-started", "k", Some(127));
}

fn commands_report_the_state_of_the_lock(backend: Backend) {
    let world = World::new(backend);
    let dlock = |words: &[&str]| world.dlock(words.iter().chain(&JSON)).any_stderr().any_stdout();
    told(&world, &dlock(&["release", "k", "-y"]).run().stderr, "free", "k", None);
    world.write("token", "0123456789abcdef0123456789abcdef\n");
    for words in [["release", "k"], ["renew", "k"], ["check", "k"]] {
        let lost = dlock(&[&words[..], &["--token-file", "token"]].concat()).status(79).run();
        assert_eq!(last(&lost)["event"], "lost");
        told(&world, &lost.stderr, "lost", "k", Some(79));
    }
    let token = dlock(&["acquire", "-k", "k", "-v"]).run();
    told(&world, &token.stderr, "granted", "k", None);
    world.write("token", &token.stdout);
    for (command, event) in [("check", "held"), ("renew", "renewed"), ("release", "released")] {
        let output = dlock(&[command, "k", "-v", "--token-file", "token"]).run();
        told(&world, &output.stderr, event, "k", None);
    }
}

fn operator_commands_report_their_effect(backend: Backend) {
    let world = World::new(backend);
    let dlock = |words: &[&str]| world.dlock(words.iter().chain(&JSON)).any_stderr().any_stdout();
    told(&world, &dlock(&["pause", "a", "k", "--reason", "r"]).run().stderr, "paused", "a", None);
    told(&world, &dlock(&["resume", "k"]).run().stderr, "resumed", "k", None);
    told(&world, &dlock(&["resume", "k"]).run().stderr, "unchanged", "k", None);
    told(&world, &dlock(&["forget", "k"]).run().stderr, "unchanged", "k", None);
    world.run("k", &["--once-per", "1h"], "true").run();
    told(&world, &dlock(&["forget", "k", "-v"]).run().stderr, "forgotten", "k", None);
    told(&world, &dlock(&["wait", "nothing*"]).run().stderr, "matched", "nothing*", None);
    told(
        &world,
        &dlock(&["pause", "nothing*", "--reason", "r"]).status(64).run().stderr,
        "invalid",
        "nothing*",
        Some(64),
    );

    let job = world.run("k", &["-t", "30s"], HOLD).any_stderr().status(79).spawn();
    world.wait_for_log("up");
    let refused = told(&world, &dlock(&["release", "k"]).status(64).run().stderr, "invalid", "k", Some(64));
    assert_eq!(refused["level"], "error");
    let release = dlock(&["release", "k", "-y", "-v"]).run();
    for event in ["held", "asked", "released"] {
        let message = told(&world, &release.stderr, event, "k", None);
        assert_eq!(message["holder"]["pid"], job.pid(), "{message}");
    }
    job.finish();
    let forced = dlock(&["release", "k", "--force", "-y"]).run();
    told(&world, &forced.stderr, "free", "k", None);
}

fn a_hold_prints_its_events(backend: Backend) {
    let world = World::new(backend);
    let job = holder(&world, "k", &["-t", "30s"]);
    let mut words = world.command(crate::support::dlock::BINARY);
    words.env("DLOCK_STORE", world.url()).env("DLOCK_OP_TIMEOUT", "5s");
    words.args(["hold", "-k", "k", "-w", "-t", "30s", "--json", "--reason", "mine"]);
    let said = File::create(world.path("said")).expect("a file");
    let mut held = words.stdin(Stdio::piped()).stdout(said).stderr(Stdio::null()).spawn().expect("dlock");
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    job.finish();
    let said = || std::fs::read_to_string(world.path("said")).expect("text");
    wait_until("it is granted", || said().contains("granted"));
    let release = world.dlock(["release", "k", "-y"]).any_stderr().spawn();
    wait_until("it is asked", || world.status("k")["holders"][0]["asked_by"].is_object());
    // `wait` closes the stdin of the hold.
    held.wait().expect("our child");
    release.finish();
    let mut definitions = Definitions::read();
    let lines = said();
    let events: Vec<Value> =
        lines.lines().map(|line| definitions.check("hold", line)["event"].clone()).collect();
    assert!(events.starts_with(&[json!("waiting"), json!("granted")]), "{lines}");
    assert!(
        events[2..]
            .iter()
            .all(|event| ["asked", "lost", "released"].contains(&event.as_str().expect("text")))
    );
}

/// The store goes away and comes back, and later goes away for good.
#[test]
fn a_store_that_goes_away() {
    let world = World::with_redis(&[]);
    let job = world.run("k", &[&JSON[..], &["-t", "20s"]].concat(), HOLD).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &[&JSON[..], &["-w", "-t", "20s"]].concat(), "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.redis().pause();
    wait_until("both say so", || [&job, &waiter].iter().all(|one| one.messages().contains("\"trouble\"")));
    world.redis().resume();
    wait_until("both say that it is back", || {
        [&job, &waiter].iter().all(|one| one.messages().contains("\"recovered\""))
    });
    world.write("go", "");
    for one in [job, waiter] {
        let text = one.finish().stderr;
        told(&world, &text, "trouble", "k", None);
        told(&world, &text, "recovered", "k", None);
    }
    let lost = world.run("k", &[&JSON[..], &["-t", "4s", "--op-timeout", "0.2"]].concat(), "exec sleep 1000");
    let lost = lost.status(79).any_stderr().spawn();
    wait_until("it runs", || world.state("k") == "held");
    world.redis().pause();
    told(&world, &lost.finish().stderr, "lost", "k", Some(79));
    world.redis().resume();
}

/// Errors that come before a lock is requested.
#[test]
fn errors_that_end_a_command_are_messages() {
    let world = World::with_redis(&["--requirepass", "hush"]);
    let password = world.path("password");
    world.write("password", "wrong\n");
    world.write("bad.toml", "no such = 1\n");
    world.write("json.toml", "log-format = 'json'\n");
    let run = |options: &[&str], status| {
        let words = [&["run", "-k", "k"], options, &["--", "true"]].concat();
        last(&world.dlock(words).status(status).any_stderr().run())
    };
    let password = password.to_str().expect("a path");
    for (options, event, status, has_store) in [
        (&["--log-format", "json", "--password-file", password][..], "denied", 77, true),
        (&["--log-format", "json", "--store", "redis://127.0.0.1:1"], "unreachable", 69, true),
        (&["--log-format", "json", "--config", "bad.toml"], "invalid", 78, false),
        (&["--log-format", "json", "--store", "nonsense"], "invalid", 78, false),
        (&["--log-format=json", "--no-such-option"], "invalid", 64, false),
        // The configuration sets the format of the error.
        (&["--config", "json.toml", "--store", "redis://127.0.0.1:1"], "unreachable", 69, true),
    ] {
        let message = run(options, status);
        assert_eq!((&message["event"], &message["status"]), (&json!(event), &json!(status)), "{message}");
        assert_eq!(message["store"].is_string(), has_store, "{message}");
        assert_eq!(message["key"], if status == 64 { Value::Null } else { json!("k") }, "{message}");
        assert_eq!(message["level"], "error");
    }
}

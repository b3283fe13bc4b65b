//! `dlock status`: the holders and waiters of locks, and locks that are cooling, revoked or
//! foreign.

mod tables;

use crate::support::dlock::finish_all;
use crate::support::masters::Masters;
use crate::support::redis::Redis;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use regex_lite::Regex;
use rustix::process::Signal;
use serde_json::{Value, json};

on_every_store!(
    a_held_lock_with_waiters,
    every_lock_under_the_prefix,
    a_free_lock,
    what_counts_for_once_per_is_shown,
    a_revoked_lock,
    a_pattern_selects_the_keys_that_match,
    a_hold_that_is_not_renewed_is_stale,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

fn a_held_lock_with_waiters(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "1m", "--reason", "because"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let status = world.status("k");
    assert_fields(
        &status,
        &[
            "key",
            "known",
            "state",
            "mode",
            "slots",
            "fence",
            "holders",
            "waiters",
            "last_run",
            "last_success",
            "done",
            "last_refusal",
            "paused",
            "expect_ms",
            "overdue",
        ],
    );
    assert_eq!(status["key"], "k");
    assert_eq!(status["state"], "held");
    assert_eq!(status["mode"], "exclusive");
    assert_eq!(status["slots"], Value::Null);
    let holders = status["holders"].as_array().expect("holders");
    let [shown] = &holders[..] else { panic!("one holder: {holders:?}") };
    let fields = [
        "host",
        "pid",
        "user",
        "command",
        "reason",
        "slot",
        "fence",
        "acquired_at",
        "held_ms",
        "ttl_ms",
        "lease_ms",
        "renewed_at",
        "stale",
        "foreign",
        "asked_by",
        "superseded",
        "rest",
    ];
    assert_fields(shown, &fields);
    assert_eq!(shown["pid"], holder.pid());
    assert_eq!(shown["reason"], "because");
    assert_eq!(shown["fence"], status["fence"]);
    assert_eq!(shown["foreign"], false);
    assert_eq!(shown["slot"], Value::Null);
    assert!(shown["command"].as_str().is_some_and(|text| text.starts_with("sh -c")), "{shown}");
    assert!(shown["lease_ms"].as_u64().is_some_and(|left| left > 1_000 && left <= 60_000), "{shown}");
    assert!(shown["held_ms"].is_u64());
    assert_eq!((&shown["ttl_ms"], &shown["stale"]), (&60_000.into(), &false.into()));
    assert!(shown["renewed_at"].as_str() >= shown["acquired_at"].as_str(), "{shown}");
    let at = shown["acquired_at"].as_str().expect("a time");
    assert!(at.ends_with('Z') && at.contains('T'), "RFC 3339 in UTC: {at}");
    let waiting = &status["waiters"][0];
    assert_fields(waiting, &["host", "pid", "user", "mode", "slots", "waiting_ms", "turn_ms", "replaces"]);
    assert_eq!(waiting["pid"], waiter.pid());
    assert_eq!(waiting["mode"], "exclusive");
    assert!(waiting["waiting_ms"].is_u64());
    // The table for people names the holder.
    let table = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(table.contains(&holder.pid().to_string()) && table.contains("held"), "{table}");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let last = world.status("k")["last_run"].clone();
    assert_ne!(last, Value::Null, "there was one");
}

fn what_counts_for_once_per_is_shown(backend: Backend) {
    let world = World::new(backend);
    let shown = || world.dlock(["status", "k"]).any_stdout().run().stdout;
    let ends = || world.dlock(["history", "k"]).any_stdout().run().stdout;
    world.run("k", &[], "true").run();
    assert!(!shown().contains("\ndone ") && world.status("k")["done"].is_null(), "{}", shown());
    world.run("k", &["--once-per", "day"], "true").run();
    // A test by hand changes nothing.
    world.run("k", &[], "true").run();
    let like =
        Regex::new("\ndone +by [^ ]+@[^ ]+, arrived [0-9:]+, counts until [0-9: -]+ \\(half a day\\)\n");
    assert!(like.expect("a pattern").is_match(&shown()), "{}", shown());
    let done = world.status("k")["done"].clone();
    assert_fields(&done, &["host", "pid", "user", "arrived_at", "granted_at", "until"]);
    assert!(done["arrived_at"].as_str() <= done["granted_at"].as_str(), "{done}");
    assert!(done["granted_at"].as_str() < done["until"].as_str(), "{done}");
    let history = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    let history: Value = serde_json::from_str(&history).expect("JSON");
    let until = [0, 1, 2].map(|at| history[at]["counts_until"].clone());
    assert_eq!(until, [Value::Null, done["until"].clone(), Value::Null]);
    assert_eq!(ends().matches("ok, counts").count(), 1, "{}", ends());
    world.dlock(["forget", "k"]).any_stderr().run();
    assert!(!shown().contains("\ndone ") && world.status("k")["done"].is_null(), "{}", shown());
    assert_eq!(ends().matches("counts").count(), 0, "{}", ends());
}

/// Only the script itself renews a script's hold, so that is never stale.
fn a_hold_that_is_not_renewed_is_stale(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "16s"], HOLD).any_stderr().spawn();
    world.wait_for_log("up");
    world.dlock(["acquire", "-q", "-k", "script", "-t", "10m"]).any_stdout().run();
    let hold = |key| world.status(key)["holders"][0].clone();
    let granted = hold("k")["renewed_at"].clone();
    let renewed_later = || hold("k")["renewed_at"].as_str() > granted.as_str();
    wait_until("it is renewed", renewed_later);
    assert_eq!(hold("k")["stale"], false);
    holder.signal(Signal::STOP);
    wait_until("it is stale", || hold("k")["stale"] == true);
    let record = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(record.contains("left of 16s, renewed") && record.contains("stale"), "{record}");
    let table = world.dlock(["status"]).any_stdout().run().stdout;
    assert_eq!(table.matches("stale").count(), 1, "{table}");
    let script = hold("script");
    assert_eq!(
        (&script["ttl_ms"], &script["renewed_at"], &script["stale"]),
        (&Value::Null, &Value::Null, &false.into())
    );
    holder.signal(Signal::CONT);
    world.write("go", "");
    holder.finish();
}

fn every_lock_under_the_prefix(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["status", "--json"]).stdout("[]\n").run();
    let holder = world.run("a", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    world.run("b", &["--min-hold", "1m"], "true").run();
    world.run("gone", &[], "true").run();
    world.run("c", &["--prefix", "other:", "--min-hold", "1m"], "true").run();
    let list = world.dlock(["status", "--json"]).any_stdout().run().stdout;
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let shown =
        list.as_array().expect("an array").iter().map(|one| (&one["key"], &one["state"])).collect::<Vec<_>>();
    let text = |text: &str| json!(text);
    assert_eq!(shown, [(&text("a"), &text("held")), (&text("b"), &text("cooling"))]);
    let keys = world.dlock(["status", "--json", "b", "a", "never"]).any_stdout().run().stdout;
    let keys: Value = serde_json::from_str(&keys).expect("JSON");
    assert_eq!(
        (&keys[0]["key"], &keys[1]["key"], &keys[2]["state"]),
        (&text("b"), &text("a"), &text("free"))
    );
    let table = world.dlock(["status"]).any_stdout().run().stdout;
    assert!(table.contains("held") && table.contains("cooling") && !table.contains("gone"), "{table}");
    world.write("go", "");
    holder.finish();
}

fn a_free_lock(backend: Backend) {
    let world = World::new(backend);
    let status = world.status("never");
    assert_eq!(status["state"], "free");
    assert_eq!((&status["holders"], &status["waiters"]), (&json!([]), &json!([])));
    assert_eq!((&status["fence"], &status["last_run"]), (&Value::Null, &Value::Null));
}

fn a_revoked_lock(backend: Backend) {
    let world = World::new(backend);
    // The job ignores TERM, so the lock stays revoked for a while.
    let job = "trap '' TERM; echo $$ > job.pid; echo up >> log; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "20s", "--grace", "30s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    assert_eq!(world.state("k"), "revoked");
    world.run("k", &[], "true").status(75).any_stderr().run();
    wait_until("its dlock hears of it", || !holder.messages().is_empty());
    crate::support::proc::signal(world.wait_for_pid("job.pid"), Signal::KILL);
    holder.finish();
    assert_eq!(world.state("k"), "free");
}

fn a_pattern_selects_the_keys_that_match(backend: Backend) {
    let world = World::new(backend);
    let keys = ["deploy-web", "deploy-db", "report"];
    let holders = keys.map(|key| world.run(key, &["-t", "1m"], HOLD).spawn());
    world.wait_for_lines("up", 3);
    world.run("deploy-idle", &[], "true").run();
    let shown = |words: &[&str]| {
        let output = world.dlock(words).args(["--json", "-q"]).any_stdout().run().stdout;
        let json: Value = serde_json::from_str(&output).expect("JSON");
        let keys = json.as_array().expect("an array").iter().map(|one| one["key"].to_string());
        keys.collect::<Vec<_>>().join(" ").replace('"', "")
    };
    assert_eq!(shown(&["status", "deploy-*"]), "deploy-db deploy-idle deploy-web");
    assert_eq!(shown(&["status", "report", "deploy-??"]), "report deploy-db");
    assert_eq!(shown(&["status", "report", "*"]), "report deploy-db deploy-idle deploy-web");
    assert_eq!(shown(&["status"]), "deploy-db deploy-web report");
    assert_eq!(shown(&["status", r"deploy-\*"]), "deploy-*");
    assert_eq!(shown(&["status", "x*"]), "");
    let metrics = world.dlock(["metrics", "deploy-*"]).any_stdout().run().stdout;
    assert!(metrics.contains("\"deploy-idle\"") && !metrics.contains("\"report\""), "{metrics}");
    let none = "dlock: .* has no key that matches x\\*\n";
    world.dlock(["metrics", "x*"]).any_stdout().stderr_like(none).run();
    let watch = world.dlock(["watch", "-v", "deploy-*"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    world.write("go", "");
    finish_all(holders);
    let told = |key: &str| watch.printed().contains(&format!("released {key}"));
    wait_until("both are told of", || told("deploy-db") && told("deploy-web"));
    assert!(!told("report"), "{}", watch.printed());
    watch.signal(Signal::TERM);
    watch.finish();
}

/// Values that dlock did not write are foreign holders: they are shown, are no error, and are never
/// overwritten.
#[test]
fn a_foreign_value_is_shown_and_left_alone() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    redis.ask::<()>(&["SET", "dlock:string", "v", "PX", "60000"]);
    redis.ask::<()>(&["SET", "dlock:for-ever", "v"]);
    redis.ask::<()>(&["HSET", "dlock:hash", "f", "v"]);
    redis.ask::<()>(&["RPUSH", "dlock:list", "v"]);
    for key in ["string", "for-ever", "hash", "list"] {
        let status = world.status(key);
        assert_eq!(status["state"], "held", "{key}");
        assert_eq!(status["holders"][0]["foreign"], true, "{key}");
        let busy = world.run(key, &[], "touch ran").status(75).stderr_like("dlock: .*\n").run();
        assert!(busy.stderr.contains(key), "{}", busy.stderr);
        world.run(key, &["-w", "100ms"], "touch ran").status(75).any_stderr().run();
        world.dlock(["release", key, "--force"]).any_stdout().any_stderr().spawn().output();
    }
    let types = ["string", "for-ever", "hash", "list"]
        .map(|key| redis.ask::<String>(&["TYPE", &format!("dlock:{key}")]));
    assert_eq!(types, ["string", "string", "hash", "list"], "all are still there");
    // --force --now deletes a STRING, and no other type.
    world.dlock(["release", "for-ever", "--force", "--now", "-y"]).any_stdout().any_stderr().run();
    assert_eq!(world.state("for-ever"), "free");
    world.dlock(["release", "hash", "--force", "--now", "-y"]).any_stdout().any_stderr().spawn().output();
    assert_eq!(redis.ask::<String>(&["TYPE", "dlock:hash"]), "hash");
    assert!(!world.path("ran").exists());
    let list = world.dlock(["status", "--json"]).any_stdout().run().stdout;
    assert!(list.contains("\"string\""), "strings under the prefix are listed: {list}");
}

#[track_caller]
fn assert_fields(object: &Value, names: &[&str]) {
    let mut shown = object.as_object().expect("an object").keys().map(String::as_str).collect::<Vec<_>>();
    let mut names = names.to_vec();
    shown.sort_unstable();
    names.sort_unstable();
    assert_eq!(shown, names);
}

/// Locks that were used and are free cost nothing: they are neither read nor listed, however many
/// there are.
#[test]
fn idle_locks_are_not_read() {
    let (world, masters) = (World::new(Backend::Redis), Masters::aged(3));
    let redis = world.redis();
    assert_idle_ones_are_left_alone(&world, &redis.url(), redis, "dlock:");
    redis.ask::<()>(&["FLUSHALL"]);
    assert_idle_ones_are_left_alone(&world, &redis.url(), redis, "");
    assert_idle_ones_are_left_alone(masters.world(), &masters.url(), masters.at(1), "dlock:");
}

fn assert_idle_ones_are_left_alone(world: &World, store: &str, redis: &Redis, prefix: &str) {
    let dlock = |words: &[&str]| world.dlock(words).env("DLOCK_STORE", store).env("DLOCK_PREFIX", prefix);
    let run = |key: &str, options: &[&str], script: &str| {
        world.run(key, options, script).env("DLOCK_STORE", store).env("DLOCK_PREFIX", prefix)
    };
    for number in 0..5 {
        run(&format!("idle-{number}"), &[], "true").run();
    }
    run("kept", &["--min-hold", "1m"], "true").run();
    let holder = run("busy", &[], "touch up; while [ ! -e go ]; do sleep 0.1; done").spawn();
    wait_until("it holds", || world.path("up").exists());
    let looks = || {
        let stats: String = redis.ask(&["INFO", "commandstats"]);
        let calls = |line: &str| line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u32>().ok());
        let lines = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
        lines.filter_map(calls).sum::<u32>()
    };
    let before = looks();
    let listed = dlock(&["status", "--json"]).any_stdout().run().stdout;
    assert!(listed.contains("busy") && listed.contains("kept") && !listed.contains("idle"), "{listed}");
    // One call may be the holder's, and two more come if the server did not know the scripts.
    assert!(looks() - before <= 5, "{} looks at {store} {prefix:?}", looks() - before);
    world.write("go", "");
    holder.finish();
    for name in ["go", "up"] {
        std::fs::remove_file(world.path(name)).expect("it was there");
    }
}

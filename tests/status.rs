//! `dlock status`: who holds what, who waits, what is cooling, revoked or not dlock's at all.

use crate::support::world::{Backend, World, on_every_store};
use serde_json::{Value, json};

on_every_store!(
    a_held_lock_with_waiters,
    every_lock_under_the_prefix,
    a_free_lock,
    a_revoked_lock,
    what_comes_from_elsewhere_is_escaped,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";

fn a_held_lock_with_waiters(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "1m", "--reason", "because"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let status = world.status("k");
    assert_fields(&status, &["key", "state", "mode", "slots", "fence", "holders", "waiters", "last_run"]);
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
        "lease_ms",
        "foreign",
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
    let at = shown["acquired_at"].as_str().expect("a time");
    assert!(at.ends_with('Z') && at.contains('T'), "RFC 3339 in UTC: {at}");
    let waiting = &status["waiters"][0];
    assert_fields(waiting, &["host", "pid", "user", "mode", "slots", "waiting_ms"]);
    assert_eq!(waiting["pid"], waiter.pid());
    assert_eq!(waiting["mode"], "exclusive");
    assert!(waiting["waiting_ms"].is_u64());
    // For people: both are named.
    let table = world.dlock(["status", "k"]).any_stdout().run().stdout;
    assert!(table.contains(&holder.pid().to_string()) && table.contains("held"), "{table}");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let last = world.status("k")["last_run"].clone();
    assert_ne!(last, Value::Null, "there was one");
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
    // The job does not go, so the lock stays taken away for a while.
    let job = "trap '' TERM; echo $$ > job.pid; echo up >> log; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "20s", "--grace", "30s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    assert_eq!(world.state("k"), "revoked");
    world.run("k", &[], "true").status(75).any_stderr().run();
    crate::support::wait::wait_until("its dlock hears of it", || !holder.messages().is_empty());
    crate::support::proc::signal(world.wait_for_pid("job.pid"), rustix::process::Signal::KILL);
    holder.finish();
    assert_eq!(world.state("k"), "free");
}

fn what_comes_from_elsewhere_is_escaped(backend: Backend) {
    let world = World::new(backend);
    let holder = world
        .run("k", &["--label", "a\x1b[31mred\x07\u{9b}", "--reason", "two\nlines"], HOLD)
        .any_stderr()
        .spawn();
    world.wait_for_log("up");
    let table = world.dlock(["status", "k"]).any_stdout().run().stdout;
    let busy = world.run("k", &[], "true").status(75).any_stderr().run().stderr;
    for text in [&table, &busy] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("red"), "{text:?}");
    }
    assert_eq!(busy.lines().count(), 1, "{busy:?}");
    world.write("go", "");
    holder.finish();
}

/// Piped tables are not cut, and colours do not get into a pipe.
#[test]
fn a_piped_table_is_whole_and_plain() {
    let world = World::new(Backend::Redis);
    let label = "x".repeat(200);
    let holder = world.run("k", &["--label", &label], HOLD).spawn();
    world.wait_for_log("up");
    let table = world.dlock(["status"]).any_stdout().env("COLUMNS", "40").run().stdout;
    assert!(table.contains(&label) && !table.contains('\x1b'), "{table}");
    world.write("go", "");
    holder.finish();
}

/// Values that dlock did not write are foreign holders: reported, never an error, never taken over.
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
    // --force --now takes a STRING, and nothing else.
    world.dlock(["release", "for-ever", "--force", "--now"]).any_stdout().any_stderr().run();
    assert_eq!(world.state("for-ever"), "free");
    world.dlock(["release", "hash", "--force", "--now"]).any_stdout().any_stderr().spawn().output();
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

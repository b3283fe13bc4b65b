//! Two versions of dlock may share a store. tests/records has what released versions wrote; a test
//! puts it into a server, with its times moved to now, and this version must read it as before.
//! `PREVIOUS_DLOCK=FILE ./test upgrade` runs another version's binary as well.
//!
//! A file of records is JSON lines: a header with the time of writing (ms since 1970), the token of
//! the lock `exclusive`, and what `status` and `history` showed; then one line per key: `[name,
//! type, ttl in ms, value]`.

use crate::support::dlock::Dlock;
use crate::support::world::{Backend, World, on_every_store};
use redis::cmd;
use regex_lite::{Captures, Regex};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

on_every_store!(two_versions_exclude_each_other);

const LOCKS: [&str; 8] = ["exclusive", "shared", "slots", "cooling", "revoked", "waited", "idle", "paused"];

fn records() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records")
}

/// What `status` or `history` shows of a lock, without fields that change with time.
fn shown(world: &World, command: &str, lock: &str) -> Value {
    let mut value: Value =
        serde_json::from_str(&world.dlock([command, "-q", "--json", lock]).any_stdout().run().stdout)
            .expect("JSON");
    without_times(&mut value);
    value
}

fn without_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let passing =
                "lease_ms renewed_at held_ms waiting_ms waiters acquired_at ended_at since until fence";
            fields.retain(|name, _| !passing.split(' ').any(|passing| passing == name));
            fields.values_mut().for_each(without_times);
        }
        Value::Array(items) => items.iter_mut().for_each(without_times),
        _ => {}
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_millis()).expect("a time")
}

/// This version writes what the newest file of records says. Until a version is released its file
/// may be written anew. After that it stays, and the next version gets its own file.
#[test]
fn this_version_writes_what_the_last_records_say() {
    let path = records().join(concat!("redis-", env!("CARGO_PKG_VERSION"), ".jsonl"));
    let written = written();
    let last = kept().last().map(|path| shapes(&fs::read_to_string(path).expect("records")));
    let (now, then) = (shapes(&written), last.unwrap_or_default());
    let changed = now.symmetric_difference(&then).collect::<Vec<_>>();
    if changed.is_empty() {
        return;
    }
    assert!(
        std::env::var_os("DLOCK_REGENERATE").is_some(),
        "the records have changed. Can an older dlock in the same fleet still read them, and this one those of before? \
         Then, if {} has not been released, or the version in Cargo.toml is a new one: DLOCK_REGENERATE=1 ./test upgrade\n\
         {changed:#?}",
        env!("CARGO_PKG_VERSION")
    );
    fs::create_dir_all(records()).expect("a directory");
    fs::write(path, written).expect("a file");
}

/// The files of records, oldest first.
fn kept() -> Vec<PathBuf> {
    let files = fs::read_dir(records()).expect("records").flatten().map(|entry| entry.path());
    let mut files =
        files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect::<Vec<_>>();
    let version = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        name.split(['-', '.']).filter_map(|part| part.parse().ok()).collect::<Vec<u32>>()
    };
    files.sort_by_key(version);
    files
}

/// The records of a file without what differs from run to run: tokens, numbers, hosts, users, and
/// the order of fields.
fn shapes(records: &str) -> BTreeSet<String> {
    let differs = [("[0-9a-f]{32}", "T"), ("\\d+", "N"), (r#""(host|user)\\?":\\?"[^"\\]*"#, "$1")];
    let differs = differs.map(|(pattern, stand_in)| (Regex::new(pattern).expect("a pattern"), stand_in));
    let mut shapes = BTreeSet::new();
    for line in records.lines().skip(1) {
        let (key, kind, _, value): (String, String, i64, Vec<String>) =
            serde_json::from_str(line).expect("a record");
        let pairs = value.chunks(if kind == "hash" { 2 } else { 1 }).map(|part| part.join(" = "));
        for part in pairs {
            let shape = format!("{kind} {key}: {part}");
            shapes.insert(differs.iter().fold(shape, |shape, (differs, stand_in)| {
                differs.replace_all(&shape, *stand_in).into_owned()
            }));
        }
    }
    shapes
}

/// The records that this version writes.
fn written() -> String {
    let world = World::with_redis(&[]);
    let acquire = |lock: &str, options: &[&str]| {
        world
            .dlock(["acquire", "-k", lock, "-t", "24h", "--label", "import"])
            .args(options)
            .any_stdout()
            .run()
            .stdout
    };
    let token = acquire("exclusive", &["--reason", "a reason"]);
    acquire("shared", &["-s"]);
    acquire("shared", &["-s"]);
    acquire("slots", &["-n", "3"]);
    acquire("slots", &["-n", "3"]);
    acquire("waited", &[]);
    let waiter = world.run("waited", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("waited", 1);
    world.run("cooling", &["--min-hold", "24h"], "true").run();
    acquire("revoked", &[]);
    world.dlock(["release", "revoked", "--force", "-y"]).any_stderr().run();
    world.run("idle", &[], "true").run();
    world.run("idle", &["--expect", "day"], "exit 3").status(3).run();
    world.dlock(["pause", "paused", "--for", "24h", "--reason", "a reason"]).any_stderr().run();
    let looks = LOCKS.map(|lock| [shown(&world, "status", lock), shown(&world, "history", lock)]);
    let header = json!({"written_ms": now_ms(), "token": token.trim(), "shown": looks});
    let mut lines = vec![header.to_string()];
    let mut redis = world.redis().connect();
    let mut keys: Vec<String> = cmd("KEYS").arg("*").query(&mut redis).expect("KEYS");
    keys.sort();
    for key in keys {
        let kind: String = cmd("TYPE").arg(&key).query(&mut redis).expect("TYPE");
        let ttl: i64 = cmd("PTTL").arg(&key).query(&mut redis).expect("PTTL");
        let mut look = match kind.as_str() {
            "string" => cmd("GET"),
            "hash" => cmd("HGETALL"),
            "list" => cmd("LRANGE"),
            _ => cmd("ZRANGE"),
        };
        look.arg(&key);
        let value: Vec<String> = match kind.as_str() {
            "string" => vec![look.query(&mut redis).expect("a string")],
            "hash" => look.query(&mut redis).expect("a hash"),
            "list" => look.arg(0).arg(-1).query(&mut redis).expect("a list"),
            "zset" => look.arg(0).arg(-1).arg("WITHSCORES").query(&mut redis).expect("a sorted set"),
            other => panic!("{key}: {other}"),
        };
        lines.push(json!([key, kind, ttl, value]).to_string());
    }
    waiter.signal(Signal::TERM);
    waiter.output();
    lines.join("\n") + "\n"
}

/// A world whose Redis has the records of a file, as if they were written now, and the file's
/// header.
fn restored(path: &Path) -> (World, Value) {
    let text = fs::read_to_string(path).expect("records");
    let header: Value = serde_json::from_str(text.lines().next().expect("a header")).expect("a header");
    let written = header["written_ms"].as_i64().expect("when it was written");
    let moved = now_ms() - written;
    // Numbers within 40 days of the time of writing, in milliseconds or microseconds, are times.
    let number = Regex::new("[0-9]{13,16}").expect("a pattern");
    let text = number.replace_all(&text, |found: &Captures| {
        let number: i64 = found[0].parse().expect("a number");
        let near = |time: i64| (time - written).abs() < 40 * 86_400_000;
        match number {
            ms if near(ms) => (ms + moved).to_string(),
            us if near(us / 1000) => (us + moved * 1000).to_string(),
            other => other.to_string(),
        }
    });
    let world = World::with_redis(&[]);
    let mut redis = world.redis().connect();
    for line in text.lines().skip(1) {
        let (key, kind, ttl, value): (String, String, i64, Vec<String>) =
            serde_json::from_str(line).expect("a record");
        let (command, value) = match kind.as_str() {
            "string" => ("SET", value),
            "hash" => ("HSET", value),
            "list" => ("RPUSH", value),
            _ => ("ZADD", value.chunks(2).flat_map(|pair| [pair[1].clone(), pair[0].clone()]).collect()),
        };
        cmd(command).arg(&key).arg(value).exec(&mut redis).expect(command);
        cmd("PEXPIRE").arg(&key).arg(ttl).exec(&mut redis).expect("PEXPIRE");
    }
    (world, header)
}

#[test]
fn records_of_released_versions_mean_the_same_now() {
    for path in kept() {
        let (world, header) = restored(&path);
        for (lock, looks) in LOCKS.iter().zip(header["shown"].as_array().expect("what was shown")) {
            assert_shows(&path, &shown(&world, "status", lock), &looks[0]);
            assert_shows(&path, &shown(&world, "history", lock), &looks[1]);
        }
        for (lock, options) in [
            ("exclusive", &[][..]),
            ("exclusive", &["-s"]),
            ("shared", &[]),
            ("slots", &["-n", "2"]),
            ("cooling", &[]),
            ("revoked", &[]),
            ("waited", &[]),
            ("paused", &[]),
        ] {
            world.run(lock, options, "true").any_stderr().status(75).run();
        }
        world.run("shared", &["-s"], "true").run();
        world.dlock(["run", "-k", "slots", "-n", "3", "-c", "echo $DLOCK_SLOT"]).stdout("2\n").run();
        let before = world.fence("idle");
        world.run("idle", &[], "true").run();
        assert!(world.fence("idle") > before);
        world.write("token", header["token"].as_str().expect("a token"));
        for command in ["check", "renew", "release"] {
            world.dlock([command, "exclusive", "--token-file", "token"]).any_stdout().any_stderr().run();
        }
        world.run("exclusive", &[], "true").run();
    }
}

/// A later version may show more fields, but shows all that were shown then.
#[track_caller]
fn assert_shows(path: &Path, now: &Value, then: &Value) {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            for (name, value) in then {
                assert_shows(path, now.get(name).unwrap_or(&Value::Null), value);
            }
        }
        (Value::Array(now), Value::Array(then)) => {
            assert_eq!(now.len(), then.len(), "{}: {now:?} {then:?}", path.display());
            now.iter().zip(then).for_each(|(now, then)| assert_shows(path, now, then));
        }
        _ => assert_eq!(now, then, "{}", path.display()),
    }
}

/// Uses the binary of another version instead of the one under test.
fn previous(dlock: Dlock<'_>) -> Dlock<'_> {
    dlock.under(&["sh", "-c", "shift; exec \"$PREVIOUS_DLOCK\" \"$@\"", "sh"])
}

fn two_versions_exclude_each_other(backend: Backend) {
    if std::env::var_os("PREVIOUS_DLOCK").is_none() {
        eprintln!("skipped: PREVIOUS_DLOCK names no other version");
        return;
    }
    let world = World::new(backend);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    for old_first in [true, false] {
        let one = |dlock| if old_first { previous(dlock) } else { dlock };
        let other = |dlock| if old_first { dlock } else { previous(dlock) };
        let holder = one(world.run("k", &[], job)).spawn();
        world.wait_for_lines("up", 1);
        other(world.run("k", &[], "true")).any_stderr().status(75).run();
        let status = other(world.dlock(["status", "k", "--json"])).any_stdout().run().stdout;
        assert!(status.contains("\"held\""), "{status}");
        let waiter = other(world.run("k", &["-w"], "echo waited >> log")).any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        let second = one(world.run("k", &["-w"], "echo second >> log")).any_stderr().spawn();
        world.wait_for_waiters("k", 2);
        world.write("go", "");
        holder.finish();
        waiter.finish();
        second.finish();
        assert_eq!(world.log(), ["up", "waited", "second"]);
        for file in ["go", "log"] {
            fs::remove_file(world.path(file)).expect("a file");
        }
    }
}

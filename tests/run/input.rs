//! Bad input: the documented status, one line that says what is allowed (and at most a hint), and
//! no lock is taken.

use crate::support::dlock::{Dlock, End};
use crate::support::world::{Backend, World, on_every_store};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// Everything that is wrong with how calls were refused.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    /// Expects a status and one line that contains `says`, with at most a hint after it.
    fn refused(&mut self, case: &str, call: Dlock<'_>, status: i32, says: &[&str]) {
        let output = call.any_stderr().spawn().output();
        let lines = output.stderr.lines().collect::<Vec<_>>();
        let ours = lines.iter().all(|line| line.starts_with("dlock: "));
        let complete = says.iter().all(|text| output.stderr.contains(text));
        if output.end() != End::Status(status) || !matches!(lines.len(), 1 | 2) || !ours || !complete {
            let end = output.end();
            self.0.push(format!("{case}: {end:?}, wanted {status} and {says:?}: {lines:?}"));
        }
        if !output.stdout.is_empty() {
            self.0.push(format!("{case}: it prints {:?}", output.stdout));
        }
    }

    #[track_caller]
    fn are_none(self, world: &World) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
        assert_eq!(world.redis().keys(), [""; 0], "nothing is locked");
        assert!(!world.path("ran").exists(), "nothing ran");
    }
}

#[test]
fn usage_is_64() {
    let world = World::new(Backend::Redis);
    let long = "k".repeat(513);
    let cases: &[(&[&str], &[&str])] = &[
        // No command, an unknown command, unknown options.
        (&[], &[]),
        (&["rum"], &["run"]),
        (&["run", "-k", "k", "--wiat", "--", "touch", "ran"], &["--wait"]),
        // Keys.
        (&["run", "--", "touch", "ran"], &["-k"]),
        (&["run", "-k", "", "--", "touch", "ran"], &["512"]),
        (&["run", "-k", &long, "--", "touch", "ran"], &["512", "513"]),
        (&["run", "-k", "a\nb", "--", "touch", "ran"], &["control"]),
        (&["run", "-k", "a}b", "--", "touch", "ran"], &["}"]),
        (&["run", "--prefix", "", "-k", "dlock.hold:{a}:a", "--", "touch", "ran"], &["dlock."]),
        (&["status", ""], &["512"]),
        (&["release", "", "--force"], &["512"]),
        // What to run.
        (&["run", "-k", "k"], &["--"]),
        (&["run", "-k", "k", "--"], &[]),
        (&["run", "-k", "k", "-w", "touch", "ran"], &["-w -- touch ran"]),
        (&["run", "-k", "k", "-t", "PT5M", "touch", "ran"], &["1h30m"]),
        (&["run", "-k", "k", "-c", "touch ran", "--", "touch", "ran"], &[]),
        (&["run", "k", "--", "touch", "ran"], &["-k"]),
        // Durations.
        (&["run", "-k", "k", "-t", "0", "--", "touch", "ran"], &["500ms", "24h"]),
        (&["run", "-k", "k", "-t", "499ms", "--", "touch", "ran"], &["500ms", "24h"]),
        (&["run", "-k", "k", "-t", "25h", "--", "touch", "ran"], &["500ms", "24h"]),
        (&["run", "-k", "k", "-t", "", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "-t", "soon", "--", "touch", "ran"], &["90s"]),
        (&["run", "-k", "k", "-t=-5", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--min-hold", "1month", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--max-run", "1y", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--wait=1M", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--grace", "NaN", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--grace", "inf", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--op-timeout", "0", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--connect-timeout", "x", "--", "touch", "ran"], &[]),
        (&["run", "-k", "k", "--min-hold", "5s", "--wait", "--", "touch", "ran"], &["--min-hold", "--wait"]),
        // Other values.
        (&["run", "-k", "k", "-E", "256", "--", "touch", "ran"], &["255"]),
        (&["run", "-k", "k", "-E", "-1", "--", "touch", "ran"], &["255"]),
        (&["run", "-k", "k", "-E", "busy", "--", "touch", "ran"], &["255"]),
        (&["run", "-k", "k", "--on-lost", "panic", "--", "touch", "ran"], &["stop", "warn"]),
        (&["run", "-k", "k", "--log-format", "xml", "--", "touch", "ran"], &["text", "json"]),
        (&["run", "-k", "k", "--color", "blue", "--", "touch", "ran"], &["auto"]),
        (&["run", "-k", "k", "--replicas", "some", "--", "touch", "ran"], &["all"]),
        (&["run", "-k", "k", "--replicas", "-1", "--", "touch", "ran"], &[]),
        // Modes.
        (&["run", "-k", "k", "-s", "-x", "--", "touch", "ran"], &["--shared", "--exclusive", "exclude"]),
        (&["run", "-k", "k", "-s", "-n", "3", "--", "touch", "ran"], &["--shared", "--slots", "exclude"]),
        (&["run", "-k", "k", "-e", "-n3", "--", "touch", "ran"], &["--exclusive", "--slots", "exclude"]),
        (&["run", "-k", "k", "-n", "0", "--", "touch", "ran"], &["1 to 1000"]),
        (&["run", "-k", "k", "-n", "1001", "--", "touch", "ran"], &["1 to 1000"]),
        (&["run", "-k", "k", "-n", "-3", "--", "touch", "ran"], &["1 to 1000"]),
        (&["run", "-k", "k", "-n", "1.5", "--", "touch", "ran"], &["1 to 1000"]),
        (&["run", "-k", "k", "-k", "", "--", "touch", "ran"], &["512"]),
        // Options of other tools.
        (&["run", "-k", "k", "--timeout", "5", "--", "touch", "ran"], &["waiting is -w", "--max-run"]),
        (&["run", "-k", "k", "-n", "--", "touch", "ran"], &["not waiting is the default"]),
        (&["run", "-n", "-k", "k", "--", "touch", "ran"], &["not waiting is the default"]),
        (&["run", "-x", "-n", "-k", "k", "--", "touch", "ran"], &["not waiting is the default"]),
        (&["acquire", "-k", "k", "-E", "0"], &["without the lock"]),
        (&["acquire", "-k", "k", "--min-hold", "1", "-w"], &["--min-hold"]),
        (&["renew", "--token-file", "-"], &["KEY"]),
        (&["check", "--token-file", "-"], &["KEY"]),
        (&["release", "k", "-k", "l"], &["one KEY"]),
        (&["-k", "k", "run", "touch", "ran"], &["that every command takes"]),
        (&["--store", "redis://127.0.0.1:1"], &["which command"]),
        (&["wait", "-w", "1"], &["KEY"]),
        (&["release"], &[]),
        (&["release", "k", "--slot", "x"], &["a slot is a number"]),
        (&["release", "k", "--now"], &["--force"]),
        (&["release", "k", "--force", "--token-file", "-"], &[]),
        (&["completions", "tcsh"], &["bash"]),
    ];
    let mut faults = Faults::default();
    for (words, says) in cases {
        faults.refused(&words.join(" "), world.dlock(*words), 64, says);
    }
    let bytes = OsString::from_vec(b"a\xffb".to_vec());
    let words = ["run".into(), "-k".into(), bytes, "--".into(), "touch".into(), "ran".into()];
    faults.refused("not UTF-8", world.dlock::<[OsString; 6]>(words), 64, &["UTF-8"]);
    faults.are_none(&world);
    // The same key twice counts once.
    world.dlock(["run", "-k", "k", "-k", "k", "--", "true"]).run();
    // Global options may come before the command, and the separator may be left out.
    let words = ["--prefix", "p:", "-q", "run", "-k", "k", "echo", "-n", "--", "-k", "l"];
    world.dlock(words).stdout("-- -k l").run();
    for words in [
        &["--prefix", "p:", "status", "--json", "-k", "k"][..],
        &["--prefix=p:", "history", "-k", "k", "--json"],
    ] {
        world.dlock(words).stdout_like("(?s).*\"fence\": 1.*").run();
    }
}

/// The message names where the store was set.
#[test]
fn a_bad_store_is_78() {
    let world = World::new(Backend::Redis);
    let urls = [
        "http://127.0.0.1:6379",
        "127.0.0.1:6379",
        "redis://",
        "redis:127.0.0.1",
        "redis://127.0.0.1:99999",
        "redis://127.0.0.1:port",
        "redis://127.0.0.1/first",
        "redis://127.0.0.1/-1",
        "redis://127.0.0.1:6379/0/1",
        "redis://127.0.0.1?what=this",
        "redis://[::1",
        "redis://a%zz@127.0.0.1",
        "redis+unix://",
        "redis+unix://relative/path",
        "postgres://u@h",
        "postgres://u@h/",
        "postgres://u@h,h/d",
        "postgres://u@h/d?sslmode=prefer",
        "postgres://u@h/d?sslmode=disable&ca=/f",
        "postgres://u@h/d?sslmode=verify-ca",
        "postgres+unix://u@/s",
        "mysql://u@h",
        "mysql://u@h/d?sslmode=required",
        "mysql+unix://u@/s",
        "zookeeper://",
        "zookeeper://h//a",
        "zookeeper://h/../a",
        "zookeeper://h?ca=/f",
        "zookeeper://h/a?session=1s",
        "file:relative",
        "file:",
        "redis://127.0.0.1 redis://127.0.0.2",
        " redis://127.0.0.1",
        "redis://127.0.0.1\n",
        "",
    ];
    let mut faults = Faults::default();
    for url in urls {
        let words = ["--", "touch", "ran"];
        let flag = world.dlock(["run", "-k", "k", "--store", url]).args(words).env_remove("DLOCK_STORE");
        faults.refused(&format!("--store {url:?}"), flag, 78, &["--store"]);
        let variable = world.dlock(["run", "-k", "k"]).args(words).env("DLOCK_STORE", url);
        faults.refused(&format!("DLOCK_STORE={url:?}"), variable, 78, &["DLOCK_STORE"]);
    }
    let two = ["run", "-k", "k", "--store", "redis://127.0.0.1:1", "--store", "redis://127.0.0.1:2", "--"];
    faults.refused("two stores", world.dlock(two).args(["touch", "ran"]), 78, &["--store"]);
    faults.are_none(&world);
}

#[test]
fn a_bad_variable_is_78() {
    let world = World::new(Backend::Redis);
    let cases = [
        ("DLOCK_STORE", ""),
        ("DLOCK_CONFIG", ""),
        ("DLOCK_CONFIG", "no-such-file"),
        ("DLOCK_CONFIG", "."),
        ("DLOCK_USERNAME", ""),
        ("DLOCK_PASSWORD", ""),
        ("DLOCK_PASSWORD_FILE", ""),
        ("DLOCK_PASSWORD_FILE", "no-such-file"),
        ("DLOCK_CONNECT_TIMEOUT", ""),
        ("DLOCK_CONNECT_TIMEOUT", "soon"),
        ("DLOCK_CONNECT_TIMEOUT", "0"),
        ("DLOCK_OP_TIMEOUT", "-1"),
        ("DLOCK_LOG_FORMAT", ""),
        ("DLOCK_LOG_FORMAT", "xml"),
        ("DLOCK_PREFIX", "a\nb"),
    ];
    let commands = [&["run", "-k", "k", "--", "touch", "ran"][..], &["status"], &["release", "k", "--force"]];
    let mut faults = Faults::default();
    for (name, value) in cases {
        for words in commands {
            faults.refused(&format!("{name}={value:?}"), world.dlock(words).env(name, value), 78, &[name]);
        }
    }
    faults.are_none(&world);
}

#[test]
fn a_bad_config_line_is_78() {
    let world = World::new(Backend::Redis);
    let cases = [
        ("# fine\ntll = \"5s\"\n", 2, "ttl"),
        ("passwrod = \"x\"\n", 1, "password"),
        ("ttl = []\n", 1, "ttl"),
        ("\n\nttl = \"soon\"\n", 3, "ttl"),
        ("ttl = \"1ms\"\n", 1, "500ms"),
        ("store = 5\n", 1, "store"),
        ("store = \"http://x\"\n", 1, "store"),
        ("on-lost = \"panic\"\n", 1, "stop"),
        ("busy-exit-code = 300\n", 1, "255"),
        ("prefix = \"a\"\nprefix = \"b\"\n", 2, "duplicate"),
        ("ttl = \n", 1, ""),
        ("[run]\nttl = \"5s\"\n", 1, "run"),
    ];
    let mut faults = Faults::default();
    for (text, line, says) in cases {
        world.write("bad.toml", text);
        let place = format!("line {line}");
        let call = world.dlock(["run", "--config", "bad.toml", "-k", "k", "--", "touch", "ran"]);
        let call = if text.starts_with("store") { call.env_remove("DLOCK_STORE") } else { call };
        faults.refused(text, call, 78, &["bad.toml", &place, says]);
    }
    std::fs::write(world.path("bad.toml"), b"prefix = \"\xff\"\n").expect("a file");
    faults.refused("bad", world.dlock(["status", "--config", "bad.toml"]), 78, &["bad.toml"]);
    faults.refused("absent", world.dlock(["status", "--config", "absent.toml"]), 78, &["absent.toml"]);
    faults.refused("empty", world.dlock(["status", "--config", ""]), 78, &["--config"]);
    // A file that was found, not named by --config, is checked as well.
    world.write("config/dlock.toml", "tll = \"5s\"\n");
    faults.refused("found", world.dlock(["status"]), 78, &["dlock.toml", "ttl"]);
    std::fs::remove_file(world.path("config/dlock.toml")).expect("a file");
    std::fs::create_dir(world.path("config/dlock.toml")).expect("a directory");
    faults.refused("a directory", world.dlock(["status"]), 78, &["dlock.toml"]);
    faults.are_none(&world);
}

on_every_store!(odd_keys_are_keys);

/// Unusual keys that are allowed.
fn odd_keys_are_keys(backend: Backend) {
    let world = World::new(backend);
    let long = "é".repeat(256);
    for key in ["a b", "../../etc/passwd", "*", "a*[b]?\\", "{tag}rest", "-", "ü/ß", "%s%n", &long] {
        let mut words = vec!["run", "-k", key, "-t", "1m"];
        words.extend([
            "--",
            "sh",
            "-c",
            "printf %s \"$DLOCK_KEY\" > key; echo up; while [ ! -e go ]; do sleep 0.1; done",
        ]);
        let holder = world.dlock(words).any_stdout().spawn();
        crate::support::wait::wait_until("the job runs", || world.read("key") == key);
        world.run(key, &[], "touch ran").status(75).any_stderr().run();
        // In `status` a star is a wildcard.
        let escaped = key.replace('\\', r"\\").replace('*', r"\*").replace('?', r"\?");
        let shown = world.dlock(["status", "--json", "--", &escaped]).any_stdout().run().stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!((&shown[0]["key"], &shown[0]["state"]), (&key.into(), &"held".into()));
        let all = world.dlock(["status", "--json"]).any_stdout().run().stdout;
        let all: serde_json::Value = serde_json::from_str(&all).expect("JSON");
        assert_eq!(all.as_array().expect("an array").iter().filter(|one| one["state"] == "held").count(), 1);
        world.write("go", "");
        holder.finish();
        std::fs::remove_file(world.path("go")).expect("a file");
    }
}

//! Garbage of every kind: in arguments, in settings, in what a job inherits, in records, and from a
//! broken or bad server. dlock does not panic, hang or grow; it says what is wrong in lines of its
//! own, with a status of the contract. The servers of the other stores, and holders meanwhile, are
//! in `servers`.

mod liar;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
mod records;
mod redis_replies;
mod servers;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
mod tongue;

use crate::support::dlock::{Dlock, End, Output};
use crate::support::storm::Dice;
use crate::support::world::{Backend, World};
use dlock::cli::duration;
use dlock::config::file::File as Settings;
use dlock::config::url;
use dlock::lock::{Key, Name};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Texts made of these pieces and of random ones.
fn text(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    let piece = prop_oneof![6 => prop::sample::select(pieces).prop_map(str::to_owned), 1 => ".{0,6}", 1 => "[0-9]{1,25}"];
    prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
}

fn play<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let soak = std::env::var_os("DLOCK_SOAK").is_some();
    let cases = if soak { 100 * cases } else { cases };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(strategy, test).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn any_input_is_understood_or_refused() {
    const URLS: &[&str] = &[
        "redis",
        "rediss",
        "+sentinel",
        "+cluster",
        "+quorum",
        "+unix",
        "file",
        "postgres",
        "mysql",
        "mariadb",
        "etcd",
        "etcds",
        "zookeeper",
        "zookeepers",
        "://",
        ":",
        "/",
        "//",
        "@",
        "?",
        "&",
        "=",
        ",",
        "[",
        "]",
        "::1",
        "%",
        "%2",
        "%00",
        "%ff",
        "127.0.0.1",
        "host",
        ":6379",
        "/0",
        "user:secret@",
        "ca=/f",
        "cert=",
        "db=",
        "sslmode=disable",
        "é",
        " ",
        "\n",
        "\0",
        "#",
        "..",
    ];
    play(3000, &text(URLS), |text| {
        if let Err(why) = url::parse(&text) {
            prop_assert!(!why.contains('\n') && !why.contains('\0'), "{:?}", why);
            let has_password = text.contains("://user:secret@");
            prop_assert!(!has_password || !why.contains("secret"), "a password is shown: {:?}", why);
        }
        drop(url::with_user(&text, "u:é@/"));
        Ok(())
    });
    const SPANS: &[&str] = &[
        "1",
        "90",
        "s",
        "m",
        "h",
        "d",
        "ms",
        "us",
        "ns",
        ".",
        ".5",
        "-",
        "+",
        "e9",
        " ",
        "inf",
        "NaN",
        "é",
        "999999999999",
    ];
    play(3000, &text(SPANS), |text| {
        if let Ok(span) = duration::parse_positive(&text) {
            prop_assert!(span > Duration::ZERO);
        }
        Ok(())
    });
    const KEYS: &[&str] = &[
        "{", "}", "{}", "{a}", "dlock.", "dlock:", ":", "a", "é", "\u{202e}", "\n", "\u{7f}", "", "/", "..",
        "*",
    ];
    play(3000, &text(KEYS), |text| {
        let Ok(key) = Key::new(&text) else { return Ok(()) };
        prop_assert!((1..=512).contains(&text.len()) && !text.chars().any(char::is_control), "{:?}", text);
        for prefix in ["dlock:", "", "{x}", "}"] {
            if let Ok(name) = Name::new(prefix, &key) {
                prop_assert_eq!(name.key(), text.as_str());
                let tag = format!("{{{}}}", name.tag());
                prop_assert!(!name.tag().contains('}') || name.as_str().contains(&tag), "{:?}", text);
            }
        }
        Ok(())
    });
}

#[test]
fn any_settings_file_is_read_or_refused() {
    const LINES: &[&str] = &[
        "store",
        "ttl",
        "prefix",
        "wait",
        "password",
        "op-timeout",
        "max-lease",
        "quiet",
        "on-lost",
        " = ",
        "=",
        "\"",
        "'",
        "\"5s\"",
        "\"redis://h\"",
        "true",
        "5",
        "-1",
        "1e9",
        "[",
        "]",
        "{",
        "}",
        "#",
        "\n",
        "\n",
        "\\",
        "\\u0000",
        "é",
        "[run]",
        "\"\"\"",
    ];
    play(700, &text(LINES), |text| {
        if let Err(error) = Settings::parse(Path::new("some.toml"), text.as_bytes()) {
            let said = error.to_string();
            prop_assert!(said.contains("some.toml"), "{:?}", said);
        }
        Ok(())
    });
}

/// The held-lock references that a run inherits from its job may be anything.
#[test]
fn no_inherited_value_starts_a_job_unlocked() {
    let world = World::new(Backend::File);
    let token = "0123456789abcdef0123456789abcdef";
    let good = format!(
        r#"[{{"store":"{}","prefix":"dlock:","keys":["k"],"token":"{token}","fence":7,"by":"run","ttl_ms":5000}}]"#,
        world.url()
    );
    let holder =
        world.run("k", &["-t", "1m"], "touch up; while [ ! -e go ]; do sleep 0.1; done").any_stderr().spawn();
    crate::support::wait::wait_until("the job runs", || world.path("up").exists());
    let mut dice = Dice(0xF00D);
    let odd = ["", "[]", "[[]]", "{}", "null", "\u{0}", "[{", "é", "1e999", "-1", "[null]", "\"k\""];
    for case in 0..60 {
        let mut held = good.clone().into_bytes();
        for _ in 0..dice.roll(4) {
            let at = at(&mut dice, held.len());
            match dice.roll(3) {
                0 => held[at] = u8::try_from(33 + dice.roll(90)).expect("a letter"),
                1 => held.truncate(at.max(1)),
                _ => held.splice(at..at, "9".repeat(at % 50).bytes()).for_each(drop),
            }
        }
        let held = String::from_utf8_lossy(&held).into_owned();
        let held = if case % 6 == 0 { (*dice.of(&odd)).replace('\0', "x") } else { held };
        let words: &[&str] = match dice.roll(4) {
            0 => &["run", "-k", "k", "--", "touch", "ran"],
            1 => &["check"],
            2 => &["renew"],
            _ => &["release", "k"],
        };
        let dlock =
            world.dlock(words).env("DLOCK_HELD", &held).env("DLOCK_TOKEN", token).env("DLOCK_FENCE", &held);
        let output = dlock.any_stdout().any_stderr().spawn().output();
        let case = format!("{words:?} with {held:?}: {output:?}");
        assert!(matches!(output.end(), End::Status(64 | 75 | 78 | 79)), "{case}");
        assert!(output.stderr.lines().all(|line| line.starts_with("dlock: ")), "{case}");
        assert!(!world.path("ran").exists(), "{case}");
    }
    world.write("go", "");
    holder.finish();
}

/// Random bytes of a record in a directory change while it is used.
#[test]
fn a_damaged_file_of_the_store_hides_no_other_lock() {
    let world = World::new(Backend::File);
    world.run("bad", &[], "exit 3").status(3).run();
    let record = fs::read_dir(world.path("locks")).expect("a directory").flatten().map(|entry| entry.path());
    let record =
        record.filter(|path| path.extension().is_some_and(|kind| kind == "json")).last().expect("a record");
    world.run("good", &[], "true").run();
    let intact = fs::read(&record).expect("a record");
    // Without its sum, so that the damage is not found at once.
    let text = String::from_utf8_lossy(&intact);
    let (sum, rest) = text.split_once(',').expect("a header");
    assert!(sum.starts_with("{\"sum\":"), "{sum}");
    let unchecked = format!("{{\"sum\":0,{}", rest.trim_end()).into_bytes();
    let mut dice = Dice(0xBEEF);
    for case in 0..24 {
        let mut bytes = if case % 4 == 0 { intact.clone() } else { unchecked.clone() };
        for _ in 0..=dice.roll(6) {
            let at = at(&mut dice, bytes.len());
            match dice.roll(4) {
                0 => bytes[at] = u8::try_from(dice.roll(256)).expect("a byte"),
                1 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = b'9'),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.extend(vec![b'['; 1 + at]),
            }
        }
        // Written in place, as by a broken disk.
        let file = fs::File::options().write(true).open(&record).expect("it is there");
        file.set_len(u64::try_from(bytes.len()).expect("a size"))
            .and_then(|()| file.write_all_at(&bytes, 0))
            .expect("a write");
        for words in
            [&["status", "good", "bad"][..], &["history", "bad"], &["run", "-k", "bad", "--", "true"]]
        {
            is_decent(world.dlock(words), &format!("{words:?} on {bytes:?}"), "");
        }
        let said = world.dlock(["status", "good"]).any_stdout().run().stdout;
        assert!(said.contains("good"), "{said}");
        fs::write(&record, &intact).expect("a write");
    }
}

/// Values of any type and shape under the names that dlock uses.
#[test]
fn any_value_under_a_dlock_key_is_a_line_about_that_lock() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let kinds = [
        "hold", "due", "kept", "queue", "heard", "fence", "done", "pause", "newest", "log", "stat", "watch",
        "refused", "said",
    ];
    let mut dice = Dice(0xCAFE);
    for _ in 0..30 {
        redis.ask::<()>(&["FLUSHALL"]);
        world.run("bad", &[], "true").run();
        let kind = *dice.of(&kinds);
        let key = if dice.roll(6) == 0 {
            "dlock:bad".into()
        } else {
            format!("dlock.{kind}:{{dlock:bad}}:dlock:bad")
        };
        let long = "9".repeat(70_000);
        let values = [
            "",
            "-1",
            "nan",
            "[]",
            "[1]",
            "{}",
            "[null,null,null,null,null,null]",
            "\u{1}",
            "dlock/slots/0:1",
            &long,
        ];
        let (value, field) = (*dice.of(&values), *dice.of(&values));
        redis.ask::<i64>(&["DEL", &key]);
        let words = match dice.roll(6) {
            0 => vec!["SET", &key, value],
            1 => vec!["RPUSH", &key, value, field],
            2 => vec!["HSET", &key, field, value, "#0", value],
            3 => vec!["ZADD", &key, "1", value, "-inf", field],
            4 => vec!["SADD", &key, value],
            _ => vec!["XADD", &key, "*", "f", value],
        };
        drop(redis.ask::<redis::Value>(&words));
        for looks in [
            &["status", "bad"][..],
            &["status"],
            &["history", "bad"],
            &["metrics"],
            &["run", "-k", "bad", "-w", "100ms", "--", "true"],
            &["release", "bad", "-y"],
            &["pause", "bad", "--for", "1s"],
            &["resume", "bad"],
        ] {
            is_decent(world.dlock(looks), &format!("{looks:?} after {words:.200?}"), "");
        }
    }
}

/// dlock ends soon, stays small, and has a status of the contract and messages in lines of its own.
#[track_caller]
fn is_decent(dlock: Dlock<'_>, case: &str, limit: &str) -> Output {
    let began = Instant::now();
    let dlock = if limit.is_empty() { dlock } else { dlock.under(&["prlimit", limit]) };
    let output = dlock.any_stdout().any_stderr().spawn().output();
    let case = format!("after {:?}: {case:.500}: {:.500}", began.elapsed(), output.stderr);
    assert!(
        matches!(output.end(), End::Status(0 | 64 | 69 | 75 | 77 | 78 | 79)),
        "{:?} {case}",
        output.end()
    );
    assert!(
        output.stderr.lines().all(|line| line.starts_with("dlock: ") || line.starts_with("  ")),
        "{case}"
    );
    assert!(output.stderr.len() <= 16_384, "{case}");
    output
}

fn at(dice: &mut Dice, len: usize) -> usize {
    usize::try_from(dice.roll(u64::try_from(len.max(1)).expect("a size"))).expect("a place")
}

//! A client with write access to a database, etcd or ZooKeeper puts anything in place of a lock's
//! records and beside them. dlock says so in a line about that lock, starts no job under it unless
//! the lock is clearly free, and shows all other locks.

use super::is_decent;
use super::liar::{garbled, random};
#[cfg(feature = "sql")]
use crate::support::database::Kind;
use crate::support::dlock::End;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::storm::{Dice, is_soak};
use crate::support::world::{Backend, World};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use std::fs;

macro_rules! on_the_other_stores {
    ($($store:ident, $backend:ident, $feature:literal;)+) => {$(
        #[cfg(feature = $feature)]
        mod $store {
            #[test]
            fn a_damaged_record_hides_no_other_lock() {
                super::a_damaged_record_hides_no_other_lock(crate::support::world::Backend::$backend);
            }
        }
    )+};
}

on_the_other_stores! {
    on_mysql, Mysql, "mysql";
    on_postgres, Postgres, "postgres";
    on_etcd, Etcd, "etcd";
    on_zookeeper, ZooKeeper, "zookeeper";
}

fn a_damaged_record_hides_no_other_lock(backend: Backend) {
    let world = World::new(backend);
    let hold = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("good", &["-t", "5m"], hold).any_stderr().spawn();
    world.wait_for_log("up");
    let mut dice = Dice(0xD1CE);
    let mut told = 0;
    for case in 0..if is_soak() { 600 } else { 16 } {
        forget(&world, backend);
        world.run("bad", &[], "exit 3").status(3).any_stderr().run();
        let (what, is_rubbish) = spoil(&world, backend, case % 4, &mut dice);
        let case = |words: &[&str]| format!("case {case}: {words:?} with {what}");
        let mut lines = Vec::new();
        for (words, shown) in [
            (&["status"][..], "good"),
            (&["status", "bad", "good"], "good"),
            (&["history", "bad"], ""),
            (&["metrics"], "key=\"good\""),
            (&["run", "-k", "bad", "-w", "100ms", "--", "touch", "ran"], ""),
            (&["release", "bad", "-y"], ""),
        ] {
            let output = is_decent(world.dlock(words), &case(words), "");
            assert!(output.stdout.contains(shown), "{}: {output:?}", case(words));
            // No message is about the good lock.
            assert!(!output.stderr.contains("good"), "{}: {output:?}", case(words));
            lines.extend(output.stderr.lines().filter(|line| line.contains("damaged")).map(str::to_owned));
            if words[0] == "run" {
                let has_run = fs::remove_file(world.path("ran")).is_ok();
                assert_eq!(output.end() == End::Status(0), has_run, "{}: {output:?}", case(words));
                let refused = output.end() == End::Status(69) && output.stderr.contains("\"dlock:bad\"");
                assert!(!is_rubbish || refused, "{}: {output:?}", case(words));
            }
        }
        told += usize::from(!lines.is_empty());
        assert!(
            lines
                .iter()
                .all(|line| line.contains("dlock:bad") || line.contains("%ff") || line.contains("\"?\"")),
            "{lines:?}"
        );
        assert!(lines.iter().all(|line| line.len() <= 4096), "{lines:?}");
    }
    assert!(told >= 3, "some of it cannot be read: {told}");
    forget(&world, backend);
    world.run("bad", &[], "echo well >> log").any_stderr().run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "well"]);
}

/// Bytes of a record, changed at random.
fn spoiled(dice: &mut Dice, record: &[u8]) -> Vec<u8> {
    let long = |c: char| c.to_string().repeat(30_000).into_bytes();
    match dice.roll(6) {
        0 => random(dice, 300),
        1 => dice
            .of(&[&b"null"[..], b"[]", b"{}", b"7", b"\"\"", b"{\"format\":1}", b"{\"format\":2}"])
            .to_vec(),
        2 => long(*dice.of(&['[', '9', '{', 'x'])),
        3 => record[..super::at(dice, record.len())].to_vec(),
        4 => {
            let mut bytes = record.to_vec();
            let at = super::at(dice, bytes.len());
            bytes[at..].iter_mut().take(8).for_each(|byte| *byte = b'9');
            bytes
        }
        _ => garbled(dice, record),
    }
}

/// Whether the bytes cannot be read as a record.
fn is_rubbish(bytes: &[u8]) -> bool {
    !bytes.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_err()
}

const TOKENS: [&str; 4] = ["0123456789abcdef0123456789abcdef", "0123", "\u{1}", "9"];
#[cfg(feature = "sql")]
const NUMBERS: [&str; 5] = ["-1", "0", "9223372036854775807", "1152921504606846977", "7"];

/// The value of a waiter.
const WAITER: &[u8] = br#"{"is_queued":true,"waiter":{"ticket":1,"since":5,"stale_at":1,"forget":2,"mode":"Exclusive","names":["dlock:bad"],"owner":{}}}"#;

/// Changes the record of the lock (0 and 1), or adds a waiter or an end. Returns what it did, and
/// whether the record is unreadable.
fn spoil(world: &World, backend: Backend, what: u64, dice: &mut Dice) -> (String, bool) {
    let bytes = match what {
        0 | 1 => spoiled(dice, record(world, backend).as_bytes()),
        _ => spoiled(dice, WAITER),
    };
    let is_lock = what < 2;
    let shown = format!("{:.200}", String::from_utf8_lossy(&bytes));
    let said = match backend {
        #[cfg(feature = "mysql")]
        Backend::Mysql => rows_of_mysql(world, what, &bytes, dice),
        #[cfg(feature = "postgres")]
        Backend::Postgres => rows_of_postgres(world, what, &bytes, dice),
        #[cfg(feature = "etcd")]
        Backend::Etcd => {
            let prefix = world.url().rsplit('/').next().expect("a prefix").to_owned();
            let (token, number) =
                (*dice.of(&TOKENS), *dice.of(&["0000000000000001", "7", "x", "ffffffffffffffff"]));
            let key = match (is_lock, dice.roll(6)) {
                (true, _) => "lock/dlock:bad".into(),
                (_, 0) => format!("session/dlock:bad/{token}"),
                (_, 1..4) => format!("wait/dlock:bad/{token}"),
                (_, 4) => format!("end/dlock:bad/{number}"),
                _ => "lock/%ff".into(),
            };
            Etcd::shared().put(&format!("{prefix}/{key}"), &bytes);
            key
        }
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => {
            let lock = "dlock/locks/dlock:bad";
            let path = match (is_lock, dice.roll(6)) {
                (true, _) => lock.into(),
                (_, 0..3) => format!("{lock}/b-{}", dice.of(&TOKENS)),
                (_, 3 | 4) => format!("{lock}/{}", dice.of(&["e00", "e01", "e63", "e", "b-", "z"])),
                _ => "dlock/locks/%ff".into(),
            };
            let path = path.replace('\u{1}', "-");
            ZooKeeper::shared().put(world, &path, &bytes);
            path
        }
        backend => panic!("{backend:?} is looked at elsewhere"),
    };
    (format!("{said}: {shown}"), is_lock && is_rubbish(&bytes))
}

/// The record of the lock in one value.
fn record(world: &World, backend: Backend) -> String {
    match backend {
        #[cfg(feature = "mysql")]
        Backend::Mysql => {
            Kind::Mysql.ask(world, "SELECT body FROM dlock_locks WHERE kind = 0 AND name = 'dlock:bad'")
        }
        #[cfg(feature = "postgres")]
        Backend::Postgres => Kind::Postgres
            .ask(world, "SELECT convert_from(body, 'UTF8') FROM dlock_locks WHERE name = 'dlock:bad'"),
        #[cfg(feature = "etcd")]
        Backend::Etcd => {
            let prefix = world.url().rsplit('/').next().expect("a prefix").to_owned();
            Etcd::shared().ctl(&["get", "--print-value-only", &format!("{prefix}/lock/dlock:bad")])
        }
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => ZooKeeper::shared().get(world, "dlock/locks/dlock:bad"),
        backend => panic!("{backend:?} is looked at elsewhere"),
    }
}

/// Removes all records of the bad lock and those beside it.
fn forget(world: &World, backend: Backend) {
    match backend {
        #[cfg(feature = "mysql")]
        Backend::Mysql => {
            world.dlock(["status"]).any_stdout().any_stderr().run();
            Kind::Mysql.ask(world, "DELETE FROM dlock_locks WHERE name <> 'dlock:good'");
        }
        #[cfg(feature = "postgres")]
        Backend::Postgres => {
            let tables = ["dlock_locks", "dlock_waiters", "dlock_ends"];
            let delete = tables.map(|table| format!("DELETE FROM {table} WHERE name <> 'dlock:good'"));
            Kind::Postgres.ask(world, &delete.join("; "));
        }
        #[cfg(feature = "etcd")]
        Backend::Etcd => {
            let prefix = world.url().rsplit('/').next().expect("a prefix").to_owned();
            for kind in ["lock/dlock:bad", "lock/%ff", "session/dlock:bad", "wait/dlock:bad", "end/dlock:bad"]
            {
                Etcd::shared().ctl(&["del", "--prefix", &format!("{prefix}/{kind}")]);
            }
        }
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => {
            for path in ["dlock/locks/dlock:bad", "dlock/locks/%ff"] {
                ZooKeeper::shared().remove(world, path);
            }
        }
        backend => panic!("{backend:?} is looked at elsewhere"),
    }
}

#[cfg(feature = "mysql")]
fn rows_of_mysql(world: &World, what: u64, bytes: &[u8], dice: &mut Dice) -> String {
    let (body, token) = (hex(bytes), hex(dice.of(&TOKENS).as_bytes()));
    let (number, other, queued) = (*dice.of(&NUMBERS), *dice.of(&NUMBERS), dice.roll(3));
    let statement = match what {
        0 | 1 => format!("UPDATE dlock_locks SET body = x'{body}' WHERE kind = 0 AND name = 'dlock:bad'"),
        2 => format!(
            "INSERT INTO dlock_locks (kind, name, id, queued, said, body) VALUES (1, 'dlock:bad', x'{token}', {queued}, {number}, x'{body}')"
        ),
        _ if dice.roll(2) == 0 => format!(
            "UPDATE dlock_locks SET version = {number}, used = {number}, reserved = {other} WHERE kind = 0 AND name = 'dlock:bad'"
        ),
        _ => format!(
            "REPLACE INTO dlock_locks (kind, name, id, version, body) VALUES (2, 'dlock:bad', x'{token}', {number}, x'{body}')"
        ),
    };
    Kind::Mysql.ask(world, &statement);
    format!("{statement:.300}")
}

#[cfg(feature = "postgres")]
fn rows_of_postgres(world: &World, what: u64, bytes: &[u8], dice: &mut Dice) -> String {
    let (body, token) = (hex(bytes), hex(dice.of(&TOKENS).as_bytes()));
    let (number, other, queued) = (*dice.of(&NUMBERS), *dice.of(&NUMBERS), dice.roll(2) == 0);
    let statement = match what {
        0 | 1 => format!("UPDATE dlock_locks SET body = '\\x{body}' WHERE name = 'dlock:bad'"),
        2 => format!(
            "INSERT INTO dlock_waiters VALUES ('dlock:bad', convert_from('\\x{token}', 'UTF8'), {queued}, {number}, '\\x{body}')"
        ),
        _ if dice.roll(2) == 0 => format!(
            "UPDATE dlock_locks SET version = {number}, used = {number}, reserved = {other} WHERE name = 'dlock:bad'"
        ),
        _ => format!(
            "INSERT INTO dlock_ends VALUES ('dlock:bad', {number}, '\\x{body}') ON CONFLICT (name, number) DO UPDATE \
             SET body = excluded.body"
        ),
    };
    Kind::Postgres.ask(world, &statement);
    format!("{statement:.300}")
}

#[cfg(feature = "sql")]
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

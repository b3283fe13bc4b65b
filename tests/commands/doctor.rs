//! `dlock doctor`: is this store fit to hold locks? Here are its findings on real servers and
//! directories. The unit tests beside src/commands/doctor/judge.rs check how each fact is judged.

mod doctor_settings;

use crate::support::cluster::Cluster;
use crate::support::dlock::{Dlock, End};
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::masters::Masters;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::pty::Terminal;
use crate::support::sentinel::{self, Sentinel};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

on_every_store!(a_fit_store, nothing_is_left_behind, the_first_line_says_which_locks_are_meant);

/// Options with which no round trip is too slow, even on a busy machine.
const PATIENT: [&str; 4] = ["--op-timeout", "40s", "--ttl", "24h"];

/// The findings: check, verdict, and the whole JSON object.
#[track_caller]
fn findings(dlock: Dlock<'_>) -> Vec<(String, String, Value)> {
    let output = dlock.any_stdout().any_stderr().spawn().output();
    let json: Value = serde_json::from_str(&output.stdout).expect("doctor --json prints JSON");
    let text = |value: &Value| value.as_str().expect("a word").to_owned();
    let one = |finding: &Value| (text(&finding["check"]), text(&finding["verdict"]), finding.clone());
    json.as_array().expect("an array").iter().map(one).collect()
}

#[track_caller]
fn verdict<'f>(findings: &'f [(String, String, Value)], check: &str) -> &'f str {
    let found = findings.iter().find(|(name, ..)| name == check);
    &found.unwrap_or_else(|| panic!("no finding about {check}: {findings:#?}")).1
}

/// The checks of a server that keeps locks on disk and wakes waiters.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd"))]
const WAKING: &[&str] =
    &["store", "identity", "round trip", "version", "role", "clock", "persistence", "rights", "wake-up"];

fn a_fit_store(backend: Backend) {
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_mut, reason = "there is no administrator to replace")
    )]
    let mut world = match backend {
        Backend::Redis => World::with_redis(&["--appendonly", "yes"]),
        other => World::new(other),
    };
    // The first run creates the tables of a database.
    world.run("k", &[], "true").run();
    #[cfg(feature = "postgres")]
    if backend == Backend::Postgres {
        // `app` is a superuser on this server.
        let (server, role) = (Postgres::shared(), format!("fit_{}", world.database()));
        let rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_locks, dlock_waiters, dlock_ends TO";
        server.ask(world.database(), &format!("CREATE ROLE {role} LOGIN; {rights} {role}"));
        world.use_store(world.url().replace("app@", &format!("{role}@")));
    }
    let text = world.dlock(["doctor", "--strict"]).args(PATIENT).any_stdout().run().stdout;
    assert!(text.lines().filter(|line| line.contains("  ")).all(|line| line.starts_with("ok ")), "{text}");
    let found = findings(world.dlock(["doctor", "--json"]).args(PATIENT));
    let expected: &[&str] = match backend {
        Backend::Redis => &[
            "store",
            "identity",
            "round trip",
            "version",
            "role",
            "eviction",
            "persistence",
            "replicas",
            "uptime",
            "clock",
            "rights",
        ],
        Backend::File => &["store", "identity", "file system", "mode", "file locks", "FIFOs", "clock"],
        #[cfg(feature = "mysql")]
        Backend::Mysql => WAKING,
        #[cfg(feature = "postgres")]
        Backend::Postgres => WAKING,
        #[cfg(feature = "etcd")]
        Backend::Etcd => WAKING,
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => &["store", "identity", "server", "round trip", "clock", "rights"],
    };
    assert_eq!(found.iter().map(|(check, ..)| check).collect::<Vec<_>>(), expected);
    for (_, verdict, finding) in &found {
        assert_eq!((verdict.as_str(), &finding["advice"]), ("ok", &Value::Null), "{finding}");
    }
}

/// The identity is the same on every machine that means this store.
fn the_first_line_says_which_locks_are_meant(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], "true").run();
    let first = |world: &World, options: &[&str]| {
        let text = world.dlock(["doctor"]).args(PATIENT).args(options).any_stdout().run().stdout;
        text.lines().next().expect("a line").to_owned()
    };
    let line = first(&world, &[]);
    let (_, identity) = line.split_once("; prefix dlock:, identity ").unwrap_or_else(|| panic!("{line}"));
    assert!(identity.len() == 8 && identity.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    assert_eq!(first(&world, &[]), line);
    let other = World::new(backend);
    other.run("k", &[], "true").run();
    assert!(!first(&other, &[]).contains(identity));
}

/// It found no identity, or another one was faster, and its lease ran out before it gave the lock
/// back.
#[test]
fn a_doctor_that_died_leaves_no_identity() {
    let world = World::new(Backend::Redis);
    let first = || {
        let text = world.dlock(["doctor"]).any_stdout().run().stdout;
        text.lines().next().expect("a line").to_owned()
    };
    let dies = |label: &str| {
        let label = ["-t", "500ms", "--label", label];
        world.dlock(["acquire", "-k", "dlock.identity"]).args(&label).any_stdout().run();
        world.wait_for_state("dlock.identity", "free");
        // The next step records that.
        world.dlock(["pause", "dlock.identity", "--reason", "a test"]).any_stderr().run();
        world.dlock(["resume", "dlock.identity"]).any_stderr().run();
        let history = world.dlock(["history", "--json", "dlock.identity"]).any_stdout().run().stdout;
        assert!(history.contains("\"expired\""), "{history}");
    };
    dies("11111111");
    let line = first();
    assert!(line.contains("; prefix dlock:, identity ") && !line.contains("11111111"), "{line}");
    dies("22222222");
    assert_eq!(first(), line);
}

#[test]
fn a_quorum_has_the_identities_of_its_masters() {
    let masters = Masters::aged(3);
    let first = || masters.dlock(&["doctor"]).any_stdout().any_stderr().spawn().output().stdout;
    let identity =
        first().lines().next().and_then(|line| line.split(", identity ").nth(1)).map(str::to_owned);
    let identity = identity.expect("an identity");
    assert_eq!(identity.split('+').filter(|part| part.len() == 8).count(), 3, "{identity}");
    assert!(first().contains(&identity));
}

fn nothing_is_left_behind(backend: Backend) {
    let world = World::new(backend);
    let count = || match backend {
        Backend::Redis => world.redis().keys().len(),
        Backend::File => fs::read_dir(world.path("locks")).expect("a directory").count(),
        #[cfg(feature = "mysql")]
        Backend::Mysql => Mysql::shared().tables(world.database()),
        #[cfg(feature = "postgres")]
        Backend::Postgres => Postgres::shared().tables(world.database()),
        #[cfg(feature = "etcd")]
        Backend::Etcd => Etcd::shared().keys(&world.url()).len(),
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => ZooKeeper::shared().below(&world).len(),
    };
    world.dlock(["doctor"]).args(PATIENT).any_stdout().run();
    let identity = count();
    world.dlock(["doctor"]).args(PATIENT).any_stdout().run();
    assert_eq!(count(), identity);
    // What is there keeps the identity, and is shown by no command that was not asked for it.
    assert_eq!(world.dlock(["status", "-a", "--json"]).any_stdout().run().stdout, "[]\n");
    assert!(!world.dlock(["metrics"]).any_stdout().run().stdout.contains("identity"));
    // `doctor` does not create a missing directory.
    let missing = format!("file:{}", world.path("missing").display());
    let found = findings(world.dlock(["doctor", "--json", "--store", &missing]));
    assert_eq!(verdict(&found, "directory"), "warn");
    assert!(!world.path("missing").exists());
}

#[test]
fn a_server_that_may_lose_locks() {
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let mut world = World::with_redis(&options);
    let found = findings(world.dlock(["doctor", "--json"]).args(PATIENT));
    assert_eq!(verdict(&found, "eviction"), "bad");
    assert_eq!(verdict(&found, "persistence"), "warn");
    assert_eq!(verdict(&found, "uptime"), "warn");
    world.dlock(["doctor"]).any_stdout().status(69).run();
    world.redis_mut().restart_with(&["--maxmemory-policy", "noeviction"]);
    // With --strict warnings fail as well.
    world.dlock(["doctor"]).args(PATIENT).any_stdout().run();
    world.dlock(["doctor", "--strict"]).args(PATIENT).any_stdout().status(1).run();
}

#[test]
fn a_replica_and_its_master() {
    let master = World::with_redis(&["--repl-diskless-sync-delay", "0"]);
    let port = master.redis().port().to_string();
    let replica = World::with_redis(&["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica has connected", || {
        master.redis().ask::<String>(&["INFO", "replication"]).contains("connected_slaves:1")
    });
    let found = findings(replica.dlock(["doctor", "--json"]));
    assert_eq!((verdict(&found, "role"), verdict(&found, "rights")), ("bad", "bad"));
    assert_eq!(verdict(&findings(master.dlock(["doctor", "--json"])), "replicas"), "warn");
    master.redis().ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(verdict(&findings(master.dlock(["doctor", "--json"])), "replicas"), "ok");
}

/// The rights in the documents are enough, and each missing right is named.
#[test]
fn rights() {
    let world = World::new(Backend::Redis);
    let as_user = |rights: &[&str]| {
        let words = [&["ACL", "SETUSER", "dlock", "reset", "on", ">hush"][..], rights].concat();
        world.redis().ask::<()>(&words);
        let doctor = world.dlock(["doctor", "--json"]);
        let found = findings(doctor.env("DLOCK_USERNAME", "dlock").env("DLOCK_PASSWORD", "hush"));
        let advice = |finding: &Value| finding["advice"].as_str().unwrap_or_default().to_owned();
        assert_eq!(verdict(&found, "info"), "warn", "INFO is not needed for locks");
        found.iter().filter(|(check, ..)| check == "rights").map(|(.., one)| advice(one)).collect::<Vec<_>>()
    };
    let all = ["~dlock:*", "~dlock.*:{*}:dlock:*", "+@read", "+@write", "+@scripting", "+time", "-info"];
    assert_eq!(as_user(&all), [""]);
    let fewer = [&all[..], &["-zrevrange", "-scan", "-blpop"]].concat();
    assert_eq!(as_user(&fewer), ["give it +zrevrange +blpop +scan (ACL SETUSER)"]);
    let tight = "~dlock:* ~dlock.*:{*}:dlock:*";
    let advice = as_user(&[&["~other*"][..], &all[2..]].concat());
    assert_eq!(advice, [format!("give it {tight} (ACL SETUSER; docs/stores.md has the line)")]);
    for wide in [&["~*"][..], &["~dlock*"], &["~dlock:*", "~dlock.*"]] {
        let advice = as_user(&[wide, &all[2..]].concat());
        assert!(
            advice[0].is_empty() && advice[1].contains(&format!("give it resetkeys {tight} ")),
            "{advice:?}"
        );
    }
    let mut left = world.redis().keys();
    left.retain(|key| !key.contains("dlock:dlock.identity"));
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_server_that_is_not_there_or_does_not_let_in() {
    let world = World::with_redis(&["--requirepass", "hush"]);
    let unreachable = world.dlock(["doctor", "--store", "redis://127.0.0.1:1"]).any_stdout().status(69).run();
    assert!(unreachable.stdout.contains("bad   reachable"), "{}", unreachable.stdout);
    let denied = world.dlock(["doctor"]).any_stdout().status(69).run();
    assert!(denied.stdout.contains("password"), "{}", denied.stdout);
    world.dlock(["doctor"]).args(PATIENT).env("DLOCK_PASSWORD", "hush").any_stdout().run();
    let silent = World::new(Backend::Redis);
    silent.redis().pause();
    silent.dlock(["doctor"]).env("DLOCK_OP_TIMEOUT", "200ms").any_stdout().status(69).run();
    silent.redis().resume();
}

#[test]
fn a_directory_for_everybody() {
    let world = World::without_redis();
    for (bits, check, expected) in [
        (0o777, "directory", "bad"),
        (0o1777, "directory", "bad"),
        (0o2770, "mode", "ok"),
        (0o700, "mode", "ok"),
    ] {
        fs::set_permissions(world.path("locks"), fs::Permissions::from_mode(bits)).expect("permissions");
        assert_eq!(verdict(&findings(world.dlock(["doctor", "--json"])), check), expected, "{bits:o}");
    }
    let output = world.dlock(["doctor", "--store", "file:/proc"]).any_stdout().spawn().output();
    assert_eq!(output.end(), End::Status(69), "{output:?}");
}

#[test]
fn it_fits_a_terminal() {
    let world = World::without_redis();
    let mut terminal = Terminal::open(&world);
    terminal.type_line("stty columns 40; TERM=xterm dlock doctor --store redis+unix:///nowhere");
    let shown = terminal.expect("READY> ");
    assert!(shown.contains("\x1b[31mbad\x1b[0m"), "{shown:?}");
    let plain = shown.replace("\x1b[31m", "").replace("\x1b[32m", "").replace("\x1b[0m", "");
    assert!(plain.lines().all(|line| line.trim_end().chars().count() <= 40), "{plain}");
    terminal.close();
}

#[test]
fn every_master_of_a_cluster_is_checked() {
    let world = World::without_redis();
    let cluster = Cluster::start(&world, 3);
    let found = findings(world.dlock(["doctor", "--json", "--store", &cluster.url(&[0])]).args(PATIENT));
    assert_eq!(nodes(&found, "rights"), 3, "{found:#?}");
    assert!(found.iter().all(|(check, verdict, _)| check != "rights" || verdict == "ok"), "{found:#?}");
    assert_eq!(verdict(&found, "failover"), "ok");
}

#[test]
fn the_master_that_sentinels_name_is_checked() {
    let world = World::with_redis(&[]);
    let sentinel = Sentinel::start(&world, world.redis().port(), 1, 0, "");
    let store = sentinel::url(&[sentinel.port()]);
    let found = findings(world.dlock(["doctor", "--json", "--store", &store]).args(PATIENT));
    assert_eq!((nodes(&found, "rights"), verdict(&found, "failover")), (1, "ok"), "{found:#?}");
    // The sentinel takes half a second to notice, so a lease of one second does not outlast the
    // election.
    let short = ["doctor", "--json", "--ttl", "1s", "--store", &store];
    assert_eq!(verdict(&findings(world.dlock(short)), "failover"), "warn");
}

#[test]
fn every_independent_master_is_checked() {
    let masters = Masters::fresh(3);
    let found = findings(masters.dlock(&["doctor", "--json"]).args(PATIENT));
    assert_eq!(nodes(&found, "rights"), 3, "{found:#?}");
}

/// A quorum that refuses every lock is not fit, even if each of its masters is.
#[test]
fn masters_that_do_not_count_are_reported() {
    let masters = Masters::fresh(3);
    let found = findings(masters.dlock(&["doctor", "--json"]).args(PATIENT));
    assert_eq!((verdict(&found, "quorum"), verdict(&found, "uptime")), ("bad", "warn"), "{found:#?}");
    masters.dlock(&["doctor", "--strict"]).args(PATIENT).status(69).any_stdout().run();
    masters.world().write("short.toml", "max-lease = '1s'\nttl = '500ms'");
    let short = ["doctor", "--strict", "--config", "short.toml"];
    wait_until("they count", || {
        masters.dlock(&short).args(PATIENT).any_stdout().any_stderr().spawn().output().status.success()
    });
    // A master that restarted does not count, so it needs no persistence.
    let found = findings(masters.dlock(&["doctor", "--json", "--config", "short.toml"]).args(PATIENT));
    assert!(found.iter().all(|(check, ..)| check != "persistence"), "{found:#?}");
    // Without INFO a master does not count. Two of three are enough to hold locks.
    masters.at(0).ask::<()>(&["ACL", "SETUSER", "default", "-info"]);
    let short_json = ["doctor", "--json", "--config", "short.toml"];
    let found = findings(masters.dlock(&short_json).args(PATIENT));
    assert_eq!((verdict(&found, "quorum"), verdict(&found, "info")), ("warn", "warn"), "{found:#?}");
    masters.dlock(&["doctor", "--config", "short.toml"]).args(PATIENT).any_stdout().run();
    masters.dlock(&short).args(PATIENT).status(1).any_stdout().run();
    masters.at(1).ask::<()>(&["ACL", "SETUSER", "default", "-info"]);
    let found = findings(masters.dlock(&["doctor", "--json", "--config", "short.toml"]).args(PATIENT));
    assert_eq!((verdict(&found, "quorum"), verdict(&found, "info")), ("bad", "bad"), "{found:#?}");
}

/// The number of servers with a finding of this check.
fn nodes(found: &[(String, String, Value)], check: &str) -> usize {
    let of_check = found.iter().filter(|(name, ..)| name == check);
    of_check.filter_map(|(_, _, finding)| finding["node"].as_str()).collect::<BTreeSet<_>>().len()
}

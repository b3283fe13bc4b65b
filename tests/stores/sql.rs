//! PostgreSQL: rights that are taken away, odd settings, poolers; and which logins are accepted:
//! passwords, TLS, sockets, the least rights. What is the same on every database is in `databases`.

mod poolers;

use crate::stores::databases::{JOB, is_of_use};
use crate::support::certificates::Authority;
use crate::support::database::{Kind, refused};
use crate::support::dlock::{Dlock, finish_all};
use crate::support::postgres::{Postgres, psql};
use crate::support::proxy::{Fault, Proxy};
use crate::support::storm::{Wish, storm};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A key that is no valid table name and needs quoting.
const KEY: &str = "it's a \"key\" \\ über%";

/// A world with a server of its own.
fn own_server(options: &[&str]) -> (World, Postgres) {
    World::with_server(|home| Postgres::start(home, options), |server| server.url("postgres"))
}

#[test]
fn a_refusal_of_the_server_is_reported() {
    let (world, server) = own_server(&["deadlock_timeout=100ms"]);
    world.run("k", &[], "true").run();
    let set = |text: &str| {
        server.ask("postgres", &format!("BEGIN READ WRITE; ALTER ROLE app {text}; COMMIT"));
    };
    set("SET default_transaction_read_only = on");
    assert!(refused(&world, 69).contains("read-only"), "read-only");
    set("RESET default_transaction_read_only");
    server.ask("postgres", "CREATE ROLE few LOGIN CONNECTION LIMIT 0");
    let few = world.url().replace("app@", "few@");
    let said = world.run("k", &["--store", &few], "true").status(69).any_stderr().run().stderr;
    assert!(said.contains("too many"), "{said}");
    // Another session has locked the table, and statements may not wait for it.
    set("SET statement_timeout = '200ms'");
    let hog = Hog::with(&server, "LOCK TABLE dlock_locks");
    assert!(refused(&world, 69).contains("cancelled a statement"), "a timeout");
    drop(hog);
    set("RESET statement_timeout");
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["well"]);
}

/// Each waiter sleeps until it is woken; none polls.
#[test]
fn a_waiter_sleeps_until_its_predecessor_releases() {
    let world = World::with_postgres();
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let jobs = (1..=6).map(|number| format!("echo {number} >> log"));
    let waiters = world.queue("k", &["-w", "-t", "1m"], jobs);
    wait_until("all sleep", || Kind::Postgres.sleeping(&world) == 6);
    world.write("go", "");
    holder.finish();
    finish_all(waiters);
    assert_eq!(world.log(), ["up", "done", "1", "2", "3", "4", "5", "6"]);
}

/// A server does not notice that a client hung up while the session waits for a table lock. A
/// client that keeps trying for so long leaves no sessions there.
#[test]
fn a_table_that_is_locked_for_long_takes_no_connections() {
    let (world, server) = own_server(&[]);
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let jobs = (1..=3).map(|number| format!("echo {number} >> log"));
    let waiters = world.queue("k", &["-w", "-t", "1m"], jobs);
    let hog = Hog::with(&server, "LOCK TABLE dlock_locks, dlock_waiters");
    let asking = "SELECT count(*), count(*) FILTER (WHERE age > interval '12 s') FROM (SELECT clock_timestamp() - query_start AS age \
                  FROM pg_stat_activity WHERE application_name = 'dlock' AND wait_event_type = 'Lock') AS a";
    let (began, mut seen) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(15) {
        let said = server.ask("postgres", asking);
        let (count, old) = said.split_once('|').expect("two numbers");
        assert_eq!(old, "0", "each waits for no longer than its client does: {count}");
        seen = seen.max(count.parse().expect("a number"));
        sleep(Duration::from_millis(200));
    }
    assert!(seen > 0, "they ask");
    drop(hog);
    world.write("go", "");
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    assert_eq!(world.log(), ["up", "done", "1", "2", "3"]);
}

/// A holder keeps its lock meanwhile, even if it has to connect again; a waiter goes on waiting.
#[test]
fn too_many_clients_are_an_outage() {
    let (mut world, server) = own_server(&["max_connections=8"]);
    server.ask("postgres", "CREATE ROLE guest LOGIN; GRANT CREATE ON SCHEMA public TO guest");
    world.use_store(world.url().replace("app@", "guest@"));
    let client = || {
        let mut psql = Command::new(psql());
        psql.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-U", "guest", "-XAtq", "postgres"]);
        psql.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        psql
    };
    let crowd = || -> Vec<Hog> { (0..8).map(|_| Hog { child: client().spawn().unwrap() }).collect() };
    let is_full = || !client().args(["-c", "SELECT 1"]).stdin(Stdio::null()).status().unwrap().success();
    let holder = world.run("k", &["-t", "30s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let first = crowd();
    wait_until("there is no room", is_full);
    let said = refused(&world, 69);
    assert!(said.contains("too many clients"), "{said}");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    server.ask(
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dlock'",
    );
    let second = crowd();
    wait_until("there is no room again", is_full);
    drop((first, second));
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// A client that releases ends when the release is on the disk, and not before.
#[test]
fn a_release_outlasts_a_crash_of_the_server() {
    // The server does not flush its log by itself meanwhile.
    let (world, mut server) = own_server(&["wal_writer_delay=10s", "wal_writer_flush_after=1GB"]);
    let proxy = Proxy::before(server.port());
    let url = world.url().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    for crash in ["after", "before"] {
        let holder = ["--store", &url, "-t", "1m", "--op-timeout", "10s"];
        let holder = world.run(crash, &holder, JOB).any_stderr().spawn();
        world.wait_for_log("up");
        let waiter = world.run(crash, &["-w"], "echo next >> log").any_stderr().spawn();
        world.wait_for_waiters(crash, 1);
        // A grant to the waiter would flush the release with it.
        waiter.signal(Signal::STOP);
        if crash == "before" {
            // The client reads, then writes; the write never arrives.
            proxy.plan(2, Fault::Swallowed);
        }
        world.write("go", "");
        if crash == "after" {
            holder.finish();
            server.stop(Signal::KILL);
            server.run();
        } else {
            wait_until("it writes", || proxy.seen() >= 2);
            server.stop(Signal::KILL);
            server.run();
            holder.finish();
        }
        // A holder without an answer in time leaves the release to its guard.
        wait_until("the release is there", || !world.status(crash)["last_success"].is_null());
        waiter.signal(Signal::CONT);
        waiter.finish();
        assert_eq!(world.log(), ["up", "done", "next"]);
        fs::remove_file(world.path("go")).unwrap();
        fs::remove_file(world.path("log")).unwrap();
    }
}

/// The victim of a deadlock with another transaction tries again. The server looks for a deadlock
/// once, when a wait has lasted for deadlock_timeout.
#[test]
fn a_deadlock_is_tried_again() {
    let (world, server) = own_server(&["deadlock_timeout=5s"]);
    let both = || world.dlock(["run", "-k", "a", "-k", "b", "--op-timeout", "20s", "--", "true"]);
    both().run();
    let row = |key: &str| format!("SELECT 1 FROM dlock_locks WHERE name = 'dlock:{key}' FOR UPDATE");
    let hog = Hog::with(&server, &format!("SET deadlock_timeout = '1min'; {}", row("b")));
    let run = both().any_stderr().spawn();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    wait_until("the run waits for the row", || server.ask("postgres", waits) != "0");
    hog.say(&row("a"));
    let log = || fs::read_to_string(server.data().join("../log")).unwrap_or_default();
    wait_until("a deadlock was found", || log().contains("deadlock detected"));
    drop(hog);
    run.finish();
}

/// No session setting changes how locks behave.
#[test]
fn odd_settings_change_nothing() {
    let world = World::with_postgres();
    let settings = [
        "TimeZone TO 'Asia/Kathmandu'",
        "DateStyle TO 'German'",
        "bytea_output TO 'escape'",
        "standard_conforming_strings TO off",
        "default_transaction_isolation TO 'serializable'",
        "extra_float_digits TO -15",
        "client_min_messages TO debug1",
        "lock_timeout TO '10s'",
    ];
    for setting in settings {
        Postgres::shared().ask("postgres", &format!("ALTER DATABASE {} SET {setting}", world.database()));
    }
    world.run(KEY, &["--reason", "it's \\ so"], "echo $DLOCK_KEY > key").run();
    assert_eq!(world.read("key"), format!("{KEY}\n"));
    assert_eq!(world.status(KEY)["key"], KEY);
    let wishes = [
        Wish { keys: &["k"], options: &[], kind: "alone" },
        Wish { keys: &["k"], options: &["--shared"], kind: "shared" },
        Wish { keys: &["k", "l"], options: &[], kind: "alone" },
    ];
    storm(&world, 6, 4, &wishes);
}

#[test]
fn the_least_rights_are_enough() {
    let world = World::with_postgres();
    let (server, database) = (Postgres::shared(), world.database());
    let role = format!("least_{database}");
    server.ask(database, &format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC"));
    let url = world.url().replace("app@", &format!("{role}@"));
    let least = |words: &[&str]| world.dlock(words).env("DLOCK_STORE", &url).any_stderr().any_stdout();
    // The message says what an administrator has to do. Then that is done.
    let said = least(&["run", "-k", "k", "--", "true"]).status(77).run().stderr;
    assert!(said.contains("'dlock doctor --sql'") && said.len() < 600, "{said}");
    let tables = least(&["doctor", "--sql"]).run().stdout;
    assert!(tables.lines().count() > 10 && tables.lines().all(|line| line.len() < 100), "{tables}");
    server.ask(database, &tables);
    let said = least(&["run", "-k", "k", "--", "true"]).status(77).run().stderr;
    assert!(said.contains("permission denied"), "{said}");
    let documented = include_str!("../../docs/stores.md");
    let grant = documented
        .lines()
        .find_map(|line| line.strip_prefix("GRANT SELECT").map(|rest| format!("GRANT SELECT{rest}")));
    let grant = grant.expect("docs/stores.md has the line").replace("dlock.dlock_", "dlock_");
    server.ask(database, &grant.replace(" TO dlock;", &format!(" TO {role}")));
    is_of_use(&world, &url);
    server.ask(database, &format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn each_kind_of_login_is_accepted_or_refused() {
    let (world, server) = own_server(&["password_encryption=scram-sha-256"]);
    server
        .ask("postgres", "CREATE ROLE scram LOGIN PASSWORD 'sesame'; GRANT CREATE ON SCHEMA public TO scram");
    server.ask(
        "postgres",
        "SET password_encryption = md5; CREATE ROLE old LOGIN PASSWORD 'sesame'; GRANT scram TO old",
    );
    server.ask("postgres", "CREATE ROLE clear LOGIN PASSWORD 'sesame'; GRANT scram TO clear");
    world.run("k", &[], "true").run();
    server.ask(
        "postgres",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_locks, dlock_waiters, dlock_ends TO scram",
    );
    let rules = "local all app trust\nhost all app all trust\nhost all scram all scram-sha-256\nhost all old all md5\n\
                 local all clear password\nhost all clear all password\nlocal all old md5\n";
    fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.ask("postgres", "SELECT pg_reload_conf()");
    world.write("right", "sesame\n");
    world.write("wrong", "sesam\n");
    let at = |user: &str| world.url().replace("app@", &format!("{user}@"));
    wait_until("the rules are in force", || server.try_ask("postgres", "SELECT 1").is_ok());
    let by_socket = |user: &str| format!("postgres+unix://{user}@{}?db=postgres", server.socket().display());
    for (user, url) in [("scram", at("scram")), ("old", by_socket("old"))] {
        let run = |file: Option<&str>| {
            let run = world.run("k", &["--store", &url], "true").any_stderr();
            match file {
                Some(file) => run.env("DLOCK_PASSWORD_FILE", world.path(file)),
                None => run.env("PGPASSWORD", "sesame"),
            }
        };
        run(Some("right")).run();
        let said = run(Some("wrong")).status(77).run().stderr;
        assert!(said.contains("refused the user name or the password") && !said.contains("sesam"), "{said}");
        let said = run(None).status(77).run().stderr;
        assert!(said.contains("wants a password"), "{user}: {said}");
    }
    // The directory of the socket is enough, as in libpq.
    fs::create_dir(world.path("sockets")).unwrap();
    std::os::unix::fs::symlink(server.socket(), world.path("sockets/.s.PGSQL.5432")).unwrap();
    let directory = format!("postgres+unix://old@{}?db=postgres", world.path("sockets").display());
    world.run("k", &["--store", &directory], "true").env("DLOCK_PASSWORD", "sesame").run();
    let old = world.run("k", &["--store", &at("old")], "true").env("DLOCK_PASSWORD", "sesame");
    assert!(old.status(77).any_stderr().run().stderr.contains("with md5"));
    // A password goes only through TLS, or to a server that proves to know it.
    let clear = world.run("k", &["--store", &at("clear")], "true").env("DLOCK_PASSWORD", "sesame");
    assert!(clear.status(77).any_stderr().run().stderr.contains("in clear text"));
    world.run("k", &["--store", &by_socket("clear")], "true").env("DLOCK_PASSWORD", "sesame").run();
    for user in ["old", "clear"] {
        let url = format!("{}?sslmode=disable", at(user));
        world.run("k", &["--store", &url], "true").env("DLOCK_PASSWORD", "sesame").run();
    }
    // Settings meant for other clients are not used silently.
    let foreign =
        world.run("k", &[], "true").env("PGHOST", "nowhere.invalid").env("PGPORT", "1").env("PGUSER", "x");
    foreign.env("PGSSLMODE", "verify-full").env("PGPASSFILE", world.path("none")).run();
    let nobody = world.url().replace("app@", "");
    let said = world.run("k", &["--store", &nobody], "true").status(78).any_stderr().run().stderr;
    assert!(said.contains("no user is set"), "{said}");
    let nowhere = world.url().replace("/postgres", "/none");
    let nowhere = nowhere.replace("postgres:/none", "postgres:/");
    let said = world.run("k", &["--store", &format!("{}/none", nowhere.rsplit_once('/').unwrap().0)], "true");
    assert!(said.status(78).any_stderr().run().stderr.contains("no such database"));
}

#[test]
fn a_server_is_trusted_as_over_rediss() {
    let (mut world, mut server) = own_server(&[]);
    let port = server.port();
    let url = |rest: &str| format!("postgres://app@localhost:{port}/postgres?sslmode=verify-full{rest}");
    fn run<'w>(world: &'w World, url: &str) -> Dlock<'w> {
        world.run("k", &["--store", url, "-t", "20s"], "echo ran >> log").any_stderr()
    }
    let said = run(&world, &url("")).status(69).run().stderr;
    assert!(said.contains("has no TLS"), "{said}");
    server.stop(Signal::INT);
    let (authority, stranger) = (Authority::new("ours"), Authority::new("theirs"));
    authority.write(&world.path("ca.pem"));
    stranger.write(&world.path("other.pem"));
    let show = |hosts: &[&str]| {
        let data = server.data();
        authority.issue(hosts).write(&data, "server");
        for file in ["server.pem", "server.key"] {
            let owner = fs::metadata(&data).unwrap().uid();
            chown(data.join(file), Some(owner), None).unwrap();
            fs::set_permissions(data.join(file), fs::Permissions::from_mode(0o600)).unwrap();
        }
    };
    show(&["localhost"]);
    server.add_options(&["ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key"]);
    server.run();
    let ours = url(&format!("&ca={}", world.path("ca.pem").display()));
    run(&world, &ours).run();
    let served = "SELECT count(*) > 0 FROM pg_stat_ssl WHERE ssl";
    world.use_store(ours.clone());
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    assert_eq!(server.ask("postgres", served), "t");
    // Wake-ups go through TLS as well.
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let theirs = url(&format!("&ca={}", world.path("other.pem").display()));
    assert!(run(&world, &theirs).status(69).run().stderr.contains("cannot trust"), "an unknown authority");
    let other = ours.replace("localhost", "127.0.0.1");
    assert!(run(&world, &other).status(69).run().stderr.contains("is for localhost"), "another name");
    // Each of several hosts is verified by its own name.
    let (host, wrong) = (format!("localhost:{port}"), format!("127.0.0.1:{port}"));
    run(&world, &ours.replace(&host, &format!("{wrong},{host}"))).run();
    // Without a host check the authority is still verified.
    let any_host = |url: &str| url.replace("verify-full", "verify-ca");
    run(&world, &any_host(&other)).run();
    assert!(
        run(&world, &any_host(&theirs)).status(69).run().stderr.contains("cannot trust"),
        "an unknown authority"
    );
    run(&world, &url("").replace("verify-full", "disable")).run();
    let said = run(&world, &url("").replace("verify-full", "require")).status(78).run().stderr;
    assert!(said.contains("sslmode="), "{said}");
}

/// A session that holds a database lock until it is dropped.
struct Hog {
    child: std::process::Child,
}

impl Hog {
    fn with(server: &Postgres, statement: &str) -> Self {
        let mut psql = Command::new(psql());
        psql.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-U", "app", "-XAtq", "postgres"]);
        let child = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut hog = Self { child };
        hog.say("BEGIN");
        hog.say(statement);
        hog.say("SELECT 'locked'");
        let stdout = hog.child.stdout.take().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
        wait_for("the lock", || lines.next().and_then(Result::ok).filter(|line| line == "locked"));
        hog
    }

    fn say(&self, statement: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        std::io::Write::write_all(&mut stdin, format!("{statement};\n").as_bytes()).unwrap();
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

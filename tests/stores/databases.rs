//! What can happen to any database that keeps locks: restarts, outages, a failover to a server that
//! knows less, a clock that steps, connections that end, lost requests and replies, damaged rows.
//! What only one kind of database does is in `sql` (PostgreSQL) and `mysql`.

pub mod crowds;

use crate::support::database::{Kind, Server, on_every_database, refused};
use crate::support::dlock::{Dlock, End};
use crate::support::hand_over::hand_over;
use crate::support::proxy::{Fault, Proxy};
use crate::support::target::{local, target};
use crate::support::wait::wait_until;
use crate::support::world::World;
use dlock::clock::Moment;
use dlock::store::sql::SqlStore;
use rustix::process::Signal;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

pub use crate::support::hand_over::JOB;

on_every_database!(
    restarts_disturb_no_job_and_no_queue,
    half_a_lease_without_a_server_disturbs_no_job,
    a_server_that_is_gone_for_good_ends_the_job_in_time,
    connections_that_are_ended_all_the_time_lose_nothing,
    a_row_that_is_damaged_is_left_as_it_is,
    tables_with_other_columns_are_refused,
    an_unreadable_waiter_blocks_nobody,
    a_failover_that_forgets_is_noticed,
    a_clock_that_steps_disturbs_no_long_lease,
    lost_requests_and_replies_are_made_good,
    a_full_disk_refuses_locks_and_ends_no_job,
    deleted_rows_are_a_lost_lock,
    every_connection_ends_politely,
    a_row_of_which_runs_are_expected_is_kept_for_400_days,
);

/// A world with a server of its own.
fn own_server(kind: Kind) -> (World, Server) {
    World::with_server(|home| Server::start(kind, home, &[]), Server::url)
}

/// The same for many clients, with a log of its statements.
fn large_server(kind: Kind) -> (World, Server) {
    World::with_server(|home| Server::start(kind, home, kind.for_many()), Server::url)
}

/// Rows that count as unused for 80 days are removed, by earlier builds, too. So the rows of a lock
/// of which runs are expected are dated 320 days later.
fn a_row_of_which_runs_are_expected_is_kept_for_400_days(kind: Kind) {
    let world = kind.world();
    let now = match kind {
        #[cfg(feature = "mysql")]
        Kind::Mysql => "UNIX_TIMESTAMP() * 1000",
        #[cfg(feature = "postgres")]
        Kind::Postgres => "extract(epoch FROM now()) * 1000",
    };
    let later = || {
        let days = format!("SELECT ROUND((MAX(used) - {now}) / 86400000) FROM dlock_locks");
        kind.ask(&world, &days).parse::<i64>().expect("days")
    };
    world.run("k", &[], "true").run();
    assert_eq!(later(), 0);
    let expecting = |key: &str| drop(world.run(key, &["--once-per", "day"], "true").run());
    expecting("k");
    world.run("k", &[], "true").run();
    assert_eq!(later(), 320);
    world.dlock(["forget", "--retire", "k"]).run();
    assert_eq!(later(), 0);
    expecting("due");
    let [waiters, left, all] = match kind {
        // `gone` has left, and its client has not deleted the row.
        #[cfg(feature = "mysql")]
        Kind::Mysql => [
            "INSERT INTO dlock_locks (kind, name, id, queued) SELECT 1, name, 'waits', 1 FROM dlock_locks WHERE kind = 0",
            "INSERT INTO dlock_locks (kind, name, id) SELECT 1, name, 'gone' FROM dlock_locks WHERE kind = 0",
            "SELECT CONCAT(SUBSTRING_INDEX(name, ':', -1), kind, id = 'gone') FROM dlock_locks ORDER BY 1",
        ],
        #[cfg(feature = "postgres")]
        Kind::Postgres => [
            "INSERT INTO dlock_waiters SELECT name, 'waits', true, 0, '' FROM dlock_locks",
            "",
            "SELECT substring(convert_from(name, 'UTF8') from 7) || kind FROM (SELECT name, '00' AS kind FROM dlock_locks UNION ALL \
             SELECT name, '10' FROM dlock_waiters UNION ALL SELECT name, '20' FROM dlock_ends) AS r ORDER BY 1",
        ],
    };
    kind.ask(&world, waiters);
    kind.ask(&world, left);
    let servers = vec![local(kind.port())];
    let target = target(servers, Some("app"), world.database());
    let mut store = match kind {
        #[cfg(feature = "mysql")]
        Kind::Mysql => SqlStore::mysql(target),
        #[cfg(feature = "postgres")]
        Kind::Postgres => SqlStore::postgres(target),
    };
    let due = ["due00", "due10", "due20"];
    let k = ["k00", "k10", "k20", "k20", "k20"];
    let mut past = 0;
    for (days, rows) in
        [(79, [&due[..], &k].concat()), (81, due.to_vec()), (399, due.to_vec()), (401, vec![])]
    {
        kind.ask(&world, &format!("UPDATE dlock_locks SET used = used - {}", (days - past) * 86_400_000i64));
        past = days;
        store.clean_up(Moment::now().after(Duration::from_secs(20)));
        assert_eq!(kind.ask(&world, all).lines().collect::<Vec<_>>(), rows, "after {days} days");
    }
}

/// Every command works for the user in the URL.
#[track_caller]
pub fn is_of_use(world: &World, url: &str) {
    fn with<'w>(dlock: Dlock<'w>, url: &str) -> Dlock<'w> {
        dlock.env("DLOCK_STORE", url).any_stderr()
    }
    hand_over(world, |dlock| with(dlock, url));
    for words in
        [&["status"][..], &["history", "k"], &["doctor", "--strict"], &["metrics"], &["release", "k"]]
    {
        with(world.dlock(words), url).any_stdout().run();
    }
}

/// A server counts clients that hang up without a goodbye, and MariaDB logs a warning for each.
fn every_connection_ends_politely(kind: Kind) {
    let (world, server) = own_server(kind);
    let aborted = match kind {
        #[cfg(feature = "mysql")]
        Kind::Mysql => {
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'ABORTED_CLIENTS'"
        }
        #[cfg(feature = "postgres")]
        Kind::Postgres => "SELECT sum(sessions_abandoned) FROM pg_stat_database",
    };
    for words in [&["status"][..], &["history", "k"], &["doctor"], &["metrics"], &["release", "k"]] {
        world.dlock(words).any_stdout().any_stderr().run();
    }
    let holder = world.run("other", &[], "echo on >> log; until [ -e over ]; do sleep 0.1; done").spawn();
    wait_until("it is held", || world.log().last().is_some_and(|line| line == "on"));
    wait_until("the holder has one connection", || server.connected() == 1);
    world.run("other", &[], "true").status(75).any_stderr().run();
    let waiter = world.run("other", &["-w"], "true").dies_of(2).any_stderr().spawn();
    world.wait_for_waiters("other", 1);
    waiter.signal(Signal::INT);
    waiter.finish();
    world.write("over", "");
    holder.finish();
    wait_until("all connections have ended", || server.connected() == 0);
    assert_eq!(server.ask(aborted).trim(), "0");
}

fn restarts_disturb_no_job_and_no_queue(kind: Kind) {
    let (world, mut server) = own_server(kind);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    for end in [Server::stop, Server::kill] {
        end(&mut server);
        server.run();
        assert_eq!((world.state("k"), world.fence("k")), ("held".into(), fence));
        world.wait_for_waiters("k", 1);
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

fn half_a_lease_without_a_server_disturbs_no_job(kind: Kind) {
    let (world, mut server) = own_server(kind);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    server.stop();
    // The length of the outage: with the time to stop and start, less than half of the lease on a
    // busy machine too.
    sleep(Duration::from_secs(5));
    server.run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

fn a_server_that_is_gone_for_good_ends_the_job_in_time(kind: Kind) {
    let (world, mut server) = own_server(kind);
    let job = "trap 'echo term >> log' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "5s", "--grace", "300ms"], job).status(79).any_stderr().spawn();
    let pid = world.wait_for_pid("pid");
    server.kill();
    holder.finish();
    assert!(!crate::support::proc::alive(pid), "dead before dlock says that the lock is lost");
    assert!(world.log().contains(&"term".to_owned()));
}

/// Holders and waiters connect again.
fn connections_that_are_ended_all_the_time_lose_nothing(kind: Kind) {
    let world = kind.world();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                kind.end_connections(&world);
                sleep(Duration::from_millis(40));
            }
        });
        let runs: Vec<_> = (0..12)
            .map(|_| {
                let script = "mkdir in || echo overlap >> log; sleep 0.1; rmdir in; echo ran >> log";
                world.run("k", &["-w", "-t", "20s", "--op-timeout", "10s"], script).any_stderr().spawn()
            })
            .collect();
        runs.into_iter().for_each(|run| drop(run.finish()));
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(world.log(), ["ran"; 12]);
    assert_eq!((world.state("k"), world.waiters("k")), ("free".into(), 0));
}

fn a_row_that_is_damaged_is_left_as_it_is(kind: Kind) {
    let world = kind.world();
    let ask = |text: &str| kind.ask(&world, text);
    world.run("k", &[], "true").run();
    ask("UPDATE dlock_locks SET body = 'nonsense' WHERE name = 'dlock:k'");
    let run = world.run("k", &["--op-timeout", "5s"], "echo ran >> log").status(69);
    let said = run.any_stderr().run().stderr;
    assert!(said.contains("\"dlock:k\"") && said.contains("damaged"), "{said}");
    let kept = ask(&format!("SELECT DISTINCT {} FROM dlock_locks WHERE name = 'dlock:k'", kind.text("body")));
    assert_eq!(kept, "nonsense");
    world.run("other", &[], "echo other >> log").run();
    assert!(said.contains("delete its rows in dlock_locks"), "{said}");
    ask("DELETE FROM dlock_locks WHERE name = 'dlock:k'");
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["other", "well"]);
}

/// An earlier build of dlock, or another program, may have made tables with the same names.
fn tables_with_other_columns_are_refused(kind: Kind) {
    let world = kind.world();
    world.run("k", &[], "true").run();
    kind.ask(&world, "ALTER TABLE dlock_locks DROP COLUMN reserved");
    let said = refused(&world, 78);
    assert!(said.contains("other columns"), "{said}");
    kind.ask(&world, kind.drop_tables());
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["well"]);
}

/// The waiter enters the queue again.
fn an_unreadable_waiter_blocks_nobody(kind: Kind) {
    for damage in kind.damage_waiters() {
        damaged_waiters_block_nobody(kind, damage);
    }
}

fn damaged_waiters_block_nobody(kind: Kind, damage: &str) {
    let world = kind.world();
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let jobs = (1..=2).map(|number| format!("echo {number} >> log"));
    let waiters = world.queue("k", &["-w"], jobs);
    kind.ask(&world, damage);
    world.dlock(["status"]).any_stdout().run();
    world.write("go", "");
    assert!(!holder.finish().stderr.contains("given back"), "it is given back");
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    let mut log = world.log();
    log.sort();
    assert_eq!(log, ["1", "2", "done", "up"]);
}

/// The primary dies, and its replacement does not have the last grant.
fn a_failover_that_forgets_is_noticed(kind: Kind) {
    let (world, mut server) = own_server(kind);
    world.run("k", &[], "true").run();
    server.stop();
    let (data, replica) = (server.data(), server.data().with_extension("replica"));
    assert!(Command::new("cp").arg("-a").args([&data, &replica]).status().unwrap().success());
    server.run();
    let holder = world.run("k", &["-t", "20s"], "exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_state("k", "held");
    let before = world.fence("k");
    server.kill();
    fs::rename(&data, data.with_extension("lost")).unwrap();
    fs::rename(&replica, &data).unwrap();
    server.run();
    let said = holder.finish().stderr;
    assert!(said.contains("lost"), "{said}");
    world.run("k", &[], "true").run();
    assert!(world.fence("k") > before, "fences grow all the same");
}

fn a_clock_that_steps_disturbs_no_long_lease(kind: Kind) {
    let (world, mut server) = own_server(kind);
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    for ahead in [10, -10, 0] {
        server.stop();
        server.set_clock(ahead);
        server.run();
        assert_eq!(world.state("k"), "held");
        world.wait_for_waiters("k", 1);
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// The network loses or delays each request and each reply in turn.
fn lost_requests_and_replies_are_made_good(kind: Kind) {
    let world = kind.world();
    world.run("k", &[], "true").run();
    for fault in [Fault::ReplyLost, Fault::RequestLost, Fault::Late] {
        for at in 1..=6 {
            let proxy = Proxy::before(kind.port());
            proxy.plan(at, fault);
            let url = world.url().replace(&format!(":{}/", kind.port()), &format!(":{}/", proxy.port()));
            let run = world
                .run("k", &["-w", "--store", &url, "-t", "5s"], "echo ran >> log")
                .env_remove("DLOCK_OP_TIMEOUT")
                .any_stderr()
                .run();
            drop(run);
            if fault == Fault::Late && proxy.seen() >= at {
                proxy.deliver();
            }
            world.run("k", &["-w", "20s"], "true").any_stderr().run();
        }
    }
    assert_eq!(world.lines("ran"), 18);
    assert_eq!((world.state("k"), world.waiters("k")), ("free".into(), 0));
}

/// Fills the disk of the tables. The server's own log may be on another disk; a server that cannot
/// write its log ends.
fn a_full_disk_refuses_locks_and_ends_no_job(kind: Kind) {
    let (world, server) = own_server(kind);
    let Some(disk) = server.move_to_a_small_disk(&world.path("small")) else {
        println!("skipped: this user cannot mount a small disk");
        return;
    };
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let filler = disk.path().join("filler");
    assert!(fs::write(&filler, vec![0; 32 << 20]).is_err(), "it is small");
    let said = (0..200).find_map(|number| {
        let key = format!("{number}{}", "k".repeat(500));
        let output = world.run(&key, &["--op-timeout", "5s"], "true").any_stderr().spawn().output();
        (output.end() != End::Status(0)).then_some(output)
    });
    let said = said.expect("a lock for which there is no room");
    assert_eq!(said.end(), End::Status(69));
    assert!(said.stderr.contains("no room on its disk"), "{said:?}");
    fs::remove_file(filler).unwrap();
    world.run("other", &[], "echo other >> log").run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "other", "done"]);
}

/// Deleted by hand or by a restored backup: the holder notices with its next heartbeat, as when a
/// server forgot the lock.
fn deleted_rows_are_a_lost_lock(kind: Kind) {
    for gone in ["DELETE FROM dlock_locks", kind.drop_tables()] {
        let world = kind.world();
        let holder = world.run("k", &["-t", "20s"], "exec sleep 1000").status(79).any_stderr().spawn();
        world.wait_for_state("k", "held");
        let waiter = world.run("k", &["-w"], "echo $DLOCK_FENCE >> log").any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        let before = world.fence("k");
        kind.ask(&world, gone);
        let said = holder.finish().stderr;
        assert!(said.contains("lost"), "{said}");
        waiter.finish();
        let after: u64 = world.log()[0].parse().expect("a fence");
        assert!(after > before, "{after} after {before}");
    }
}

//! What may happen to any database that keeps locks: its server is restarted, away for a while or for good, fails over to one
//! that knows less, its clock steps; connections are ended, requests and replies are lost, rows are damaged. What only one kind of
//! database does is in `sql` (PostgreSQL) and `mysql`.

use crate::support::database::{Kind, Server, on_every_database};
use crate::support::dlock::{Dlock, End, Output};
pub use crate::support::hand_over::JOB;
use crate::support::hand_over::hand_over;
use crate::support::outages::storm_through_outages;
use crate::support::proxy::{Fault, Proxy};
use crate::support::storm::{Wish, is_soak};
use crate::support::wait::wait_until;
use crate::support::world::World;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

on_every_database!(
    restarts_disturb_no_job_and_no_queue,
    half_a_lease_without_a_server_disturbs_no_job,
    a_server_that_is_gone_for_good_ends_the_job_in_time,
    connections_that_are_ended_all_the_time_lose_nothing,
    a_row_that_is_damaged_is_left_as_it_is,
    a_waiter_that_cannot_be_read_keeps_nobody,
    a_failover_that_forgets_is_noticed,
    a_clock_that_steps_disturbs_no_long_lease,
    what_the_network_loses_is_made_good,
    who_waits_sleeps_until_the_one_before_lets_go,
    a_crowd_has_its_turns_in_order_and_at_the_price_of_a_few,
    those_who_come_keep_nobody_from_his_turn,
    a_storm_with_restarts,
    statements_that_may_take_a_millisecond_let_nobody_in_twice,
    a_full_disk_refuses_locks_and_ends_no_job,
    rows_that_are_gone_are_a_lock_that_is_lost,
    every_connection_ends_politely,
);

/// A world with a server of its own.
fn own_server(kind: Kind) -> (World, Server) {
    World::with_server(|home| Server::start(kind, home, &[]), Server::url)
}

/// The same, with room for many, and which tells what it was asked.
fn large_server(kind: Kind) -> (World, Server) {
    World::with_server(|home| Server::start(kind, home, kind.for_many()), Server::url)
}

/// Every command works for whoever the URL names.
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

/// A server counts the clients that only hang up, and MariaDB writes a warning for each.
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
    let holder = world.run("other", &[], "echo on >> log; until [ -e over ]; do sleep 0.02; done").spawn();
    wait_until("it is held", || world.log().last().is_some_and(|line| line == "on"));
    world.run("other", &[], "true").status(75).any_stderr().run();
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
    // The outage itself, which with the time to stop and to start is less than half of the lease on a busy machine too.
    sleep(Duration::from_secs(5));
    server.run();
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

fn a_server_that_is_gone_for_good_ends_the_job_in_time(kind: Kind) {
    let (world, mut server) = own_server(kind);
    let job = "trap 'echo term >> log' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "5s", "--grace", "300ms"], job).status(79).any_stderr().spawn();
    let pid = world.wait_for_pid("pid");
    server.kill();
    holder.finish();
    assert!(!crate::support::proc::alive(pid), "dead before dlock says that the lock is lost");
    assert!(world.log().contains(&"term".to_owned()));
}

/// In the server, each behind another one: nobody looks again and again.
fn who_waits_sleeps_until_the_one_before_lets_go(kind: Kind) {
    let world = kind.world();
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> = (1..=6)
        .map(|number| {
            let run = world.run("k", &["-w", "-t", "1m"], &format!("echo {number} >> log"));
            let run = run.any_stderr().spawn();
            world.wait_for_waiters("k", number);
            run
        })
        .collect();
    wait_until("all sleep", || kind.sleeping(&world) == 6);
    world.write("go", "");
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    assert_eq!(world.log(), ["up", "done", "1", "2", "3", "4", "5", "6"]);
}

/// Whoever holds or waits connects again.
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

/// It comes anew.
fn a_waiter_that_cannot_be_read_keeps_nobody(kind: Kind) {
    for damage in kind.damage_notes() {
        damaged_waiters_keep_nobody(kind, damage);
    }
}

fn damaged_waiters_keep_nobody(kind: Kind, damage: &str) {
    let world = kind.world();
    let holder = world.run("k", &["-t", "1m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> = (1..=2)
        .map(|number| {
            let waiter = world.run("k", &["-w"], &format!("echo {number} >> log")).any_stderr().spawn();
            world.wait_for_waiters("k", number);
            waiter
        })
        .collect();
    kind.ask(&world, damage);
    world.dlock(["status"]).any_stdout().run();
    world.write("go", "");
    assert!(!holder.finish().stderr.contains("given back"), "it is given back");
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    let mut log = world.log();
    log.sort();
    assert_eq!(log, ["1", "2", "done", "up"]);
}

/// The primary dies, and what takes its place has not heard of the last grant.
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

/// Requests and replies that the network loses or delivers late, each in turn.
fn what_the_network_loses_is_made_good(kind: Kind) {
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

/// As many as a large fleet has: they are served in order, one at a time, and what a turn costs the server does not depend on
/// how many wait. Others come and go all the time, so that somebody else has changed the lock each time.
fn a_crowd_has_its_turns_in_order_and_at_the_price_of_a_few(kind: Kind) {
    let (world, server) = large_server(kind);
    server.begin_count();
    let few = writes_of_a_turn(&world, &server, "few", 10, 0);
    let crowd = if is_soak() { 200 } else { 30 };
    let many = writes_of_a_turn(&world, &server, "many", crowd, 0);
    println!("statements that write, for each turn: {few:.1} of 10 who wait, {many:.1} of {crowd}");
    assert!(many < 2.5 * few, "{many} of many, {few} of few");
    writes_of_a_turn(&world, &server, "noisy", 20, 2);
}

/// How many statements change a lock for each of those who wait in a line, from the first turn to the last, while some others
/// come and go.
fn writes_of_a_turn(world: &World, server: &Server, key: &str, waiters: usize, others: usize) -> f64 {
    let all: &[&str] = &["-t", "30s", "--op-timeout", "20s"];
    let script = format!("echo {key} >> log; while [ ! -e go.{key} ]; do sleep 0.02; done");
    let holder = world.run(key, all, &script).any_stderr().spawn();
    world.wait_for_log(key);
    let waiting = server.count_waiting(&format!("dlock:{key}"));
    let over = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(
                        world
                            .run(key, &["-s", "-w", "20ms", "--op-timeout", "20s"], "true")
                            .any_stderr()
                            .spawn()
                            .output(),
                    );
                }
            });
        }
        let crowd: Vec<_> = (1..=waiters)
            .map(|number| {
                let script = format!(
                    "mkdir in.{key} || echo overlap >> log; echo {key}.{number} >> log; rmdir in.{key}"
                );
                let run =
                    world.dlock(["run", "-q", "-w", "-k", key]).args(all).args(["--", "sh", "-c", &script]);
                let run = run.any_stderr().spawn();
                wait_until("it stands in the queue", || server.ask(&waiting) == number.to_string());
                run
            })
            .collect();
        server.begin_count();
        world.write(&format!("go.{key}"), "");
        holder.finish();
        crowd.into_iter().for_each(|run| drop(run.finish()));
        over.store(true, Ordering::Relaxed);
        server.written()
    });
    let turns =
        world.log().into_iter().filter(|line| line.starts_with(&format!("{key}."))).collect::<Vec<_>>();
    assert_eq!(turns, (1..=waiters).map(|number| format!("{key}.{number}")).collect::<Vec<_>>());
    assert_eq!(world.lines("overlap"), 0);
    f64::from(written) / f64::from(u32::try_from(waiters).expect("a few"))
}

/// Two are far from the server, and others who come and go change the lock again and again while a step of theirs is under way.
/// Each gives the lock back all the same, and the second one says in time that it has heard of its grant.
fn those_who_come_keep_nobody_from_his_turn(kind: Kind) {
    let world = kind.world();
    let proxy = Proxy::before(kind.port());
    let url = world.url().replace(&format!(":{}/", kind.port()), &format!(":{}/", proxy.port()));
    let far = ["-w", "--store", &url, "-t", "1m", "--op-timeout", "5s"];
    let holder = world.run("k", &far, JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let next = world.run("k", &far, "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proxy.go_far(Duration::from_millis(100));
    let over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(30);
    let is_back = |output: &Output| output.end() == End::Status(0) && !output.stderr.contains("given back");
    let (first, second) = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) && Instant::now() < until {
                    let other = world.run("k", &["-w", "20ms", "--op-timeout", "20s"], "echo other >> log");
                    drop(other.any_stderr().spawn().output());
                }
            });
        }
        world.write("go", "");
        let first = holder.output();
        let second = is_back(&first).then(|| next.output());
        over.store(true, Ordering::Relaxed);
        (first, second)
    });
    assert!(is_back(&first), "{first:?}");
    assert!(second.as_ref().is_some_and(is_back), "{second:?}");
    assert_eq!(world.log()[..3], ["up", "done", "next"]);
}

/// The server is killed, restarted and loses every connection while those who run and wait are killed, interrupted and stopped.
fn a_storm_with_restarts(kind: Kind) {
    let (world, mut server) = large_server(kind);
    world.run("a", &["--op-timeout", "20s"], "true").run();
    let wishes = [
        Wish { keys: &["a"], options: &[], kind: "alone" },
        Wish { keys: &["b"], options: &[], kind: "alone" },
        Wish { keys: &["b", "c"], options: &[], kind: "alone" },
        Wish { keys: &["c"], options: &["--shared"], kind: "shared" },
    ];
    let mut turn = 0;
    storm_through_outages(&world, 8, if is_soak() { 5000 } else { 200 }, &wishes, || {
        turn += 1;
        match turn % 4 {
            0 => server.kill(),
            2 => server.stop(),
            _ => return server.end_connections(),
        }
        server.run();
    });
    let (locks, ends) = server.rows();
    assert!(locks == 3 && ends <= 3 * dlock::rules::LOG_KEPT, "{locks} {ends}");
    wait_until("nobody is connected", || server.connected() == 0);
}

/// Some statements are done in that time, and some are not.
fn statements_that_may_take_a_millisecond_let_nobody_in_twice(kind: Kind) {
    let (mut world, server) = own_server(kind);
    let own = world.url();
    world.run("k", &[], "true").run();
    server.make_hurried("guest");
    world.use_store(own.replace("app@", "guest@"));
    let script = "mkdir in || echo overlap >> log; sleep 0.1; rmdir in; echo ran >> log";
    let runs: Vec<_> =
        (0..12).map(|_| world.run("k", &["-w", "3s", "-t", "5s"], script).any_stderr().spawn()).collect();
    for run in runs {
        let output = run.output();
        // The lease of one that cannot be renewed ends.
        let known = [0, 69, 75, 79].map(End::Status);
        assert!(known.contains(&output.end()), "{output:?}");
        // On a machine that is busy the server may not answer at all in time.
        let is_explained = ["broke off", "no answer in time"].iter().any(|why| output.stderr.contains(why));
        assert!(output.end() != End::Status(69) || is_explained, "{output:?}");
    }
    assert!(world.log().iter().all(|line| line == "ran"), "{:?}", world.log());
    world.use_store(own);
    world.wait_for_state("k", "free");
    world.run("k", &["-w"], "echo well >> log").any_stderr().run();
    assert_eq!(world.log().last().map(String::as_str), Some("well"));
}

/// The disk of the tables; that of the server's own log may be another one. (A server that cannot write its own log ends.)
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

/// By hand, or by a restored backup: as with a server that forgot, the holder notices by its next heartbeat.
fn rows_that_are_gone_are_a_lock_that_is_lost(kind: Kind) {
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

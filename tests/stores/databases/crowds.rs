//! Crowds on a database: the cost of a turn, and restarts while many run and wait.

use super::{large_server, own_server};
use crate::support::database::on_every_database;
use crate::support::database::{Kind, Server};
use crate::support::dlock::{End, Output};
use crate::support::hand_over::{JOB, notices_deaths};
use crate::support::outages::storm_through_outages;
use crate::support::proxy::Proxy;
use crate::support::storm::{Wish, is_soak};
use crate::support::wait::wait_until;
use crate::support::world::World;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self};
use std::time::{Duration, Instant};

on_every_database!(
    a_crowd_is_served_in_order_and_at_the_cost_of_a_few,
    newcomers_keep_no_waiter_from_its_turn,
    the_last_of_a_crowd_soon_notices_a_death_before_it,
    a_storm_with_restarts,
    statements_limited_to_a_millisecond_grant_no_lock_twice,
);

/// A queue as long as in a large fleet: the waiters are granted the lock in order, one at a time,
/// and a turn costs the server the same however many wait. Other clients come and go, so that the
/// lock has changed before each step.
fn a_crowd_is_served_in_order_and_at_the_cost_of_a_few(kind: Kind) {
    let (world, server) = large_server(kind);
    server.begin_count();
    let few = writes_of_a_turn(&world, &server, "few", 10, 0);
    let crowd = if is_soak() { 200 } else { 30 };
    let many = writes_of_a_turn(&world, &server, "many", crowd, 0);
    println!("statements that write, for each turn: {few:.1} of 10 who wait, {many:.1} of {crowd}");
    assert!(many < 2.5 * few, "{many} of many, {few} of few");
    writes_of_a_turn(&world, &server, "noisy", 20, 2);
}

fn the_last_of_a_crowd_soon_notices_a_death_before_it(kind: Kind) {
    let (world, _server) = large_server(kind);
    notices_deaths(&world);
}

/// Writing statements per turn of a queue, from the first turn to the last, while `others` clients
/// come and go.
fn writes_of_a_turn(world: &World, server: &Server, key: &str, waiters: usize, others: usize) -> f64 {
    let all: &[&str] = &["-t", "30s", "--op-timeout", "20s"];
    let script = format!("echo {key} >> log; while [ ! -e go.{key} ]; do sleep 0.1; done");
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

/// Two clients are far from the server, and others change the lock again and again during each of
/// their transactions. Both release it all the same, and the second confirms its grant in time.
fn newcomers_keep_no_waiter_from_its_turn(kind: Kind) {
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

/// The server is killed and restarted and its connections are ended, while holders and waiters are
/// killed, interrupted and stopped.
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

/// Some statements finish in that time, and some do not.
fn statements_limited_to_a_millisecond_grant_no_lock_twice(kind: Kind) {
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
        // A lease that cannot be renewed ends.
        let known = [0, 69, 75, 79].map(End::Status);
        assert!(known.contains(&output.end()), "{output:?}");
        // On a busy machine the server may not answer in time.
        let is_explained =
            ["cancelled a statement", "no answer in time"].iter().any(|why| output.stderr.contains(why));
        assert!(output.end() != End::Status(69) || is_explained, "{output:?}");
    }
    assert!(world.log().iter().all(|line| line == "ran"), "{:?}", world.log());
    world.use_store(own);
    world.wait_for_state("k", "free");
    world.run("k", &["-w"], "echo well >> log").any_stderr().run();
    assert_eq!(world.log().last().map(String::as_str), Some("well"));
}

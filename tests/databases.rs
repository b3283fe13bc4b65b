//! What may happen to any database that keeps locks: its server is restarted, away for a while or for good, fails over to one
//! that knows less, its clock steps; connections are ended, requests and replies are lost, rows are damaged. What only one kind of
//! database does is in `sql` (PostgreSQL) and `mysql`.

use crate::support::database::{Kind, Server, on_every_database};
use crate::support::proxy::{Fault, Proxy};
use crate::support::world::World;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

on_every_database!(
    restarts_disturb_no_job_and_no_queue,
    half_a_lease_without_a_server_disturbs_no_job,
    a_server_that_is_gone_for_good_ends_the_job_in_time,
    connections_that_are_ended_all_the_time_lose_nothing,
    a_row_that_is_damaged_is_left_as_it_is,
    a_failover_that_forgets_is_noticed,
    a_clock_that_steps_disturbs_no_long_lease,
    what_the_network_loses_is_made_good,
    many_who_wait_are_served_in_order,
);

/// A job that goes on until `go` is there.
const JOB: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done; echo done >> log";

/// A world with a server of its own.
fn own_server(kind: Kind) -> (World, Server) {
    let mut world = World::without_redis();
    let server = Server::start(kind, &world.path(""));
    world.use_store(server.url());
    (world, server)
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
    ask("UPDATE dlock_locks SET body = 'nonsense'");
    let run = world.run("k", &["--op-timeout", "5s"], "echo ran >> log").status(69);
    let said = run.any_stderr().run().stderr;
    assert!(said.contains("\"dlock:k\"") && said.contains("damaged"), "{said}");
    assert_eq!(ask(&format!("SELECT DISTINCT {} FROM dlock_locks", kind.text("body"))), "nonsense");
    world.run("other", &[], "echo other >> log").run();
    assert!(said.contains("delete its row in dlock_locks"), "{said}");
    ask("DELETE FROM dlock_locks WHERE name = 'dlock:k'");
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["other", "well"]);
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

fn many_who_wait_are_served_in_order(kind: Kind) {
    let world = kind.world();
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> = (1..=12)
        .map(|number| {
            let waiter = world.run("k", &["-w", "-t", "20s"], &format!("echo {number} >> log"));
            let waiter = waiter.any_stderr().spawn();
            world.wait_for_waiters("k", number);
            waiter
        })
        .collect();
    world.write("go", "");
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    let order: Vec<_> = (1..=12).map(|number: usize| number.to_string()).collect();
    assert_eq!(world.log()[2..], order);
}

//! Servers of an ensemble that are killed, stopped, cut off or elected anew.

use super::{JOB, WISHES, ensemble, nobody_is_left, own_server};
use crate::support::dlock::finish_all;
use crate::support::members::{
    Cluster as _, a_follower_is_cut_off, a_leader_is_cut_off, all_are_gone_for_good,
    all_stand_still_for_half_a_lease, increments_through_outages, leaders_are_killed, outages_of,
};
use crate::support::outages::storm_through_outages;
use crate::support::proxy::Proxy;
use crate::support::storm::is_soak;
use crate::support::wait::{wait_until, wait_within};
use rustix::process::Signal;
use std::thread::sleep;
use std::time::Duration;

/// Any one of three servers may be killed or stopped without effect on holders and waiters.
#[test]
fn one_of_three_may_fail() {
    let (world, mut ensemble) = ensemble();
    // On a busy machine two JVMs take long to elect a leader: the lease outlasts that.
    let holder = world.run("k", &["-t", "3m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-t", "3m", "-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let leader = ensemble.leader();
    ensemble.servers[leader].kill();
    let answers = || world.dlock(["status", "--json", "k"]).any_stdout().any_stderr().spawn().output();
    let waits = |waiters: usize| {
        wait_within(Duration::from_secs(120), "the others answer", || {
            let said: serde_json::Value = serde_json::from_str(&answers().stdout).ok()?;
            (said[0]["state"] == "held" && said[0]["waiters"].as_array()?.len() == waiters).then_some(())
        });
    };
    waits(1);
    ensemble.servers[leader].run();
    let leader = ensemble.leader();
    ensemble.servers[leader].signal(Signal::STOP);
    waits(1);
    ensemble.servers[leader].signal(Signal::CONT);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

#[test]
fn leaders_that_are_killed_disturb_no_job_and_no_queue() {
    let (world, mut ensemble) = ensemble();
    // The election may take long, see `one_of_three_may_fail`.
    leaders_are_killed(&world, &mut ensemble, "3m");
}

#[test]
fn servers_that_stand_still_for_half_a_session_disturb_no_job() {
    let (world, ensemble) = ensemble();
    all_stand_still_for_half_a_lease(&world, &ensemble, 60);
}

#[test]
fn servers_that_all_are_gone_for_good_end_the_job_in_time() {
    let signals = if is_soak() { &[Signal::STOP, Signal::KILL][..] } else { &[Signal::STOP] };
    for signal in signals {
        let (world, ensemble) = ensemble();
        all_are_gone_for_good(&world, &ensemble, *signal);
    }
}

/// No server runs for half a lease.
#[test]
fn half_a_session_without_servers_disturbs_no_job() {
    let (world, mut server) = own_server(&[]);
    // A JVM takes its time to start on a busy machine: a renewal fails a quarter of the lease after
    // the last one, and the outage may last for half of it.
    let holder = world.run("k", &["-t", "40s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-t", "40s", "-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    server.kill();
    wait_until("a renewal failed", || holder.messages().contains("cannot renew"));
    server.run();
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// Behind a TCP proxy, a holder does not see that the server's listen backlog is full: the proxy has
/// accepted its connection, and delivers what is sent there too late.
#[test]
fn a_full_listen_backlog_behind_a_proxy_disturbs_no_job() {
    let (mut world, server) = own_server(&["clientPortListenBacklog=1"]);
    let proxy = Proxy::before(server.port());
    world.use_store(format!("zookeeper://127.0.0.1:{}", proxy.port()));
    let ttl = Duration::from_secs(6);
    // They renew at different times, so some renew just after the server is stopped.
    let start = |number: usize| {
        let holder = world.run(&format!("k{number}"), &["-t", "6s"], JOB).any_stderr().spawn();
        wait_until("it has its lock", || world.log().len() == number + 1);
        // The holders renew one after the other.
        sleep(ttl / 40);
        holder
    };
    let holders: Vec<_> = (0..10).map(start).collect();
    let before = proxy.connections();
    server.signal(Signal::STOP);
    // The length of the outage: less than half of the lease.
    sleep(ttl * 45 / 100);
    server.signal(Signal::CONT);
    // A whole lease: a job whose lock was not renewed in time is stopped by then.
    sleep(ttl);
    let new = proxy.connections() - before;
    world.write("go", "");
    finish_all(holders);
    assert!(new <= 3 * 10, "{new} new connections of 10 holders");
}

#[test]
fn servers_that_are_gone_for_good_end_the_job_in_time() {
    let (world, mut server) = own_server(&[]);
    let holder = world.run("k", &["-t", "5s", "--grace", "1s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    server.kill();
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// A server cut off from the others may not confirm: a renewal counts on a majority or not at all.
#[test]
fn a_server_that_is_alone_renews_nothing() {
    let (world, ensemble) = ensemble();
    let holder = world.run("k", &["-t", "8s", "--grace", "1s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let leader = ensemble.leader();
    let alone = (leader + 1) % 3;
    for other in (0..3).filter(|other| *other != alone) {
        ensemble.servers[other].signal(Signal::STOP);
    }
    holder.finish();
    assert_eq!(world.log(), ["up"]);
    for other in (0..3).filter(|other| *other != alone) {
        ensemble.servers[other].signal(Signal::CONT);
    }
}

/// Servers are killed, stopped and started under a crowd: no two exclusive holders meet. A new
/// leader restarts all session timeouts, also for dead clients; so the time between two outages is
/// long enough for those sessions to end.
#[test]
#[ignore = "long; ./test --soak"]
fn a_storm_through_outages_of_servers_breaks_no_exclusion() {
    let (world, mut ensemble) = ensemble();
    let grants = if is_soak() { 3000 } else { 40 };
    let mut outage = outages_of(&mut ensemble);
    storm_through_outages(&world, 6, grants, &WISHES, || {
        outage();
        // The time between two outages, as above.
        sleep(Duration::from_secs(8));
    });
    drop(outage);
    // A follower knows only its own sessions.
    nobody_is_left(&ensemble.servers[ensemble.leader()], "/ops");
}

/// A new leader restarts the timeout of all sessions.
#[test]
fn no_increment_is_lost() {
    let (world, mut ensemble) = ensemble();
    let (times, ttl) = if is_soak() { (2000, "2s") } else { (60, "5s") };
    increments_through_outages(&world, times, &["-t", ttl, "--grace", "100ms"], outages_of(&mut ensemble));
}

#[test]
fn a_leader_that_is_cut_off_keeps_no_session() {
    let (world, ensemble) = ensemble();
    a_leader_is_cut_off(&world, &ensemble);
}

#[test]
fn a_follower_that_is_cut_off_keeps_no_session() {
    let (world, ensemble) = ensemble();
    a_follower_is_cut_off(&world, &ensemble);
}

/// The servers take a snapshot after every few changes and load it when they restart. Each time the
/// clock is set by more than a lease.
#[test]
fn snapshots_and_clocks_that_step_lose_nothing() {
    let (world, mut server) = own_server(&["snapCount=20"]);
    let holder = world.run("k", &["-t", "2m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> = (1..=10)
        .map(|count| {
            let waiter = world.run("k", &["-t", "2m", "-w"], "true").any_stderr().spawn();
            world.wait_for_waiters("k", count);
            waiter
        })
        .collect();
    let fence = world.fence("k");
    for ahead in [3600, -3600, 0, 7200] {
        server.kill();
        server.set_clock(ahead);
        server.run();
        world.wait_for_waiters("k", 10);
        assert_eq!((world.state("k"), world.fence("k")), ("held".into(), fence));
    }
    assert!(server.snapshots() > 3, "{}", server.snapshots());
    world.write("go", "");
    holder.finish();
    finish_all(waiters);
    assert_eq!((world.log(), world.state("k")), (vec!["up".into(), "done".into()], "free".into()));
}

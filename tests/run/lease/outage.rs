//! The store is away for a while: holders keep their locks, and waiters their places.

use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// How a server is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// It is stopped, and afterwards answers the requests that came meanwhile.
    Stopped,
    /// Requests that come meanwhile are never answered.
    Deaf,
}

/// The outage begins at each phase of the renewal.
#[test]
fn an_outage_of_half_a_ttl_disturbs_nothing() {
    const PHASES: u32 = 8;
    thread::scope(|scope| {
        for phase in 0..PHASES {
            for outage in [Outage::Stopped, Outage::Deaf] {
                scope.spawn(move || half_a_ttl_without_server(outage, TTL / 4 * phase / PHASES));
            }
        }
    });
}

const TTL: Duration = Duration::from_secs(12);

fn half_a_ttl_without_server(outage: Outage, phase: Duration) {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let job =
        "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e over ]; do sleep 0.1; done; exit 9";
    // The lease limits one attempt as well, so a long --op-timeout does no harm.
    let holder = world.run("k", &["-t", "12s", "--op-timeout", "1m"], job).env("DLOCK_STORE", proxy.url());
    let holder = holder.status(9).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().after_renewal("dlock:k");
    sleep(phase);
    let begun = Instant::now();
    match outage {
        Outage::Stopped => world.redis().pause(),
        Outage::Deaf => proxy.begin_outage(),
    }
    // Slightly less than half, because this machine is slow at times. The unit tests of
    // src/rules/schedule.rs check the exact half.
    sleep(TTL / 2 - TTL / 16);
    match outage {
        Outage::Stopped => world.redis().resume(),
        Outage::Deaf => proxy.end_outage(),
    }
    let lasted = begun.elapsed();
    if lasted > TTL / 2 {
        // The outage became longer than half a lease, because this machine was busy. Nothing is
        // promised for that.
        println!("{outage:?} at {phase:?} lasted {lasted:?}");
        return;
    }
    world.redis().after_renewal("dlock:k");
    world.write("over", "");
    holder.finish();
    assert_eq!(world.log(), ["up"], "{outage:?} at {phase:?}");
}

/// A server that was stopped must find few requests, or it could not answer all holders in time:
/// two renewals of each.
#[test]
fn a_stopped_server_finds_two_renewals_of_each_holder() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    world.redis().ask::<()>(&["ACL", "SETUSER", "holder", "on", ">sesame", "~*", "+@all"]);
    let holder =
        world.run("k", &["-t", "12s"], "echo up >> log; while [ ! -e over ]; do sleep 0.1; done; exit 9");
    let holder = holder.env("DLOCK_USERNAME", "holder").env("DLOCK_PASSWORD", "sesame");
    let holder = holder.env("DLOCK_STORE", proxy.url()).status(9).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().after_renewal("dlock:k");
    world.redis().ask::<()>(&["CONFIG", "RESETSTAT"]);
    world.redis().pause();
    let before = proxy.seen();
    wait_until("it has asked again", || proxy.seen() >= before + 2);
    sleep(TTL / 8);
    world.redis().resume();
    // The renewals that waited for the server, and one more.
    world.redis().after_renewal("dlock:k");
    let stats: String = world.redis().ask(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or(0)
    };
    world.write("over", "");
    holder.finish();
    assert!(calls("evalsha") <= 4 && calls("eval") == 0, "{stats}");
}

/// A waiter, too, goes on if the outage is short enough for the lease.
#[test]
fn an_outage_while_queued_is_ridden_out() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "20s"], job).any_stderr().spawn();
    world.wait_for_log("up");
    let proxy = Proxy::before(world.redis().port());
    let waiter = world.run("k", &["-w"], "echo waited >> log").env("DLOCK_STORE", proxy.url());
    let waiter = waiter.any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.redis().pause();
    let before = proxy.seen();
    wait_until("it asks again", || proxy.seen() >= before + 2);
    world.redis().resume();
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

/// The store is away for so long that all waiters are stale, but keeps its records. All waiters
/// keep their places, and a newcomer does not overtake them.
#[test]
fn an_outage_that_makes_all_waiters_stale_keeps_the_order() {
    let mut world = World::with_redis(&["--appendonly", "yes", "--appendfsync", "always"]);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "1m"], job).any_stderr().spawn();
    world.wait_for_log("up");
    let jobs = (0..6).map(|number| format!("echo {number} >> log"));
    let waiters = world.queue("k", &["-w", "-t", "1m"], jobs);
    world.redis_mut().kill();
    // The length of the outage: a waiter is stale after five seconds of silence, and no server shows that.
    sleep(Duration::from_secs(7));
    world.redis_mut().restart();
    world.write("go", "");
    let newcomer = world.run("k", &[], "echo newcomer >> log").any_stderr().spawn().output();
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    let log = world.log();
    assert_eq!(log[..7], ["up", "0", "1", "2", "3", "4", "5"], "{newcomer:?}");
}

/// The status is that of an unreachable store, not of a busy lock.
#[test]
fn a_wait_that_ends_in_an_outage_is_69() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "1m"], job).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w", "2s"], "echo waited >> log").status(69).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.redis().pause();
    let output = waiter.finish();
    assert!(output.stderr.contains(&world.url()), "{}", output.stderr);
    world.redis().resume();
    wait_until("the queue is empty", || world.waiters("k") == 0);
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// The server forgets its queue, and the waiters join it again.
#[test]
fn waiters_go_on_waiting_after_a_restart() {
    let mut world = World::new(Backend::Redis);
    let holder =
        world.run("k", &["-t", "6s"], "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters = [1, 2].map(|i| {
        let waiter = world.run("k", &["-w"], "echo start >> log; echo end >> log").any_stderr().spawn();
        world.wait_for_waiters("k", i);
        waiter
    });
    world.redis_mut().restart();
    holder.finish();
    for waiter in waiters {
        waiter.finish();
    }
    assert_eq!(world.log(), ["up", "start", "end", "start", "end"]);
}

/// The server is gone when CMD ends: dlock exits with CMD's status, and warns once.
#[test]
fn a_release_without_answer_keeps_the_jobs_status() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 3";
    let holder = world.run("k", &["-t", "20s"], job).status(3).stderr_like("dlock: .*k.*\n").spawn();
    world.wait_for_log("up");
    world.redis().pause();
    world.write("go", "");
    holder.finish();
    world.redis().resume();
}

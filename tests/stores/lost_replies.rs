//! A network that loses replies and delivers requests late: whichever packet is hit, the outcome is
//! one that is possible without the loss, and no lock stays held.

use crate::support::dlock::{End, Output};
use crate::support::proc;
use crate::support::proxy::{Fault, Proxy};
use crate::support::wait::{wait_for, wait_until, wait_within};
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use std::fs::File;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

const FAULTS: [Fault; 4] = [Fault::ReplyLost, Fault::RequestLost, Fault::Late, Fault::Swallowed];

/// Each fault hits each request of a run once.
#[test]
fn no_lost_packet_leaves_a_lock() {
    const MORE_THAN_IT_NEEDS: usize = 5;
    each_fault(1..=MORE_THAN_IT_NEEDS, |world, proxy, fault, number| {
        proxy.plan(number, fault);
        let run = world.run("k", &["-t", "5m"], "echo ran >> log; exit 5").env("DLOCK_STORE", proxy.url());
        let output = run.any_stderr().spawn().output();
        let hit = proxy.seen() >= number;
        assert!(hit || number > 1, "at least one request is needed to lock");
        assert!(!hit || number < MORE_THAN_IT_NEEDS, "all of them were hit in turn");
        assert_plausible(world, &output, &format!("{fault:?} of request {number}"));
        assert_nothing_stays(world, 1);
        assert_late_is_too_late(world, proxy, fault, hit);
    });
}

/// No lost packet of a renewal disturbs the job.
#[test]
fn no_lost_packet_disturbs_a_job() {
    each_fault(3..=5, |world, proxy, fault, number| {
        proxy.plan(number, fault);
        let job = "trap 'echo disturbed >> log' TERM; echo ran >> log; while [ ! -e over ]; do sleep 0.1; done; exit 5";
        let holder = world.run("k", &["-t", "8s"], job).env("DLOCK_STORE", proxy.url());
        let holder = holder.status(5).any_stderr().spawn();
        // Two requests more than the one that is hit: the heartbeat goes on.
        wait_until("requests go on", || proxy.seen() >= number + 2);
        world.write("over", "");
        holder.finish();
        assert_eq!(world.log(), ["ran"], "{fault:?} of request {number}");
        assert_late_is_too_late(world, proxy, fault, true);
    });
}

/// The same for a waiter that is granted the lock.
#[test]
fn no_lost_packet_idles_the_queue() {
    each_fault(1..=6, |world, proxy, fault, number| {
        let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
        let holder = world.run("k", &["-t", "5m"], job).spawn();
        world.wait_for_log("up");
        proxy.plan(number, fault);
        let waiter = world.run("k", &["-w", "-t", "5m"], "echo ran >> log; exit 5");
        let mut waiter = waiter.env("DLOCK_STORE", proxy.url()).any_stderr().spawn();
        wait_until("it waits, or has given up", || world.waiters("k") == 1 || waiter.has_ended());
        world.write("go", "");
        holder.finish();
        // Whatever became of the client with the faulty network: the next waiter is granted the
        // lock.
        world.run("k", &["-w"], "echo next >> log").any_stderr().run();
        let output = waiter.output();
        match output.end() {
            End::Status(5) => assert_eq!(world.lines("ran"), 1),
            other => {
                assert_eq!(other, End::Status(69), "{fault:?} {number}: {}", output.stderr);
                assert_eq!(world.lines("ran"), 0);
            }
        }
        let hit = proxy.seen() >= number;
        assert_nothing_stays(world, 3);
        assert_late_is_too_late(world, proxy, fault, hit);
    });
}

/// A server that stood still executes an acquire whose client has gone, and then the client's
/// leave. It must be able to execute the leave although it has only the first script in its cache.
#[test]
fn a_request_executed_late_by_a_stopped_server_is_released() {
    let world = World::new(Backend::Redis);
    // A busy lock, so that this acquire leaves nothing.
    world.redis().ask::<()>(&["SET", "dlock:other", "somebody"]);
    world.run("other", &[], "true").status(75).any_stderr().run();
    world.redis().pause();
    let options = ["-t", "10m", "--op-timeout", "2s"];
    let run = world.run("k", &options, "echo ran >> log").status(69).any_stderr().spawn();
    let guard = run.guard();
    run.finish();
    wait_until("the guard gives up", || !proc::alive(guard));
    world.redis().resume();
    // The server executes the remaining requests in the order of their arrival.
    wait_until("the leave is executed", || {
        world.redis().keys().iter().any(|key| key.starts_with("dlock.spent:{dlock:k}:"))
    });
    assert_eq!(world.redis().get("dlock:k"), None);
    assert_eq!(world.log(), [""; 0]);
}

/// No answer comes to the release: the guard keeps trying after dlock has ended, and a reader of
/// dlock's output does not have to wait for that.
#[test]
fn a_release_in_an_outage_is_completed_later() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 3";
    let pipe = ["sh", "-c", "\"$@\" 2>&1 | cat > printed; echo eof >> log", "sh"];
    let holder = world.run("k", &["-t", "10m"], job).under(&pipe).env("DLOCK_STORE", proxy.url()).spawn();
    world.wait_for_log("up");
    let guard = wait_for("the guard", || {
        let pids = proc::pids().into_iter().filter(|pid| proc::name(*pid) == "dlock-guard");
        pids.into_iter().find(|pid| proc::is_below(*pid, holder.pid()))
    });
    let before = proxy.seen();
    proxy.begin_outage();
    world.write("go", "");
    world.wait_for_log("eof");
    assert!(proc::alive(guard), "the guard goes on, and nobody waits for it");
    wait_until("it tries again and again", || proxy.seen() >= before + 3);
    proxy.end_outage();
    wait_until("the lock is given back", || world.redis().get("dlock:k").is_none());
    holder.finish();
}

/// A grant that arrives when its lease is nearly over starts no job.
#[test]
fn a_grant_that_comes_too_late_starts_nothing() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    proxy.delay_replies(Duration::from_millis(900));
    let run = world.run("k", &["-t", "1s", "--op-timeout", "10s"], "echo ran >> log");
    run.env("DLOCK_STORE", proxy.url()).status(69).stderr_like("dlock: .*\n").run();
    assert_eq!(world.log(), [""; 0]);
    wait_until("the lock is free", || world.redis().get("dlock:k").is_none());
}

/// A store that accepts connections and never answers is reported as unreachable, in time.
#[test]
fn a_silent_server_is_unreachable() {
    let world = World::new(Backend::Redis);
    world.redis().pause();
    for options in [&[][..], &["-w", "1s"]] {
        let output =
            world.run("k", options, "echo ran >> log").status(69).stderr_like("dlock: .*(\n.*)?\n").run();
        assert!(output.stderr.contains(&world.url()), "{}", output.stderr);
    }
    let waiter = world.run("k", &["-w"], "echo ran >> log").any_stderr().spawn();
    wait_until("it says that it waits", || waiter.messages().contains("still waiting for k"));
    world.redis().resume();
    waiter.finish();
    world.wait_for_state("k", "free");
    assert_eq!(world.log(), ["ran"]);
}

/// A waiter leaves, or stands still, at the very moment of its grant: the waiters behind it are
/// granted the lock.
#[test]
fn leaving_at_the_moment_of_the_grant_idles_nobody() {
    thread::scope(|scope| {
        for leaving in [Leaving::Interrupted, Leaving::Killed, Leaving::Stopped, Leaving::TimedOut] {
            scope.spawn(move || leaves_at_the_grant(leaving));
        }
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Interrupted,
    Killed,
    Stopped,
    TimedOut,
}

fn leaves_at_the_grant(leaving: Leaving) {
    const ROUNDS: u32 = 8;
    const WAIT: Duration = Duration::from_secs(1);
    let world = World::new(Backend::Redis);
    let mut letting_go = make_fifo(&world);
    for round in 0..ROUNDS {
        world.write("log", "");
        let holder = world.run("k", &["-t", "5m"], "echo up >> log; read line < go").spawn();
        world.wait_for_log("up");
        let wait: &[&str] = if leaving == Leaving::TimedOut { &["-w", "1s"] } else { &["-w"] };
        let timed_out = Instant::now() + WAIT;
        // A run that is stopped just after its job started holds the lock until its lease ends.
        let ttl = if leaving == Leaving::Stopped { "3s" } else { "5m" };
        let first = world.run("k", &[wait, &["-t", ttl]].concat(), "echo first >> log");
        let mut first = first.any_stderr().spawn();
        wait_until("the first waits", || world.waiters("k") == 1 || first.has_ended());
        let next = world.run("k", &["-w", "-t", "5m"], "echo next >> log").any_stderr().spawn();
        wait_until("the next waits", || world.waiters("k") == 2 || first.has_ended());
        // In each round the waiter leaves a little later relative to the grant, which takes some
        // milliseconds from here.
        let step = Duration::from_micros(700) * round;
        if leaving == Leaving::TimedOut {
            thread::sleep(timed_out.saturating_duration_since(Instant::now() + 2 * step));
        }
        letting_go.write_all(b"\n").expect("the holder listens");
        thread::sleep(step);
        match leaving {
            Leaving::Interrupted => first.signal(Signal::INT),
            Leaving::Killed => first.signal(Signal::KILL),
            Leaving::Stopped => first.signal(Signal::STOP),
            Leaving::TimedOut => {}
        }
        holder.finish();
        // A dead waiter delays the queue by 5 s at most; a busy machine adds to it.
        wait_within(
            Duration::from_secs(20),
            &format!("{leaving:?}, round {round}: the next is served"),
            || world.log().contains(&"next".into()).then_some(()),
        );
        next.finish();
        first.signal(Signal::CONT);
        drop(first.output());
        wait_until("the lock is free", || world.state("k") == "free" && world.waiters("k") == 0);
    }
    assert_only_records_remain(&world);
}

/// Makes the fifo from which the holder reads when to end, and keeps it open.
fn make_fifo(world: &World) -> File {
    let made = world.command("mkfifo").arg("go").status().expect("mkfifo");
    assert!(made.success());
    File::options().read(true).write(true).open(world.path("go")).expect("the fifo")
}

/// Runs a scenario for each fault of each request, side by side, each in a world of its own.
fn each_fault(numbers: RangeInclusive<usize>, scenario: impl Fn(&World, &Proxy, Fault, usize) + Sync) {
    thread::scope(|scope| {
        for number in numbers {
            for fault in FAULTS {
                let scenario = &scenario;
                scope.spawn(move || {
                    let world = World::new(Backend::Redis);
                    let proxy = Proxy::before(world.redis().port());
                    scenario(&world, &proxy, fault, number);
                });
            }
        }
    });
}

/// CMD ran once and dlock reports that, or the store was unreachable and CMD did not run.
fn assert_plausible(world: &World, output: &Output, what: &str) {
    match output.end() {
        End::Status(5) => assert_eq!(world.log(), ["ran"], "{what}"),
        other => {
            assert_eq!(other, End::Status(69), "{what}: {}", output.stderr);
            assert_eq!(world.log(), [""; 0], "{what}");
        }
    }
    assert!(output.stderr.lines().count() <= 2, "{what}: {}", output.stderr);
}

/// All of the tokens have been released. The lease is five minutes, so a lock that is free soon did
/// not expire.
fn assert_nothing_stays(world: &World, tokens: usize) {
    let spent = || world.redis().keys().iter().filter(|key| key.starts_with("dlock.spent:")).count();
    wait_until("all tokens are given back", || spent() == tokens);
    wait_until("the lock is given back", || world.redis().get("dlock:k").is_none());
    wait_until("the queue is empty", || world.waiters("k") == 0);
    assert_only_records_remain(world);
}

/// A request that arrives after its sender has gone takes nothing, although the lock is free.
fn assert_late_is_too_late(world: &World, proxy: &Proxy, fault: Fault, hit: bool) {
    if fault == Fault::Late && hit {
        proxy.deliver();
        assert_eq!(world.redis().get("dlock:k"), None);
        assert_only_records_remain(world);
    }
    world.run("k", &[], "true").run();
}

/// Of an unused lock there remain its fence, log, refusals and statistics, the time of the last
/// waiter, the last successful run, and released tokens: each of them expires.
fn assert_only_records_remain(world: &World) {
    let remains = ["fence", "heard", "log", "stat", "done", "spent", "refused"];
    wait_until("only records remain", || {
        world
            .redis()
            .keys()
            .iter()
            .all(|key| remains.iter().any(|kind| key.starts_with(&format!("dlock.{kind}:"))))
    });
    for key in world.redis().keys() {
        assert!(world.redis().ask::<i64>(&["PTTL", &key]) > 0, "{key} has no end");
    }
}

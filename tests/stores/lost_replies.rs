//! A network that loses replies and delivers requests late: whichever packet it befalls, the outcome is one that
//! could have been without it, and nothing stays locked.

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

/// Each request of an undisturbed run is hit once by each fault.
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

/// No single packet that is lost on the way of a renewal disturbs the job.
#[test]
fn no_lost_packet_disturbs_a_job() {
    each_fault(3..=5, |world, proxy, fault, number| {
        proxy.plan(number, fault);
        let job = "trap 'echo disturbed >> log' TERM; echo ran >> log; while [ ! -e over ]; do sleep 0.05; done; exit 5";
        let holder = world.run("k", &["-t", "8s"], job).env("DLOCK_STORE", proxy.url());
        let holder = holder.status(5).any_stderr().spawn();
        // Two more than the one that is hit: the heartbeat has gone on.
        wait_until("requests go on", || proxy.seen() >= number + 2);
        world.write("over", "");
        holder.finish();
        assert_eq!(world.log(), ["ran"], "{fault:?} of request {number}");
        assert_late_is_too_late(world, proxy, fault, true);
    });
}

/// The same for one that waits and is granted the lock while it waits.
#[test]
fn no_lost_packet_idles_the_queue() {
    each_fault(1..=6, |world, proxy, fault, number| {
        let job = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";
        let holder = world.run("k", &["-t", "5m"], job).spawn();
        world.wait_for_log("up");
        proxy.plan(number, fault);
        let waiter = world.run("k", &["-w", "-t", "5m"], "echo ran >> log; exit 5");
        let mut waiter = waiter.env("DLOCK_STORE", proxy.url()).any_stderr().spawn();
        wait_until("it waits, or has given up", || world.waiters("k") == 1 || waiter.has_ended());
        world.write("go", "");
        holder.finish();
        // Whatever became of the one with the bad network: the next in line is served.
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

/// A server that stood still finds an acquire that nobody waits for any more, and behind it a leave; it must be able to
/// execute that, too, although it knows only the first of the scripts.
#[test]
fn what_a_stopped_server_finds_later_is_given_back() {
    let world = World::new(Backend::Redis);
    // What is busy acquires, and leaves nothing.
    world.redis().ask::<()>(&["SET", "dlock:other", "somebody"]);
    world.run("other", &[], "true").status(75).any_stderr().run();
    world.redis().pause();
    let options = ["-t", "10m", "--op-timeout", "2s"];
    let run = world.run("k", &options, "echo ran >> log").status(69).any_stderr().spawn();
    let guard = run.guard();
    run.finish();
    wait_until("the guard gives up", || !proc::alive(guard));
    world.redis().resume();
    // The server takes what its clients left behind in the order of their coming.
    wait_until("the leave is executed", || {
        world.redis().keys().iter().any(|key| key.starts_with("dlock.spent:{dlock:k}:"))
    });
    assert_eq!(world.redis().get("dlock:k"), None);
    assert_eq!(world.log(), [""; 0]);
}

/// Nobody answers when the lock is given back: the guard goes on trying when dlock is gone, and whoever reads what
/// dlock prints need not wait for it.
#[test]
fn a_release_in_an_outage_is_made_up_for() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done; exit 3";
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

/// An answer that comes when the lease it grants is as good as over starts no job.
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

/// A store that takes connections and never answers is unreachable, and says so in time.
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

/// A waiter goes away, or stalls, at the very moment of its grant: those behind it are served.
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
        // One that has just started its job when it is stopped holds the lock until its lease ends.
        let ttl = if leaving == Leaving::Stopped { "3s" } else { "5m" };
        let first = world.run("k", &[wait, &["-t", ttl]].concat(), "echo first >> log");
        let mut first = first.any_stderr().spawn();
        wait_until("the first waits", || world.waiters("k") == 1 || first.has_ended());
        let next = world.run("k", &["-w", "-t", "5m"], "echo next >> log").any_stderr().spawn();
        wait_until("the next waits", || world.waiters("k") == 2 || first.has_ended());
        // Round by round the one who leaves does so a little later against the grant, which takes some milliseconds
        // from here.
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

/// CMD ran once and dlock says so, or the store was out of reach and CMD never ran.
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

/// Each of so many tokens has been given back. The lease is five minutes: what is free soon was not waited for.
fn assert_nothing_stays(world: &World, tokens: usize) {
    let spent = || world.redis().keys().iter().filter(|key| key.starts_with("dlock.spent:")).count();
    wait_until("all tokens are given back", || spent() == tokens);
    wait_until("the lock is given back", || world.redis().get("dlock:k").is_none());
    wait_until("the queue is empty", || world.waiters("k") == 0);
    assert_only_records_remain(world);
}

/// A request that arrives when its sender is gone takes nothing, although the lock is free.
fn assert_late_is_too_late(world: &World, proxy: &Proxy, fault: Fault, hit: bool) {
    if fault == Fault::Late && hit {
        proxy.deliver();
        assert_eq!(world.redis().get("dlock:k"), None);
        assert_only_records_remain(world);
    }
    world.run("k", &[], "true").run();
}

/// Of a lock that nobody wants there remain its fence, log, refusals and statistics, when somebody waited last, which run succeeded
/// last, and tokens that are spent: each with an end of its own.
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

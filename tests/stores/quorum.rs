//! Several independent masters: the loss of a few of them at any moment disturbs nothing, the loss of most of them ends
//! the job in time, and neither a clock nor a server that forgets makes two of one.

use crate::support::certificates::Authority;
use crate::support::deadline::{dead_in_time, end_of_last_lease, now};
use crate::support::dlock::BINARY;
use crate::support::hole::Black;
use crate::support::masters::{Masters, url};
use crate::support::proc;
use crate::support::proxy::{Fault, Proxy};
use crate::support::wait::{wait_until, wait_within};
use dlock::clock::{Moment, sleep_until};
use dlock::exit::Ended;
use dlock::lock::{Fence, Key, Mode, Name, Names, Owner, Token};
use dlock::rules::{
    Acquired, Ask, End, Left, Patience, Ran, Renewal, Requested, Revoke, Revoked, Terms, When,
};
use dlock::store::net::Address;
use dlock::store::quorum::QuorumStore;
use dlock::store::redis::Target;
use dlock::store::{Error, Store};
use proptest::prelude::*;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Logs `overlap` if somebody else is inside, and the fence.
const ALONE: &str =
    "mkdir inside || echo overlap >> log; echo $DLOCK_FENCE >> fences; sleep 0.02; rmdir inside";
/// Runs until `over` exists, and logs that it was asked to end.
const STEADY: &str =
    "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e over ]; do sleep 0.05; done; exit 9";
/// Deaf to TERM, so that only KILL ends it.
const DEAF: &str = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.05; done";

#[track_caller]
fn fences(masters: &Masters) -> Vec<u64> {
    let fences: Vec<u64> = masters.world().read("fences").lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "fences in the order of the runs: {fences:?}");
    fences
}

#[test]
fn of_many_that_wait_one_runs_at_a_time() {
    let masters = Masters::aged(3);
    let waiters: Vec<_> = (0..8).map(|_| masters.run("k", &["-w"], ALONE).any_stderr().spawn()).collect();
    for waiter in waiters {
        waiter.finish();
    }
    assert_eq!(masters.world().log(), [""; 0]);
    assert_eq!(fences(&masters).len(), 8);
    assert_eq!(masters.status("k")["state"], "free");
}

/// From cron, on every machine in the same instant: nobody waits, and yet somebody has to run it.
#[test]
fn of_many_that_come_at_once_one_runs() {
    let masters = Masters::aged(5);
    for round in 0..3 {
        let key = format!("k{round}");
        let job = format!("echo {round} >> log; sleep 3");
        let comers: Vec<_> =
            (0..5).map(|_| masters.run(&key, &["-E", "0"], &job).any_stderr().spawn()).collect();
        for comer in comers {
            comer.finish();
        }
        assert_eq!(masters.world().lines(&round.to_string()), 1, "round {round}");
    }
}

/// How masters are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    Killed,
    Stopped,
}

fn lose(masters: &mut Masters, who: &[usize], gone: Gone) {
    for at in who {
        match gone {
            Gone::Killed => masters.at_mut(*at).kill(),
            Gone::Stopped => masters.at(*at).pause(),
        }
    }
}

#[test]
fn a_minority_that_is_gone_before_is_not_needed() {
    for gone in [Gone::Killed, Gone::Stopped] {
        let mut masters = Masters::aged(5);
        lose(&mut masters, &[1, 4], gone);
        masters.run("k", &["-t", "10s"], "exit 7").status(7).run();
        assert_eq!(masters.status("k")["state"], "free", "{gone:?}");
        masters.run("k", &["-t", "10s"], "exit 7").status(7).run();
    }
}

/// Whatever befalls one of three while the lock is taken and given back, the run is what it would have been.
#[test]
fn a_minority_lost_at_any_moment_of_a_run_disturbs_nothing() {
    let masters = Masters::aged(3);
    let proxy = Proxy::before(masters.at(1).port());
    let store = url(&[masters.at(0).port(), proxy.port(), masters.at(2).port()]);
    for request in 1..=4 {
        for fault in [Fault::RequestLost, Fault::ReplyLost, Fault::Swallowed] {
            proxy.plan(request, fault);
            masters.run("k", &["-t", "20s"], ALONE).env("DLOCK_STORE", &store).run();
            // Somebody who comes after it finds the lock free on the others.
            masters.run("k", &["-t", "20s"], ALONE).env("DLOCK_STORE", &store).run();
        }
    }
    assert_eq!(masters.world().log(), [""; 0]);
    assert_eq!(fences(&masters).len(), 24);
}

#[test]
fn a_minority_lost_during_a_hold_disturbs_nothing() {
    thread::scope(|scope| {
        for (count, gone) in [(3, Gone::Killed), (3, Gone::Stopped), (5, Gone::Stopped)] {
            scope.spawn(move || a_minority_lost(count, gone));
        }
    });
}

fn a_minority_lost(count: usize, gone: Gone) {
    let mut masters = Masters::aged(count);
    let holder = masters.run("k", &["-t", "6s"], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    let lost: Vec<usize> = (0..count / 2).collect();
    lose(&mut masters, &lost, gone);
    for _ in 0..6 {
        masters.at(count - 1).after_renewal("dlock:k");
    }
    masters.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    masters.world().write("over", "");
    holder.finish();
    assert_eq!(masters.world().log(), ["up"], "{gone:?}");
    assert_eq!(masters.status("k")["state"], "free");
}

/// The guard has the store of dlock as it was before the fork, and gives the lock back on all masters.
#[test]
fn a_killed_dlock_leaves_no_master_behind() {
    let masters = Masters::aged(3);
    let holder =
        masters.run("k", &["-t", "4m"], "echo up >> log; exec sleep 1000").dies_of(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    holder.signal(Signal::KILL);
    holder.finish();
    wait_until("the guard gives it back", || (0..3).all(|at| masters.at(at).get("dlock:k").is_none()));
}

/// Inside of a job that holds the lock it is not taken a second time; what independent masters cannot do is refused.
#[test]
fn a_run_inside_of_a_job_and_what_is_refused() {
    let mut masters = Masters::aged(3);
    masters.at_mut(1).kill();
    let inner = format!("'{BINARY}' run -k k -- sh -c 'echo inside >> log'");
    masters.run("k", &[], &inner).any_stderr().run();
    assert_eq!(masters.world().lines("inside"), 1);
    for (options, why) in [
        (&["-k", "other"][..], "takes one key at a time"),
        (&["-s"], "has no shared locks"),
        (&["-n", "2"], "has no slots"),
    ] {
        let run = masters.run("k", options, "echo ran >> log").status(64);
        run.stderr_like(&format!("dlock: redis\\+quorum:// {why}: .*\n")).run();
    }
    let run = masters.run("k", &["--replicas", "1"], "echo ran >> log").status(78);
    run.stderr_like("dlock: --replicas: .* has no replicas.*\n").run();
    assert_eq!(masters.world().lines("ran"), 0);
}

/// All of them are away for half a lease.
#[test]
fn an_outage_of_half_a_ttl_disturbs_nothing() {
    let masters = Masters::aged(3);
    let ttl = Duration::from_secs(12);
    let options = ["-t", "12s", "--op-timeout", "1m"];
    let holder = masters.run("k", &options, STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    for phase in 0..3 {
        masters.at(0).after_renewal("dlock:k");
        sleep(ttl / 4 * phase / 3);
        let begun = Instant::now();
        (0..3).for_each(|at| masters.at(at).pause());
        sleep(ttl / 2 - ttl / 40);
        (0..3).for_each(|at| masters.at(at).resume());
        if begun.elapsed() > ttl / 2 {
            // This machine was too busy to keep the outage short enough: nothing was promised.
            println!("the outage lasted {:?}", begun.elapsed());
            return;
        }
    }
    masters.at(0).after_renewal("dlock:k");
    masters.world().write("over", "");
    holder.finish();
    assert_eq!(masters.world().log(), ["up"]);
}

/// One after the other each of the masters is away for longer than the lease, and comes back: what it has lost is won
/// back, so that the next may go.
#[test]
fn the_masters_may_be_lost_in_turn() {
    let masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "5s"], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    let token = masters.at(0).get("dlock:k").expect("it is held");
    for at in [0, 1, 2, 0] {
        masters.at(at).pause();
        for _ in 0..5 {
            masters.at((at + 1) % 3).after_renewal("dlock:k");
        }
        masters.at(at).resume();
        wait_until("it is won back", || masters.at(at).get("dlock:k").as_ref() == Some(&token));
    }
    masters.world().write("over", "");
    holder.finish();
    assert_eq!(masters.world().log(), ["up"]);
}

/// A master that was started anew, and remembers nothing, gets the lock and the fence.
#[test]
fn a_master_that_is_back_is_won_back() {
    let mut masters = Masters::aged(3);
    masters.at_mut(2).kill();
    let holder = masters.run("k", &["-t", "5s"], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    let token = masters.at(0).get("dlock:k");
    let fence = masters.at(0).get("dlock.fence:{dlock:k}:dlock:k");
    masters.at_mut(2).restart();
    wait_until("it is won back", || masters.at(2).get("dlock:k") == token);
    assert_eq!(masters.at(2).get("dlock.fence:{dlock:k}:dlock:k"), fence);
    // It counts: with it another may be lost.
    masters.at_mut(0).kill();
    for _ in 0..5 {
        masters.at(2).after_renewal("dlock:k");
    }
    masters.world().write("over", "");
    holder.finish();
    assert_eq!(masters.world().log(), ["up"]);
}

/// With most of the masters gone the lease cannot be renewed, and nothing of the job is alive when it ends on those that
/// are left.
#[test]
fn without_a_majority_the_job_is_dead_by_the_deadline() {
    thread::scope(|scope| {
        for gone in [Gone::Killed, Gone::Stopped] {
            scope.spawn(move || {
                let mut masters = Masters::aged(3);
                let holder = masters.run("k", &["-t", "8s"], DEAF).status(79).any_stderr().spawn();
                let job = masters.world().wait_for_pid("job.pid");
                // The masters are an hour ahead of each other; what is left of the lease is the same on all.
                masters.at(0).after_renewal("dlock:k");
                let left: i64 = masters.at(0).ask(&["PTTL", "dlock:k"]);
                let expires = now() + left;
                lose(&mut masters, &[1, 2], gone);
                let end = end_of_last_lease(expires, now(), Duration::from_secs(8));
                let alive = || Some(job).filter(|job| proc::alive(*job)).into_iter().collect();
                dead_in_time(|| now() >= end, alive);
                let output = holder.finish();
                assert!(output.stderr.contains("1 of the 3 masters"), "{}", output.stderr);
            });
        }
    });
}

/// A holder has two of three, and one of these forgets it. The third and the forgetful one must not make a second holder.
#[test]
fn a_master_that_restarted_is_not_counted() {
    let mut masters = Masters::fresh(3);
    let lease = ["-t", "6s", "--max-lease", "6s"];
    masters.wait_until_counted(&lease);
    let proxy = Proxy::before(masters.at(2).port());
    proxy.begin_outage();
    let store = url(&[masters.at(0).port(), masters.at(1).port(), proxy.port()]);
    let holder = masters.run("k", &lease, DEAF).env("DLOCK_STORE", store).any_stderr().spawn();
    let job = masters.world().wait_for_pid("job.pid");
    // It cannot win back anything; its guard keeps the deadline.
    holder.signal(Signal::STOP);
    masters.at_mut(0).restart();
    // One that was killed runs no more, though its guard may not have reaped it yet.
    let intruder = "grep -qs '^State:.[^ZX]' /proc/$(cat job.pid)/status && echo overlap >> log; exit 0";
    let mut refused = 0;
    while proc::alive(job) {
        let other = masters.run("k", &lease, intruder).any_stderr().spawn().output();
        refused += u32::from(other.stderr.contains("is busy: held by"));
    }
    assert_eq!(masters.world().log(), [""; 0]);
    assert!(refused > 0, "somebody has tried");
    drop(holder);
    // Later it counts again.
    masters.world().write("lease.toml", "max-lease = '1h'");
    let look = masters.dlock(&["status", "-v", "--config", "lease.toml", "k"]).any_stdout();
    look.stderr_like(
        "(dlock: redis://.* has restarted and may have forgotten locks; it counts again in .*\n){3}(dlock: k: .*\n)*",
    )
    .run();
    masters.at_mut(1).kill();
    masters.wait_until_counted(&lease);
}

/// A majority that has no master in common with the fastest clock has still heard of its fence.
#[test]
fn fences_grow_whatever_the_clocks_say() {
    // The clocks are hours apart, the fastest is the last one.
    let masters = Masters::aged(3);
    for lost in [0, 2, 1, 2, 0, 2] {
        masters.at(lost).pause();
        masters.run("k", &["-t", "10s"], ALONE).run();
        masters.at(lost).resume();
    }
    assert_eq!(fences(&masters).len(), 6);
}

#[test]
fn what_is_no_quorum_is_refused() {
    let mut masters = Masters::aged(3);
    let ports = masters.ports();
    let refused = |masters: &Masters, store: &str, why: &str| {
        let run = masters.run("k", &[], "echo ran >> log").env("DLOCK_STORE", store);
        run.status(78).stderr_like(&format!("dlock: .*{why}.*\n")).run();
    };
    refused(&masters, &url(&ports[..2]), "at least three masters");
    refused(&masters, &format!("{},h4", masters.url()), "an odd number of masters");
    refused(&masters, &url(&[ports[0], ports[1], ports[0]]), "named twice");
    // One is gone, so that nothing is decided before both of the others have been heard.
    masters.at_mut(1).kill();
    let alias = format!("redis+quorum://127.0.0.1:{0},localhost:{0},127.0.0.1:{1}", ports[0], ports[1]);
    refused(&masters, &alias, "are the same server");
    let port = ports[0].to_string();
    masters.at(2).ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    refused(&masters, &masters.url(), "is a replica");
    assert_eq!(masters.world().log(), [""; 0]);
}

#[test]
fn a_lease_that_could_be_forgotten_is_refused() {
    let masters = Masters::aged(3);
    let refused = |options: &[&str], status, why: &str| {
        let run = masters.run("k", options, "echo ran >> log");
        run.status(status).stderr_like(&format!("dlock: {why}.*\n")).run();
    };
    refused(&["-t", "6m"], 64, "--ttl is longer than the default of --max-lease of 5m");
    refused(&["--min-hold", "6m"], 64, "--min-hold is longer than the default of --max-lease");
    refused(&["--max-lease", "5s"], 64, "the default of --ttl is longer than --max-lease of 5s");
    masters.world().write("long.toml", "ttl = '1h'");
    refused(
        &["--config", "long.toml"],
        78,
        "ttl \\(long.toml line 1\\) is longer than the default of --max-lease",
    );
    masters.world().write("both.toml", "ttl = '1h'\nmax-lease = '2h'");
    let run =
        masters.run("k", &["--config", "both.toml", "-t", "61m", "--min-hold", "1s"], "echo ran >> log");
    // It is allowed; the masters are an hour or two old.
    run.any_stderr().spawn().output();
    refused(
        &["--config", "both.toml", "-t", "3h"],
        64,
        "--ttl is longer than max-lease \\(both.toml line 2\\)",
    );
}

#[test]
fn status_and_release_ask_all_masters() {
    let mut masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "8s"], STEADY).status(79).any_stderr().spawn();
    masters.world().wait_for_log("up");
    masters.at_mut(0).kill();
    assert_eq!(masters.status("k")["state"], "held");
    assert_eq!(masters.status("k")["holders"].as_array().map(Vec::len), Some(1));
    let dead = format!("redis://127.0.0.1:{}", masters.at(0).port());
    let look = masters.dlock(&["status", "-v"]).any_stdout();
    look.stderr_like(&format!("dlock: cannot reach {dead}: .*\n")).run();
    let take = masters.dlock(&["release", "k", "--force"]);
    take.stderr_like("dlock: k in .* is taken away from .*\n").run();
    // On most masters there is nothing to renew any more.
    holder.finish();
    wait_until("it is free", || masters.status("k")["state"] == "free");
    // One master disagrees.
    masters.at(1).ask::<()>(&["SET", "dlock:k", "somebody's", "PX", "600000"]);
    masters.at_mut(0).restart();
    let look = masters.dlock(&["status", "k", "-v"]).any_stdout();
    look.stderr_like("dlock: k: redis://.* says held, a majority says free\n").run();
    // Without a majority nothing is known.
    masters.at_mut(0).kill();
    masters.at(2).pause();
    let failed = masters.dlock(&["status", "k"]).status(69);
    failed.stderr_like("dlock: 1 of the 3 masters of .* can be counted and 2 are needed: .*\n").run();
    let failed = masters.dlock(&["release", "k", "--force"]).status(69);
    failed.stderr_like("dlock: 1 of the 3 masters .*those that answered have let go of the lock.*\n").run();
}

/// The rights of a single server, and INFO, are enough. Without INFO nobody knows how old a master is.
#[test]
fn tls_and_the_least_rights() {
    let masters = Masters::aged_with_tls(3, &Authority::new("ca"));
    let hosts: Vec<_> = masters.ports().iter().map(|port| format!("localhost:{port}")).collect();
    let ca = masters.world().path("master0/ca.pem");
    let store = format!("rediss+quorum://{}?ca={}", hosts.join(","), ca.display());
    let grant = |words: &[String]| {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        (0..3).for_each(|at| masters.at(at).ask::<()>(&words));
    };
    let login = [("DLOCK_STORE", store.as_str()), ("DLOCK_USERNAME", "dlock"), ("DLOCK_PASSWORD", "hush")];
    let run = |options: &[&str], script: &str| {
        let run = masters.run("k", options, script);
        login.iter().fold(run, |run, (name, value)| run.env(name, value))
    };
    let dlock = |words: &[&str]| {
        let dlock = masters.dlock(words).any_stdout().any_stderr();
        login.iter().fold(dlock, |dlock, (name, value)| dlock.env(name, value))
    };
    let line = crate::stores::acl::line();
    let without_info: Vec<_> = line.iter().filter(|word| *word != "+info").cloned().collect();
    grant(&without_info);
    let refused = run(&[], "echo ran >> log").status(77);
    refused.stderr_like("dlock: k: .*does not tell this user how long it has been up \\(INFO\\).*\n").run();
    grant(&line);
    run(&["--min-hold", "1ms"], ALONE).run();
    let holder = run(&["-t", "6s"], STEADY).status(79).any_stderr().spawn();
    masters.world().wait_for_log("up");
    run(&[], "echo ran >> log").status(75).any_stderr().run();
    run(&["-w", "300ms"], "echo ran >> log").status(75).any_stderr().run();
    masters.at(0).after_renewal("dlock:k");
    masters.at(1).ask::<()>(&["DEL", "dlock:k"]);
    wait_until("it is won back", || masters.at(1).get("dlock:k").is_some());
    assert!(dlock(&["status"]).run().stdout.contains("held"));
    dlock(&["release", "k", "--force"]).run();
    holder.finish();
    assert_eq!(masters.world().lines("ran"), 0);
}

#[test]
fn min_hold_outlives_the_run_on_all_masters() {
    let mut masters = Masters::aged(3);
    masters.run("k", &["--min-hold", "1m"], "exit 3").status(3).run();
    assert_eq!(masters.status("k")["state"], "cooling");
    masters.at_mut(1).kill();
    masters.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    assert_eq!(masters.world().log(), [""; 0]);
}

/// Not before the last master that was counted: the others granted it earlier, each by itself.
#[test]
fn a_min_hold_counts_from_the_grant_of_the_majority() {
    let mut masters = Masters::aged(3);
    let far = Proxy::before(masters.at(1).port());
    far.go_far(Duration::from_millis(300));
    masters.at_mut(2).kill();
    let store = url(&[masters.at(0).port(), far.port(), masters.at(2).port()]);
    let script = "touch up; while [ ! -e go ]; do sleep 0.02; done";
    let run = masters.run("k", &["-t", "20s", "--min-hold", "1m", "--op-timeout", "20s"], script);
    let holder = run.env("DLOCK_STORE", store).any_stderr().spawn();
    wait_until("the job runs", || masters.world().path("up").exists());
    let holds: Vec<String> = masters.at(0).ask(&["HVALS", "dlock.quorum:{dlock:k}:dlock:k"]);
    let hold: serde_json::Value = serde_json::from_str(&holds[0]).expect("a record");
    let number = |at: usize| hold[at].as_u64().or_else(|| hold[at].as_str()?.parse().ok()).expect("a time");
    let (since_ms, cool_ms) = (number(3) / 1000, number(5));
    assert!(cool_ms > since_ms + 60_000, "granted at {since_ms} ms, kept until {cool_ms} ms");
    masters.world().write("go", "");
    holder.finish();
}

/// A vanished lock is lost: no renewal makes a new one of it.
#[test]
fn a_lock_that_vanished_is_not_won_back() {
    let masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "8s", "--grace", "300ms"], DEAF).status(79).any_stderr().spawn();
    masters.world().wait_for_pid("job.pid");
    for at in 0..3 {
        masters.at(at).ask::<()>(&["DEL", "dlock:k"]);
    }
    holder.finish();
    assert_eq!((0..3).filter_map(|at| masters.at(at).get("dlock:k")).count(), 0);
}

fn store(ports: &[u16], max_lease: Duration) -> QuorumStore {
    store_within(ports, max_lease, Duration::from_secs(600))
}

fn store_within(ports: &[u16], max_lease: Duration, timeout: Duration) -> QuorumStore {
    let masters = ports.iter().map(|port| Target {
        address: Address::Tcp { host: "127.0.0.1".into(), port: *port },
        database: 0,
        username: None,
        password: None,
        tls: None,
        shown: format!("redis://127.0.0.1:{port}"),
        connect_timeout: timeout,
        op_timeout: timeout,
    });
    QuorumStore::new(masters.collect(), url(ports), max_lease, |_| {})
}

fn names() -> Names {
    Name::new("dlock:", &Key::new("k").unwrap()).unwrap().into()
}

fn ask(ttl: Duration) -> Ask {
    Ask {
        token: Token::random().unwrap(),
        mode: Mode::Exclusive,
        ttl,
        min_hold: Duration::ZERO,
        owner: Owner::default(),
        patience: Patience::None,
        terms: Terms::default(),
        waited: Duration::ZERO,
    }
}

const LONG: Duration = Duration::from_secs(300);
const NOT_RUN: End = End { ran: Ran::No, job: None, once_per: false };

/// Whatever the masters do, and however long an answer may take, an operation is over when it was told to be.
#[test]
fn silent_masters_do_not_lengthen_an_operation() {
    let masters = Masters::aged(3);
    let proxies: Vec<_> = masters.ports().into_iter().map(Proxy::before).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let silenced = |silent: usize| {
        for (at, proxy) in proxies.iter().enumerate() {
            if at < silent { proxy.begin_outage() } else { proxy.end_outage() }
        }
    };
    for silent in [2, 3] {
        silenced(silent);
        let (said, heard) = mpsc::channel();
        let ports = ports.clone();
        thread::spawn(move || {
            let mut store = store(&ports, LONG);
            let by = || Moment::now().after(Duration::from_millis(300));
            let ask = ask(Duration::from_secs(30));
            let errors = [
                store.acquire(&names(), &ask, by()).err(),
                store.renew(&names(), &ask.token, ask.ttl, by()).err(),
                store.leave(&names(), &ask.token, &NOT_RUN, by()).err(),
                store.prove(&names(), &ask.token, by()).err(),
                store.inspect(names().first(), by()).err(),
            ];
            drop(said.send(errors));
        });
        let errors = wait_within(Duration::from_secs(40), "they end", || heard.try_recv().ok());
        for error in errors {
            assert!(matches!(error, Some(Error::Unreachable(_))), "{silent} silent: {error:?}");
        }
    }
}

/// A majority that was heard of too late is none: the first of its masters may have let go.
#[test]
fn a_majority_that_answers_too_late_holds_nothing() {
    let masters = Masters::aged(3);
    let proxies: Vec<_> = masters.ports().into_iter().map(Proxy::before).collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let mut store = store(&ports, LONG);
    let by = || Moment::now().after(Duration::from_secs(20));
    // The masters know the scripts, so that one request is one answer.
    let warm = ask(Duration::from_secs(20));
    assert!(matches!(store.acquire(&names(), &warm, by()), Ok(Acquired::Granted(_))));
    store.leave(&names(), &warm.token, &NOT_RUN, by()).unwrap();
    for proxy in &proxies {
        proxy.plan(99, Fault::Late);
        proxy.delay_replies(Duration::from_millis(600));
    }
    let late = thread::spawn(move || {
        let ask = ask(Duration::from_millis(1500));
        let answer = store.acquire(&names(), &ask, by());
        (answer, store)
    });
    wait_until("phase one", || proxies.iter().all(|proxy| proxy.seen() > 0));
    // Its answers are under way; the next ones take longer than the lease lasts.
    for proxy in &proxies {
        proxy.delay_replies(Duration::from_secs(3));
    }
    let (answer, _store) = late.join().unwrap();
    assert!(matches!(answer, Err(Error::Unavailable(_) | Error::Unreachable(_))), "{answer:?}");
}

/// Two masters have the lock and one has not, and one of the two is slow. Whoever renews waits for it.
#[test]
fn a_slow_master_that_decides_is_waited_for() {
    let masters = Masters::aged(3);
    let slow = Proxy::before(masters.at(1).port());
    let by = || Moment::now().after(Duration::from_secs(60));
    let ask = ask(Duration::from_secs(60));
    masters.at(2).ask::<()>(&["SET", "dlock:k", "somebody's"]);
    let granted = store(&masters.ports(), LONG).acquire(&names(), &ask, by());
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    masters.at(2).ask::<()>(&["DEL", "dlock:k"]);
    slow.delay_replies(Duration::from_secs(1));
    let ports = [masters.at(0).port(), slow.port(), masters.at(2).port()];
    let renewed = store(&ports, LONG).renew(&names(), &ask.token, ask.ttl, by());
    assert!(matches!(renewed, Ok(Renewal::Renewed)), "{renewed:?}");
}

/// Of three masters one forgot the lock, one never had it, and the one that has it is slow. It vouches for the others.
#[test]
fn a_slow_master_that_vouches_is_waited_for() {
    let masters = Masters::aged(3);
    let slow = Proxy::before(masters.at(1).port());
    let ports = [masters.at(0).port(), slow.port(), masters.at(2).port()];
    let (mut store, ask) = (store(&ports, LONG), ask(Duration::from_secs(60)));
    let by = || Moment::now().after(Duration::from_secs(20));
    masters.at(2).ask::<()>(&["SET", "dlock:k", "somebody's"]);
    let granted = store.acquire(&names(), &ask, by());
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    masters.at(2).ask::<()>(&["DEL", "dlock:k"]);
    masters.at(0).ask::<()>(&["FLUSHALL"]);
    slow.delay_replies(Duration::from_secs(1));
    let renewed = store.renew(&names(), &ask.token, ask.ttl, by());
    assert!(matches!(renewed, Ok(Renewal::Renewed)), "{renewed:?}");
    assert_eq!(masters.at(0).get("dlock:k"), Some(ask.token.secret().to_owned()), "it was won back");
}

/// A master that has restarted answers at once and does not count, so the one that is far is needed.
#[test]
fn a_far_master_is_waited_for_where_a_near_one_does_not_count() {
    let (masters, new) = (Masters::aged(2), Masters::fresh(1));
    let far = Proxy::before(masters.at(1).port());
    far.delay_replies(Duration::from_secs(1));
    let store = url(&[masters.at(0).port(), far.port(), new.at(0).port()]);
    masters.run("k", &["--op-timeout", "20s"], "true").env("DLOCK_STORE", store).run();
}

/// Who gave the lock back has told a majority, and one of the masters does not know yet. Then one of the others is lost.
#[test]
fn what_was_just_given_back_is_not_busy() {
    let masters = Masters::aged(3);
    let proxies = [1, 2].map(|at| Proxy::before(masters.at(at).port()));
    let by = || Moment::now().after(Duration::from_secs(60));
    let ports = [masters.at(0).port(), masters.at(1).port(), proxies[1].port()];
    let mut first = store_within(&ports, LONG, Duration::from_millis(500));
    let ask_first = ask(Duration::from_secs(60));
    assert!(matches!(first.acquire(&names(), &ask_first, by()), Ok(Acquired::Granted(_))));
    proxies[1].plan(1, Fault::Late);
    first.leave(&names(), &ask_first.token, &NOT_RUN, by()).unwrap();
    assert!(masters.at(2).get("dlock:k").is_some(), "it is under way to this one");
    proxies[0].begin_outage();
    let ports = [masters.at(0).port(), proxies[0].port(), masters.at(2).port()];
    let mut next = store_within(&ports, LONG, Duration::from_millis(500));
    let next = thread::spawn(move || next.acquire(&names(), &ask(Duration::from_secs(60)), by()));
    wait_until("it has asked, and asks again", || proxies[0].seen() > 3);
    proxies[1].deliver();
    let answer = next.join().unwrap();
    assert!(matches!(answer, Ok(Acquired::Granted(_))), "{answer:?}");
}

/// An attempt that failed is taken back, and that arrives only when the next attempt of the same token has succeeded.
#[test]
fn what_is_taken_back_late_takes_back_nothing_newer() {
    let masters = Masters::aged(3);
    let proxy = Proxy::before(masters.at(1).port());
    let ports = [masters.at(0).port(), proxy.port(), masters.at(2).port()];
    let mut store = store_within(&ports, LONG, Duration::from_millis(500));
    let by = || Moment::now().after(Duration::from_secs(20));
    let warm = ask(Duration::from_secs(20));
    assert!(matches!(store.acquire(&names(), &warm, by()), Ok(Acquired::Granted(_))));
    store.leave(&names(), &warm.token, &NOT_RUN, by()).unwrap();
    for at in [0, 2] {
        masters.at(at).ask::<()>(&["SET", "dlock:k", "somebody's"]);
    }
    proxy.plan(2, Fault::Late);
    let ask = Ask { patience: Patience::Queue, ..ask(Duration::from_secs(60)) };
    assert!(matches!(store.acquire(&names(), &ask, by()), Ok(Acquired::Waiting(_))));
    for at in [0, 2] {
        masters.at(at).ask::<()>(&["DEL", "dlock:k"]);
    }
    let token = Some(ask.token.secret().to_owned());
    wait_until("all masters are ours", || {
        matches!(store.acquire(&names(), &ask, by()), Ok(Acquired::Granted(_))) && proxy.seen() > 4
    });
    assert_eq!(masters.at(1).get("dlock:k"), token);
    proxy.deliver();
    assert_eq!(masters.at(1).get("dlock:k"), token);
}

/// An operator's wish reaches the holder by its next renewal, from one master that it reached; and what happened is
/// counted, once, not once a master.
#[test]
fn a_request_reaches_the_holder() {
    let mut masters = Masters::aged(3);
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    let name = names.first();
    let Ok(Acquired::Granted(grant)) = store.acquire(&names, &ask, by()) else { panic!("the lock is free") };
    let other = Fence(grant.fence.0 + 1);
    assert_eq!(store.request(name, other, &Owner::default(), by()), Ok(Requested::Gone));
    assert_eq!(store.renew(&names, &ask.token, ask.ttl, by()), Ok(Renewal::Renewed));
    masters.at_mut(0).kill();
    assert_eq!(store.request(name, grant.fence, &Owner::default(), by()), Ok(Requested::Asked));
    assert_eq!(store.inspect(name, by()).unwrap().holders[0].asked, Some(Owner::default()));
    assert_eq!(store.prove(&names, &ask.token, by()).unwrap().map(|proof| proof.fence), Some(grant.fence));
    assert_eq!(store.prove(&names, &Token::random().unwrap(), by()), Ok(None));
    assert_eq!(store.renew(&names, &ask.token, ask.ttl, by()), Ok(Renewal::Asked));
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(1)), once_per: false };
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Released { cooling: Duration::ZERO }));
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Already));
    let view = store.inspect(name, by()).unwrap();
    assert_eq!((view.stat.waited.count(), view.stat.held.count(), view.stat.failed), (1, 1, 1));
    assert_eq!(view.log.len(), 1);
    assert_eq!((view.log[0].fence, view.log[0].job), (grant.fence, end.job));
}

/// The masters' clocks are hours apart. Whoever is refused, looks, or takes the lock away is told of the hold by one of
/// them, whichever master it was whose word was taken.
#[test]
fn of_a_hold_one_clock_tells() {
    let mut masters = Masters::aged(3);
    // Of two, both are heard before anything is said.
    masters.at_mut(2).kill();
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
    let by = || Moment::now().after(Duration::from_secs(20));
    for least in [0, 1] {
        let holder = ask(Duration::from_secs(60));
        assert!(matches!(store.acquire(&names(), &holder, by()), Ok(Acquired::Granted(_))));
        // The master that is free first is the one that tells of the hold.
        let key = "dlock.quorum:{dlock:k}:dlock:k";
        let record: String = masters.at(least).ask(&["HGET", key, holder.token.secret()]);
        let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let until: u64 = record[4].as_str().unwrap().parse().unwrap();
        record[4] = (until - 1000).to_string().into();
        masters.at(least).ask::<i64>(&["HSET", key, holder.token.secret(), &record.to_string()]);
        let Ok(Acquired::Busy(blocker)) = store.acquire(&names(), &ask(LONG), by()) else {
            panic!("it is held")
        };
        let since = blocker.holder.expect("a holder").since;
        let view = store.inspect(names().first(), by()).unwrap();
        assert_eq!(view.holders[0].since.abs_diff(since) / 60_000, 0, "{since} and {view:?}");
        assert_eq!(view.now.abs_diff(since) / 60_000, 0, "{since} and {view:?}");
        let revoke = Revoke { when: When::Now, by: Owner::default() };
        let Ok(Revoked::Holds { holders, .. }) = store.revoke(names().first(), &revoke, by()) else {
            panic!("it is held")
        };
        assert_eq!(holders[0].since.abs_diff(since) / 60_000, 0, "{since} and {holders:?}");
    }
}

/// After the deadline somebody else may have had the lock. One master that still has it, for a min-hold, is not enough.
#[test]
fn nothing_is_won_back_after_the_deadline() {
    let masters = Masters::aged(3);
    let mut store = store(&masters.ports(), LONG);
    let by = || Moment::now().after(Duration::from_secs(20));
    let ask = Ask { min_hold: Duration::from_secs(60), ..ask(Duration::from_secs(5)) };
    assert!(matches!(store.acquire(&names(), &ask, by()), Ok(Acquired::Granted(_))));
    let lose = || [0, 1].map(|at| masters.at(at).ask::<()>(&["DEL", "dlock:k"]));
    lose();
    // In time, the one that is left vouches for it.
    assert_eq!(store.renew(&names(), &ask.token, ask.ttl, by()), Ok(Renewal::Renewed));
    assert_eq!(masters.at(0).get("dlock:k").as_deref(), Some(ask.token.secret()));
    lose();
    sleep_until(Moment::now().after(ask.ttl));
    assert_eq!(store.renew(&names(), &ask.token, ask.ttl, by()), Ok(Renewal::NotHeld));
    assert_eq!(masters.at(0).get("dlock:k"), None);
}

/// A master is far: what is sent to it arrives when dlock has ended, and nobody is there to hear what it says.
#[test]
fn a_far_master_hears_of_the_end() {
    let masters = Masters::aged(3);
    let proxy = Proxy::before(masters.at(2).port());
    let store = url(&[masters.at(0).port(), masters.at(1).port(), proxy.port()]);
    proxy.go_far(Duration::from_millis(50));
    for (nth, job) in ["true", "sleep 0.3", "sleep 0.7"].into_iter().enumerate() {
        let key = format!("k{nth}");
        let run = masters.run(&key, &["-t", "4m"], job).env("DLOCK_STORE", &store);
        run.any_stderr().run();
        let far = masters.at(2);
        wait_until("it is told", || {
            !far.ask::<Vec<String>>(&["KEYS", &format!("dlock.spent*{key}:*")]).is_empty()
        });
        assert_eq!(far.get(&format!("dlock:{key}")), None, "{job}");
    }
}

/// A master whose clock is far ahead and whose answer comes too late to be counted has no say in the fence.
#[test]
fn a_hold_has_one_fence() {
    let masters = Masters::aged(3);
    // Its clock is the fastest.
    let proxy = Proxy::before(masters.at(2).port());
    let store = url(&[proxy.port(), masters.at(0).port(), masters.at(1).port()]);
    // All know the scripts.
    masters.run("k", &[], "true").run();
    proxy.go_far(Duration::from_millis(100));
    let look = format!("'{BINARY}' status k --json > status.json");
    let inner = format!("'{BINARY}' run -k k -- sh -c 'echo $DLOCK_FENCE >> inner'");
    let job = format!("echo $DLOCK_FENCE >> outer; sleep 1; {look}; {inner}");
    masters.run("k", &["-t", "20s"], &job).env("DLOCK_STORE", &store).any_stderr().run();
    let world = masters.world();
    let status: serde_json::Value = serde_json::from_str(&world.read("status.json")).unwrap();
    assert_eq!(world.read("inner"), world.read("outer"), "of a run inside");
    assert_eq!(format!("{}\n", status[0]["holders"][0]["fence"]), world.read("outer"), "of status");
    let history = masters.dlock(&["history", "k", "--json"]).any_stdout().run().stdout;
    assert_eq!(history.matches(world.read("outer").trim()).count(), 1, "{history}");
    wait_until("the far one has heard of the end", || masters.at(2).get("dlock:k").is_none());
    // It is told to a master that is renewed by a process that does not know it.
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    let Ok(Acquired::Granted(grant)) = store.acquire(&names, &ask, by()) else { panic!("the lock is free") };
    let record = "dlock.quorum:{dlock:k}:dlock:k";
    let hold: String = masters.at(2).ask(&["HGET", record, ask.token.secret()]);
    let mut fields: Vec<serde_json::Value> = serde_json::from_str(&hold).unwrap();
    (fields[2], fields[6]) = ((grant.fence.0 + 3_600_000_000).to_string().into(), "0".into());
    let hold = serde_json::to_string(&fields).unwrap();
    masters.at(2).ask::<i64>(&["HSET", record, ask.token.secret(), &hold]);
    let mut other = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    assert_eq!(other.prove(&names, &ask.token, by()).unwrap().map(|proof| proof.fence), Some(grant.fence));
    assert_eq!(other.renew(&names, &ask.token, ask.ttl, by()), Ok(Renewal::Renewed));
    wait_until("all masters know the fence", || {
        let hold: String = masters.at(2).ask(&["HGET", record, ask.token.secret()]);
        hold.contains(&format!("\"{}\"", grant.fence.0))
    });
    assert_eq!(store.inspect(names.first(), by()).unwrap().holders[0].fence, grant.fence);
}

/// One master that still knows of the hold does not outweigh most that have forgotten it.
#[test]
fn a_lock_that_most_have_forgotten_at_the_end_was_lost() {
    let masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "2m"], STEADY).status(79).any_stderr().spawn();
    masters.world().wait_for_log("up");
    for at in [0, 2] {
        masters.at(at).ask::<()>(&["FLUSHALL"]);
    }
    masters.world().write("over", "");
    holder.finish();
    // One that has is not most.
    let holder = masters.run("k2", &["-t", "2m"], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_lines("up", 2);
    masters.at(1).ask::<()>(&["FLUSHALL"]);
    holder.finish();
}

/// Masters that were started again have given the lock to nobody since, so that they do not know it is no loss.
#[test]
fn a_lock_that_young_masters_have_forgotten_at_the_end_was_not_lost() {
    let mut masters = Masters::aged(3);
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(120)));
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
    assert!(matches!(store.acquire(&names, &ask, by()), Ok(Acquired::Granted(_))));
    for at in [0, 1] {
        masters.at_mut(at).restart();
    }
    // The first two have been up for one hour and two, as they tell it, and the last one for three.
    let longest = Duration::from_secs(9000);
    let mut store = store_within(&masters.ports(), longest, Duration::from_secs(5));
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false };
    // The second time, too.
    for _ in 0..2 {
        let left = store.leave(&names, &ask.token, &end, by());
        assert!(matches!(left, Err(Error::Unreachable(_))), "{left:?}");
    }
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::NotHeld));
}

/// A user who has used up his processes gets a clear word.
#[test]
fn threads_that_cannot_be_made_are_an_error() {
    let masters = Masters::aged(3);
    for command in [&["status"][..], &["status", "k"]] {
        // More than there is address space.
        let run = masters.dlock(command).env("RUST_MIN_STACK", "70368744177664").any_stdout();
        let failed = run.any_stderr().spawn().output();
        assert_eq!(failed.status.code(), Some(69), "{command:?}: {}", failed.stderr);
        assert!(failed.stderr.contains("cannot start a thread"), "{command:?}: {}", failed.stderr);
    }
}

/// The masters' clocks are hours apart; what is shown is as one of them tells it.
#[test]
fn times_are_told_by_one_clock() {
    let masters = Masters::aged(3);
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    assert!(matches!(store.acquire(&names, &ask, by()), Ok(Acquired::Granted(_))));
    let view = store.inspect(names.first(), by()).unwrap();
    let near = |time: u64| time.abs_diff(view.now) < 600_000;
    assert!(near(view.holders[0].since), "{view:?}");
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false };
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Released { cooling: Duration::ZERO }));
    let view = store.inspect(names.first(), by()).unwrap();
    let near = |time: u64| time.abs_diff(view.now) < 600_000;
    assert!(near(view.log[0].since) && near(view.log[0].ended), "{view:?}");
    assert!(view.stat.last.values().all(|time| near(*time)), "{view:?}");
    assert!(view.stat.last_success.is_some_and(near), "{view:?}");
}

/// When a job last succeeded or failed, and who gave up waiting, is counted as on a single server.
#[test]
fn what_happened_is_counted() {
    let masters = Masters::aged(3);
    masters.run("k", &[], "true").run();
    masters.run("k", &[], "exit 3").status(3).run();
    let holder = masters.run("k", &[], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    masters.run("k", &["-w", "300ms"], "true").status(75).any_stderr().run();
    masters.run("k", &[], "true").status(75).any_stderr().run();
    masters.world().write("over", "");
    holder.finish();
    let text = masters.dlock(&["metrics"]).any_stdout().run().stdout;
    let value = |series: &str| {
        let line = text.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.split_whitespace().last()?.parse::<f64>().ok())
    };
    assert!(value("dlock_last_success_timestamp_seconds{key=\"k\"}").is_some(), "{text}");
    assert!(value("dlock_last_failure_timestamp_seconds{key=\"k\"}").is_some(), "{text}");
    assert_eq!(value("dlock_given_up_total{key=\"k\"}"), Some(1.0), "{text}");
    assert_eq!(value("dlock_busy_total{key=\"k\"}"), Some(1.0), "{text}");
}

/// Who has waited gets the lock before who comes new; who waits no more delays nobody for long.
#[test]
fn who_has_waited_is_preferred() {
    let masters = Masters::aged(3);
    let new = || store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ttl) = (names(), Duration::from_secs(30));
    let (mut holder, mut waiter, mut comer) = (new(), new(), new());
    let held = ask(ttl);
    assert!(matches!(holder.acquire(&names, &held, by()), Ok(Acquired::Granted(_))));
    let waits = Ask { patience: Patience::Queue, ..ask(ttl) };
    let began = Moment::now();
    while began.after(Duration::from_millis(500)) > Moment::now() {
        assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Waiting(_))));
        sleep(Duration::from_millis(50));
    }
    holder.leave(&names, &held.token, &NOT_RUN, by()).unwrap();
    let refused = comer.acquire(&names, &ask(ttl), by());
    let Ok(Acquired::Busy(blocker)) = refused else { panic!("it overtakes: {refused:?}") };
    assert_eq!(blocker.holder, None);
    // It has come a moment later, and has waited for less.
    let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
    assert!(matches!(comer.acquire(&names, &comes, by()), Ok(Acquired::Waiting(_))));
    assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Granted(_))));
    // The waiter who is gone now was the only one: the other is served when the masters notice.
    waiter.leave(&names, &waits.token, &NOT_RUN, by()).unwrap();
    wait_until("who asks no more is forgotten", || {
        matches!(comer.acquire(&names, &comes, by()), Ok(Acquired::Granted(_)))
    });
}

/// Two that have waited long reach one master each, and neither can ever win. The lock is not theirs for ever.
#[test]
fn who_reaches_no_majority_blocks_nobody_for_ever() {
    let masters = Masters::aged(3);
    let by = |ms| Moment::now().after(Duration::from_millis(ms));
    let (names, ttl) = (names(), Duration::from_secs(30));
    let hole = Black::new();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for at in [0, 1] {
            let ports = [masters.at(at).port(), hole.port(), hole.port()];
            let (names, over) = (&names, &over);
            scope.spawn(move || {
                let waits = Ask { patience: Patience::Queue, ..ask(ttl) };
                let mut store = store_within(&ports, LONG, Duration::from_millis(100));
                while !over.load(Ordering::Relaxed) {
                    let _ = store.acquire(names, &waits, by(200));
                    sleep(Duration::from_millis(50));
                }
            });
        }
        let asked = |at: usize| masters.at(at).ask::<i64>(&["EXISTS", "dlock.turn:{dlock:k}:dlock:k"]) == 1;
        wait_until("both ask", || asked(0) && asked(1));
        sleep(Duration::from_millis(500));
        let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
        let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
        wait_until("it is granted", || {
            sleep(Duration::from_millis(20));
            matches!(store.acquire(&names, &comes, by(2000)), Ok(Acquired::Granted(_)))
        });
        over.store(true, Ordering::Relaxed);
    });
}

/// One that has waited for long and dies is preferred for 1.5 s more. Two that go on asking, and never win, are preferred for
/// 3 s after the lock was refused to somebody.
#[test]
fn who_cannot_win_is_preferred_for_some_seconds_only() {
    let masters = Masters::aged(3);
    let (names, ttl) = (names(), Duration::from_secs(30));
    let by = || Moment::now().after(Duration::from_secs(20));
    let new = || store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let (mut holder, mut comer) = (new(), new());
    // How long after then, or after it was refused first, one that comes asks for the last time without being granted it.
    let mut comes = |since: Option<Moment>| {
        let comes = Ask { patience: Patience::Queue, ..ask(ttl) };
        let (mut refused, mut since) = (Duration::ZERO, since);
        loop {
            let asked = Moment::now();
            match comer.acquire(&names, &comes, by()) {
                Ok(Acquired::Granted(_)) => break,
                _ => refused = asked.since(*since.get_or_insert_with(Moment::now)),
            }
            assert!(refused < Duration::from_secs(20), "it is granted it one day");
            sleep(Duration::from_millis(10));
        }
        comer.leave(&names, &comes.token, &NOT_RUN, by()).unwrap();
        refused
    };
    let held = ask(ttl);
    assert!(matches!(holder.acquire(&names, &held, by()), Ok(Acquired::Granted(_))));
    let (waits, mut waiter) = (Ask { patience: Patience::Queue, ..ask(ttl) }, new());
    for _ in 0..2 {
        assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Waiting(_))));
        sleep(Duration::from_millis(300));
    }
    assert!(matches!(waiter.acquire(&names, &waits, by()), Ok(Acquired::Waiting(_))));
    let heard = Moment::now();
    holder.leave(&names, &held.token, &NOT_RUN, by()).unwrap();
    let refused = comes(Some(heard));
    // A master counts in whole milliseconds of its own clock.
    assert!(refused < Duration::from_millis(1550), "{refused:?} after the dead one was heard of");

    let over = AtomicBool::new(false);
    let refused = thread::scope(|scope| {
        for at in [0, 1] {
            let (port, names, over) = (masters.at(at).port(), &names, &over);
            scope.spawn(move || {
                let hole = Black::new();
                let waits = Ask { patience: Patience::Queue, ..ask(ttl) };
                let mut store =
                    store_within(&[port, hole.port(), hole.port()], LONG, Duration::from_millis(100));
                while !over.load(Ordering::Relaxed) {
                    let by = Moment::now().after(Duration::from_millis(200));
                    let _ = store.acquire(names, &waits, by);
                    sleep(Duration::from_millis(100));
                }
            });
        }
        let asked = |at: usize| masters.at(at).ask::<i64>(&["EXISTS", "dlock.turn:{dlock:k}:dlock:k"]) == 1;
        wait_until("both ask", || asked(0) && asked(1));
        sleep(Duration::from_millis(500));
        let refused = comes(None);
        over.store(true, Ordering::Relaxed);
        refused
    });
    // From then on it is a matter of luck: at times each of them has what it cannot keep.
    assert!(refused < Duration::from_secs(5), "{refused:?} after it was refused");
}

/// Of six who ask again at once, nobody is passed over and over.
#[test]
fn waiters_come_to_their_turn() {
    let masters = Masters::aged(3);
    let grants = AtomicUsize::new(0);
    let rounds = if std::env::var_os("DLOCK_SOAK").is_some() { 40 } else { 6 };
    let waits: Vec<_> = thread::scope(|scope| {
        let work = || {
            let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(5));
            let by = || Moment::now().after(Duration::from_secs(5));
            let mut waits = Vec::new();
            for _ in 0..rounds {
                let ask = Ask { patience: Patience::Queue, ..ask(Duration::from_secs(30)) };
                let (began, before) = (Instant::now(), grants.load(Ordering::Relaxed));
                loop {
                    match store.acquire(&names(), &ask, by()) {
                        Ok(Acquired::Granted(_)) => break,
                        Ok(Acquired::Waiting(waiting)) => sleep(waiting.next),
                        other => println!("{other:?}"),
                    }
                }
                let passed = grants.fetch_add(1, Ordering::Relaxed) - before;
                waits.push((began.elapsed(), passed));
                sleep(Duration::from_millis(20));
                store.leave(&names(), &ask.token, &NOT_RUN, by()).unwrap();
            }
            waits
        };
        let workers: Vec<_> = (0..6).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let mut spans: Vec<_> = waits.iter().map(|(span, _)| *span).collect();
    spans.sort_unstable();
    println!("median {:?}, longest {:?}", spans[spans.len() / 2], spans[spans.len() - 1]);
    // By turns and not by time, for this machine may be busy with something else.
    let most = waits.iter().map(|(_, passed)| *passed).max().unwrap();
    assert!(most <= 15, "{most} of five others went before one that waited");
}

/// What happens to one master.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Pause(usize),
    Resume(usize),
    Restart(usize),
}

/// One client's next hold.
#[derive(Debug, Clone, Copy)]
struct Visit {
    stay: Duration,
    farewell: Farewell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Farewell {
    GivesBack,
    Vanishes,
}

/// A hold as its owner knew it: from when to when it may have relied on it.
#[derive(Debug)]
struct Stay {
    fence: u64,
    from: Moment,
    until: Moment,
}

fn blows(masters: usize, forget: bool) -> impl Strategy<Value = Vec<(Duration, Blow)>> {
    let blow = (0..10u8, 0..masters).prop_map(move |(kind, at)| match kind {
        0..4 => Blow::Pause(at),
        4..8 => Blow::Resume(at),
        _ if forget => Blow::Restart(at),
        _ => Blow::Resume(at),
    });
    prop::collection::vec(((0..200u64).prop_map(Duration::from_millis), blow), 20..40)
}

fn visits() -> impl Strategy<Value = Vec<Vec<Visit>>> {
    let stay = prop_oneof![5 => Just(0), 1 => 1..900u64];
    let visit = (stay, 0..20u8).prop_map(|(stay, bye)| Visit {
        stay: Duration::from_millis(stay),
        farewell: if bye == 0 { Farewell::Vanishes } else { Farewell::GivesBack },
    });
    prop::collection::vec(prop::collection::vec(visit, 25), 4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    /// The masters' clocks are hours apart.
    #[test]
    fn holds_follow_each_other_while_masters_come_and_go(blows in blows(3, false), visits in visits()) {
        holds_follow_each_other(Masters::aged(3), LONG, &blows, &visits);
    }

    /// The masters forget everything when they restart.
    #[test]
    fn holds_follow_each_other_while_masters_forget(blows in blows(3, true), visits in visits()) {
        let masters = Masters::fresh(3);
        masters.wait_until_counted(&["-t", "1s", "--max-lease", "1s"]);
        holds_follow_each_other(masters, Duration::from_secs(1), &blows, &visits);
    }
}

/// Whatever happens to the masters, no two holds overlap, and every fence is greater than all before it.
fn holds_follow_each_other(
    mut masters: Masters,
    max_lease: Duration,
    blows: &[(Duration, Blow)],
    visits: &[Vec<Visit>],
) {
    let ports = masters.ports();
    let mut stays = thread::scope(|scope| {
        let guests: Vec<_> = visits
            .iter()
            .map(|visits| {
                let mut store = store(&ports, max_lease);
                scope.spawn(move || {
                    visits.iter().filter_map(|visit| stay(&mut store, visit, max_lease)).collect::<Vec<_>>()
                })
            })
            .collect();
        for (after, blow) in blows {
            sleep(*after);
            match *blow {
                Blow::Pause(at) => masters.at(at).pause(),
                Blow::Resume(at) => masters.at(at).resume(),
                Blow::Restart(at) => masters.at_mut(at).restart(),
            }
        }
        (0..masters.len()).for_each(|at| masters.at(at).resume());
        guests.into_iter().flat_map(|guest| guest.join().unwrap()).collect::<Vec<_>>()
    });
    stays.sort_by_key(|stay| stay.from);
    println!("{} holds", stays.len());
    for pair in stays.windows(2) {
        assert!(pair[0].until <= pair[1].from, "two at once: {pair:?}");
        assert!(pair[0].fence < pair[1].fence, "not in order: {pair:?}");
    }
}

/// Takes the lock, keeps it for a while, and goes.
fn stay(store: &mut QuorumStore, visit: &Visit, max_lease: Duration) -> Option<Stay> {
    let names = names();
    let ttl = Duration::from_millis(800).min(max_lease);
    let by = |span| Moment::now().after(Duration::from_millis(span));
    let give_up = by(2500);
    let ask = Ask { patience: Patience::Queue, ..ask(ttl) };
    let deadline = |sent: Moment| sent.after(ttl - ttl / 100 - Duration::from_millis(2));
    let (fence, from, mut until) = loop {
        let sent = Moment::now();
        match store.acquire(&names, &ask, by(400)) {
            Ok(Acquired::Granted(grant)) => {
                // Who looks at the clock after the answer knows whether it came in time.
                break (grant.fence.0, Moment::now(), deadline(sent));
            }
            Ok(Acquired::Waiting(waiting)) => sleep(waiting.next),
            Ok(_) | Err(_) => sleep(Duration::from_millis(20)),
        }
        if give_up.passed() {
            let _ = store.leave(&names, &ask.token, &NOT_RUN, by(200));
            return None;
        }
    };
    let end = from.after(visit.stay);
    while !end.passed() && !until.passed() {
        let sent = Moment::now();
        match store.renew(&names, &ask.token, ttl, by(100)) {
            Ok(Renewal::Renewed) if !until.passed() => until = deadline(sent),
            // Late, or lost: what was relied on until now is all there was.
            Ok(_) => break,
            Err(_) => {}
        }
        sleep_until(Moment::now().after(Duration::from_millis(50)).min(until).min(end));
    }
    until = until.min(Moment::now());
    if visit.farewell == Farewell::GivesBack {
        let _ = store.leave(&names, &ask.token, &End { ran: Ran::Yes, job: None, once_per: false }, by(200));
    }
    (from <= until).then_some(Stay { fence, from, until })
}

//! Many waiters and readers, writes that race, and what a member keeps: compaction, a full
//! database, leftovers.

use super::{Asker, WISHES, in_time, own_cluster};
use crate::support::etcd::Etcd;
use crate::support::hand_over::{JOB, hand_over_to_readers, notices_deaths};
use crate::support::storm::{is_soak, storm};
use crate::support::wait::{OUTAGE, wait_until, wait_within};
use crate::support::world::World;
use dlock::clock::Moment;
use dlock::lock::Token;
use dlock::rules::{Acquired, Ask, Patience};
use dlock::store::Store as _;
use dlock::store::etcd::EtcdStore;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self};
use std::time::Duration;

/// The history is compacted all the time, including events that a watch is about to receive.
#[test]
fn compaction_under_load_loses_nothing() {
    let (world, etcd) = own_cluster(1, &[]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let status: serde_json::Value =
                    serde_json::from_str(&etcd.ctl(&["endpoint", "status", "-w", "json"])).expect("JSON");
                let revision = status[0]["Status"]["header"]["revision"].to_string();
                // It fails if nothing has changed since the last compaction.
                drop(etcd.try_ctl(&["compact", &revision]));
                etcd.ctl(&["defrag"]);
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

/// Each end of a job wakes one waiter. What that costs etcd does not depend on the length of the
/// queue. Waiters also read the queue now and then, and more turns take more time: hence the
/// allowance for a slow machine. If every waiter read the queue in each turn, that alone would be
/// half the length of the queue on average.
#[test]
fn a_turn_costs_the_same_however_many_wait() {
    let (world, etcd) = own_cluster(1, &[]);
    let few = cost_of_a_turn(&world, &etcd, "few", 10);
    let waiters = if is_soak() { 200 } else { 40 };
    let many = cost_of_a_turn(&world, &etcd, "many", waiters);
    let allowance = f64::from(u32::try_from(waiters).expect("a few")) / 4.0;
    // The last number counts the events that etcd sends to watchers.
    let limits = [2.0 * few[0] + allowance, 2.0 * few[1] + allowance, 2.0 * few[2]];
    assert!(many.iter().zip(limits).all(|(many, limit)| *many < limit), "{many:?} of many, {few:?} of few");
}

/// Per turn, from the first to the last: writes of etcd, reads and writes, and events sent to
/// watchers.
fn cost_of_a_turn(world: &World, etcd: &Etcd, key: &str, waiters: usize) -> [f64; 3] {
    wait_until("nobody has a lease", || etcd.ctl(&["lease", "list"]) == "found 0 leases");
    let all = ["-t", "60s", "--op-timeout", "20s"];
    let script = format!("echo {key} >> log; while [ ! -e go.{key} ]; do sleep 0.1; done");
    let holder = world.run(key, &all, &script).any_stderr().spawn();
    world.wait_for_log(key);
    let run = |_| world.run(key, &[&["-w"], &all[..]].concat(), "true").any_stderr().spawn();
    let crowd: Vec<_> = (0..waiters).map(run).collect();
    let all = format!("found {} leases", waiters + 1);
    wait_until("all wait", || etcd.ctl(&["lease", "list"]).starts_with(&all));
    let count = || {
        let reads_and_writes = etcd.count("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\"");
        let told = etcd.count("etcd_debugging_mvcc_events_total");
        [etcd.count("etcd_server_proposals_applied_total"), reads_and_writes, told]
    };
    let before = count();
    world.write(&format!("go.{key}"), "");
    holder.finish();
    crowd.into_iter().for_each(|run| drop(run.finish()));
    let (after, turns) = (count(), f64::from(u32::try_from(waiters).expect("a few")));
    let [writes, all, told] = std::array::from_fn(|at| (after[at] - before[at]) / turns);
    println!("{waiters} wait: {writes:.1} writes, {all:.1} transactions and {told:.1} events a turn");
    [writes, all, told]
}

/// The whole crowd would not fit into one etcd transaction.
#[test]
#[ignore = "long; ./test --soak"]
fn a_crowd_of_readers_is_granted_the_lock() {
    hand_over_to_readers(&World::with_etcd());
}

#[test]
fn the_last_of_a_crowd_soon_notices_a_death_before_it() {
    notices_deaths(&World::with_etcd());
}

/// A cluster that is full cannot record the end of a run, and the message says so.
#[test]
fn a_cluster_that_is_full_is_named_at_the_end_of_a_run() {
    let (world, etcd) = own_cluster(1, &["--quota-backend-bytes=2000000"]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let big = "x".repeat(100_000);
    wait_within(OUTAGE, "it is full", || {
        drop(etcd.try_ctl(&["put", "big", &big]));
        etcd.ctl(&["alarm", "list"]).contains("NOSPACE").then_some(())
    });
    world.write("go", "");
    let said = holder.finish().stderr;
    assert!(said.contains("no space left") && said.contains("NOSPACE"), "{said}");
    assert_eq!(world.log(), ["up", "done"]);
}

/// Each refusal is counted in the record of the lock, so the refusals of a crowd conflict with each
/// other. Every client gets its answer all the same.
#[test]
fn a_crowd_that_does_not_wait_is_refused_as_busy() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    let url = world.url();
    let mut holder = Asker::new(etcd, &url);
    holder.holds();
    thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                let mut asker = Asker::new(etcd, &url);
                asker.store = EtcdStore::etcd(etcd.target(&url));
                for _ in 0..10 {
                    let ask = Ask {
                        token: Token::random().expect("a token"),
                        patience: Patience::None,
                        ..asker.ask()
                    };
                    // All tests share these members, and 60 clients ask at once.
                    let by = Moment::now().after(Duration::from_secs(60));
                    let answer = asker.store.acquire(&asker.names, &ask, by);
                    assert!(matches!(answer, Ok(Acquired::Busy(_))), "{answer:?}");
                }
            });
        }
    });
    holder.leaves();
}

/// After a crowd with random kills only the records are left: no session, no place in a queue, no
/// lease. A waiter that was suspended keeps its ticket for a while.
#[test]
fn a_storm_leaves_no_key_and_no_lease() {
    let (world, etcd) = own_cluster(1, &[]);
    storm(&world, 8, 25, &WISHES);
    wait_until("all leases have ended", || etcd.ctl(&["lease", "list"]) == "found 0 leases");
    assert_eq!(etcd.leftovers("/dlock"), [""; 0]);
}

/// Records that must stay, paused or held, do not keep the others from being removed. Among the
/// others are the record of a holder that died, and one of which runs are expected.
#[test]
fn records_unused_for_long_are_removed() {
    let (world, etcd) = own_cluster(1, &[]);
    let old = |key: &str| {
        let body = etcd.ctl(&["get", "--print-value-only", &format!("dlock/lock/dlock:{key}")]);
        let mut body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        body["used"] = 1.into();
        body
    };
    let put = |key: &str, body: &serde_json::Value| {
        etcd.ctl(&["put", &format!("dlock/lock/dlock:{key}"), &body.to_string()]);
    };
    let holder = world.run("k", &["-t", "60s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let held = old("k");
    world.write("go", "");
    holder.finish();
    let free = old("k");
    world.dlock(["pause", "p", "--reason", "the disk is changed"]).any_stderr().run();
    let paused = old("p");
    // More than one clean-up reads at once, and all changed before the rest.
    (0..70).for_each(|number| put(&format!("paused{number}"), &paused));
    ["gone1", "gone2"].into_iter().zip([&held, &free]).for_each(|(key, body)| put(key, body));
    let day = 24 * 60 * 60 * 1000;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time").as_millis() as u64;
    world.run("e", &["--once-per", "day"], "true").run();
    for (key, days) in [("expects", 399), ("gone3", 401)] {
        let mut expects = old("e");
        expects["used"] = (now - days * day).into();
        put(key, &expects);
    }
    put("held", &held);
    let token = held["record"]["holds"].as_object().and_then(|holds| holds.keys().next()).expect("a holder");
    etcd.ctl(&["put", &format!("dlock/session/dlock:held/{token}"), "60000"]);
    let mut asker = Asker::new(&etcd, "/dlock");
    wait_until("what is old is removed", || {
        asker.store.clean_up(in_time());
        !etcd.keys("/dlock").iter().any(|key| key.contains("gone"))
    });
    let keys = etcd.keys("/dlock");
    let kept = |begin: &str| keys.iter().filter(|key| key.starts_with(begin)).count();
    let kept = ["paused", "held", "expects"].map(|key| kept(&format!("dlock/lock/dlock:{key}")));
    assert_eq!(kept, [70, 1, 1], "{keys:?}");
}

/// etcd limits the number of operations in a transaction.
#[test]
fn many_locks_of_one_run_are_given_back_and_more_are_refused() {
    let (world, _etcd) = own_cluster(1, &[]);
    let keys = |count: usize| -> Vec<String> {
        (1..=count).flat_map(|number| ["-k".to_owned(), format!("m{number}")]).collect()
    };
    for count in [34, 100] {
        let keys = keys(count);
        let run = |job: &str| {
            let arguments = ["run".to_owned(), "--ttl".to_owned(), "5m".to_owned(), "-w".to_owned()];
            let job = ["--", "sh", "-c", job].map(str::to_owned);
            world.dlock(arguments.into_iter().chain(keys.clone()).chain(job)).any_stderr().spawn()
        };
        let holder = run("while [ ! -e go ]; do sleep 0.1; done");
        world.wait_for_state("m1", "held");
        // The release also touches the waiters of each lock; together that would be too much for
        // one transaction.
        let waiter = run("echo all >> log");
        let others: Vec<_> = (1..4)
            .map(|number| world.run(&format!("m{number}"), &["-w"], "true").any_stderr().spawn())
            .collect();
        for number in 1..4 {
            world.wait_for_waiters(&format!("m{number}"), 2);
        }
        world.write("go", "");
        holder.finish();
        waiter.finish();
        others.into_iter().for_each(|other| drop(other.finish()));
        world.wait_for_log("all");
        world.wait_for_state("m1", "free");
        world.wait_for_state(&format!("m{count}"), "free");
        for name in ["go", "log"] {
            std::fs::remove_file(world.path(name)).expect("it is there");
        }
    }
    let more = world.dlock(["run"]).args(keys(101)).args(["--", "sh", "-c", "echo ran >> log"]);
    let refused = more.status(78).any_stderr().run().stderr;
    assert!(refused.contains("cannot take more than 100 locks at once"), "{refused}");
    assert_eq!((world.lines("ran"), world.state("m101")), (0, "free".into()));
}

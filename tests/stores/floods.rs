//! A server, or another client that may write there, sends more than dlock reads: dlock stays small
//! and goes on where it can.

use crate::support::dlock::finish_all;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread;

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
/// Address space in bytes that is more than any process of dlock needs.
const SMALL: &str = "--as=400000000";

/// A list element longer than any reply that dlock accepts.
fn flood(world: &World, list: &str) {
    let bytes = "x".repeat(33 << 20);
    world.redis().ask::<i64>(&["RPUSH", list, &bytes]);
}

/// A waiter whose subscription is flooded reads the lock again, subscribes elsewhere, and keeps its
/// place.
#[test]
fn a_waiter_whose_subscription_is_flooded_keeps_its_place() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    let wait = |name: &str| {
        let run = world.run("k", &["-w"], &format!("echo {name} >> log"));
        run.under(&["prlimit", SMALL]).any_stderr().spawn()
    };
    let first = wait("first");
    world.wait_for_waiters("k", 1);
    let second = wait("second");
    world.wait_for_waiters("k", 2);
    let token: String =
        redis.ask::<Vec<String>>(&["ZRANGE", "dlock.queue:{dlock:k}:dlock:k", "0", "0"]).remove(0);
    let waiter = format!("dlock.waiter:{{dlock:k}}:dlock:k:{token}");
    let ear = || {
        let waiter = redis.get(&waiter).expect("it waits");
        serde_json::from_str::<serde_json::Value>(&waiter).expect("JSON")["connection"]
            .as_u64()
            .expect("a number")
    };
    for _ in 0..2 {
        let before = ear();
        flood(&world, &format!("dlock.wake:{{dlock:k}}:dlock:k:{token}:{before}"));
        wait_until("it listens elsewhere", || ear() != before);
    }
    world.write("go", "");
    finish_all(vec![holder, first, second]);
    assert_eq!(world.log(), ["up", "first", "second"]);
}

/// The same for a holder and for an observer.
#[test]
fn a_holder_and_a_watcher_outlive_a_flood() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let watch =
        world.dlock(["watch", "-v", "k"]).under(&["prlimit", SMALL]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    let run = world.run("k", &["-t", "1m"], HOLD).under(&["prlimit", SMALL]);
    let holder = run.status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let hears = |ear: &str| {
        wait_until("it listens", || redis.ask::<String>(&["INFO", "clients"]).contains("blocked_clients:2"));
        let watcher =
            || redis.ask::<Vec<String>>(&["ZRANGE", "dlock.watch:{dlock:k}:dlock:k", "0", "0"]).pop();
        let token = if ear == "watch" { watcher() } else { redis.get("dlock:k") };
        flood(&world, &format!("dlock.wake:{{dlock:k}}:dlock:k:{}:{ear}", token.expect("a token")));
    };
    hears("watch");
    hears("holder");
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    holder.finish();
    wait_until("the end is told", || watch.printed().lines().count() >= 2);
    watch.signal(rustix::process::Signal::TERM);
    watch.finish();
}

/// A SCAN cursor that never returns to 0: dlock stops at its limit and says so.
#[test]
fn a_listing_without_an_end_is_given_up() {
    let world = World::without_redis();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let store = format!("redis://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut words = BufReader::new(stream.try_clone().expect("a second end")).lines();
            for page in 0.. {
                // Reads up to COUNT's value: then the request is a SCAN.
                if !words.by_ref().any(|word| word.is_ok_and(|word| word == "1000")) {
                    break;
                }
                let mut reply = "*2\r\n$1\r\n7\r\n*1000\r\n".to_owned();
                for number in 0..1000 {
                    let key = format!("{page:0>400}-{number:0>5}");
                    let full = format!("dlock.hold:{{dlock:{key}}}:dlock:{key}");
                    reply += &format!("${}\r\n{full}\r\n", full.len());
                }
                if stream.write_all(reply.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    for command in ["status", "metrics", "watch"] {
        let dlock = world.dlock([command]).env("DLOCK_STORE", &store).under(&["prlimit", SMALL]);
        // The generated answers may take longer than a second on any machine.
        dlock
            .env("DLOCK_OP_TIMEOUT", "20s")
            .status(69)
            .stderr_like("dlock: .* has too many keys to list [^\n]*; name keys instead.*\n")
            .run();
    }
}

/// The heartbeats of waiters have a key of their own. A value of another type there belongs to
/// nobody and is replaced.
#[test]
fn a_foreign_value_in_place_of_the_heartbeats_is_replaced() {
    let world = World::new(Backend::Redis);
    let heard = "dlock.heard:{dlock:k}:dlock:k";
    let intrude = || {
        world.redis().ask::<()>(&["DEL", heard]);
        world.redis().ask::<()>(&["RPUSH", heard, "somebody's"]);
    };
    intrude();
    world.dlock(["status", "k"]).any_stdout().run();
    world.run("k", &[], "true").run();
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    intrude();
    wait_for("the waiter is heard of", || {
        Some(world.redis().ask::<String>(&["TYPE", heard])).filter(|kind| kind == "string")
    });
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "next"]);
}

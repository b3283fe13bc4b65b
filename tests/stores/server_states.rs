//! A server that answers but cannot serve: the message says so, and a job under a lock is not
//! stopped for it.

use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

/// A first contact ends with 69 and a line that names the fault.
#[track_caller]
fn unavailable(world: &World, says: &str) {
    for options in [&[][..], &["-w", "300ms"]] {
        let output =
            world.run("new", options, "touch ran").status(69).stderr_like("dlock: .*(\n.*)?\n").run();
        assert!(output.stderr.to_lowercase().contains(says), "it says {says:?}: {}", output.stderr);
        assert!(output.stderr.contains(&world.url()), "it names the store: {}", output.stderr);
    }
    assert!(!world.path("ran").exists());
}

#[test]
fn a_replica_is_read_only() {
    let world = World::with_redis(&["--replicaof", "127.0.0.1 1"]);
    unavailable(&world, "read-only");
}

/// A server that loads its data set from disk answers LOADING until it is done. A waiter could wait
/// for that, but not at its first contact.
#[test]
fn a_server_that_loads_says_so() {
    let mut world = World::with_redis(&[
        "--save",
        "3600",
        "1",
        "--rdbcompression",
        "no",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    // Uncompressed, each value is as long as the stretch after which the server serves its clients.
    world.redis().ask::<()>(&["DEBUG", "POPULATE", "2000", "x", "1024"]);
    world.redis().ask::<()>(&["SAVE"]);
    world.redis_mut().restart_with(&["--key-load-delay", "50000"]);
    unavailable(&world, "loading");
}

/// If each of thousands of holders connected again and again, loading would take even longer.
#[test]
fn a_server_that_loads_sees_few_connections_of_a_holder() {
    let mut world = World::with_redis(&["--save", "3600", "1", "--rdbcompression", "no"]);
    let proxy = Proxy::before(world.redis().port());
    world.use_store(proxy.url());
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "20s"], job).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<()>(&["DEBUG", "POPULATE", "2000", "x", "1024"]);
    world.redis().ask::<()>(&["SAVE"]);
    let before = proxy.connections();
    // It loads for some eight seconds; the next renewal is due after five.
    let options = ["--loading-process-events-interval-bytes", "1024", "--key-load-delay", "4000"];
    world.redis_mut().restart_with(&options);
    wait_until("the server has loaded", || world.redis().is_loaded());
    world.redis().after_renewal("dlock:k");
    // One or two for renewals, and those to listen, ever more seldom. One for each attempt would be
    // eighteen.
    let new = proxy.connections() - before;
    assert!(new <= 9, "{new} connections");
    world.write("go", "");
    holder.finish();
}

/// When it cannot write its snapshot, a server refuses all writes.
#[test]
fn a_server_that_cannot_persist_says_so() {
    let world = World::with_redis(&["--save", "1", "1", "--enable-protected-configs", "yes"]);
    // Its directory becomes one in which no user can write.
    world.redis().ask::<()>(&["CONFIG", "SET", "dir", "/proc"]);
    world.redis().ask::<()>(&["SET", "x", "y"]);
    wait_until("writes are refused", || {
        crate::support::redis::ask::<()>(&mut world.redis().connect(), &["SET", "x", "z"]).is_err()
    });
    unavailable(&world, "misconf");
}

/// Out of memory, a server refuses a new lock; the renewals and the release of a holder and the
/// grant of a waiter go on.
#[test]
fn memory_pressure_ends_no_job() {
    let world = World::new(Backend::Redis);
    let job = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "6s"], job).any_stderr().spawn();
    world.wait_for_log("up");
    let expecting = &["-w", "-t", "6s", "--expect", "day"];
    let waiter = world.run("k", expecting, "echo waited >> log; sleep 7").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.run("new", &["--expect", "day"], "true").run();
    world.redis().ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    unavailable(&world, "memory");
    for expected in ["hour", "0"] {
        world.run("new", &["--expect", expected], "true").status(69).any_stderr().run();
    }
    for _ in 0..5 {
        world.redis().after_renewal("dlock:k");
    }
    assert_eq!(world.state("k"), "held", "status goes on, too");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
    let status = world.status("k");
    assert_eq!(status["state"], "free");
    assert!(!status["last_run"].is_null(), "its end is on record: {status}");
}

/// Out of memory, a server still records the end of a lease that a newcomer is the first to notice.
#[test]
fn memory_pressure_hides_no_end() {
    let world = World::new(Backend::Redis);
    for mode in [&[][..], &["-s"], &["-n", "2"]] {
        let key = &format!("k{}", mode.concat());
        world.dlock(["acquire", "-k", key, "-t", "500ms"]).args(mode).any_stdout().any_stderr().run();
        wait_until("its lease is over", || world.redis().get(&format!("dlock:{key}")).is_none());
        world.redis().ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        drop(world.run(key, &[], "true").any_stderr().spawn().output());
        world.redis().ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        let history = world.dlock(["history", "--json", key]).any_stdout().run().stdout;
        assert!(history.contains("\"expired\""), "{key}: {history}");
        let metrics = world.dlock(["metrics", key]).any_stdout().run().stdout;
        let expired =
            |line: &str| line.starts_with("dlock_last_end_timestamp_seconds") && line.contains("\"expired\"");
        assert!(metrics.lines().any(expired), "{key}: {metrics}");
    }
}

/// Out of memory, a server still lets an operator take a lock away.
#[test]
fn memory_pressure_stops_no_operator() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; exec sleep 1000";
    let holder = world.run("k", &["-t", "6s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    unavailable(&world, "memory");
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    holder.finish();
    let status = world.status("k");
    assert_eq!(status["state"], "free");
    assert!(!status["last_run"].is_null(), "what the operator did is on record: {status}");
}

/// The evicted record says which slot each holder has; that the slots are taken is still known.
#[test]
fn an_evicted_record_gives_no_slot_away() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &["-n", "2", "-t", "1m"], "echo up >> log; exec sleep 1000");
    let holder = holder.status(79).any_stderr().spawn();
    world.wait_for_log("up");
    assert_eq!(world.redis().ask::<i64>(&["DEL", "dlock.hold:{dlock:k}:dlock:k"]), 1);
    world.run("k", &["-n", "2"], "echo second >> log").status(75).stderr_like("dlock: k .*\n").run();
    holder.signal(Signal::TERM);
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// The lock key alone decides: a server that evicts the records beside it takes no lock away.
#[test]
fn an_evicted_record_ends_no_hold() {
    let world = World::new(Backend::Redis);
    let job =
        "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 7";
    let holder = world.run("k", &["-t", "6s"], job).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    for _ in 0..2 {
        assert_eq!(world.redis().ask::<i64>(&["DEL", "dlock.hold:{dlock:k}:dlock:k"]), 1);
        world.redis().after_renewal("dlock:k");
    }
    let hold: Vec<String> = world.redis().ask(&["HVALS", "dlock.hold:{dlock:k}:dlock:k"]);
    let hold: Value = serde_json::from_str(&hold[0]).unwrap();
    assert_eq!(hold["since"], hold["fence"], "a tick counts from the grant, not from the renewal: {hold}");
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
    assert_eq!(world.state("k"), "free");
}

/// Until the next renewal the store knows no fence of the hold, or an older one: the caller's counts.
#[test]
fn a_hold_whose_record_was_evicted_is_still_held() {
    let world = World::new(Backend::Redis);
    let check = format!(
        "echo up >> log; until [ -e evicted ]; do sleep 0.1; done; {BINARY} check && echo held >> log"
    );
    let run = world
        .dlock(["run", "-k", "k", "-k", "l", "-t", "10m", "--", "sh", "-c", &check])
        .any_stderr()
        .spawn();
    world.wait_for_log("up");
    for key in ["dlock.hold:{dlock:k}:dlock:k", "dlock.fence:{dlock:k}:dlock:k"] {
        assert_eq!(world.redis().ask::<i64>(&["DEL", key]), 1);
    }
    world.write("evicted", "");
    run.finish();
    assert_eq!(world.log(), ["up", "held"]);
}

/// A server that has forgotten the scripts gets them again.
#[test]
fn forgotten_scripts_are_sent_again() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "8s"], job).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w", "-t", "8s"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.redis().ask::<()>(&["SCRIPT", "FLUSH"]);
    world.redis().after_renewal("dlock:k");
    world.redis().ask::<()>(&["SCRIPT", "FLUSH"]);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

/// A waiter asks from time to time if an administrator has taken BLPOP away, and so does a holder.
#[test]
fn without_blpop_a_waiter_waits_and_a_holder_is_asked_to_end() {
    let world = World::with_redis(&["--rename-command", "BLPOP", ""]);
    let holder = world.run("k", &["-t", "1m"], "echo up >> log; exec sleep 1000").status(79).any_stderr();
    let holder = holder.spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "-y"]).any_stdout().any_stderr().run();
    holder.finish();
    let said = waiter.finish().stderr;
    assert!(!said.contains("unknown command"), "{said}");
    assert_eq!(world.log(), ["up", "waited"]);
}

/// Connections closed by the server or a device between are opened again, without a message.
#[test]
fn closed_connections_are_opened_again() {
    let world = World::new(Backend::Redis);
    let job = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    // Two late renewals in a row on a busy machine would be reported.
    let holder = world.run("k", &["-t", "8s"], job).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    for _ in 0..3 {
        world.redis().ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        world.redis().after_renewal("dlock:k");
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

/// An interrupted read is no failure: the kernel interrupts reads that have a timeout when a
/// process continues (SIGCONT).
#[test]
fn a_stop_during_the_first_contact_is_no_outage() {
    let world = World::new(Backend::Redis);
    world.redis().pause();
    let mut holder = world.run("k", &["--op-timeout", "1m"], "exit 3").status(3).spawn();
    for _ in 0..20 {
        sleep(Duration::from_millis(20));
        holder.signal(Signal::STOP);
        wait_until("dlock stops", || proc::stopped(holder.pid()) || holder.has_ended());
        holder.signal(Signal::CONT);
    }
    world.redis().resume();
    holder.finish();
}

/// Every key that dlock leaves in a server expires, at every stage of a lock.
#[test]
fn every_key_has_an_end() {
    let world = World::new(Backend::Redis);
    let all_end = |stage: &str| {
        for key in world.redis().keys() {
            let left = world.redis().ask::<i64>(&["PTTL", &key]);
            // -2: the key has expired since.
            assert!(left > 0 || left == -2, "{stage}: {key} has no end");
        }
    };
    let holder = world
        .run("k", &["--min-hold", "2m"], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done")
        .spawn();
    world.wait_for_log("up");
    all_end("held");
    let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    all_end("waited for");
    world.write("go", "");
    holder.finish();
    all_end("cooling");
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    waiter.finish();
    all_end("free");
    let other =
        world.run("l", &["-t", "6s"], "echo other >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_log("other");
    world.dlock(["release", "l", "--force"]).any_stdout().any_stderr().run();
    all_end("revoked");
    other.finish();
    all_end("at the end");
    let kinds = wait_for("records", || Some(world.redis().keys()).filter(|keys| !keys.is_empty()));
    assert!(kinds.iter().all(|key| key.starts_with("dlock")), "one pattern for the server's ACL: {kinds:?}");
}

/// Forged waiters cost the server no time, and lead no script to a key that is not dlock's.
#[test]
fn forged_waiters_are_not_served() {
    let world = World::new(Backend::Redis);
    let forge = |mode: &str, names: &str| {
        let (queue, waiter) = ("dlock.queue:{dlock:k}:dlock:k", "dlock.waiter:{dlock:k}:dlock:k:evil");
        world.redis().ask::<()>(&["ZADD", queue, "1", "evil"]);
        let forged = format!(
            r#"{{"ticket":"1","since":"1","stale_at":99999999999999,"connection":0,"owner":{{}},"terms":{{}},"mode":{mode},"names":{names}}}"#
        );
        world.redis().ask::<()>(&["SET", waiter, &forged]);
    };
    let own = r#"["{dlock:k}:dlock:k"]"#;
    for (mode, names) in [
        (r#""slots/2147483647""#, own),
        (r#""exclusive""#, r#"["{dlock:k}:dlock:k","{victim}:victim"]"#),
        (r#""exclusive""#, r#"["{dlock:k}:dlock:k","{dlock:k}:victim"]"#),
        (r#""exclusive""#, r#"["{dlock:k}:dlock:k","{dlock.hold:x}:dlock.hold:x"]"#),
        (r#""exclusive""#, r#"["{dlock:k}:dlock:k",{"a":1}]"#),
        (r#""exclusive""#, "[]"),
        (r#""exclusive""#, "{"),
        (r#""everything""#, own),
        ("5", own),
        (r#"{"slots":2}"#, own),
    ] {
        forge(mode, names);
        world.run("k", &["-w", "20s"], "true").any_stderr().run();
        assert_eq!(world.state("k"), "free", "{mode} {names}");
    }
    world.redis().ask::<()>(&["SET", "dlock:k", "dlock/slots/2147483647:99999999999999", "PX", "60000"]);
    world.run("k", &["-n", "2"], "true").status(75).any_stderr().run();
    let mut others = world.redis().keys();
    others.retain(|key| !key.ends_with(":dlock:k") && !key.contains(":dlock:k:") && key != "dlock:k");
    assert!(others.is_empty(), "{others:?}");
}

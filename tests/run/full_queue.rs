//! The queue of a lock takes a thousand waiters. The next run is refused at once, also with `--wait`,
//! and those that wait keep their places.

use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use dlock::rules::QUEUE_MAX;
use serde_json::Value;

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
const QUEUE: &str = "dlock.queue:{dlock:k}:dlock:k";

/// Writes waiters for `k` into Redis, behind all others.
fn fill(world: &World, waiters: usize) {
    let script = r#"
        local now = redis.call('TIME')[1]
        for at = 1, ARGV[1] do
            local token = string.format('%032x', at)
            redis.call('ZADD', 'dlock.queue:{dlock:k}:dlock:k', (now + 900) .. '000000', token)
            local waiter = { ticket = (now + 900) .. '000000', since = now .. '000000', stale_at = (now + 900) * 1000,
                mode = 'exclusive', names = { '{dlock:k}:dlock:k' }, owner = { host = 'h' }, terms = { replaces = false } }
            redis.call('SET', 'dlock.waiter:{dlock:k}:dlock:k:' .. token, cjson.encode(waiter), 'EX', 900)
        end"#;
    world.redis().ask::<()>(&["EVAL", script, "0", &waiters.to_string()]);
}

#[test]
fn the_next_run_is_refused_and_the_waiters_stay() {
    let world = World::new(Backend::Redis);
    let redis = world.redis();
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    fill(&world, QUEUE_MAX - 2);
    let last = world.run("k", &["-w"], "echo last >> log").any_stderr().spawn();
    let length = || redis.ask::<usize>(&["ZCARD", QUEUE]);
    wait_until("the queue is full", || length() == QUEUE_MAX);

    let said = "dlock: k in [^ ]* is busy: the queue is full: 1,000 wait; held by .*; the command did not run; try later\n";
    for options in [&["-w"][..], &["-w", "1h"], &["-w", "1h", "-k", "l"], &["-w", "--replace"]] {
        let said = if options.contains(&"-k") {
            said.replacen(" is", " .wanted together with l. is", 1)
        } else {
            said.into()
        };
        world.run("k", options, "echo ran >> log").status(75).stderr_like(&said).run();
    }
    let said = said.replace("; the command did not run", "");
    world.dlock(["acquire", "-k", "k", "-w", "1h"]).status(75).stderr_like(&said).run();
    // A run that does not wait need not know.
    let said = "dlock: k in [^ ]* is busy: held by .*; -w waits for it\n";
    world.run("k", &[], "echo ran >> log").status(75).stderr_like(said).run();

    let json = world.run("k", &["-w", "--log-format", "json"], "true").status(75).any_stderr().run().stderr;
    let event: Value = serde_json::from_str(&json).expect("one message");
    assert_eq!(
        (&event["event"], &event["ahead"], &event["status"]),
        (&"busy".into(), &QUEUE_MAX.into(), &75.into())
    );
    assert!(event["holder"]["pid"].is_number(), "{event}");
    let refused = world.dlock(["history", "k", "--refused", "--json"]).any_stdout().run().stdout;
    let refused: Vec<Value> = serde_json::from_str(&refused).expect("JSON");
    let full = refused.iter().filter(|one| one["why"] == "queue-full");
    assert_eq!(full.count(), 6, "{refused:?}");
    let refused = world.dlock(["history", "k", "--refused"]).any_stdout().run().stdout;
    assert!(refused.contains("the queue was full: held by "), "{refused}");

    assert_eq!(length(), QUEUE_MAX, "they wait on");
    redis.ask::<()>(&[
        "EVAL",
        "for at = 1, ARGV[1] do redis.call('ZREM', KEYS[1], string.format('%032x', at)) end",
        "1",
        QUEUE,
        &QUEUE_MAX.to_string(),
    ]);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    last.finish();
    assert_eq!(world.log(), ["up", "waited", "last"]);
}

/// Waiters that died at the end of a full queue make room, also if nobody waits behind them.
#[test]
fn dead_waiters_keep_nobody_out() {
    let world = World::new(Backend::Redis);
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    fill(&world, QUEUE_MAX);
    world.run("k", &["-w"], "true").status(75).any_stderr().run();
    let script = r#"
        for at = 1, ARGV[1] do redis.call('DEL', 'dlock.waiter:{dlock:k}:dlock:k:' .. string.format('%032x', at)) end"#;
    world.redis().ask::<()>(&["EVAL", script, "0", &QUEUE_MAX.to_string()]);
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    assert_eq!(world.redis().ask::<usize>(&["ZCARD", QUEUE]), 2);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    next.finish();
    assert_eq!(world.log(), ["up", "waited", "next"]);
}

//! Several locks for one command: all or none, with one token and one fence, and without deadlock.

use crate::support::dlock::{BINARY, Dlock, finish_all};
use crate::support::storm::{Wish, runs, storm};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use serde_json::{Value, json};
use std::thread;

on_every_store!(
    all_are_held_by_one_hold,
    all_or_none,
    the_same_key_twice_is_one,
    nothing_is_held_while_the_rest_is_waited_for,
    the_order_of_arrival_is_kept_in_each_queue,
    opposite_orders_never_deadlock,
    several_locks_are_lost_together,
    locks_left_after_a_loss_are_released,
    a_min_hold_keeps_them_all,
    shared_and_slots_over_several,
    several_keys_under_fire,
);

fn hold(name: &str) -> String {
    format!("echo {name} >> log; while [ ! -e {name}.go ]; do sleep 0.1; done")
}

/// `dlock run` on several keys.
fn on<'w>(world: &'w World, keys: &[&str], options: &[&str], script: &str) -> Dlock<'w> {
    let keys = keys.iter().flat_map(|key| ["-k", *key]);
    world.dlock(["run"]).args(keys).args(options).args(["--", "sh", "-c", script])
}

/// Keys whose variables no command could be started with are refused before anything is asked, also
/// if they come together in a nested run.
#[test]
fn more_keys_than_a_variable_can_have_are_refused() {
    let world = World::without_redis();
    let keys = |from: usize, to: usize| (from..to).map(|n| format!("{n:0490}")).collect::<Vec<_>>();
    let dead = ["--store", "redis://127.0.0.1:1"];
    let call = |command: &str, keys: &[String], options: &[&str]| {
        let keys = keys.iter().flat_map(|key| ["-k", key.as_str()]);
        world.dlock([command]).args(keys).args(options)
    };
    let many = keys(0, 300);
    let run = call("run", &many, &dead).args(["--", "touch", "ran"]).status(64).any_stderr().run().stderr;
    assert!(run.contains("DLOCK_HELD 145 KiB long") && run.contains("the command did not run"), "{run}");
    let acquire = call("acquire", &many, &dead).args(["--export"]).status(64);
    let acquire = acquire.stdout("exit 64\n").any_stderr().run().stderr;
    assert!(acquire.contains("DLOCK_HELD 145 KiB long") && acquire.contains("not acquired"), "{acquire}");
    let pid = std::process::id().to_string();
    let hold = call("hold", &many, &dead).args(["--pid", &pid, "--background", "--env-file", "env"]);
    let hold = hold.status(64).any_stderr().run().stderr;
    assert!(hold.contains("DLOCK_HELD 145 KiB long") && hold.contains("nothing is held"), "{hold}");
    let inner: String = keys(1000, 1130).iter().map(|key| format!(" -k {key}")).collect();
    let script = format!("{BINARY} run{inner} -- touch ran 2> said; echo $? > status; exec true");
    call("run", &keys(0, 130), &["--", "sh", "-c", &script]).run();
    assert_eq!(world.read("status"), "64\n", "{}", world.read("said"));
    assert!(world.read("said").contains("no command can be started"), "{}", world.read("said"));
    // As many as fit.
    call("run", &keys(0, 240), &["--", "touch", "ran"]).run();
    assert!(world.path("ran").exists());
}

fn all_are_held_by_one_hold(backend: Backend) {
    let world = World::new(backend);
    let script =
        format!("env | grep ^DLOCK_ | sort > env; printf '%s\\n' \"$DLOCK_KEYS\" > keys; {}", hold("up"));
    let run = on(&world, &["c", "a", "b"], &["--report", "r.json"], &script).spawn();
    world.wait_for_log("up");
    let env = world.read("env");
    let value = |name: &str| {
        let line = env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("{name} in {env}")).to_owned()
    };
    assert_eq!(value("DLOCK_KEY"), "c", "the first given");
    assert_eq!(world.read("keys"), "c\na\nb\n");
    let held: Value = serde_json::from_str(&value("DLOCK_HELD")).expect("JSON");
    assert_eq!(held[0]["keys"], json!(["c", "a", "b"]));
    assert_eq!(held[0]["token"], value("DLOCK_TOKEN"));
    assert_eq!(held.as_array().map(Vec::len), Some(1));
    for key in ["a", "b", "c"] {
        let status = world.status(key);
        assert_eq!(status["holders"][0]["pid"], run.pid(), "{status}");
        assert_eq!(status["fence"].to_string(), value("DLOCK_FENCE"), "one fence for all");
    }
    world.write("up.go", "");
    run.finish();
    assert!(["a", "b", "c"].iter().all(|key| world.state(key) == "free"));
    let report: Value = serde_json::from_str(&world.read("r.json")).expect("JSON");
    assert_eq!((&report["key"], &report["keys"]), (&json!("c"), &json!(["c", "a", "b"])));
    assert_eq!(report["fence"].to_string(), value("DLOCK_FENCE"));
}

fn all_or_none(backend: Backend) {
    let world = World::new(backend);
    let holder = on(&world, &["b"], &[], &hold("up")).spawn();
    world.wait_for_log("up");
    let busy = r"dlock: b in .* \(wanted together with a and c\) is busy: held by .*@.*; the command did not run; .*\n";
    on(&world, &["a", "b", "c"], &[], "echo ran >> log").status(75).stderr_like(busy).run();
    on(&world, &["c", "b", "a"], &["-w", "100ms"], "echo ran >> log").status(75).any_stderr().run();
    for key in ["a", "c"] {
        assert_eq!((world.state(key), world.waiters(key)), ("free".into(), 0));
        world.run(key, &[], "true").run();
    }
    assert_eq!(world.waiters("b"), 0);
    world.write("up.go", "");
    holder.finish();
    on(&world, &["a", "b", "c"], &[], "echo ran >> log").run();
    assert_eq!(world.log(), ["up", "ran"]);
}

fn the_same_key_twice_is_one(backend: Backend) {
    let world = World::new(backend);
    let told = "printf '%s\\n' \"$DLOCK_KEYS\"";
    on(&world, &["b", "a", "b", "a"], &[], told).stdout("b\na\n").run();
    on(&world, &["k", "k"], &[], told).stdout("k\n").run();
}

fn nothing_is_held_while_the_rest_is_waited_for(backend: Backend) {
    let world = World::new(backend);
    let holder = on(&world, &["b"], &[], &hold("up")).spawn();
    world.wait_for_log("up");
    let waiter = on(&world, &["a", "b"], &["-w"], "echo both >> log").any_stderr().spawn();
    world.wait_for_waiters("b", 1);
    assert_eq!((world.state("a"), world.waiters("a")), ("free".into(), 1));
    // The waiter is first in the queue of `a`, so a newcomer does not overtake it.
    on(&world, &["a"], &[], "echo overtook >> log").status(75).stderr_like("dlock: a .*\n").run();
    world.write("up.go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "both"]);
}

fn the_order_of_arrival_is_kept_in_each_queue(backend: Backend) {
    let world = World::new(backend);
    let first = on(&world, &["a", "b", "c"], &[], &hold("up")).spawn();
    world.wait_for_log("up");
    let mut counts = [0; 3];
    let sets: [&[&str]; 7] =
        [&["a"], &["b", "a"], &["b"], &["c", "b"], &["a", "c"], &["c"], &["c", "a", "b"]];
    let crowd = sets.map(|keys| {
        let script = format!("echo start {0} >> log; sleep 0.1; echo end {0} >> log", keys.concat());
        let waiter = on(&world, keys, &["-w"], &script).any_stderr().spawn();
        for key in keys {
            let at = usize::from(key.as_bytes()[0] - b'a');
            counts[at] += 1;
            world.wait_for_waiters(key, counts[at]);
        }
        waiter
    });
    world.write("up.go", "");
    first.finish();
    finish_all(crowd);
    let log = world.log();
    let at = |line: String| log.iter().position(|logged| *logged == line).expect("it ran");
    for (earlier, keys) in sets.iter().enumerate() {
        for others in &sets[earlier + 1..] {
            if keys.iter().any(|key| others.contains(key)) {
                let (end, start) =
                    (at(format!("end {}", keys.concat())), at(format!("start {}", others.concat())));
                assert!(end < start, "{keys:?} before {others:?}: {log:?}");
            }
        }
    }
}

fn opposite_orders_never_deadlock(backend: Backend) {
    let world = World::new(backend);
    let job = "mkdir inside || echo overlap >> log; echo ran >> log; rmdir inside";
    let orders: [&[&str]; 4] = [&["a", "b"], &["b", "a"], &["c", "b", "a"], &["a", "b", "c"]];
    thread::scope(|scope| {
        for order in orders {
            let world = &world;
            scope.spawn(move || {
                for _ in 0..runs(15) {
                    on(world, order, &["-w"], job).any_stderr().run();
                }
            });
        }
    });
    assert_eq!((world.lines("ran"), world.lines("overlap")), (orders.len() * runs(15), 0));
}

fn several_locks_are_lost_together(backend: Backend) {
    let world = World::new(backend);
    let lost = "dlock: the hold of a and b in .*; the command is being stopped\n|dlock: .*took the hold of a and b .*\n";
    let run = on(&world, &["a", "b"], &["-t", "6s"], &hold("up")).status(79).stderr_like(lost).spawn();
    world.wait_for_log("up");
    world.dlock(["release", "b", "--force"]).any_stderr().run();
    run.finish();
    assert!(["a", "b"].iter().all(|key| world.state(key) == "free"), "it gave back what was left");
}

/// If one of several locks is lost, the others are released at once, not when their lease ends.
fn locks_left_after_a_loss_are_released(backend: Backend) {
    let world = World::new(backend);
    let lost = "dlock: .* took the hold of a and b in .* away; the command is being stopped\n";
    let run = on(&world, &["a", "b"], &["-t", "8s"], &hold("up")).status(79).stderr_like(lost).spawn();
    world.wait_for_log("up");
    world.dlock(["release", "b", "--force", "--now", "-y"]).any_stderr().run();
    run.finish();
    assert_eq!((world.state("a"), world.state("b")), ("free".into(), "free".into()));
}

fn a_min_hold_keeps_them_all(backend: Backend) {
    let world = World::new(backend);
    on(&world, &["a", "b"], &["--min-hold", "1m"], "true").run();
    assert!(["a", "b"].iter().all(|key| world.state(key) == "cooling"));
    on(&world, &["b", "c"], &[], "true").status(75).stderr_like("dlock: b .*--min-hold.*\n").run();
    on(&world, &["c"], &[], "true").run();
}

fn shared_and_slots_over_several(backend: Backend) {
    let world = World::new(backend);
    let reader = on(&world, &["a", "b"], &["-s"], &hold("reader")).spawn();
    world.wait_for_log("reader");
    let other = on(&world, &["b", "c"], &["-s"], &hold("other")).spawn();
    world.wait_for_log("other");
    on(&world, &["c", "a"], &[], "true").status(75).any_stderr().run();
    world.write("reader.go", "");
    world.write("other.go", "");
    reader.finish();
    other.finish();
    // The slot has the same number in all keys, and no other run has it in any of them.
    let told =
        |name: &str| format!("echo {name} $DLOCK_SLOT >> log; while [ ! -e slots.go ]; do sleep 0.1; done");
    let first = on(&world, &["a"], &["-n", "3"], &told("first")).spawn();
    world.wait_for_log("first 0");
    let second = on(&world, &["b", "a"], &["-n", "3"], &told("second")).spawn();
    world.wait_for_log("second 1");
    let third = on(&world, &["b"], &["-n", "3"], &told("third")).spawn();
    world.wait_for_log("third 0");
    for key in ["a", "b"] {
        let holders = world.status(key)["holders"].as_array().map(Vec::len);
        assert_eq!(holders, Some(2));
    }
    world.write("slots.go", "");
    finish_all([first, second, third]);
    wait_until("all are free", || ["a", "b", "c"].iter().all(|key| world.state(key) == "free"));
}

fn several_keys_under_fire(backend: Backend) {
    let world = World::new(backend);
    let wishes = [
        Wish { keys: &["a", "b"], options: &[], kind: "alone" },
        Wish { keys: &["b", "a"], options: &["-s"], kind: "shared" },
        Wish { keys: &["c", "a"], options: &[], kind: "alone" },
        Wish { keys: &["b", "c"], options: &["-s"], kind: "shared" },
        Wish { keys: &["b"], options: &["-n", "2"], kind: "slot" },
        Wish { keys: &["c", "b", "a"], options: &["-n", "2"], kind: "slot" },
    ];
    storm(&world, 6, 20, &wishes);
}

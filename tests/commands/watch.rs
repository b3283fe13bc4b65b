//! `dlock watch`: events of locks as they happen; each event once, even across an outage.

mod watch_outages;

use crate::run::lease::forget;
use crate::support::dlock::{BINARY, Running};
use crate::support::proc;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::{Value, json};

on_every_store!(
    every_kind_of_event,
    a_crashed_holder,
    holders_side_by_side,
    all_locks_and_new_ones,
    lines_for_people,
    what_the_store_forgot_is_lost_though_another_is_granted_it,
    signals_end_it,
    an_ignored_signal_does_not_end_it,
    other_signals_act_as_they_did,
    it_ends_when_its_reader_does,
    many_runs_are_each_reported_once,
    a_short_run_of_several_locks_is_reported_for_each,
);

const HOLD: &str = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";

/// Starts `dlock watch`, and waits until it watches.
#[track_caller]
fn watch(world: &World, arguments: &[&str]) -> Running {
    let watch = world.dlock(["watch", "-v"]).args(arguments).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    watch
}

/// The events that it has printed so far.
fn events(watch: &Running) -> Vec<Value> {
    let lines = watch.printed();
    let whole = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn words(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a word")).collect()
}

/// Waits until `count` events were printed, and returns them.
#[track_caller]
fn wait_for_events(watch: &Running, count: usize) -> Vec<Value> {
    wait_for(&format!("{count} events"), || Some(events(watch)).filter(|events| events.len() >= count))
}

/// Ends it, and returns all its events.
#[track_caller]
fn end(watch: Running) -> Vec<Value> {
    watch.signal(Signal::TERM);
    let output = watch.finish();
    output.stdout.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn every_kind_of_event(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], "exit 9").status(9).run();
    let watch = watch(&world, &["k", "--json"]);
    world.run("k", &["--reason", "why"], "exit 0").run();
    world.run("k", &[], "kill -TERM $$").dies_of(15).run();
    world.run("other", &[], "exit 0").run();
    wait_for_events(&watch, 4);

    let holder = world.run("k", &["-t", "1m"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    wait_for_events(&watch, 5);
    world.run("k", &[], "true").status(75).any_stderr().run();
    wait_for_events(&watch, 6);
    let leaver = world.run("k", &["-w"], "true").dies_of(15).any_stderr().spawn();
    wait_for_events(&watch, 7);
    leaver.signal(Signal::TERM);
    leaver.finish();
    wait_for_events(&watch, 8);
    let waiter = world.run("k", &["-w"], "exit 3").status(3).any_stderr().spawn();
    wait_for_events(&watch, 9);
    world.dlock(["release", "k", "--force"]).any_stderr().run();
    holder.finish();
    waiter.finish();
    wait_for_events(&watch, 12);

    let events = end(watch);
    assert_eq!(
        words(&events),
        [
            "granted", "released", "granted", "released", "granted", "busy", "waiting", "left", "waiting",
            "forced", "granted", "released"
        ],
        "{events:#?}"
    );
    for event in &events {
        let fields = [
            "event",
            "at",
            "key",
            "host",
            "pid",
            "user",
            "command",
            "reason",
            "mode",
            "slots",
            "slot",
            "fence",
            "waited_ms",
            "held_ms",
            "exit_status",
            "signal",
            "by",
            "count",
        ];
        let object = event.as_object().expect("an object");
        let mut shown: Vec<_> = object.keys().map(String::as_str).collect();
        let mut wanted = fields.to_vec();
        shown.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(shown, wanted);
        assert_eq!(event["key"], "k");
        assert!(event["at"].as_str().is_some_and(|at| at.ends_with('Z') && at.contains('T')), "{event}");
    }
    assert_eq!((&events[0]["reason"], &events[4]["mode"]), (&json!("why"), &json!("exclusive")));
    assert_eq!((&events[1]["exit_status"], &events[1]["signal"]), (&json!(0), &Value::Null));
    assert_eq!((&events[3]["exit_status"], &events[3]["signal"]), (&Value::Null, &json!(15)));
    assert_eq!(events[0]["fence"], events[1]["fence"]);
    assert_eq!((&events[5]["pid"], &events[5]["count"]), (&Value::Null, &json!(1)));
    assert_eq!(events[6]["pid"], events[7]["pid"]);
    assert!(events[7]["waited_ms"].is_u64() && events[10]["waited_ms"].is_u64());
    assert_eq!(events[8]["pid"], events[10]["pid"]);
    assert_eq!(events[4]["fence"], events[9]["fence"]);
    assert!(events[9]["held_ms"].is_u64() && events[9]["by"]["pid"].is_u64(), "{}", events[9]);
    assert_eq!(events[11]["exit_status"], 3);
}

/// dlock and its guard are dead, and no other run notices. The event comes all the same.
fn a_crashed_holder(backend: Backend) {
    let world = World::new(backend);
    let watch = watch(&world, &["k", "--json"]);
    let crashed = world.run("k", &["-t", "5s"], HOLD).any_stderr().spawn();
    world.wait_for_log("up");
    wait_for_events(&watch, 1);
    let pids = [crashed.guard(), crashed.pid()];
    pids.into_iter().for_each(|pid| proc::signal(pid, Signal::STOP));
    pids.into_iter().for_each(|pid| proc::signal(pid, Signal::KILL));
    wait_for_events(&watch, 2);
    // The next run writes the end into the log. That causes no second event.
    world.run("k", &[], "exit 0").run();
    wait_for_events(&watch, 4);
    assert_eq!(words(&end(watch)), ["granted", "expired", "granted", "released"]);
}

fn holders_side_by_side(backend: Backend) {
    let world = World::new(backend);
    let watch = watch(&world, &["k", "--json"]);
    let holders: Vec<_> = (1..=2)
        .map(|number| {
            let holder = world.run("k", &["-n", "2"], HOLD).spawn();
            world.wait_for_lines("up", number);
            holder
        })
        .collect();
    wait_for_events(&watch, 2);
    let waiter = world.run("k", &["-n", "2", "-w"], HOLD).any_stderr().spawn();
    wait_for_events(&watch, 3);
    world.write("go", "");
    holders.into_iter().for_each(|holder| drop(holder.finish()));
    waiter.finish();
    wait_for_events(&watch, 7);
    let told = end(watch);
    for event in &told[..2] {
        assert_eq!((&event["mode"], &event["slots"]), (&json!("slots"), &json!(2)), "{event}");
    }
    assert_eq!((&told[0]["slot"], &told[1]["slot"]), (&json!(0), &json!(1)));
    assert_eq!((&told[2]["event"], &told[2]["mode"]), (&json!("waiting"), &json!("slots")));
    let count = |word: &str| told.iter().filter(|event| event["event"] == word).count();
    assert_eq!((count("granted"), count("released"), told.len()), (3, 3, 7), "{told:#?}");
}

fn all_locks_and_new_ones(backend: Backend) {
    let world = World::new(backend);
    world.run("old", &[], "exit 0").run();
    let watch = watch(&world, &["--json"]);
    world.run("old", &[], "exit 1").status(1).run();
    world.run("new", &[], "exit 2").status(2).run();
    world.run("else", &["--prefix", "other:"], "exit 3").status(3).run();
    wait_for_events(&watch, 4);
    // A new lock is watched like the others once it is known.
    world.run("new", &[], "exit 4").status(4).run();
    wait_for_events(&watch, 6);
    let told = end(watch);
    let ends: Vec<_> = told
        .iter()
        .filter(|event| event["event"] == "released")
        .map(|event| (event["key"].as_str().unwrap_or_default(), event["exit_status"].as_u64()))
        .collect();
    let mut sorted = ends.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [("new", Some(2)), ("new", Some(4)), ("old", Some(1))]);
    assert_eq!(told.len(), 6, "{told:#?}");
}

fn lines_for_people(backend: Backend) {
    let world = World::new(backend);
    let watch = watch(&world, &["k"]);
    world.run("k", &["--label", "a\x1b[31mred", "--reason", "why"], "exit 3").status(3).run();
    wait_until("two lines", || watch.printed().lines().count() == 2);
    watch.signal(Signal::INT);
    let output = watch.finish();
    let lines: Vec<_> = output.stdout.lines().collect();
    let time = r"\d\d:\d\d:\d\d ";
    let who = r"  .*@.* \(pid \d+\) 'a\\x1b\[31mred' \(why\)";
    for (line, pattern) in [
        (lines[0], format!("^{time}granted  k{who}$")),
        (lines[1], format!("^{time}released k{who}, held .*, exit 3$")),
    ] {
        assert!(regex_lite::Regex::new(&pattern).expect("a pattern").is_match(line), "{line}\n{pattern}");
    }
}

fn signals_end_it(backend: Backend) {
    let world = World::new(backend);
    for signal in [Signal::INT, Signal::TERM] {
        let watch = watch(&world, &[]);
        watch.signal(signal);
        assert_eq!(watch.finish().stdout, "");
    }
}

/// A signal that its caller ignores, such as ^C in a script's background, does not end it.
fn an_ignored_signal_does_not_end_it(backend: Backend) {
    let world = World::new(backend);
    for (ignored, signal) in [("trap '' INT", Signal::INT), ("trap '' HUP", Signal::HUP)] {
        let call = world.dlock(["watch", "--json", "-v"]).after_shell(ignored).any_stdout().any_stderr();
        let watch = call.spawn();
        wait_until("it watches", || watch.messages().contains("watching from now on"));
        watch.signal(signal);
        world.run("k", &[], "true").run();
        wait_for_events(&watch, 1);
        end(watch);
    }
}

/// HUP and QUIT kill it, as they would any program. A signal that its caller blocked ends it.
fn other_signals_act_as_they_did(backend: Backend) {
    let world = World::new(backend);
    for signal in [Signal::HUP, Signal::QUIT] {
        let call = world.dlock(["watch", "-v"]).after_shell("ulimit -c 0").any_stderr();
        let watch = call.dies_of(signal.as_raw()).spawn();
        wait_until("it watches", || watch.messages().contains("watching from now on"));
        watch.signal(signal);
        watch.finish();
    }
    let call = world.dlock(["watch", "-v"]).under(&["env", "--block-signal=TERM"]).any_stderr();
    let watch = call.spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    watch.signal(Signal::TERM);
    watch.finish();
}

/// The lock may be granted again before it is read. Two jobs run then, and nothing else says so.
fn what_the_store_forgot_is_lost_though_another_is_granted_it(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "6s"], HOLD).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let watch = watch(&world, &["k", "--json"]);
    forget(&world);
    world.run("k", &["-w"], "true").any_stderr().run();
    holder.finish();
    wait_until("the end of the second run", || words(&events(&watch)).contains(&"released"));
    let told = end(watch);
    let mut told: Vec<&str> =
        words(&told).into_iter().filter(|word| !["waiting", "left"].contains(word)).collect();
    told.sort_unstable();
    assert_eq!(told, ["granted", "lost", "released"]);
}

/// It ends at once, although the server has not answered yet.
#[test]
fn a_signal_ends_it_while_the_server_hangs() {
    let world = World::with_redis(&[]);
    world.redis().pause();
    let watch = world.dlock(["watch", "k", "--op-timeout", "1h"]).spawn();
    let pid = watch.pid();
    wait_until("it takes signals", || proc::catches(pid, Signal::TERM.as_raw()));
    watch.signal(Signal::TERM);
    wait_until("it is gone", || !proc::alive(pid));
    watch.finish();
    world.redis().resume();
}

/// It ends even if no event comes any more.
fn it_ends_when_its_reader_does(backend: Backend) {
    let world = World::new(backend);
    let mut shell = world.command("bash");
    let script =
        format!("{BINARY} watch -v k 2> err | head -n 1 > out; echo \"${{PIPESTATUS[0]}}\" > status");
    let mut shell = shell.args(["-c", &script]).env("DLOCK_STORE", world.url()).spawn().expect("bash");
    wait_until("it watches", || world.read("err").contains("watching from now on"));
    let holder = world.run("k", &["-t", "1m"], HOLD).spawn();
    wait_until("it ends", || world.read("status") == "0\n");
    assert!(world.read("out").contains("granted"), "{}", world.read("out"));
    shell.wait().expect("bash ends");
    world.write("go", "");
    holder.finish();
}

/// The runs are faster than the reads of `watch`, and more than the log keeps between two slow
/// reads.
fn many_runs_are_each_reported_once(backend: Backend) {
    let world = World::new(backend);
    let watch = watch(&world, &["k", "--json"]);
    let loops = "for i in $(seq 10); do \"$0\" run -q -w -k k -- true; done; echo done >> log";
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let mut shell = world.command("sh");
            shell.args(["-c", loops, BINARY]).env("DLOCK_STORE", world.url()).spawn().expect("sh")
        })
        .collect();
    for mut worker in workers {
        assert!(worker.wait().expect("sh ends").success());
    }
    let ended = |told: &[Value]| told.iter().filter(|event| event["event"] == "released").count();
    wait_until("all are told", || ended(&events(&watch)) >= 40);
    let told = end(watch);
    for word in ["granted", "released"] {
        let mut fences: Vec<_> =
            told.iter().filter(|event| event["event"] == word).map(|event| event["fence"].as_u64()).collect();
        assert!(fences.is_sorted(), "{word} in order");
        fences.dedup();
        assert_eq!(fences.len(), 40, "{word} once each");
    }
    // Every waiter was granted the lock, so none has left.
    assert!(told.iter().all(|event| event["event"] != "left"), "{told:#?}");
}

/// The run begins and ends between two reads, and has an event for each of its locks.
fn a_short_run_of_several_locks_is_reported_for_each(backend: Backend) {
    let world = World::new(backend);
    let watch = watch(&world, &["--json"]);
    world.run("a", &["-k", "b", "-k", "c"], "true").run();
    wait_for_events(&watch, 6);
    let told = end(watch);
    for key in ["a", "b", "c"] {
        let of_key: Vec<_> = told.iter().filter(|event| event["key"] == key).cloned().collect();
        assert_eq!(words(&of_key), ["granted", "released"], "{key}");
    }
}

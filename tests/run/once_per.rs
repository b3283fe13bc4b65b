//! `dlock run --once-per`: of all runs in one period exactly one succeeds, and the others end
//! without running, even if some runs fail or are killed.

use crate::support::dlock::{End, Running, finish_all};
use crate::support::masters::Masters;
use crate::support::sentinel::{Sentinel, admit_watchers, url};
use crate::support::storm::Dice;
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;
use std::thread;
use std::time::Duration;

on_every_store!(
    a_success_is_not_repeated,
    a_failure_is_no_success,
    waiters_leave_the_queue_after_a_success,
    a_stand_by_does_not_repeat_a_job_that_took_longer_than_the_period,
    the_next_run_starts_if_one_fails_or_is_killed,
    a_success_counts_while_another_run_holds_the_lock,
    several_keys_have_succeeded_if_each_has,
    a_nested_run_is_not_skipped,
    a_run_without_once_per_does_not_count,
    status_shows_the_last_success_of_any_run,
    a_success_that_comes_after_forget_counts_for_waiters,
    in_each_tick_one_succeeds,
    #[ignore = "long; ./test --soak"]
    in_a_thousand_ticks_one_succeeds,
);

const DONE: &str = "dlock: k in .* is done: .*@.* \\(pid \\d+\\) ran 'sh -c .*' from .* to .*, with status 0; \
    the command did not run; it is due again in 59m.* \\(--once-per\\), or after 'dlock forget k'\n";

fn a_success_is_not_repeated(backend: Backend) {
    done_once(&World::new(backend));
}

#[test]
fn a_quorum_and_a_cluster_remember_a_success() {
    for world in [World::on_a_quorum(), World::on_a_cluster()] {
        done_once(&world);
    }
}

/// A client with write access to the store can forge a success, but only a valid record skips a
/// run.
#[test]
fn an_invalid_record_of_success_skips_no_run() {
    let world = World::new(Backend::Redis);
    let now = (world.redis().ask::<Vec<u64>>(&["TIME"])[0] * 1000).to_string();
    let forged = |fence: &str, since: &str, ended: &str| {
        let success =
            format!(r#"{{"owner":{{"host":5}},"fence":"{fence}","since":"{since}","ended":"{ended}"}}"#);
        world.redis().ask::<()>(&["SET", "dlock.done:{dlock:k}:dlock:k", &success]);
    };
    let cases = [("1", "nan", &*now), ("1", &*now, "9e99"), ("1.5", &*now, &*now), ("1", "1e400", &*now)];
    for (number, (fence, since, ended)) in cases.into_iter().enumerate() {
        forged(fence, since, ended);
        world.dlock(["status", "k"]).any_stdout().run();
        world.run("k", &["--once-per", "1h"], "echo ran >> log").run();
        assert_eq!(world.log().len(), number + 1, "{fence} {since} {ended}");
    }
    forged("1", &now, &now);
    let said = "dlock: k in .* is done: \\?@\\? .*\n";
    world.run("k", &["--once-per", "1h"], "echo ran >> log").stderr_like(said).run();
    world.dlock(["status", "k"]).any_stdout().run();
    world.dlock(["forget", "k"]).run();
    world.dlock(["forget", "k"]).stderr_like("dlock: k in .*: nothing to forget, .*\n").run();
}

fn done_once(world: &World) {
    let once = |job: &str| world.run("k", &["--once-per", "1h", "--report", "report"], job);
    world.dlock(["forget", "k"]).any_stderr().run();
    world.run("k", &[], "echo test >> log").run();
    once("echo ran >> log").run();
    once("echo again >> log").stderr_like(DONE).run();
    let report: Value = serde_json::from_str(&world.read("report")).expect("a report");
    assert_eq!(
        (&report["outcome"], &report["started"], &report["status"]),
        (&"done".into(), &false.into(), &0.into())
    );
    world.run("k", &["-q", "--once-per", "1h"], "echo again >> log").run();
    world.run("k", &["-q", "--once-per", "1h", "-w"], "echo again >> log").run();
    // A run by hand does not move the time of the success.
    world.run("k", &[], "echo test >> log").run();
    assert_eq!(world.log(), ["test", "ran", "test"]);
    world.dlock(["run", "-q", "-k", "k", "--once-per", "1h", "--", "false"]).run();
    let success = &world.status("k")["last_success"];
    assert!(success["command"].as_str().is_some_and(|command| command.contains("test")), "{success}");
    let metrics = world.dlock(["metrics", "k"]).any_stdout().run().stdout;
    assert!(metrics.contains("dlock_done_total{key=\"k\"} 4\n"), "{metrics}");
    // The success is older than 10 ms.
    wait_until("a run is due again", || {
        world.run("k", &["-q", "--once-per", "10ms"], "echo due >> log").run();
        world.lines("due") > 0
    });
    world.dlock(["forget", "-v", "k"]).stderr_like("dlock: k in .* is due again: .*\n").run();
    world.dlock(["forget", "-v", "k"]).stderr_like("dlock: k in .*: nothing to forget, .*\n").run();
    once("echo forgotten >> log").run();
    assert_eq!(world.lines("forgotten"), 1);
}

fn a_failure_is_no_success(backend: Backend) {
    let world = World::new(backend);
    let once = |options: &[&str], job: &str| world.run("k", &[&["--once-per", "1h"], options].concat(), job);
    once(&[], "exit 3").status(3).run();
    once(&[], "kill -9 $$").dies_of(9).run();
    once(&["--max-run", "100ms"], "sleep 60").any_stderr().status(124).run();
    world.dlock(["run", "-k", "k", "--once-per", "1h", "no-such-command"]).any_stderr().status(127).run();
    // A hold that a script releases has no exit status.
    let token = world.dlock(["acquire", "-q", "-k", "k"]).any_stdout().run().stdout;
    world.write("token", &token);
    world.dlock(["release", "-q", "k", "--token-file", "token"]).run();
    once(&[], "echo ran >> log").run();
    once(&["-q"], "echo again >> log").run();
    assert_eq!(world.log(), ["ran"]);
}

/// Starts a run that holds the lock until `end` has content, and exits with the status in that
/// file.
fn runner(world: &World) -> Running {
    let job = "echo up >> log; until [ -s end ]; do sleep 0.1; done; exit $(cat end)";
    let runner = world.run("k", &["--once-per", "1h"], job).any_stderr().spawn();
    world.wait_for_log("up");
    runner
}

fn standing_by(world: &World, count: usize) -> Vec<Running> {
    let one = |_| world.run("k", &["--once-per", "1h", "-w"], "echo ran >> log").any_stderr().spawn();
    let waiters = (0..count).map(one).collect();
    world.wait_for_waiters("k", count);
    waiters
}

fn waiters_leave_the_queue_after_a_success(backend: Backend) {
    let world = World::new(backend);
    let runner = runner(&world);
    let waiters = standing_by(&world, 20);
    // A waiter without --once-per still gets the lock.
    let other = world.run("k", &["-w"], "echo other >> log").spawn();
    world.wait_for_waiters("k", 21);
    world.write("end", "0");
    assert_eq!(runner.output().end(), End::Status(0));
    finish_all(waiters);
    other.finish();
    assert_eq!(world.log(), ["up", "other"]);
    assert_eq!(world.waiters("k"), 0);
}

/// All of them arrive before the grant of the one that runs, which takes longer than the period.
fn a_stand_by_does_not_repeat_a_job_that_took_longer_than_the_period(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo held >> log; until [ -e end ]; do sleep 0.1; done").spawn();
    world.wait_for_log("held");
    let one =
        |_| world.run("k", &["--once-per", "100ms", "-w"], "sleep 0.3; echo ran >> log").any_stderr().spawn();
    let waiters: Vec<Running> = (0..3).map(one).collect();
    world.wait_for_waiters("k", 3);
    world.write("end", "");
    holder.finish();
    finish_all(waiters);
    assert_eq!(world.log(), ["held", "ran"]);
}

/// The first request of a run waits in the server's buffer for longer than the period. The run has
/// given it up, and says later how long it has waited.
#[test]
fn a_run_that_waited_for_the_server_does_not_repeat_the_one_before() {
    let world = World::new(Backend::Redis);
    let once =
        |script: &str| world.run("k", &["--once-per", "2s", "-w", "60s", "--op-timeout", "300ms"], script);
    once("echo ran >> log").any_stderr().run();
    world.redis().pause();
    let mut late = once("echo again >> log").any_stderr().spawn();
    wait_until("its first request is given up", || {
        late.messages().contains("trying again") || late.has_ended()
    });
    thread::sleep(Duration::from_secs(2));
    world.redis().resume();
    late.finish();
    assert_eq!(world.log(), ["ran"]);
}

/// Each of them has asked the masters before the grant of the one that runs.
#[test]
fn a_quorum_does_not_repeat_what_a_stand_by_waited_for() {
    let mut masters = Masters::aged(3);
    masters.use_own_store();
    let world = masters.world();
    let holder = world.run("k", &[], "echo held >> log; until [ -e end ]; do sleep 0.1; done").spawn();
    world.wait_for_log("held");
    let one =
        |_| world.run("k", &["--once-per", "100ms", "-w"], "sleep 0.3; echo ran >> log").any_stderr().spawn();
    let waiters: Vec<Running> = (0..3).map(one).collect();
    let asked = |at: usize| masters.at(at).ask::<usize>(&["HLEN", "dlock.turn:{dlock:k}:dlock:k"]);
    wait_until("all of them have asked", || (0..3).all(|at| asked(at) == 3));
    world.write("end", "");
    holder.finish();
    finish_all(waiters);
    assert_eq!(world.log(), ["held", "ran"]);
}

fn the_next_run_starts_if_one_fails_or_is_killed(backend: Backend) {
    for kill in [false, true] {
        let world = World::new(backend);
        let runner = runner(&world);
        let waiters = standing_by(&world, 5);
        if kill {
            runner.signal(Signal::KILL);
        } else {
            world.write("end", "1");
        }
        assert_ne!(runner.output().end(), End::Status(0));
        finish_all(waiters);
        assert_eq!(world.log(), ["up", "ran"]);
    }
}

fn a_success_counts_while_another_run_holds_the_lock(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &["--once-per", "1h"], "echo ran >> log").run();
    let holder = world.run("k", &[], "echo up >> log; until [ -e end ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    world.run("k", &["--once-per", "1h"], "echo again >> log").stderr_like(DONE).run();
    world.run("k", &["--once-per", "1h", "-w"], "echo again >> log").stderr_like(DONE).run();
    world.write("end", "");
    holder.finish();
    assert_eq!(world.log(), ["ran", "up"]);
}

fn several_keys_have_succeeded_if_each_has(backend: Backend) {
    let world = World::new(backend);
    let both = || world.run("k", &["-q", "-k", "l", "--once-per", "1h"], "echo both >> log");
    world.run("k", &["--once-per", "1h"], "true").run();
    both().run();
    assert_eq!(world.lines("both"), 1);
    both().run();
    assert_eq!(world.lines("both"), 1);
    world.dlock(["forget", "l"]).run();
    both().run();
    assert_eq!(world.lines("both"), 2);
}

fn a_nested_run_is_not_skipped(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &["--once-per", "1h"], "true").run();
    let inside = "dlock run -k k --once-per 1h -- sh -c 'echo inside >> log'";
    let inside = inside.replace("dlock", crate::support::dlock::BINARY);
    world.run("k", &[], &inside).stderr_like("dlock: .*, so this has no effect here: --once-per; .*\n").run();
    assert_eq!(world.lines("inside"), 1);
}

/// A test by hand must not cancel the nightly run.
fn a_run_without_once_per_does_not_count(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], "echo test >> log").run();
    world.run("k", &["--once-per", "20h"], "echo night >> log").run();
    world.run("k", &[], "echo test >> log").run();
    world.run("k", &["--once-per", "20h", "-q"], "echo again >> log").run();
    assert_eq!(world.log(), ["test", "night", "test"]);
}

fn status_shows_the_last_success_of_any_run(backend: Backend) {
    let world = World::new(backend);
    let last = || world.status("k")["last_success"].clone();
    assert!(last().is_null());
    world.run("k", &["--once-per", "1h", "--label", "night"], "true").run();
    assert_eq!(last()["command"], "night");
    world.run("k", &["--label", "test"], "true").run();
    world.run("k", &[], "exit 3").status(3).run();
    assert_eq!(last()["command"], "test");
    world.dlock(["forget", "k"]).run();
    assert_eq!(last()["command"], "test", "it did succeed");
    assert!(world.dlock(["status", "k"]).any_stdout().run().stdout.contains("succeeded  by "));
}

fn a_success_that_comes_after_forget_counts_for_waiters(backend: Backend) {
    let world = World::new(backend);
    let runner = runner(&world);
    let waiters = standing_by(&world, 3);
    world.dlock(["forget", "k"]).any_stderr().run();
    world.write("end", "0");
    runner.output();
    // The run that was under way succeeds after the forget, and that success counts.
    finish_all(waiters);
    assert_eq!(world.log(), ["up"]);
}

fn in_each_tick_one_succeeds(backend: Backend) {
    ticks(&World::new(backend), 1, 4, 10);
}

fn in_a_thousand_ticks_one_succeeds(backend: Backend) {
    let each = if matches!(backend, Backend::Redis | Backend::File) { 100 } else { 20 };
    ticks(&World::new(backend), 10, each, 8);
}

#[test]
#[ignore = "long; ./test --soak"]
fn in_many_ticks_behind_sentinels_one_succeeds() {
    let mut world = World::new(Backend::Redis);
    admit_watchers(world.redis());
    let sentinel = Sentinel::start(&world, world.redis().port(), 1, 0, "");
    world.use_store(url(&[sentinel.port()]));
    ticks(&world, 10, 20, 8);
}

/// The results of some ticks.
#[derive(Debug, Default)]
struct Tally {
    ticks: usize,
    killed: usize,
    /// Ticks in which one run succeeded.
    successes: usize,
    /// Ticks in which all runs were killed.
    deserted: usize,
}

/// Plays `ticks` ticks for each key; the keys run side by side. In each tick `machines` runs start,
/// and each of them may be killed at any moment. If one survives there is one success, and never
/// are there two.
fn ticks(world: &World, keys: usize, ticks: usize, machines: usize) {
    // This test makes the machine very busy, so an operation may take longer.
    world.write("config/dlock.toml", "op-timeout = \"10s\"\n");
    let all: Vec<Tally> = thread::scope(|scope| {
        let running: Vec<_> = (0..keys)
            .map(|key| scope.spawn(move || ticks_of(world, &format!("k{key}"), ticks, machines)))
            .collect();
        running.into_iter().map(|one| one.join().expect("its ticks are as they should be")).collect()
    });
    let sum = |count: fn(&Tally) -> usize| all.iter().map(count).sum::<usize>();
    let (killed, successes) = (sum(|tally| tally.killed), sum(|tally| tally.successes));
    println!(
        "{} ticks of {machines} machines, {killed} killed, {successes} successes, all killed in {}",
        sum(|tally| tally.ticks),
        sum(|tally| tally.deserted)
    );
}

fn ticks_of(world: &World, key: &str, ticks: usize, machines: usize) -> Tally {
    let (mut tally, mut last) = (Tally::default(), 0);
    let mut dice = Dice(key.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte)));
    let job = format!(
        "read -r other < {key}.holder && kill -0 $other 2> /dev/null && echo overlap >> log
        echo $$ > {key}.holder; sleep 0.2"
    );
    for tick in 0..ticks {
        world.write(&format!("{key}.holder"), "");
        let options = ["-q", "--once-per", "1h", "-w", "-t", "10s", "--grace", "100ms"];
        let mut runners: Vec<Running> = Vec::new();
        for _ in 0..machines {
            runners.push(world.run(key, &options, &job).any_stderr().spawn());
            thread::sleep(Duration::from_millis(dice.roll(60)));
            // Each run may be killed after each start, with a chance of one in three, so few
            // survive.
            for runner in &runners {
                if dice.roll(3) == 0 {
                    runner.signal(Signal::KILL);
                }
            }
        }
        let ends: Vec<End> = runners.into_iter().map(|runner| runner.output().end()).collect();
        assert!(
            ends.iter().all(|end| matches!(end, End::Status(0) | End::Signal(9))),
            "{ends:?} in tick {tick} of {key}"
        );
        let killed = ends.iter().filter(|end| **end == End::Signal(9)).count();
        let log = wait_for("the lock is free", || {
            let is_free = world.state(key) == "free" && world.waiters(key) == 0;
            is_free.then(|| world.dlock(["history", "--json", key]).any_stdout().run().stdout)
        });
        let log: Vec<Value> = serde_json::from_str(&log).expect("a history");
        let is_new = |end: &&Value| end["fence"].as_u64().is_some_and(|fence| fence > last);
        let succeeded = |end: &&Value| end["outcome"] == "released" && end["exit_status"] == 0;
        let successes = log.iter().filter(is_new).filter(succeeded).count();
        let is_as_it_should_be = if killed == machines { successes <= 1 } else { successes == 1 };
        assert!(is_as_it_should_be, "{successes} in tick {tick} of {key}, {killed} killed: {log:#?}");
        assert_eq!(world.lines("overlap"), 0, "two ran at once");
        tally.ticks += 1;
        tally.killed += killed;
        tally.successes += successes;
        tally.deserted += usize::from(killed == machines);
        last = world.status(key)["fence"].as_u64().unwrap_or(last);
        world.dlock(["forget", key]).any_stderr().run();
    }
    tally
}

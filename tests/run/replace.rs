//! `dlock run --replace`: the newest run wins. The holder ends as if an operator had asked, and
//! waiters with `--replace` are superseded. Runs with `--no-replace`, and waiters without
//! `--replace`, are not affected.

use crate::support::dlock::{End, Running};
use crate::support::masters::Masters;
use crate::support::storm::{Dice, runs};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

on_every_store!(
    the_newest_runs_when_the_old_job_is_dead,
    a_no_replace_holder_is_waited_for,
    a_waiter_without_replace_keeps_its_place,
    of_several_keys_each_holder_ends,
    a_script_that_holds_it_is_waited_for,
    while_a_lock_is_paused_no_holder_is_asked_to_end,
    each_replacement_is_reported,
    a_waiter_that_gives_up_reports_whom_it_asked,
    in_a_storm_the_newest_wins,
    #[ignore = "long; ./test --soak"]
    in_a_long_storm_the_newest_wins,
);

/// Logs when it gets TERM, a moment later.
const JOB: &str = "trap 'sleep 0.2; echo ended >> log; exit' TERM
    echo up >> log; until [ -e end ]; do sleep 0.1; done; echo done >> log";

const SENT_HOME: &str = "(?:dlock: (?:waiting|got) .*\n)*dlock: superseded by .*@.* \\(pid \\d+\\), which wants to run .* \
    under k in .* \\(--replace\\); the command did not run\n";
const STOPPED: &str = "(?:Terminated\n)?dlock: a newer run \\(--replace\\) of .+@.+ \\(pid \\d+\\).* asked for k in .* back; the command is being stopped\n(?:Terminated\n)?";

fn holder(world: &World, options: &[&str]) -> Running {
    let holder = world.run("k", options, JOB).any_stderr().spawn();
    world.wait_for_log("up");
    holder
}

fn newer(world: &World, options: &[&str], word: &str) -> Running {
    let options = [&["--replace", "-w"], options].concat();
    world.run("k", &options, &format!("echo {word} >> log")).any_stderr().spawn()
}

/// Waits until one waiter is in the queue; on several masters, which have no common queue, until it
/// reports that it waits.
#[track_caller]
fn wait_for_a_waiter(world: &World, waiter: &Running) {
    if world.url().contains("quorum") {
        wait_until("it waits", || waiter.messages().contains("waiting"));
    } else {
        world.wait_for_waiters("k", 1);
    }
}

fn a_waiter_that_gives_up_reports_whom_it_asked(backend: Backend) {
    let world = World::new(backend);
    let stubborn = "trap '' TERM; echo up >> log; until [ -e end ]; do sleep 0.1; done";
    let holder = world.run("k", &["--grace", "1m", "-t", "2m"], stubborn).any_stderr().spawn();
    world.wait_for_log("up");
    let said = world.run("k", &["--replace", "-w", "6s"], "true").status(75).any_stderr().run().stderr;
    assert!(
        said.contains(", asked to stop by ") && said.contains("a newer run (--replace); the command did not"),
        "{said}"
    );
    world.write("end", "");
    assert_eq!(holder.output().end(), End::Status(79));
}

fn the_newest_runs_when_the_old_job_is_dead(backend: Backend) {
    replaces(&World::new(backend));
}

#[test]
fn the_newest_wins_on_a_quorum_and_on_a_cluster() {
    for world in [World::on_a_quorum(), World::on_a_cluster()] {
        replaces(&world);
    }
}

/// Two runs that start at once may reach each master in another order.
#[test]
fn masters_that_disagree_who_is_newest_keep_nobody_waiting() {
    let mut masters = Masters::aged(3);
    masters.use_own_store();
    masters.at_mut(2).kill();
    let world = masters.world();
    let holder = holder(world, &["--no-replace"]);
    let waiter = newer(world, &[], "waited");
    wait_for_a_waiter(world, &waiter);
    let first = masters.at(0);
    let newest = first.keys().into_iter().find(|key| key.starts_with("dlock.newest")).expect("who came last");
    let now: (u64, u64) = first.ask(&["TIME"]);
    let came = now.0 * 1_000_000 + now.1;
    let other = format!(r#"{{"owner":{{}},"came":"{came}","token":"{}"}}"#, "f".repeat(32));
    let _: () = first.ask(&["SET", &newest, &other]);
    world.write("end", "");
    assert_eq!(holder.output().end(), End::Status(0));
    assert_eq!(waiter.output().end(), End::Status(0));
    assert_eq!(world.log(), ["up", "done", "waited"]);
}

fn replaces(world: &World) {
    let options = ["-t", "5s", "--report", "report"];
    let holder = world.run("k", &options, JOB).stderr_like(STOPPED).status(79).spawn();
    world.wait_for_log("up");
    let newer = newer(world, &[], "newer");
    holder.finish();
    assert_eq!(newer.output().end(), End::Status(0));
    assert_eq!(world.log(), ["up", "ended", "newer"]);
    let report: Value = serde_json::from_str(&world.read("report")).expect("a report");
    assert_eq!((&report["outcome"], &report["lost"]), (&"lost".into(), &"superseded".into()));
    let history = world.dlock(["history", "--json", "k"]).any_stdout().run().stdout;
    let history: Value = serde_json::from_str(&history).expect("a history");
    assert_eq!((&history[0]["outcome"], &history[1]["outcome"]), (&"released".into(), &"superseded".into()));
    assert!(history[1]["forced_by"]["pid"].is_number(), "{history}");
}

fn a_no_replace_holder_is_waited_for(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world, &["--no-replace"]);
    let report = ["--report", "report"];
    let options = [&["--replace", "-w"], &report[..]].concat();
    let older = world.run("k", &options, "echo older >> log").stderr_like(SENT_HOME).status(75).spawn();
    world.wait_for_waiters("k", 1);
    let newest = newer(&world, &[], "newest");
    older.finish();
    let report: Value = serde_json::from_str(&world.read("report")).expect("a report");
    assert_eq!((&report["outcome"], &report["started"]), (&"superseded".into(), &false.into()));
    assert_eq!(world.status("k")["holders"][0]["superseded"], false);
    world.write("end", "");
    assert_eq!(holder.output().end(), End::Status(0));
    assert_eq!(newest.output().end(), End::Status(0));
    assert_eq!(world.log(), ["up", "done", "newest"]);
}

fn a_waiter_without_replace_keeps_its_place(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world, &["-t", "5s"]);
    let waiter = world.run("k", &["-w", "-t", "5s"], "echo waiter >> log; sleep 2; echo whole >> log");
    let waiter = waiter.any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let newer = newer(&world, &[], "newer");
    assert_eq!(holder.output().end(), End::Status(79));
    assert_eq!(waiter.output().end(), End::Status(0), "it is not asked to end by who came while it waited");
    assert_eq!(newer.output().end(), End::Status(0));
    assert_eq!(world.log(), ["up", "ended", "waiter", "whole", "newer"]);
}

fn of_several_keys_each_holder_ends(backend: Backend) {
    let world = World::new(backend);
    let holds = |key: &str| world.run(key, &["-t", "5s"], JOB).any_stderr().status(79).spawn();
    let (one, other) = (holds("k"), holds("l"));
    wait_until("both run", || world.lines("up") == 2);
    let both = newer(&world, &["-k", "l"], "both");
    one.finish();
    other.finish();
    assert_eq!(both.output().end(), End::Status(0));
    assert_eq!(world.log(), ["up", "up", "ended", "ended", "both"]);
}

fn a_script_that_holds_it_is_waited_for(backend: Backend) {
    let world = World::new(backend);
    let token = world.dlock(["acquire", "-q", "-k", "k", "-t", "1h"]).any_stdout().run().stdout;
    world.write("token", &token);
    let newer = newer(&world, &[], "newer");
    wait_until("it is asked", || world.status("k")["holders"][0]["superseded"] == true);
    let renew = || world.dlock(["renew", "k", "--token-file", "token"]);
    renew().stderr_like("dlock: a newer run \\(--replace\\) asks for k in .* back: .*\n").run();
    world.dlock(["release", "-q", "k", "--token-file", "token"]).run();
    assert_eq!(newer.output().end(), End::Status(0));
    assert_eq!(world.log(), ["newer"]);
}

fn while_a_lock_is_paused_no_holder_is_asked_to_end(backend: Backend) {
    let world = World::new(backend);
    let holder = holder(&world, &["-t", "5s"]);
    world.dlock(["pause", "-q", "k", "--reason", "freeze"]).run();
    let newer = newer(&world, &[], "newer");
    wait_for_a_waiter(&world, &newer);
    assert_eq!(world.status("k")["holders"][0]["asked_by"], Value::Null);
    world.dlock(["resume", "-q", "k"]).run();
    assert_eq!(holder.output().end(), End::Status(79));
    assert_eq!(newer.output().end(), End::Status(0));
    assert_eq!(world.log(), ["up", "ended", "newer"]);
}

fn each_replacement_is_reported(backend: Backend) {
    let world = World::new(backend);
    // The job takes its time to end, so that the request is visible.
    let deaf = "trap '' TERM; echo up >> log; until [ -e end ]; do sleep 0.1; done";
    let watch = world.dlock(["watch", "-v", "--json", "k"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || watch.messages().contains("watching from now on"));
    let holder = world.run("k", &["-t", "5s", "--grace", "1m"], deaf).any_stderr().spawn();
    world.wait_for_log("up");
    let older = newer(&world, &[], "older");
    // `watch` reads at intervals, so the waiter must be there when it does.
    wait_until("it is seen to wait", || watch.printed().contains("\"event\":\"waiting\""));
    let newest = newer(&world, &[], "newest");
    assert_eq!(older.output().end(), End::Status(75));
    let status = world.status("k");
    assert_eq!(
        (&status["holders"][0]["superseded"], &status["waiters"][0]["replaces"]),
        (&true.into(), &true.into())
    );
    assert!(status["holders"][0]["asked_by"]["pid"].is_number(), "{status}");
    let told = world.dlock(["status", "k"]).any_stdout().run().stdout;
    for part in ["asked", "a newer run (--replace)", "replaces the holder"] {
        assert!(told.contains(part), "{told}");
    }
    wait_until("it has heard of it", || holder.messages().contains("a newer run"));
    world.write("end", "");
    assert_eq!(holder.output().end(), End::Status(79));
    assert_eq!(newest.output().end(), End::Status(0));
    let metrics = world.dlock(["metrics", "k"]).any_stdout().run().stdout;
    for line in [
        "dlock_superseded_total{key=\"k\"} 1\n",
        "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"superseded\"}",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let history = world.dlock(["history", "k"]).any_stdout().run().stdout;
    assert!(history.contains("superseded"), "{history}");
    wait_until("both are told", || watch.printed().matches("\"event\":\"superseded\"").count() == 2);
}

#[test]
fn replace_requires_wait_and_an_exclusive_lock() {
    let world = World::without_redis();
    let refused = |options: &[&str], why: &str| {
        let refused = world.run("k", options, "echo ran >> log").status(64);
        refused.stderr_like(&format!("dlock: .*{why}(?:.|\n)*")).run();
    };
    refused(&["--replace"], "needs --wait");
    refused(&["--replace", "-w", "0"], "needs --wait");
    refused(&["--replace", "-w", "-s"], "--shared");
    refused(&["--replace", "-w", "-n", "2"], "--slots");
    assert_eq!(world.log(), [""; 0]);
}

fn in_a_storm_the_newest_wins(backend: Backend) {
    storm(backend, 25, 1);
}

fn in_a_long_storm_the_newest_wins(backend: Backend) {
    storm(backend, runs(20), 10);
}

/// In each round `crowd` runs start at random moments, and some are killed. All but the last end
/// superseded, unless they ended before the next one started.
fn storm(backend: Backend, crowd: usize, times: u64) {
    let world = World::new(backend);
    for time in 0..times {
        let mut dice = Dice(time + 1);
        world.write("holder", "");
        let job = |number: usize| {
            format!(
                "read -r other < holder && kill -0 $other 2> /dev/null && echo overlap >> log
                echo $$ > holder; sleep 0.5; echo {time}.{number} >> log"
            )
        };
        let mut running: Vec<Running> = Vec::new();
        // The first two runs meet behind a job that is not replaceable, however slow the machine
        // is.
        let script = format!("until [ -e gate.{time} ]; do sleep 0.1; done");
        let first = world.run("k", &["--no-replace"], &script).any_stderr().spawn();
        world.wait_for_state("k", "held");
        for number in 0..crowd {
            let options = ["--replace", "-w", "-t", "5s", "--grace", "100ms"];
            running.push(world.run("k", &options, &job(number)).any_stderr().spawn());
            if number == 0 {
                world.wait_for_waiters("k", 1);
                continue;
            }
            if number == 1 {
                wait_until("the first is superseded", || running[0].has_ended());
                world.write(&format!("gate.{time}"), "");
            }
            sleep(Duration::from_millis(dice.roll(150)));
            if number > 1 && dice.roll(4) == 0 {
                let rank = usize::try_from(dice.roll(u64::try_from(number + 1).expect("a number")));
                running[rank.expect("a number")].signal(Signal::KILL);
            }
        }
        // A run that reaches the store before the last one is older.
        wait_until("each of them has come", || {
            let status = world.status("k");
            let known = |pid: i32| {
                ["holders", "waiters"].iter().any(|list| {
                    status[*list].as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == pid))
                })
            };
            running.iter_mut().all(|one| one.has_ended() || known(one.pid()))
        });
        first.finish();
        let last = newer(&world, &["-t", "5s"], &format!("{time}.last"));
        let mut superseded = 0;
        for (number, one) in running.into_iter().enumerate() {
            let output = one.output();
            match output.end() {
                End::Status(75) => {
                    superseded += 1;
                    assert!(output.stderr.contains("superseded by"), "{number}: {}", output.stderr);
                }
                End::Status(79) => {
                    assert!(output.stderr.contains("a newer run"), "{number}: {}", output.stderr)
                }
                End::Status(0) | End::Signal(9) => {}
                End::Status(_) | End::Signal(_) => panic!("{number}: {output:?}"),
            }
        }
        assert_eq!(last.output().end(), End::Status(0));
        assert!(superseded > 0, "some met");
        assert_eq!(world.lines("overlap"), 0, "two ran at once");
        assert_eq!(world.log().last(), Some(&format!("{time}.last")));
        wait_for("the lock is free", || {
            (world.state("k") == "free" && world.waiters("k") == 0).then_some(())
        });
    }
}

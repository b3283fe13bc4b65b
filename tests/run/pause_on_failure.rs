//! `--pause-on-failure`: after a run that failed nobody gets the lock for a while. Which ends count
//! as failures is tested by src/commands/run/ending.rs, until when a lock is paused by
//! src/rules/tests/pauses.rs.

use crate::support::dlock::{BINARY, Running};
use crate::support::masters::Masters;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;
use serde_json::Value;

on_every_store!(a_failure_pauses_the_lock, a_run_that_is_told_to_end_has_not_failed, a_crash_pauses_the_lock,);

const PAUSED: &str =
    "dlock: k in .* is paused until .* \\(--pause-on-failure\\); 'dlock resume k' ends that\n";

fn why(world: &World) -> Value {
    let paused = world.status("k")["paused"].clone();
    assert!(paused.is_null() || paused["cause"] == "failure", "{paused}");
    paused["reason"].clone()
}

fn pauses<'w>(world: &'w World, options: &[&str], job: &str) -> crate::support::dlock::Dlock<'w> {
    world.run("k", &[&["--pause-on-failure", "2h"], options].concat(), job)
}

fn a_failure_pauses_the_lock(backend: Backend) {
    fails(&World::new(backend));
}

#[test]
fn a_failure_pauses_a_quorum() {
    fails(&World::on_a_quorum());
}

fn fails(world: &World) {
    pauses(world, &[], "true").run();
    assert_eq!(why(world), Value::Null);
    pauses(world, &[], "exit 3").status(3).stderr_like(PAUSED).run();
    let host = world.status("k")["paused"]["host"].as_str().expect("a host").to_owned();
    assert_eq!(why(world), format!("failed on {host}: exit 3"));
    let by = format!(".*@{host} .*\\(failed on {host}: exit 3\\)");
    // One run says so for all machines, also with -q; the next ones are merely busy.
    let first = format!("dlock: k in .* is paused because a run failed; the run of {by} has paused it .*\n");
    world.run("k", &["-q"], "echo ran >> log").status(75).stderr_like(&first).run();
    world.run("k", &["-q"], "echo ran >> log").status(75).run();
    let refused = format!("dlock: k in .* is busy: paused by {by}, for 1h59m.*\n");
    world.run("k", &[], "echo ran >> log").status(75).stderr_like(&refused).run();
    let said =
        "dlock: k in .* is paused for 1h59m.*, as long as it was by .* exit 3\\): no new holder until then\n";
    world.dlock(["pause", "k", "--reason", "r"]).stderr_like(said).run();
    assert_eq!(world.status("k")["paused"]["cause"], "operator");
    let said =
        "dlock: k in .* is paused for 1m: no new holder until then; it was for 1h59m.* by .* \\(r\\)\n";
    world.dlock(["pause", "k", "--for", "1m", "--reason", "s"]).stderr_like(said).run();
    world.dlock(["resume", "k"]).any_stderr().run();
    let nothing = ["run", "-k", "k", "--pause-on-failure", "1h", "--", "./nothing"];
    world.dlock(nothing).any_stderr().status(127).run();
    assert_eq!(why(world), format!("failed on {host}: exit 127, the command did not run"));
    world.dlock(["resume", "k"]).any_stderr().run();
    world.run("k", &[], "echo ran >> log").run();
    assert_eq!(world.log(), ["ran"]);
}

/// The message tells what the store says, and invites nobody to end an operator's freeze.
#[test]
fn a_failed_run_names_the_pause_that_is_in_force() {
    let world = World::new(Backend::Redis);
    let freeze = |then: &str| {
        let job = format!("$D pause k --for 3d --reason freeze 2> said; {then} exit 1");
        pauses(&world, &[], &job).env("D", BINARY).status(1)
    };
    freeze("").stderr_like("dlock: k in .* stays paused by .* \\(freeze\\), until .*\n").run();
    world.dlock(["resume", "k"]).any_stderr().run();
    // Once the freeze is over, the failure pauses the lock by itself.
    let said = "dlock: k in .* is paused until .* \\(--pause-on-failure\\); 'dlock resume k' ends that\n";
    freeze("$D resume k 2> said;").stderr_like(said).run();
}

/// A run whose job does not end by itself. It writes its number into `pid` when it is ready.
fn begun(world: &World, options: &[&str], job: &str) -> Running {
    let _ = std::fs::remove_file(world.path("pid"));
    let run = pauses(world, options, job).any_stderr().spawn();
    world.wait_for_pid("pid");
    run
}

fn a_run_that_is_told_to_end_has_not_failed(backend: Backend) {
    let world = World::new(backend);
    let job = "echo $$ > pid; until [ -e end ]; do sleep 0.1; done; exit 1";
    let run = begun(&world, &[], &format!("trap 'exit 1' TERM; {job}"));
    run.signal(Signal::TERM);
    run.output();
    assert_eq!(why(&world), Value::Null);
    let run = begun(&world, &[], job);
    world.dlock(["release", "k", "-y"]).any_stderr().run();
    run.output();
    assert_eq!(why(&world), Value::Null);
    // The guard knows of the signal, too.
    let run = begun(&world, &[], &format!("trap 'touch told' TERM; {job}"));
    run.signal(Signal::TERM);
    wait_until("the job was told", || world.path("told").exists());
    run.signal(Signal::KILL);
    world.write("end", "");
    run.output();
    world.wait_for_state("k", "free");
    assert_eq!(why(&world), Value::Null);
    // It stops a job that nobody told to end.
    let run = begun(&world, &[], "echo $$ > pid; sleep 1000");
    run.signal(Signal::KILL);
    run.output();
    world.wait_for_state("k", "paused");
    assert!(why(&world).as_str().is_some_and(|why| why.ends_with(": dlock or its guard was killed")));
}

/// `systemctl stop`, the drain of a node, a closed terminal, ^C.
#[test]
fn no_signal_that_ends_dlock_makes_a_failure() {
    let world = World::new(Backend::File);
    for (name, signal) in [("INT", Signal::INT), ("HUP", Signal::HUP), ("QUIT", Signal::QUIT)] {
        let run =
            begun(&world, &[], &format!("trap 'exit 1' {name}; echo $$ > pid; while :; do sleep 0.1; done"));
        run.signal(signal);
        run.output();
        assert_eq!(why(&world), Value::Null, "{name}");
    }
}

/// Kills a run, its guard and its job, as a power cut would.
fn crash(run: Running, world: &World) {
    let job = world.wait_for_pid("pid");
    let guard = run.guard();
    for pid in [run.pid(), guard] {
        kill(pid, Signal::STOP);
    }
    for pid in [guard, job, run.pid()] {
        kill(pid, Signal::KILL);
    }
    run.output();
}

fn kill(pid: i32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("a process");
}

fn a_crash_pauses_the_lock(backend: Backend) {
    let world = World::new(backend);
    let run = begun(&world, &["-t", "2s"], "echo $$ > pid; exec sleep 1000");
    let renewed = || world.status("k")["holders"][0]["held_ms"].as_u64().is_some_and(|held| held > 2000);
    wait_until("it was renewed", renewed);
    crash(run, &world);
    // A view shows it before an operation has written it.
    world.wait_for_state("k", "paused");
    assert!(why(&world).as_str().is_some_and(|why| why.ends_with(": its lease ran out")));
    world.run("k", &[], "true").status(75).any_stderr().run();
    world.dlock(["resume", "k"]).any_stderr().run();
    world.run("k", &[], "true").run();
    let ends = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    assert!(ends.contains("\"expired\""), "{ends}");
}

/// A master that sees its key expire may be the one that missed the release.
#[test]
fn a_master_of_a_quorum_pauses_nothing_by_itself() {
    let mut masters = Masters::aged(3);
    masters.use_own_store();
    let world = masters.world();
    let run = begun(world, &["-t", "1s"], "echo $$ > pid; exec sleep 1000");
    let renewed = || world.status("k")["holders"][0]["held_ms"].as_u64().is_some_and(|held| held > 1000);
    wait_until("it was renewed", renewed);
    crash(run, world);
    world.wait_for_state("k", "free");
    world.run("k", &["-w", "10s"], "true").any_stderr().run();
    assert_eq!(why(world), Value::Null);
}

/// The store is away from the end of a good run until its lease is over.
#[test]
fn a_release_that_never_arrives_counts_as_a_crash() {
    let mut world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let direct = world.url();
    world.use_store(proxy.url());
    let said = "dlock: the command has ended, but k in .* could not be given back .*, and the lock is free when its \
        lease ends at the latest, which would count as a failure and pause it for 2h\n";
    let job = "echo $$ > pid; until [ -e end ]; do sleep 0.1; done";
    let run = pauses(&world, &["-t", "2s"], job).stderr_like(said).spawn();
    let seen =
        || world.dlock(["status", "k", "--json"]).env("DLOCK_STORE", &direct).any_stdout().run().stdout;
    let state = || serde_json::from_str::<Value>(&seen()).expect("JSON")[0].clone();
    wait_until("it was renewed", || {
        state()["holders"][0]["held_ms"].as_u64().is_some_and(|held| held > 1500)
    });
    proxy.begin_outage();
    world.write("end", "");
    run.finish();
    wait_until("it is paused", || state()["state"] == "paused");
}

/// dlock and its guard stood still, and a late request was granted the lock anew to their token.
#[test]
fn the_guard_gives_back_no_hold_of_a_later_grant() {
    let world = World::new(Backend::Redis);
    let job = "echo $DLOCK_TOKEN $DLOCK_FENCE > held; echo $$ > pid; exec sleep 1000";
    let run = world.run("k", &["-t", "10m"], job).any_stderr().spawn();
    world.wait_for_pid("pid");
    let held = world.read("held");
    let (token, fence) = held.trim().split_once(' ').expect("token and fence");
    let hold: String = world.redis().ask(&["HGET", "dlock.hold:{dlock:k}:dlock:k", token]);
    let later = (fence.parse::<u64>().expect("a fence") + 1).to_string();
    let hold = hold.replace(fence, &later);
    world.redis().ask::<()>(&["HSET", "dlock.hold:{dlock:k}:dlock:k", token, &hold]);
    run.signal(Signal::KILL);
    run.output();
    world.wait_for_state("k", "free");
    let ends = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    assert!(!ends.contains("\"crashed\""), "{ends}");
}

#[test]
fn what_it_does_not_go_with_is_refused() {
    let world = World::without_redis();
    for options in
        [&["-s"][..], &["--replace", "-w"], &["--pause-on-failure", "41d"], &["--pause-on-failure", "0"]]
    {
        let run = world.run("k", &[options, &["--pause-on-failure", "1h"]].concat(), "true");
        run.status(64).any_stderr().run();
    }
    let acquire = world.dlock(["acquire", "-k", "k", "--pause-on-failure", "1h"]);
    acquire.status(64).any_stderr().run();
}

/// A hold has no status, so only a lease that ran out is a failure.
#[test]
fn a_hold_fails_if_its_lease_runs_out() {
    let world = World::new(Backend::Redis);
    let mut sleeper = world.command("sleep").arg("1000").spawn().expect("sleep");
    let pid = sleeper.id().to_string();
    let options = ["hold", "-k", "k", "-t", "2s", "--pause-on-failure", "1h", "--pid", &pid];
    let hold = world.dlock(options).any_stderr().spawn();
    world.wait_for_state("k", "held");
    hold.signal(Signal::TERM);
    hold.output();
    assert_eq!(world.state("k"), "free");
    let hold = world.dlock(options).any_stderr().spawn();
    let renewed = || world.status("k")["holders"][0]["held_ms"].as_u64().is_some_and(|held| held > 1500);
    wait_until("it was renewed", renewed);
    let guard = hold.guard();
    hold.signal(Signal::STOP);
    kill(guard, Signal::KILL);
    hold.signal(Signal::KILL);
    hold.output();
    world.wait_for_state("k", "paused");
    sleeper.kill().expect("a kill");
    sleeper.wait().expect("an end");
}

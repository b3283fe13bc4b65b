//! `--during-pause`: an urgent run is granted a lock that is paused, before those that wait for the
//! end of the pause. The order is tested by src/rules/tests/pauses.rs.

use crate::support::world::{Backend, World, on_every_store};
use serde_json::Value;

on_every_store!(an_urgent_run_goes_first,);

const URGENT: [&str; 3] = ["--during-pause", "--reason", "incident 311"];

fn an_urgent_run_goes_first(backend: Backend) {
    urgent(&World::new(backend));
}

#[test]
fn an_urgent_run_goes_first_on_a_quorum() {
    urgent(&World::on_a_quorum());
}

fn urgent(world: &World) {
    let is_quorum = world.url().contains("quorum");
    world.dlock(["pause", "k", "--reason", "freeze"]).any_stderr().run();
    let plain = world.run("k", &["-w"], "echo plain >> log").any_stderr().spawn();
    if !is_quorum {
        world.wait_for_waiters("k", 1);
    }
    world.run("k", &URGENT, "echo now >> log").run();
    let job = "echo up >> log; until [ -e end ]; do sleep 0.1; done";
    let holder = world.run("k", &[&["-w"][..], &URGENT].concat(), job).any_stderr().spawn();
    world.wait_for_log("up");
    // It passes no holder, and another urgent run is next.
    world.run("k", &URGENT, "true").status(75).stderr_like("dlock: k in .* is busy: held by .*\n").run();
    let next = world.run("k", &[&["-w"][..], &URGENT].concat(), "echo next >> log").any_stderr().spawn();
    if !is_quorum {
        world.wait_for_waiters("k", 2);
        let said = world.dlock(["pause", "k", "-v", "--reason", "freeze"]).any_stderr().run().stderr;
        for does in ["runs", "waits"] {
            let line = format!("{does} (incident 311)\n");
            assert!(said.contains("k in ") && said.contains(&line), "{said}");
        }
    }
    world.write("end", "");
    holder.finish();
    next.finish();
    assert_eq!(world.log(), ["now", "up", "next"]);
    assert_eq!(world.state("k"), "paused");
    let ends = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    let ends: Value = serde_json::from_str(&ends).expect("JSON");
    let urgent: Vec<_> = ends.as_array().expect("an array").iter().map(|end| &end["during_pause"]).collect();
    assert_eq!(urgent, [true, true, true]);
    let history = world.dlock(["history", "k"]).any_stdout().run().stdout;
    assert_eq!(history.matches("during a pause: ").count(), 3, "{history}");
    world.dlock(["resume", "k"]).any_stderr().run();
    plain.finish();
    assert_eq!(world.lines("plain"), 1);
}

#[test]
fn it_needs_a_reason_on_the_command_line() {
    let world = World::without_redis();
    let said = "dlock: --during-pause needs --reason TEXT: .*\n";
    world.run("k", &["--during-pause"], "true").status(64).stderr_like(said).run();
    world.write("dlock.toml", "during-pause = true\n");
    let said = "dlock: .* belong on the command line: during-pause .*\n";
    let run = world.dlock(["run", "--config", "dlock.toml", "-k", "k", "--", "true"]);
    run.status(78).stderr_like(said).run();
    let acquire = world.dlock(["acquire", "-k", "k", "--during-pause", "--reason", "r"]);
    acquire.status(64).any_stderr().run();
}

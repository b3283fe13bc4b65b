//! The recipes for deployments: freezes, previews, leaders.

use super::{blocks, on_a_machine, status_of};
use crate::support::world::World;

#[test]
fn a_freeze_stops_deployments_until_it_is_over() {
    let world = World::with_redis(&[]);
    let mut lines = blocks("sh").into_iter().flat_map(str::lines);
    let mut of = |word: &str| lines.find(|line| line.starts_with(word)).expect("a line");
    assert_eq!(status_of(on_a_machine(&world, of("dlock pause "))), Some(0));
    for key in ["deploy-web", "deploy-api"] {
        let why = "dlock: .* is busy: paused by .* \\(freeze until Monday\\), .*\n";
        world.run(key, &[], "echo deployed >> log").stderr_like(why).status(75).run();
    }
    assert_eq!(status_of(on_a_machine(&world, of("dlock resume "))), Some(0));
    world.run("deploy-web", &[], "echo deployed >> log").run();
    assert_eq!(world.log(), ["deployed"]);
}

#[test]
fn a_newer_commit_replaces_the_preview_of_an_older_one() {
    let world = World::with_redis(&[]);
    let step = blocks("sh").into_iter().find(|block| block.contains("--replace")).expect("a block");
    world.script(
        "deploy-preview",
        "#!/bin/sh\ntrap 'echo cleared up >> log; exit' TERM\necho $COMMIT >> log\n\
         until [ -e go ]; do sleep 0.1; done\n",
    );
    let deploy = |commit: &str| {
        let mut step = on_a_machine(&world, step);
        step.env("COMMIT", commit).env("CI_MERGE_REQUEST_IID", "42").spawn().expect("a shell")
    };
    let mut old = deploy("old");
    world.wait_for_log("old");
    let mut new = deploy("new");
    assert_eq!(old.wait().expect("a child").code(), Some(79));
    world.wait_for_log("new");
    world.write("go", "");
    assert_eq!(new.wait().expect("a child").code(), Some(0));
    assert_eq!(world.log(), ["old", "cleared up", "new"]);
}

/// The unit's command on two machines: if the dlock of one is killed, its server is stopped and the
/// other machine takes over.
#[test]
fn a_leader_that_is_killed_has_a_successor() {
    let world = World::with_redis(&[]);
    let unit = blocks("ini").into_iter().find(|unit| unit.contains("-k leader ")).expect("a unit");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    world.script("server", "#!/bin/sh\necho $NAME >> log\nexec sleep 300\n");
    let start = |name: &str| {
        let mut machine = on_a_machine(&world, &format!("exec {line}"));
        machine.env("NAME", name).spawn().expect("a shell")
    };
    let mut leader = start("leader");
    world.wait_for_log("leader");
    let mut standby = start("standby");
    world.wait_for_waiters("leader", 1);
    leader.kill().expect("it runs");
    world.wait_for_log("standby");
    leader.wait().expect("a child");
    standby.kill().expect("it runs");
    standby.wait().expect("a child");
    world.wait_for_state("leader", "free");
    assert_eq!(world.log(), ["leader", "standby"]);
}

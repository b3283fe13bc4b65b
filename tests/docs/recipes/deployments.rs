//! The recipes for CI and deployments: cancelled steps, freezes, previews, leaders.

use super::{blocks, on_a_machine, status_of};
use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

/// How a runner starts a step, and which processes it signals to cancel it.
struct Runner {
    shell: &'static [&'static str],
    signals: &'static [Signal],
    whole_group: bool,
}

/// A cancelled step leaves no deployment running, and the lock is free.
#[test]
fn a_cancelled_step_takes_its_deployment_with_it() {
    let step = blocks("sh").into_iter().find(|block| block.contains("./deploy.sh")).expect("a step");
    let [gitlab, github, jenkins] = ["CI_JOB_URL", "GITHUB_RUN_ID", "BUILD_URL"].map(|reason| {
        assert!(include_str!("../../../docs/recipes.md").contains(&format!("`${reason}`")), "{reason}");
        step.replace("CI_JOB_URL", reason)
    });
    for (line, runner) in [
        // GitLab's runner pipes the script into a shell, and kills its process group.
        (
            format!(": | eval '{gitlab}'"),
            Runner { shell: &["bash"], signals: &[Signal::KILL], whole_group: true },
        ),
        // GitHub's runner starts a script, and signals only that: INT, which a shell defers while
        // it waits for a command, then TERM, and at last KILL.
        (
            github.clone(),
            Runner { shell: &["bash", "-e"], signals: &[Signal::INT, Signal::TERM], whole_group: false },
        ),
        (github, Runner { shell: &["bash", "-e"], signals: &[Signal::KILL], whole_group: false }),
        (jenkins, Runner { shell: &["sh", "-xe"], signals: &[Signal::TERM], whole_group: false }),
    ] {
        let world = World::with_redis(&[]);
        world.script("deploy.sh", "#!/bin/sh\necho $$ > pid\nsleep 300\n");
        world.write("step", &line);
        let [shell, options @ ..] = runner.shell else { unreachable!() };
        let mut shell = world.command(shell);
        let bin = Path::new(BINARY).parent().expect("a directory").display().to_string();
        shell.args(options).arg("step").process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        shell.env("PATH", format!("{bin}:/usr/bin:/bin")).env("DLOCK_STORE", world.url());
        let mut shell = shell.spawn().expect("a shell");
        let deployment = world.wait_for_pid("pid");
        let pid = Pid::from_raw(i32::try_from(shell.id()).expect("a process id")).expect("a process id");
        for signal in runner.signals {
            match runner.whole_group {
                true => kill_process_group(pid, *signal).expect("it runs"),
                false => kill_process(pid, *signal).expect("it is not reaped yet"),
            }
        }
        wait_until(&format!("no deployment: {line}"), || !proc::alive(deployment));
        world.wait_for_state("deploy-production", "free");
        drop(shell.wait());
    }
}

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

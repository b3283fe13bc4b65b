//! Which processes dlock and its guard stop or reap: those of the job, however they try to escape,
//! and no others.

use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::{Signal, geteuid};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// The shell that became dlock had started a process. That process and its orphans do not belong to
/// the job.
#[test]
fn an_orphan_of_the_shell_that_became_dlock_survives() {
    let world = World::new(Backend::Redis);
    let before = "(sh -c 'echo $$ > stranger.tmp; mv stranger.tmp stranger.pid; exec sleep 1000' &
        until [ -e die ]; do sleep 0.1; done) &";
    let holder = world.run("k", &["--grace", "100ms"], "echo up >> log; exec sleep 1000").after_shell(before);
    let holder = holder.status(70).any_stderr().spawn();
    world.wait_for_log("up");
    let (stranger, guard) = (world.wait_for_pid("stranger.pid"), holder.guard());
    world.write("die", "");
    wait_until("dlock has the orphan, and has reaped its parent", || {
        let mut children = proc::children(holder.pid());
        children.retain(|pid| ![stranger, guard].contains(pid));
        children.is_empty() && proc::children(holder.pid()).contains(&stranger)
    });
    proc::signal(guard, Signal::KILL);
    holder.finish();
    assert!(proc::alive(stranger));
    proc::signal(stranger, Signal::KILL);
}

/// As PID 1 dlock becomes the parent of all orphans, and reaps them.
#[test]
fn as_pid_1_dlock_reaps_foreign_processes() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success())
    {
        println!("skipped: this user may not make a PID namespace");
        return;
    }
    let world = World::new(Backend::Redis);
    let orphans =
        "for i in 1 2 3 4 5; do (sh -c 'echo up >> log; until [ -e die ]; do sleep 0.1; done' &); done
        exec \"$@\"";
    let under = [&unshare[..], &["sh", "-c", orphans, "sh"]].concat();
    let holder = world.run("k", &[], "echo up >> log; until [ -e go ]; do sleep 0.1; done; exit 3");
    let holder = holder.under(&under).status(3).any_stderr().spawn();
    world.wait_for_lines("up", 6);
    let dlock = *proc::children(holder.pid()).first().expect("the one that unshare started");
    assert_eq!(proc::children(dlock).len(), 6);
    world.write("die", "");
    wait_until("only the guard is left", || proc::children(dlock).len() == 1);
    world.write("go", "");
    holder.finish();
}

/// Each process starts the next one in a new session and ends, so a list of processes is outdated
/// at once.
#[test]
fn a_chain_of_processes_that_keeps_forking_is_ended() {
    let world = World::new(Backend::Redis);
    world.script("link", "#!/bin/sh\ntrap '' TERM\necho $$ >> links\nsetsid ./link &\n");
    let job = "for i in 1 2 3 4; do setsid ./link & done; trap '' TERM; while :; do sleep 0.1; done";
    let options = ["--max-run", "500ms", "--grace", "200ms"];
    world.run("k", &options, job).status(124).any_stderr().run();
    let links = world.read("links");
    assert!(links.lines().count() > 4, "{links}");
    let left: Vec<&str> =
        links.lines().filter(|pid| pid.parse().is_ok_and(|pid| proc::name(pid) == "link")).collect();
    assert_eq!(left, [""; 0]);
}

/// A process that runs as another user, as through sudo, cannot be stopped by a dlock without root.
/// dlock names it, and does not release the lock before the lease ends.
#[test]
fn a_process_that_may_not_be_signalled_keeps_the_lock() {
    let world = World::new(Backend::Redis);
    world.open_to_all();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let may = world.dlock(["--version"]).under(&nobody).any_stdout().any_stderr().spawn().output();
    let made =
        world.command("cp").args(["/usr/bin/setpriv", "rise"]).status().is_ok_and(|status| status.success());
    if !may.status.success() || !made || !geteuid().is_root() {
        println!("skipped: this user cannot become another one");
        return;
    }
    fs::set_permissions(world.path("rise"), fs::Permissions::from_mode(0o4755)).expect("permissions");
    let job = "echo $$ > job.pid; exec ./rise --reuid=0 sh -c 'echo $$ > risen.pid; exec sleep 1000'";
    let holder = world.run("k", &["-t", "8s", "--grace", "200ms"], job).under(&nobody);
    let holder = holder.dies_of(9).any_stderr().spawn();
    let risen = world.wait_for_pid("risen.pid");
    let next = world.run("k", &["-w"], "date +%s%3N > next").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::KILL);
    let expires = world.redis().expires("dlock:k");
    next.finish();
    let began: i64 = world.read("next").trim().parse().expect("a time");
    assert!(began >= expires, "not before the lease ended");
    assert!(proc::alive(risen));
    let output = holder.finish();
    assert!(output.stderr.contains(&risen.to_string()), "it is named: {}", output.stderr);
}

/// Where dlock may send no signal, not even to its own guard (an AppArmor profile), the guard ends
/// when dlock does.
#[test]
fn a_guard_that_may_not_be_killed_ends_with_dlock() {
    let world = World::new(Backend::Redis);
    world
        .write("kill.c", "#include <errno.h>\nint kill(int pid, int signal) { errno = EPERM; return -1; }\n");
    let cc = world.command("cc").args(["-shared", "-fPIC", "-w", "-o", "kill.so", "kill.c"]).status();
    assert!(cc.expect("cc is installed").success(), "cc cannot build kill.c");
    let run = world.run("k", &[], "while [ ! -e go ]; do sleep 0.1; done; exit 3");
    let run = run.env("LD_PRELOAD", world.path("kill.so")).status(3).spawn();
    let guard = run.guard();
    world.write("go", "");
    run.finish();
    wait_until("the guard ends", || !proc::alive(guard));
    assert_eq!(world.state("k"), "free");
}

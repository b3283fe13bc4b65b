//! A chroot or a sandbox without /proc: the job gets TERM and CONT by its process group, at the same
//! moments as with it.

use crate::support::dlock::{Dlock, Running};
use crate::support::proc;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use std::process::Command;

const NO_PROC: &str = "mount -t tmpfs none /proc && exec \"$@\"";
const PIDS_ONLY: &str = "mount -t proc -o subset=pid none /proc && exec \"$@\"";

/// A job whose processes log TERM, one of them when it is continued. Only TERM ends it in time.
const JOB: &str =
    "sh -c 'trap \"echo thawed >> log; exit\" TERM; echo $$ > frozen.pid; kill -STOP $$; sleep 1000' &
    trap 'echo term >> log; exit 3' TERM; echo up >> log; while :; do sleep 0.1; done";

fn may_mount(setup: &str) -> bool {
    let may = Command::new("unshare").args(["--mount", "sh", "-c", setup, "sh", "true"]).output();
    let may = may.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: this user may not mount anything");
    }
    may
}

fn without_proc(call: Dlock<'_>) -> Dlock<'_> {
    call.under(&["unshare", "--mount", "sh", "-c", NO_PROC, "sh"])
}

/// Starts the job, with a grace that is longer than the test.
fn holder(world: &World, options: &[&str], script: &str) -> Running {
    let options = [&["-t", "10m", "--grace", "10m"], options].concat();
    let holder = without_proc(world.run("k", &options, script)).any_stderr().spawn();
    world.wait_for_log("up");
    let frozen = world.wait_for_pid("frozen.pid");
    wait_until("the frozen one stops", || proc::stopped(frozen));
    holder
}

#[track_caller]
fn got_term(world: &World, what: &str) {
    wait_until(&format!("{what}: TERM and CONT"), || {
        ["term", "thawed"].iter().all(|line| world.lines(line) == 1)
    });
}

#[test]
fn the_job_gets_term_in_time() {
    if !may_mount(NO_PROC) {
        return;
    }
    type End = fn(&World, &Running);
    let ends: [(&str, &[&str], End); 4] = [
        ("--max-run", &["--max-run", "1s"], |_, _| {}),
        ("an operator", &[], |world, _| {
            world.dlock(["release", "k", "-y"]).any_stdout().any_stderr().run();
        }),
        ("dlock killed", &[], |_, holder| holder.signal(Signal::KILL)),
        ("guard killed", &[], |_, holder| proc::signal(holder.guard(), Signal::KILL)),
    ];
    for (what, options, end) in ends {
        let world = World::new(Backend::Redis);
        let holder = holder(&world, options, JOB);
        end(&world, &holder);
        got_term(&world, what);
        holder.output();
        world.wait_for_state("k", "free");
    }
}

/// The command has ended, and what it left behind gets the signals.
#[test]
fn the_rest_of_a_tree_gets_them_too() {
    if !may_mount(NO_PROC) {
        return;
    }
    for signal in [None, Some(Signal::TERM)] {
        let world = World::new(Backend::Redis);
        let holder = holder(&world, &["--tree"], &format!("({JOB}) & exit 0"));
        match signal {
            // A signal that somebody sends to dlock, which passes it on.
            Some(signal) => holder.signal(signal),
            None => drop(world.dlock(["release", "k", "-y"]).any_stdout().any_stderr().run()),
        }
        wait_until("TERM arrives", || world.lines("term") == 1);
        proc::signal(world.wait_for_pid("frozen.pid"), Signal::CONT);
        holder.output();
    }
}

#[test]
fn the_process_of_a_hold_gets_them() {
    if !may_mount(NO_PROC) {
        return;
    }
    let world = World::new(Backend::Redis);
    let mut process = world.command("sh").args(["-c", JOB]).spawn().expect("sh");
    world.wait_for_log("up");
    let target = i32::try_from(process.id()).expect("a process id");
    let pid = target.to_string();
    let hold = world.dlock(["hold", "-k", "k", "-t", "10m", "--grace", "10m", "--pid", &pid]);
    let hold = without_proc(hold).any_stderr().spawn();
    world.wait_for_state("k", "held");
    proc::signal(target, Signal::STOP);
    world.dlock(["release", "k", "-y"]).any_stdout().any_stderr().run();
    wait_until("TERM and CONT arrive", || world.lines("term") == 1);
    process.wait().expect("it is our child");
    hold.output();
}

/// A directory cannot tell a restart of the machine, and says what it needs.
#[test]
fn a_directory_says_what_it_needs() {
    for setup in [NO_PROC, PIDS_ONLY] {
        if !may_mount(setup) {
            return;
        }
        let world = World::without_redis();
        let run = world.run("k", &[], "touch ran").under(&["unshare", "--mount", "sh", "-c", setup, "sh"]);
        let said = run.status(78).any_stderr().run().stderr;
        assert!(
            said.contains("/proc/sys/kernel/random/boot_id") && said.contains("ProcSubset=all"),
            "{said}"
        );
        assert!(!world.path("ran").exists());
    }
}

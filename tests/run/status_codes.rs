//! dlock ends as CMD does: all 256 statuses, death by every signal, and commands that cannot be
//! executed.

use crate::support::proc;
use crate::support::world::{Backend, World, on_every_store};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;

on_every_store!(
    every_status_comes_through,
    death_by_every_signal_comes_through,
    as_pid_1_a_signal_becomes_a_status,
    a_command_that_cannot_run_leaves_no_lock,
    a_script_without_shebang_runs,
    a_command_string_runs_in_the_shell,
);

fn every_status_comes_through(backend: Backend) {
    let world = World::new(backend);
    in_two_lanes(share(backend, 0..=255), |status| {
        world.run(&format!("k{status}"), &[], &format!("exit {status}")).status(status).run();
    });
}

fn death_by_every_signal_comes_through(backend: Backend) {
    let world = World::new(backend);
    in_two_lanes(share(backend, deadly()), |signal| {
        let run = world.run(&format!("k{signal}"), &[], &format!("kill -{signal} $$"));
        let output = run.with_all_signals().dies_of(signal).run();
        assert!(!output.status.core_dumped(), "signal {signal}");
    });
    // Only the job may leave a core file, so dlock must not use the job's limit for itself.
    let output = world.run("core", &[], "ulimit -c 0; kill -QUIT $$").after_shell("ulimit -c unlimited");
    let output = output.dies_of(3).run();
    assert!(!output.status.core_dumped());
    assert_eq!(world.state("k9"), "free");
}

fn as_pid_1_a_signal_becomes_a_status(backend: Backend) {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success())
    {
        println!("skipped: this user may not create a pid namespace");
        return;
    }
    let world = World::new(backend);
    world.run("k", &[], "exit 0").under(&unshare).run();
    world.run("k", &[], "exit 200").under(&unshare).status(200).run();
    in_two_lanes(deadly().step_by(3), |signal| {
        let job = format!("kill -{signal} $$");
        let run = world.run(&format!("k{signal}"), &[], &job).under(&unshare);
        run.with_all_signals().status(128 + signal).run();
    });
}

fn a_command_that_cannot_run_leaves_no_lock(backend: Backend) {
    let world = World::new(backend);
    world.write("plain", "no program\n");
    for (program, status) in [("no-such-program", 127), ("./no-such-file", 127), ("./plain", 126), ("/", 126)]
    {
        let words = ["run", "-k", "k", "--min-hold", "1h", "--", program];
        let output = world.dlock(words).status(status).stderr_like("dlock: .*\n").run();
        assert!(output.stderr.contains(program), "{}", output.stderr);
        assert_eq!(world.state("k"), "free", "after {program}");
    }
    // A program that itself exits with 127 was started.
    world.run("k", &[], "exit 127").status(127).run();
    world.run("k", &[], "exit 126").status(126).run();
    world.run("k", &[], "exit 79").status(79).run();
    world.run("k", &[], "exit 75").status(75).run();
}

fn a_script_without_shebang_runs(backend: Backend) {
    let world = World::new(backend);
    world.script("job", "echo \"$# $1\"\nexit 3\n");
    world.dlock(["run", "-k", "k", "--", "./job", "a b"]).status(3).stdout("1 a b\n").run();
}

fn a_command_string_runs_in_the_shell(backend: Backend) {
    let world = World::new(backend);
    let words = ["run", "-k", "k", "-c", "echo one; echo two >&2; exit 4"];
    world.dlock(words).env("SHELL", "/bin/sh").status(4).stdout("one\n").stderr_like("two\n").run();
    world.dlock(words).env_remove("SHELL").status(4).stdout("one\n").stderr_like("two\n").run();
    world.script("shell", "#!/bin/sh\necho \"$@\"\n");
    world.dlock(words).env("SHELL", world.path("shell")).stdout("-c echo one; echo two >&2; exit 4\n").run();
    world.dlock(["run", "-k", "k", "-c", "true", "--", "true"]).status(64).any_stderr().run();
}

/// The messages go to a full device.
#[test]
fn a_message_that_cannot_be_written_fails_nothing() {
    let world = World::new(Backend::Redis);
    world.run("k", &[], "exit 3").after_shell("exec 2> /dev/full").status(3).run();
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    world.run("k", &[], "true").after_shell("exec 2> /dev/full").status(75).run();
    world.run("k", &[], "true").after_shell("exec 2>&-").status(75).run();
    world.dlock(["run"]).after_shell("exec 2> /dev/full").status(64).run();
    world.dlock(["status", "k"]).after_shell("exec > /dev/full").status(74).stderr_like("dlock: .*\n").run();
    world.dlock(["--help"]).after_shell("exec > /dev/full").status(74).any_stderr().run();
    world.write("go", "");
    holder.finish();
}

/// The messages go to a full pipe that nobody reads.
#[test]
fn a_message_that_nobody_reads_delays_nothing() {
    let world = World::new(Backend::Redis);
    let made = world.command("mkfifo").arg("full").status().expect("mkfifo");
    assert!(made.success());
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = File::options();
    let mut full =
        options.read(true).write(true).custom_flags(nonblocking).open(world.path("full")).expect("the fifo");
    while full.write(&[b'x'; 4096]).is_ok() {}
    while full.write(b"x").is_ok() {}
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    world.run("k", &[], "true").after_shell("exec 2> full").status(75).run();
    world.write("go", "");
    holder.finish();
}

/// CMD reads and writes dlock's standard streams, byte by byte.
#[test]
fn streams_are_the_jobs() {
    let world = World::new(Backend::Redis);
    world.dlock(["run", "-k", "k", "--", "cat"]).stdin("to the job\n").stdout("to the job\n").run();
    world.run("k", &[], "echo out; echo err >&2").stdout("out\n").stderr_like("err\n").run();
}

/// The signals whose default action is death, of the kernel's 1 to 64. The C library reserves 32
/// and 33; a process dies of those as well, unless it was started with them ignored, as cargo does
/// by posix_spawn.
fn deadly() -> impl Iterator<Item = i32> + Clone {
    // CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and WINCH do not kill.
    let deadly = (1..=64).filter(|signal| !matches!(signal, 17..=23 | 28));
    deadly.filter(|signal| !matches!(signal, 32 | 33) || !proc::suite_ignores(*signal))
}

/// All cases on Redis, every fifth on other stores, because the store does not matter here.
fn share<I: Iterator<Item = i32> + Clone>(backend: Backend, cases: I) -> impl Iterator<Item = i32> + Clone {
    cases.step_by(if matches!(backend, Backend::Redis) { 1 } else { 5 })
}

/// Works through the cases on two threads.
fn in_two_lanes<I: Iterator<Item = i32> + Clone + Send>(cases: I, case: impl Fn(i32) + Sync) {
    thread::scope(|scope| {
        for lane in 0..2 {
            let (cases, case) = (cases.clone(), &case);
            scope.spawn(move || cases.skip(lane).step_by(2).for_each(case));
        }
    });
}

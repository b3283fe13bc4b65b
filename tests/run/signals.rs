//! Signals sent to dlock reach CMD once, and dlock waits until CMD ends. These tests have no
//! terminal; terminal.rs has one.

use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
use crate::support::{job, proc};
use rustix::process::Signal;
use std::time::Duration;

on_every_store!(
    each_signal_reaches_the_job_once,
    a_signal_ends_dlock_as_it_ends_the_job,
    a_stop_stops_the_job_and_continue_continues_it,
    a_signal_ends_a_waiter,
);

/// The signals that dlock passes on, and their names in the shell's trap.
pub const RELAYED: [(Signal, &str); 7] = [
    (Signal::INT, "INT"),
    (Signal::TERM, "TERM"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
    (Signal::WINCH, "WINCH"),
];

/// Logs each signal that it gets, until the file `stop` exists, and exits with 9. It waits by a
/// builtin, so that a trap runs at once and no other process gets the signal as well. dlock never
/// passes ALRM on, so a test sends it to know that all signals before it were handled.
pub const COUNTER: &str = r#"
for name in INT TERM HUP QUIT USR1 USR2 WINCH CONT ALRM; do trap "echo $name >> log" $name; done
mkfifo fifo.$$ && exec 5<> fifo.$$
echo $$ > job.tmp && mv job.tmp job.pid
while [ ! -e stop ]; do read -t 0.05 line <&5; done
exit 9
"#;

fn each_signal_reaches_the_job_once(backend: Backend) {
    let world = World::new(backend);
    let dlock = world.dlock(["run", "-k", "k", "--", "bash", "-c", COUNTER]).status(9).spawn();
    let job = world.wait_for_pid("job.pid");
    // One signal at a time, because the kernel may merge two of the same kind.
    for round in 1..=10 {
        for (signal, name) in RELAYED {
            dlock.signal(signal);
            world.wait_for_lines(name, round);
        }
    }
    proc::signal(job, Signal::ALARM);
    world.wait_for_log("ALRM");
    world.write("stop", "");
    dlock.finish();
    assert_eq!(RELAYED.map(|(_, name)| world.lines(name)), [10; RELAYED.len()]);
}

fn a_signal_ends_dlock_as_it_ends_the_job(backend: Backend) {
    let world = World::new(backend);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        let line = format!("up {}", signal.as_raw());
        let dlock = world.run("k", &[], &format!("echo {line} >> log; exec sleep 1000"));
        let dlock = dlock.dies_of(signal.as_raw()).spawn();
        world.wait_for_log(&line);
        dlock.signal(signal);
        dlock.finish();
        assert_eq!(world.state("k"), "free");
    }
    // CMD may take its time, and its status counts.
    let job =
        "trap 'sleep 0.5; echo clean_up >> log; exit 8' TERM; echo ready >> log; while :; do sleep 0.1; done";
    let dlock = world.run("k", &["--grace", "100ms"], job).status(8).any_stderr().spawn();
    world.wait_for_log("ready");
    dlock.signal(Signal::TERM);
    dlock.finish();
    assert_eq!(world.log().last().map(String::as_str), Some("clean_up"));
}

fn a_stop_stops_the_job_and_continue_continues_it(backend: Backend) {
    let world = World::new(backend);
    let dlock = world.run("k", &[], "echo $$ > job.pid; exec sleep 1000").any_stderr().dies_of(15).spawn();
    let job = world.wait_for_pid("job.pid");
    dlock.signal(Signal::TSTP);
    wait_until("the job stops", || proc::stopped(job));
    dlock.signal(Signal::CONT);
    wait_until("the job goes on", || !proc::stopped(job));
    dlock.signal(Signal::TERM);
    dlock.finish();
}

/// The store may hang meanwhile.
fn a_signal_ends_a_waiter(backend: Backend) {
    let world = World::new(backend);
    let holder =
        world.run("k", &["-t", "1m"], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let waiter = world.run("k", &["-w"], "echo ran >> log").dies_of(signal.as_raw()).any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        waiter.signal(signal);
        waiter.finish();
        wait_until("the queue is empty", || world.waiters("k") == 0);
    }
    if backend == Backend::Redis {
        let waiter = world.run("k", &["-w"], "echo ran >> log").dies_of(2).any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        world.redis().pause();
        waiter.signal(Signal::INT);
        let mut waiter = waiter;
        // 100 ms are promised; the server never answers.
        wait_within(Duration::from_secs(2), "dlock ends", || waiter.has_ended().then_some(()));
        world.redis().resume();
        waiter.finish();
        wait_until("the queue is empty", || world.waiters("k") == 0);
    }
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// If INT and QUIT were ignored when dlock started, they stay ignored. A shell without job control
/// does that to its background jobs.
#[test]
fn an_ignored_signal_does_not_end_the_job() {
    let world = World::new(Backend::Redis);
    let job = "echo $$ > job.pid; while [ ! -e stop ]; do sleep 0.1; done; exit 9";
    let habit = ["env", "--ignore-signal=INT,HUP"];
    let dlock = world.run("k", &[], job).under(&habit).status(9).spawn();
    let job = world.wait_for_pid("job.pid");
    dlock.signal(Signal::INT);
    dlock.signal(Signal::HUP);
    world.run("k", &[], "true").status(75).any_stderr().run();
    assert!(proc::alive(job));
    world.write("stop", "");
    dlock.finish();
}

/// CMD has its own process group, in dlock's session, so a signal to dlock's group does not reach
/// CMD twice.
#[test]
fn without_a_terminal_the_job_has_its_own_group() {
    let world = World::new(Backend::Redis);
    let job = "read pid name state parent group session tty front rest < /proc/$$/stat
        test $group = $$ && test $front = -1 && echo $session";
    let dlock = world.run("k", &[], job).any_stdout().spawn();
    let pid = dlock.pid();
    assert_eq!(dlock.finish().stdout.trim(), pid.to_string());
}

/// A signal to dlock while it stops the job does not keep it from stopping the job.
#[test]
fn a_signal_does_not_keep_dlock_from_stopping_the_job() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let options = ["--max-run", "1s", "--grace", "1s"];
    let dlock = world.run("k", &options, job::FAMILY).status(124).any_stderr().spawn();
    job::family(&world);
    world.wait_for_log("term");
    dlock.signal(Signal::HUP);
    dlock.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
}

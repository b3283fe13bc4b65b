//! `--tree`: the lock is kept until the last process of the job has ended. Until then the remaining
//! processes are stopped and signalled like the whole job.

use crate::run::signals::{COUNTER, RELAYED};
use crate::support::deadline::{dead_in_time, end_of_last_lease, now};
use crate::support::dlock::Running;
use crate::support::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use crate::support::{job, proc};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

on_every_store!(
    the_lock_is_kept_for_a_daemon,
    without_tree_a_daemon_is_left_alone,
    a_job_that_leaves_nothing_ends_at_once,
    death_by_a_signal_is_kept,
    a_signal_reaches_each_remaining_process_once,
    an_operator_stops_the_remaining_processes,
    max_run_stops_the_remaining_processes,
    dlock_killed_while_it_waits_for_the_rest,
    dlock_stopped_while_it_waits_for_the_rest,
    guard_killed_while_it_waits_for_the_rest,
    on_lost_warn_waits_for_the_rest,
    an_interrupt_from_the_keyboard_reaches_a_daemon,
    a_stop_from_the_keyboard_stops_dlock,
);

/// A lease so long that a test would fail if a waiter had to wait for its end.
const LONG: &str = "10m";

/// Starts a daemon in its own session, without living parents, that runs until the file `go`
/// exists.
const DAEMON: &str = r#"
(setsid sh -c 'echo $$ > daemon.tmp; mv daemon.tmp daemon.pid
    while [ ! -e go ]; do sleep 0.1; done; echo daemon ends >> log; exit 5' &)
while [ ! -e daemon.pid ]; do sleep 0.1; done
"#;

/// Part of the message of `-v` when CMD has ended and other processes have not.
const KEPT: &str = "until the rest of the job has ended";

#[track_caller]
fn wait_for_the_rest(dlock: &Running) {
    wait_until("dlock waits for the rest", || dlock.messages().contains(KEPT));
}

/// Starts processes that try to escape, and waits until CMD itself is dead.
#[track_caller]
fn orphan(world: &World, dlock: &Running) {
    job::family(world);
    proc::signal(world.wait_for_pid("leader.pid"), Signal::KILL);
    wait_for_the_rest(dlock);
}

/// The next job found no process of the family alive.
#[track_caller]
fn nothing_overlapped(world: &World) {
    assert_eq!(world.log().last().map(String::as_str), Some("next"));
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

fn the_lock_is_kept_for_a_daemon(backend: Backend) {
    let world = World::new(backend);
    let dlock = world.run("k", &["-v", "--tree", "-t", "5s"], &format!("{DAEMON}\nexit 7"));
    let dlock = dlock.status(7).any_stderr().spawn();
    let daemon = world.wait_for_pid("daemon.pid");
    wait_for_the_rest(&dlock);
    let message = dlock.messages();
    let line = message.lines().find(|line| line.contains(KEPT)).expect("it was there");
    assert!(line.contains("status 7") && line.contains(&format!("{daemon} (sh)")), "{line}");
    // Longer than the lease, so the lock must be renewed.
    let busy = world.run("k", &["-w", "6s"], "echo overlap >> log").status(75).any_stderr().run();
    let kept = format!("what it left behind then keeps the lock: {daemon} (sh)");
    assert!(busy.stderr.contains(&kept), "{}", busy.stderr);
    let rest = world.status("k")["holders"][0]["rest"].to_string();
    assert!(rest.contains(&format!("{daemon} (sh)")), "{rest}");
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.write("go", "");
    dlock.finish();
    next.finish();
    assert_eq!(world.log(), ["daemon ends", "next"]);
}

fn without_tree_a_daemon_is_left_alone(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &[], &format!("{DAEMON}\nexit 7")).status(7).run();
    assert!(proc::alive(world.wait_for_pid("daemon.pid")));
    assert_eq!(world.state("k"), "free");
}

fn a_job_that_leaves_nothing_ends_at_once(backend: Backend) {
    let world = World::new(backend);
    for status in [0, 1, 255] {
        world.run("k", &["--tree"], &format!("exit {status}")).status(status).run();
    }
    world.dlock(["run", "-k", "k", "--tree", "--", "no-such-program"]).status(127).any_stderr().run();
    assert_eq!(world.state("k"), "free");
}

fn death_by_a_signal_is_kept(backend: Backend) {
    let world = World::new(backend);
    let dlock = world.run("k", &["-v", "--tree"], &format!("{DAEMON}\nkill -USR1 $$"));
    let dlock = dlock.dies_of(Signal::USR1.as_raw()).any_stderr().spawn();
    wait_for_the_rest(&dlock);
    world.write("go", "");
    dlock.finish();
    assert_eq!(world.log(), ["daemon ends"]);
}

/// A process of the job may get the process id that CMD had. Its status is not CMD's.
#[test]
fn another_process_with_the_id_of_cmd_is_not_cmd() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    let choose = "echo 100 > /proc/sys/kernel/ns_last_pid";
    let may = Command::new(unshare[0]).args(&unshare[1..]).args(["sh", "-c", choose]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: this user may not choose process ids");
        return;
    }
    let world = World::new(Backend::Redis);
    // The daemon starts processes until one has the id that CMD had. They end as children of the
    // guard.
    let daemon = r#"
        while kill -0 $1 2> /dev/null; do sleep 0.1; done
        while [ ! -e again ]; do
            (echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; sh -c '[ $$ = '$1' ] && : > again; exit 99' &)
            sleep 0.02
        done
        while [ ! -e go ]; do sleep 0.1; done"#;
    world.write("daemon", daemon);
    let dlock = world.run("k", &["-v", "--tree"], "(setsid sh daemon $$ &); exit 7").under(&unshare);
    let dlock = dlock.status(7).any_stderr().spawn();
    wait_until("the id is given again", || world.path("again").exists());
    world.write("go", "");
    dlock.finish();
}

fn a_signal_reaches_each_remaining_process_once(backend: Backend) {
    let world = World::new(backend);
    world.script("counter", &format!("#!/bin/bash\n{COUNTER}"));
    // One process in its own session, one in CMD's group. A shell makes its background processes
    // ignore INT and QUIT.
    let start = "mkdir near far
        (cd far; exec env --default-signal=INT,QUIT setsid ../counter &)
        (cd near; exec env --default-signal=INT,QUIT ../counter &)
        exit 4";
    let dlock = world.run("k", &["-v", "--tree"], start).status(4).any_stderr().spawn();
    let counters = ["near", "far"];
    let pids = counters.map(|name| world.wait_for_pid(&format!("{name}/job.pid")));
    wait_for_the_rest(&dlock);
    let logged =
        |name: &str, signal: &str| world.read(&format!("{name}/log")).lines().any(|line| line == signal);
    for (signal, name) in RELAYED {
        dlock.signal(signal);
        wait_until("both have got it", || counters.iter().all(|counter| logged(counter, name)));
    }
    for (counter, pid) in counters.into_iter().zip(pids) {
        proc::signal(pid, Signal::ALARM);
        wait_until("all before has been seen", || logged(counter, "ALRM"));
        world.write(&format!("{counter}/stop"), "");
    }
    dlock.finish();
    let mut expected = RELAYED.map(|(_, name)| name).to_vec();
    expected.push("ALRM");
    for counter in counters {
        let log = world.read(&format!("{counter}/log"));
        assert_eq!(log.lines().collect::<Vec<_>>(), expected, "{counter}");
    }
}

fn an_operator_stops_the_remaining_processes(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-v", "--tree", "-t", "10s", "--grace", "1s"];
    let dlock = world.run("k", &options, job::FAMILY).status(79).any_stderr().spawn();
    orphan(&world, &dlock);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    let output = dlock.finish();
    assert!(output.stderr.contains("the rest of the job is being stopped"), "{}", output.stderr);
    assert!(!output.stderr.contains("runs out"), "not as late as that: {}", output.stderr);
    assert!(world.log().contains(&"thawed".into()), "TERM and CONT come first, from the guard");
    assert_eq!(job::survivors(&world), [""; 0]);
    next.finish();
    nothing_overlapped(&world);
}

/// The lock cannot be renewed, and the remaining processes are dead before the lease ends.
#[test]
fn a_lease_that_runs_out_stops_the_remaining_processes() {
    let mut world = World::new(Backend::Redis);
    job::prepare(&world);
    let dlock = world.run("k", &["-v", "--tree", "-t", "8s"], job::FAMILY).status(79).any_stderr().spawn();
    orphan(&world, &dlock);
    let expires = world.redis().after_renewal("dlock:k");
    world.redis_mut().kill();
    let end = end_of_last_lease(expires, now(), Duration::from_secs(8));
    dead_in_time(|| now() >= end, || job::survivors(&world));
    dlock.finish();
}

fn max_run_stops_the_remaining_processes(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-v", "--tree", "--max-run", "4s", "--grace", "200ms"];
    let dlock = world.run("k", &options, job::FAMILY).status(124).any_stderr().spawn();
    orphan(&world, &dlock);
    dlock.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
    assert_eq!(world.state("k"), "free");
}

fn dlock_killed_while_it_waits_for_the_rest(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-v", "--tree", "-t", LONG, "--grace", "300ms"];
    let dlock = world.run("k", &options, job::FAMILY).dies_of(9).any_stderr().spawn();
    orphan(&world, &dlock);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    dlock.signal(Signal::KILL);
    dlock.finish();
    next.finish();
    nothing_overlapped(&world);
}

fn dlock_stopped_while_it_waits_for_the_rest(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let dlock = world.run("k", &["-v", "--tree", "-t", "8s"], job::FAMILY).status(79).any_stderr().spawn();
    orphan(&world, &dlock);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    dlock.signal(Signal::STOP);
    next.finish();
    nothing_overlapped(&world);
    dlock.signal(Signal::CONT);
    dlock.finish();
}

fn guard_killed_while_it_waits_for_the_rest(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-v", "--tree", "-t", LONG, "--grace", "300ms"];
    let dlock = world.run("k", &options, job::FAMILY).status(70).any_stderr().spawn();
    orphan(&world, &dlock);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(dlock.guard(), Signal::KILL);
    next.finish();
    dlock.finish();
    nothing_overlapped(&world);
}

fn on_lost_warn_waits_for_the_rest(backend: Backend) {
    let world = World::new(backend);
    let options = ["-v", "--tree", "-t", "6s", "--on-lost", "warn"];
    let dlock = world.run("k", &options, &format!("{DAEMON}\nexit 7")).status(79).any_stderr().spawn();
    wait_for_the_rest(&dlock);
    world.dlock(["release", "k", "--force", "--now", "-y"]).any_stdout().any_stderr().run();
    wait_until("it warns", || dlock.messages().contains("the rest of the job runs on without it"));
    assert!(proc::alive(world.wait_for_pid("daemon.pid")));
    world.write("go", "");
    dlock.finish();
    assert_eq!(world.log(), ["daemon ends"]);
}

/// A key reaches only the terminal's foreground group, so dlock passes the signal on to a daemon.
/// Processes in that group get it once.
fn an_interrupt_from_the_keyboard_reaches_a_daemon(backend: Backend) {
    let world = World::new(backend);
    world.script("counter", &format!("#!/bin/bash\n{COUNTER}"));
    world.write(
        "start",
        "mkdir near far
        (cd far; exec env --default-signal=INT,QUIT setsid ../counter &)
        (cd near; exec env --default-signal=INT,QUIT ../counter &)
        exit 4",
    );
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -v -k k --tree -- sh start");
    let counters = ["near", "far"];
    let pids = counters.map(|name| world.wait_for_pid(&format!("{name}/job.pid")));
    terminal.expect(KEPT);
    terminal.press(CTRL_C);
    for (counter, pid) in counters.into_iter().zip(pids) {
        let logged = |signal: &str| world.read(&format!("{counter}/log")).lines().any(|line| line == signal);
        wait_until("it is interrupted", || logged("INT"));
        proc::signal(pid, Signal::ALARM);
        wait_until("all before has been seen", || logged("ALRM"));
        world.write(&format!("{counter}/stop"), "");
    }
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("4-is-the-status");
    terminal.close();
    for counter in counters {
        assert_eq!(world.read(&format!("{counter}/log")), "INT\nALRM\n", "{counter}");
    }
}

/// The shell gets its terminal back, and dlock prints when the lock ends. Later dlock goes on.
fn a_stop_from_the_keyboard_stops_dlock(backend: Backend) {
    let world = World::new(backend);
    world.write("start", &format!("{DAEMON}\nexit 7"));
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -v -k k --tree -t 1m -- sh start");
    terminal.expect(KEPT);
    terminal.press(CTRL_Z);
    let shown = terminal.expect("Stopped");
    assert!(shown.contains("stays locked for"), "{shown}");
    terminal.expect("READY> ");
    assert_eq!(world.state("k"), "held");
    terminal.type_line("fg");
    world.write("go", "");
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("7-is-the-status");
    terminal.close();
    assert_eq!(world.log(), ["daemon ends"]);
}

//! On a real terminal keys do to CMD what they do without dlock.

use crate::run::signals::{COUNTER, RELAYED};
use crate::support::pty::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, Terminal};
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use crate::support::{job, proc};
use rustix::process::Signal;

on_every_store!(
    one_interrupt_ends_a_script_that_loops,
    the_keyboard_is_the_jobs,
    stop_background_foreground,
    a_key_reaches_the_job_once,
    signals_sent_to_dlock_reach_the_job_once,
    an_interrupt_ends_a_waiter_and_its_loop,
);

fn one_interrupt_ends_a_script_that_loops(backend: Backend) {
    let world = World::new(backend);
    world.script(
        "loop",
        "#!/bin/bash
        for i in 1 2 3; do dlock run -k k -- sh -c \"echo start $i >> log; exec sleep 1000\"; done
        echo survived >> log\n",
    );
    let mut terminal = Terminal::open(&world);
    terminal.type_line("./loop");
    world.wait_for_log("start 1");
    terminal.press(CTRL_C);
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("130-is-the-status");
    terminal.close();
    assert_eq!(world.log(), ["start 1"]);
    assert_eq!(world.state("k"), "free");
}

fn the_keyboard_is_the_jobs(backend: Backend) {
    let world = World::new(backend);
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -k k -- sh -c 'echo ready-$((1+1)); read line; echo got-$line'");
    terminal.expect("ready-2");
    terminal.press("hello\n");
    terminal.expect("got-hello");
    terminal.expect("READY> ");
    // The terminal belongs to the shell again.
    terminal.type_line("echo back-$((2+2))");
    terminal.expect("back-4");
    let job = "read pid name state parent group session tty front rest < /proc/$$/stat
        test $group = $front -a -t 0 -a -t 1 && echo tty-$((3+3))";
    world.write("front", job);
    terminal.type_line("dlock run -k k -- sh front");
    terminal.expect("tty-6");
    terminal.close();
}

fn stop_background_foreground(backend: Backend) {
    let world = World::new(backend);
    let mut terminal = Terminal::open(&world);
    // The job starts no children, because a child that is stopped between vfork and exec keeps its
    // parent from stopping.
    world.script("idle", &format!("#!/bin/bash\n{COUNTER}"));
    terminal.type_line("dlock run -k k -t 1m -- ./idle");
    let job = world.wait_for_pid("job.pid");
    let dlock = dlock_above(job);
    terminal.press(CTRL_Z);
    let shown = terminal.expect("Stopped");
    let message =
        shown.lines().find(|line| line.contains("dlock: ")).unwrap_or_else(|| panic!("no message: {shown}"));
    assert!(message.contains('k'), "it names the key: {message}");
    assert!(message.contains(|c: char| c.is_ascii_digit()), "it says how long the lock is good: {message}");
    wait_until("the job stops", || proc::stopped(job));
    terminal.expect("READY> ");
    assert_eq!(world.state("k"), "held");
    terminal.type_line("bg");
    wait_until("the job goes on", || !proc::stopped(job));
    // dlock passes the shell's CONT on. A key that comes earlier would be undone by it. dlock
    // passes WINCH on after the CONT.
    wait_until("dlock goes on", || !proc::stopped(dlock));
    proc::signal(dlock, Signal::WINCH);
    world.wait_for_log("WINCH");
    terminal.type_line("fg");
    wait_until("the keyboard is the job's", || proc::in_foreground(job));
    terminal.press(CTRL_Z);
    terminal.expect("Stopped");
    wait_until("the job stops again", || proc::stopped(job));
    terminal.type_line("fg");
    wait_until("the job goes on again", || !proc::stopped(job));
    world.write("stop", "");
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("9-is-the-status");
    terminal.close();
}

/// A job that changed the modes of the terminal, and is stopped by dlock: they are as before, also if
/// the job had a foreground group of its own.
#[test]
fn the_terminal_is_as_before_a_job_that_was_stopped() {
    let world = World::new(Backend::Redis);
    let raw = "trap '' TERM; stty raw -echo; echo up >> log; while :; do sleep 0.1; done";
    world.write("raw", raw);
    world.write("own", "set -m; sh raw");
    let mut terminal = Terminal::open(&world);
    for job in ["sh raw", "bash own"] {
        let line = format!("stty -g > before; dlock run -q -k k --max-run 1s --grace 100ms -- {job}");
        // The shell that runs the script has no job control, and changes no mode itself.
        world.write("script", &format!("{line}\nstty -g > after; read line; echo heard-$line > heard\n"));
        world.write("log", "");
        terminal.type_line("sh script");
        world.wait_for_log("up");
        wait_until("the script goes on", || !world.read("after").is_empty());
        assert_eq!(world.read("before"), world.read("after"), "{job}");
        terminal.press("hello\n");
        wait_until("the keyboard is the script's", || world.read("heard") == "heard-hello\n");
        terminal.expect("READY> ");
        for file in ["after", "heard"] {
            std::fs::remove_file(world.path(file)).expect("a file");
        }
    }
    terminal.close();
}

/// dlock is killed, and the script that started it goes on while the guard stops the job. The guard
/// does not undo what the script changes.
#[test]
fn the_terminal_is_as_before_a_job_that_the_guard_stopped() {
    let world = World::new(Backend::Redis);
    world.write(
        "raw",
        "trap 'echo term >> log' TERM; stty raw -echo; echo up >> log; while :; do sleep 0.1; done",
    );
    world.write("own", "set -m; sh raw");
    let mut terminal = Terminal::open(&world);
    let change = "stty -echo -icanon; stty -g > changed";
    for (job, next, same) in
        [("sh raw", "", "before"), ("bash own", "", "before"), ("sh raw", change, "changed")]
    {
        let script = format!(
            "stty -g > before
            sh -c 'echo $$ > dlock.pid; exec dlock run -q -k k --grace 500ms -- {job}'
            until grep -q term log; do sleep 0.1; done; {next}
            dlock run -q -k k -w -- stty -g > after
            stty sane; echo > done\n",
        );
        world.write("script", &script);
        world.write("log", "");
        terminal.type_line("sh script");
        world.wait_for_log("up");
        proc::signal(world.wait_for_pid("dlock.pid"), Signal::KILL);
        wait_until("the script ends", || world.path("done").exists());
        assert_eq!(world.read(same), world.read("after"), "{job}, {next}");
        terminal.expect("READY> ");
        for file in ["done", "dlock.pid"] {
            std::fs::remove_file(world.path(file)).expect("a file");
        }
    }
    terminal.close();
}

/// A pager behind a job that is stopped: the modes that it has set are its own.
#[test]
fn a_pager_keeps_its_terminal_when_the_job_before_it_is_stopped() {
    let world = World::new(Backend::Redis);
    world.write(
        "pager",
        "read line; stty raw -echo <&3; stty -g <&3 > before; cat; stty -g <&3 > after; stty sane <&3; echo > done\n",
    );
    let mut terminal = Terminal::open(&world);
    let job = "dlock run -q -k k --max-run 1s --grace 100ms -- sh -c 'echo up; exec sleep 1000'";
    terminal.type_line(&format!("{job} | sh pager 3< /dev/tty"));
    wait_until("the pager ends", || world.path("done").exists());
    assert_eq!(world.read("before"), world.read("after"));
    terminal.expect("READY> ");
    terminal.close();
}

/// Two runs in a pipeline: a key stops, continues and ends both, as it does without dlock.
#[test]
fn two_runs_in_a_pipeline_obey_the_keyboard_together() {
    let world = World::new(Backend::Redis);
    let mut terminal = Terminal::open(&world);
    world.write("left", "echo $$ > left.tmp; mv left.tmp left.pid; exec sleep 1000");
    world.write("right", "echo $$ > right.tmp; mv right.tmp right.pid; exec cat");
    terminal.type_line("dlock run -k a -- sh left | dlock run -k b -- sh right");
    let jobs = [world.wait_for_pid("left.pid"), world.wait_for_pid("right.pid")];
    let dlocks = jobs.map(dlock_above);
    terminal.press(CTRL_Z);
    terminal.expect("Stopped");
    wait_until("both jobs stop", || jobs.into_iter().all(proc::stopped));
    terminal.type_line("fg");
    wait_until("all go on", || !jobs.into_iter().chain(dlocks).any(proc::stopped));
    terminal.press(CTRL_C);
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("130-is-the-status");
    assert_eq!(["a", "b"].map(|key| world.state(key)), ["free"; 2]);
    terminal.close();
}

/// The dlock that runs this job.
fn dlock_above(job: i32) -> i32 {
    let mut all = proc::pids().into_iter();
    all.find(|pid| proc::name(*pid) == "dlock" && proc::is_below(job, *pid)).expect("dlock is above its job")
}

/// If CMD alone is continued, dlock goes on as well, because a job that runs needs a renewed lock.
#[test]
fn continuing_the_job_continues_dlock() {
    let world = World::new(Backend::Redis);
    let mut terminal = Terminal::open(&world);
    world.script("idle", &format!("#!/bin/bash\n{COUNTER}"));
    terminal.type_line("dlock run -k k -t 1m -- ./idle");
    let job = world.wait_for_pid("job.pid");
    let dlock = dlock_above(job);
    terminal.press(CTRL_Z);
    terminal.expect("Stopped");
    wait_until("dlock stops", || proc::stopped(dlock) && proc::stopped(job));
    proc::signal(job, Signal::CONT);
    wait_until("dlock goes on", || !proc::stopped(dlock));
    // If dlock passed on a CONT, it would come before this WINCH.
    proc::signal(dlock, Signal::WINCH);
    world.wait_for_log("WINCH");
    assert_eq!(world.lines("CONT"), 1, "dlock does not tell the job what the job told it");
    world.write("stop", "");
    wait_until("dlock ends with the job", || !proc::alive(dlock));
    terminal.close();
}

/// A stopped dlock cannot renew, so the guard stops the job before the lease ends.
#[test]
fn stopped_for_longer_than_the_lease_the_job_is_dead() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -k k -t 1s -- sh -c 'echo $$ > job.pid; exec sleep 1000'");
    world.wait_for_pid("job.pid");
    terminal.press(CTRL_Z);
    terminal.expect("Stopped");
    world.run("k", &["-w"], job::SUCCESSOR).any_stderr().run();
    assert_eq!(world.log(), ["next"]);
    terminal.type_line("fg");
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("79-is-the-status");
    terminal.close();
}

const ROUNDS: usize = 10;

fn a_key_reaches_the_job_once(backend: Backend) {
    let world = World::new(backend);
    world.script("counter", &format!("#!/bin/bash\n{COUNTER}"));
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -k k -- ./counter");
    let job = world.wait_for_pid("job.pid");
    // One key at a time, because the kernel may merge two signals of the same kind.
    for round in 1..=ROUNDS {
        terminal.press(CTRL_C);
        world.wait_for_lines("INT", round);
        terminal.press(CTRL_BACKSLASH);
        world.wait_for_lines("QUIT", round);
    }
    proc::signal(job, Signal::ALARM);
    world.wait_for_log("ALRM");
    world.write("stop", "");
    terminal.expect("READY> ");
    terminal.type_line("echo $?-is-the-status");
    terminal.expect("9-is-the-status");
    terminal.close();
    assert_eq!((world.lines("INT"), world.lines("QUIT")), (ROUNDS, ROUNDS));
}

fn signals_sent_to_dlock_reach_the_job_once(backend: Backend) {
    let world = World::new(backend);
    world.script("counter", &format!("#!/bin/bash\n{COUNTER}"));
    let mut terminal = Terminal::open(&world);
    terminal.type_line("sh -c 'echo $$ > dlock.pid; exec dlock run -k k -- ./counter'");
    let dlock = world.wait_for_pid("dlock.pid");
    let job = world.wait_for_pid("job.pid");
    for round in 1..=ROUNDS {
        for (signal, name) in RELAYED {
            proc::signal(dlock, signal);
            world.wait_for_lines(name, round);
        }
    }
    proc::signal(job, Signal::ALARM);
    world.wait_for_log("ALRM");
    world.write("stop", "");
    terminal.expect("READY> ");
    terminal.close();
    assert_eq!(RELAYED.map(|(_, name)| world.lines(name)), [ROUNDS; RELAYED.len()]);
}

fn an_interrupt_ends_a_waiter_and_its_loop(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").spawn();
    world.wait_for_log("up");
    world.script(
        "loop",
        "#!/bin/bash\nfor i in 1 2 3; do dlock run -k k -w -- true; done\necho survived >> log\n",
    );
    let mut terminal = Terminal::open(&world);
    terminal.type_line("./loop");
    world.wait_for_waiters("k", 1);
    terminal.press(CTRL_C);
    terminal.expect("READY> ");
    terminal.close();
    world.wait_for_waiters("k", 0);
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// On a terminal the message comes at once.
#[test]
fn a_waiter_on_a_terminal_says_whom_it_waits_for() {
    let world = World::new(Backend::Redis);
    let hold = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["--label", "the-long-one"], hold).spawn();
    world.wait_for_log("up");
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -k k -w -- sh -c 'echo ran-$((1+1))'");
    terminal.expect("the-long-one");
    world.write("go", "");
    terminal.expect("ran-2");
    terminal.expect("READY> ");
    holder.finish();
    terminal.close();
}

/// The terminal goes away: the job gets HUP as without dlock, and the lock is released.
#[test]
fn a_hangup_ends_the_job() {
    let world = World::new(Backend::Redis);
    let mut terminal = Terminal::open(&world);
    terminal.type_line("dlock run -k k -- sh -c 'echo $$ > job.pid; exec sleep 1000'");
    let job = world.wait_for_pid("job.pid");
    drop(terminal);
    wait_until("the job ends", || !proc::alive(job));
    world.wait_for_state("k", "free");
}

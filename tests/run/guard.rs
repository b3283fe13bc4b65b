//! dlock or its guard is killed or stopped: the whole job is dead before anybody else has the lock, and the next
//! waiter gets it, after a kill without waiting for the lease to end.

use crate::support::dlock::Running;
use crate::support::job;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

on_every_store!(
    dlock_killed,
    dlock_stopped,
    guard_killed,
    guard_stopped,
    guard_killed_before_the_start,
    guard_stopped_keeps_no_ended_job,
    waiter_killed,
    stopped_waiter_does_not_run_late,
    a_waiter_whose_guard_was_stopped_goes_on,
    on_lost_warn_ends_with_dlock,
    crashed_waiters_delay_the_queue_once,
    newcomer_does_not_overtake_after_a_crash,
);

/// A lease so long that whoever waits for its end is found out.
const LONG: &str = "10m";

fn dlock_killed(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let holder =
        world.run("k", &["-t", LONG, "--grace", "500ms"], job::FAMILY).dies_of(9).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::KILL);
    holder.finish();
    next.finish();
    assert_eq!(world.log().last().map(String::as_str), Some("next"));
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    assert!(world.log().contains(&"thawed".into()), "with TERM comes CONT");
}

fn dlock_stopped(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let holder = world.run("k", &["-t", "10s"], job::FAMILY).status(79).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    holder.signal(Signal::STOP);
    next.finish();
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    holder.signal(Signal::CONT);
    holder.finish();
}

fn guard_killed(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-t", LONG, "--grace", "500ms"];
    let holder = world.run("k", &options, job::FAMILY).status(70).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(holder.guard(), Signal::KILL);
    next.finish();
    let output = holder.finish();
    assert!(output.stderr.contains("dlock: the guard"), "it says why: {}", output.stderr);
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    assert_eq!(job::survivors(&world), [""; 0]);
}

/// The lease has run out, and the job is being stopped for that, whatever becomes of the store and of the guard: 79.
#[test]
fn guard_killed_while_it_stops_a_job_that_lost_its_lease() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    // Deaf to TERM, so that only KILL ends it.
    let job = "trap 'echo term >> log' TERM; echo up >> log; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "15s"], job).env("DLOCK_STORE", proxy.url()).status(79);
    let holder = holder.any_stderr().spawn();
    world.wait_for_log("up");
    proxy.begin_outage();
    world.wait_for_log("term");
    proxy.end_outage();
    wait_until("it can be renewed again", || holder.messages().contains("answers again"));
    proc::signal(holder.guard(), Signal::KILL);
    let output = holder.finish();
    assert_eq!(output.stderr.matches("is being stopped").count(), 1, "{}", output.stderr);
}

/// A stopped guard harms nobody while dlock renews; once it goes on, all ends as usual.
fn guard_stopped(backend: Backend) {
    let world = World::new(backend);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done; echo end >> log; exit 4";
    let holder = world.run("k", &["-t", "5s"], job).status(4).any_stderr().spawn();
    world.wait_for_log("up");
    let guard = holder.guard();
    proc::signal(guard, Signal::STOP);
    wait_until("the guard stops", || proc::stopped(guard));
    // Longer than the lease, by a clock of its own: the lock is somebody's all the time.
    world.run("k", &["-w", "6s"], "echo overlap >> log").status(75).any_stderr().run();
    proc::signal(guard, Signal::CONT);
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "end"]);
}

/// Where there is no guard to give back what was granted, dlock does it, and does not leave it to the lease.
fn guard_killed_before_the_start(backend: Backend) {
    let world = World::new(backend);
    // On `file:` the dlock that is stopped below may have the mutex of the lock, and the holder says that it waits for it.
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";
    let holder = world.run("k", &[], job).any_stderr().spawn();
    world.wait_for_log("up");
    let queued = world.run("k", &["-w", "-t", LONG], "echo ran >> log").status(70).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(queued.guard(), Signal::KILL);
    queued.finish();
    assert_eq!(world.waiters("k"), 0, "it has left the queue");
    let granted = world.run("k", &["-w", "-t", LONG], "echo ran >> log").status(70).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    granted.signal(Signal::STOP);
    proc::signal(granted.guard(), Signal::KILL);
    world.write("go", "");
    holder.finish();
    granted.signal(Signal::CONT);
    granted.finish();
    assert_eq!((world.state("k").as_str(), world.log()), ("free", vec!["up".to_owned()]));
}

/// A job that ended is over, and ended as it did, also when its guard does not say so.
fn guard_stopped_keeps_no_ended_job(backend: Backend) {
    thread::scope(|scope| {
        for options in [&["-t", LONG][..], &["-t", LONG, "--tree"], &["-t", LONG, "--on-lost", "warn"]] {
            scope.spawn(move || {
                let world = World::new(backend);
                let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done; exit 4";
                let holder = world.run("k", options, job).status(4).any_stderr().spawn();
                world.wait_for_log("up");
                let guard = holder.guard();
                proc::signal(guard, Signal::STOP);
                wait_until("the guard stops", || proc::stopped(guard));
                world.write("go", "");
                holder.finish();
                assert_eq!(world.state("k"), "free");
            });
        }
    });
}

/// CMD has ended of the TERM, the rest has not, and the guard that was to kill it is stopped: the job is not over.
#[test]
fn a_guard_stopped_in_the_middle_of_a_stop_spares_nobody() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let script = "sh family & trap 'echo left >> log; exit 0' TERM; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "8s", "--max-run", "2s", "--grace", "10m"], script).status(79);
    let holder = holder.any_stderr().spawn();
    job::family(&world);
    let guard = holder.guard();
    world.wait_for_log("left");
    proc::signal(guard, Signal::STOP);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    // With its guard stopped the lock is renewed, and the job is stopped when that ends.
    world.redis().pause();
    holder.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
    world.redis().resume();
    next.finish();
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

/// What the shell that became dlock had started is not the job's, and neither is what that leaves behind.
#[test]
fn an_orphan_of_the_shell_before_survives_an_adoption() {
    let world = World::new(Backend::Redis);
    let before = "(sh -c 'echo $$ > stranger.tmp; mv stranger.tmp stranger.pid; exec sleep 1000' &
        until [ -e die ]; do sleep 0.02; done) &";
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

/// As PID 1 dlock is given everybody's orphans, and leaves no zombie of them.
#[test]
fn as_pid_1_it_reaps_strangers() {
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success())
    {
        println!("skipped: this user may not make a PID namespace");
        return;
    }
    let world = World::new(Backend::Redis);
    let orphans =
        "for i in 1 2 3 4 5; do (sh -c 'echo up >> log; until [ -e die ]; do sleep 0.02; done' &); done
        exec \"$@\"";
    let under = [&unshare[..], &["sh", "-c", orphans, "sh"]].concat();
    let holder = world.run("k", &[], "echo up >> log; until [ -e go ]; do sleep 0.02; done; exit 3");
    let holder = holder.under(&under).status(3).any_stderr().spawn();
    world.wait_for_lines("up", 6);
    let dlock = *proc::children(holder.pid()).first().expect("the one that unshare started");
    assert_eq!(proc::children(dlock).len(), 6);
    world.write("die", "");
    wait_until("only the guard is left", || proc::children(dlock).len() == 1);
    world.write("go", "");
    holder.finish();
}

/// Each link starts the next one in a session of its own, and ends: whoever looks at what there was is late.
#[test]
fn a_chain_that_never_rests_is_ended() {
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

/// The death of a waiter does not idle the queue behind it.
fn waiter_killed(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.02; done").spawn();
    world.wait_for_log("up");
    let doomed = world.run("k", &["-w"], "echo doomed >> log").any_stderr().dies_of(9).spawn();
    world.wait_for_waiters("k", 1);
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    doomed.signal(Signal::KILL);
    doomed.finish();
    world.write("go", "");
    holder.finish();
    next.finish();
    assert_eq!(world.log(), ["up", "next"]);
}

/// A waiter that was stopped while its grant came and went does not start its job on it.
fn stopped_waiter_does_not_run_late(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.02; done").spawn();
    world.wait_for_log("up");
    let job = "echo sleeper $(ls running 2> /dev/null) >> log";
    let sleeper = world.run("k", &["-w", "-t", "4s"], job).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    sleeper.signal(Signal::STOP);
    let job = "echo next >> log; : > running; while [ ! -e done ]; do sleep 0.02; done; rm running";
    let next = world.run("k", &["-w"], job).any_stderr().spawn();
    world.wait_for_waiters("k", 2);
    world.write("go", "");
    holder.finish();
    // Its lease is 4 s, its silence counts as death after 5 s: the queue goes on without it.
    wait_within(Duration::from_secs(20), "the next in line runs", || {
        world.log().contains(&"next".into()).then_some(())
    });
    sleeper.signal(Signal::CONT);
    wait_until("the sleeper waits again", || world.waiters("k") == 1);
    world.write("done", "");
    next.finish();
    sleeper.finish();
    assert_eq!(world.log(), ["up", "next", "sleeper"]);
}

fn a_waiter_whose_guard_was_stopped_goes_on(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &[], "echo up >> log; while [ ! -e go ]; do sleep 0.02; done").spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo waited >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    proc::signal(waiter.guard(), Signal::STOP);
    let waiting = || world.status("k")["waiters"][0]["waiting_ms"].as_u64();
    let stopped = waiting().expect("it waits");
    wait_until("it has waited for long without its guard", || {
        waiting().is_none_or(|waiting| waiting > stopped + 2500)
    });
    assert_eq!(world.waiters("k"), 1);
    proc::signal(waiter.guard(), Signal::CONT);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

/// A machine with many waiters dies: nothing of them can leave the queue. They do not delay it one by one.
fn crashed_waiters_delay_the_queue_once(backend: Backend) {
    let world = World::new(backend);
    let hold = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";
    let holder = world.run("k", &["-t", LONG], hold).spawn();
    world.wait_for_log("up");
    let doomed = (1..=6).map(|place| {
        let waiter = world.run("k", &["-w", "-t", LONG], "echo doomed >> log").any_stderr().spawn();
        world.wait_for_waiters("k", place);
        waiter
    });
    let doomed = doomed.collect::<Vec<_>>();
    let next = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    wait_until("the next waits", || world.waiters("k") == 7);
    doomed.iter().for_each(crash);
    world.write("go", "");
    holder.finish();
    // 10 s are promised; a busy machine adds to it.
    wait_within(Duration::from_secs(20), "the next in line runs", || {
        (world.lines("next") == 1).then_some(())
    });
    next.finish();
    assert_eq!(world.log(), ["up", "next"]);
}

/// The holder's machine dies, its lease ends, and the head of the queue is a little slow to notice: whoever comes along
/// at that moment does not get the lock in its place.
fn newcomer_does_not_overtake_after_a_crash(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "5s"], "echo up >> log; exec sleep 1000").any_stderr().spawn();
    world.wait_for_log("up");
    let head = world.run("k", &["-w"], "echo head >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    match backend {
        // Here the death is seen at once.
        Backend::File => {
            head.signal(Signal::STOP);
            crash(&holder);
        }
        // The head must not see the end of the lease, nor be silent for so long that it counts as dead.
        _ => {
            crash(&holder);
            let left = || world.status("k")["holders"][0]["lease_ms"].as_u64();
            wait_until("the lease is nearly over", || left().is_some_and(|left| left < 1000));
            head.signal(Signal::STOP);
        }
    }
    let over = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < over {
        world.run("k", &[], "echo overtook >> log").status(75).any_stderr().run();
    }
    head.signal(Signal::CONT);
    head.finish();
    assert_eq!(world.log(), ["up", "head"]);
}

/// Kills dlock and its guard in one moment, as a power failure would.
fn crash(dlock: &Running) {
    let guard = dlock.guard();
    dlock.signal(Signal::STOP);
    proc::signal(guard, Signal::KILL);
    dlock.signal(Signal::KILL);
}

/// `--on-lost warn` lets the lease pass, but no job outlives its dlock.
fn on_lost_warn_ends_with_dlock(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let options = ["-t", LONG, "--grace", "300ms", "--on-lost", "warn"];
    let holder = world.run("k", &options, job::FAMILY).dies_of(9).any_stderr().spawn();
    job::family(&world);
    holder.signal(Signal::KILL);
    holder.finish();
    wait_until("the job is dead", || job::survivors(&world).is_empty());
    world.wait_for_state("k", "free");
}

/// Somebody kills dlock's whole process group, as a shell or a supervisor may: the guard is not in it.
#[test]
fn the_group_of_dlock_killed() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let options = ["-t", LONG, "--grace", "300ms"];
    let holder = world.run("k", &options, job::FAMILY).dies_of(9).any_stderr().spawn();
    job::family(&world);
    let group = Pid::from_raw(holder.pid()).expect("a process id");
    kill_process_group(group, Signal::KILL).expect("dlock leads a group");
    holder.finish();
    wait_until("the job is dead", || job::survivors(&world).is_empty());
    world.wait_for_state("k", "free");
}

/// However busy the machine is.
#[test]
fn a_guard_that_stops_a_job_comes_before_others() {
    if !Command::new("chrt").args(["-r", "1", "true"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: this user may not have a real-time priority");
        return;
    }
    let world = World::new(Backend::Redis);
    let job = "trap 'while [ ! -e go ]; do sleep 0.02; done; exit' TERM; echo up >> log; while :; do sleep 0.02; done";
    let options = ["--max-run", "2s", "--grace", "1m"];
    let holder = world.run("k", &options, job).status(124).any_stderr().spawn();
    world.wait_for_log("up");
    let guard = holder.guard();
    assert!(!proc::is_real_time(guard), "not before");
    wait_until("it has a real-time priority", || proc::is_real_time(guard));
    world.write("go", "");
    holder.finish();
}

/// Who has become another user, as through sudo, cannot be stopped by a dlock that may not signal that user: it is
/// named, and the lock is not given back early.
#[test]
fn what_may_not_be_signalled_keeps_the_lock() {
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

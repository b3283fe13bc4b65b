//! `dlock wait`: waits until locks are free, without taking them.

use crate::support::dlock::{BINARY, Running};
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World, on_every_store};
use rustix::process::Signal;

on_every_store!(
    a_free_lock_is_not_waited_for,
    it_is_woken_when_the_lock_is_released,
    it_takes_no_lock_and_delays_nobody,
    it_notices_the_end_of_a_lease,
    a_cooling_lock_is_not_free,
    a_timeout_runs_out,
    several_one_after_the_other,
    a_pattern_means_every_key_that_is_known,
    a_job_does_not_wait_for_its_own_lock,
    a_signal_ends_it,
    done_means_what_once_per_means,
    a_key_never_seen_is_waited_for_until_it_is_done,
    a_store_that_cannot_be_reached_is_an_error,
);

fn hold(world: &World, key: &str) -> Running {
    let job = format!("echo up-{key} >> log; until [ -e end-{key} ]; do sleep 0.1; done");
    let holder = world.run(key, &[], &job).spawn();
    world.wait_for_log(&format!("up-{key}"));
    holder
}

/// Starts a `dlock wait`. `status` does not show it, so each test must hold whenever its first read
/// is.
fn start_wait(world: &World, options: &[&str]) -> Running {
    world.dlock(["wait"]).args(options).any_stderr().spawn()
}

fn a_free_lock_is_not_waited_for(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["wait", "-q", "k"]).run();
    world.dlock(["wait", "-q", "k", "l", "k", "-w", "0"]).run();
    world.dlock(["wait", "k"]).stderr_like("dlock: k in .* is not known here\n").run();
    world.run("k", &[], "true").run();
    world.dlock(["wait", "k"]).run();
    world.dlock(["wait", "-v", "-w", "1", "k"]).stderr_like("dlock: k in .* is free\n").run();
}

fn it_is_woken_when_the_lock_is_released(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k");
    let waiters: Vec<Running> = (0..3).map(|_| start_wait(&world, &["k"])).collect();
    world.write("end-k", "");
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
}

fn it_takes_no_lock_and_delays_nobody(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k");
    let mut looker = start_wait(&world, &["k"]);
    let next = world.run("k", &["-w"], "echo next >> log; until [ -e end-next ]; do sleep 0.1; done").spawn();
    world.wait_for_waiters("k", 1);
    world.write("end-k", "");
    holder.finish();
    world.wait_for_log("next");
    assert_eq!(world.waiters("k"), 0);
    assert!(!looker.has_ended(), "from one holder to the next it is not free");
    world.write("end-next", "");
    next.finish();
    looker.finish();
    assert_eq!(world.state("k"), "free");
}

fn it_notices_the_end_of_a_lease(backend: Backend) {
    let world = World::new(backend);
    world.dlock(["acquire", "-k", "k", "-t", "3s", "-q"]).any_stdout().run();
    world.dlock(["wait", "k"]).run();
    assert_eq!(world.state("k"), "free");
}

fn a_cooling_lock_is_not_free(backend: Backend) {
    let world = World::new(backend);
    world.run("k", &["--min-hold", "1h"], "true").run();
    world.dlock(["wait", "k", "-w", "0"]).status(75).stderr_like("dlock: k in .*--min-hold.*\n").run();
    world.dlock(["wait", "k", "-q", "-w", "0.2"]).status(75).run();
    world.run("short", &["--min-hold", "500ms"], "true").run();
    world.dlock(["wait", "short"]).run();
}

fn a_timeout_runs_out(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k");
    let like = format!(
        "dlock: k in .* has been held for .* by .*pid {}.*; --wait \\(300ms\\) ran out\n",
        holder.pid()
    );
    world.dlock(["wait", "k", "-w", "0.3"]).status(75).stderr_like(&like).run();
    world.dlock(["wait", "free", "k", "-w", "0", "-q"]).status(75).run();
    world.write("end-k", "");
    holder.finish();
}

fn several_one_after_the_other(backend: Backend) {
    let world = World::new(backend);
    let (first, second) = (hold(&world, "a"), hold(&world, "b"));
    let mut looker = start_wait(&world, &["a", "b"]);
    world.write("end-a", "");
    first.finish();
    assert!(!looker.has_ended());
    world.write("end-b", "");
    second.finish();
    looker.finish();
}

fn a_pattern_means_every_key_that_is_known(backend: Backend) {
    let world = World::new(backend);
    world.run("deploy-idle", &[], "true").run();
    let holders = ["deploy-production", "deploy-test"].map(|key| hold(&world, key));
    let looker = start_wait(&world, &["deploy*", "-v"]);
    wait_until("it says which", || {
        looker.messages().contains("waiting for deploy-idle, deploy-production, deploy-test in ")
    });
    let busy = "dlock: waiting for deploy-.*\ndlock: deploy-production in .* has been held for .*\n";
    world.dlock(["wait", "-w", "0", "deploy*"]).stderr_like(busy).status(75).run();
    for (key, holder) in ["deploy-test", "deploy-production"].into_iter().zip(holders.into_iter().rev()) {
        assert!(!looker.messages().contains("deploy-production in "), "{}", looker.messages());
        world.write(&format!("end-{key}"), "");
        holder.finish();
    }
    looker.finish();
    let none = "dlock: .* has no key that matches x\\*: nothing to wait for\n";
    world.dlock(["wait", "x*"]).stderr_like(none).run();
}

fn done_means_what_once_per_means(backend: Backend) {
    let world = World::new(backend);
    world.run("nightly-a", &["--once-per", "day"], "true").run();
    world.run("nightly-b", &[], "true").run();
    world.run("nightly-b", &[], "false").status(1).run();
    let wait = |period: &str, key: &str| world.dlock(["wait", "-w", "0", "--done", period, key]);
    wait("day", "nightly-*").stderr_like("dlock: waiting for nightly-a, nightly-b in .*\n").run();
    // Both runs arrived longer ago than this.
    let not = "dlock: nightly-[ab] in .* is not done \\(it last succeeded .* ago\\), and is free\n";
    wait("0.001", "nightly-a").status(75).stderr_like(not).run();
    wait("0.001", "nightly-b").status(75).stderr_like(not).run();
    world.dlock(["forget", "nightly-a"]).any_stderr().run();
    wait("day", "nightly-a").status(75).stderr_like(not).run();
    world.run("nightly-a", &["--once-per", "day"], "true").run();
    wait("day", "nightly-a").run();
    let none = "dlock: .* has no key that matches x\\*: nothing to wait for\n";
    wait("day", "x*").status(75).stderr_like(none).run();
    wait("fortnight", "nightly-a").status(64).any_stderr().run();
}

fn a_key_never_seen_is_waited_for_until_it_is_done(backend: Backend) {
    let world = World::new(backend);
    let mut looker = start_wait(&world, &["--done", "day", "k"]);
    let like = "is not known here";
    wait_until("it says so", || looker.messages().contains(like));
    world.run("k", &["--once-per", "day"], "false").status(1).run();
    assert!(!looker.has_ended(), "{}", looker.messages());
    world.run("k", &["--once-per", "day"], "true").run();
    assert_eq!(looker.messages().matches(like).count(), 1);
    looker.finish();
}

fn a_job_does_not_wait_for_its_own_lock(backend: Backend) {
    let world = World::new(backend);
    let job = "$D wait other k; echo $?; $D wait -q other; echo $?; echo \"$DLOCK_HELD\" > held";
    let run = world.run("k", &[], job).env("D", BINARY);
    run.stdout("64\n0\n").stderr_like("dlock: this process itself runs under k in .*\n").run();
    // A stale DLOCK_HELD has no effect.
    world.dlock(["wait", "k"]).env("DLOCK_HELD", world.read("held").trim()).run();
}

fn a_signal_ends_it(backend: Backend) {
    let world = World::new(backend);
    let holder = hold(&world, "k");
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2)] {
        let looker = world.dlock(["wait", "k"]).dies_of(number).spawn();
        wait_until("it takes signals", || proc::blocks(looker.pid(), number));
        looker.signal(signal);
        looker.finish();
    }
    world.write("end-k", "");
    holder.finish();
}

fn a_store_that_cannot_be_reached_is_an_error(backend: Backend) {
    let world = World::new(backend);
    let wait = world.dlock(["wait", "k", "--store", "redis://127.0.0.1:1", "--connect-timeout", "0.2"]);
    wait.status(69).stderr_like("dlock: .*127.0.0.1:1.*\n").run();
}

/// `wait` and `release` end at once, although the server does not answer.
#[test]
fn a_signal_ends_it_while_the_server_hangs() {
    let world = World::with_redis(&[]);
    world.dlock(["acquire", "-q", "-k", "k", "-t", "1h"]).any_stdout().run();
    let looker = world.dlock(["wait", "k", "--op-timeout", "1h"]).any_stderr().dies_of(15).spawn();
    let releaser = world.dlock(["release", "k", "-y", "--op-timeout", "1h"]).any_stderr().dies_of(15).spawn();
    wait_until("it has asked", || releaser.messages().contains("is a script"));
    world.redis().pause();
    for waiting in [looker, releaser] {
        let pid = waiting.pid();
        wait_until("it takes signals", || proc::blocks(pid, Signal::TERM.as_raw()));
        waiting.signal(Signal::TERM);
        wait_until("it is gone", || !proc::alive(pid));
        waiting.finish();
    }
    world.redis().resume();
}

/// After the first answer of the store `dlock wait` survives an outage.
#[test]
fn an_outage_is_ridden_out() {
    let world = World::with_redis(&[]);
    let proxy = Proxy::before(world.redis().port());
    let holder = hold(&world, "k");
    let wait = |options: &[&str]| {
        let seen = proxy.seen();
        let wait =
            world.dlock(["wait", "k", "--op-timeout", "0.2"]).args(options).env("DLOCK_STORE", proxy.url());
        let wait = wait.any_stderr();
        (seen, wait)
    };
    let (seen, looker) = wait(&[]);
    let looker = looker.spawn();
    // Two reads, and the subscription between them.
    wait_until("it looks on", || proxy.seen() >= seen + 3);
    proxy.begin_outage();
    wait_until("it says so", || looker.messages().contains("still waiting for k"));
    world.write("end-k", "");
    holder.finish();
    proxy.end_outage();
    let output = looker.finish();
    assert!(output.stderr.contains("answers again"), "{}", output.stderr);
    // If the wait ends in an outage, the state of the lock is unknown.
    let holder = hold(&world, "k2");
    let wait = world.dlock(["wait", "k2", "--op-timeout", "0.2", "-w", "5"]).env("DLOCK_STORE", proxy.url());
    let seen = proxy.seen();
    let looker = wait.status(69).any_stderr().spawn();
    wait_until("it looks on", || proxy.seen() >= seen + 3);
    proxy.begin_outage();
    looker.finish();
    world.write("end-k2", "");
    holder.finish();
}

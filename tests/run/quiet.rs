//! `-q` silences trouble that passes, so that forty machines do not send forty mails. If the
//! trouble ends a run, that is reported, with its cause.

use crate::support::dlock::{Running, finish_all};
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use std::fs::{self, File};

const JOB: &str = "echo up >> log; while ! [ -e end ]; do sleep 0.1; done";

/// Waits until each of these processes has printed `what`.
fn wait_until_all_say(loud: &[Running], what: &str) {
    wait_until(what, || loud.iter().all(|one| one.messages().contains(what)));
}

/// Holders, waiters and watchers in an outage, each with and without `-q`. Those without it show
/// when there was something to report.
#[test]
fn an_outage_that_passes_is_not_reported() {
    let world = World::with_redis(&[]);
    let quiet_holder = world.run("quiet", &["-q", "-t", "40s"], JOB).spawn();
    let holder = world.run("loud", &["-t", "40s"], JOB).any_stderr().spawn();
    wait_until("both run", || world.log().len() == 2);
    let quiet_waiter = world.run("quiet", &["-q", "-w", "-t", "40s"], "true").spawn();
    let waiter = world.run("loud", &["-w", "-t", "40s"], "true").any_stderr().spawn();
    for key in ["quiet", "loud"] {
        world.wait_for_waiters(key, 1);
    }
    let script = world.dlock(["acquire", "-q", "-k", "quiet", "-w", "-t", "1s"]).any_stdout().spawn();
    world.wait_for_waiters("quiet", 2);
    let looker = world.dlock(["wait", "-q", "quiet"]).spawn();
    let quiet_watch = world.dlock(["watch", "-q"]).any_stdout().spawn();
    let watch = world.dlock(["watch"]).any_stdout().any_stderr().spawn();
    wait_until("both watch", || {
        world.run("seen", &[], "true").run();
        [&quiet_watch, &watch].iter().all(|watch| watch.printed().contains("seen"))
    });
    let loud = [holder, waiter, watch];
    world.redis().pause();
    for (one, words) in loud.iter().zip(["cannot renew", "still waiting", "no events until"]) {
        wait_until(words, || one.messages().contains(words));
    }
    world.redis().resume();
    wait_until_all_say(&loud, "answers again");
    world.write("end", "");
    finish_all([quiet_holder, quiet_waiter, script, looker]);
    let [.., watch] = &loud;
    watch.signal(Signal::TERM);
    quiet_watch.signal(Signal::TERM);
    quiet_watch.finish();
    finish_all(loud);
}

/// Another process holds the mutex of the lock for a while.
#[test]
fn a_wait_for_a_directory_is_not_reported() {
    let world = World::new(Backend::File);
    world.run("k", &[], "true").run();
    let mutex = fs::read_dir(world.path("locks")).expect("a directory").flatten();
    let mutex = mutex.map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "mutex"));
    let mutex = File::open(mutex.expect("a mutex")).expect("it can be opened");
    flock(&mutex, FlockOperation::LockExclusive).expect("it can be locked");
    let quiet = world.run("k", &["-q", "-w", "--op-timeout", "0.2"], "true").spawn();
    let loud = [world.run("k", &["-w", "--op-timeout", "0.2"], "true").any_stderr().spawn()];
    wait_until_all_say(&loud, "still waiting for k");
    flock(&mutex, FlockOperation::Unlock).expect("it can be unlocked");
    quiet.finish();
    finish_all(loud);
}

/// The deadline says it first. The store, when it answers again, has nothing to add.
#[test]
fn with_on_lost_warn_a_loss_is_said_once() {
    let world = World::with_redis(&[]);
    let proxy = Proxy::before(world.redis().port());
    let options = ["-t", "2s", "--op-timeout", "0.2", "--on-lost", "warn"];
    let run = world.run("k", &options, JOB).env("DLOCK_STORE", proxy.url()).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    proxy.begin_outage();
    wait_until("the lock is lost", || run.messages().contains("is lost"));
    wait_until("the store has ended the hold", || world.state("k") == "free");
    let before = proxy.seen();
    proxy.end_outage();
    wait_until("it asks the store again", || proxy.seen() > before);
    world.write("end", "");
    let said = run.finish().stderr;
    assert_eq!(said.matches("is lost").count(), 1, "{said}");
}

/// The outage itself was not reported, so the final message names it.
#[test]
fn an_outage_that_ends_a_run_is_reported_with_its_cause() {
    let world = World::with_redis(&[]);
    let proxy = Proxy::before(world.redis().port());
    let run = |key, options: &[&str], script| {
        let options = [&["-q", "-t", "6s", "--op-timeout", "0.2"], options].concat();
        world.run(key, &options, script).env("DLOCK_STORE", proxy.url())
    };
    let cause = r"\(.*127\.0\.0\.1.*DLOCK_STORE\)";
    let stopped = format!("dlock: the lease of k in .* runs out and cannot be renewed {cause}; .* stopped\n");
    let stopped = run("k", &[], "echo up >> log; exec sleep 1000").status(79).stderr_like(&stopped).spawn();
    let warned = format!("dlock: l in .* is lost: .* in time {cause}; the command has ended without it .*\n");
    let warned = run("l", &["--on-lost", "warn"], JOB).status(79).stderr_like(&warned).spawn();
    // Shows when the lease of the quiet run is over.
    let loud = world.run("m", &["-t", "6s", "--on-lost", "warn"], JOB).env("DLOCK_STORE", proxy.url());
    wait_until("two run", || world.log().len() == 2);
    let loud = loud.status(79).any_stderr().spawn();
    wait_until("all run", || world.log().len() == 3);
    proxy.begin_outage();
    stopped.finish();
    wait_until("the lock is lost", || loud.messages().contains("is lost"));
    world.write("end", "");
    warned.finish();
    loud.finish();
}

//! The store stays away: every process of the job is dead before the lease ends.

use crate::support::deadline::{dead_in_time, end_of_last_lease, now};
use crate::support::job;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use rustix::process::Signal;
use std::thread;
use std::time::Duration;

/// The store's last record says when the lease ends. Every process of the job is dead before that.
#[test]
fn a_server_gone_for_good_means_dead_by_the_deadline() {
    thread::scope(|scope| {
        for gone in [Gone::Killed, Gone::Stopped] {
            for guard in [Guard::Well, Guard::Stopped] {
                scope.spawn(move || dead_by_the_deadline(gone, guard));
            }
        }
    });
}

#[derive(Debug, Clone, Copy)]
enum Gone {
    Killed,
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    Well,
    /// dlock must notice that the guard does nothing, and stop the job itself.
    Stopped,
}

fn dead_by_the_deadline(gone: Gone, guard: Guard) {
    let mut world = World::new(Backend::Redis);
    job::prepare(&world);
    let holder = world.run("k", &["-t", "8s"], job::FAMILY).status(79).any_stderr().spawn();
    job::family(&world);
    if guard == Guard::Stopped {
        proc::signal(holder.guard(), Signal::STOP);
    }
    let expires = world.redis().after_renewal("dlock:k");
    match gone {
        Gone::Killed => world.redis_mut().kill(),
        Gone::Stopped => world.redis().pause(),
    }
    let end = end_of_last_lease(expires, now(), Duration::from_secs(8));
    dead_in_time(|| now() >= end, || job::survivors(&world));
    let output = holder.finish();
    assert!(guard == Guard::Stopped || world.log().contains(&"term".into()), "TERM comes before KILL");
    assert!(output.stderr.contains("lease of k"), "{}", output.stderr);
}

/// The store counts the lease from the request, not from the arrival of its answer. dlock must do
/// the same, for the grant and for each renewal.
#[test]
fn a_slow_answer_does_not_lengthen_the_lease() {
    thread::scope(|scope| {
        scope.spawn(|| {
            // The lease is granted and never renewed.
            dead_by_the_deadline_after_slow_answers("12s", Duration::from_secs(3), |world, proxy| {
                wait_until("the lock is asked for", || proxy.seen() > 0);
                proxy.begin_outage();
                wait_until("the grant", || world.redis().expires("dlock:k") > 0);
            });
        });
        scope.spawn(|| {
            // One attempt to renew may take a sixteenth of the ttl.
            dead_by_the_deadline_after_slow_answers("12s", Duration::from_millis(650), |world, proxy| {
                world.wait_for_pid("job.pid");
                world.redis().after_renewal("dlock:k");
                proxy.begin_outage();
            });
        });
    });
}

/// `last` waits for the last request that the store gets, and begins the outage.
fn dead_by_the_deadline_after_slow_answers(ttl: &str, delay: Duration, last: impl FnOnce(&World, &Proxy)) {
    let world = World::new(Backend::Redis);
    // Loads the scripts into the server, so that each operation is one request.
    let other = world.run("other", &["-t", "6s"], "while [ ! -e renewed ]; do sleep 0.1; done").spawn();
    wait_until("it is held", || world.redis().get("dlock:other").is_some());
    world.redis().after_renewal("dlock:other");
    world.write("renewed", "");
    other.finish();
    let proxy = Proxy::before(world.redis().port());
    proxy.delay_replies(delay);
    let job = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", ttl, "--op-timeout", "5s"], job).env("DLOCK_STORE", proxy.url());
    let holder = holder.status(79).any_stderr().spawn();
    last(&world, &proxy);
    let job = world.wait_for_pid("job.pid");
    let alive = || Some(job).filter(|job| proc::alive(*job)).into_iter().collect();
    dead_in_time(|| world.redis().get("dlock:k").is_none(), alive);
    holder.finish();
}

/// The grace after `--max-run` ends with the lease, and then the status is that of a lost lock.
#[test]
fn a_long_grace_does_not_outlast_the_lease() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let options = ["-t", "8s", "--max-run", "2s", "--grace", "10m"];
    let holder = world.run("k", &options, job::FAMILY).status(79).any_stderr().spawn();
    job::family(&world);
    world.wait_for_log("term");
    let expires = world.redis().after_renewal("dlock:k");
    world.redis().pause();
    let end = end_of_last_lease(expires, now(), Duration::from_secs(8));
    dead_in_time(|| now() >= end, || job::survivors(&world));
    holder.finish();
}

/// Once the job has got TERM, it is stopped, even if the server is back a moment later.
#[test]
fn a_late_renewal_does_not_cancel_the_stop() {
    let world = World::new(Backend::Redis);
    let job = "trap 'echo term >> log' TERM; echo $$ > job.pid; while :; do sleep 0.1; done";
    let holder = world.run("k", &["-t", "6s"], job).status(79).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    world.redis().pause();
    world.wait_for_log("term");
    world.redis().resume();
    holder.finish();
    assert!(!proc::alive(job));
    assert_eq!(world.log(), ["term"]);
}

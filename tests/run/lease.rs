//! The lease of `dlock run`: it is renewed while the job runs. If it cannot be renewed, or the lock
//! is taken away, the whole job is dead before another run can get the lock.

mod deadline;
mod loss;
mod outage;

#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::job;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::proc;
use crate::support::world::{Backend, World, on_every_store};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

on_every_store!(a_job_longer_than_five_ttls_keeps_its_lock, fences_grow_when_the_store_forgets);

fn a_job_longer_than_five_ttls_keeps_its_lock(backend: Backend) {
    let world = World::new(backend);
    let job = "echo up >> log; sleep 20.5; echo end >> log; exit 5";
    let mut holder = world.run("k", &["-t", "4s"], job).status(5).spawn();
    world.wait_for_log("up");
    let fence = world.fence("k");
    while world.log().last().is_some_and(|line| line == "up") {
        let other = world.run("k", &["--op-timeout", "20s"], "echo overlap $(tail -n 1 log) >> log");
        let other = other.any_stderr().spawn().output();
        // Busy, unless the job has ended in the meantime.
        assert!(other.end() == crate::support::dlock::End::Status(75) || world.log().contains(&"end".into()));
        if !holder.has_ended() && world.log().len() == 1 {
            assert_eq!(world.fence("k"), fence, "it is still the first grant");
        }
        // Only saves processor time: the loop must not keep one busy for as long as the job runs.
        sleep(Duration::from_millis(50));
    }
    holder.finish();
    assert!(!world.log().contains(&"overlap up".into()), "{:?}", world.log());
}

/// The user's processes may have used up the limit of threads. (Stores that block during a request
/// have their thread from the first request on.)
#[test]
fn a_lock_is_kept_if_no_thread_can_be_started() {
    // More than the address space.
    const STACK: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let job = "echo up >> log; sleep 13; echo end >> log";
        let holder = world.run("k", &["-t", "4s"], job).env(STACK.0, STACK.1).spawn();
        world.wait_for_log("up");
        holder.finish();
        assert_eq!(world.log(), ["up", "end"]);
        // Without a notification channel the request of an operator arrives with the next renewal.
        let job = "echo again >> log; exec sleep 60";
        let holder = world.run("k", &["-t", "4s"], job).env(STACK.0, STACK.1).status(79).any_stderr().spawn();
        world.wait_for_log("again");
        world.dlock(["release", "-y", "k"]).any_stdout().any_stderr().run();
        holder.finish();
    }
}

/// Deletes every record of the store.
pub fn forget(world: &World) {
    #[cfg(feature = "etcd")]
    if world.url().starts_with("etcd:") {
        return Etcd::shared().forget(&world.url());
    }
    #[cfg(feature = "mysql")]
    if world.url().starts_with("mysql:") {
        Mysql::shared().ask(world.database(), "DELETE FROM dlock_locks");
        return;
    }
    #[cfg(feature = "postgres")]
    if world.url().starts_with("postgres:") {
        Postgres::shared().ask(world.database(), "DELETE FROM dlock_locks");
        return;
    }
    #[cfg(feature = "zookeeper")]
    if world.url().starts_with("zookeeper:") {
        return ZooKeeper::shared().forget(world);
    }
    match world.url().strip_prefix("file:") {
        None => world.redis().ask::<()>(&["FLUSHALL"]),
        Some(directory) => {
            for entry in fs::read_dir(directory).expect("the store").flatten() {
                let path = entry.path();
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.expect("the store's records can be removed");
            }
        }
    }
}

/// Each grant has a greater fence, even if every record of the earlier ones is gone.
fn fences_grow_when_the_store_forgets(backend: Backend) {
    let mut world = World::new(backend);
    let mut last = 0;
    for round in 0..6 {
        match round {
            2 => forget(&world),
            4 if backend == Backend::Redis => world.redis_mut().restart(),
            _ => {}
        }
        let output = world.run("k", &[], "echo $DLOCK_FENCE").stdout_like("[0-9]+\n").run();
        let fence: u64 = output.stdout.trim().parse().expect("a fence is a number");
        assert!(fence > last, "round {round}: {fence} after {last}");
        last = fence;
    }
}

/// --max-run ends with 124, even if CMD needed KILL. The lock is kept until the whole job is dead.
#[test]
fn max_run_stops_the_whole_job() {
    let world = World::new(Backend::Redis);
    job::prepare(&world);
    let options = ["-t", "6s", "--max-run", "4s", "--grace", "1500ms"];
    let holder = world.run("k", &options, job::FAMILY).status(124).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["-w"], job::SUCCESSOR).any_stderr().spawn();
    holder.finish();
    next.finish();
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
    world.run("k", &["--max-run", "300ms"], "exec sleep 1000").status(124).any_stderr().run();
    world.run("k", &["--max-run", "20s"], "exit 3").status(3).run();
}

/// Without --tree, processes that outlive CMD are not stopped.
#[test]
fn processes_that_a_job_leaves_behind_live_on() {
    let world = World::new(Backend::Redis);
    world.run("k", &[], "sleep 1000 & echo $! > left.tmp; mv left.tmp left.pid").run();
    let left = world.wait_for_pid("left.pid");
    assert!(proc::alive(left));
    assert_eq!(world.state("k"), "free");
    assert!(proc::alive(left));
}

/// The lease counts from the request. A grant that arrives after its end is useless, so dlock
/// requests the lock again.
#[test]
fn a_grant_that_arrives_too_late_is_requested_again() {
    let world = World::new(Backend::Redis);
    world.redis().pause();
    let slow = ["-t", "4s", "--connect-timeout", "1m", "--op-timeout", "1m"];
    let holder = world.run("k", &slow, "echo ran >> log; exit 3").status(3).any_stderr().spawn();
    // Longer than the lease.
    sleep(Duration::from_millis(4200));
    world.redis().resume();
    holder.finish();
    assert_eq!(world.log(), ["ran"]);
}

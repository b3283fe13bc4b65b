//! The lock is forgotten, overwritten or taken away: the holder finds out, and stops its job.

use super::forget;
use crate::support::deadline::now;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::job;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::proc;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use std::fs;
use std::thread;
use std::time::Duration;

on_every_store!(
    a_lock_that_vanished_before_the_end_is_lost,
    a_lost_lock_stops_the_whole_job,
    a_loss_is_noticed_at_the_next_heartbeat,
    on_lost_warn_lets_the_job_end,
    a_store_that_forgot_the_lock_is_reported,
    a_forced_release_stops_the_job_and_spares_the_next_holder,
    a_forced_release_grants_only_when_the_old_job_is_dead,
    a_forced_release_is_heard_long_before_the_next_renewal,
);

/// A job whose lock was taken away or forgotten gets its grace, not the rest of the lease.
#[test]
fn a_lost_lock_leaves_the_job_its_grace_and_no_more() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let world = stopped_long_before_the_deadline(|world| {
                world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
            });
            // The lock is free once the job is dead, although its lease has not ended.
            assert_eq!(world.state("k"), "free");
        });
        scope.spawn(|| drop(stopped_long_before_the_deadline(forget)));
    });
}

fn stopped_long_before_the_deadline(lose: impl FnOnce(&World)) -> World {
    let world = World::new(Backend::Redis);
    let job = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.1; done";
    let options = ["-t", "40s", "--grace", "300ms"];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    let expires = world.redis().expires("dlock:k");
    lose(&world);
    wait_until("the job is dead", || !proc::alive(job));
    // dlock learns of the loss at the next renewal, after a quarter of the lease.
    assert!(now() + 5000 < expires, "it lived to the end of its lease");
    holder.finish();
    world
}

/// The store forgets the lock. The holder notices at its next heartbeat, and no renewal brings the
/// lock back.
fn a_lost_lock_stops_the_whole_job(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let holder = world.run("k", &["-t", "6s"], job::FAMILY).status(79).any_stderr().spawn();
    job::family(&world);
    forget(&world);
    holder.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
    assert!(world.log().contains(&"term".into()), "TERM comes before KILL");
    assert!(world.log().contains(&"thawed".into()), "with TERM comes CONT");
    assert_eq!(world.state("k"), "free");
}

/// The job is stopped when the store reports the loss, not when the lease runs out.
fn a_loss_is_noticed_at_the_next_heartbeat(backend: Backend) {
    thread::scope(|scope| {
        for loss in [Loss::Forgotten, Loss::Forced] {
            scope.spawn(move || {
                let world = World::new(backend);
                let job = "trap 'echo term >> log; exit 1' TERM; echo up >> log; while :; do sleep 0.1; done";
                // The next heartbeat comes after 8 s. The lease alone would let the job run for
                // 25.3 s.
                let holder = world.run("k", &["-t", "32s"], job).status(79).any_stderr().spawn();
                world.wait_for_log("up");
                match loss {
                    Loss::Forgotten => forget(&world),
                    Loss::Forced => {
                        world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
                    }
                }
                wait_within(Duration::from_secs(20), "the job is told to go", || {
                    (world.lines("term") == 1).then_some(())
                });
                holder.finish();
            });
        }
    });
}

#[derive(Debug, Clone, Copy)]
enum Loss {
    Forgotten,
    Forced,
}

fn a_store_that_forgot_the_lock_is_reported(backend: Backend) {
    let world = World::new(backend);
    let holder = world.run("k", &["-t", "6s"], "echo up >> log; exec sleep 1000").status(79);
    let lost = "(?:.*\n)?dlock: k in .* is lost: the store no longer knows this lock: it was restarted, flushed or failed \
                over; the command is being stopped\n(?:.*\n)?";
    let holder = holder.stderr_like(lost).spawn();
    world.wait_for_log("up");
    forget(&world);
    holder.finish();
    for command in ["status", "history"] {
        let said = world.dlock([command, "k"]).any_stdout().run().stdout;
        assert!(
            said.starts_with("no record of k") && said.contains("flushed or failed over since"),
            "{said}"
        );
    }
}

fn on_lost_warn_lets_the_job_end(backend: Backend) {
    let world = World::new(backend);
    let job = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; echo end >> log";
    let holder = world.run("k", &["-t", "6s", "--on-lost", "warn"], job).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    forget(&world);
    wait_until("dlock warns", || holder.messages().contains("lost"));
    world.write("go", "");
    let output = holder.finish();
    assert!(output.stderr.lines().all(|line| line.starts_with("dlock: ")), "{}", output.stderr);
    assert_eq!(world.log(), ["up", "end"]);
}

fn a_forced_release_stops_the_job_and_spares_the_next_holder(backend: Backend) {
    let world = World::new(backend);
    let job = "trap '' TERM; echo old >> log; sleep 1000";
    let old = world.run("k", &["-t", "8s"], job).status(79).any_stderr().spawn();
    world.wait_for_log("old");
    let forced = world.dlock(["release", "k", "--force", "--now", "-y"]).any_stdout().any_stderr().run();
    assert!((forced.stdout + &forced.stderr).contains("may still run"), "it says that both may run");
    let job = "echo new >> log; while [ ! -e go ]; do sleep 0.1; done; exit 6";
    let new = world.run("k", &["-t", "8s"], job).status(6).spawn();
    world.wait_for_log("new");
    let fence = world.fence("k");
    old.finish();
    let status = world.status("k");
    assert_eq!(status["state"], "held");
    assert_eq!(status["holders"][0]["pid"], new.pid());
    assert_eq!(status["fence"], fence);
    world.run("k", &[], "echo third >> log").status(75).any_stderr().run();
    world.write("go", "");
    new.finish();
    assert_eq!(world.log(), ["old", "new"]);
}

fn a_forced_release_grants_only_when_the_old_job_is_dead(backend: Backend) {
    let world = World::new(backend);
    job::prepare(&world);
    let old = world.run("k", &["-t", "8s", "--grace", "300ms"], job::FAMILY).status(79).any_stderr().spawn();
    job::family(&world);
    let next = world.run("k", &["--wait"], job::SUCCESSOR).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
    next.finish();
    old.finish();
    assert_eq!(job::survivors(&world), [""; 0]);
    assert!(!world.read("log").contains("overlap"), "{:?}", world.log());
}

/// The next renewal is due after two and a half minutes. The holder listens from the first second
/// on, and has looked once by then.
fn a_forced_release_is_heard_long_before_the_next_renewal(backend: Backend) {
    for now in [&[][..], &["--now", "-y"]] {
        let world = World::new(backend);
        let old = world.run("k", &["-t", "10m"], "sleep 2; echo old >> log; exec sleep 1000");
        let old = old.status(79).any_stderr().spawn();
        world.wait_for_log("old");
        let next = world.run("k", &["--wait"], "echo next >> log").any_stderr().spawn();
        world.wait_for_waiters("k", 1);
        let take = [&["release", "k", "--force"], now].concat();
        world.dlock(&take).any_stdout().any_stderr().run();
        let hears = || old.messages().contains("away").then_some(());
        wait_within(Duration::from_secs(25), "its dlock hears of it", hears);
        old.finish();
        next.finish();
        assert_eq!(world.log(), ["old", "next"]);
    }
}

/// A server without persistence forgets the lock in a restart.
#[test]
fn a_restart_without_persistence_is_a_loss() {
    let mut world = World::new(Backend::Redis);
    let holder =
        world.run("k", &["-t", "6s"], "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let job = world.redis().get("dlock:k");
    assert!(job.is_some());
    world.redis_mut().restart();
    holder.finish();
    assert_eq!(world.redis().get("dlock:k"), None, "no renewal creates a lock");
}

/// The lock's key has another client's value: the lock is lost, and the value stays.
#[test]
fn a_lock_key_taken_over_is_a_loss() {
    let world = World::new(Backend::Redis);
    let holder =
        world.run("k", &["-t", "6s"], "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().ask::<()>(&["SET", "dlock:k", "somebody", "PX", "60000"]);
    holder.finish();
    assert_eq!(world.redis().get("dlock:k").as_deref(), Some("somebody"));
}

/// The lock is lost between the last heartbeat and the end of CMD. The release notices.
fn a_lock_that_vanished_before_the_end_is_lost(backend: Backend) {
    let world = World::new(backend);
    let job = "touch up; while [ ! -e go ]; do sleep 0.1; done; exit 3";
    let holder = world.run("k", &["-t", "10m", "--report", "r.json"], job).status(79);
    let holder = holder.stderr_like("dlock: k .*was lost before the command ended .*status 3.*\n").spawn();
    wait_until("the job runs", || world.path("up").exists());
    match backend {
        Backend::Redis => world.redis().ask::<()>(&["FLUSHALL"]),
        Backend::File => fs::remove_dir_all(world.path("locks"))
            .and_then(|()| fs::create_dir(world.path("locks")))
            .unwrap(),
        #[cfg(feature = "mysql")]
        Backend::Mysql => drop(Mysql::shared().ask(world.database(), "DROP TABLE dlock_locks")),
        #[cfg(feature = "postgres")]
        Backend::Postgres => {
            Postgres::shared().ask(world.database(), "DROP TABLE dlock_locks, dlock_waiters, dlock_ends");
        }
        #[cfg(feature = "etcd")]
        Backend::Etcd => Etcd::shared().forget(&world.url()),
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => ZooKeeper::shared().forget_at_once(&world),
    }
    world.write("go", "");
    holder.finish();
    let report: serde_json::Value = serde_json::from_str(&world.read("r.json")).unwrap();
    assert_eq!((&report["outcome"], &report["lost"]), (&"lost".into(), &"vanished".into()), "{report}");
}

//! The lease: kept while the job runs, through outages up to half of it; and when it cannot be kept, or is taken
//! away, the whole job is dead before anybody else could have the lock.

use crate::support::deadline::{dead_in_time, end_of_last_lease, now};
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::job;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use rustix::process::Signal;
use std::fs;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

on_every_store!(
    a_lock_that_vanished_before_the_end_is_lost,
    a_job_longer_than_five_ttls_keeps_its_lock,
    a_lost_lock_stops_the_whole_job,
    a_loss_is_heard_of_at_the_next_heartbeat,
    on_lost_warn_lets_the_job_end,
    a_store_that_forgot_is_said_to_have,
    a_forced_release_stops_the_job_and_spares_the_next_holder,
    a_forced_release_grants_only_when_the_old_job_is_dead,
    fences_grow_when_the_store_forgets,
);

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
        // Waits for nothing: without it this loop alone would keep a processor busy for all of the job.
        sleep(Duration::from_millis(50));
    }
    holder.finish();
    assert!(!world.log().contains(&"overlap up".into()), "{:?}", world.log());
}

/// A job, or anything else of the same user, may have used up what a thread takes. (Stores that cannot be asked while a
/// signal is heeded have their thread from the first request on.)
#[test]
fn a_hold_is_kept_where_no_thread_can_be_made() {
    // More than there is address space.
    const STACK: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");
    for backend in [Backend::Redis, Backend::File] {
        let world = World::new(backend);
        let job = "echo up >> log; sleep 13; echo end >> log";
        let holder = world.run("k", &["-t", "4s"], job).env(STACK.0, STACK.1).spawn();
        world.wait_for_log("up");
        holder.finish();
        assert_eq!(world.log(), ["up", "end"]);
        // What an operator wants is heard with the next renewal.
        let job = "echo again >> log; exec sleep 60";
        let holder = world.run("k", &["-t", "4s"], job).env(STACK.0, STACK.1).status(79).any_stderr().spawn();
        world.wait_for_log("again");
        world.dlock(["release", "-y", "k"]).any_stdout().any_stderr().run();
        holder.finish();
    }
}

/// How a server is away for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// It stands still, and answers afterwards what it was asked meanwhile.
    Stopped,
    /// What is sent meanwhile is never answered.
    Deaf,
}

/// The server is away for half a lease, begun at every phase of the renewal.
#[test]
fn an_outage_of_half_a_ttl_disturbs_nothing() {
    const PHASES: u32 = 8;
    thread::scope(|scope| {
        for phase in 0..PHASES {
            for outage in [Outage::Stopped, Outage::Deaf] {
                scope.spawn(move || half_a_ttl_without_server(outage, TTL / 4 * phase / PHASES));
            }
        }
    });
}

const TTL: Duration = Duration::from_secs(12);

fn half_a_ttl_without_server(outage: Outage, phase: Duration) {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    let job =
        "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e over ]; do sleep 0.05; done; exit 9";
    // The time for one attempt is bounded by the lease, too, not only by this.
    let holder = world.run("k", &["-t", "12s", "--op-timeout", "1m"], job).env("DLOCK_STORE", proxy.url());
    let holder = holder.status(9).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().after_renewal("dlock:k");
    sleep(phase);
    let begun = Instant::now();
    match outage {
        Outage::Stopped => world.redis().pause(),
        Outage::Deaf => proxy.begin_outage(),
    }
    // Half of it is looked at in src/rules/schedule.rs, where no time passes. This machine needs some of it for itself.
    sleep(TTL / 2 - TTL / 40);
    match outage {
        Outage::Stopped => world.redis().resume(),
        Outage::Deaf => proxy.end_outage(),
    }
    let lasted = begun.elapsed();
    if lasted > TTL / 2 {
        // This machine was too busy to keep the outage short enough: nothing was promised.
        println!("{outage:?} at {phase:?} lasted {lasted:?}");
        return;
    }
    world.redis().after_renewal("dlock:k");
    world.write("over", "");
    holder.finish();
    assert_eq!(world.log(), ["up"], "{outage:?} at {phase:?}");
}

/// A server that stood still is not left with a heap of requests, which would keep it from answering anybody in time: two
/// renewals of each holder.
#[test]
fn a_stopped_server_finds_two_renewals_of_each_holder() {
    let world = World::new(Backend::Redis);
    let proxy = Proxy::before(world.redis().port());
    world.redis().ask::<()>(&["ACL", "SETUSER", "holder", "on", ">sesame", "~*", "+@all"]);
    let holder =
        world.run("k", &["-t", "12s"], "echo up >> log; while [ ! -e over ]; do sleep 0.05; done; exit 9");
    let holder = holder.env("DLOCK_USERNAME", "holder").env("DLOCK_PASSWORD", "sesame");
    let holder = holder.env("DLOCK_STORE", proxy.url()).status(9).any_stderr().spawn();
    world.wait_for_log("up");
    world.redis().after_renewal("dlock:k");
    world.redis().ask::<()>(&["CONFIG", "RESETSTAT"]);
    world.redis().pause();
    let before = proxy.seen();
    wait_until("it has asked again", || proxy.seen() >= before + 2);
    sleep(TTL / 8);
    world.redis().resume();
    // Those that waited for the server, and one that follows.
    world.redis().after_renewal("dlock:k");
    let stats: String = world.redis().ask(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or(0)
    };
    world.write("over", "");
    holder.finish();
    assert!(calls("evalsha") <= 4 && calls("eval") == 0, "{stats}");
}

/// What the store knows last is when the lease ends. Every process of the job is dead before that.
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
    /// dlock must see that the guard does not do its work.
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

/// The store counts from when it was asked, not from when its answer came: so must dlock, for the grant and for every
/// renewal.
#[test]
fn a_slow_answer_does_not_lengthen_the_lease() {
    thread::scope(|scope| {
        scope.spawn(|| {
            // All that the lease ever gets is the grant.
            dead_by_the_deadline_after_slow_answers("12s", Duration::from_secs(3), |world, proxy| {
                wait_until("the lock is asked for", || proxy.seen() > 0);
                proxy.begin_outage();
                wait_until("the grant", || world.redis().expires("dlock:k") > 0);
            });
        });
        scope.spawn(|| {
            // An attempt to renew has a sixteenth of the ttl.
            dead_by_the_deadline_after_slow_answers("12s", Duration::from_millis(650), |world, proxy| {
                world.wait_for_pid("job.pid");
                world.redis().after_renewal("dlock:k");
                proxy.begin_outage();
            });
        });
    });
}

/// `last` lets the last request through.
fn dead_by_the_deadline_after_slow_answers(ttl: &str, delay: Duration, last: impl FnOnce(&World, &Proxy)) {
    let world = World::new(Backend::Redis);
    // The server knows the scripts, so that one request is one answer.
    let other = world.run("other", &["-t", "6s"], "while [ ! -e renewed ]; do sleep 0.05; done").spawn();
    wait_until("it is held", || world.redis().get("dlock:other").is_some());
    world.redis().after_renewal("dlock:other");
    world.write("renewed", "");
    other.finish();
    let proxy = Proxy::before(world.redis().port());
    proxy.delay_replies(delay);
    let job = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", ttl, "--op-timeout", "5s"], job).env("DLOCK_STORE", proxy.url());
    let holder = holder.status(79).any_stderr().spawn();
    last(&world, &proxy);
    let job = world.wait_for_pid("job.pid");
    let alive = || Some(job).filter(|job| proc::alive(*job)).into_iter().collect();
    dead_in_time(|| world.redis().get("dlock:k").is_none(), alive);
    holder.finish();
}

/// A job whose lock was taken away, or forgotten, gets its grace, not the rest of the lease.
#[test]
fn a_lost_lock_leaves_the_job_its_grace_and_no_more() {
    thread::scope(|scope| {
        scope.spawn(|| {
            let world = stopped_long_before_the_deadline(|world| {
                world.dlock(["release", "k", "--force"]).any_stdout().any_stderr().run();
            });
            // With the job dead the lock is free, though its lease would last for a while.
            assert_eq!(world.state("k"), "free");
        });
        scope.spawn(|| drop(stopped_long_before_the_deadline(forget)));
    });
}

fn stopped_long_before_the_deadline(lose: impl FnOnce(&World)) -> World {
    let world = World::new(Backend::Redis);
    let job = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.05; done";
    let options = ["-t", "40s", "--grace", "300ms"];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    let expires = world.redis().expires("dlock:k");
    lose(&world);
    wait_until("the job is dead", || !proc::alive(job));
    // It is told at the next renewal, after a quarter of the lease.
    assert!(now() + 5000 < expires, "it lived to the end of its lease");
    holder.finish();
    world
}

/// Time to clean up after `--max-run` ends with the lease, and that the lock was lost weighs more.
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

/// Once a job has been told to go, it goes, even if the server is back a moment later.
#[test]
fn a_late_renewal_does_not_call_off_the_end() {
    let world = World::new(Backend::Redis);
    let job = "trap 'echo term >> log' TERM; echo $$ > job.pid; while :; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "6s"], job).status(79).any_stderr().spawn();
    let job = world.wait_for_pid("job.pid");
    world.redis().pause();
    world.wait_for_log("term");
    world.redis().resume();
    holder.finish();
    assert!(!proc::alive(job));
    assert_eq!(world.log(), ["term"]);
}

/// The store forgets the lock: the holder finds out at its next heartbeat, and no renewal brings the lock back.
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

/// What the store says is believed at once, not only when the lease runs out.
fn a_loss_is_heard_of_at_the_next_heartbeat(backend: Backend) {
    thread::scope(|scope| {
        for loss in [Loss::Forgotten, Loss::Forced] {
            scope.spawn(move || {
                let world = World::new(backend);
                let job =
                    "trap 'echo term >> log; exit 1' TERM; echo up >> log; while :; do sleep 0.05; done";
                // The next heartbeat comes after 8 s; the lease alone would let the job run for 25.3 s.
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

/// Loses every record of the store.
fn forget(world: &World) {
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

fn a_store_that_forgot_is_said_to_have(backend: Backend) {
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
    let job = "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.05; done; echo end >> log";
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
    assert!((forced.stdout + &forced.stderr).contains("may run"), "it says that both may run");
    let job = "echo new >> log; while [ ! -e go ]; do sleep 0.05; done; exit 6";
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

/// Each grant has a greater fence, also when every record of the earlier ones is gone.
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

/// A restart without persistence takes the lock away; the holder learns it at its next heartbeat.
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

/// Somebody else's value under the key is a loss, and is left alone.
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

/// While the server is away for less than the lease allows, the outage is ridden out by who waits, too.
#[test]
fn an_outage_while_queued_is_ridden_out() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "20s"], job).any_stderr().spawn();
    world.wait_for_log("up");
    let proxy = Proxy::before(world.redis().port());
    let waiter = world.run("k", &["-w"], "echo waited >> log").env("DLOCK_STORE", proxy.url());
    let waiter = waiter.any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.redis().pause();
    let before = proxy.seen();
    wait_until("it asks again", || proxy.seen() >= before + 2);
    world.redis().resume();
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "waited"]);
}

/// The store is away for longer than a waiter may be silent, and forgets nothing: all stand where they stood, and whoever
/// comes meanwhile passes nobody.
#[test]
fn an_outage_longer_than_a_silence_keeps_the_order() {
    let mut world = World::with_redis(&["--appendonly", "yes", "--appendfsync", "always"]);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.02; done";
    let holder = world.run("k", &["-t", "1m"], job).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> = (0..6)
        .map(|number| {
            let waiter = world.run("k", &["-w", "-t", "1m"], &format!("echo {number} >> log"));
            let waiter = waiter.any_stderr().spawn();
            world.wait_for_waiters("k", number + 1);
            waiter
        })
        .collect();
    world.redis_mut().kill();
    sleep(Duration::from_secs(7));
    world.redis_mut().restart();
    world.write("go", "");
    let newcomer = world.run("k", &[], "echo newcomer >> log").any_stderr().spawn().output();
    holder.finish();
    waiters.into_iter().for_each(|waiter| drop(waiter.finish()));
    let log = world.log();
    assert_eq!(log[..7], ["up", "0", "1", "2", "3", "4", "5"], "{newcomer:?}");
}

/// A wait whose time is up during an outage was not in vain for being busy.
#[test]
fn a_wait_that_ends_in_an_outage_is_69() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done";
    let holder = world.run("k", &["-t", "1m"], job).spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w", "2s"], "echo waited >> log").status(69).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    world.redis().pause();
    let output = waiter.finish();
    assert!(output.stderr.contains(&world.url()), "{}", output.stderr);
    world.redis().resume();
    wait_until("the queue is empty", || world.waiters("k") == 0);
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// A server that forgets its queue is told of it again by those who stand in it.
#[test]
fn who_waits_waits_on_after_a_restart() {
    let mut world = World::new(Backend::Redis);
    let holder =
        world.run("k", &["-t", "6s"], "echo up >> log; exec sleep 1000").status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters = [1, 2].map(|i| {
        let waiter = world.run("k", &["-w"], "echo start >> log; echo end >> log").any_stderr().spawn();
        world.wait_for_waiters("k", i);
        waiter
    });
    world.redis_mut().restart();
    holder.finish();
    for waiter in waiters {
        waiter.finish();
    }
    assert_eq!(world.log(), ["up", "start", "end", "start", "end"]);
}

/// CMD's time limit: 124, also when it took KILL, with the lock kept until all of it is dead.
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

/// The server is gone when CMD ends: its status all the same, and one warning.
#[test]
fn a_release_without_answer_keeps_the_jobs_status() {
    let world = World::new(Backend::Redis);
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.05; done; exit 3";
    let holder = world.run("k", &["-t", "20s"], job).status(3).stderr_like("dlock: .*k.*\n").spawn();
    world.wait_for_log("up");
    world.redis().pause();
    world.write("go", "");
    holder.finish();
    world.redis().resume();
}

/// What the job starts and leaves behind at a normal end is left alone.
#[test]
fn what_a_job_leaves_behind_lives_on() {
    let world = World::new(Backend::Redis);
    world.run("k", &[], "sleep 1000 & echo $! > left.tmp; mv left.tmp left.pid").run();
    let left = world.wait_for_pid("left.pid");
    assert!(proc::alive(left));
    assert_eq!(world.state("k"), "free");
    assert!(proc::alive(left));
}

/// The lease counts from when it was asked for. An answer that comes when that is long ago is worth nothing, but the
/// question may be put again.
#[test]
fn a_grant_that_comes_too_late_is_asked_for_again() {
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

/// Lost between the last heartbeat and the end of CMD: the release finds out.
fn a_lock_that_vanished_before_the_end_is_lost(backend: Backend) {
    let world = World::new(backend);
    let job = "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 3";
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

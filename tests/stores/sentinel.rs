//! Sentinels name the master: in bounded time although some of them are dead, again after a
//! failover during a hold, and also to a holder on a master that was replaced without its
//! knowledge.

mod sentinel_logins;

use crate::support::dlock::BINARY;
use crate::support::hole::{Black, Silent};
use crate::support::proxy::Proxy;
use crate::support::redis::{Redis, next_port};
use crate::support::replicated::{self, cut_off_replicas, is_master};
use crate::support::sentinel::{Sentinel, admit_watchers, cut_off_watchers, url};
use crate::support::wait::{wait_for, wait_until, wait_within};
use crate::support::world::World;
use std::time::{Duration, Instant};

/// Counts the renewals of a lock on a server until `happened`.
fn renewals_until(server: &Redis, mut happened: impl FnMut() -> bool) -> usize {
    let (mut renewals, mut expires) = (0, server.expires("dlock:k"));
    wait_until("it happens", || {
        let now = server.expires("dlock:k");
        renewals += usize::from(now != std::mem::replace(&mut expires, now));
        happened()
    });
    renewals
}

/// A job that logs TERM and runs until `go` exists.
const JOB: &str =
    "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 7";

struct Watched {
    sentinels: Vec<Sentinel>,
    master: Redis,
    replica: Redis,
    /// The other replicas.
    others: Vec<Redis>,
    world: World,
}

/// A master with a replica, watched by `count` sentinels. The URL has the ports `before` in front
/// of theirs.
fn watched(count: usize, before: &[u16]) -> Watched {
    watched_with(1, count, before)
}

/// The same with more replicas.
fn watched_with(replicas: usize, count: usize, before: &[u16]) -> Watched {
    let mut world = World::without_redis();
    let (master, mut others) = replicated::start(&world, replicas);
    admit_watchers(&master);
    others.iter().for_each(admit_watchers);
    let replica = others.remove(0);
    let sentinels: Vec<_> =
        (0..count).map(|_| Sentinel::start(&world, master.port(), count / 2 + 1, replicas, "")).collect();
    let ports: Vec<u16> = before.iter().copied().chain(sentinels.iter().map(Sentinel::port)).collect();
    world.use_store(url(&ports));
    if count > 1 {
        wait_until("the sentinels know each other", || {
            sentinels.iter().all(|sentinel| {
                let others: Vec<redis::Value> = sentinel.ask(&["SENTINEL", "SENTINELS", "m"]);
                others.len() == count - 1
            })
        });
    }
    Watched { sentinels, master, replica, others, world }
}

/// The master dies, and a replica with the lock takes over: holder and waiter go on there. One
/// sentinel is dead, one silent, and one cannot be reached.
#[test]
fn a_failover_in_the_middle_of_a_hold_disturbs_nothing() {
    goes_on_at_the_replica(Redis::kill);
}

/// The same where the master does not die but hangs: it accepts connections and requests and
/// answers none.
#[test]
fn a_master_that_hangs_disturbs_nothing() {
    goes_on_at_the_replica(|master| master.pause());
}

fn goes_on_at_the_replica(end: impl FnOnce(&mut Redis)) {
    let (silent, black, dead) = (Silent::new(), Black::new(), next_port());
    let mut watched = watched(3, &[dead, silent.port(), black.port()]);
    let world = &watched.world;
    let holder = world.run("k", &["-t", "20s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    let fence = world.fence("k");
    let waiter = world.run("k", &["-w", "-t", "20s"], "echo waited $DLOCK_FENCE >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    wait_until("the replica has the lock", || watched.replica.get("dlock:k").is_some());
    end(&mut watched.master);
    wait_until("the replica is master", || is_master(&watched.replica));
    // A later expiry is a renewal: only the holder extends it.
    watched.replica.after_renewal("dlock:k");
    assert_eq!(world.fence("k"), fence, "it is still the first grant");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let log = world.log();
    assert_eq!(log[0], "up", "{log:?}");
    let next: u64 = log[1].strip_prefix("waited ").and_then(|fence| fence.parse().ok()).expect("a fence");
    assert!(log.len() == 2 && next > fence, "{fence}, then {log:?}");
}

/// The replica that takes over never had the lock: it is lost, and the job is stopped.
#[test]
fn a_failover_that_loses_the_lock_stops_the_job() {
    let mut watched = watched(1, &[]);
    let world = &watched.world;
    cut_off_replicas(&watched.master);
    let holder = world.run("k", &["-t", "20s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let fence = world.fence("k");
    watched.master.kill();
    wait_until("the replica is master", || is_master(&watched.replica));
    let output = holder.finish();
    assert!(output.stderr.contains("lost"), "{}", output.stderr);
    world.run("k", &[], "echo $DLOCK_FENCE >> fence").run();
    assert!(world.read("fence").trim().parse::<u64>().expect("a fence") > fence);
}

/// A release during a planned failover goes to the old master, whose role is about to end: the new
/// master gets it as well.
#[test]
fn a_planned_failover_loses_no_release() {
    let watched = watched(1, &[]);
    let world = &watched.world;
    let options = ["-t", "1m", "--replicas", "all"];
    let holder =
        world.run("k", &options, "echo up >> log; while [ ! -e go ]; do sleep 0.1; done").any_stderr();
    let holder = holder.spawn();
    world.wait_for_log("up");
    watched.sentinels[0].fail_over();
    wait_until("the replica is master", || is_master(&watched.replica));
    assert!(watched.replica.get("dlock:k").is_some(), "it has the lock");
    world.write("go", "");
    holder.finish();
    assert_eq!(watched.replica.get("dlock:k"), None, "it is given back where the master is now");
    let log = world.dlock(["history", "k", "--json"]).any_stdout().run().stdout;
    assert!(log.contains("\"released\""), "{log}");
}

/// The replica that will be the master disconnects first, and another one acknowledges writes that
/// it no longer receives. No sentinel names the new master until a second later; the failover's
/// leader already tells.
#[test]
fn a_planned_failover_loses_nothing_that_one_replica_acknowledged() {
    let watched = watched_with(2, 1, &[]);
    let world = &watched.world;
    let options = ["-t", "1m", "--replicas", "1"];
    let job = "echo up >> log; while [ ! -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &options, job).any_stderr().spawn();
    world.wait_for_log("up");
    watched.sentinels[0].fail_over();
    let replicas = [&watched.replica, &watched.others[0]];
    let promoted = || replicas.into_iter().find(|replica| is_master(replica));
    let new = wait_for("a replica is master", promoted);
    assert!(new.get("dlock:k").is_some(), "it has the lock");
    world.write("go", "");
    // A lock that is taken meanwhile is on the new master, too, as long as the job runs.
    let job = format!("redis-cli -p {} exists dlock:other >> seen", new.port());
    let other = world.run("other", &["-w", "-t", "1m", "--replicas", "1"], &job).any_stderr().spawn();
    holder.finish();
    other.finish();
    assert_eq!(new.get("dlock:k"), None, "it is given back where the master is now");
    assert_eq!(world.read("seen"), "1\n");
    assert_eq!(new.get("dlock:other"), None);
}

/// `--replicas all` means the replicas that the sentinels know, not those that are connected: one
/// that is about to become the master is no longer connected.
#[test]
fn all_replicas_are_all_that_the_sentinels_know() {
    let mut watched = watched_with(2, 1, &[]);
    let all = ["--replicas", "all"];
    watched.world.run("k", &all, "true").run();
    watched.others[0].kill();
    wait_until("the master has dropped it", || replicated::connected(&watched.master) == 1);
    let run = watched.world.run("k", &all, "touch ran").status(69);
    run.stderr_like("dlock: .*1 of 2 replicas acknowledged.*given back.*did not run\n").run();
    assert!(!watched.world.path("ran").exists());
    watched.world.run("k", &["--replicas", "1"], "true").run();
}

/// The old master would renew for ever, but the sentinels know better. The lock is not on the new
/// master, so it is lost, long before the lease could run out.
#[test]
fn a_holder_on_a_cut_off_master_learns_of_the_failover() {
    let watched = watched(1, &[]);
    let world = &watched.world;
    cut_off_replicas(&watched.master);
    let holder = world.run("k", &["-t", "8s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    watched.master.after_renewal("dlock:k");
    cut_off_watchers(&watched.master);
    wait_until("the sentinel names the other one", || watched.sentinels[0].named() == watched.replica.port());
    assert!(is_master(&watched.master), "the old one does not know");
    holder.finish();
    assert_eq!(world.log(), ["up", "disturbed"]);
    assert!(watched.master.get("dlock:k").is_some(), "the old one would still have renewed it");
}

/// The same where the new master has the lock: the hold goes on there.
#[test]
fn a_holder_follows_from_a_cut_off_master() {
    let watched = watched(1, &[]);
    let world = &watched.world;
    let holder = world.run("k", &["-t", "8s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    watched.master.after_renewal("dlock:k");
    cut_off_watchers(&watched.master);
    wait_until("the sentinel names the other one", || watched.sentinels[0].named() == watched.replica.port());
    // The sentinel first promotes the replica, and only then names it.
    watched.replica.after_renewal("dlock:k");
    watched.replica.after_renewal("dlock:k");
    let old = watched.master.expires("dlock:k");
    watched.replica.after_renewal("dlock:k");
    assert_eq!(watched.master.expires("dlock:k"), old, "the old one is not renewed any more");
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
    assert_eq!(world.state("k"), "free");
}

/// A sentinel slower than the master is heard as well, at the next renewal.
#[test]
fn a_slow_sentinel_is_heard() {
    let mut watched = watched(1, &[]);
    let proxy = Proxy::before(watched.sentinels[0].port());
    watched.world.use_store(url(&[proxy.port()]));
    let world = &watched.world;
    cut_off_replicas(&watched.master);
    let holder = world.run("k", &["-t", "8s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    proxy.delay_replies(Duration::from_millis(200));
    watched.master.after_renewal("dlock:k");
    watched.master.after_renewal("dlock:k");
    cut_off_watchers(&watched.master);
    wait_until("the sentinel names the other one", || watched.sentinels[0].named() == watched.replica.port());
    // The renewal under way may have asked too early; the next one asks, and the one after it uses
    // the answer.
    let renewals = renewals_until(&watched.master, || world.log().len() == 2);
    assert!(renewals <= 2, "{renewals} renewals on the old master");
    holder.finish();
}

/// A run inside a job asks the sentinels about the parent hold before it makes its guard. If that
/// hangs, it does not hang in the guard.
#[test]
fn a_run_inside_a_job_ignores_silent_sentinels() {
    let silent = [(); 3].map(|()| Silent::new());
    let watched = watched(1, &silent.each_ref().map(Silent::port));
    // Which sentinel is asked first depends on the process id.
    let inside =
        "for i in 1 2 3 4; do $D run -k k -- echo inside; done; $D run -k k -s -k other -w 1m -- echo part";
    let run = watched.world.run("k", &["-t", "20s"], inside).env("D", BINARY);
    run.stdout("inside\ninside\ninside\ninside\npart\n").any_stderr().run();
}

/// Sentinels that hang or die do not delay a holder.
#[test]
fn renewals_do_not_wait_for_sentinels() {
    let mut watched = watched(2, &[]);
    let world = &watched.world;
    let holder = world.run("k", &["-t", "6s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    for _ in 0..2 {
        watched.master.after_renewal("dlock:k");
    }
    watched.sentinels[0].pause();
    for _ in 0..5 {
        watched.master.after_renewal("dlock:k");
    }
    watched.sentinels.iter_mut().for_each(Sentinel::kill);
    for _ in 0..5 {
        watched.master.after_renewal("dlock:k");
    }
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up"]);
    assert_eq!(watched.master.get("dlock:k"), None, "it is given back");
}

/// With any number of silent addresses, dlock fails after one connect-timeout and one op-timeout.
#[test]
fn time_to_fail_does_not_grow_with_the_addresses() {
    let mut world = World::without_redis();
    let (silent, black) = ([(); 3].map(|()| Silent::new()), [(); 3].map(|()| Black::new()));
    let ports: Vec<u16> = silent.iter().map(Silent::port).chain(black.iter().map(Black::port)).collect();
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    for url in [url(&ports), format!("redis+cluster://{}", hosts.join(","))] {
        world.use_store(url.clone());
        let timeouts = ["--connect-timeout", "2s", "--op-timeout", "2s"];
        let begun = Instant::now();
        let mut run = world.run("k", &timeouts, "touch ran").status(69).stderr_like("dlock: .*\n").spawn();
        // In sequence, the timeouts of all addresses would take 24 s.
        wait_within(Duration::from_secs(12), "dlock gives up", || run.has_ended().then_some(()));
        println!("{url}: gave up after {:?}", begun.elapsed());
        run.finish();
    }
    assert!(!world.path("ran").exists());
}

/// The cost of an acquire and of a hold, printed; docs/stores.md names the connections.
#[test]
fn connections_and_commands_are_few() {
    let watched = watched(1, &[]);
    let world = &watched.world;
    world.run("k", &[], "true").run();
    watched.master.ask::<()>(&["CONFIG", "RESETSTAT"]);
    let holder = world.run("k", &["-t", "6s"], JOB).status(7).spawn();
    world.wait_for_log("up");
    let stats: String = watched.master.ask(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:calls=")));
        line.map_or("0", |line| line.split(['=', ',']).nth(1).unwrap_or("0")).to_owned()
    };
    println!("an acquire: role {}, evalsha {}, eval {}", calls("role"), calls("evalsha"), calls("eval"));
    assert_eq!([calls("evalsha"), calls("eval")], ["1", "0"]);
    let connections = |user: &str| {
        let list: String = watched.master.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        // The test itself uses the unix socket.
        list.lines()
            .filter(|line| line.contains(&format!("user={user}")) && !line.contains("redis.sock"))
            .count()
    };
    // The second connection, which brings requests to the holder, comes later.
    wait_until("the holder listens", || connections("default") == 2);
    watched.master.after_renewal("dlock:k");
    println!("a holder: {} connections to the master", connections("default"));
    assert_eq!(connections("default"), 2);
    let list: String = watched.sentinels[0].ask(&["CLIENT", "LIST"]);
    let at_sentinel = list.lines().filter(|line| line.contains("cmd=sentinel|get-master")).count();
    println!("a holder: {at_sentinel} connection to the sentinel");
    assert_eq!(at_sentinel, 1);
    world.write("go", "");
    holder.finish();
}

//! Sessions that end too soon or too late, and what they mean for a lease.

use super::{JOB, in_time, own_server, person, person_at};
use crate::support::dlock::BINARY;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;
use crate::support::world::{Backend, World};
use crate::support::zookeeper::ZooKeeper;
use dlock::rules::{Acquired, Left, Renewal};
use rustix::process::Signal;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, sleep};
use std::time::Duration;

#[test]
fn a_lease_is_as_long_as_a_session_may_be() {
    let (world, _server) = own_server(&["minSessionTimeout=4000", "maxSessionTimeout=40000"]);
    let refused = |ttl: &str| {
        let job = world.run("k", &["-t", ttl], "echo ran >> log").status(78).any_stderr().run();
        job.stderr
    };
    assert!(refused("2s").contains("at least 4s"), "{}", refused("2s"));
    assert!(refused("1m").contains("at most 40s"), "{}", refused("1m"));
    assert_eq!(world.log(), [""; 0]);
    world.run("k", &["-t", "4s"], "true").run();
    world.run("k", &["-t", "40s"], "true").run();
}

/// The guard releases the lock of a killed dlock, and nothing of its session is left.
#[test]
fn a_killed_dlock_leaves_nothing() {
    let (world, server) = own_server(&[]);
    let holder = world.run("k", &["-t", "10m"], JOB).dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    assert!(server.sessions().contains("/dlock/lives/"), "{}", server.sessions());
    holder.signal(Signal::KILL);
    holder.finish();
    world.wait_for_state("k", "free");
    wait_until("its life is over", || !server.sessions().contains("/dlock/lives/"));
}

/// dlock is stopped for longer than its session: the next holder starts when the job is dead.
#[test]
fn a_dlock_stopped_past_its_session_has_no_job_left() {
    let world = World::with_zookeeper();
    let holder = world.run("k", &["-t", "5s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    holder.signal(Signal::STOP);
    let next = "kill -0 $(cat pid) 2> /dev/null && echo both >> log; echo next >> log";
    world.run("k", &["-w"], next).any_stderr().run();
    holder.signal(Signal::CONT);
    holder.finish();
    assert_eq!(world.log(), ["up", "next"]);
}

/// A whole run stands still until its lease is over, and no other client takes the lock. When it
/// continues, it reports the loss at once.
#[test]
fn a_run_stopped_past_its_session_reports_the_loss() {
    let (world, _server) = own_server(&[]);
    let holder = world.run("k", &["-t", "5s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let all = [world.wait_for_pid("pid"), holder.guard(), holder.pid()];
    all.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
    world.wait_for_state("k", "free");
    all.iter().rev().for_each(|pid| proc::signal(*pid, Signal::CONT));
    let said = holder.finish().stderr;
    assert!(!said.contains("was changed by others"), "{said}");
    let ends = world.dlock(["history", "--json", "k"]).any_stdout().run().stdout;
    assert!(ends.contains("\"expired\""), "{ends}");
}

/// The same for the store alone, which needs few requests for it.
#[test]
fn an_expired_lease_is_reported_at_once() {
    let (world, server) = own_server(&[]);
    let too_late = || {
        let mut person = person_at(&world, server.port());
        let ttl = Duration::from_secs(1);
        assert!(matches!(person.asks_for(ttl), Acquired::Granted(_)));
        wait_until("its session is over", || !server.sessions().contains("/dlock/lives/"));
        world.wait_for_state("k", "free");
        (person, ttl, server.requests())
    };
    let (mut person, ttl, before) = too_late();
    assert_eq!(person.renews(ttl), Renewal::NotHeld);
    assert!(server.requests() - before < 16, "{} requests", server.requests() - before);
    assert_eq!(person.leaves(), Left::NotHeld);
    let (mut person, _, before) = too_late();
    assert_eq!(person.leaves(), Left::NotHeld);
    assert!(server.requests() - before < 16, "{} requests", server.requests() - before);
}

/// The leader's clock is set forward by more than a lease and back again: the holder keeps
/// renewing, and no other client is granted the lock.
#[test]
fn a_clock_that_is_set_forward_ends_no_lease() {
    let mut world = World::without_redis();
    let server = ZooKeeper::start_steered(&world.path(""), &[]);
    world.use_store(server.url("/ops/locks"));
    let holder = world.run("k", &["-t", "12s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-t", "12s", "-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    for ahead in [3600, 0, 7200] {
        server.step_clock(ahead);
        // The clock that a client has just read is soon read again. While the clock is past the end
        // of the lease in the record, only the session says how long the lease lasts.
        let lease = || world.status("k")["holders"][0]["lease_ms"].as_u64();
        let is_over = || lease().is_some_and(|lease| lease < 1000);
        wait_until("its lease is over by the clock", || ahead == 0 || is_over());
        wait_until("it has renewed", || lease().is_some_and(|lease| (5000..=12_000).contains(&lease)));
        assert_eq!((world.state("k"), world.fence("k")), ("held".into(), fence));
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// A holder whose lease seems to be over releases its lock as usual; so does the guard of a killed
/// holder.
#[test]
fn a_release_after_a_clock_step_counts_as_held() {
    let mut world = World::without_redis();
    let server = ZooKeeper::start_steered(&world.path(""), &[]);
    world.use_store(server.url("/ops/locks"));
    for (ahead, is_killed) in [(7200, false), (20_000, true)] {
        // A command inside the job has a store of its own.
        let job = format!("{JOB}; {} check k && echo kept >> log", BINARY);
        let holder = world.run("k", &["-t", "1h"], &job).any_stderr();
        let holder = if is_killed { holder.dies_of(9) } else { holder }.spawn();
        world.wait_for_log("up");
        let pid = world.wait_for_pid("pid");
        server.step_clock(ahead);
        wait_until("its lease is over by the clock", || {
            world.status("k")["holders"][0]["lease_ms"].as_u64().is_some_and(|lease| lease < 1000)
        });
        if is_killed {
            holder.signal(Signal::KILL);
            holder.finish();
        } else {
            world.write("go", "");
            holder.finish();
            assert_eq!(world.log(), ["up", "done", "kept"]);
        }
        world.wait_for_state("k", "free");
        assert!(!proc::alive(pid));
        let ends = world.dlock(["history", "--json", "k"]).any_stdout().run().stdout;
        assert!(!ends.contains("\"expired\""), "{ends}");
        for name in ["go", "log", "pid"] {
            std::fs::remove_file(world.path(name)).ok();
        }
    }
}

/// A failed server has not told the leader its latest heartbeats: a session may end before the
/// lease that counts from its last renewal.
#[test]
fn a_session_that_ends_too_soon_grants_nothing() {
    let world = World::with_zookeeper();
    let server = ZooKeeper::shared();
    let (mut one, mut other) = (person(&world), person(&world));
    assert!(matches!(one.asks(), Acquired::Granted(_)));
    let lives = server.below(&world).into_iter().filter(|path| path.contains("/lives/")).collect::<Vec<_>>();
    let [life] = lives.as_slice() else { panic!("one lives: {lives:?}") };
    server.command(&["delete", life]);
    let answer = other.asks();
    assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
}

/// A server may take a late request of an earlier connection for the current request with the same
/// number. So the request numbers of a session go on over its connections.
#[test]
fn the_numbers_of_a_session_go_on_over_its_connections() {
    let (mut world, server) = own_server(&[]);
    let proxy = Proxy::before(server.port());
    world.use_store(format!("zookeeper://127.0.0.1:{}/ops/locks", proxy.port()));
    let holder = world.run("k", &["-t", "6s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let held = server.changes().last().expect("the lock is written").0;
    let of_held = || -> Vec<i32> {
        let changes = server.changes().into_iter();
        changes.filter_map(|(session, number)| (session == held).then_some(number)).collect()
    };
    for _ in 0..2 {
        proxy.cut();
        let before = of_held().len();
        wait_until("it is renewed", || of_held().len() > before);
    }
    world.write("go", "");
    holder.finish();
    let numbers = of_held();
    // The server numbers the start and the end of the session itself, in no order.
    let asked: Vec<i32> = numbers.iter().copied().filter(|number| *number > 0).collect();
    assert!(asked.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

/// Relays to a server, whose first answer on each connection, by its number, comes late, as in a crowd:
/// to begin a session is a write of the whole ensemble. Returns the port.
fn before_a_slow_start(server: u16, late: impl Fn(usize) -> Duration + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let server = TcpStream::connect(("127.0.0.1", server)).expect("the server");
            let late = late(number);
            let (mut from, mut to) =
                (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            thread::spawn(move || {
                std::io::copy(&mut from, &mut to).ok();
                to.shutdown(Shutdown::Both)
            });
            thread::spawn(move || {
                let (mut server, mut client) = (server, client);
                server.peek(&mut [0]).ok();
                sleep(late);
                std::io::copy(&mut server, &mut client).ok();
                client.shutdown(Shutdown::Both)
            });
        }
    });
    port
}

/// Each of three servers begins a session later than its share of an attempt lasts. The client does
/// not give up its request for another one.
#[test]
fn a_session_that_begins_late_is_not_asked_for_anew() {
    let world = World::new(Backend::ZooKeeper);
    let server = ZooKeeper::shared().port();
    let ports = [(); 3].map(|()| before_a_slow_start(server, |_| Duration::from_millis(1500)).to_string());
    let hosts = ports.join(",127.0.0.1:");
    let url = world.url().replace(&format!(":{server}/"), &format!(":{hosts}/"));
    world.run("k", &["--store", &url], "echo ran >> log").run();
    assert_eq!(world.log(), ["ran"]);
}

/// The machine of a server dies without a sign while a waiter begins its session: the answer to the
/// first request never comes.
#[test]
fn a_session_that_never_begins_is_asked_for_anew() {
    let world = World::new(Backend::ZooKeeper);
    let server = ZooKeeper::shared().port();
    let port = before_a_slow_start(server, |number| Duration::from_secs(if number == 0 { 3600 } else { 0 }));
    let url = world.url().replace(&format!(":{server}/"), &format!(":{port}/"));
    world.run("k", &["-w", "--store", &url], "echo ran >> log").any_stderr().run();
    assert_eq!(world.log(), ["ran"]);
}

/// A lock is as old as its node, by the server's clock. One that is waited for is kept.
#[test]
fn locks_unused_for_long_are_removed() {
    let mut world = World::without_redis();
    let server = ZooKeeper::start_steered(&world.path(""), &[]);
    world.use_store(server.url("/ops"));
    for (key, options) in [("due", ["--once-per", "day"].as_slice()), ("free", &[]), ("waited", &[])] {
        world.run(key, options, "true").run();
    }
    server.put(&world, "dlock/locks/dlock:waited/b-0", b"");
    let locks = "/ops/dlock/locks/dlock:";
    for (days, kept) in [
        (79, ["due", "free", "waited"].as_slice()),
        (81, &["due", "waited"]),
        (399, &["due", "waited"]),
        (401, &["waited"]),
    ] {
        server.step_clock(days * 24 * 60 * 60);
        let mut client = person_at(&world, server.port());
        client.asks();
        client.store.clean_up(in_time());
        let nodes = server.below(&world);
        let keys: Vec<_> = nodes.iter().filter_map(|node| node.strip_prefix(locks)).collect();
        let keys: Vec<_> = keys.into_iter().filter(|key| !key.contains('/')).collect();
        assert_eq!(keys, kept, "after {days} days");
    }
}

//! A server that hangs up, fails or is full sees few connections of a dlock and its guard, whatever
//! they do; and a run that does not wait is served all the same, if that takes less than ten
//! seconds.

use crate::support::dlock::Running;
use crate::support::door::Door;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::redis::ask;
#[cfg(feature = "zookeeper")]
use crate::support::wait::wait_for;
use crate::support::wait::{wait_until, wait_within};
use crate::support::world::{Backend, World, on_every_store};
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
use crate::support::{masters, proc, sentinel};
#[cfg(feature = "zookeeper")]
use std::io::{ErrorKind, Read as _};
#[cfg(feature = "zookeeper")]
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

/// Most connections that a server may see in ten seconds.
const MOST: usize = 25;

on_every_store!(
    a_server_that_hangs_up_is_left_in_peace,
    a_holder_leaves_its_server_in_peace,
    a_holder_rides_out_a_server_that_hangs_up,
    a_run_that_does_not_wait_is_served_when_there_is_room,
);

/// The URL of the world's store behind a door; None for a store without a server.
fn behind(world: &World, backend: Backend, door: u16) -> Option<String> {
    if backend == Backend::File {
        return None;
    }
    if backend == Backend::Redis {
        return Some(format!("redis://127.0.0.1:{door}"));
    }
    Some(world.url().replace(&format!(":{}", port_of(world, backend)), &format!(":{door}")))
}

fn port_of(world: &World, backend: Backend) -> u16 {
    if backend == Backend::Redis {
        return world.redis().port();
    }
    let url = world.url();
    let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    authority.and_then(|authority| authority.rsplit(':').next()?.parse().ok()).expect("a port")
}

/// Waits until neither dlock nor a guard is left in this world.
fn wait_for_the_guards(world: &World) {
    let home = world.path("");
    let home = home.to_str().expect("a path").trim_end_matches('/').as_bytes().to_vec();
    wait_within(Duration::from_secs(60), "the guards end", || {
        let lives = proc::pids()
            .into_iter()
            .any(|pid| proc::name(pid).starts_with("dlock") && proc::has_in_environment(pid, &home));
        (!lives).then_some(())
    });
}

const COMMANDS: [&[&str]; 15] = [
    &["run", "-k", "k", "--", "true"],
    &["run", "-k", "k", "-w8s", "--", "true"],
    &["run", "-k", "k", "-k", "l", "-t", "1s", "-w8s", "--", "true"],
    &["hold", "-k", "k", "-w8s", "--pid", "1"],
    &["acquire", "-k", "k"],
    &["acquire", "-k", "k", "-w8s"],
    &["release", "k", "-y"],
    &["wait", "k", "-w12s"],
    &["status", "k"],
    &["status"],
    &["history", "k"],
    &["pause", "k", "--for", "1h", "--reason", "freeze"],
    &["metrics"],
    &["doctor"],
    &["watch", "k"],
];

fn a_server_that_hangs_up_is_left_in_peace(backend: Backend) {
    let world = World::new(backend);
    if backend == Backend::File {
        return;
    }
    let mut running: Vec<(&[&str], Door, Running)> = COMMANDS
        .iter()
        .map(|words| {
            let door = Door::shut();
            let url = behind(&world, backend, door.port()).expect("it has a server");
            let call = world.dlock(*words).env("DLOCK_STORE", url).any_stdout().any_stderr();
            (*words, door, call.spawn())
        })
        .collect();
    wait_within(Duration::from_secs(60), "each ends", || {
        running.iter_mut().all(|(words, _, call)| words[0] == "watch" || call.has_ended()).then_some(())
    });
    running.pop();
    // That dlock has put off a connection says less than what the server did.
    let last = running[1].2.messages();
    let last = last.lines().last().unwrap_or_default();
    assert!(!last.contains("failed many times"), "{last}");
    judge(&world, &running);
}

/// Once neither dlock nor a guard is left: how many connections each door has seen.
fn judge(world: &World, running: &[(&[&str], Door, Running)]) {
    wait_for_the_guards(world);
    let seen: Vec<_> =
        running.iter().map(|(words, door, _)| (door.most_in_ten_seconds(), door.knocks(), *words)).collect();
    println!("{seen:#?}");
    assert!(seen.iter().all(|(most, ..)| *most <= MOST), "{seen:#?}");
}

/// A holder whose server hangs up for longer than the lease, and one whose job ends meanwhile.
fn a_holder_leaves_its_server_in_peace(backend: Backend) {
    let world = World::new(backend);
    if backend == Backend::File {
        return;
    }
    let server = port_of(&world, backend);
    let mut holders: Vec<(&[&str], Door, Running)> = [
        ("k1", &["run", "-k", "k1", "-t4s", "--", "sh", "-c", "echo up >> log; sleep 1000"][..], 79),
        (
            "k2",
            &[
                "run",
                "-k",
                "k2",
                "-t30s",
                "--",
                "sh",
                "-c",
                "echo up >> log; until [ -e go ]; do sleep 0.1; done",
            ],
            0,
        ),
        ("k3", &["acquire", "-k", "k3", "-t30s"], 0),
    ]
    .into_iter()
    .map(|(_, words, status)| {
        let door = Door::before(server);
        let url = behind(&world, backend, door.port()).expect("it has a server");
        let call = world.dlock(words).env("DLOCK_STORE", url).any_stdout().any_stderr().status(status);
        (words, door, call.spawn())
    })
    .collect();
    world.wait_for_lines("up", 2);
    holders.iter().for_each(|(_, door, _)| door.close());
    world.write("go", "");
    wait_within(Duration::from_secs(60), "each ends", || {
        holders.iter_mut().all(|(_, _, call)| call.has_ended()).then_some(())
    });
    judge(&world, &holders);
}

/// Twice within ten seconds, each time for nearly half a lease.
fn a_holder_rides_out_a_server_that_hangs_up(backend: Backend) {
    let world = World::new(backend);
    if backend == Backend::File {
        return;
    }
    let (server, ttl) = (port_of(&world, backend), Duration::from_secs(4));
    let door = Door::before(server);
    let url = behind(&world, backend, door.port()).expect("it has a server");
    let job = "echo up >> log; until [ -e go ]; do sleep 0.1; done";
    let holder = world.run("k", &["-q", "-t4s"], job).env("DLOCK_STORE", url).spawn();
    world.wait_for_log("up");
    for _ in 0..2 {
        door.close();
        // The length of the outage: less than half of the lease.
        sleep(ttl * 4 / 10);
        door.open(server);
        // A whole lease: a job whose lock was not renewed in time is stopped by then.
        sleep(ttl);
    }
    world.write("go", "");
    holder.finish();
}

/// Each of these is a mail if it ends with 69.
fn a_run_that_does_not_wait_is_served_when_there_is_room(backend: Backend) {
    let world = World::new(backend);
    if backend == Backend::File {
        return;
    }
    let mut calls: Vec<(&[&str], Door, Running)> =
        [&["run", "-k", "k1", "--", "true"][..], &["acquire", "-q", "-k", "k2"]]
            .into_iter()
            .map(|words| {
                let door = Door::shut();
                let url = behind(&world, backend, door.port()).expect("it has a server");
                (words, door, world.dlock(words).env("DLOCK_STORE", url).any_stdout().spawn())
            })
            .collect();
    for (_, door, call) in &mut calls {
        wait_until("it tries again", || door.knocks() >= 3);
        assert!(!call.has_ended(), "{}", call.messages());
        door.open(port_of(&world, backend));
    }
    calls.into_iter().for_each(|(.., call)| drop(call.finish()));
}

/// A server that is full.
struct Full<'a> {
    world: &'a World,
    url: &'a dyn Fn(u16) -> String,
    port: u16,
    says: &'a str,
}

impl Full<'_> {
    /// It is left in peace, and a run that does not wait gets what is free within ten seconds.
    fn judge(&self, make_room: impl FnOnce()) {
        let calls: [&[&str]; 3] = [
            &["run", "-k", "k", "--", "true"],
            &["run", "-k", "k", "-w8s", "--", "true"],
            &["acquire", "-k", "k"],
        ];
        let call = |words, door: &Door| {
            self.world.dlock(words).env("DLOCK_STORE", (self.url)(door.port())).any_stderr().any_stdout()
        };
        let refused: Vec<(&[&str], Door, Running)> = calls
            .into_iter()
            .map(|words| {
                let door = Door::before(self.port);
                let call = call(words, &door).status(69).spawn();
                (words, door, call)
            })
            .collect();
        let mut ended = Vec::new();
        for (words, door, call) in refused {
            let said = call.finish().stderr;
            assert!(said.contains(self.says), "{said}");
            ended.push((words, door));
        }
        wait_for_the_guards(self.world);
        let seen: Vec<_> =
            ended.iter().map(|(words, door)| (door.most_in_ten_seconds(), door.knocks(), *words)).collect();
        println!("{seen:#?}");
        assert!(seen.iter().all(|(most, ..)| *most <= MOST), "{seen:#?}");
        let door = Door::before(self.port);
        let served = call(calls[0], &door).stderr_like("").spawn();
        wait_until("it tries again", || door.knocks() >= 3);
        make_room();
        served.finish();
    }
}

#[test]
fn a_redis_without_a_free_client() {
    let world = World::new(Backend::Redis);
    let mut connection = world.redis().connect();
    let mut limit =
        |count| ask::<()>(&mut connection, &["CONFIG", "SET", "maxclients", count]).expect("an answer");
    limit("1");
    let (port, url) = (world.redis().port(), |port| format!("redis://127.0.0.1:{port}"));
    Full { world: &world, url: &url, port, says: "maximum number of clients" }.judge(|| limit("100"));
}

/// Many more runs than the server takes clients come while it is full, and do not wait.
#[test]
fn a_herd_is_served_by_a_server_that_is_full() {
    let world = World::with_redis(&["--maxclients", "8"]);
    let mut others: Vec<_> = (0..8).map(|_| world.redis().connect()).collect();
    let url = format!("redis://127.0.0.1:{}", world.redis().port());
    let run = |number| {
        let key = format!("k{number}");
        world.dlock(["run", "-k", &key, "--", "true"]).env("DLOCK_STORE", &url).spawn()
    };
    let herd: Vec<_> = (0..60).map(run).collect();
    wait_until("it is full", || {
        let info: String = ask(&mut others[0], &["INFO", "stats"]).expect("an answer");
        !info.contains("rejected_connections:0\r")
    });
    drop(others);
    herd.into_iter().for_each(|run| drop(run.finish()));
}

#[cfg(feature = "postgres")]
#[test]
fn a_postgres_role_at_its_limit() {
    let (world, server) =
        World::with_server(|home| Postgres::start(home, &[]), |server| server.url("postgres"));
    server.ask("postgres", "CREATE ROLE few LOGIN; GRANT CREATE ON SCHEMA public TO few");
    let limit = |count| drop(server.ask("postgres", &format!("ALTER ROLE few CONNECTION LIMIT {count}")));
    limit(0);
    let url = |port| format!("postgres://few@127.0.0.1:{port}/postgres");
    Full { world: &world, url: &url, port: server.port(), says: "too many" }.judge(|| limit(10));
}

#[cfg(feature = "mysql")]
#[test]
fn a_mysql_user_at_its_limit() {
    let (world, server) = World::with_server(|home| Mysql::start(home, &[]), |server| server.url("ops"));
    let limit = |count| {
        let set = format!("ALTER USER app@'%' WITH MAX_CONNECTIONS_PER_HOUR {count}; FLUSH USER_RESOURCES");
        drop(server.ask("ops", &set));
    };
    limit(1);
    world.dlock(["status", "k"]).any_stdout().run();
    let url = |port| format!("mysql://app@127.0.0.1:{port}/ops");
    Full { world: &world, url: &url, port: server.port(), says: "too many clients" }.judge(|| limit(0));
}

/// It closes each further connection of the same address without a word.
#[cfg(feature = "zookeeper")]
#[test]
fn a_zookeeper_without_a_free_client() {
    let mut world = World::without_redis();
    // Else the server closes a connection that says nothing after ten seconds, as long as a run asks.
    let settings = ["maxClientCnxns=1", "nio.sessionlessCnxnTimeout=600000"];
    let server = ZooKeeper::start(&world.path(""), &settings);
    world.use_store(server.url("/full"));
    let only = wait_for("the only connection", || {
        let mut only = TcpStream::connect(("127.0.0.1", server.port())).ok()?;
        only.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        let is_kept = only.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        is_kept.then_some(only)
    });
    let url = |port| format!("zookeeper://127.0.0.1:{port}/full");
    let full = Full { world: &world, url: &url, port: server.port(), says: "closed the connection" };
    full.judge(|| drop(only));
}

/// A Redis that refuses AUTH or SELECT runs the request behind it all the same.
#[test]
fn what_a_refused_login_took_is_given_back() {
    let world = World::with_redis(&[]);
    // The server knows the scripts from now on.
    world.run("warm", &[], "true").run();
    let place = format!("127.0.0.1:{}", world.redis().port());
    for (url, status) in [
        (format!("redis://{place}/99"), 78),
        (format!("redis://:wrong@{place}"), 77),
        (format!("redis://nobody:wrong@{place}"), 77),
    ] {
        for words in [&["run", "-k", "k", "--", "true"][..], &["acquire", "-k", "k"]] {
            world.dlock(words).env("DLOCK_STORE", &url).status(status).any_stderr().run();
            wait_until("it is given back", || world.state("k") == "free");
        }
    }
}

/// The URL of a store whose servers are these.
type UrlOf<'a> = &'a dyn Fn(&[Door]) -> String;

/// The figure is that of each server: three sentinels, five masters, two hosts.
#[test]
fn each_of_several_servers_is_left_in_peace() {
    let world = World::without_redis();
    let doors = |count: usize| (0..count).map(|_| Door::shut()).collect::<Vec<_>>();
    let ports = |doors: &[Door]| doors.iter().map(Door::port).collect::<Vec<_>>();
    let hosts = |doors: &[Door]| {
        let hosts: Vec<_> = ports(doors).iter().map(|port| format!("127.0.0.1:{port}")).collect();
        hosts.join(",")
    };
    let places: [(usize, UrlOf<'_>); 6] = [
        (3, &|doors| sentinel::url(&ports(doors))),
        (5, &|doors| masters::url(&ports(doors))),
        (3, &|doors| format!("redis+cluster://{}", hosts(doors))),
        (2, &|doors| format!("postgres://app@{}/d", hosts(doors))),
        (3, &|doors| format!("etcd://{}", hosts(doors))),
        (3, &|doors| format!("zookeeper://{}", hosts(doors))),
    ];
    let words: [&[&str]; 2] =
        [&["run", "-k", "k", "--", "true"], &["run", "-k", "k", "-t", "2s", "-w12s", "--", "true"]];
    let calls: Vec<_> = places
        .iter()
        .flat_map(|(count, url)| words.map(|words| (*count, *url, words)))
        .map(|(count, url, words)| {
            let doors = doors(count);
            let url = url(&doors);
            let call = world.dlock(words).env("DLOCK_STORE", &url).status(69).any_stderr().spawn();
            (url, words, doors, call)
        })
        .collect();
    let ended: Vec<_> = calls
        .into_iter()
        .map(|(url, words, doors, call)| {
            call.finish();
            (url, words, doors)
        })
        .collect();
    wait_for_the_guards(&world);
    for (url, words, doors) in ended {
        let most: Vec<_> = doors.iter().map(Door::most_in_ten_seconds).collect();
        println!("{most:?} {url} {words:?}");
        assert!(most.iter().all(|most| (1..=MOST).contains(most)), "{url} {words:?}: {most:?}");
    }
}

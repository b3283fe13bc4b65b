//! Redis Cluster: the lock is on the master that has its slot, also when that master changes during
//! a hold.

mod slots;

use crate::support::certificates::Authority;
use crate::support::cluster::{Cluster, url};
use crate::support::hole::Silent;
use crate::support::redis::{Redis, next_port};
use crate::support::replicated::{connected, is_master};
use crate::support::wait::wait_until;
use crate::support::world::World;
use rustix::process::Signal;
use std::collections::BTreeMap;

/// A job that logs TERM and runs until `go` exists.
const JOB: &str =
    "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; exit 7";

const WAITER: &str = "echo waited $DLOCK_FENCE >> log";

fn world_with(masters: usize) -> (Cluster, World) {
    let mut world = World::without_redis();
    let cluster = Cluster::start(&world, masters);
    world.use_store(cluster.url(&[0]));
    (cluster, world)
}

/// Holder and waiter end as expected, with fences that grow.
#[track_caller]
fn end_well(
    world: &World,
    fence: u64,
    holder: crate::support::dlock::Running,
    waiter: crate::support::dlock::Running,
) {
    assert_eq!(world.fence("k"), fence, "it is still the first grant");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let log = world.log();
    assert_eq!(log[0], "up", "{log:?}");
    let next: u64 = log[1].strip_prefix("waited ").and_then(|fence| fence.parse().ok()).expect("a fence");
    assert!(next > fence, "{fence}, then {log:?}");
}

/// The master of the lock dies, and its replica takes over. The URL names only one other node.
#[test]
fn a_failover_in_the_middle_of_a_hold_disturbs_nothing() {
    goes_on_at_the_replica(Redis::kill);
}

/// The same where the master does not die but hangs: it accepts connections and requests and
/// answers none.
#[test]
fn a_node_that_hangs_disturbs_nothing() {
    goes_on_at_the_replica(|node| node.pause());
}

fn goes_on_at_the_replica(end: impl FnOnce(&mut Redis)) {
    let (mut cluster, mut world) = world_with(3);
    let owner = cluster.owner("dlock:k");
    let replica = cluster.replica(&world, owner);
    let silent = Silent::new();
    let ports = [next_port(), silent.port(), cluster.masters[(owner + 1) % 3].port()];
    world.use_store(url(&ports));
    let holder = world.run("k", &["-t", "20s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    let fence = world.fence("k");
    let waiter = world.run("k", &["-w", "-t", "20s"], WAITER).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    wait_until("the replica has the waiter", || {
        replica.keys().iter().any(|key| key.starts_with("dlock.waiter:"))
    });
    end(&mut cluster.masters[owner]);
    replica.ask::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    wait_until("the replica is master", || is_master(&replica));
    replica.after_renewal("dlock:k");
    end_well(&world, fence, holder, waiter);
}

/// `--replicas all` means the replicas that the cluster's nodes know, not those that are connected
/// at the moment.
#[test]
fn all_replicas_are_all_that_the_cluster_knows() {
    let (cluster, world) = world_with(2);
    let owner = cluster.owner("dlock:k");
    let [_alive, mut dead] = [(); 2].map(|()| cluster.replica(&world, owner));
    let master = &cluster.masters[owner];
    let id: String = master.ask(&["CLUSTER", "MYID"]);
    // News of a node may arrive before older news that calls it a master.
    wait_until("both follow", || {
        let nodes: String = master.ask(&["CLUSTER", "NODES"]);
        nodes.matches(&format!("slave {id}")).count() == 2
    });
    let gone: String = dead.ask(&["CLUSTER", "MYID"]);
    let all = ["--replicas", "all"];
    world.run("k", &all, "true").run();
    dead.kill();
    wait_until("its master has dropped it", || connected(master) == 1);
    let run = world.run("k", &all, "touch ran").status(69);
    run.stderr_like("dlock: .*1 of 2 replicas acknowledged.*given back.*did not run\n").run();
    assert!(!world.path("ran").exists());
    world.run("k", &["--replicas", "1"], "true").run();
    // A replica that is gone for good is removed.
    master.ask::<()>(&["CLUSTER", "FORGET", &gone]);
    world.run("k", &all, "true").run();
}

/// The master of the lock dies and comes back empty: the lock is lost, and the job is stopped.
#[test]
fn a_node_that_forgets_the_lock_stops_the_job() {
    let (mut cluster, world) = world_with(2);
    let owner = cluster.owner("dlock:k");
    let holder = world.run("k", &["-t", "20s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let fence = world.fence("k");
    cluster.masters[owner].restart();
    let output = holder.finish();
    assert!(output.stderr.contains("lost"), "{}", output.stderr);
    world.run("k", &[], "echo $DLOCK_FENCE >> fence").run();
    assert!(world.read("fence").trim().parse::<u64>().expect("a fence") > fence);
}

/// status lists the locks of all masters, whichever node the URL names.
#[test]
fn status_lists_every_master() {
    let (cluster, world) = world_with(3);
    let mut held = BTreeMap::new();
    for number in 0.. {
        let key = format!("k{number}");
        held.entry(cluster.owner(&format!("dlock:{key}"))).or_insert(key);
        if held.len() == 3 {
            break;
        }
    }
    let holders: Vec<_> = held
        .values()
        .map(|key| world.run(key, &["-t", "20s"], &format!("echo {key} >> log; {JOB}")).status(7).spawn())
        .collect();
    for key in held.values() {
        world.wait_for_log(key);
    }
    let mut keys: Vec<_> = held.values().cloned().collect();
    keys.sort();
    for number in 0..3 {
        let status = world.dlock(["status", "--json"]).env("DLOCK_STORE", cluster.url(&[number]));
        let seen: Vec<serde_json::Value> =
            serde_json::from_str(&status.any_stdout().run().stdout).expect("status --json prints JSON");
        let seen: Vec<_> = seen.iter().map(|lock| lock["key"].as_str().expect("a key")).collect();
        assert_eq!(seen, keys);
    }
    world.write("go", "");
    holders.into_iter().for_each(|holder| drop(holder.finish()));
}

/// A single server behind a cluster's URL and a cluster behind a single server's URL are refused:
/// two single servers in one URL would hold two locks.
#[test]
fn a_url_of_the_wrong_kind_is_refused() {
    let single = World::with_redis(&[]);
    let cluster = url(&[single.redis().port()]);
    let run = single.run("k", &[], "touch ran").env("DLOCK_STORE", cluster);
    run.status(78).stderr_like("dlock: .*is no cluster.*redis://.*\n").run();
    wait_until("no lock is left", || single.state("k") == "free");
    assert!(!single.path("ran").exists());

    let (cluster, mut world) = world_with(2);
    let other = &cluster.masters[1 - cluster.owner("dlock:k")];
    world.use_store(other.url());
    world.run("k", &[], "touch ran").status(78).stderr_like("dlock: .*redis\\+cluster://.*\n").run();
    assert!(!world.path("ran").exists());
}

/// One node with TLS that has no announced address: it is found at the address of the URL.
#[test]
fn a_cluster_works_over_tls() {
    let bus = next_port().to_string();
    let options = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", &bus];
    let options = [&options[..], &["--tls-cluster", "yes"]].concat();
    let mut world = World::with_tls(&Authority::new("ca"), &options);
    world.redis().ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster is up", || {
        world.redis().ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    let ca = world.path("ca.pem");
    world.use_store(format!("rediss+cluster://localhost:{}?ca={}", world.redis().port(), ca.display()));
    let holder = world.run("k", &["-t", "20s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w", "-t", "20s"], WAITER).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let status = world.dlock(["status"]).any_stdout().run();
    assert!(status.stdout.contains('k'), "{}", status.stdout);
    let fence = world.fence("k");
    end_well(&world, fence, holder, waiter);
}

/// A node that announces an address may have a certificate for the name in the URL.
#[test]
fn a_node_that_announces_an_address_is_verified_by_the_name_in_the_url() {
    let bus = next_port().to_string();
    let options = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", &bus];
    let options = [&options[..], &["--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1"]].concat();
    let authority = Authority::new("ca");
    let world = World::with_tls(&authority, &options);
    world.redis().ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster is up", || {
        world.redis().ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    let certify = |names: &[&str]| {
        authority.issue(names).write(&world.path(""), "server");
        world.redis().ask::<()>(&[
            "CONFIG",
            "SET",
            "tls-cert-file",
            "server.pem",
            "tls-key-file",
            "server.key",
        ]);
    };
    let (ca, port) = (world.path("ca.pem").display().to_string(), world.redis().port());
    let url = |hosts: &str| format!("rediss+cluster://{hosts}?ca={ca}");
    let run = |hosts: &str, status| {
        let run = world.run("k", &["--store", &url(hosts)], "true").status(status).any_stderr().run();
        run.stderr
    };
    certify(&["localhost"]);
    run(&format!("localhost:{port}"), 0);
    let said = run(&format!("127.0.0.1:{port}"), 69);
    assert!(said.contains("is for localhost and not for 127.0.0.1"), "{said}");
    // A certificate for the address is accepted as well, and no other name.
    certify(&["127.0.0.1", "localhost"]);
    run(&format!("localhost:{port}"), 0);
    run(&format!("127.0.0.1:{port}"), 0);
    certify(&["127.0.0.1"]);
    run(&format!("127.0.0.1:{port},localhost:{port}"), 0);
    certify(&["elsewhere"]);
    run(&format!("127.0.0.1:{port},localhost:{port}"), 69);
}

/// The cost of an acquire and of a hold, printed; docs/stores.md names the connections.
#[test]
fn connections_and_commands_are_few() {
    let (cluster, world) = world_with(3);
    let owner = cluster.owner("dlock:k");
    let stranger = (owner + 1) % 3;
    world.run("k", &[], "true").run();
    for (from, whose) in [(stranger, "another node"), (owner, "the owner")] {
        cluster.masters.iter().for_each(|node| node.ask::<()>(&["CONFIG", "RESETSTAT"]));
        let url = cluster.url(&[from]);
        let holder = world.run("k", &["-t", "20s"], JOB).env("DLOCK_STORE", &url).status(7).spawn();
        world.wait_for_lines("up", if from == owner { 2 } else { 1 });
        let [evalsha, eval, slots] = ["evalsha", "eval", "cluster|slots"]
            .map(|name| cluster.masters.iter().map(|node| calls(node, name)).sum::<u64>());
        println!("by {whose}: evalsha {evalsha}, eval {eval}, cluster slots {slots}");
        assert_eq!([evalsha, eval, slots], [1, 0, 1], "one that only redirects has run nothing");
        // The second connection, which brings requests to the holder, comes later.
        wait_until("the holder listens", || clients(&cluster.masters[owner]) == 2);
        cluster.masters[owner].after_renewal("dlock:k");
        let connections: Vec<_> = cluster.masters.iter().map(clients).collect();
        println!("by {whose}: {connections:?} connections of a holder");
        assert_eq!(connections.iter().sum::<usize>(), 2);
        if from == owner {
            let waiter = world.run("k", &["-w"], "true").any_stderr().spawn();
            world.wait_for_waiters("k", 1);
            // The second connection comes with the next heartbeat, while the first one listens.
            wait_until("the waiter listens", || clients(&cluster.masters[owner]) == 4);
            let connections: Vec<_> = cluster.masters.iter().map(clients).collect();
            println!("with a waiter: {connections:?} connections");
            assert_eq!(connections.iter().sum::<usize>(), 4);
            world.write("go", "");
            waiter.finish();
        } else {
            world.write("go", "");
        }
        holder.finish();
        std::fs::remove_file(world.path("go")).expect("it was written");
    }
}

fn calls(node: &Redis, name: &str) -> u64 {
    let stats: String = node.ask(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Connections over TCP; the test itself uses the unix socket.
fn clients(node: &Redis) -> usize {
    let list: String = node.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
    list.lines().filter(|line| !line.contains("redis.sock")).count()
}

/// One subscription covers the locks of one slot only, so several locks are read once a second.
/// Each event is shown once.
#[test]
fn watch_and_metrics_see_the_locks_of_every_master() {
    let (_cluster, world) = world_with(3);
    for arguments in [&[][..], &["a"], &["a", "b", "c", "d"]] {
        let watch = world.dlock(["watch", "-v", "--json"]).args(arguments).any_stdout().any_stderr().spawn();
        wait_until("it watches", || watch.messages().contains("watching from now on"));
        let keys = if arguments.len() == 1 { &["a"][..] } else { &["a", "b", "c", "d"] };
        for key in keys {
            world.run(key, &[], "exit 3").status(3).run();
        }
        wait_until("all is told", || watch.printed().lines().count() == 2 * keys.len());
        watch.signal(Signal::TERM);
        let told = watch.finish().stdout;
        for key in keys {
            assert_eq!(told.matches(&format!("\"key\":\"{key}\"")).count(), 2, "{told}");
        }
    }
    let text = world.dlock(["metrics"]).any_stdout().run().stdout;
    assert!(text.contains("\ndlock_keys 4\n"), "{text}");
}

/// One of the servers is gone for good: the locks of the others are shown, and a message says what
/// is missing.
#[test]
fn a_shard_that_is_gone_hides_no_other() {
    let mut world = World::without_redis();
    let mut cluster = Cluster::start(&world, 3);
    for master in &cluster.masters {
        master.ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    world.use_store(cluster.url(&[0, 1, 2]));
    let job = |key: &str| format!("echo up-{key} >> log; exec sleep 1000");
    let held: Vec<_> = (0..3)
        .map(|shard| {
            let keys = (0..).map(|number| format!("k{number}"));
            let key =
                keys.into_iter().find(|key| cluster.owner(&format!("dlock:{key}")) == shard).expect("a key");
            let holder = world.run(&key, &["-t", "5m"], &job(&key)).status(79).any_stderr().spawn();
            world.wait_for_log(&format!("up-{key}"));
            (key, holder)
        })
        .collect();
    let watch = world.dlock(["watch"]).any_stdout().any_stderr().spawn();
    wait_until("it watches", || cluster.masters[0].keys().iter().any(|key| key.starts_with("dlock.watch:")));
    let gone = cluster.masters[1].port().to_string();
    cluster.masters[1].kill();
    for words in [["status", "--json"], ["metrics", "-q"]] {
        let output = world.dlock(words).status(69).any_stdout().any_stderr().run();
        for (shard, (key, _)) in held.iter().enumerate() {
            assert_eq!(
                output.stdout.contains(&format!("\"{key}\"")),
                shard != 1,
                "{words:?}: {}",
                output.stdout
            );
        }
        assert!(output.stderr.contains(&gone), "it says which: {}", output.stderr);
    }
    wait_until("the watcher says so", || watch.messages().contains("its locks are not watched"));
    world.dlock(["release", &held[2].0, "--force", "-y"]).any_stdout().any_stderr().run();
    wait_until("and goes on", || watch.printed().contains("forced"));
    watch.signal(Signal::KILL);
}

//! What may befall an ensemble of ZooKeeper that keeps locks, and those who hold them there: sessions that end too soon or too
//! late, servers killed, stopped and elected anew. And who gets in.

use crate::support::storm::{Wish, runs, storm};
use crate::support::wait::{wait_for, wait_until};
use crate::support::world::World;
use crate::support::zookeeper::{Ensemble, ZooKeeper};
use dlock::clock::Moment;
use dlock::law::{Acquired, Ask, Patience, Terms};
use dlock::lock::{Key, Mode, Name, Names, Owner, Token};
use dlock::store::Store as _;
use dlock::store::net::Address;
use dlock::store::zookeeper::{Target, ZooKeeperStore};
use rustix::process::Signal;
use std::thread::sleep;
use std::time::Duration;

/// A job that goes on until `go` is there.
const JOB: &str = "echo $$ > pid; echo up >> log; while [ ! -e go ]; do sleep 0.02; done; echo done >> log";

/// A world with a server of its own.
fn own_server(settings: &[&str]) -> (World, ZooKeeper) {
    let mut world = World::without_redis();
    let server = ZooKeeper::start(&world.path(""), settings);
    world.use_store(server.url("/ops/locks"));
    (world, server)
}

/// A world with three servers.
fn ensemble() -> (World, Ensemble) {
    let mut world = World::without_redis();
    let ensemble = Ensemble::start(&world.path(""), &[]);
    world.use_store(ensemble.url("/ops"));
    (world, ensemble)
}

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

/// The guard gives back what a dlock held that was killed, and nothing of its session is left.
#[test]
fn who_is_killed_leaves_nothing() {
    let (world, server) = own_server(&[]);
    let holder = world.run("k", &["-t", "10m"], JOB).dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    assert!(server.sessions().contains("/dlock/lives/"), "{}", server.sessions());
    holder.signal(Signal::KILL);
    holder.finish();
    world.wait_for_state("k", "free");
    wait_until("its life is over", || !server.sessions().contains("/dlock/lives/"));
}

/// A dlock that is stopped for longer than its session: the next one starts when the job is dead.
#[test]
fn who_is_stopped_past_its_session_has_no_job_left() {
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

/// A server that fails takes with it what it had not told the leader: a session may end while the lease that counts from its
/// last renewal does not.
#[test]
fn a_session_that_ends_too_soon_lets_nobody_in() {
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

/// Somebody with a token and a store of his own.
struct Person {
    store: ZooKeeperStore,
    token: Token,
}

fn person(world: &World) -> Person {
    let chroot = format!("/{}", world.url().rsplit('/').next().expect("a node"));
    let mut store = ZooKeeperStore::open(Target {
        servers: vec![Address::Tcp { host: "127.0.0.1".into(), port: ZooKeeper::shared().port() }],
        login: None,
        chroot,
        tls: None,
        shown: "here".into(),
        connect_timeout: Duration::from_secs(20),
        op_timeout: Duration::from_secs(20),
    });
    let token = Token::random().expect("a token");
    store.prepare(&token).expect("a store");
    Person { store, token }
}

impl Person {
    fn asks(&mut self) -> Acquired {
        let names: Names = Name::new("", &Key::new("k").expect("a key")).expect("a name").into();
        let ask = Ask {
            token: self.token.clone(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(60),
            min_hold: Duration::ZERO,
            owner: Owner::default(),
            patience: Patience::None,
            terms: Terms::default(),
            waited: Duration::ZERO,
        };
        self.store.acquire(&names, &ask, Moment::now().after(Duration::from_secs(20))).expect("an answer")
    }
}

/// One of three may be killed or stopped, whichever it is, and those who hold and wait notice nothing.
#[test]
fn one_of_three_may_fail() {
    let (world, mut ensemble) = ensemble();
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let leader = ensemble.leader();
    ensemble.servers[leader].kill();
    let answers = || world.dlock(["status", "--json", "k"]).any_stdout().any_stderr().spawn().output();
    let waits = |waiters: usize| {
        wait_for("the others answer", || {
            let said: serde_json::Value = serde_json::from_str(&answers().stdout).ok()?;
            (said[0]["state"] == "held" && said[0]["waiters"].as_array()?.len() == waiters).then_some(())
        });
    };
    waits(1);
    ensemble.servers[leader].run();
    let leader = ensemble.leader();
    ensemble.servers[leader].signal(Signal::STOP);
    waits(1);
    ensemble.servers[leader].signal(Signal::CONT);
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// Nobody serves for half a lease.
#[test]
fn half_a_session_without_servers_disturbs_no_job() {
    let (world, mut server) = own_server(&[]);
    // A JVM takes its time to start on a busy machine.
    let holder = world.run("k", &["-t", "60s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-t", "60s", "-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    server.kill();
    sleep(Duration::from_secs(8));
    server.run();
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

#[test]
fn servers_that_are_gone_for_good_end_the_job_in_time() {
    let (world, mut server) = own_server(&[]);
    let holder = world.run("k", &["-t", "5s", "--grace", "1s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    server.kill();
    holder.finish();
    assert_eq!(world.log(), ["up"]);
}

/// A server at which the others have left off may not say yes: a renewal is heard by most of them or by none.
#[test]
fn a_server_that_is_alone_renews_nothing() {
    let (world, ensemble) = ensemble();
    let holder = world.run("k", &["-t", "8s", "--grace", "1s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let leader = ensemble.leader();
    let alone = (leader + 1) % 3;
    for other in (0..3).filter(|other| *other != alone) {
        ensemble.servers[other].signal(Signal::STOP);
    }
    holder.finish();
    assert_eq!(world.log(), ["up"]);
    for other in (0..3).filter(|other| *other != alone) {
        ensemble.servers[other].signal(Signal::CONT);
    }
}

/// What is made belongs to its user, and nobody else reads it.
#[test]
fn nodes_are_their_makers_own() {
    let (world, server) = own_server(&[]);
    let dlock = |user: &str, status: i32| {
        let url = world.url().replace("//", &format!("//{user}"));
        world.run("k", &["--store", &url], "echo ran >> log").status(status).any_stderr().run().stderr
    };
    let mine = "app:s3cret@";
    dlock(mine, 0);
    for other in ["app:wrong@", "else:s3cret@", ""] {
        let said = dlock(other, 77);
        assert!(said.contains("denies this user a right") && !said.contains("s3cret"), "{said}");
    }
    assert!(!server.command(&["get", "/ops/locks/dlock/locks/dlock:k"]).contains("format"));
    dlock(mine, 0);
    assert_eq!(world.log(), ["ran", "ran"]);
    // Who may not make the nodes is told what to do.
    server.command(&["create", "/closed", "", "world:anyone:r"]);
    let closed = server.url("/closed");
    let said = world.run("k", &["--store", &closed], "true").status(77).any_stderr().run().stderr;
    assert!(said.contains("there is no /closed/dlock yet"), "{said}");
}

/// Who waits and who holds leave nothing when they are gone, however they went.
#[test]
fn a_storm_leaves_no_node_of_anybody() {
    let (world, server) = own_server(&[]);
    let alone = Wish { keys: &["k"], options: &[], kind: "alone" };
    let shared = Wish { keys: &["k"], options: &["-s"], kind: "shared" };
    let two = Wish { keys: &["k", "l"], options: &[], kind: "alone" };
    storm(&world, 6, 20, &[alone, shared, two]);
    println!("{} runs", 6 * runs(20));
    wait_until("no life is left", || !server.sessions().contains("/dlock/lives/"));
    let said = server.command(&["ls", "-R", "/ops/locks/dlock/locks"]);
    let waiters: Vec<&str> = said.lines().filter(|line| line.contains("/w-")).collect();
    assert!(waiters.iter().all(|path| path.contains("-p")), "nobody waits: {waiters:?}");
}

/// What is read, changed and written back under the lock, while the leader fails again and again.
#[test]
fn no_increment_is_lost() {
    let (world, mut ensemble) = ensemble();
    world.write("count", "0\n");
    let add = "n=$(cat count); echo $((n+1)) > count.new; mv count.new count; echo add >> log";
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..runs(6) {
                        world.run("k", &["-t", "5s", "-w"], add).any_stderr().run();
                    }
                })
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            let leader = ensemble.leader();
            ensemble.servers[leader].kill();
            sleep(Duration::from_secs(2));
            ensemble.servers[leader].run();
            sleep(Duration::from_secs(if runs(1) > 1 { 8 } else { 2 }));
        }
    });
    assert_eq!(world.read("count").trim(), (4 * runs(6)).to_string());
    assert_eq!(world.lines("add"), 4 * runs(6));
}

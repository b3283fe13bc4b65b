//! ZooKeeper: sessions that end too soon or too late, servers that are killed, stopped and elected
//! anew, and which users get in.

mod lost_servers;
mod sessions;
mod strangers;

use crate::support::ask::exclusive;
use crate::support::certificates::Authority;
use crate::support::dlock::Dlock;
use crate::support::hand_over::{hand_over, hand_over_to_readers, notices_deaths};
use crate::support::members::Cluster as _;
use crate::support::storm::{Wish, is_soak, runs, storm};
use crate::support::target::{local, target};
use crate::support::wait::{OUTAGE, wait_until, wait_within};
use crate::support::world::World;
use crate::support::zookeeper::{Ensemble, TLS, ZooKeeper, free_port};
use dlock::clock::Moment;
use dlock::lock::{Key, Name, Names, Token};
use dlock::rules::{Acquired, End, Left, Patience, Ran, Renew, Renewal};
use dlock::store::Store as _;
use dlock::store::zookeeper::ZooKeeperStore;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A job that runs until `go` exists.
const JOB: &str = "echo $$ > pid; echo up >> log; while [ ! -e go ]; do sleep 0.1; done; echo done >> log";

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
    world.use_store(ensemble.url_of(&[0, 1, 2]));
    (world, ensemble)
}

fn names() -> Names {
    Name::new("", &Key::new("k").expect("a key")).expect("a name").into()
}

const TTL: Duration = Duration::from_secs(60);

fn in_time() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

/// A client with a token and a store of its own.
struct Person {
    store: ZooKeeperStore,
    token: Token,
}

fn person(world: &World) -> Person {
    person_at(world, ZooKeeper::shared().port())
}

fn person_at(world: &World, port: u16) -> Person {
    let chroot = format!("/{}", world.url().rsplit('/').next().expect("a node"));
    let mut store = ZooKeeperStore::open(target(vec![local(port)], None, &chroot));
    let token = Token::random().expect("a token");
    store.prepare(&token).expect("a store");
    Person { store, token }
}

impl Person {
    fn asks(&mut self) -> Acquired {
        self.asks_for(TTL)
    }

    fn asks_for(&mut self, ttl: Duration) -> Acquired {
        let names = names();
        let ask = exclusive(&self.token, ttl, Patience::None);
        self.store.acquire(&names, &ask, in_time()).expect("an answer")
    }

    fn renews(&mut self, ttl: Duration) -> Renewal {
        self.store
            .renew(&names(), &Renew { token: &self.token, fence: None, ttl, rest: None }, in_time())
            .expect("an answer")
    }

    fn leaves(&mut self) -> Left {
        let end = End { ran: Ran::No, job: None, once_per: false, fence: None, pause: None };
        self.store.leave(&names(), &self.token, &end, in_time()).expect("it is given back")
    }
}

/// The nodes belong to the user who created them, and no other user can read them.
#[test]
fn nodes_belong_to_their_creator() {
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
    // A user who may not create the nodes gets a message that says what to do.
    server.command(&["create", "/closed", "", "world:anyone:r"]);
    let closed = server.url("/closed");
    let said = world.run("k", &["--store", &closed], "true").status(77).any_stderr().run().stderr;
    assert!(said.contains("there is no /closed/dlock yet"), "{said}");
}

/// With the rights of docs/stores.md, exactly as written there, and no others.
#[test]
fn a_user_with_its_node_alone_can_do_all() {
    let (world, server) = own_server(&[]);
    let page = include_str!("../../docs/stores.md");
    let recipe = page.split("\n```\n").find(|block| block.starts_with("create /ops\n")).expect("a recipe");
    let line = page.lines().find(|line| line.starts_with("printf ")).expect("how HASH is made");
    let made =
        Command::new("sh").args(["-c", &line.replace("PASSWORD", "s3cret")]).output().expect("a shell");
    let hash = String::from_utf8(made.stdout).expect("a hash");
    for line in recipe.replace("HASH", hash.trim()).lines() {
        server.command(&line.split(' ').collect::<Vec<_>>());
    }
    let url = server.url("/ops");
    let ours = |dlock| as_user(dlock, &url, "dlock", "s3cret");
    let holder = ours(world.run("k", &["-t", "60s"], JOB)).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = ours(world.run("k", &["-w"], "echo next >> log")).any_stderr().spawn();
    let status = || ours(world.dlock(["status", "k"])).any_stdout().run().stdout;
    wait_until("it waits", || status().contains("wait"));
    let doctor = ours(world.dlock(["doctor"])).any_stdout().any_stderr().run().stdout;
    assert!(doctor.contains("all that locks need"), "{doctor}");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let text = r#"lock=$("$0" acquire -q --export -k script) || exit; eval "$lock"; "$0" renew script && "$0" release -q script"#;
    ours(world.dlock([""; 0]).under(&["sh", "-c", text])).any_stdout().any_stderr().run();
    for (user, password) in [("dlock", "wrong"), ("else", "s3cret")] {
        let run = as_user(world.run("k", &[], "echo ran >> log"), &url, user, password);
        let said = run.status(77).any_stderr().run().stderr;
        assert!(said.contains("denies this user a right"), "{said}");
    }
    assert_eq!(world.log(), ["up", "done", "next"]);
}

fn as_user<'w>(dlock: Dlock<'w>, url: &str, user: &str, password: &str) -> Dlock<'w> {
    dlock.env("DLOCK_STORE", url).env("DLOCK_USERNAME", user).env("DLOCK_PASSWORD", password)
}

/// Over TLS: which servers are trusted, and which clients get in.
#[test]
fn servers_are_reached_over_tls() {
    let authority = Authority::new("the ensemble's");
    let mut world = World::without_redis();
    let path = |name: &str| world.path(name).display().to_string();
    authority.write(&world.path("ca.pem"));
    Authority::new("another").write(&world.path("other.pem"));
    let shown = authority.issue(&["localhost"]);
    world.write("server.pem", &(shown.pem + &shown.key));
    authority.issue(&["client"]).write(&world.path(""), "client");
    let port = free_port();
    let settings = [
        format!("secureClientPort={port}"),
        "secureClientPortAddress=127.0.0.1".into(),
        format!("ssl.keyStore.location={}", path("server.pem")),
        format!("ssl.trustStore.location={}", path("ca.pem")),
        "ssl.clientAuth=need".into(),
    ];
    let settings: Vec<&str> = TLS.into_iter().chain(settings.iter().map(String::as_str)).collect();
    let _server = ZooKeeper::start(&world.path(""), &settings);
    let (ca, cert) = (path("ca.pem"), format!("cert={}&key={}", path("client.pem"), path("client.key")));
    let other = path("other.pem");
    world.use_store(format!("zookeepers://localhost:{port}/ops?ca={ca}&{cert}"));
    // The first handshakes of a JVM take long.
    wait_until("it speaks TLS", || {
        let status = world.dlock(["status", "--connect-timeout", "20s"]).any_stdout().any_stderr();
        status.spawn().output().stderr.is_empty()
    });
    hand_over(&world, |dlock| dlock);
    let doctor = world.dlock(["doctor"]).any_stdout().any_stderr().run().stdout;
    assert!(doctor.contains("3."), "each server tells its version: {doctor}");
    let refused = |host: &str, parameters: &str, status: i32| {
        let url = format!("zookeepers://{host}:{port}/ops?{parameters}");
        let run = world.run("k", &["--store", &url, "--connect-timeout", "20s"], "echo ran >> log");
        run.status(status).any_stderr().run().stderr
    };
    let said = refused("localhost", &format!("ca={other}&{cert}"), 69);
    assert!(said.contains("cannot trust") && said.contains("other.pem"), "another authority: {said}");
    let said = refused("127.0.0.1", &format!("ca={ca}&{cert}"), 69);
    assert!(said.contains("not for 127.0.0.1"), "another name: {said}");
    let said = refused("localhost", &format!("ca={ca}"), 77);
    assert!(said.contains("wants a client certificate"), "no certificate of one's own: {said}");
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// Neither the requests to a server nor its events per hand-over grow with the number of waiters;
/// the requests while nothing happens grow slowly.
#[test]
fn waiters_send_few_requests() {
    let (world, server) = own_server(&[]);
    let few = cost_of_a_turn(&world, &server, "few", 10);
    let many = cost_of_a_turn(&world, &server, "many", if is_soak() { 200 } else { 40 });
    assert!(many.asked - many.heard < 2.0 * few.asked, "{many:?} of many, {few:?} of few");
    assert!(many.told < 2.0 * few.told, "{many:?} of many, {few:?} of few");
}

/// What one turn costs a server.
#[derive(Debug)]
struct Turn {
    /// Requests.
    asked: f64,
    /// Requests among them that are heartbeats of waiters.
    heard: f64,
    /// Events sent to watchers.
    told: f64,
}

/// Measures the cost per turn of a queue, from the first turn to the last.
fn cost_of_a_turn(world: &World, server: &ZooKeeper, key: &str, waiters: usize) -> Turn {
    let all = ["-t", "60s", "--op-timeout", "20s"];
    let script = format!("echo {key} >> log; while [ ! -e go.{key} ]; do sleep 0.1; done");
    let holder = world.run(key, &all, &script).any_stderr().spawn();
    world.wait_for_log(key);
    let run = |_| world.run(key, &[&["-w"], &all[..]].concat(), "true").any_stderr().spawn();
    let crowd: Vec<_> = (0..waiters).map(run).collect();
    wait_within(OUTAGE, "all wait", || (world.waiters(key) == waiters).then_some(()));
    let (began, before) = (Instant::now(), server.requests());
    // The time in which requests are counted.
    sleep(Duration::from_secs(5));
    let idle = (server.requests() - before) as f64 / began.elapsed().as_secs_f64();
    println!("{waiters} wait: {idle:.1} requests a second");
    // Each waiter sends a heartbeat every 1.6 s, and waiters far back in the queue read the records
    // less often.
    assert!(idle < 8.0 * waiters as f64, "{idle} requests a second");
    let (began, before, told) = (Instant::now(), server.requests(), server.told());
    world.write(&format!("go.{key}"), "");
    holder.finish_within(OUTAGE);
    crowd.into_iter().for_each(|run| drop(run.finish_within(OUTAGE)));
    let (took, turns) = (began.elapsed(), waiters as f64);
    // On average half of the waiters are still waiting.
    let heard = idle * took.as_secs_f64() / 2.0 / turns;
    let (asked, told) = ((server.requests() - before) as f64 / turns, (server.told() - told) as f64 / turns);
    let turn = Turn { asked, heard, told };
    println!("{waiters} turns in {took:?}: {turn:.1?}");
    turn
}

#[test]
#[ignore = "long; ./test --soak"]
fn a_crowd_of_readers_is_granted_the_lock() {
    hand_over_to_readers(&World::with_zookeeper());
}

#[test]
fn the_last_of_a_crowd_soon_notices_a_death_before_it() {
    notices_deaths(&World::with_zookeeper());
}

/// Waiters and holders leave nothing behind, however they end.
#[test]
fn a_storm_leaves_no_node() {
    let (world, server) = own_server(&[]);
    storm(&world, 8, 20, &WISHES);
    println!("{} runs", 8 * runs(20));
    nobody_is_left(&server, "/ops/locks");
}

/// No session node, no heartbeat node and no queue entry is left. A ticket that is retained for a
/// while may be there.
fn nobody_is_left(server: &ZooKeeper, chroot: &str) {
    wait_within(OUTAGE, "no life is left", || (!server.sessions().contains("/dlock/lives/")).then_some(()));
    let lives = server.command(&["ls", "-R", &format!("{chroot}/dlock/lives")]);
    assert!(!lives.contains("/lives/"), "{lives}");
    let said = server.command(&["ls", "-R", &format!("{chroot}/dlock/locks")]);
    assert!(said.contains("/dlock/locks/") && !said.contains("/b-"), "{said}");
    let is_lock = |path: &&str| path.split_once("/dlock/locks/").is_some_and(|(_, rest)| !rest.contains('/'));
    for path in said.lines().filter(is_lock) {
        let record = server.command(&["get", path]);
        assert!(record.contains("\"queue\":[]"), "nobody waits: {record}");
    }
}

const WISHES: [Wish; 3] = [
    Wish { keys: &["k"], options: &[], kind: "alone" },
    Wish { keys: &["k"], options: &["-s"], kind: "shared" },
    Wish { keys: &["k", "l"], options: &[], kind: "alone" },
];

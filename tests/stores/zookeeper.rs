//! What may befall an ensemble of ZooKeeper that keeps locks, and those who hold them there: sessions that end too soon or too
//! late, servers killed, stopped and elected anew. And who gets in.

use crate::support::certificates::Authority;
use crate::support::dlock::{BINARY, Dlock, finish_all};
use crate::support::hand_over::{hand_over, hand_over_to_readers};
use crate::support::members::{
    Cluster as _, a_follower_is_cut_off, a_leader_is_cut_off, all_are_gone_for_good,
    all_stand_still_for_half_a_lease, increments_through_outages, leaders_are_killed, outages_of,
};
use crate::support::outages::storm_through_outages;
use crate::support::proc;
use crate::support::proxy::Proxy;
use crate::support::storm::{Wish, is_soak, runs, storm};
use crate::support::wait::{OUTAGE, wait_until, wait_within};
use crate::support::world::World;
use crate::support::zookeeper::{Ensemble, TLS, ZooKeeper, free_port};
use dlock::clock::Moment;
use dlock::lock::{Key, Mode, Name, Names, Owner, Token};
use dlock::rules::{Acquired, Ask, End, Left, Patience, Ran, Renewal, Terms};
use dlock::store::Store as _;
use dlock::store::net::Address;
use dlock::store::zookeeper::{Target, ZooKeeperStore};
use rustix::process::Signal;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

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
    world.use_store(ensemble.url_of(&[0, 1, 2]));
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

/// All of a run stands still until its lease is over, and nobody else takes the lock: what it is told then is that it has lost
/// it, and at once.
#[test]
fn who_was_stopped_past_its_session_is_told_so() {
    let (world, _server) = own_server(&[]);
    let holder = world.run("k", &["-t", "5s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_log("up");
    let all = [world.wait_for_pid("pid"), holder.guard(), holder.pid()];
    all.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
    world.wait_for_state("k", "free");
    all.iter().rev().for_each(|pid| proc::signal(*pid, Signal::CONT));
    let said = holder.finish().stderr;
    assert!(!said.contains("others have changed the lock"), "{said}");
    let ends = world.dlock(["history", "--json", "k"]).any_stdout().run().stdout;
    assert!(ends.contains("\"expired\""), "{ends}");
}

/// The same of the store alone: it asks little for that.
#[test]
fn a_lease_that_is_over_is_told_at_once() {
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

/// The leader's clock is set forward by more than a lease, and then back again: who holds renews, and nobody else is let in.
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
        // What somebody has just read the clock for is soon read anew. As long as it is past the end of the lease in the record,
        // the session alone says how long that lasts.
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

/// Who holds a lock gives it back as any other, although its lease seems to be over: so does its guard when it was killed.
#[test]
fn what_is_given_back_after_a_step_of_the_clock_was_held() {
    let mut world = World::without_redis();
    let server = ZooKeeper::start_steered(&world.path(""), &[]);
    world.use_store(server.url("/ops/locks"));
    for (ahead, is_killed) in [(7200, false), (20_000, true)] {
        // What runs inside of a job asks by a store of its own.
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

fn names() -> Names {
    Name::new("", &Key::new("k").expect("a key")).expect("a name").into()
}

const TTL: Duration = Duration::from_secs(60);

fn in_time() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

/// Somebody with a token and a store of his own.
struct Person {
    store: ZooKeeperStore,
    token: Token,
}

fn person(world: &World) -> Person {
    person_at(world, ZooKeeper::shared().port())
}

fn person_at(world: &World, port: u16) -> Person {
    let chroot = format!("/{}", world.url().rsplit('/').next().expect("a node"));
    let mut store = ZooKeeperStore::open(Target {
        servers: vec![Address::Tcp { host: "127.0.0.1".into(), port }],
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
        self.asks_for(TTL)
    }

    fn asks_for(&mut self, ttl: Duration) -> Acquired {
        let names = names();
        let ask = Ask {
            token: self.token.clone(),
            mode: Mode::Exclusive,
            ttl,
            min_hold: Duration::ZERO,
            owner: Owner::default(),
            patience: Patience::None,
            terms: Terms::default(),
            waited: Duration::ZERO,
        };
        self.store.acquire(&names, &ask, in_time()).expect("an answer")
    }

    fn renews(&mut self, ttl: Duration) -> Renewal {
        self.store.renew(&names(), &self.token, ttl, in_time()).expect("an answer")
    }

    fn leaves(&mut self) -> Left {
        let end = End { ran: Ran::No, job: None, once_per: false };
        self.store.leave(&names(), &self.token, &end, in_time()).expect("it is given back")
    }
}

/// One of three may be killed or stopped, whichever it is, and those who hold and wait notice nothing.
#[test]
fn one_of_three_may_fail() {
    let (world, mut ensemble) = ensemble();
    // Two of three JVMs take long to agree on a leader where the machine is busy: the lease outlasts that.
    let holder = world.run("k", &["-t", "3m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-t", "3m", "-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let leader = ensemble.leader();
    ensemble.servers[leader].kill();
    let answers = || world.dlock(["status", "--json", "k"]).any_stdout().any_stderr().spawn().output();
    let waits = |waiters: usize| {
        wait_within(Duration::from_secs(120), "the others answer", || {
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

#[test]
fn leaders_that_are_killed_disturb_no_job_and_no_queue() {
    let (world, mut ensemble) = ensemble();
    // See above.
    leaders_are_killed(&world, &mut ensemble, "3m");
}

#[test]
fn servers_that_stand_still_for_half_a_session_disturb_no_job() {
    let (world, ensemble) = ensemble();
    all_stand_still_for_half_a_lease(&world, &ensemble, 60);
}

/// A server takes what a session asked over an earlier connection, if it is late, for what it asks now under the same number: the
/// numbers of a session go on over its connections.
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
    // The session itself is begun and ended with numbers of the server's and of no order.
    let asked: Vec<i32> = numbers.iter().copied().filter(|number| *number > 0).collect();
    assert!(asked.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

#[test]
fn servers_that_all_are_gone_for_good_end_the_job_in_time() {
    let signals = if is_soak() { &[Signal::STOP, Signal::KILL][..] } else { &[Signal::STOP] };
    for signal in signals {
        let (world, ensemble) = ensemble();
        all_are_gone_for_good(&world, &ensemble, *signal);
    }
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

/// With the rights that docs/stores.md gives, as they are written there, and no others.
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
    let text = r#"eval "$("$0" acquire -q --export -k script)"; "$0" renew script && "$0" release -q script"#;
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

/// A lock that somebody made without a login is everybody's, and the life of one who holds it with a login is his own.
#[test]
fn who_may_not_wake_a_holder_writes_all_the_same() {
    let (world, _server) = own_server(&[]);
    world.run("k", &[], "true").run();
    let url = world.url().replace("//", "//app:s3cret@");
    let job = world.run("k", &["--store", &url, "-t", "4s"], JOB).status(79).any_stderr().spawn();
    world.wait_for_lines("up", 1);
    world.dlock(["release", "-y", "k"]).any_stdout().any_stderr().run();
    job.finish();
}

/// Over TLS: who is trusted, and who gets in.
#[test]
fn servers_are_spoken_to_over_tls() {
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

/// What a server is asked, and whom it wakes, does not grow with those who wait: neither for a hand-over, nor, much, while nothing
/// happens.
#[test]
fn those_who_wait_ask_little() {
    let (world, server) = own_server(&[]);
    let few = cost_of_a_turn(&world, &server, "few", 10);
    let many = cost_of_a_turn(&world, &server, "many", if is_soak() { 200 } else { 40 });
    assert!(many.asked - many.heard < 2.0 * few.asked, "{many:?} of many, {few:?} of few");
    assert!(many.told < 2.0 * few.told, "{many:?} of many, {few:?} of few");
}

/// What each turn costs a server.
#[derive(Debug)]
struct Turn {
    /// How often it is asked,
    asked: f64,
    /// of that by those who only say that they wait,
    heard: f64,
    /// and how often it tells somebody of a change.
    told: f64,
}

/// What it costs to serve those who wait in a line, from the first turn to the last.
fn cost_of_a_turn(world: &World, server: &ZooKeeper, key: &str, waiters: usize) -> Turn {
    let all = ["-t", "60s", "--op-timeout", "20s"];
    let script = format!("echo {key} >> log; while [ ! -e go.{key} ]; do sleep 0.02; done");
    let holder = world.run(key, &all, &script).any_stderr().spawn();
    world.wait_for_log(key);
    let run = |_| world.run(key, &[&["-w"], &all[..]].concat(), "true").any_stderr().spawn();
    let crowd: Vec<_> = (0..waiters).map(run).collect();
    wait_within(OUTAGE, "all wait", || (world.waiters(key) == waiters).then_some(()));
    let (began, before) = (Instant::now(), server.requests());
    sleep(Duration::from_secs(5));
    let idle = (server.requests() - before) as f64 / began.elapsed().as_secs_f64();
    println!("{waiters} wait: {idle:.1} requests a second");
    // Each makes itself heard every 1.6 s, and those who are far behind look at the records more rarely still.
    assert!(idle < 8.0 * waiters as f64, "{idle} requests a second");
    let (began, before, told) = (Instant::now(), server.requests(), server.told());
    world.write(&format!("go.{key}"), "");
    holder.finish_within(OUTAGE);
    crowd.into_iter().for_each(|run| drop(run.finish_within(OUTAGE)));
    let (took, turns) = (began.elapsed(), waiters as f64);
    // On the average half of them wait meanwhile.
    let heard = idle * took.as_secs_f64() / 2.0 / turns;
    let (asked, told) = ((server.requests() - before) as f64 / turns, (server.told() - told) as f64 / turns);
    let turn = Turn { asked, heard, told };
    println!("{waiters} turns in {took:?}: {turn:.1?}");
    turn
}

#[test]
#[ignore = "long; ./test --soak"]
fn a_crowd_of_readers_is_let_in() {
    hand_over_to_readers(&World::with_zookeeper());
}

/// Who waits and who holds leave nothing when they are gone, however they went.
#[test]
fn a_storm_leaves_no_node_of_anybody() {
    let (world, server) = own_server(&[]);
    storm(&world, 8, 20, &WISHES);
    println!("{} runs", 8 * runs(20));
    nobody_is_left(&server, "/ops/locks");
}

/// There is nobody's life, and nobody stands in a queue. A ticket that is kept for a while may be there.
fn nobody_is_left(server: &ZooKeeper, chroot: &str) {
    wait_within(OUTAGE, "no life is left", || (!server.sessions().contains("/dlock/lives/")).then_some(()));
    let lives = server.command(&["ls", "-R", &format!("{chroot}/dlock/lives")]);
    assert!(!lives.contains("/lives/"), "{lives}");
    let said = server.command(&["ls", "-R", &format!("{chroot}/dlock/locks")]);
    assert!(said.contains("/dlock/locks/"), "{said}");
    let waiters: Vec<&str> = said.lines().filter(|line| line.contains("/w-")).collect();
    assert!(waiters.iter().all(|path| path.contains("-p")), "nobody waits: {waiters:?}");
}

const WISHES: [Wish; 3] = [
    Wish { keys: &["k"], options: &[], kind: "alone" },
    Wish { keys: &["k"], options: &["-s"], kind: "shared" },
    Wish { keys: &["k", "l"], options: &[], kind: "alone" },
];

/// Servers are killed, stopped and started under a crowd: nobody meets whom it must not meet. A new leader begins all sessions
/// anew, also those of the dead; so there is time between two outages for the sessions of the dead to end.
#[test]
#[ignore = "long; ./test --soak"]
fn a_storm_through_outages_of_servers_lets_nobody_meet() {
    let (world, mut ensemble) = ensemble();
    let grants = if is_soak() { 3000 } else { 40 };
    let mut outage = outages_of(&mut ensemble);
    storm_through_outages(&world, 6, grants, &WISHES, || {
        outage();
        sleep(Duration::from_secs(8));
    });
    drop(outage);
    // A follower knows of no session that it does not serve.
    nobody_is_left(&ensemble.servers[ensemble.leader()], "/ops");
}

/// A new leader has all sessions last for as long again.
#[test]
fn no_increment_is_lost() {
    let (world, mut ensemble) = ensemble();
    let (times, ttl) = if is_soak() { (2000, "2s") } else { (60, "5s") };
    increments_through_outages(&world, times, &["-t", ttl, "--grace", "100ms"], outages_of(&mut ensemble));
}

#[test]
fn a_leader_that_is_cut_off_keeps_no_session() {
    let (world, ensemble) = ensemble();
    a_leader_is_cut_off(&world, &ensemble);
}

#[test]
fn a_follower_that_is_cut_off_keeps_no_session() {
    let (world, ensemble) = ensemble();
    a_follower_is_cut_off(&world, &ensemble);
}

/// A server writes down all that it knows after each few changes, and begins with that when it comes again; its clock is another
/// one each time, by more than a lease.
#[test]
fn snapshots_and_clocks_that_step_lose_nothing() {
    let (world, mut server) = own_server(&["snapCount=20"]);
    let holder = world.run("k", &["-t", "2m"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiters: Vec<_> = (1..=10)
        .map(|count| {
            let waiter = world.run("k", &["-t", "2m", "-w"], "true").any_stderr().spawn();
            world.wait_for_waiters("k", count);
            waiter
        })
        .collect();
    let fence = world.fence("k");
    for ahead in [3600, -3600, 0, 7200] {
        server.kill();
        server.set_clock(ahead);
        server.run();
        world.wait_for_waiters("k", 10);
        assert_eq!((world.state("k"), world.fence("k")), ("held".into(), fence));
    }
    assert!(server.snapshots() > 3, "{}", server.snapshots());
    world.write("go", "");
    holder.finish();
    finish_all(waiters);
    assert_eq!((world.log(), world.state("k")), (vec!["up".into(), "done".into()], "free".into()));
}

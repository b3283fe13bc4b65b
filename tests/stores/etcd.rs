//! etcd: members that are killed, stopped, cut off or left behind, leaders that change, compaction,
//! wrong answers, and which users get in. What etcd does as every store does is in `conformance`,
//! and elsewhere as `on_etcd`.

mod etcd_load;
mod etcd_users;
mod lost_members;

use crate::support::ask::exclusive;
use crate::support::etcd::Etcd;
use crate::support::proxy::{Fault, Proxy};
use crate::support::storm::Wish;
use crate::support::wait::{OUTAGE, wait_within};
use crate::support::world::World;
use dlock::clock::Moment;
use dlock::lock::{Key, Name, Names, Token};
use dlock::rules::{Acquired, Ask, End, Left, Patience, Ran, State};
use dlock::store::etcd::EtcdStore;
use dlock::store::{Slept, Store as _, View};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A world with a cluster of its own.
fn own_cluster(members: usize, options: &[&str]) -> (World, Etcd) {
    let mut world = World::without_redis();
    let etcd = Etcd::start(&world.path(""), members, options);
    world.use_store(etcd.url());
    (world, etcd)
}

/// The network loses or delays each request and each reply in turn.
#[test]
fn lost_requests_and_replies_are_made_good() {
    let (world, etcd) = own_cluster(1, &[]);
    for fault in [Fault::ReplyLost, Fault::RequestLost, Fault::Late] {
        for at in 1..=6 {
            let proxy = Proxy::before(etcd.port(0));
            proxy.plan(at, fault);
            let url = format!("etcd://127.0.0.1:{}", proxy.port());
            let run = world.run("k", &["-w", "--store", &url, "-t", "5s"], "echo ran >> log");
            drop(run.env_remove("DLOCK_OP_TIMEOUT").any_stderr().run());
            if fault == Fault::Late && proxy.seen() >= at {
                proxy.deliver();
            }
            world.run("k", &["-w", "20s"], "true").any_stderr().run();
        }
    }
    assert_eq!(world.lines("ran"), 18);
    assert_eq!((world.state("k"), world.waiters("k")), ("free".into(), 0));
}

/// A client that takes a lock, one operation at a time.
struct Asker {
    store: EtcdStore,
    names: Names,
    token: Token,
}

impl Asker {
    fn new(etcd: &Etcd, url: &str) -> Self {
        let mut store = EtcdStore::etcd(etcd.target(url));
        let token = Token::random().expect("a token");
        store.prepare(&token).expect("a store that can be prepared");
        let name = Name::new("", &Key::new("k").expect("a key")).expect("a name");
        Self { store, names: name.into(), token }
    }

    fn ask(&self) -> Ask {
        exclusive(&self.token, Duration::from_secs(30), Patience::Queue)
    }

    fn asks(&mut self) -> Acquired {
        let ask = self.ask();
        self.store.acquire(&self.names, &ask, in_time()).expect("an answer")
    }

    #[track_caller]
    fn holds(&mut self) {
        let answer = self.asks();
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }

    #[track_caller]
    fn waits(&mut self) {
        let answer = self.asks();
        assert!(matches!(answer, Acquired::Waiting(_)), "{answer:?}");
    }

    #[track_caller]
    fn is_woken(&mut self) {
        let slept = self.store.sleep(&self.names, &self.token, in_time()).expect("a sleep");
        assert_eq!(slept, Slept::Woken);
    }

    fn view(&mut self) -> View {
        self.store.inspect(&self.names.as_slice()[0], in_time()).expect("a view")
    }

    fn leaves(&mut self) {
        let end = End { ran: Ran::Yes, job: None, once_per: false, fence: None, pause: None };
        let left = self.store.leave(&self.names, &self.token, &end, in_time()).expect("an answer");
        assert_eq!(left, Left::Released { cooling: Duration::ZERO });
    }
}

fn in_time() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

/// A transaction decides by the state at its write: it sees a waiter that came after a grant, and a
/// session that ended meanwhile.
#[test]
fn a_transaction_decides_by_the_state_at_its_write() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    let asker = || Asker::new(etcd, &world.url());
    let end_session = |asker: &Asker| {
        let key = format!("{}/life/{}", etcd.target(&world.url()).space, asker.token.hashed().secret());
        let life: serde_json::Value =
            serde_json::from_str(&etcd.ctl(&["get", "-w", "json", &key])).expect("JSON");
        let lease = life["kvs"][0]["lease"].as_u64().expect("a lease");
        etcd.ctl(&["lease", "revoke", &format!("{lease:x}")]);
    };
    let (mut holder, mut next, mut gone, mut last) = (asker(), asker(), asker(), asker());
    holder.holds();
    next.waits();
    holder.leaves();
    // Two waiters come before the granted one confirms.
    gone.waits();
    last.waits();
    next.is_woken();
    next.holds();
    assert_eq!((next.view().state, next.view().waiters.len()), (State::Held, 2));
    // The session of the next waiter ends without a release, and the waiter after it is granted the
    // lock.
    end_session(&gone);
    next.leaves();
    last.is_woken();
    last.holds();
    // The last client's own session ends.
    end_session(&last);
    let end = End { ran: Ran::Yes, job: None, once_per: false, fence: None, pause: None };
    let left = last.store.leave(&last.names, &last.token, &end, in_time()).expect("an answer");
    assert_eq!(left, Left::NotHeld);
    // The first waiter also wants another lock, whose name sorts before this one: both are read.
    let (mut first, mut holder, mut both) = (asker(), asker(), asker());
    let name = |key: &str| Name::new("", &Key::new(key).expect("a key")).expect("a name");
    both.names = Names::new(name("j"), [name("k")]);
    first.holds();
    holder.waits();
    both.waits();
    first.leaves();
    holder.is_woken();
    holder.holds();
    holder.leaves();
    both.is_woken();
    both.holds();
}

#[test]
fn a_lease_that_etcd_does_not_grant_is_refused() {
    // Ten times the intervals of the other tests, so that no lease is shorter than 8 s.
    let (world, _etcd) = own_cluster(1, &["--heartbeat-interval=500", "--election-timeout=5000"]);
    let refused = world.run("k", &["-t", "7s"], "echo ran >> log").status(78).any_stderr().run().stderr;
    assert!(refused.contains("no lease shorter than 8 s") && refused.contains("--ttl 8s"), "{refused}");
    world.run("k", &["-t", "8s", "-w", "30s"], "echo ran >> log").any_stderr().run();
    assert_eq!(world.log(), ["ran"]);
}

#[test]
fn a_record_that_is_damaged_is_left_as_it_is() {
    let (world, etcd) = own_cluster(1, &[]);
    world.run("k", &[], "true").run();
    etcd.ctl(&["put", "dlock/lock/dlock:k", "nonsense"]);
    let said = world.run("k", &[], "echo ran >> log").status(69).any_stderr().run().stderr;
    assert!(said.contains("\"dlock:k\"") && said.contains("damaged"), "{said}");
    assert_eq!(etcd.ctl(&["get", "--print-value-only", "dlock/lock/dlock:k"]), "nonsense");
    world.run("other", &[], "echo other >> log").run();
    etcd.ctl(&["del", "dlock/lock/dlock:k"]);
    world.run("k", &[], "echo well >> log").run();
    assert_eq!(world.log(), ["other", "well"]);
}

/// etcd 3.4 forgets the default of --enable-grpc-gateway when it is started with a config file.
#[test]
fn a_member_without_a_gateway_is_recognized() {
    let world = World::without_redis();
    let free = |_| {
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
    };
    let [client, peer] = [0, 1].map(free);
    world.write(
        "etcd.yml",
        &format!(
            "name: m0\ndata-dir: {}\nlisten-client-urls: http://127.0.0.1:{client}\n\
             advertise-client-urls: http://127.0.0.1:{client}\nlisten-peer-urls: http://127.0.0.1:{peer}\n\
             initial-advertise-peer-urls: http://127.0.0.1:{peer}\ninitial-cluster: m0=http://127.0.0.1:{peer}\n\
             enable-grpc-gateway: false\n",
            world.path("data").display()
        ),
    );
    let mut member = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "etcd", "--config-file"])
        .arg(world.path("etcd.yml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd; ./test --stores installs it");
    wait_within(OUTAGE, "it listens", || TcpStream::connect(("127.0.0.1", client)).ok());
    let store = format!("etcd://127.0.0.1:{client}");
    let run = world.run("k", &["-w", "--store", &store], "true").status(78).any_stderr().run();
    let doctor = world.dlock(["doctor", "--store", &store]).status(69).any_stderr().any_stdout().run();
    for said in [run.stderr, doctor.stdout] {
        assert!(said.contains("--config-file") && said.contains("enable-grpc-gateway: true"), "{said}");
    }
    drop(member.kill());
    drop(member.wait());
}

const WISHES: [Wish; 4] = [
    Wish { keys: &["a"], options: &[], kind: "alone" },
    Wish { keys: &["a", "b"], options: &[], kind: "alone" },
    Wish { keys: &["b"], options: &["-s"], kind: "shared" },
    Wish { keys: &["c"], options: &["-n", "2"], kind: "slot" },
];

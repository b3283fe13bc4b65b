//! What may happen to a cluster of etcd that keeps locks: members are killed, stopped, cut off from the others; the leader
//! changes; all are away for a while or for good; what they remember is compacted; a member says what is not so. And who is let
//! in. What etcd does as every store does is in `conformance`, and everywhere as `on_etcd`.

use crate::support::certificates::{Authority, for_servers, nameless};
use crate::support::dlock::Dlock;
use crate::support::etcd::Etcd;
use crate::support::hand_over::{JOB, hand_over, hand_over_to_readers};
use crate::support::members::{
    a_follower_is_cut_off, a_leader_is_cut_off, all_are_gone_for_good, all_stand_still_for_half_a_lease,
    increments_through_outages, leaders_are_killed, outages_of,
};
use crate::support::outages::storm_through_outages;
use crate::support::proc;
use crate::support::proxy::{Fault, Proxy};
use crate::support::storm::{Wish, is_soak, storm};
use crate::support::wait::{OUTAGE, wait_for, wait_until, wait_within};
use crate::support::world::World;
use dlock::clock::Moment;
use dlock::lock::{Key, Mode, Name, Names, Owner, Token};
use dlock::rules::{Acquired, Ask, End, Left, Patience, Ran, State, Terms};
use dlock::store::etcd::EtcdStore;
use dlock::store::{Slept, Store as _, View};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

/// A world with a cluster of its own.
fn own_cluster(members: usize, options: &[&str]) -> (World, Etcd) {
    let mut world = World::without_redis();
    let etcd = Etcd::start(&world.path(""), members, options);
    world.use_store(etcd.url());
    (world, etcd)
}

/// Whichever of three members is killed or stopped, holders and waiters go on by the others.
#[test]
fn a_member_that_is_gone_or_silent_is_left_alone() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = world.run("k", &["-w"], "echo next >> log").any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let fence = world.fence("k");
    for member in 0..3 {
        etcd.kill(member);
        assert_eq!((world.state("k"), world.fence("k"), world.waiters("k")), ("held".into(), fence, 1));
        etcd.run(member);
        etcd.wait_until_it_serves();
        etcd.signal(member, Signal::STOP);
        assert_eq!((world.state("k"), world.fence("k"), world.waiters("k")), ("held".into(), fence, 1));
        world.run(&format!("other{member}"), &[], "true").run();
        etcd.signal(member, Signal::CONT);
        etcd.wait_until_it_serves();
    }
    world.write("go", "");
    holder.finish();
    waiter.finish();
    assert_eq!(world.log(), ["up", "done", "next"]);
}

/// A member of a minority neither renews nor grants; the majority goes on when nothing of the job is alive.
#[test]
fn whoever_reaches_a_minority_only_loses_its_lock_in_time() {
    let (world, etcd) = own_cluster(3, &[]);
    let alone = format!("etcd://127.0.0.1:{}", etcd.port(0));
    let job = "echo $$ > pid; while :; do sleep 0.05; done";
    let options = ["-t", "5s", "--grace", "300ms", "--store", &alone];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    let pid = world.wait_for_pid("pid");
    etcd.signal(1, Signal::STOP);
    etcd.signal(2, Signal::STOP);
    holder.finish();
    assert!(!proc::alive(pid), "dead before dlock says that the lock is lost");
    world.run("k2", &["--store", &alone], "true").status(69).any_stderr().run();
    etcd.signal(1, Signal::CONT);
    etcd.signal(2, Signal::CONT);
    world.run("k", &["-w", "30s"], "echo next >> log").any_stderr().run();
    assert_eq!(world.log(), ["next"]);
}

#[test]
fn leaders_that_are_killed_disturb_no_job_and_no_queue() {
    let (world, mut etcd) = own_cluster(3, &[]);
    leaders_are_killed(&world, &mut etcd, "20s");
}

#[test]
fn members_that_stand_still_for_half_a_session_disturb_no_job() {
    let (world, etcd) = own_cluster(3, &[]);
    all_stand_still_for_half_a_lease(&world, &etcd, 20);
}

#[test]
fn half_a_session_without_any_member_disturbs_no_job() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    (0..3).for_each(|member| etcd.signal(member, Signal::STOP));
    // The outage itself, less than half of the session on a busy machine too.
    sleep(Duration::from_secs(4));
    (0..3).for_each(|member| etcd.signal(member, Signal::CONT));
    etcd.wait_until_it_serves();
    (0..3).for_each(|member| etcd.kill(member));
    (0..3).for_each(|member| etcd.run(member));
    etcd.wait_until_it_serves();
    assert_eq!(world.state("k"), "held");
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

#[test]
fn a_cluster_that_is_gone_for_good_ends_the_job_in_time() {
    for signal in [Signal::KILL, Signal::STOP] {
        let (world, etcd) = own_cluster(1, &[]);
        let job = "trap 'echo term >> log' TERM; echo $$ > pid; while :; do sleep 0.05; done";
        let holder = world.run("k", &["-t", "5s", "--grace", "300ms"], job).status(79).any_stderr().spawn();
        let pid = world.wait_for_pid("pid");
        etcd.signal(0, signal);
        holder.finish();
        assert!(!proc::alive(pid), "dead before dlock says that the lock is lost");
        assert!(world.log().contains(&"term".to_owned()));
    }
}

#[test]
fn members_that_are_gone_for_good_end_the_job_in_time() {
    let signals = if is_soak() { &[Signal::STOP, Signal::KILL][..] } else { &[Signal::STOP] };
    for signal in signals {
        let (world, etcd) = own_cluster(3, &[]);
        all_are_gone_for_good(&world, &etcd, *signal);
    }
}

/// An old leader, which does not know of the new one, says that it keeps a lease.
#[test]
fn a_lease_that_an_old_leader_keeps_is_not_relied_on() {
    let (world, etcd) = own_cluster(1, &[]);
    let behind = stale_leader_before(etcd.port(0));
    let job = "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let store = format!("etcd://127.0.0.1:{behind}");
    let options = ["-t", "5s", "--grace", "300ms", "--store", &store];
    let holder = world.run("k", &options, job).status(79).any_stderr().spawn();
    world.wait_for_pid("pid");
    let next = world.run(
        "k",
        &["-w"],
        "read -r pid < pid; kill -0 $pid 2> /dev/null && echo overlap >> log; echo next >> log",
    );
    next.any_stderr().run();
    holder.finish();
    assert_eq!(world.log(), ["next"]);
}

/// Stands before a member, and answers by itself whoever wants a lease kept, in the words of a term before.
fn stale_leader_before(member: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve_stale(client, member));
        }
    });
    port
}

fn serve_stale(mut client: TcpStream, member: u16) -> Option<()> {
    let mut server = TcpStream::connect(("127.0.0.1", member)).ok()?;
    let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut replies, &mut to_client));
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let request = &buffer[..count];
        if request.starts_with(b"POST /v3/lease/keepalive") {
            let status = Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args([&format!("--endpoints=127.0.0.1:{member}"), "endpoint", "status", "-w", "json"])
                .output()
                .ok()?;
            let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
            let header = &status[0]["Status"]["header"];
            let (id, term) = (&header["member_id"], header["raft_term"].as_u64()? - 1);
            let body = format!(
                r#"{{"result":{{"header":{{"member_id":"{id}","raft_term":"{term}"}},"ID":"1","TTL":"5"}}}}"#
            );
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            client.write_all((head + &body).as_bytes()).ok()?;
        } else {
            server.write_all(request).ok()?;
        }
    }
    None
}

/// What was before is forgotten all the time, also what a watch is about to be told.
#[test]
fn compaction_under_load_loses_nothing() {
    let (world, etcd) = own_cluster(1, &[]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let status: serde_json::Value =
                    serde_json::from_str(&etcd.ctl(&["endpoint", "status", "-w", "json"])).expect("JSON");
                let revision = status[0]["Status"]["header"]["revision"].to_string();
                // Nothing may have happened since the last time.
                drop(etcd.try_ctl(&["compact", &revision]));
                etcd.ctl(&["defrag"]);
            }
        });
        let runs: Vec<_> = (0..12)
            .map(|_| {
                let script = "mkdir in || echo overlap >> log; sleep 0.1; rmdir in; echo ran >> log";
                world.run("k", &["-w", "-t", "20s", "--op-timeout", "10s"], script).any_stderr().spawn()
            })
            .collect();
        runs.into_iter().for_each(|run| drop(run.finish()));
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(world.log(), ["ran"; 12]);
    assert_eq!((world.state("k"), world.waiters("k")), ("free".into(), 0));
}

/// Requests and replies that the network loses or delivers late, each in turn.
#[test]
fn what_the_network_loses_is_made_good() {
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

/// One who takes a lock, step by step.
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
        Ask {
            token: self.token.clone(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            min_hold: Duration::ZERO,
            owner: Owner::default(),
            patience: Patience::Queue,
            terms: Terms::default(),
            waited: Duration::ZERO,
        }
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
        let end = End { ran: Ran::Yes, job: None, once_per: false };
        let left = self.store.leave(&self.names, &self.token, &end, in_time()).expect("an answer");
        assert_eq!(left, Left::Released { cooling: Duration::ZERO });
    }
}

fn in_time() -> Moment {
    Moment::now().after(Duration::from_secs(20))
}

/// Each step goes by what is there when it writes: by a place in the queue that came after a grant, and by a session that ended
/// since.
#[test]
fn a_step_goes_by_what_is_so_when_it_writes() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    let asker = || Asker::new(etcd, &world.url());
    let end_session = |asker: &Asker| {
        let key = format!("{}/life/{}", etcd.target(&world.url()).prefix, asker.token.hashed().secret());
        let life: serde_json::Value =
            serde_json::from_str(&etcd.ctl(&["get", "-w", "json", &key])).expect("JSON");
        let lease = life["kvs"][0]["lease"].as_u64().expect("a lease");
        etcd.ctl(&["lease", "revoke", &format!("{lease:x}")]);
    };
    let (mut holder, mut next, mut gone, mut last) = (asker(), asker(), asker(), asker());
    holder.holds();
    next.waits();
    holder.leaves();
    // Two come before the one that was granted the lock confirms that.
    gone.waits();
    last.waits();
    next.is_woken();
    next.holds();
    assert_eq!((next.view().state, next.view().waiters.len()), (State::Held, 2));
    // The session of the one behind it ends without a word, and the one behind that is granted the lock.
    end_session(&gone);
    next.leaves();
    last.is_woken();
    last.holds();
    // Its own session ends.
    end_session(&last);
    let end = End { ran: Ran::Yes, job: None, once_per: false };
    let left = last.store.leave(&last.names, &last.token, &end, in_time()).expect("an answer");
    assert_eq!(left, Left::NotHeld);
    // The first waiter wants another lock, too, which comes before this one in order of name: both are read.
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

/// Each end of a job wakes one waiter: what that costs etcd does not depend on how many others wait. Waiters also look at
/// the queue now and then, and more turns take more time: hence the allowance for a slow machine. If every waiter read the
/// queue in each turn, that alone would be half the queue's length on average.
#[test]
fn a_turn_costs_the_same_however_many_wait() {
    let (world, etcd) = own_cluster(1, &[]);
    let few = cost_of_a_turn(&world, &etcd, "few", 10);
    let waiters = if is_soak() { 200 } else { 40 };
    let many = cost_of_a_turn(&world, &etcd, "many", waiters);
    let allowance = f64::from(u32::try_from(waiters).expect("a few")) / 4.0;
    // The last is what etcd tells those who watch.
    let limits = [2.0 * few[0] + allowance, 2.0 * few[1] + allowance, 2.0 * few[2]];
    assert!(many.iter().zip(limits).all(|(many, limit)| *many < limit), "{many:?} of many, {few:?} of few");
}

/// How often etcd writes, reads or writes, and tells somebody of a change, for each of those who wait in a line, from the first
/// turn to the last.
fn cost_of_a_turn(world: &World, etcd: &Etcd, key: &str, waiters: usize) -> [f64; 3] {
    wait_until("nobody has a lease", || etcd.ctl(&["lease", "list"]) == "found 0 leases");
    let all = ["-t", "60s", "--op-timeout", "20s"];
    let script = format!("echo {key} >> log; while [ ! -e go.{key} ]; do sleep 0.02; done");
    let holder = world.run(key, &all, &script).any_stderr().spawn();
    world.wait_for_log(key);
    let run = |_| world.run(key, &[&["-w"], &all[..]].concat(), "true").any_stderr().spawn();
    let crowd: Vec<_> = (0..waiters).map(run).collect();
    let all = format!("found {} leases", waiters + 1);
    wait_until("all wait", || etcd.ctl(&["lease", "list"]).starts_with(&all));
    let count = || {
        let reads_and_writes = etcd.count("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\"");
        let told = etcd.count("etcd_debugging_mvcc_events_total");
        [etcd.count("etcd_server_proposals_applied_total"), reads_and_writes, told]
    };
    let before = count();
    world.write(&format!("go.{key}"), "");
    holder.finish();
    crowd.into_iter().for_each(|run| drop(run.finish()));
    let (after, turns) = (count(), f64::from(u32::try_from(waiters).expect("a few")));
    let [writes, all, told] = std::array::from_fn(|at| (after[at] - before[at]) / turns);
    println!("{waiters} wait: {writes:.1} writes, {all:.1} transactions and {told:.1} events a turn");
    [writes, all, told]
}

/// All of them would not fit into one transaction of etcd.
#[test]
#[ignore = "long; ./test --soak"]
fn a_crowd_of_readers_is_let_in() {
    hand_over_to_readers(&World::with_etcd());
}

#[test]
fn a_lease_that_etcd_does_not_grant_is_refused() {
    // Ten times as long as the others, so that no lease is shorter than 8 s.
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

/// With the rights that docs/stores.md names, and no others.
#[test]
fn a_user_with_its_prefix_alone_can_do_all() {
    let (world, etcd) = own_cluster(3, &[]);
    let root = ["--user=root:rootpw"];
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "user add ops:s3same",
        "role add dlock",
        "role grant-permission dlock readwrite --prefix dlock/",
        "user grant-role ops dlock",
        "auth enable",
    ] {
        wait_for(command, || etcd.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    let url = etcd.url();
    let run = |user: &str, password: &str, script: &str| {
        world
            .run("k", &["-w", "20s"], script)
            .env("DLOCK_USERNAME", user)
            .env("DLOCK_PASSWORD", password)
            .any_stderr()
    };
    let holder = run("ops", "s3same", JOB).spawn();
    world.wait_for_log("up");
    let waiter = run("ops", "s3same", "echo next >> log").spawn();
    let as_ops = |args: &[&str]| {
        world
            .dlock(args)
            .env("DLOCK_USERNAME", "ops")
            .env("DLOCK_PASSWORD", "s3same")
            .any_stdout()
            .any_stderr()
            .run()
    };
    wait_until("it waits", || as_ops(&["status", "k"]).stdout.contains("wait"));
    let doctor = as_ops(&["doctor", "--op-timeout", "40s", "--ttl", "24h"]);
    assert!(doctor.stdout.contains("all that locks need"), "{doctor:?}");
    world.write("go", "");
    holder.finish();
    waiter.finish();
    let wrong = run("ops", "wr0ng", "true").status(77).run().stderr;
    assert!(wrong.contains("refused the user name or the password") && !wrong.contains("wr0ng"), "{wrong}");
    let nobody = world.run("k", &[], "true").status(77).any_stderr().run().stderr;
    assert!(nobody.contains("wants a user and a password"), "{nobody}");
    let elsewhere = format!("{url}/other");
    let denied = world
        .run("k", &["--store", &elsewhere], "true")
        .env("DLOCK_USERNAME", "ops")
        .env("DLOCK_PASSWORD", "s3same")
        .status(77)
        .any_stderr()
        .run()
        .stderr;
    assert!(denied.contains("other/") && denied.contains("readwrite"), "{denied}");
    assert_eq!(world.log(), ["up", "done", "next"]);
    drop(etcd.try_ctl(&[&root[..], &["auth", "disable"]].concat()));
}

fn as_root(dlock: Dlock<'_>) -> Dlock<'_> {
    dlock.env("DLOCK_USERNAME", "root").env("DLOCK_PASSWORD", "rootpw")
}

/// Prefixes do not isolate users on etcd: whoever may log in can keep any lease alive. But he learns no token by which a hold is
/// given back, he can end no lease with keys of dlock's on it, and an operator gets the lock back.
#[test]
fn a_user_without_rights_learns_no_token_and_ends_no_lock() {
    let (world, etcd) = own_cluster(1, &[]);
    for command in [
        "user add root:rootpw",
        "user grant-role root root",
        "user add mallory:m4llory",
        "role add elsewhere",
        "role grant-permission elsewhere readwrite --prefix elsewhere/",
        "user grant-role mallory elsewhere",
        "auth enable",
    ] {
        wait_for(command, || etcd.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    let job = "echo $DLOCK_TOKEN > token; echo $$ > pid; echo up >> log; exec sleep 1000";
    let options = ["-t", "4s", "--grace", "300ms"];
    let holder = as_root(world.run("k", &options, job)).dies_of(9).any_stderr().spawn();
    world.wait_for_log("up");
    let waiter = as_root(world.run("k", &["-w", "-t", "20s"], "echo next >> log")).any_stderr().spawn();
    let as_mallory = |args: &[&str]| etcd.try_ctl(&[&["--user=mallory:m4llory"], args].concat());
    let leases = || -> Vec<String> {
        let list = as_mallory(&["lease", "list"]).expect("he may ask that");
        list.lines().skip(1).map(str::to_owned).collect()
    };
    wait_until("the waiter has its lease", || leases().len() == 2);
    let told: Vec<(String, String)> = leases()
        .into_iter()
        .filter_map(|lease| {
            Some((lease.clone(), as_mallory(&["lease", "timetolive", "--keys", &lease]).ok()?))
        })
        .collect();
    // 3.5.9 and later tell nobody who may not read the keys.
    let token = world.read("token").trim().to_owned();
    assert_eq!(token.len(), 32);
    assert!(told.iter().any(|(_, told)| told.contains("dlock/hold/")), "{told:?}");
    assert!(!told.iter().any(|(_, told)| told.contains(&token)), "the token of the hold is in {told:?}");
    let (held, _) = told.iter().find(|(_, told)| told.contains("dlock/hold/")).expect("a hold");
    let denied = as_mallory(&["lease", "revoke", held]).expect_err("he may not");
    assert!(denied.contains("permission denied"), "{denied}");
    // A dead holder's lease is kept by him; the lock is an operator's to free.
    let mut keeper = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args([&format!("--endpoints=127.0.0.1:{}", etcd.port(0)), "--user=mallory:m4llory"])
        .args(["lease", "keep-alive", held])
        .stdout(Stdio::piped())
        .spawn()
        .expect("etcdctl");
    let mut kept = BufReader::new(keeper.stdout.take().expect("a pipe was asked for")).lines();
    let mut is_kept = || kept.next().is_some_and(|line| line.is_ok_and(|line| line.contains("keepalived")));
    assert!(is_kept(), "he may keep it");
    // Neither dlock nor its guard is left to give it back.
    holder.signal(Signal::STOP);
    for pid in [holder.guard(), world.wait_for_pid("pid")] {
        kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it runs");
    }
    holder.signal(Signal::KILL);
    holder.finish();
    // It is kept every third of the lease.
    assert!((0..6).all(|_| is_kept()), "kept for more than the lease");
    assert_eq!(world.log(), ["up"], "prefixes do not isolate");
    as_root(world.dlock(["release", "k", "--force", "--now", "-y"])).any_stderr().any_stdout().run();
    waiter.finish();
    assert_eq!(world.log(), ["up", "next"]);
    drop(keeper.kill());
    drop(keeper.wait());
}

/// The ids of leases follow from what can be seen, so somebody may have taken one before, for a shorter time.
#[test]
fn a_lease_that_somebody_else_took_is_not_relied_on() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    let mut asker = Asker::new(etcd, &world.url());
    let hashed = asker.token.hashed();
    let digest = sha1_smol::Sha1::from(format!("dlock hold {} 30", hashed.secret())).digest().bytes();
    let id = u64::from_be_bytes(digest[..8].try_into().expect("eight")) >> 1;
    let body = format!(r#"{{"ID":"{id}","TTL":"2"}}"#);
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port(0))).expect("it is there");
    let request = format!("POST /v3/lease/grant HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("it hears");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("it answers");
    assert!(said.contains(&format!("\"ID\":\"{id}\"")), "{said}");
    let ask = asker.ask();
    let granted = wait_for("a grant", || asker.store.acquire(&asker.names, &ask, in_time()).ok());
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    let lease = etcd.ctl(&["lease", "timetolive", &format!("{id:x}")]);
    assert!(lease.contains("granted with TTL(30s)"), "{lease}");
    asker.leaves();
}

/// Stands before a member. Each piece that a client sends is shown to `answer`, which may say what to reply in its place; nothing
/// to hang up. What it lets through reaches the member.
fn balancer_before(
    member: u16,
    answer: impl Fn(&[u8]) -> Option<&'static str> + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || balance(client, member, &*answer));
        }
    });
    port
}

fn balance(
    mut client: TcpStream,
    member: u16,
    answer: &(dyn Fn(&[u8]) -> Option<&'static str> + Send + Sync),
) -> Option<()> {
    let server = TcpStream::connect(("127.0.0.1", member)).ok()?;
    let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut replies, &mut to_client));
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        if let Some(reply) = answer(&buffer[..count]) {
            client.write_all(reply.as_bytes()).ok();
            break;
        }
        (&server).write_all(&buffer[..count]).ok()?;
    }
    drop(server.shutdown(Shutdown::Both));
    client.shutdown(Shutdown::Both).ok()
}

/// As HAProxy, nginx and others say it: with and without a length. A balancer whose members are away is an outage.
#[test]
fn a_balancer_without_members_is_an_outage() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    const REPLIES: [&str; 3] = [
        "HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n<html>503</html>",
        "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\nConnection: close\r\n\r\n502",
        "HTTP/1.1 504 Gateway Time-out\r\nContent-Length: 0\r\n\r\n",
    ];
    for reply in REPLIES {
        let asked = AtomicUsize::new(0);
        let port = balancer_before(etcd.port(0), move |_| {
            (asked.fetch_add(1, Ordering::SeqCst) < 3).then_some(reply)
        });
        let prefix = etcd.target(&world.url()).prefix;
        let store = format!("etcd://127.0.0.1:{port}/{prefix}");
        world.run("k", &["-w", "60s", "--store", &store], "echo ran >> log").any_stderr().run();
    }
    assert_eq!(world.log(), ["ran"; 3]);
}

/// Some hang up on whoever shows a login that has expired.
#[test]
fn a_gateway_that_hangs_up_on_an_old_login_is_logged_in_to_again() {
    let (world, etcd) = own_cluster(1, &[]);
    for command in ["user add root:rootpw", "user grant-role root root", "auth enable"] {
        wait_for(command, || etcd.try_ctl(&command.split(' ').collect::<Vec<_>>()).ok());
    }
    // Those that were shown before the first hang up are old from then on.
    let (is_over, seen) =
        (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new([BTreeSet::new(), BTreeSet::new()])));
    let (over, logins) = (Arc::clone(&is_over), Arc::clone(&seen));
    let port = balancer_before(etcd.port(0), move |request| {
        let text = String::from_utf8_lossy(request);
        let login = text.lines().find_map(|line| line.strip_prefix("Authorization: "))?.to_owned();
        let mut logins = logins.lock().expect("nobody panics");
        if !over.load(Ordering::SeqCst) {
            logins[0].insert(login);
            return None;
        }
        if logins[0].contains(&login) {
            return Some("");
        }
        logins[1].insert(login);
        None
    });
    let store = format!("etcd://127.0.0.1:{port}");
    let holder = as_root(world.run("k", &["-t", "8s", "--store", &store], JOB)).any_stderr().spawn();
    world.wait_for_log("up");
    is_over.store(true, Ordering::SeqCst);
    wait_within(OUTAGE, "it logs in again", || {
        (!seen.lock().expect("nobody panics")[1].is_empty()).then_some(())
    });
    world.write("go", "");
    holder.finish();
    assert_eq!(world.log(), ["up", "done"]);
}

/// A cluster that is full takes no end of a run, and that is what is said.
#[test]
fn a_cluster_that_is_full_is_named_at_the_end_of_a_run() {
    let (world, etcd) = own_cluster(1, &["--quota-backend-bytes=2000000"]);
    let holder = world.run("k", &["-t", "20s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let big = "x".repeat(100_000);
    wait_within(OUTAGE, "it is full", || {
        drop(etcd.try_ctl(&["put", "big", &big]));
        etcd.ctl(&["alarm", "list"]).contains("NOSPACE").then_some(())
    });
    world.write("go", "");
    let said = holder.finish().stderr;
    assert!(said.contains("no space left") && said.contains("NOSPACE"), "{said}");
    assert_eq!(world.log(), ["up", "done"]);
}

/// 3.4 forgets the default of --enable-grpc-gateway where it is started with a file.
#[test]
fn a_member_without_a_gateway_is_told_from_others() {
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

/// Each refusal is counted in the record of the lock, and of a crowd each is in the way of the others' count. None is kept from its
/// answer by that.
#[test]
fn a_crowd_that_does_not_wait_is_told_that_it_is_busy() {
    let (world, etcd) = (World::with_etcd(), Etcd::shared());
    let url = world.url();
    let mut holder = Asker::new(etcd, &url);
    holder.holds();
    thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                let mut asker = Asker::new(etcd, &url);
                asker.store = EtcdStore::etcd(etcd.target(&url));
                for _ in 0..10 {
                    let ask = Ask {
                        token: Token::random().expect("a token"),
                        patience: Patience::None,
                        ..asker.ask()
                    };
                    let by = Moment::now().after(Duration::from_secs(3));
                    let answer = asker.store.acquire(&asker.names, &ask, by);
                    assert!(matches!(answer, Ok(Acquired::Busy(_))), "{answer:?}");
                }
            });
        }
    });
    holder.leaves();
}

/// Over TLS, with a certificate of one's own.
#[test]
fn members_are_spoken_to_over_tls() {
    let (world, etcd) = certified_member(|_| {});
    let (host, ca) = (format!("127.0.0.1:{}", etcd.port(0)), world.path("ca.pem").display().to_string());
    wait_until("it serves", || {
        let run = world.run("k", &["-w", "1s"], "true").any_stderr().spawn();
        run.output().end() == crate::support::dlock::End::Status(0)
    });
    hand_over(&world, |dlock| dlock);
    let refused = |url: String, status: i32| {
        world.run("k", &["--store", &url], "true").status(status).any_stderr().run().stderr
    };
    refused(format!("etcds://{host}?ca={ca}"), 77);
    refused(format!("etcds://{host}"), 69);
}

/// A member with `--client-cert-auth`, whose own certificate is as `change` has it.
fn certified_member(change: impl FnOnce(&mut rcgen::CertificateParams)) -> (World, Etcd) {
    let authority = Authority::new("etcd's");
    let mut world = World::without_redis();
    authority.write(&world.path("ca.pem"));
    authority.issue_with(&["localhost", "127.0.0.1"], change).write(&world.path(""), "server");
    authority.issue(&["client"]).write(&world.path(""), "client");
    authority.issue_with(&["client"], nameless).write(&world.path(""), "nameless");
    let path = |name: &str| world.path(name).display().to_string();
    let options = [
        format!("--cert-file={}", path("server.pem")),
        format!("--key-file={}", path("server.key")),
        format!("--trusted-ca-file={}", path("ca.pem")),
        "--client-cert-auth".into(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let etcd = Etcd::start_secure(&world.path(""), &options);
    let (host, ca) = (etcd.port(0), path("ca.pem"));
    let (cert, key) = (path("client.pem"), path("client.key"));
    world.use_store(format!("etcds://127.0.0.1:{host}?ca={ca}&cert={cert}&key={key}"));
    (world, etcd)
}

/// The gateway shows the certificate of its member to that member.
#[test]
fn a_member_whose_certificate_is_for_servers_alone_is_said_to_be_that() {
    let (world, _etcd) = certified_member(for_servers);
    wait_until("what is wrong is said", || {
        let output = world.run("k", &[], "touch ran").any_stderr().spawn().output();
        output.end() == crate::support::dlock::End::Status(69) && output.stderr.contains("clientAuth")
    });
    assert!(!world.path("ran").exists());
}

/// Where there are users the gateway takes no certificate with a name.
#[test]
fn a_certificate_with_a_name_is_refused_by_name_where_there_are_users() {
    let (world, etcd) = certified_member(|_| {});
    let certificates =
        ["ca.pem", "nameless.pem", "nameless.key"].map(|name| world.path(name).display().to_string());
    let endpoint = format!("https://127.0.0.1:{}", etcd.port(0));
    let ctl = |command: &str| {
        let mut ctl = Command::new("etcdctl");
        ctl.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoint}"));
        ctl.args(["--cacert", &certificates[0], "--cert", &certificates[1], "--key", &certificates[2]]);
        ctl.args(command.split(' ')).output().is_ok_and(|output| output.status.success()).then_some(())
    };
    for command in ["user add root:rootpw", "user grant-role root root", "auth enable"] {
        wait_for(command, || ctl(command));
    }
    let said = as_root(world.run("k", &[], "touch ran")).status(77).any_stderr().run().stderr;
    assert!(said.contains("without a CN"), "{said}");
    assert!(!world.path("ran").exists());
    let nameless = world.url().replace("client.", "nameless.");
    as_root(world.run("k", &["--store", &nameless], "true")).any_stderr().run();
}

const WISHES: [Wish; 4] = [
    Wish { keys: &["a"], options: &[], kind: "alone" },
    Wish { keys: &["a", "b"], options: &[], kind: "alone" },
    Wish { keys: &["b"], options: &["-s"], kind: "shared" },
    Wish { keys: &["c"], options: &["-n", "2"], kind: "slot" },
];

/// Nothing is left of a crowd that is shot at but the records: no session, no place in a queue, no lease.
#[test]
fn a_storm_leaves_no_key_and_no_lease() {
    let (world, etcd) = own_cluster(1, &[]);
    storm(&world, 8, 25, &WISHES);
    wait_until("all leases have ended", || etcd.ctl(&["lease", "list"]) == "found 0 leases");
    let keys = etcd.keys("/dlock");
    assert!(keys.iter().all(|key| is_record(key)), "{keys:?}");
}

fn is_record(key: &str) -> bool {
    key.starts_with("dlock/lock/") || key.starts_with("dlock/end/")
}

/// Members are killed, stopped and cut off under a crowd: nobody meets whom it must not meet, and nothing is left of anybody.
#[test]
fn a_storm_through_outages_of_members_lets_nobody_meet() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let grants = if is_soak() { 3000 } else { 60 };
    storm_through_outages(&world, 6, grants, &WISHES, outages_of(&mut etcd));
    wait_until("all leases have ended", || etcd.ctl(&["lease", "list"]) == "found 0 leases");
    let keys = etcd.keys("/dlock");
    assert!(keys.iter().all(|key| is_record(key)), "{keys:?}");
}

#[test]
fn no_increment_is_lost() {
    let (world, mut etcd) = own_cluster(3, &[]);
    let (times, ttl) = if is_soak() { (2000, "2s") } else { (60, "5s") };
    increments_through_outages(&world, times, &["-t", ttl, "--grace", "100ms"], outages_of(&mut etcd));
}

#[test]
fn a_leader_that_is_cut_off_keeps_no_lease() {
    let (world, etcd) = own_cluster(3, &[]);
    a_leader_is_cut_off(&world, &etcd);
}

#[test]
fn a_follower_that_is_cut_off_keeps_no_lease() {
    let (world, etcd) = own_cluster(3, &[]);
    a_follower_is_cut_off(&world, &etcd);
}

/// What has to stay, paused or held, keeps nobody from the rest, among that what somebody held who died.
#[test]
fn what_nobody_has_used_for_long_is_removed() {
    let (world, etcd) = own_cluster(1, &[]);
    let old = |key: &str| {
        let body = etcd.ctl(&["get", "--print-value-only", &format!("dlock/lock/dlock:{key}")]);
        let mut body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        body["used"] = 1.into();
        body
    };
    let put = |key: &str, body: &serde_json::Value| {
        etcd.ctl(&["put", &format!("dlock/lock/dlock:{key}"), &body.to_string()]);
    };
    let holder = world.run("k", &["-t", "60s"], JOB).any_stderr().spawn();
    world.wait_for_log("up");
    let held = old("k");
    world.write("go", "");
    holder.finish();
    let free = old("k");
    world.dlock(["pause", "p", "--reason", "the disk is changed"]).any_stderr().run();
    let paused = old("p");
    // More of them than are looked at at once, and all changed before the rest.
    (0..70).for_each(|number| put(&format!("paused{number}"), &paused));
    ["gone1", "gone2"].into_iter().zip([&held, &free]).for_each(|(key, body)| put(key, body));
    put("held", &held);
    let token = held["record"]["holds"].as_object().and_then(|holds| holds.keys().next()).expect("a holder");
    etcd.ctl(&["put", &format!("dlock/hold/dlock:held/{token}"), "60000"]);
    // One of five hundred who ask looks for what is old.
    let asker = || Asker::new(&etcd, "/dlock");
    let (mut one, mut other) = (asker(), asker());
    one.holds();
    let ask = Ask { patience: Patience::None, ..other.ask() };
    wait_within(OUTAGE, "what is old is removed", || {
        for _ in 0..50 {
            drop(other.store.acquire(&other.names, &ask, in_time()).expect("an answer"));
        }
        let keys = etcd.keys("/dlock");
        (!keys.iter().any(|key| key.contains("gone"))).then_some(())
    });
    let keys = etcd.keys("/dlock");
    let kept = |begin: &str| keys.iter().filter(|key| key.starts_with(begin)).count();
    assert_eq!((kept("dlock/lock/dlock:paused"), kept("dlock/lock/dlock:held")), (70, 1), "{keys:?}");
}

/// etcd bounds how much one transaction may have.
#[test]
fn many_locks_of_one_run_are_given_back_and_more_are_refused() {
    let (world, _etcd) = own_cluster(1, &[]);
    let keys = |count: usize| -> Vec<String> {
        (1..=count).flat_map(|number| ["-k".to_owned(), format!("m{number}")]).collect()
    };
    for count in [34, 100] {
        let keys = keys(count);
        let run = |job: &str| {
            let arguments = ["run".to_owned(), "--ttl".to_owned(), "5m".to_owned(), "-w".to_owned()];
            let job = ["--", "sh", "-c", job].map(str::to_owned);
            world.dlock(arguments.into_iter().chain(keys.clone()).chain(job)).any_stderr().spawn()
        };
        let holder = run("while [ ! -e go ]; do sleep 0.02; done");
        world.wait_for_state("m1", "held");
        // The transaction that gives back also touches what each of these has, and that is a transaction of its own.
        let waiter = run("echo all >> log");
        let others: Vec<_> = (1..4)
            .map(|number| world.run(&format!("m{number}"), &["-w"], "true").any_stderr().spawn())
            .collect();
        for number in 1..4 {
            world.wait_for_waiters(&format!("m{number}"), 2);
        }
        world.write("go", "");
        holder.finish();
        waiter.finish();
        others.into_iter().for_each(|other| drop(other.finish()));
        world.wait_for_log("all");
        world.wait_for_state("m1", "free");
        world.wait_for_state(&format!("m{count}"), "free");
        for name in ["go", "log"] {
            std::fs::remove_file(world.path(name)).expect("it is there");
        }
    }
    let more = world.dlock(["run"]).args(keys(101)).args(["--", "sh", "-c", "echo ran >> log"]);
    let refused = more.status(78).any_stderr().run().stderr;
    assert!(refused.contains("no run of more than 100 locks at once"), "{refused}");
    assert_eq!((world.lines("ran"), world.state("m101")), (0, "free".into()));
}

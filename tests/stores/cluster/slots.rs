//! The hash slots of a cluster: all keys of a lock lie in one, and it may move.

use super::{JOB, WAITER, calls, end_well, world_with};
use crate::support::ask::exclusive;
use crate::support::cluster::node;
use crate::support::wait::wait_until;
use crate::support::world::World;
use dlock::clock::Moment;
use dlock::lock::{Key, Name, Token};
use dlock::rules::{Acquired, End, Patience, Ran};
use dlock::store::Store;
use dlock::store::net::Address;
use dlock::store::redis::{RedisStore, Target};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The slot of the lock moves to another node, keys first, while there are a holder and a waiter.
#[test]
fn a_slot_that_moves_takes_the_lock_along() {
    let (cluster, world) = world_with(2);
    let owner = cluster.owner("dlock:k");
    let (from, to) = (&cluster.masters[owner], &cluster.masters[1 - owner]);
    let holder = world.run("k", &["-t", "20s"], JOB).status(7).any_stderr().spawn();
    world.wait_for_log("up");
    let fence = world.fence("k");
    let waiter = world.run("k", &["-w", "-t", "20s"], WAITER).any_stderr().spawn();
    world.wait_for_waiters("k", 1);
    let slot = from.ask::<u32>(&["CLUSTER", "KEYSLOT", "dlock:k"]).to_string();
    let [source, target]: [String; 2] = [from, to].map(|node| node.ask(&["CLUSTER", "MYID"]));
    to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
    from.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    let port = to.port().to_string();
    loop {
        let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        if keys.is_empty() {
            break;
        }
        for key in keys {
            from.ask::<String>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    }
    // A newcomer is redirected now and asked there to try again.
    let options = ["-w", "--connect-timeout", "30s", "--op-timeout", "30s"];
    let late = world.run("k", &options, "echo late >> log").any_stderr().spawn();
    wait_until("it is sent on", || calls(to, "asking") > 2);
    to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
    from.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
    to.after_renewal("dlock:k");
    world.wait_for_waiters("k", 2);
    end_well(&world, fence, holder, waiter);
    late.finish();
    assert_eq!(world.lines("late"), 1);
    assert!(from.keys().is_empty(), "{:?}", from.keys());
}

/// Every key of a lock is in the lock's slot, however odd its name is.
#[test]
fn all_keys_of_a_lock_lie_in_one_slot() {
    let world = World::with_redis(&[]);
    let judge = node(&world, "judge");
    let target = Target {
        address: Address::Tcp { host: "127.0.0.1".into(), port: world.redis().port() },
        database: 0,
        username: None,
        password: None,
        tls: None,
        shown: "here".into(),
        connect_timeout: Duration::from_secs(20),
        op_timeout: Duration::from_secs(20),
    };
    let store = RefCell::new(RedisStore::new(target));
    let (server, judge) = (RefCell::new(world.redis().connect()), RefCell::new(judge.connect()));
    let odd = prop::collection::vec(
        prop::sample::select(vec!["{", "}", "{}", "a", "b", ":", "dlock", "é", "*"]),
        1..12,
    );
    let prefix = prop::sample::select(vec!["", "dlock:", "{p}", "p{", "}"]);
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let seen = Cell::new(0);
    TestRunner::new(config)
        .run(&(prefix, odd), |(prefix, parts)| {
            let key = Key::new(&parts.concat()).expect("a key");
            let Ok(name) = Name::new(prefix, &key) else { return Ok(()) };
            let (mut server, mut judge) = (server.borrow_mut(), judge.borrow_mut());
            fill(&mut store.borrow_mut(), &name);
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut *server).expect("keys");
            let slots = keys
                .iter()
                .map(|key| redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u16>(&mut *judge));
            let slots: Vec<u16> = slots.collect::<Result<_, _>>().expect("slots");
            redis::cmd("FLUSHALL").exec(&mut *server).expect("flushed");
            prop_assert!(keys.len() >= 6, "{keys:?}");
            prop_assert!(slots.windows(2).all(|two| two[0] == two[1]), "{keys:?} {slots:?}");
            seen.set(seen.get() + 1);
            Ok(())
        })
        .expect("one slot");
    let seen = seen.get();
    assert!(seen > 100, "only {seen} names were fit to be tried");
}

/// Creates every kind of record: a hold, a waiter, a fence, an end, a released token, a wake-up.
fn fill(store: &mut RedisStore, name: &Name) {
    let by = || Moment::now().after(Duration::from_secs(30));
    let names = name.clone().into();
    let tokens = [(); 3].map(|()| Token::random().expect("randomness"));
    let ask = |token: &Token| exclusive(token, Duration::from_secs(30), Patience::Queue);
    let granted = store.acquire(&names, &ask(&tokens[0]), by()).expect("an answer");
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    for token in &tokens[1..] {
        store.acquire(&names, &ask(token), by()).expect("an answer");
    }
    store
        .leave(
            &names,
            &tokens[0],
            &End { ran: Ran::Yes, job: None, once_per: false, fence: None, pause: None },
            by(),
        )
        .expect("an answer");
}

/// Several locks are taken in one script on one server, so they must be in one slot.
#[test]
fn keys_of_different_slots_are_refused() {
    let (_cluster, world) = world_with(2);
    let run = |keys: [&str; 2]| world.dlock(["run", "-k", keys[0], "-k", keys[1], "--", "touch", "ran"]);
    run(["a", "b"]).status(64).stderr_like("dlock: .*different slots.*one \\{tag\\}.*\n").run();
    assert!(!world.path("ran").exists());
    assert_eq!((world.state("a"), world.state("b")), ("free".into(), "free".into()));
    run(["{app}:a", "{app}:b"]).run();
    assert!(world.path("ran").exists());
}

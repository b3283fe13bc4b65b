//! Several independent masters hold one lock. The loss of a few of them changes nothing at any
//! moment, and the loss of most of them ends the job in time. No clock and no server that forgets
//! leads to a second holder.

mod far_clocks;
mod forgetful_masters;
mod lost_masters;
mod random_outages;
mod refusals;
mod slow_masters;
mod turns;

use crate::support::ask::exclusive;
use crate::support::masters::{Masters, url};
use crate::support::wait::wait_until;
use dlock::clock::Moment;
use dlock::exit::Ended;
use dlock::lock::{Fence, Key, Name, Names, Owner, Token};
use dlock::rules::{Acquired, Ask, End, FailurePause, Left, Patience, Ran, Renew, Renewal, Requested};
use dlock::store::net::Address;
use dlock::store::quorum::QuorumStore;
use dlock::store::redis::Target;
use dlock::store::{Error, Store};
use serde_json::json;
use std::time::Duration;

/// Logs `overlap` if another job is inside, and its own fence.
const ALONE: &str =
    "mkdir inside || echo overlap >> log; echo $DLOCK_FENCE >> fences; sleep 0.02; rmdir inside";

/// Runs until `over` exists, and logs a TERM.
const STEADY: &str =
    "trap 'echo disturbed >> log' TERM; echo up >> log; while [ ! -e over ]; do sleep 0.1; done; exit 9";

/// Ignores TERM, so that only KILL ends it.
const DEAF: &str = "trap '' TERM; echo $$ > job.tmp; mv job.tmp job.pid; while :; do sleep 0.1; done";

#[track_caller]
fn fences(masters: &Masters) -> Vec<u64> {
    let fences: Vec<u64> = masters.world().read("fences").lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "fences in the order of the runs: {fences:?}");
    fences
}

#[test]
fn many_waiters_run_one_at_a_time() {
    let masters = Masters::aged(3);
    let waiters: Vec<_> = (0..8).map(|_| masters.run("k", &["-w"], ALONE).any_stderr().spawn()).collect();
    for waiter in waiters {
        waiter.finish();
    }
    assert_eq!(masters.world().log(), [""; 0]);
    assert_eq!(fences(&masters).len(), 8);
    assert_eq!(masters.status("k")["state"], "free");
}

/// As from cron on every machine in the same instant: no run waits, and yet one must get the lock.
#[test]
fn of_many_simultaneous_runs_one_gets_the_lock() {
    let masters = Masters::aged(5);
    for round in 0..3 {
        let key = format!("k{round}");
        let job = format!("echo {round} >> log; sleep 3");
        let comers: Vec<_> =
            (0..5).map(|_| masters.run(&key, &["-E", "0"], &job).any_stderr().spawn()).collect();
        for comer in comers {
            comer.finish();
        }
        assert_eq!(masters.world().lines(&round.to_string()), 1, "round {round}");
    }
}

#[test]
fn status_and_release_ask_all_masters() {
    let mut masters = Masters::aged(3);
    let holder = masters.run("k", &["-t", "8s"], STEADY).status(79).any_stderr().spawn();
    masters.world().wait_for_log("up");
    masters.at_mut(0).kill();
    assert_eq!(masters.status("k")["state"], "held");
    assert_eq!(masters.status("k")["holders"].as_array().map(Vec::len), Some(1));
    let dead = format!("redis://127.0.0.1:{}", masters.at(0).port());
    let look = masters.dlock(&["status", "-v"]).any_stdout();
    look.stderr_like(&format!("dlock: cannot reach {dead}: .*\n")).run();
    let take = masters.dlock(&["release", "k", "--force"]);
    take.stderr_like("dlock: k in .* is taken away from .*\n").run();
    // Most masters have nothing left to renew.
    holder.finish();
    wait_until("it is free", || masters.status("k")["state"] == "free");
    // One master disagrees.
    masters.at(1).ask::<()>(&["SET", "dlock:k", "somebody's", "PX", "600000"]);
    masters.at_mut(0).restart();
    let look = masters.dlock(&["status", "k", "-v"]).any_stdout();
    look.stderr_like("dlock: k: redis://.* says held, a majority says free\n").run();
    // Without a majority the state is unknown.
    masters.at_mut(0).kill();
    masters.at(2).pause();
    let failed = masters.dlock(&["status", "k"]).status(69);
    failed.stderr_like("dlock: 1 of the 3 masters of .* can be counted and 2 are needed: .*\n").run();
    let failed = masters.dlock(&["release", "k", "--force"]).status(69);
    failed.stderr_like("dlock: 1 of the 3 masters .*those that answered have released the lock.*\n").run();
}

#[test]
fn min_hold_outlives_the_run_on_all_masters() {
    let mut masters = Masters::aged(3);
    masters.run("k", &["--min-hold", "1m"], "exit 3").status(3).run();
    assert_eq!(masters.status("k")["state"], "cooling");
    masters.at_mut(1).kill();
    masters.run("k", &[], "echo overlap >> log").status(75).any_stderr().run();
    assert_eq!(masters.world().log(), [""; 0]);
}

fn store(ports: &[u16], max_lease: Duration) -> QuorumStore {
    store_within(ports, max_lease, Duration::from_secs(600))
}

fn store_within(ports: &[u16], max_lease: Duration, timeout: Duration) -> QuorumStore {
    let masters = ports.iter().map(|port| Target {
        address: Address::Tcp { host: "127.0.0.1".into(), port: *port },
        database: 0,
        username: None,
        password: None,
        tls: None,
        shown: format!("redis://127.0.0.1:{port}"),
        connect_timeout: timeout,
        op_timeout: timeout,
    });
    QuorumStore::new(masters.collect(), url(ports), max_lease, |_| {})
}

fn names() -> Names {
    Name::new("dlock:", &Key::new("k").unwrap()).unwrap().into()
}

fn ask(ttl: Duration) -> Ask {
    exclusive(&Token::random().unwrap(), ttl, Patience::None)
}

const LONG: Duration = Duration::from_secs(300);

const NOT_RUN: End = End { ran: Ran::No, job: None, once_per: false, fence: None, pause: None };

/// An operator's request reaches the holder with its next renewal, even if only one master recorded
/// it. The history and the statistics count each event once, not once per master.
#[test]
fn a_request_reaches_the_holder() {
    let mut masters = Masters::aged(3);
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(2));
    let by = || Moment::now().after(Duration::from_secs(20));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    let name = names.first();
    let Ok(Acquired::Granted(grant)) = store.acquire(&names, &ask, by()) else { panic!("the lock is free") };
    let other = Fence(grant.fence.0 + 1);
    assert_eq!(store.request(name, other, &Owner::default(), by()), Ok(Requested::Gone));
    assert_eq!(
        store.renew(&names, &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None }, by()),
        Ok(Renewal::Renewed)
    );
    masters.at_mut(0).kill();
    assert_eq!(store.request(name, grant.fence, &Owner::default(), by()), Ok(Requested::Asked));
    assert_eq!(store.inspect(name, by()).unwrap().holders[0].asked, Some(Owner::default()));
    assert_eq!(
        store.prove(&names, &ask.token, None, by()).unwrap().map(|proof| proof.fence),
        Some(grant.fence)
    );
    assert_eq!(store.prove(&names, &Token::random().unwrap(), None, by()), Ok(None));
    assert_eq!(
        store.renew(&names, &Renew { token: &ask.token, fence: None, ttl: ask.ttl, rest: None }, by()),
        Ok(Renewal::Asked)
    );
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(1)), once_per: false, fence: None, pause: None };
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Released { cooling: Duration::ZERO }));
    assert_eq!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Already));
    let view = store.inspect(name, by()).unwrap();
    assert_eq!((view.stat.grants, view.stat.held.count(), view.stat.failed), (1, 1, 1));
    assert_eq!(view.log.len(), 1);
    assert_eq!((view.log[0].fence, view.log[0].job), (grant.fence, end.job));
}

/// A run whose command could not start has failed (126, 127), and a pause at a minority is none.
#[test]
fn a_pause_after_a_command_that_did_not_start_takes_a_majority() {
    let mut masters = Masters::aged(3);
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(1));
    let (names, ask) = (names(), ask(Duration::from_secs(30)));
    let by = || Moment::now().after(Duration::from_secs(20));
    assert!(matches!(store.acquire(&names, &ask, by()), Ok(Acquired::Granted(_))));
    masters.at(0).ask::<()>(&["FLUSHALL"]);
    masters.at_mut(1).kill();
    let pause = Some(FailurePause { lasts: LONG, reason: "exit 127".into() });
    let left = store.leave(&names, &ask.token, &End { pause, ..NOT_RUN }, by());
    assert!(matches!(left, Err(Error::Unavailable(_) | Error::Unreachable(_))), "{left:?}");
}

/// A late first request may take a master after the tick was done, and the one that follows says that
/// the run arrived before.
#[test]
fn a_grant_that_is_not_confirmed_is_given_up_if_the_tick_is_done() {
    let masters = Masters::aged(3);
    let mut store = store_within(&masters.ports(), LONG, Duration::from_secs(10));
    let (names, mut ask) = (names(), ask(Duration::from_secs(30)));
    let by = || Moment::now().after(Duration::from_secs(20));
    ask.terms.once_per = Some(LONG);
    assert!(matches!(store.acquire(&names, &ask, by()), Ok(Acquired::Granted(_))));
    let end = End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: true, ..NOT_RUN };
    assert!(matches!(store.leave(&names, &ask.token, &end, by()), Ok(Left::Released { .. })));
    ask.token = Token::random().unwrap();
    let hold = json!({ "phase": "held", "fence": "1", "since": "1", "until": 99_999_999_999_999_u64, "cool": 0,
        "confirmed": false, "attempt": "0", "waited": 0, "owner": {} });
    for at in 0..3 {
        let (master, token) = (masters.at(at), ask.token.secret());
        master.ask::<i64>(&["HSET", "dlock.quorum:{dlock:k}:dlock:k", token, &hold.to_string()]);
        master.ask::<()>(&["SET", "dlock:k", token, "EX", "300"]);
    }
    let answer = store.acquire(&names, &ask, by());
    assert!(matches!(answer, Ok(Acquired::Done(_))), "{answer:?}");
    for at in 0..3 {
        assert_eq!(masters.at(at).ask::<i64>(&["EXISTS", "dlock:k", "dlock.quorum:{dlock:k}:dlock:k"]), 0);
    }
}

/// The metrics have the last success, the last failure and the waiters that gave up, as on one
/// server.
#[test]
fn metrics_count_as_on_one_server() {
    let masters = Masters::aged(3);
    masters.run("k", &[], "true").run();
    masters.run("k", &[], "exit 3").status(3).run();
    let holder = masters.run("k", &[], STEADY).status(9).any_stderr().spawn();
    masters.world().wait_for_log("up");
    masters.run("k", &["-w", "300ms"], "true").status(75).any_stderr().run();
    masters.run("k", &[], "true").status(75).any_stderr().run();
    masters.world().write("over", "");
    holder.finish();
    let text = masters.dlock(&["metrics"]).any_stdout().run().stdout;
    let value = |series: &str| {
        let line = text.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.split_whitespace().last()?.parse::<f64>().ok())
    };
    assert!(value("dlock_last_success_timestamp_seconds{key=\"k\"}").is_some(), "{text}");
    assert!(value("dlock_last_failure_timestamp_seconds{key=\"k\"}").is_some(), "{text}");
    assert_eq!(value("dlock_given_up_total{key=\"k\"}"), Some(1.0), "{text}");
    assert_eq!(value("dlock_busy_total{key=\"k\"}"), Some(1.0), "{text}");
}

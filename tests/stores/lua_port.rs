//! Does the Lua port follow the lock rules? The same random histories run through
//! `rules::LockTable` and through the scripts on a real redis-server whose wall clock the test
//! sets, so that hours pass in no time. Every answer must be the same, and everything visible after
//! each step. To clients that do not wait, three masters whose clocks agree answer as one server
//! does. The rows of a database are compared with the rules in the same way.

mod comparison;
mod random_steps;
mod steered;

use comparison::Comparison;
use dlock::lock::{Key, Mode, Name, Token};
use dlock::rules::{LockTable, Patience, QUEUE_MAX, Ran, Time};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use random_steps::{Step, Want, flags, histories, pauses, steps};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use steered::Servers;

/// First time on the servers' clocks: late enough that masters have been up for longer than any
/// lease.
const BEGIN: Time = Time(4_000_000_000_000_000);

const PEOPLE: usize = 6;

const LOCKS: usize = 3;

/// Most waiters of a lock, one history after the other.
const BOUNDS: [usize; 3] = [QUEUE_MAX, 1, 3];

/// The keys, with characters of two bytes.
const KEYS: [&str; LOCKS] = ["é-0", "é-é1", "-éé-é-2"];

#[test]
fn lua_and_rules_answer_alike() {
    answer_alike(&Servers::start(1), if is_soak() { 50_000 } else { 1000 }, &histories());
}

fn queue(who: usize, ttl: u64) -> Step {
    Step::Acquire { who, patience: Patience::Queue, ttl, min_hold: 0, once_per: None, waited: 0 }
}

fn exclusive(locks: &[usize], replaces: bool) -> Want {
    let (mode, not_replaceable, pause_on_failure, during_pause) = (Mode::Exclusive, false, None, false);
    Want { locks: locks.into(), mode, replaces, not_replaceable, pause_on_failure, during_pause }
}

/// A waiter in the middle of the queue loses its ticket: the waiter behind it was excused, because
/// no waiter was heard meanwhile.
#[test]
fn a_waiter_forgotten_in_the_middle_counts_alike() {
    let renewed = |passed| [Step::Pass(passed), Step::Renew { who: 0, ttl: 30_000 }];
    let mut history = vec![queue(0, 30_000), queue(1, 30_000)];
    history.extend(renewed(25_000));
    history.push(queue(2, 30_000));
    history.extend(renewed(25_000));
    history.extend([
        Step::Pass(10_100),
        queue(3, 30_000),
        queue(1, 30_000),
        Step::Pass(4000),
        queue(2, 30_000),
        queue(3, 30_000),
    ]);
    let alike = vec![exclusive(&[0], false); PEOPLE];
    answer_alike(&Servers::start(1), 1, &Just((alike, history)));
}

/// A waiter of two locks is stale in one queue only, and is suspended in both when the other is
/// granted.
#[test]
fn a_waiter_stale_in_one_of_its_queues_is_suspended_alike() {
    let mut wants = vec![exclusive(&[0], false); PEOPLE];
    (wants[3], wants[4]) = (exclusive(&[0, 2], false), exclusive(&[2], false));
    let leave = Step::Leave { who: 4, ran: Ran::Yes, job: None };
    let history = vec![
        Step::Intrude { lock: 0, ttl: None },
        queue(3, 500),
        Step::Pass(4000),
        queue(0, 500),
        Step::Pass(4000),
        leave,
    ];
    answer_alike(&Servers::start(1), 1, &Just((wants, history)));
}

/// A client that renews a grant has received it and no longer waits.
#[test]
fn a_grant_that_is_renewed_first_is_left_alike() {
    let leave = |who| Step::Leave { who, ran: Ran::Yes, job: None };
    let renew = Step::Renew { who: 4, ttl: 500 };
    let history = vec![queue(5, 500), queue(4, 500), leave(5), renew, leave(4), queue(0, 500)];
    answer_alike(&Servers::start(1), 1, &Just((vec![exclusive(&[0], true); PEOPLE], history)));
}

/// A full queue refuses a newcomer, but not a waiter that was suspended and returns. Stale waiters
/// at its end make room.
#[test]
fn a_full_queue_refuses_alike() {
    let leave = |who| Step::Leave { who, ran: Ran::Yes, job: None };
    let mut wants = vec![exclusive(&[0], false); PEOPLE];
    (wants[4], wants[5]) = (exclusive(&[0, 1], true), exclusive(&[1, 0], false));
    let mut history: Vec<Step> = (0..PEOPLE).map(|who| queue(who, 60_000)).collect();
    history.extend([
        Step::Pass(2000),
        queue(1, 60_000),
        Step::Pass(2000),
        queue(1, 60_000),
        Step::Pass(2000),
    ]);
    history.extend([queue(5, 60_000), queue(1, 60_000), queue(2, 60_000), queue(4, 60_000), leave(0)]);
    history.extend((1..PEOPLE).map(|who| queue(who, 60_000)));
    answer_alike(&Servers::start(1), BOUNDS.len() as u32, &Just((wants, history)));
}

/// Only a hold that was renewed has a run under it, and a min-hold does not hide that its lease is
/// over.
#[test]
fn the_end_of_a_lease_pauses_alike() {
    let fails = Want { pause_on_failure: Some(60_000), ..exclusive(&[0], false) };
    let acquire = |who, min_hold| Step::Acquire {
        who,
        patience: Patience::Queue,
        ttl: 500,
        min_hold,
        once_per: None,
        waited: 0,
    };
    let leave = Step::Leave { who: 0, ran: Ran::Yes, job: None };
    let renew = |who| Step::Renew { who, ttl: 500 };
    let late = vec![acquire(0, 0), acquire(1, 0), leave, Step::Pass(100), acquire(1, 0), Step::Pass(2000)];
    let renewed = vec![acquire(0, 0), renew(0), Step::Pass(2000), acquire(1, 0)];
    let cooling =
        vec![acquire(0, 8000), renew(0), Step::Pass(2000), acquire(1, 0), Step::Pass(9000), acquire(2, 0)];
    let seen = vec![
        acquire(0, 8000),
        renew(0),
        Step::Pass(2000),
        Step::Pause { lock: 0, lasts: None },
        Step::Pass(50),
        acquire(1, 0),
    ];
    let servers = Servers::start(1);
    for history in [late, renewed, cooling, seen] {
        answer_alike(&servers, 1, &Just((vec![fails.clone(); PEOPLE], history)));
    }
}

/// If another program has overwritten a lock, its hold is lost. The next operation records that.
#[test]
fn a_quorum_and_rules_record_a_loss_alike() {
    let mut wants = vec![exclusive(&[0], false); PEOPLE];
    wants[5] = exclusive(&[1], false);
    let history =
        vec![queue(5, 500), Step::Intrude { lock: 1, ttl: None }, Step::Forget { lock: 1 }, Step::Pass(66)];
    answer_alike(&Servers::start(3), 3, &Just((wants, history)));
}

/// Masters with the same records decide by the same rules.
#[test]
fn a_quorum_and_rules_answer_alike() {
    let want = (0..LOCKS, flags(), pauses()).prop_map(
        |(lock, (replaces, not_replaceable), (pause_on_failure, during_pause))| Want {
            locks: vec![lock],
            mode: Mode::Exclusive,
            replaces,
            not_replaceable,
            pause_on_failure,
            during_pause,
        },
    );
    let steps = steps(want.clone());
    let cases = if is_soak() { 2000 } else { 25 };
    answer_alike(&Servers::start(3), cases, &(prop::collection::vec(want, PEOPLE), steps));
}

/// A client without a hold asks what became of the lock.
#[test]
fn a_second_leave_sees_the_loss_alike() {
    let want = exclusive(&[0], false);
    let acquire =
        Step::Acquire { who: 0, patience: Patience::Queue, ttl: 500, min_hold: 0, once_per: None, waited: 0 };
    let leave = || Step::Leave { who: 1, ran: Ran::Yes, job: None };
    let history = vec![leave(), acquire, Step::Intrude { lock: 0, ttl: None }, leave(), Step::Pass(45)];
    for masters in [1, 3] {
        let wants = vec![want.clone(); PEOPLE];
        answer_alike(&Servers::start(masters), 1, &Just((wants, history.clone())));
    }
}

/// After a hand-over the store is away and hears no waiter. The first one that is heard again does
/// not overtake the others.
#[test]
fn waiters_not_heard_after_a_hand_over_are_excused_alike() {
    excuses_after_a_hand_over(&Servers::start(1));
}

#[cfg(feature = "mysql")]
#[test]
fn waiters_not_heard_after_a_hand_over_are_excused_on_mysql() {
    excuses_after_a_hand_over(&Servers::mysql());
}

#[cfg(feature = "postgres")]
#[test]
fn waiters_not_heard_after_a_hand_over_are_excused_on_postgres() {
    excuses_after_a_hand_over(&Servers::postgres());
}

fn excuses_after_a_hand_over(servers: &Servers) {
    let leave = |who| Step::Leave { who, ran: Ran::Yes, job: None };
    let history = vec![
        queue(0, 60_000),
        queue(1, 60_000),
        queue(2, 60_000),
        queue(3, 60_000),
        leave(0),
        queue(1, 60_000),
        Step::Away(8000),
        queue(3, 60_000),
        leave(1),
        queue(2, 60_000),
    ];
    answer_alike(servers, 1, &Just((vec![exclusive(&[0], false); PEOPLE], history)));
}

/// What dlock reads from rows and writes into them follows the lock rules.
#[cfg(feature = "mysql")]
#[test]
fn rules_over_rows_answer_alike_on_mysql() {
    answer_alike(&Servers::mysql(), if is_soak() { 2000 } else { 30 }, &histories());
}

/// The same on PostgreSQL.
#[cfg(feature = "postgres")]
#[test]
fn rules_over_rows_answer_alike_on_postgres() {
    answer_alike(&Servers::postgres(), if is_soak() { 2000 } else { 30 }, &histories());
}

/// The lease in the record must not end before the one that the holder counts on, also where a
/// renewal only reckons the server's clock.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn no_lease_is_cut_short(servers: &Servers) {
    use crate::support::ask::exclusive;
    use dlock::clock::Moment;
    use dlock::lock::Names;
    use dlock::rules::{Acquired, Renew, Renewal};
    use std::time::Duration;

    let name = Name::new("t:", &Key::new("k").unwrap()).unwrap();
    let (names, token) = (Names::from(name.clone()), Token::random().unwrap());
    let by = || Moment::now().after(Duration::from_secs(20));
    let ttl = Duration::from_secs(60);
    let ask = exclusive(&token, ttl, Patience::Queue);
    servers.set_clock(BEGIN);
    let mut store = servers.store(QUEUE_MAX);
    assert!(matches!(store.acquire(&names, &ask, by()).unwrap(), Acquired::Granted(_)));
    for passed in [0, 150, 15_000, 15_001, 15_050, 17_000, 30_000] {
        servers.set_clock(Time(BEGIN.0 + passed * 1000));
        assert_eq!(
            store.renew(&names, &Renew { token: &token, fence: None, ttl, rest: None }, by()).unwrap(),
            Renewal::Renewed,
            "{passed}"
        );
        let left = servers.store(QUEUE_MAX).inspect(&name, by()).unwrap().holders[0].lease;
        let is_right = (ttl..ttl + Duration::from_millis(1_250)).contains(&left);
        assert!(is_right, "{left:?} are left when {passed} ms have passed");
    }
    // The reckoned time is ahead, but does not end a lease that is not over yet.
    let brief = Duration::from_millis(150);
    store.reset();
    assert_eq!(
        store.renew(&names, &Renew { token: &token, fence: None, ttl: brief, rest: None }, by()).unwrap(),
        Renewal::Renewed
    );
    assert_eq!(
        store.renew(&names, &Renew { token: &token, fence: None, ttl: brief, rest: None }, by()).unwrap(),
        Renewal::Renewed
    );
}

#[cfg(feature = "mysql")]
#[test]
fn no_lease_is_cut_short_on_mysql() {
    no_lease_is_cut_short(&Servers::mysql());
}

#[cfg(feature = "postgres")]
#[test]
fn no_lease_is_cut_short_on_postgres() {
    no_lease_is_cut_short(&Servers::postgres());
}

fn is_soak() -> bool {
    std::env::var_os("DLOCK_SOAK").is_some()
}

fn answer_alike(servers: &Servers, cases: u32, histories: &impl Strategy<Value = (Vec<Want>, Vec<Step>)>) {
    let raw = RefCell::new(servers.connect().unwrap());
    let count = AtomicU64::new(0);
    let now = RefCell::new(BEGIN);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(histories, |(wants, history)| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let mut raw = raw.borrow_mut();
            let queue_max = if raw.is_empty() { QUEUE_MAX } else { BOUNDS[number as usize % BOUNDS.len()] };
            let mut both = Comparison {
                servers,
                raw: &mut raw,
                store: servers.store(queue_max),
                names: KEYS
                    .map(|key| Name::new(&format!("t{number}:"), &Key::new(key).unwrap()).unwrap())
                    .into(),
                rules: LockTable { queue_max, ..LockTable::default() },
                now: *now.borrow(),
                people: wants.into_iter().map(|want| (Token::random().unwrap(), want)).collect(),
                looked: 0,
                quiet: *now.borrow(),
            };
            for step in &history {
                let answered_alike = catch_unwind(AssertUnwindSafe(|| both.step(step)));
                *now.borrow_mut() = both.now;
                if servers.left_behind.swap(false, Ordering::Relaxed) {
                    return Err(TestCaseError::reject("a master was left behind"));
                }
                answered_alike.unwrap_or_else(|panic| resume_unwind(panic));
            }
            both.nothing_stays_for_ever();
            both.fences_grow_while_the_clock_goes_back();
            both.raw::<()>(&redis::cmd("FLUSHALL"));
            Ok(())
        })
        .unwrap();
}

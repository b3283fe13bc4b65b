//! What every store does alike: the operations of the trait `Store` on a server, on three masters,
//! in a directory, in memory and on the other stores. What masters refuse (a queue, several keys,
//! sharing) runs on the others. `lua_port` compares random histories on servers with the lock rules.

mod stage;

use crate::stores::memory::Memory;
use crate::support::masters::Masters;
use crate::support::wait::wait_until;
use crate::support::world::World;
use dlock::clock::Moment;
use dlock::lock::{Fence, Mode, Owner, Token};
use dlock::rules::{
    Acquired, Ask, Cause, Forget, GRANTED_AT_ONCE, Left, Missed, Notice, Outcome, Patience, Refusal, Renewal,
    Requested, Revoke, Revoked, State, Subject, Terms, When,
};
use dlock::store::Listener;
use stage::{Person, Stage, deadline, name};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

macro_rules! on_all {
    ($($scenario:ident),+ $(,)?) => {
        mod masters {
            $(#[test] fn $scenario() { super::$scenario(&super::Stage::Masters(super::Masters::aged(3))); })+
        }
        on_all!(with a queue: $($scenario),+);
    };
    (with a queue: $($scenario:ident),+ $(,)?) => {
        $(mod $scenario {
            #[test] fn server() { super::$scenario(&super::Stage::Server(super::World::with_redis(&[]))); }
            #[test] fn directory() { super::$scenario(&super::Stage::Directory(super::World::without_redis())); }
            #[test] fn memory() { super::$scenario(&super::Stage::Memory(super::Memory::new())); }
            #[cfg(feature = "mysql")]
            #[test] fn on_mysql() { super::$scenario(&super::Stage::Mysql(super::World::with_mysql())); }
            #[cfg(feature = "postgres")]
            #[test] fn on_postgres() { super::$scenario(&super::Stage::Postgres(super::World::with_postgres())); }
            #[cfg(feature = "etcd")]
            #[test] fn on_etcd() { super::$scenario(&super::Stage::Etcd(super::World::with_etcd())); }
            #[cfg(feature = "zookeeper")]
            #[test] fn on_zookeeper() { super::$scenario(&super::Stage::ZooKeeper(super::World::with_zookeeper())); }
        })+
    };
}

/// Scenarios for databases only.
macro_rules! on_databases {
    ($($scenario:ident),+ $(,)?) => {
        $(#[cfg(feature = "sql")]
        mod $scenario {
            #[cfg(feature = "mysql")]
            #[test] fn on_mysql() { super::$scenario(&super::Stage::Mysql(super::World::with_mysql())); }
            #[cfg(feature = "postgres")]
            #[test] fn on_postgres() { super::$scenario(&super::Stage::Postgres(super::World::with_postgres())); }
        })+
    };
}

mod sleeps;

on_all!(
    one_holds_and_the_others_are_busy,
    a_request_sent_twice_is_done_once,
    an_unknown_token_changes_nothing,
    a_lease_that_is_not_renewed_ends,
    a_min_hold_outlasts_its_holder,
    an_operator_asks_and_takes,
    the_newest_replaces_the_others,
    a_failure_pauses_the_lock_for_all_but_an_urgent_run,
    recorded_locks_are_listed,
    one_of_a_crowd_announces_what_it_missed,
    what_is_expected_is_kept_with_the_lock,
);

on_all!(with a queue:
    one_of_a_crowd_wins,
    waiters_are_served_in_order,
    several_locks_are_taken_together,
    holders_share_and_have_slots,
    a_crowd_of_readers_comes_in_step_by_step,
);

on_databases!(a_lease_begins_at_the_request_and_not_at_the_wake_up);

const RELEASED: Left = Left::Released { cooling: Duration::ZERO };

fn one_holds_and_the_others_are_busy(stage: &Stage) {
    let (mut one, mut other) = (stage.one(), stage.one());
    let fence = one.holds();
    assert_eq!(one.holds(), fence, "asking again is the same grant");
    assert_eq!(one.proves(), Some(fence));
    match other.tries() {
        Acquired::Busy(blocker) => {
            let holder = blocker.holder.expect("somebody holds it");
            assert_eq!((holder.owner.host.as_str(), holder.fence), ("here", fence));
        }
        answer => panic!("{answer:?}"),
    }
    assert_eq!(other.proves(), None);
    assert_eq!(one.renews(), Renewal::Renewed);
    assert_eq!(one.leaves(), RELEASED);
    let mut next = stage.one();
    assert!(next.holds() > fence, "fences grow");
    assert_eq!(one.renews(), Renewal::NotHeld);
    assert_eq!(one.proves(), None);
    assert_eq!(next.leaves(), RELEASED);
    let view = stage.store().inspect(&name("k"), deadline()).expect("a view");
    assert_eq!((view.state, view.log.len()), (State::Free, 2));
    assert!(view.log.iter().all(|end| end.outcome == Outcome::Released), "{:?}", view.log);
    assert!(view.log[0].fence > view.log[1].fence, "newest first");
}

/// Twelve machines are refused for the same reason, and one of them announces it.
fn one_of_a_crowd_announces_what_it_missed(stage: &Stage) {
    let refused = |kind, subject, by: &str| {
        let notice = Some(Notice { kind, subject: Some(subject), by: by.into() });
        let refusal = Refusal { notice, ..Refusal::interrupted(&Owner::default(), None, Duration::ZERO) };
        stage.store().refuse(&name("k"), &refusal, deadline()).expect("an answer")
    };
    let crowd = |kind, subject| -> Vec<String> {
        let barrier = Barrier::new(12);
        thread::scope(|scope| {
            let one = |by: String| {
                barrier.wait();
                refused(kind, subject, &by).then_some(by)
            };
            let all: Vec<_> = (0..12).map(|by| scope.spawn(move || one(format!("run {by}")))).collect();
            all.into_iter().filter_map(|one| one.join().expect("no panic")).collect()
        })
    };
    let (hold, other) = (Subject::Fence(Fence(1_763_724_242_007_113)), Subject::Fence(Fence(9)));
    let told = crowd(Missed::GaveUp, hold);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(refused(Missed::GaveUp, hold, &told[0]), "it asks again");
    assert!(!refused(Missed::GaveUp, hold, "another run"));
    assert!(refused(Missed::StillHeld, hold, "another run"), "another kind");
    assert_eq!(crowd(Missed::GaveUp, other).len(), 1);
    assert!(refused(Missed::GaveUp, Subject::Pause(1_800_000_000_000), "another run"));
    assert!(!refused(Missed::Between, other, "a run"));
    assert!(!refused(Missed::TooLong, other, "a run"), "DUR is a limit");
    assert_eq!(crowd(Missed::TooLong, hold).len(), 1);
}

fn a_request_sent_twice_is_done_once(stage: &Stage) {
    let mut one = stage.one();
    one.holds();
    assert_eq!(one.leaves(), RELEASED);
    assert_eq!(one.leaves(), Left::Already);
    assert_eq!(one.tries(), Acquired::TokenEnded);
    assert_eq!(stage.store().inspect(&name("k"), deadline()).expect("a view").state, State::Free);
}

fn a_failure_pauses_the_lock_for_all_but_an_urgent_run(stage: &Stage) {
    let mut one = stage.one();
    one.holds();
    assert_eq!(one.fails("exit 1"), RELEASED);
    let view = stage.store().inspect(&name("k"), deadline()).expect("a view");
    let paused = view.paused.expect("a pause");
    assert_eq!((view.state, paused.cause), (State::Paused, Cause::Failure));
    assert_eq!((paused.by.host.as_str(), paused.by.reason.as_deref()), ("here", Some("exit 1")));
    stage.one().is_busy();
    let mut urgent = stage.one();
    urgent.terms.during_pause = true;
    urgent.holds();
    let held = stage.store().inspect(&name("k"), deadline()).expect("a view");
    assert!(held.holders[0].during_pause && held.paused.is_some());
    assert_eq!(urgent.leaves(), RELEASED);
    assert!(stage.store().pause(&name("k"), None, deadline()).expect("an answer"));
    assert_eq!(one.fails("exit 1"), Left::Already, "the release arrives again");
    stage.one().holds();
}

fn an_unknown_token_changes_nothing(stage: &Stage) {
    let (mut one, mut stranger) = (stage.one(), stage.one());
    let fence = one.holds();
    assert_eq!(stranger.renews(), Renewal::NotHeld);
    assert_eq!(stranger.leaves(), Left::NotHeld);
    assert_eq!(stranger.proves(), None);
    assert_eq!(one.proves(), Some(fence));
}

fn a_lease_that_is_not_renewed_ends(stage: &Stage) {
    let mut one = stage.one();
    let ask = Ask { ttl: Duration::from_secs(1), ..one.ask(Patience::None) };
    let Acquired::Granted(grant) = one.asks(&ask) else { panic!("not granted") };
    assert_eq!(one.renews_under(Some(Fence(grant.fence.0 - 1))), Renewal::NotHeld, "another grant");
    // Another client looks: where a lease is a session, a request of the holder would renew it.
    wait_until("the lease is over", || {
        stage.store().inspect(&name("k"), deadline()).expect("a view").state == State::Free
    });
    assert_eq!(one.proves(), None);
    let mut next = stage.one();
    next.holds();
    assert_eq!(one.renews(), Renewal::NotHeld);
    let log = stage.store().inspect(&name("k"), deadline()).expect("a view").log;
    assert_eq!(log.first().map(|end| end.outcome), Some(Outcome::Expired));
    assert_eq!(next.leaves(), RELEASED);
    // The first request arrives again. The store may know that the process is over.
    if let Acquired::Granted(again) = one.tries() {
        assert!(again.fence > grant.fence);
        assert_eq!(one.renews_under(Some(grant.fence)), Renewal::NotHeld);
        assert_eq!(one.renews_under(Some(again.fence)), Renewal::Renewed);
        assert_eq!(one.leaves_under(Some(grant.fence)), Left::NotHeld);
        next = stage.one();
        next.holds();
    }
}

fn a_min_hold_outlasts_its_holder(stage: &Stage) {
    let mut one = stage.one();
    let ask = Ask { min_hold: Duration::from_secs(600), ..one.ask(Patience::None) };
    assert!(matches!(one.asks(&ask), Acquired::Granted(_)));
    let left = one.leaves();
    assert!(matches!(left, Left::Released { cooling } if cooling > Duration::from_secs(500)), "{left:?}");
    stage.one().is_busy();
    assert_eq!(stage.store().inspect(&name("k"), deadline()).expect("a view").state, State::Cooling);
}

fn the_newest_replaces_the_others(stage: &Stage) {
    let replaces = |not_replaceable| Person {
        terms: Terms { replaces: true, not_replaceable, ..Terms::default() },
        ..stage.one()
    };
    let (mut one, mut two, mut three) = (replaces(false), replaces(false), replaces(true));
    one.holds();
    assert!(matches!(two.asks(&two.ask(Patience::Queue)), Acquired::Waiting(_)));
    assert_eq!(one.renews(), Renewal::Superseded);
    let view = stage.store().inspect(&name("k"), deadline()).expect("a view");
    assert!(view.holders[0].superseded && view.holders[0].asked.is_some(), "{view:?}");
    assert!(matches!(three.asks(&three.ask(Patience::Queue)), Acquired::Waiting(_)));
    match two.asks(&two.ask(Patience::Queue)) {
        Acquired::Superseded(superseded) => assert_eq!(superseded.by.host, "here"),
        other => panic!("not sent home: {other:?}"),
    }
    assert!(matches!(one.leaves(), Left::Released { .. }));
    three.is_served();
    // This holder is not replaceable and ends by itself.
    let mut four = replaces(false);
    assert!(matches!(four.asks(&four.ask(Patience::Queue)), Acquired::Waiting(_)));
    assert_eq!(three.renews(), Renewal::Renewed);
    assert!(matches!(three.leaves(), Left::Released { .. }));
    four.is_served();
    let stat = stage.store().inspect(&name("k"), deadline()).expect("a view").stat;
    assert_eq!(stat.superseded, 1);
}

fn an_operator_asks_and_takes(stage: &Stage) {
    let (mut one, mut operator) = (stage.one(), stage.store());
    let fence = one.holds();
    let mut subscription = one.store.subscribe(one.names.as_slice(), &one.token, Listener::Holder);
    let mut ask =
        |fence| operator.request(&name("k"), fence, &Owner::default(), deadline()).expect("an answer");
    assert_eq!(ask(Fence(fence.0 - 1)), Requested::Gone);
    assert_eq!(ask(fence), Requested::Asked);
    wait_until("the holder hears of it", || {
        subscription.sleep(Moment::now().after(Duration::from_millis(100))).expect("a subscription")
            || one.renews() == Renewal::Asked
    });
    assert_eq!(one.renews(), Renewal::Asked);
    let revoke = |when| {
        let revoke = Revoke { when, by: Owner::default() };
        stage.store().revoke(&name("k"), &revoke, deadline()).expect("an answer")
    };
    assert!(matches!(revoke(When::Safe), Revoked::Holds { .. }));
    assert_eq!(one.renews(), Renewal::Revoked);
    stage.one().is_busy();
    assert!(matches!(one.leaves(), Left::Released { .. }), "it says that its job is dead");
    let mut next = stage.one();
    next.holds();
    assert!(matches!(revoke(When::Now), Revoked::Holds { .. }));
    stage.one().holds();
    assert_ne!(next.renews(), Renewal::Renewed);
}

fn recorded_locks_are_listed(stage: &Stage) {
    let view = stage.store().inspect(&name("k"), deadline()).expect("a view");
    assert!(!view.is_used() && view.state == State::Free);
    for key in ["b", "a"] {
        let mut one = stage.person(&[key], Mode::Exclusive);
        one.holds();
        one.leaves();
    }
    assert_eq!(stage.found("conform:"), [name("a"), name("b")]);
    assert_eq!(stage.found("other:"), []);
}

fn what_is_expected_is_kept_with_the_lock(stage: &Stage) {
    let expecting = |hours: u64| {
        let expect = Some(Duration::from_secs(hours * 3600));
        Person { terms: Terms { expect, ..Terms::default() }, ..stage.one() }
    };
    let seen = || stage.store().inspect(&name("k"), deadline()).expect("a view");
    let hours = || seen().expected.map(|expected| expected.every.as_secs() / 3600);
    let mut one = expecting(1);
    one.holds();
    assert_eq!((hours(), seen().overdue()), (Some(1), Some(false)));
    // Refused, on the record of a holder that need not read before it renews.
    assert_eq!(one.renews(), Renewal::Renewed);
    expecting(2).is_busy();
    assert_eq!(hours(), Some(2));
    assert_eq!((one.renews(), one.renews()), (Renewal::Renewed, Renewal::Renewed));
    assert_eq!(one.leaves(), RELEASED);
    let mut usual = stage.one();
    usual.holds();
    assert_eq!(usual.leaves(), RELEASED);
    assert_eq!(hours(), Some(2));
    let mut last = expecting(0);
    last.holds();
    assert_eq!((last.leaves(), seen().expected, seen().overdue()), (RELEASED, None, None));
    let mut next = expecting(3);
    next.holds();
    assert_eq!(next.leaves(), RELEASED);
    let retire = || stage.store().forget(&name("k"), Forget::Expected, deadline()).expect("an answer");
    assert_eq!((retire(), seen().expected, retire()), (true, None, false));
}

/// Several clients read the same record at the same time. One of them may write it.
fn one_of_a_crowd_wins(stage: &Stage) {
    for _ in 0..20 {
        let mut crowd = [(); 4].map(|()| stage.one());
        let start = &Barrier::new(crowd.len());
        let answers = thread::scope(|scope| {
            let tries = crowd.each_mut().map(|one| {
                scope.spawn(move || {
                    start.wait();
                    one.tries()
                })
            });
            tries.map(|answer| answer.join().expect("an answer"))
        });
        let won = answers.iter().filter(|answer| matches!(answer, Acquired::Granted(_))).count();
        assert_eq!(won, 1, "{answers:?}");
        for (one, answer) in crowd.iter_mut().zip(&answers) {
            if let Acquired::Granted(_) = answer {
                assert_eq!(one.leaves(), RELEASED);
            }
        }
    }
}

fn waiters_are_served_in_order(stage: &Stage) {
    let mut holder = stage.one();
    let mut fence = holder.holds();
    let mut waiters = Vec::new();
    for ahead in 0..4 {
        let mut waiter = stage.one();
        waiter.waits(ahead);
        waiters.push(waiter);
    }
    stage.one().is_busy();
    assert_eq!(waiters.remove(1).leaves(), Left::Dequeued);
    waiters[1].waits(1);
    for mut next in waiters {
        assert_eq!(holder.leaves(), RELEASED);
        stage.one().is_busy();
        let new = next.is_served();
        assert!(new > fence);
        (holder, fence) = (next, new);
    }
}

/// A woken waiter has already read the lock. Its lease counts from its request, however much later
/// that comes.
#[cfg(feature = "sql")]
fn a_lease_begins_at_the_request_and_not_at_the_wake_up(stage: &Stage) {
    for pause in [60, 90, 400].map(Duration::from_millis) {
        let (mut holder, mut waiter) = (stage.one(), stage.one());
        holder.holds();
        waiter.waits(0);
        thread::scope(|scope| {
            scope.spawn(|| waiter.store.sleep(&waiter.names, &waiter.token, deadline()).expect("a sleep"));
            wait_until("it sleeps", || stage.sleeping() == 1);
            assert_eq!(holder.leaves(), RELEASED);
        });
        // The time between the read and the request.
        thread::sleep(pause);
        let sent = Moment::now();
        waiter.holds();
        let view = stage.store().inspect(&name("k"), deadline()).expect("a view");
        let lasts = Moment::now().since(sent) + view.left.expect("a lease");
        assert!(
            lasts + Duration::from_millis(2) >= stage::TTL,
            "{pause:?} after it woke it was granted {lasts:?}"
        );
        assert_eq!(waiter.leaves(), RELEASED);
    }
}

fn several_locks_are_taken_together(stage: &Stage) {
    let mut both = stage.person(&["a", "b"], Mode::Exclusive);
    let mut one = stage.person(&["b"], Mode::Exclusive);
    let before = one.holds();
    both.waits(0);
    stage.person(&["a"], Mode::Exclusive).is_busy();
    assert_eq!(one.leaves(), RELEASED);
    let fence = both.is_served();
    assert!(fence > before);
    for key in ["a", "b"] {
        let view = stage.store().inspect(&name(key), deadline()).expect("a view");
        assert_eq!(view.holders.iter().map(|holder| holder.fence).collect::<Vec<_>>(), [fence]);
    }
    assert_eq!(both.leaves(), RELEASED);
    stage.person(&["b", "a"], Mode::Exclusive).holds();
}

fn holders_share_and_have_slots(stage: &Stage) {
    let mut shared = [(); 3].map(|()| stage.person(&["s"], Mode::Shared));
    for one in &mut shared {
        one.holds();
    }
    let mut alone = stage.person(&["s"], Mode::Exclusive);
    alone.waits(0);
    stage.person(&["s"], Mode::Shared).is_busy();
    shared.iter_mut().for_each(|one| assert_eq!(one.leaves(), RELEASED));
    alone.is_served();
    let mut slots = [(); 3].map(|()| stage.person(&["n"], Mode::Slots(2)));
    let given = slots.each_mut().map(|one| match one.tries() {
        Acquired::Granted(grant) => grant.slot,
        _ => None,
    });
    assert_eq!(given, [Some(0), Some(1), None]);
    stage.person(&["n"], Mode::Slots(3)).is_busy();
}

fn a_crowd_of_readers_comes_in_step_by_step(stage: &Stage) {
    // A waiter that is granted one of these locks is in the other queue, too.
    let mut writer = stage.person(&["s", "t"], Mode::Exclusive);
    writer.holds();
    let mut reader = stage.person(&["s", "t"], Mode::Shared);
    let readers: Vec<_> = (0..GRANTED_AT_ONCE + 6).map(|_| Token::random().expect("a token")).collect();
    for token in &readers {
        reader.token = token.clone();
        let answer = reader.asks(&reader.ask(Patience::Queue));
        assert!(matches!(answer, Acquired::Waiting(_)), "{answer:?}");
    }
    assert_eq!(writer.leaves(), RELEASED);
    let held = || stage.store().inspect(&name("s"), deadline()).expect("a view").holders.len();
    let first = held();
    assert!((1..=GRANTED_AT_ONCE).contains(&first), "{first} in one step");
    for token in &readers {
        reader.token = token.clone();
        reader.is_served();
    }
    assert_eq!(held(), readers.len());
}

//! What the lock rules must never do, and must do in the end: one rule a test. Random histories are
//! in `tests/histories.rs`.

use super::view::View;
use super::*;
use crate::lock::{Key, Mode, Owner};
use std::ops::Range;

mod explored;
mod histories;
mod observer;
mod replace;
mod totals;

fn name(key: &str) -> Name {
    let name = Key::new(key).and_then(|key| Name::new("", &key));
    name.unwrap_or_else(|why| unreachable!("{key:?} is a good name: {why}"))
}

fn token(number: u32) -> Token {
    let token = Token::parse(&format!("{number:032x}"));
    token.unwrap_or_else(|why| unreachable!("32 hex digits: {why}"))
}

const TTL: Duration = Duration::from_secs(30);
const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const RAN: End = End { ran: Ran::Yes, job: None, once_per: false };

/// A table and a clock. A caller is a number (`who`), a lock a letter.
struct Scene {
    table: LockTable,
    now: Time,
    ttl: Duration,
    min_hold: Duration,
    terms: Terms,
    waited: Duration,
    has_waited: bool,
}

impl Scene {
    fn new() -> Self {
        let now = Time(1_800_000_000_000_000);
        let (table, terms) = (LockTable::default(), Terms::default());
        Self {
            table,
            now,
            ttl: TTL,
            min_hold: Duration::ZERO,
            terms,
            waited: Duration::ZERO,
            has_waited: false,
        }
    }

    fn names(locks: &str) -> Names {
        let mut names = locks.chars().map(|lock| name(&lock.to_string()));
        names.next().map_or_else(|| unreachable!("no lock is named"), |first| Names::new(first, names))
    }

    fn pass(&mut self, ms: u64) {
        self.now = Time(self.now.0 + ms * 1000);
    }

    fn acquire(&mut self, who: u32, locks: &str, mode: Mode, patience: Patience) -> Acquired {
        self.now = Time(self.now.0 + 1);
        let (ttl, min_hold) = (self.ttl, self.min_hold);
        let owner = Owner { pid: who, ..Owner::default() };
        let (terms, waited, has_waited) = (self.terms.clone(), self.waited, self.has_waited);
        let ask = Ask { token: token(who), mode, ttl, min_hold, owner, patience, terms, waited, has_waited };
        self.table.acquire(self.now, &Self::names(locks), &ask)
    }

    /// Acquires, waiting in the queue. Returns whether it was granted.
    fn queue(&mut self, who: u32, locks: &str, mode: Mode) -> bool {
        matches!(self.acquire(who, locks, mode, Patience::Queue), Acquired::Granted(_))
    }

    /// Acquires without waiting. Returns whether it was granted.
    fn ask(&mut self, who: u32, locks: &str, mode: Mode) -> bool {
        matches!(self.acquire(who, locks, mode, Patience::None), Acquired::Granted(_))
    }

    fn slot(&mut self, who: u32, locks: &str, slots: u32) -> Option<u32> {
        match self.acquire(who, locks, Mode::Slots(slots), Patience::Queue) {
            Acquired::Granted(grant) => grant.slot,
            _ => None,
        }
    }

    fn next(&mut self, who: u32, locks: &str, mode: Mode) -> Option<Duration> {
        match self.acquire(who, locks, mode, Patience::Queue) {
            Acquired::Waiting(waiting) => Some(waiting.next),
            _ => None,
        }
    }

    fn renew(&mut self, who: u32, locks: &str) -> Renewal {
        self.table.renew(self.now, &Self::names(locks), &token(who), self.ttl)
    }

    fn leave(&mut self, who: u32, locks: &str) -> Left {
        self.table.leave(self.now, &Self::names(locks), &token(who), &RAN)
    }

    fn revoke(&mut self, lock: &str, when: When) -> Revoked {
        self.table.revoke(self.now, &name(lock), &Revoke { when, by: Owner::default() })
    }

    fn record(&mut self, lock: &str) -> &mut Record {
        self.table.records.entry(lock.into()).or_default()
    }

    fn seen(&mut self, lock: &str) -> View {
        let now = self.now;
        self.record(lock).inspect(&name(lock), now)
    }
}

const GONE: Left = Left::Released { cooling: Duration::ZERO };

#[test]
fn readers_share_and_a_queued_writer_holds_back_later_ones() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", S) && scene.queue(2, "a", S));
    assert!(!scene.queue(3, "a", X));
    assert!(!scene.queue(4, "a", S) && !scene.ask(5, "a", S));
    assert_eq!((scene.leave(1, "a"), scene.leave(2, "a")), (GONE, GONE));
    assert!(scene.queue(3, "a", X) && !scene.queue(4, "a", S));
    assert_eq!(scene.leave(3, "a"), GONE);
    assert!(scene.queue(4, "a", S));
}

#[test]
fn a_full_queue_refuses_newcomers_only() {
    let mut scene = Scene::new();
    scene.table.queue_max = 2;
    assert!(scene.queue(1, "b", X));
    let full = |acquired| match acquired {
        Acquired::Busy(blocker) => blocker.queue_full.map(|waiters| (blocker.at, waiters)),
        _ => None,
    };
    let waits = |acquired| matches!(acquired, Acquired::Waiting(_));
    for who in [2, 3] {
        assert!(waits(scene.acquire(who, "b", X, Patience::Queue)));
    }
    assert_eq!(full(scene.acquire(4, "b", X, Patience::Queue)), Some((0, 2)));
    assert_eq!(full(scene.acquire(4, "abc", X, Patience::Queue)), Some((1, 2)), "of several one is full");
    assert_eq!(full(scene.acquire(5, "b", X, Patience::None)), None, "it would not have waited");
    assert_eq!((scene.seen("b").stat.busy, scene.seen("a").waiters.len()), (3, 0));
    // The last one dies, and nobody waits behind it.
    for _ in 0..3 {
        scene.pass(2000);
        assert!(waits(scene.acquire(2, "b", X, Patience::Queue)));
    }
    assert!(waits(scene.acquire(4, "b", X, Patience::Queue)));
    assert!(waits(scene.acquire(3, "b", X, Patience::Queue)), "it was only stale, and is back in its place");
    assert_eq!(full(scene.acquire(5, "b", X, Patience::Queue)), Some((0, 2)));
    let waiters: Vec<u32> = scene.seen("b").waiters.iter().map(|waiter| waiter.owner.pid).collect();
    assert_eq!(waiters, [2, 3, 4]);
    scene.has_waited = true;
    assert!(waits(scene.acquire(5, "b", X, Patience::Queue)), "its place was forgotten");
}

#[test]
fn all_readers_at_the_head_are_granted_in_one_step() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    for (who, mode) in [(2, S), (3, S), (4, X), (5, S)] {
        assert!(!scene.queue(who, "a", mode));
    }
    scene.leave(1, "a");
    let seen = scene.seen("a");
    assert_eq!(seen.holders.iter().map(|holder| holder.owner.pid).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(seen.waiters.len(), 2);
}

/// A writer has held the locks and left, while `times` as many readers were waiting as one
/// operation grants.
fn crowd(locks: &'static str, times: u32) -> (Scene, Range<u32>) {
    let mut scene = Scene::new();
    assert!(scene.queue(1, locks, X));
    let readers = 2..2 + times * u32::try_from(GRANTED_AT_ONCE).unwrap_or(u32::MAX);
    for who in readers.clone() {
        assert!(!scene.queue(who, locks, S));
    }
    scene.leave(1, locks);
    (scene, readers)
}

#[test]
fn a_crowd_of_readers_is_granted_step_by_step() {
    let (mut scene, mut readers) = crowd("a", 3);
    assert_eq!(scene.seen("a").holders.len(), GRANTED_AT_ONCE);
    assert!(scene.queue(2, "a", S));
    assert_eq!(scene.seen("a").holders.len(), 2 * GRANTED_AT_ONCE, "a confirmation grants more");
    // The others were granted it and do not confirm: a waiter behind them does not wait for ever.
    scene.pass(CONFIRM_WITHIN.as_secs() * 1000);
    assert!(scene.queue(readers.end - 1, "a", S));
    assert!(readers.all(|who| scene.queue(who, "a", S)));
}

#[test]
fn a_crowd_that_wants_several_locks_is_granted_step_by_step() {
    let (mut scene, mut readers) = crowd("ab", 2);
    assert_eq!(["a", "b"].map(|lock| scene.seen(lock).holders.len()), [GRANTED_AT_ONCE; 2]);
    assert!(readers.all(|who| scene.queue(who, "ab", S)));
}

#[test]
fn holders_can_leave_a_full_store() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", S) && scene.queue(2, "a", S));
    assert!(!scene.queue(3, "a", X) && !scene.queue(4, "a", S));
    scene.table.too_large = 3;
    assert_eq!(
        (scene.leave(1, "a"), scene.renew(2, "a"), scene.leave(2, "a")),
        (GONE, Renewal::Renewed, GONE)
    );
    assert_eq!((scene.seen("a").holders.len(), scene.seen("a").waiters.len()), (0, 2));
    scene.table.too_large = 2;
    assert!(scene.queue(3, "a", X));
}

#[test]
fn a_crashed_reader_ends_alone() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", S));
    scene.pass(20_000);
    assert!(scene.queue(2, "a", S) && !scene.queue(3, "a", X));
    scene.pass(10_001);
    assert_eq!((scene.renew(1, "a"), scene.renew(2, "a")), (Renewal::NotHeld, Renewal::Renewed));
    assert!(!scene.queue(3, "a", X));
}

#[test]
fn the_lowest_free_slot_is_given() {
    let mut scene = Scene::new();
    assert_eq!(
        (1..=4).map(|who| scene.slot(who, "a", 3)).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), None]
    );
    scene.leave(2, "a");
    assert_eq!(scene.slot(4, "a", 3), Some(1));
}

#[test]
fn several_locks_have_one_slot_number_in_common() {
    let mut scene = Scene::new();
    assert_eq!(
        (scene.slot(1, "a", 3), scene.slot(2, "b", 3), scene.slot(3, "b", 3)),
        (Some(0), Some(0), Some(1))
    );
    assert_eq!(scene.slot(4, "ab", 3), Some(2));
    assert_eq!(scene.slot(5, "ab", 3), None);
    scene.leave(3, "b");
    assert_eq!(scene.slot(5, "ab", 3), Some(1));
}

#[test]
fn another_mode_or_another_number_of_slots_waits() {
    let mut scene = Scene::new();
    assert_eq!(scene.slot(1, "a", 2), Some(0));
    for mode in [Mode::Slots(3), S, X] {
        assert!(!scene.ask(2, "a", mode));
    }
    assert_eq!(scene.slot(3, "a", 3), None);
    assert_eq!(scene.slot(4, "a", 2), None, "the one with other slots came first");
    scene.leave(1, "a");
    assert_eq!((scene.slot(3, "a", 3), scene.slot(4, "a", 2)), (Some(0), None));
}

#[test]
fn several_locks_are_granted_together_or_not_at_all() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "b", X) && !scene.queue(2, "ab", X));
    assert_eq!(scene.seen("a").state, State::Free);
    assert!(!scene.ask(3, "a", X), "a newcomer does not overtake");
    scene.leave(1, "b");
    assert!(scene.queue(2, "ab", X));
    let fences = ["a", "b"].map(|lock| scene.record(lock).fence);
    assert_eq!(fences[0], fences[1]);
}

#[test]
fn locks_asked_for_crosswise_do_not_deadlock_when_a_silent_waiter_returns() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && scene.queue(2, "b", X));
    assert!(!scene.queue(3, "ab", X) && !scene.queue(4, "bc", X) && !scene.queue(5, "ac", X));
    for _ in 0..2 {
        scene.pass(2_501);
        assert!(!scene.queue(4, "bc", X) && !scene.queue(5, "ac", X));
    }
    assert!(!scene.queue(3, "ab", X), "back at its old place, in both queues");
    scene.leave(1, "a");
    scene.leave(2, "b");
    assert!(scene.queue(3, "ab", X) && !scene.queue(4, "bc", X) && !scene.queue(5, "ac", X));
    scene.leave(3, "ab");
    assert!(scene.queue(4, "bc", X) && !scene.queue(5, "ac", X));
    scene.leave(4, "bc");
    assert!(scene.queue(5, "ac", X));
}

#[test]
fn a_silent_waiter_is_passed_over_at_all_its_locks_in_one_step() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "ab", X));
    scene.pass(2000);
    assert!(!scene.queue(3, "b", X) && !scene.queue(4, "a", X));
    scene.pass(3001);
    scene.leave(4, "a");
    scene.leave(1, "a");
    assert_eq!(scene.seen("b").holders.len(), 1);
}

#[test]
fn next_follows_the_waiter_before_and_ahead_drops_when_it_leaves() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "ab", X) && !scene.queue(3, "a", X));
    scene.pass(2000);
    assert_eq!(scene.next(3, "a", X), Some(HEARTBEAT));
    scene.pass(2000);
    assert_eq!(scene.next(3, "a", X), Some(Duration::from_millis(1000)), "when the one before falls silent");
    assert_eq!(scene.leave(2, "ab"), Left::Dequeued);
    assert!(matches!(scene.acquire(3, "a", X, Patience::Queue), Acquired::Waiting(Waiting { ahead: 0, .. })));
    assert!(scene.ask(4, "b", X));
}

#[test]
fn waiters_that_died_together_cost_ten_seconds_at_most() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        scene.ttl = Duration::from_millis(500);
        assert!(scene.queue(1, "ab", X));
        for who in 2..8 {
            assert!(!scene.queue(who, "ab", mode));
        }
        let died = scene.now;
        while let Some(next) = scene.next(9, "ab", X) {
            scene.pass(millis(next));
        }
        assert!(
            scene.now.millis() - died.millis() <= 10_000,
            "{mode}: {}",
            scene.now.millis() - died.millis()
        );
    }
}

/// The store was away and received no heartbeat, so no waiter became stale.
#[test]
fn after_an_absence_of_the_store_the_order_is_what_it_was() {
    for away in [3_300, 4_500, 7_000, 30_000, 50_000] {
        for comes_first in 2..6 {
            let mut scene = Scene::new();
            scene.ttl = Duration::from_secs(60);
            assert!(scene.queue(1, "a", X));
            for who in 2..6 {
                assert!(!scene.queue(who, "a", X));
                scene.pass(300);
            }
            scene.pass(away);
            assert_eq!(scene.seen("a").waiters.len(), 4);
            assert!(!scene.queue(comes_first, "a", X));
            scene.pass(1_500);
            scene.leave(1, "a");
            for who in 2..6 {
                assert!(!scene.ask(9, "a", X), "nobody passes them");
                assert!(scene.queue(who, "a", X), "after {away} ms it is the turn of {who}");
                scene.leave(who, "a");
            }
            assert!(scene.ask(9, "a", X));
        }
    }
}

/// If all waiters are dead, that looks like an absence of the store: it costs the next one as much
/// as one dead waiter, once.
#[test]
fn dead_waiters_are_waited_for_once() {
    for late in [3_300, 7_000, 50_000] {
        let mut scene = Scene::new();
        scene.ttl = Duration::from_secs(2);
        assert!(scene.queue(1, "a", X));
        assert!((2..8).all(|who| !scene.queue(who, "a", X)));
        scene.pass(late);
        let came = scene.now;
        // A caller that does not wait asks repeatedly, so no heartbeat ever arrives.
        while !scene.ask(9, "a", X) {
            scene.pass(500);
            assert!(scene.now.millis() - came.millis() <= 10_000, "{late}");
        }
    }
}

/// Two absences: a waiter without a heartbeat since before the first one is excused once, not
/// twice.
#[test]
fn a_dead_waiter_is_excused_by_one_absence_only() {
    let mut scene = Scene::new();
    scene.ttl = Duration::from_secs(60);
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    scene.pass(3_300);
    assert!(!scene.queue(3, "a", X));
    scene.pass(1_600);
    assert!(!scene.queue(3, "a", X));
    scene.leave(3, "a");
    scene.pass(3_500);
    scene.leave(1, "a");
    assert!(scene.ask(9, "a", X), "the dead one is waited for again");
}

#[test]
fn next_is_when_the_blocking_hold_ends() {
    let mut scene = Scene::new();
    scene.ttl = Duration::from_millis(700);
    assert!(scene.queue(1, "a", S));
    scene.pass(100);
    assert!(scene.queue(2, "b", S));
    assert_eq!(scene.next(3, "ab", X), Some(Duration::from_millis(600)));
    scene.pass(600);
    assert_eq!(scene.next(3, "ab", X), Some(Duration::from_millis(100)));
    scene.pass(100);
    assert!(scene.queue(3, "ab", X));
}

#[test]
fn without_a_slot_in_common_next_is_when_the_first_hold_ends() {
    let mut scene = Scene::new();
    assert_eq!((scene.slot(1, "a", 2), scene.slot(2, "b", 2)), (Some(0), Some(0)));
    scene.ttl = Duration::from_millis(700);
    assert_eq!(scene.slot(3, "b", 2), Some(1));
    scene.leave(2, "b");
    assert_eq!(scene.next(4, "ab", Mode::Slots(2)), Some(Duration::from_millis(700)));
}

#[test]
fn only_the_head_looks_at_a_foreign_lock() {
    let mut scene = Scene::new();
    scene.record("a").lock = Lock::Foreign { until: None };
    assert_eq!(scene.next(1, "ab", S), Some(FOREIGN_LOOK));
    assert_eq!(scene.next(2, "a", S), Some(HEARTBEAT));
    assert_eq!(
        scene.revoke("a", When::Safe),
        Revoked::Foreign(Foreign { kind: "string".into(), left: None })
    );
    assert_eq!(scene.revoke("a", When::Now), Revoked::ForeignDeleted);
    assert!(scene.queue(1, "ab", S) && scene.queue(2, "a", S));
}

#[test]
fn a_hold_without_one_of_its_locks_neither_renews_nor_proves_anything() {
    for mode in [X, S, Mode::Slots(2)] {
        for lock in [Lock::Free, Lock::Foreign { until: None }] {
            let mut scene = Scene::new();
            assert!(scene.queue(1, "ab", mode));
            assert!(scene.table.prove(scene.now, &Scene::names("ab"), &token(1)).is_some());
            scene.record("a").lock = lock;
            assert_eq!(scene.table.prove(scene.now, &Scene::names("ab"), &token(1)), None);
            assert_eq!(scene.renew(1, "ab"), Renewal::NotHeld, "{mode}");
            assert!(!scene.ask(2, "b", X), "its job may still run");
            assert_eq!(scene.acquire(1, "ab", mode, Patience::Queue), Acquired::TokenEnded);
            assert_eq!((scene.leave(1, "ab"), scene.leave(1, "ab")), (GONE, Left::Already));
            assert!(scene.ask(2, "b", X));
        }
    }
}

#[test]
fn a_min_hold_stands_in_every_mode_and_keeps_its_slot() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        scene.min_hold = Duration::from_secs(3);
        assert!(scene.queue(1, "ab", mode));
        scene.pass(1000);
        scene.min_hold = Duration::ZERO;
        assert_eq!(scene.leave(1, "ab"), Left::Released { cooling: Duration::from_secs(2) });
        assert_eq!(scene.leave(1, "ab"), Left::Already);
        assert_eq!(scene.renew(1, "ab"), Renewal::NotHeld);
        assert!(!scene.ask(2, "b", X), "{mode}");
        if mode == Mode::Slots(2) {
            assert_eq!(scene.slot(3, "a", 2), Some(1));
            scene.leave(3, "a");
        }
        scene.pass(2000);
        assert!(scene.ask(2, "ab", X), "{mode}");
    }
}

#[test]
fn a_job_that_never_ran_leaves_no_min_hold() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        scene.min_hold = Duration::from_secs(3);
        assert!(scene.queue(1, "ab", mode));
        let never = End { ran: Ran::No, job: None, once_per: false };
        assert_eq!(scene.table.leave(scene.now, &Scene::names("ab"), &token(1), &never), GONE);
        assert!(scene.ask(2, "ab", X) && scene.record("a").log.is_empty());
    }
}

#[test]
fn a_safe_revocation_waits_for_the_job_and_no_renewal_undoes_it() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        assert!(scene.queue(1, "ab", mode));
        assert!(matches!(scene.revoke("a", When::Safe), Revoked::Holds { left: TTL, .. }));
        assert!(matches!(scene.revoke("a", When::Safe), Revoked::AlreadyRevoked { left: TTL, .. }));
        assert_eq!(scene.renew(1, "ab"), Renewal::Revoked);
        assert_eq!(scene.acquire(1, "ab", mode, Patience::Queue), Acquired::TokenEnded);
        assert!(!scene.queue(2, "ab", X), "{mode}");
        assert_eq!((scene.leave(1, "ab"), scene.leave(1, "ab")), (GONE, Left::Already));
        assert!(scene.queue(2, "ab", X), "{mode}");
    }
}

#[test]
fn a_revocation_at_once_frees_that_lock_alone() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        assert!(scene.queue(1, "ab", mode));
        assert!(matches!(scene.revoke("a", When::Now), Revoked::Holds { left: Duration::ZERO, .. }));
        assert!(scene.ask(2, "a", X) && !scene.ask(3, "b", X), "{mode}");
        assert_eq!(scene.renew(1, "ab"), Renewal::NotHeld);
        assert_eq!((scene.leave(1, "ab"), scene.leave(1, "ab")), (GONE, Left::Already));
        assert!(scene.ask(3, "b", X) && scene.renew(2, "a") == Renewal::Renewed);
    }
}

#[test]
fn the_dead_are_reaped_in_all_their_locks_and_queues() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "ab", S) && !scene.queue(2, "abc", X) && !scene.queue(3, "bc", S));
    scene.table.reap(scene.now, &token(2));
    assert!(scene.queue(3, "bc", S));
    scene.table.reap(scene.now, &token(1));
    assert!(scene.ask(4, "a", X) && scene.record("b").waiters.is_empty());
}

#[test]
fn when_the_server_lost_the_holds_the_key_still_counts() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        assert!(scene.queue(1, "a", mode));
        scene.record("a").holds.clear();
        assert_eq!(scene.renew(1, "a"), Renewal::NotHeld, "{mode}");
        assert!(!scene.ask(2, "a", mode) && !scene.ask(3, "a", X), "{mode}");
        scene.revoke("a", When::Safe);
        assert!(!scene.ask(2, "a", mode), "{mode}");
        scene.pass(30_000);
        assert!(scene.ask(2, "a", mode), "{mode}");
    }
}

#[test]
fn a_released_token_is_refused_for_ten_minutes_at_any_of_its_locks() {
    let mut scene = Scene::new();
    assert_eq!((scene.leave(1, "ab"), scene.leave(1, "ab")), (Left::NotHeld, Left::NotHeld));
    assert_eq!(scene.acquire(1, "ab", X, Patience::Queue), Acquired::TokenEnded);
    scene.pass(599_999);
    assert_eq!(scene.acquire(1, "ab", X, Patience::Queue), Acquired::TokenEnded);
    scene.pass(2);
    assert!(scene.queue(1, "ab", X));
}

#[test]
fn a_fence_outgrows_a_clock_that_goes_back() {
    let mut scene = Scene::new();
    let mut last = 0;
    for who in 1..5 {
        assert!(scene.queue(who, if who % 2 == 0 { "ab" } else { "b" }, X));
        let fence = scene.record("b").fence;
        assert!(fence > last);
        last = fence;
        scene.leave(who, "ab");
        scene.now = Time(scene.now.0 - 5_000_000);
    }
}

/// A store whose leases are sessions decides which leases are over, whatever a record or a clock
/// says.
#[test]
fn sessions_decide_which_leases_are_over() {
    for (mode, when) in [(X, None), (S, None), (Mode::Slots(1), None), (X, Some(When::Safe))] {
        let mut scene = Scene::new();
        assert!(scene.queue(1, "a", mode) && !scene.queue(2, "a", X));
        when.map(|when| scene.revoke("a", when));
        // By the record, its lease is over for long, and the waiter is stale.
        scene.pass(100_000);
        let (now, heard) = (scene.now, Due::after(scene.now, SILENCE));
        let record = scene.record("a");
        record.waiters.values_mut().for_each(|waiter| (waiter.silent, waiter.forget) = (heard, heard));
        record.judge(now, |_, _| Some(TTL));
        assert!(!scene.queue(2, "a", X), "{mode}, {when:?}");
        let expected = if when.is_some() { Renewal::Revoked } else { Renewal::Renewed };
        assert_eq!(scene.renew(1, "a"), expected, "{mode}");
        let now = scene.now;
        scene.record("a").judge(now, |_, _| None);
        assert_eq!(scene.renew(1, "a"), Renewal::NotHeld, "{mode}");
        assert!(scene.queue(2, "a", X), "{mode}, {when:?}");
        let ended = scene.seen("a").log[0].ended;
        assert!(when.is_some() || ended == now.millis(), "it ended when that was seen: {ended}");
    }
}

/// An unconfirmed grant does not last as long as its waiter lives.
#[test]
fn a_grant_that_is_not_confirmed_ends_in_a_session_too() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    scene.leave(1, "a");
    let now = scene.now;
    scene.record("a").judge(now, |_, _| Some(TTL));
    assert!(!scene.ask(3, "a", X));
    scene.pass(4_001);
    assert!(scene.ask(3, "a", X));
}

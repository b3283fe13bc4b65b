//! Tests of the order in which the rules grant a lock, and of when a waiter asks again.

use super::*;

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

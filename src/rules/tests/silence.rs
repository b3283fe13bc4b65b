//! Waiters that are not heard: when they are passed over, and when the store was away.

use super::*;

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

//! What shared locks and slots have in common with exclusive ones, and what not.

use super::*;
use std::ops::Range;

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

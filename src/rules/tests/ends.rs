//! How holds end: min-holds, revocations, deaths and lost records; and what a token and a fence are
//! good for after that.

use super::*;

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
fn no_renewal_extends_what_a_late_request_was_granted() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        let fence = |scene: &mut Scene| scene.record("a").holds.get(&token(1)).map(|hold| Fence(hold.fence));
        let renew = |scene: &mut Scene, fence| {
            let renew = Renew { token: &token(1), fence, ttl: TTL, rest: None };
            scene.table.renew(scene.now, &Scene::names("ab"), &renew)
        };
        assert!(scene.queue(1, "ab", mode));
        let first = fence(&mut scene);
        assert_eq!(renew(&mut scene, first), Renewal::Renewed);
        scene.pass(31_000);
        assert!(scene.ask(2, "b", mode));
        scene.leave(2, "b");
        assert!(scene.queue(1, "ab", mode), "the request arrives again");
        let second = fence(&mut scene);
        assert!(second > first);
        assert_eq!(renew(&mut scene, first), Renewal::NotHeld, "{mode}");
        assert_eq!(renew(&mut scene, second), Renewal::Renewed, "{mode}");
        let end = End { fence: first, ..RAN };
        assert_eq!(scene.table.leave(scene.now, &Scene::names("ab"), &token(1), &end), Left::NotHeld);
        assert_eq!(scene.record("a").log.len(), 1, "that it expired");
        assert!(scene.ask(3, "ab", mode), "{mode}");
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
        let never = End { ran: Ran::No, job: None, once_per: false, fence: None, pause: None };
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
        record.waiters.values_mut().for_each(|waiter| (waiter.stale_at, waiter.forget) = (heard, heard));
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

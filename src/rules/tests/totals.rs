//! Totals, an operator's request, and watchers.

use super::*;
use crate::exit::Ended;
use crate::rules::stat::{BOUNDS, Histogram, Stat};

const HOUR: Duration = Duration::from_secs(3600);

impl Scene {
    fn stat(&mut self, lock: &str) -> Stat {
        self.seen(lock).stat
    }

    /// Ends a hold with this end of its job.
    fn finish(&mut self, who: u32, locks: &str, job: Option<Ended>) -> Left {
        self.table.leave(
            self.now,
            &Self::names(locks),
            &token(who),
            &End { ran: Ran::Yes, job, once_per: false, fence: None, pause: None },
        )
    }

    fn fence(&mut self, lock: &str, who: u32) -> Fence {
        Fence(self.record(lock).holds.get(&token(who)).map_or(0, |hold| hold.fence))
    }

    fn request(&mut self, lock: &str, fence: Fence, by: u32) -> Requested {
        let by = Owner { pid: by, ..Owner::default() };
        self.table.request(self.now, &name(lock), fence, &by)
    }
}

/// The outcomes so far, and the number of ends.
fn ends(stat: &Stat) -> (Vec<Outcome>, u64) {
    (stat.last.keys().copied().collect(), stat.held.count())
}

#[test]
fn a_grant_counts_once_when_confirmed() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    assert_eq!(scene.stat("a").grants, 1);
    scene.pass(50);
    scene.leave(1, "a");
    assert_eq!(scene.stat("a").grants, 1, "granted, and not heard of");
    // The reply is lost, and the confirmation comes again.
    assert!(scene.queue(2, "a", X) && scene.queue(2, "a", X));
    let stat = scene.stat("a");
    assert_eq!((stat.grants, stat.waited_ms), (2, 50));
    // A grant that is never confirmed does not count.
    assert!(!scene.queue(3, "a", X));
    scene.leave(2, "a");
    scene.pass(10_000);
    assert_eq!(scene.stat("a").grants, 2);
    assert_eq!(scene.stat("a").held.count(), 2);
}

#[test]
fn a_renewal_that_confirms_counts_the_grant() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    scene.leave(1, "a");
    assert_eq!((scene.renew(2, "a"), scene.renew(2, "a")), (Renewal::Renewed, Renewal::Renewed));
    assert_eq!(scene.stat("a").grants, 2);
}

#[test]
fn a_refusal_is_counted_at_the_blocking_lock() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "b", X));
    assert!(!scene.ask(2, "abc", X) && !scene.ask(3, "ab", X));
    assert_eq!(["a", "b", "c"].map(|lock| scene.stat(lock).busy), [0, 2, 0]);
    assert!(!scene.queue(4, "b", X), "who waits is not refused");
    assert_eq!(scene.stat("b").busy, 2);
}

#[test]
fn a_waiter_that_leaves_is_counted_once_and_at_one_lock() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "ab", X) && !scene.queue(2, "ab", X));
    assert_eq!((scene.leave(2, "ab"), scene.leave(2, "ab")), (Left::Dequeued, Left::NotHeld));
    assert_eq!(["a", "b"].map(|lock| scene.stat(lock).given_up), [1, 0]);
    scene.leave(1, "ab");
    assert_eq!(scene.leave(9, "ab"), Left::NotHeld);
    assert_eq!(scene.stat("a").given_up, 1, "neither holders nor strangers give up");
}

#[test]
fn jobs_are_counted_by_how_they_ended() {
    let mut scene = Scene::new();
    let jobs =
        [Some(Ended::Code(0)), Some(Ended::Code(1)), Some(Ended::Signal(9)), None, Some(Ended::Code(0))];
    let mut at = Vec::new();
    for (who, job) in (1..).zip(jobs) {
        assert!(scene.queue(who, "a", X));
        scene.pass(1000);
        at.push(scene.now.millis());
        assert_eq!((scene.finish(who, "a", job), scene.finish(who, "a", job)), (GONE, Left::Already));
    }
    let stat = scene.stat("a");
    assert_eq!((stat.succeeded, stat.failed), (2, 2));
    assert_eq!((stat.last_success, stat.last_failure), (Some(at[4]), Some(at[2])));
    assert_eq!((ends(&stat), stat.held.sum), ((vec![Outcome::Released], 5), 5000));
    // A command that never ran does not count as an end.
    assert!(scene.queue(9, "a", X));
    scene.table.leave(
        scene.now,
        &Scene::names("a"),
        &token(9),
        &End { ran: Ran::No, job: None, once_per: false, fence: None, pause: None },
    );
    let stat = scene.stat("a");
    assert_eq!((stat.grants, stat.held.count()), (6, 5));
}

/// Whatever its status, a job that did not end by itself has failed.
#[test]
fn jobs_that_did_not_end_by_themselves_have_failed() {
    let mut scene = Scene::new();
    let cut = [Outcome::Crashed, Outcome::Timeout, Outcome::Stopped, Outcome::Lost];
    for (who, (outcome, job)) in (1..).zip(cut.into_iter().zip([None, Some(Ended::Code(0)), None, None])) {
        assert!(scene.queue(who, "a", X));
        scene.pass(1000);
        let end = End { ran: Ran::Cut(outcome), job, once_per: false, fence: None, pause: None };
        assert_eq!(scene.table.leave(scene.now, &Scene::names("a"), &token(who), &end), GONE);
    }
    assert!(scene.queue(9, "a", X));
    scene.pass(60_000);
    let stat = scene.stat("a");
    assert_eq!((stat.succeeded, stat.failed), (0, 5));
    assert_eq!(stat.last_failure, stat.last.get(&Outcome::Expired).copied());
    assert_eq!((ends(&stat).0.len(), ends(&stat).1), (5, 5));
    // A min-hold stands, as after an end by itself.
    let mut scene = Scene::new();
    scene.min_hold = Duration::from_secs(60);
    assert!(scene.ask(1, "a", X));
    let end = End { ran: Ran::Cut(Outcome::Crashed), job: None, once_per: false, fence: None, pause: None };
    let left = scene.table.leave(scene.now, &Scene::names("a"), &token(1), &end);
    assert!(matches!(left, Left::Released { cooling } if !cooling.is_zero()), "{left:?}");
}

#[test]
fn an_expired_lease_counts_its_length_whenever_it_is_noticed() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", S) && scene.queue(2, "a", S));
    let since = scene.record("a").holds[&token(2)].since.millis();
    scene.pass(3_600_000);
    let seen = scene.stat("a");
    assert_eq!((ends(&seen), seen.held.sum), ((vec![Outcome::Expired], 2), 60_000));
    assert_eq!(seen.last[&Outcome::Expired], since + 30_000);
    // An operation records what the view showed.
    assert!(scene.ask(3, "a", X));
    let stat = scene.stat("a");
    assert_eq!((&stat.held, &stat.last), (&seen.held, &seen.last));
}

#[test]
fn a_hold_taken_away_ends_once() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    scene.revoke("a", When::Safe);
    scene.pass(100);
    assert_eq!(scene.finish(1, "a", Some(Ended::Code(0))), GONE);
    scene.pass(60_000);
    assert!(scene.ask(2, "a", X));
    let stat = scene.stat("a");
    assert_eq!((ends(&stat), stat.succeeded), ((vec![Outcome::Forced], 1), 0));
}

#[test]
fn a_cooling_hold_does_not_end_again() {
    for mode in [X, S, Mode::Slots(2)] {
        let mut scene = Scene::new();
        scene.min_hold = Duration::from_secs(60);
        assert!(scene.ask(1, "a", mode));
        scene.pass(100);
        scene.leave(1, "a");
        scene.pass(60_001);
        assert!(scene.ask(2, "a", mode));
        let stat = scene.stat("a");
        assert_eq!((ends(&stat), stat.held.sum), ((vec![Outcome::Released], 1), 100), "{mode}");
    }
}

#[test]
fn a_bucket_includes_its_bound() {
    let mut spans = Histogram::default();
    for bound in BOUNDS {
        spans.add(Duration::from_millis(bound));
        spans.add(Duration::from_millis(bound + 1));
    }
    assert_eq!(spans.buckets, [1, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert_eq!((spans.count(), spans.sum), (16, 2 * BOUNDS.iter().sum::<u64>() + 8));
    assert!(BOUNDS.is_sorted());
}

#[test]
fn a_request_reaches_the_hold_that_was_shown() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", S) && scene.queue(2, "a", S));
    let shown = scene.fence("a", 1);
    assert_eq!(scene.request("a", shown, 71), Requested::Asked);
    assert_eq!((scene.renew(1, "a"), scene.renew(2, "a")), (Renewal::Asked, Renewal::Renewed));
    assert_eq!(scene.renew(1, "a"), Renewal::Asked, "until it ends");
    // The first operator to ask is recorded.
    assert_eq!(scene.request("a", shown, 72), Requested::Asked);
    let holders = scene.seen("a").holders;
    let asked: Vec<_> = holders.iter().map(|holder| holder.asked.as_ref().map(|by| by.pid)).collect();
    assert_eq!(asked, [Some(71), None]);
    scene.leave(1, "a");
    assert_eq!(scene.request("a", shown, 71), Requested::Gone);
    scene.leave(2, "a");
    let by: Vec<_> = scene.record("a").log.iter().map(|end| end.by.as_ref().map(|by| by.pid)).collect();
    assert_eq!(by, [None, Some(71)]);
}

#[test]
fn a_request_for_one_of_several_locks_asks_for_the_hold() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "ab", X));
    let shown = scene.fence("b", 1);
    assert_eq!(scene.request("b", shown, 71), Requested::Asked);
    assert_eq!(scene.renew(1, "ab"), Renewal::Asked);
}

#[test]
fn a_request_does_not_reach_a_hold_that_is_over() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    let shown = scene.fence("a", 1);
    assert_eq!(scene.request("a", Fence(shown.0 + 1), 71), Requested::Gone);
    scene.pass(4_000);
    assert!(!scene.queue(2, "a", X));
    scene.pass(26_000);
    assert_eq!(scene.request("a", shown, 71), Requested::Gone, "its lease has run out");
    assert!(scene.queue(3, "b", X));
    let shown = scene.fence("b", 3);
    scene.revoke("b", When::Safe);
    assert_eq!(scene.request("b", shown, 71), Requested::Gone, "it was taken away");
}

#[test]
fn a_watch_lasts_until_it_is_not_renewed() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X) && !scene.queue(2, "a", X));
    let before = scene.record("a").clone();
    let watches = |scene: &mut Scene, who| scene.table.watch(scene.now, &name("a"), &token(who));
    watches(&mut scene, 7);
    scene.pass(10_000);
    watches(&mut scene, 8);
    scene.pass(5_000);
    watches(&mut scene, 8);
    scene.pass(1);
    watches(&mut scene, 9);
    let watchers: Vec<_> = scene.record("a").watchers.keys().cloned().collect();
    assert_eq!(watchers, [8, 9].map(token));
    // A watch has no other effect: no grant, no count, no heartbeat.
    scene.record("a").watchers.clear();
    assert_eq!(*scene.record("a"), before);
}

/// The record was forged.
#[test]
fn totals_at_their_end_stop_there() {
    let mut scene = Scene::new();
    assert!(scene.queue(1, "a", X));
    let most = Histogram { buckets: [u64::MAX; BOUNDS.len() + 1], sum: u64::MAX };
    let (busy, succeeded, grants) = (u64::MAX, u64::MAX, u64::MAX);
    scene.record("a").stat =
        Stat { grants, waited_ms: u64::MAX, held: most, busy, succeeded, ..Stat::default() };
    scene.ask(2, "a", X);
    scene.finish(1, "a", Some(Ended::Code(0)));
    let stat = scene.stat("a");
    assert_eq!((stat.busy, stat.succeeded, stat.held.buckets[0]), (u64::MAX, u64::MAX, u64::MAX));
    assert_eq!((stat.grants, stat.waited_ms), (u64::MAX, u64::MAX));
}

#[test]
fn a_forgotten_success_does_not_count_again_when_the_log_has_lost_it() {
    let mut scene = Scene::new();
    scene.terms.once_per = Some(HOUR);
    assert!(scene.queue(1, "a", X));
    let success = End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: true, fence: None, pause: None };
    scene.table.leave(scene.now, &Scene::names("a"), &token(1), &success);
    let is_done = |scene: &mut Scene| scene.seen("a").is_done_for(scene.now.millis(), HOUR);
    assert!(is_done(&mut scene));
    assert!(scene.table.forget_success(scene.now, &name("a")));
    for who in 2..70 {
        assert!(!is_done(&mut scene), "{who}");
        scene.pass(1);
        assert!(scene.queue(who, "a", X));
        scene.finish(who, "a", Some(Ended::Code(1)));
    }
    // A run without --once-per counts as long as the log has it.
    scene.terms.once_per = None;
    assert!(scene.queue(70, "a", X));
    scene.finish(70, "a", Some(Ended::Code(0)));
    assert!(is_done(&mut scene));
}

//! What should have run: each timeline in which a job is overdue, or must not be called so.

use super::*;
use crate::exit::Ended;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const SUCCESS: End =
    End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: true, fence: None, pause: None };
const FAILURE: End =
    End { ran: Ran::Yes, job: Some(Ended::Code(1)), once_per: true, fence: None, pause: None };

impl Scene {
    fn expecting(every: u64) -> Self {
        let mut scene = Self::new();
        scene.ttl = Duration::from_millis(90 * DAY);
        scene.expect(every)
    }

    /// From now on runs expect a success this often.
    fn expect(mut self, every: u64) -> Self {
        self.terms.expect = Some(Duration::from_millis(every));
        self
    }

    /// A run of this length.
    #[track_caller]
    fn job(&mut self, who: u32, takes: u64, end: &End) {
        assert!(self.ask(who, "a", X));
        self.pass(takes);
        assert_eq!(self.table.leave(self.now, &Self::names("a"), &token(who), end), GONE);
    }

    fn overdue(&mut self) -> Option<bool> {
        self.seen("a").overdue()
    }
}

/// Granted at 03:00, and takes seven hours, each day.
#[test]
fn a_long_job_that_runs_each_day_is_never_overdue() {
    let mut scene = Scene::expecting(DAY);
    for night in 0..5 {
        scene.job(night, 7 * HOUR, &SUCCESS);
        scene.pass(17 * HOUR - 1);
        assert_eq!(scene.overdue(), Some(false));
    }
    // The last one ended 17 hours ago, less a millisecond.
    scene.pass(13 * HOUR + 1);
    assert_eq!(scene.overdue(), Some(false), "late by a quarter, and not by more");
    scene.pass(1);
    assert_eq!(scene.overdue(), Some(true));
}

#[test]
fn a_lock_is_retired_once() {
    let mut scene = Scene::expecting(DAY);
    scene.job(1, HOUR, &SUCCESS);
    for was_expected in [true, false] {
        assert_eq!(scene.table.retire(Scene::names("a").first()), was_expected);
        assert_eq!(scene.overdue(), None);
    }
}

#[test]
fn a_job_of_each_minute_does_not_flap() {
    let mut scene = Scene::expecting(MINUTE);
    for minute in 0..10 {
        scene.job(minute, if minute % 2 == 0 { 20_000 } else { 1_000 }, &SUCCESS);
        scene.pass(if minute % 2 == 0 { 40_000 } else { 59_000 });
        assert_eq!(scene.overdue(), Some(false));
    }
    scene.pass(29_000);
    assert_eq!(scene.overdue(), Some(false));
    scene.pass(3_000);
    assert_eq!(scene.overdue(), Some(true));
}

/// `day` on weekdays, with `--expect 3d`.
#[test]
fn a_weekend_is_not_overdue_if_three_days_are_expected() {
    let mut scene = Scene::expecting(3 * DAY);
    scene.job(1, HOUR, &SUCCESS);
    scene.pass(71 * HOUR);
    assert_eq!(scene.overdue(), Some(false));
    scene.pass(DAY);
    assert_eq!(scene.overdue(), Some(true));
}

#[test]
fn what_is_forgotten_is_not_overdue() {
    let mut scene = Scene::expecting(DAY);
    scene.terms.once_per = Some(Duration::from_millis(DAY / 2));
    scene.job(1, HOUR, &SUCCESS);
    scene.pass(HOUR);
    assert!(scene.table.forget_success(scene.now, &name("a")));
    assert_eq!((scene.seen("a").success, scene.overdue()), (None, Some(false)));
}

/// Without a success the time counts from the first run that named one, whatever came after.
#[test]
fn a_job_that_never_succeeded_is_overdue_since_it_was_first_expected() {
    let mut scene = Scene::expecting(31 * DAY);
    for day in 0..38 {
        scene.job(day, HOUR, &FAILURE);
        scene.pass(DAY - HOUR);
        assert_eq!(scene.overdue(), Some(false), "{day}");
    }
    scene.pass(DAY);
    assert_eq!(scene.overdue(), Some(true));
    // A run that says something else does not begin anew.
    let mut scene = scene.expect(30 * DAY);
    scene.job(50, HOUR, &FAILURE);
    assert_eq!(scene.overdue(), Some(true));
    scene.job(51, HOUR, &SUCCESS);
    assert_eq!(scene.overdue(), Some(false));
}

/// A clock that was years ahead must not silence it for years, a small step back says nothing.
#[test]
fn a_success_by_a_clock_that_was_wrong_is_none() {
    let mut scene = Scene::expecting(DAY);
    scene.job(1, HOUR, &SUCCESS);
    let right = scene.now;
    scene.now = Time(right.0 - HOUR * 1000);
    assert_eq!(scene.overdue(), Some(false));
    scene.now = Time(right.0 - 1000 * DAY * 1000);
    assert_eq!(scene.overdue(), Some(true));
    scene.job(2, HOUR, &SUCCESS);
    assert_eq!(scene.overdue(), Some(false));
}

/// A success without `--once-per`, also one of a run that expects nothing, is one.
#[test]
fn any_success_counts() {
    let mut scene = Scene::expecting(HOUR);
    scene.job(1, MINUTE, &FAILURE);
    scene.pass(2 * HOUR);
    assert_eq!(scene.overdue(), Some(true));
    scene.terms = Terms::default();
    scene.job(2, MINUTE, &End { once_per: false, ..SUCCESS });
    assert_eq!(scene.overdue(), Some(false));
}

/// `hour`, then `day` during a rollout: granted, refused or done.
#[test]
fn the_last_run_that_says_so_decides() {
    let every = |scene: &mut Scene| scene.seen("a").expected.map(|expected| millis(expected.every));
    let mut scene = Scene::expecting(HOUR);
    assert!(scene.ask(1, "a", X));
    let since = scene.seen("a").expected.map(|expected| expected.since);
    let mut scene = scene.expect(DAY);
    assert!(!scene.ask(2, "a", X));
    assert_eq!(every(&mut scene), Some(DAY), "refused");
    // A waiter says it when it comes and when it is granted, not with each heartbeat.
    let mut scene = scene.expect(2 * DAY);
    assert!(!scene.queue(3, "a", X));
    let mut scene = scene.expect(3 * DAY);
    assert!(!scene.ask(4, "a", X));
    let mut scene = scene.expect(2 * DAY);
    assert!(!scene.queue(3, "a", X));
    assert_eq!(every(&mut scene), Some(3 * DAY));
    scene.table.leave(scene.now, &Scene::names("a"), &token(1), &SUCCESS);
    assert!(scene.queue(3, "a", X));
    assert_eq!(every(&mut scene), Some(2 * DAY));
    scene.table.leave(scene.now, &Scene::names("a"), &token(3), &SUCCESS);
    // Done.
    let mut scene = scene.expect(HOUR);
    scene.terms.once_per = Some(Duration::from_millis(HOUR));
    assert!(matches!(scene.acquire(5, "a", X, Patience::None), Acquired::Done(_)));
    assert_eq!(every(&mut scene), Some(HOUR));
    assert_eq!(scene.seen("a").expected.map(|expected| expected.since), since);
    // One that says nothing changes nothing, and 0 ends it.
    scene.terms = Terms::default();
    scene.job(6, 1, &SUCCESS);
    assert_eq!(every(&mut scene), Some(HOUR));
    let mut scene = scene.expect(0);
    scene.job(7, 1, &SUCCESS);
    assert_eq!((every(&mut scene), scene.overdue()), (None, None));
}

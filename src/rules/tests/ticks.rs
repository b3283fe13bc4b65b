//! `--once-per`: each tick of a timetable is done once, and none is lost.

mod explored;

use super::*;
use crate::exit::Ended;
use crate::lock::Period;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const SUCCESS: End =
    End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: true, fence: None, pause: None };
const FAILURE: End =
    End { ran: Ran::Yes, job: Some(Ended::Code(1)), once_per: true, fence: None, pause: None };

/// Runs of one lock, by the minutes of a clock. A run has no place in a queue between two of its
/// requests here: it says how long it has waited.
struct Day {
    scene: Scene,
    began: Time,
    back: u64,
}

impl Day {
    fn new(span: u64) -> Self {
        let mut scene = Scene::new();
        scene.ttl = Duration::from_millis(90 * 24 * HOUR);
        scene.terms.once_per = Some(Duration::from_millis(span));
        Self { began: scene.now, scene, back: 0 }
    }

    /// The answer to a run that arrived at one time and asks at another one.
    fn ask(&mut self, who: u32, came: u64, at: u64) -> Acquired {
        self.scene.now = Time(self.began.0 + (at - self.back) * 1000);
        self.scene.waited = Duration::from_millis(at - came);
        let answer = self.scene.acquire(who, "k", X, Patience::None);
        if let Acquired::Granted(grant) = &answer {
            assert_eq!(millis(grant.waited), at - came);
        }
        answer
    }

    #[track_caller]
    fn runs(&mut self, who: u32, came: u64, at: u64) {
        let answer = self.ask(who, came, at);
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }

    #[track_caller]
    fn waits(&mut self, who: u32, at: u64) {
        let answer = self.ask(who, at, at);
        assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
    }

    #[track_caller]
    fn skips(&mut self, who: u32, came: u64, at: u64) {
        let answer = self.ask(who, came, at);
        assert!(matches!(answer, Acquired::Done(_)), "{answer:?}");
    }

    #[track_caller]
    fn ends(&mut self, who: u32, at: u64, end: &End) {
        self.scene.now = Time(self.began.0 + (at - self.back) * 1000);
        assert_eq!(self.scene.table.leave(self.scene.now, &Scene::names("k"), &token(who), end), GONE);
    }
}

/// A run of two locks that is done at both names the lock at which it is due first, and of equals the
/// first one.
#[test]
fn the_lock_that_is_due_first_is_named() {
    for (ran, named, minutes) in [(["a", "b"], 0, 40), (["b", "a"], 1, 40), (["ab", "ab"], 0, 50)] {
        let mut scene = Scene::new();
        scene.ttl = Duration::from_millis(24 * HOUR);
        scene.terms.once_per = None;
        for (who, locks) in (1..).zip(ran) {
            assert!(scene.ask(who, locks, X));
            assert_eq!(scene.table.leave(scene.now, &Scene::names(locks), &token(who), &SUCCESS), GONE);
            scene.pass(10 * MINUTE);
        }
        scene.terms.once_per = Some(Duration::from_millis(HOUR));
        let answer = scene.acquire(3, "ab", X, Patience::None);
        let is_it = |done: &Done| (done.at, millis(done.due)) == (named, minutes * MINUTE);
        assert!(matches!(&answer, Acquired::Done(done) if is_it(done)), "{ran:?}: {answer:?}");
    }
}

#[test]
fn a_stand_by_does_not_repeat_the_run_that_it_stood_by_for() {
    let mut day = Day::new(2_000);
    day.runs(1, 0, 0);
    day.waits(2, 1);
    day.waits(3, 2);
    day.ends(1, 3_000, &SUCCESS);
    day.skips(2, 1, 3_000);
    day.skips(3, 2, 3_100);
    day.runs(4, 3_200, 3_200);
}

#[test]
fn a_job_of_ninety_minutes_delays_the_next_hour() {
    let mut day = Day::new(HOUR / 2);
    day.runs(1, 0, 0);
    day.waits(2, HOUR);
    day.ends(1, 90 * MINUTE, &SUCCESS);
    day.runs(2, HOUR, 90 * MINUTE);
    // Every job takes so long: back to back, one tick behind at most. A run that arrives in the
    // moment of a grant may be skipped.
    day.waits(3, 2 * HOUR);
    day.ends(2, 3 * HOUR, &SUCCESS);
    day.runs(3, 2 * HOUR, 3 * HOUR);
    day.waits(4, 3 * HOUR + 1);
    day.ends(3, 270 * MINUTE, &SUCCESS);
    day.runs(4, 3 * HOUR + 1, 270 * MINUTE);
}

#[test]
fn ticks_that_arrive_while_an_earlier_one_waits_are_done_by_one_run() {
    let mut day = Day::new(HOUR / 2);
    day.runs(1, 0, 0);
    day.waits(2, HOUR);
    day.waits(3, 2 * HOUR);
    day.ends(1, 150 * MINUTE, &SUCCESS);
    day.runs(2, HOUR, 150 * MINUTE);
    day.ends(2, 151 * MINUTE, &SUCCESS);
    day.skips(3, 2 * HOUR, 151 * MINUTE);
    day.runs(4, 3 * HOUR, 3 * HOUR);
}

#[test]
fn the_night_after_a_job_of_25_hours_runs() {
    let mut day = Day::new(12 * HOUR);
    day.runs(1, 0, 0);
    day.waits(2, 24 * HOUR);
    day.ends(1, 25 * HOUR, &SUCCESS);
    day.runs(2, 24 * HOUR, 25 * HOUR);
}

#[test]
fn a_stand_by_that_was_granted_late_does_not_cost_the_next_tick() {
    let mut day = Day::new(HOUR / 2);
    day.runs(1, 0, 0);
    day.waits(2, 1);
    let pause = Some(FailurePause { lasts: Duration::from_secs(40 * 60), reason: "exit 1".into() });
    day.ends(1, MINUTE, &End { pause, ..FAILURE });
    day.waits(2, 40 * MINUTE);
    day.runs(2, 1, 41 * MINUTE);
    day.ends(2, 42 * MINUTE, &SUCCESS);
    day.runs(3, HOUR, HOUR);
}

#[test]
fn after_a_freeze_of_days_one_run_catches_up_and_the_next_night_runs() {
    let mut day = Day::new(12 * HOUR);
    let pause = NewPause { by: &Owner::default(), lasts: Duration::from_millis(61 * HOUR), shortens: false };
    day.scene.table.pause(day.began, &name("k"), Some(pause));
    (1..).zip([0, 24, 48]).for_each(|(who, night)| day.waits(who, night * HOUR));
    // 03:00 is the beginning; it is opened at 16:00.
    day.runs(1, 0, 61 * HOUR);
    day.ends(1, 62 * HOUR, &SUCCESS);
    day.skips(2, 24 * HOUR, 62 * HOUR);
    day.skips(3, 48 * HOUR, 62 * HOUR);
    day.runs(4, 72 * HOUR, 72 * HOUR);
}

#[test]
fn a_rerun_by_hand_counts_for_half_a_day() {
    for (hour, night_runs) in [(7, true), (13, false)] {
        let mut day = Day::new(12 * HOUR);
        day.runs(1, 0, 0);
        day.ends(1, HOUR, &SUCCESS);
        day.skips(2, 7 * HOUR, 7 * HOUR);
        assert!(day.scene.table.forget_success(day.scene.now, &name("k")));
        day.runs(2, hour * HOUR, hour * HOUR);
        day.ends(2, hour * HOUR + 1, &SUCCESS);
        if night_runs {
            day.runs(3, 24 * HOUR, 24 * HOUR);
        } else {
            day.skips(3, 24 * HOUR, 24 * HOUR);
        }
    }
}

#[test]
fn a_span_may_be_a_limit() {
    let mut day = Day::new(6 * 24 * HOUR);
    day.runs(1, 0, 0);
    day.ends(1, HOUR, &SUCCESS);
    for at in (10..6 * 24 * 60).step_by(10) {
        day.skips(2, at * MINUTE, at * MINUTE);
    }
    day.runs(3, 6 * 24 * HOUR, 6 * 24 * HOUR);
}

/// `1h -w 4h` and a job of 50 minutes: a skip tells nothing about DUR, as ages are from arrival to arrival.
#[test]
fn a_stand_by_of_a_long_job_is_skipped_without_a_word() {
    let mut day = Day::new(HOUR);
    day.runs(1, 0, 0);
    day.waits(2, 400);
    day.ends(1, 50 * MINUTE, &SUCCESS);
    let Acquired::Done(done) = day.ask(2, 400, 50 * MINUTE) else { unreachable!("it is done") };
    assert_eq!(Notice::done(&done, Period::Span(Duration::from_secs(3600))), None);
}

#[test]
fn a_success_counts_by_the_clock_that_was_set_back_only_if_that_was_by_less_than_the_span() {
    let mut day = Day::new(HOUR / 2);
    day.runs(1, HOUR, HOUR);
    day.ends(1, HOUR + MINUTE, &SUCCESS);
    day.back = 5 * MINUTE;
    day.skips(2, HOUR + 2 * MINUTE, HOUR + 2 * MINUTE);
    day.runs(3, 2 * HOUR, 2 * HOUR);
    day.ends(3, 2 * HOUR + MINUTE, &SUCCESS);
    day.back = 40 * MINUTE;
    day.runs(4, 2 * HOUR + 2 * MINUTE, 2 * HOUR + 2 * MINUTE);
    day.ends(4, 2 * HOUR + 3 * MINUTE, &SUCCESS);
    // What was in the future is forgotten by a success of the present.
    day.skips(5, 2 * HOUR + 4 * MINUTE, 2 * HOUR + 4 * MINUTE);
    day.runs(6, 3 * HOUR, 3 * HOUR);
}

/// A run of two keys, of which one is done, may have arrived before the success of that one.
#[test]
fn the_arrival_of_a_success_does_not_go_back() {
    let mut scene = Scene::new();
    scene.terms.once_per = Some(Duration::from_secs(10));
    let leave = |scene: &mut Scene, who, locks| {
        assert_eq!(scene.table.leave(scene.now, &Scene::names(locks), &token(who), &SUCCESS), GONE);
    };
    scene.waited = Duration::from_secs(1);
    assert!(scene.ask(1, "a", X));
    scene.pass(1000);
    leave(&mut scene, 1, "a");
    scene.waited = Duration::from_secs(20);
    assert!(scene.ask(2, "ab", X));
    leave(&mut scene, 2, "ab");
    let success =
        |scene: &mut Scene, lock| scene.record(lock).success.clone().map(|last| (last.fence, last.waited));
    let second = success(&mut scene, "b");
    assert_eq!(second.map(|(_, waited)| waited), Some(20_000));
    assert_eq!(success(&mut scene, "a"), second.map(|(fence, _)| (fence, 2_000)));
}

/// The caller's clock runs ahead of the store's, or the store's is set back, while it waits.
#[test]
fn a_waiter_that_knows_its_place_is_not_dated_back() {
    let mut day = Day::new(30_000);
    day.runs(1, 0, 58_000);
    (day.scene.now, day.scene.waited) = (Time(day.began.0 + 60_000_000), Duration::ZERO);
    assert!(!day.scene.queue(2, "k", X));
    day.ends(1, 64_000, &SUCCESS);
    (day.scene.has_waited, day.scene.waited) = (true, Duration::from_secs(7));
    assert!(day.scene.queue(2, "k", X));
}

/// The job may run already.
#[test]
fn a_late_copy_after_a_clock_that_was_set_back_takes_no_hold() {
    let mut day = Day::new(HOUR / 2);
    day.runs(1, 0, 0);
    day.ends(1, 1, &SUCCESS);
    day.runs(2, 40 * MINUTE, 40 * MINUTE);
    day.runs(2, 25 * MINUTE, 25 * MINUTE);
}

/// The store stands still for longer than the period, with the first request of a run in its buffer.
#[test]
fn a_request_that_waited_for_the_store_arrived_when_it_was_sent() {
    let mut day = Day::new(HOUR / 2);
    day.runs(1, 0, 0);
    day.ends(1, 1, &SUCCESS);
    // The request says that it has not waited, and nobody hears the answer. The next request says more.
    day.runs(2, 40 * MINUTE, 40 * MINUTE);
    day.skips(2, MINUTE, 40 * MINUTE + 1);
    assert_eq!(day.scene.seen("k").state, State::Free);
    day.runs(3, HOUR, HOUR);
    day.ends(3, HOUR + 1, &FAILURE);
    // Nothing was done: it runs, and does not count for the next hour.
    let mut day = Day::new(HOUR / 2);
    let waited = |day: &mut Day, waited| {
        day.scene.waited = Duration::from_millis(waited);
        match day.scene.acquire(1, "k", X, Patience::None) {
            Acquired::Granted(grant) => millis(grant.waited),
            answer => unreachable!("{answer:?}"),
        }
    };
    day.runs(1, 40 * MINUTE, 40 * MINUTE);
    for said in [40 * MINUTE, 500, 0, 40 * MINUTE + 900] {
        assert_eq!(waited(&mut day, said), 40 * MINUTE, "{said}");
    }
    day.ends(1, 50 * MINUTE, &SUCCESS);
    day.runs(2, HOUR, HOUR);
}

#[test]
fn a_place_in_the_queue_tells_when_a_run_arrived() {
    let mut scene = Scene::new();
    scene.terms.once_per = Some(Duration::from_secs(3));
    assert!(scene.queue(1, "k", X));
    scene.waited = Duration::from_millis(500);
    assert!(!scene.queue(2, "k", X));
    for _ in 0..5 {
        scene.pass(1000);
        // Its machine stood still.
        scene.waited = Duration::ZERO;
        assert!(!scene.queue(2, "k", X));
    }
    assert_eq!(scene.table.leave(scene.now, &Scene::names("k"), &token(1), &FAILURE), GONE);
    assert!(scene.queue(2, "k", X));
    assert_eq!(scene.record("k").holds[&token(2)].waited, 5_500);
}

//! `--pause-on-failure`: which ends pause a lock, and until when; and `--during-pause`.

mod explored;

use super::*;
use crate::exit::Ended;
use crate::rules::answer::Cause;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Runs of one lock with `--pause-on-failure`, by the milliseconds of a clock.
struct Night {
    scene: Scene,
    began: Time,
}

impl Night {
    /// Each run that fails closes the lock for this long.
    fn new(lasts: u64) -> Self {
        let mut scene = Scene::new();
        scene.terms.pause_on_failure = Some(Duration::from_millis(lasts));
        Self { began: scene.now, scene }
    }

    /// The same with leases that outlast the night.
    fn with_long_leases(lasts: u64) -> Self {
        let mut night = Self::new(lasts);
        night.scene.ttl = Duration::from_millis(90 * DAY);
        night
    }

    fn at(&mut self, ms: u64) -> &mut Scene {
        self.scene.now = Time(self.began.0 + ms * 1000);
        &mut self.scene
    }

    fn runs(&mut self, who: u32, at: u64) {
        assert!(self.at(at).ask(who, "k", X), "{who}");
    }

    fn renews(&mut self, who: u32, at: u64) {
        assert_eq!(self.at(at).renew(who, "k"), Renewal::Renewed);
    }

    /// The job ends with this status, and its dlock says what becomes of the lock.
    fn ends(&mut self, who: u32, at: u64, status: u8) -> Left {
        let lasts = self.scene.terms.pause_on_failure.filter(|_| status != 0);
        let pause = lasts.map(|lasts| FailurePause { lasts, reason: format!("exit {status}") });
        let end = End { job: Some(Ended::Code(status)), pause, ..RAN };
        let scene = self.at(at);
        scene.table.leave(scene.now, &Scene::names("k"), &token(who), &end)
    }

    fn freezes(&mut self, at: u64, lasts: u64, shortens: bool) {
        let by = Owner { pid: 99, reason: Some("freeze".into()), ..Owner::default() };
        let pause = NewPause { by: &by, lasts: Duration::from_millis(lasts), shortens };
        let scene = self.at(at);
        scene.table.pause(scene.now, &name("k"), Some(pause));
    }

    /// Until when the lock is paused, why, and the reason, as a view shows it. An operation that
    /// writes finds the same.
    fn paused(&mut self, at: u64) -> Option<(u64, Cause, String)> {
        let began = self.began.millis();
        let seen = self.at(at).seen("k").paused;
        let scene = self.at(at);
        scene.table.forget_success(scene.now, &name("k"));
        assert_eq!(scene.record("k").paused, seen);
        seen.map(|pause| (pause.until - began, pause.cause, pause.by.reason.unwrap_or_default()))
    }

    #[track_caller]
    fn shut_until(&mut self, at: u64, until: u64, cause: Cause) {
        let paused = self.paused(at);
        assert!(paused.as_ref().is_some_and(|paused| (paused.0, paused.1) == (until, cause)), "{paused:?}");
        assert!(!self.at(at).ask(98, "k", X));
        assert!(!self.at(until - 1).ask(98, "k", X));
    }

    #[track_caller]
    fn open(&mut self, at: u64) {
        assert_eq!(self.paused(at), None);
        assert!(self.at(at).ask(97, "k", X));
    }
}

#[test]
fn a_failure_pauses_the_lock_and_a_success_does_not() {
    for mode in [X, Mode::Slots(2)] {
        let mut night = Night::with_long_leases(40 * MINUTE);
        assert!(night.scene.queue(1, "k", mode) && (mode != X || !night.scene.queue(2, "k", mode)));
        assert_eq!(night.ends(1, 10, 1), GONE);
        assert_eq!(night.paused(10), Some((40 * MINUTE + 10, Cause::Failure, "exit 1".into())));
        assert_eq!(night.at(20).seen("k").state, State::Paused);
        // A waiter keeps its place.
        assert!(!night.at(30).queue(2, "k", mode) && !night.at(40).queue(3, "k", mode));
        assert!(!night.at(40 * MINUTE + 8).queue(2, "k", mode));
        assert!(!night.at(40 * MINUTE + 9).queue(3, "k", mode) || mode != X);
        assert!(night.at(40 * MINUTE + 10).queue(2, "k", mode));
        assert_eq!(night.ends(2, 41 * MINUTE, 0), GONE);
        assert!(night.at(41 * MINUTE).queue(3, "k", mode));
    }
}

#[test]
fn all_of_several_locks_are_paused() {
    let mut night = Night::new(MINUTE);
    assert!(night.scene.ask(1, "kl", X));
    let pause = Some(FailurePause { lasts: Duration::from_secs(60), reason: "exit 1".into() });
    let end = End { ran: Ran::No, pause, ..RAN };
    let now = night.scene.now;
    assert_eq!(night.scene.table.leave(now, &Scene::names("kl"), &token(1), &end), GONE);
    assert!(!night.scene.ask(2, "k", X) && !night.scene.ask(2, "l", X));
    assert!(night.scene.record("k").log.is_empty(), "the command did not run (126, 127)");
}

#[test]
fn a_freeze_that_lasts_longer_keeps_its_end_and_its_reason() {
    let mut night = Night::with_long_leases(10 * MINUTE);
    night.runs(1, 0);
    night.freezes(MINUTE, 3 * DAY, false);
    night.ends(1, 2 * MINUTE, 1);
    assert_eq!(night.paused(3 * MINUTE), Some((3 * DAY + MINUTE, Cause::Operator, "freeze".into())));
}

#[test]
fn a_freeze_that_ends_earlier_gets_the_later_end_and_keeps_its_reason() {
    let mut night = Night::with_long_leases(DAY);
    night.runs(1, 0);
    night.freezes(MINUTE, HOUR, false);
    night.ends(1, 2 * MINUTE, 1);
    assert_eq!(night.paused(3 * MINUTE), Some((DAY + 2 * MINUTE, Cause::Operator, "freeze".into())));
}

#[test]
fn an_operator_shortens_a_pause_only_on_purpose() {
    let mut night = Night::with_long_leases(8 * HOUR);
    night.runs(1, 0);
    night.ends(1, MINUTE, 1);
    night.freezes(HOUR, HOUR, false);
    let until = |paused: Option<(u64, Cause, String)>| paused.map(|(until, cause, _)| (until, cause));
    assert_eq!(until(night.paused(HOUR)), Some((8 * HOUR + MINUTE, Cause::Operator)));
    night.freezes(HOUR, HOUR, true);
    night.shut_until(HOUR, 2 * HOUR, Cause::Operator);
    night.open(2 * HOUR);
}

#[test]
fn a_lease_that_ran_out_pauses_from_its_end_whenever_that_is_noticed() {
    for (noticed, is_shut) in [(MINUTE, true), (8 * HOUR, true), (24 * HOUR, false)] {
        let mut night = Night::new(8 * HOUR);
        night.runs(1, 0);
        night.renews(1, 10_000);
        if is_shut {
            night.shut_until(noticed, 8 * HOUR + 40_000, Cause::Failure);
        } else {
            night.open(noticed);
        }
    }
    let mut night = Night::new(8 * HOUR);
    night.runs(1, 0);
    night.renews(1, 10_000);
    let reason = |paused: Option<(u64, Cause, String)>| paused.map(|paused| paused.2);
    assert_eq!(reason(night.paused(MINUTE)).as_deref(), Some("failed on : its lease ran out"));
}

#[test]
fn a_hold_that_was_lost_before_another_run_pauses_nothing() {
    for was_shut in [false, true] {
        let lasts = Some(Duration::from_secs(9 * 60));
        let mut night = Night::new(HOUR);
        night.scene.terms.pause_on_failure = lasts.filter(|_| was_shut);
        night.runs(1, 0);
        night.renews(1, 10_000);
        if was_shut {
            night.shut_until(MINUTE, 9 * MINUTE + 40_000, Cause::Failure);
        }
        night.runs(2, 10 * MINUTE);
        assert_eq!(night.ends(2, 10 * MINUTE + 9000, 0), GONE);
        // The old one's guard gives back what it does not hold.
        night.scene.terms.pause_on_failure = lasts;
        assert_eq!(night.ends(1, 2 * HOUR, 1), Left::NotHeld);
        night.open(2 * HOUR);
    }
}

/// Others are merely busy before.
#[test]
fn the_first_that_is_refused_after_a_crash_is_to_say_so() {
    let mut night = Night::new(HOUR);
    night.runs(1, 0);
    night.renews(1, 10_000);
    let notice = |night: &mut Night, at| match night.at(at).acquire(2, "k", X, Patience::None) {
        Acquired::Busy(blocker) => {
            Notice::busy(&blocker, None, None).map(|notice| (notice.kind, notice.subject))
        }
        answer => unreachable!("{answer:?}"),
    };
    assert_eq!(notice(&mut night, 20_000), None);
    let since = night.began.millis() + 40_000;
    assert_eq!(notice(&mut night, MINUTE), Some((Missed::Failed, Some(Subject::Pause(since)))));
}

#[test]
fn what_nobody_ran_under_pauses_nothing() {
    // A waiter dies in its turn.
    let mut night = Night::new(HOUR);
    night.scene.terms.pause_on_failure = None;
    night.runs(1, 0);
    night.scene.terms.pause_on_failure = Some(Duration::from_secs(3600));
    assert!(!night.at(10).queue(2, "k", X));
    assert_eq!(night.ends(1, 20, 0), GONE);
    night.open(5000);
    // A request that arrives late holds the lock for one lease, also if it confirms a grant.
    let mut night = Night::new(HOUR);
    night.runs(1, 0);
    night.open(MINUTE);
    let mut night = Night::new(HOUR);
    night.runs(1, 0);
    assert!(!night.at(10).queue(2, "k", X));
    assert_eq!(night.ends(1, 20, 0), GONE);
    assert!(night.at(1000).queue(2, "k", X));
    night.open(MINUTE);
    // A release that arrived, and arrives again after the pause was ended.
    let mut night = Night::new(HOUR);
    night.runs(1, 0);
    assert_eq!(night.ends(1, 10, 1), GONE);
    let now = night.scene.now;
    assert!(night.scene.table.pause(now, &name("k"), None));
    assert_eq!(night.ends(1, 20, 1), Left::Already);
    night.open(30);
}

#[test]
fn a_good_run_whose_release_never_arrived_counts_as_a_crash() {
    let mut night = Night::new(HOUR);
    night.runs(1, 0);
    night.renews(1, 10_000);
    // Its release arrives when the lease is over.
    assert_eq!(night.ends(1, 50_000, 0), Left::NotHeld);
    night.shut_until(51_000, HOUR + 40_000, Cause::Failure);
}

#[test]
fn what_somebody_asked_for_is_no_failure() {
    let asked_by = |newer: bool, night: &mut Night| {
        let fence = night.scene.seen("k").holders[0].fence;
        let scene = &mut night.scene;
        if newer {
            scene.terms = Terms { replaces: true, ..Terms::default() };
            assert!(!scene.queue(2, "k", X));
            scene.leave(2, "k");
        } else {
            scene.table.request(scene.now, &name("k"), fence, &Owner::default());
        }
    };
    for (newer, dies) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut night = Night::new(HOUR);
        night.runs(1, 0);
        night.renews(1, 10_000);
        asked_by(newer, &mut night);
        night.scene.terms = Terms { pause_on_failure: Some(Duration::from_secs(3600)), ..Terms::default() };
        if !dies {
            assert_eq!(night.ends(1, 20_000, 1), GONE);
        }
        night.open(MINUTE);
    }
    for when in [When::Safe, When::Now] {
        let mut night = Night::new(HOUR);
        night.runs(1, 0);
        night.renews(1, 10_000);
        night.scene.revoke("k", when);
        night.open(MINUTE);
    }
}

#[test]
fn of_two_slots_that_fail_the_later_end_counts() {
    let mut night = Night::with_long_leases(HOUR);
    let three = Mode::Slots(3);
    assert!(night.scene.queue(1, "k", three) && night.scene.queue(2, "k", three));
    night.scene.terms.pause_on_failure = None;
    assert!(night.scene.queue(3, "k", three));
    night.scene.terms.pause_on_failure = Some(Duration::from_secs(3600));
    night.ends(1, MINUTE, 1);
    night.ends(2, 2 * MINUTE, 2);
    assert_eq!(night.paused(3 * MINUTE), Some((HOUR + 2 * MINUTE, Cause::Failure, "exit 2".into())));
    assert_eq!(night.at(4 * MINUTE).seen("k").state, State::Held, "the third goes on");
}

/// A store that knows by its sessions which leases are over does not know since when.
#[test]
fn a_session_that_is_gone_pauses_from_the_notice_only_if_that_is_soon_or_somebody_waits() {
    for (noticed, came, is_shut) in [
        (30 * MINUTE, None, true),
        (DAY, None, false),
        (DAY, Some(DAY - 1000), true),
        (DAY, Some(20_000), false),
    ] {
        let mut night = Night::with_long_leases(HOUR);
        night.runs(1, 0);
        night.renews(1, 10_000);
        if let Some(came) = came {
            assert!(!night.at(came).queue(2, "k", X));
        }
        let scene = night.at(noticed);
        let now = scene.now;
        scene.record("k").judge(now, |_, _| None);
        if is_shut {
            night.shut_until(noticed, noticed + HOUR, Cause::Failure);
        } else {
            night.open(noticed);
        }
    }
}

/// A store that learns of a death ends the hold before its lease is over.
#[test]
fn a_death_that_is_noticed_at_once_pauses_from_then() {
    for was_renewed in [true, false] {
        let mut night = Night::new(HOUR);
        night.runs(1, 0);
        if was_renewed {
            night.renews(1, 1000);
        }
        let scene = night.at(5_000);
        scene.table.reap(scene.now, &token(1));
        if was_renewed {
            night.shut_until(5_000, HOUR + 5_000, Cause::Failure);
        } else {
            night.open(5_000);
        }
    }
}

#[test]
fn a_span_that_another_program_wrote_pauses_no_longer_than_the_longest() {
    for lasts in [Duration::from_secs(1 << 50), Duration::MAX] {
        let mut night = Night::new(HOUR);
        night.runs(1, 0);
        night.renews(1, 10_000);
        night.scene.record("k").holds.values_mut().for_each(|hold| hold.pause_on_failure = Some(lasts));
        night.shut_until(MINUTE, 40 * DAY + 40_000, Cause::Failure);
    }
}

#[test]
fn the_confirmation_says_it_if_an_older_dlock_granted_the_lock() {
    let mut night = Night::new(HOUR);
    night.runs(1, 0);
    assert!(!night.at(10).queue(2, "k", X));
    assert_eq!(night.ends(1, 20, 0), GONE);
    night.scene.record("k").holds.values_mut().for_each(|hold| hold.pause_on_failure = None);
    assert!(night.at(1000).queue(2, "k", X));
    night.renews(2, 10_000);
    night.shut_until(MINUTE, HOUR + 40_000, Cause::Failure);
}

#[test]
fn a_min_hold_does_not_hide_the_pause_after_a_crash() {
    let mut night = Night::new(HOUR);
    night.scene.min_hold = Duration::from_secs(600);
    night.runs(1, 0);
    night.renews(1, 10_000);
    let until = |paused: Option<(u64, Cause, String)>| paused.map(|paused| paused.0);
    assert_eq!(until(night.paused(30_000)), None);
    assert_eq!(until(night.paused(MINUTE)), Some(HOUR + 40_000));
    // An operator ends it once.
    let now = night.scene.now;
    assert!(night.scene.table.pause(now, &name("k"), None));
    assert!(!night.at(2 * MINUTE).ask(98, "k", X), "the min-hold goes on");
    assert_eq!(until(night.paused(3 * MINUTE)), None);
    night.open(10 * MINUTE);
    assert_eq!(night.scene.record("k").log[0].outcome, Outcome::Expired);
}

impl Night {
    fn asks(&mut self, who: u32, at: u64, patience: Patience, urgent: bool, locks: &str) -> Acquired {
        let scene = self.at(at);
        let terms = Terms { during_pause: urgent, ..Terms::default() };
        let before = std::mem::replace(&mut scene.terms, terms);
        let answer = scene.acquire(who, locks, X, patience);
        self.scene.terms = before;
        answer
    }

    #[track_caller]
    fn is_granted(&mut self, who: u32, at: u64, patience: Patience, urgent: bool) {
        let answer = self.asks(who, at, patience, urgent, "k");
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }

    /// It waits for these locks. Returns how many are before it.
    #[track_caller]
    fn waits(&mut self, who: u32, at: u64, urgent: bool, locks: &str) -> u64 {
        match self.asks(who, at, Patience::Queue, urgent, locks) {
            Acquired::Waiting(waiting) => {
                assert!(
                    !urgent || waiting.blocker.paused.is_none() && waiting.blocker.state != State::Paused
                );
                waiting.ahead
            }
            answer => unreachable!("{answer:?}"),
        }
    }
}

#[test]
fn an_urgent_run_goes_before_those_that_wait_for_the_end_of_a_pause() {
    for patience in [Patience::None, Patience::Queue] {
        let mut night = Night::with_long_leases(HOUR);
        night.freezes(0, HOUR, true);
        night.waits(1, 1, false, "k");
        night.is_granted(2, 2, patience, true);
        assert!(night.at(3).seen("k").holders[0].during_pause);
        assert!(night.at(3).seen("k").paused.is_some(), "the pause goes on");
        // A holder is not passed, and of several urgent runs the oldest is next.
        assert_eq!(night.waits(3, 4, true, "k"), 0);
        assert_eq!(night.waits(4, 5, true, "k"), 1);
        assert!(matches!(night.asks(5, 6, Patience::None, true, "k"), Acquired::Busy(_)));
        assert_eq!(night.waits(1, 6, false, "k"), 2);
        night.ends(2, 7, 0);
        assert!(night.at(8).seen("k").log[0].during_pause);
        night.is_granted(3, 9, Patience::Queue, true);
        assert!(matches!(night.asks(6, 10, Patience::None, true, "k"), Acquired::Busy(_)));
        // It keeps its place when the pause is over.
        let now = night.at(11).now;
        night.scene.table.pause(now, &name("k"), None);
        assert_eq!(night.waits(4, 12, true, "k"), 0);
        night.ends(3, 13, 0);
        night.is_granted(4, 14, Patience::Queue, true);
        assert!(!night.at(15).seen("k").holders[0].during_pause);
    }
}

#[test]
fn a_run_that_waits_already_gets_the_place_with_its_first_request_after_the_pause_began() {
    let mut night = Night::with_long_leases(HOUR);
    night.runs(9, 0);
    assert_eq!((night.waits(1, 1, false, "k"), night.waits(2, 2, true, "k")), (0, 1));
    assert_eq!(night.waits(3, 3, true, "k"), 2);
    night.freezes(4, HOUR, true);
    assert_eq!((night.waits(3, 5, true, "k"), night.waits(2, 6, true, "k")), (0, 0), "by age");
    assert_eq!((night.waits(3, 7, true, "k"), night.waits(1, 8, false, "k")), (1, 2));
}

#[test]
fn if_one_lock_is_not_paused_an_urgent_run_waits_as_others_do() {
    let mut night = Night::with_long_leases(HOUR);
    night.freezes(0, HOUR, true);
    night.waits(1, 1, false, "k");
    assert_eq!(night.waits(2, 2, true, "kl"), 1);
    assert!(matches!(night.asks(3, 3, Patience::None, true, "kl"), Acquired::Busy(_)));
    // It is granted if it is first, also where one of its locks is paused.
    let now = night.at(4).now;
    assert_eq!(night.scene.table.leave(now, &Scene::names("k"), &token(1), &RAN), Left::Dequeued);
    assert!(matches!(night.asks(2, 5, Patience::Queue, true, "kl"), Acquired::Granted(_)));
}

#[test]
fn an_urgent_run_with_replace_asks_the_holder_during_a_pause() {
    let mut night = Night::with_long_leases(HOUR);
    night.runs(1, 0);
    night.freezes(1, HOUR, true);
    night.scene.terms = Terms { replaces: true, during_pause: true, ..Terms::default() };
    assert!(!night.at(2).queue(2, "k", X));
    assert_eq!(night.at(3).renew(1, "k"), Renewal::Superseded);
}

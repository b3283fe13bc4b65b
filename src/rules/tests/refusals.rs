//! Which refusals of scheduled runs are announced, and by how many runs.

use super::*;
use crate::lock::{By, Period};

const DAY: u64 = 24 * 60;

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

/// What is announced of a run that is skipped so long after the success.
fn skipped(period: Period, age: u64) -> Option<Missed> {
    let owner = Owner::default();
    let success = Success { owner, fence: Fence(1), since: 0, waited: 0, ended: 0 };
    let done = Done { at: 0, success, ago: minutes(1), age: minutes(age), due: Duration::ZERO };
    Notice::done(&done, period).map(|notice| notice.kind)
}

#[test]
fn a_dur_as_long_as_the_period_is_announced_at_the_skip() {
    let day = Period::Span(minutes(DAY));
    for (age, told) in [
        (DAY - 1, Some(Missed::TooLong)),
        (DAY * 4 / 5, Some(Missed::TooLong)),
        (DAY * 3 / 4, Some(Missed::Between)),
        (DAY / 4, Some(Missed::Between)),
        // A stand-by arrived with the run that it stood by for, whenever it is skipped; a later one
        // while that run waited or ran.
        (0, None),
        (DAY, None),
    ] {
        assert_eq!(skipped(day, age), told, "{age}");
    }
}

#[test]
fn a_run_at_another_hour_is_told_at_the_skip() {
    for (period, age, told) in [
        (Period::Day, 11 * 60, Some(Missed::OtherHour)),
        (Period::Day, 4 * 60, Some(Missed::OtherHour)),
        (Period::Day, 3 * 60, None),
        (Period::Day, 12 * 60, None),
        (Period::Hour, 20, Some(Missed::OtherHour)),
        (Period::Week, 3 * DAY, Some(Missed::OtherHour)),
        (Period::Minute, 0, None),
    ] {
        assert_eq!(skipped(period, age), told, "{period:?} {age}");
    }
}

/// Scheduled runs of one key.
struct Fleet {
    scene: Scene,
    runs: u32,
}

impl Fleet {
    fn tells(&mut self, kind: Missed, subject: Subject) -> bool {
        self.runs += 1;
        let notice = Some(Notice { kind, subject: Some(subject), by: self.runs.to_string() });
        let refusal = Refusal { notice, ..Refusal::interrupted(&Owner::default(), None, Duration::ZERO) };
        self.scene.table.refuse(self.scene.now, &name("k").of_refusals(), &refusal)
    }

    /// How many of twelve tell it.
    fn told(&mut self, kind: Missed, subject: Subject) -> usize {
        (0..12).filter(|_| self.tells(kind, subject)).count()
    }
}

#[test]
fn one_run_tells_for_the_fleet() {
    let mut fleet = Fleet { scene: Scene::new(), runs: 0 };
    let (hung, pause) = (Subject::Fence(Fence(7)), Subject::Pause(1_800_000_000_000));
    for subject in [hung, pause] {
        for kind in [Missed::GaveUp, Missed::StillHeld] {
            assert_eq!(fleet.told(kind, subject), 1);
            fleet.scene.pass(45 * 60_000);
            assert_eq!(fleet.told(kind, subject), 0);
            fleet.scene.pass(14 * 60_000 + 59_000);
            assert_eq!(fleet.told(kind, subject), 1, "once an hour, of a line that comes a second early");
        }
    }
    assert_eq!(
        fleet.told(Missed::StillHeld, Subject::Pause(1_800_000_001_999)),
        0,
        "the clock of another master"
    );
    assert_eq!(fleet.told(Missed::GaveUp, Subject::Fence(Fence(8))), 1, "the next hold");
    for kind in [Missed::TooLong, Missed::OtherHour, Missed::Failed] {
        assert_eq!(fleet.told(kind, hung), 1);
        fleet.scene.pass(millis(ANNOUNCED_AGAIN) * 24);
        assert_eq!(fleet.told(kind, hung), 0, "once for a success");
        assert_eq!(fleet.told(kind, Subject::Fence(Fence(9))), 1);
    }
    // The clock was years ahead, and was set back.
    fleet.scene.now = Time(fleet.scene.now.0 - 1_000_000_000_000_000);
    assert_eq!(fleet.told(Missed::GaveUp, Subject::Fence(Fence(8))), 1);
}

/// A line every ten minutes with `--once-per 6d`.
#[test]
fn a_dur_that_is_a_limit_is_not_told() {
    let mut fleet = Fleet { scene: Scene::new(), runs: 0 };
    let mut told = 0;
    for age in (0..6 * DAY).step_by(10) {
        if let Some(kind) = skipped(Period::Span(minutes(6 * DAY)), age) {
            told += usize::from(fleet.tells(kind, Subject::Fence(Fence(1))));
        }
    }
    assert_eq!(told, 0);
    // Of the next success nothing of this is known.
    assert_eq!(fleet.told(Missed::TooLong, Subject::Fence(Fence(2))), 1);
}

/// A run that asks again, because the answer was lost, is announced the same.
#[test]
fn a_run_that_asks_again_tells_it() {
    let mut fleet = Fleet { scene: Scene::new(), runs: 0 };
    for _ in 0..2 {
        fleet.runs = 0;
        assert!(fleet.tells(Missed::OtherHour, Subject::Fence(Fence(1))));
    }
    assert!(!fleet.tells(Missed::OtherHour, Subject::Fence(Fence(1))));
}

#[test]
fn what_runs_for_longer_than_a_period_is_announced() {
    let mut scene = Scene::new();
    scene.terms.once_per = Some(minutes(30));
    scene.waited = minutes(20);
    scene.ttl = minutes(DAY);
    assert!(scene.queue(1, "k", X));
    scene.waited = Duration::ZERO;
    let missed = |scene: &mut Scene, waited| match scene.acquire(2, "k", X, Patience::None) {
        Acquired::Busy(blocker) => {
            Notice::busy(&blocker, Some(Period::Hour), waited).map(|notice| (notice.kind, notice.subject))
        }
        answer => unreachable!("{answer:?}"),
    };
    let fence = scene.record("k").fence;
    scene.pass(10 * 60_000 - 100);
    assert_eq!(missed(&mut scene, None), None);
    assert_eq!(
        missed(&mut scene, Some(minutes(1))),
        Some((Missed::GaveUp, Some(Subject::Fence(Fence(fence)))))
    );
    scene.pass(200);
    assert_eq!(missed(&mut scene, None), Some((Missed::StillHeld, Some(Subject::Fence(Fence(fence))))));
    for hold in scene.record("k").holds.values_mut() {
        hold.owner.by = By::Hold;
    }
    assert_eq!(missed(&mut scene, None), None, "no run");
    // Paused, with nobody in the lock.
    assert_eq!(scene.leave(1, "k"), GONE);
    let (now, by) = (scene.now, Owner::default());
    scene.table.pause(now, &name("k"), Some(NewPause { by: &by, lasts: minutes(DAY), shortens: true }));
    assert_eq!(missed(&mut scene, None), None);
    let since = Subject::Pause(now.millis());
    assert_eq!(missed(&mut scene, Some(minutes(1))), Some((Missed::GaveUp, Some(since))));
}

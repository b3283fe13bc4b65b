//! Does the foreign judge find what is wrong? Histories made by hand, rounds into which faults were planted, and random
//! histories for which the cut into pieces must change no verdict.

use super::foreign::{Hold, Piece, judge, pieces};
use super::history::{self, Event, Step, edn, json_lines, parse};
use super::judge::{Hit, Kind, Outcome, Round, Time, judge as judge_by_ours};
use super::planted::{MS, round, trouble};
use crate::support::storm::Dice;

/// A hold whose acquire begins at 0, and whose release takes no time.
fn hold(process: u64, fence: u64, from: Time, until: Time) -> Hold {
    let release = Some((until, Some(until + 1)));
    Hold { process, fence, invoked: 0, granted: from, release, expires: None }
}

/// The history of these holds of one key.
fn written(holds: &[Hold]) -> Vec<Event> {
    let mut events = Vec::new();
    for hold in holds {
        let event = |time, step, f| Event::new(time, hold.process, step, f, "k");
        events.push(Event { note: Some("exclusive".into()), ..event(hold.invoked, Step::Invoke, "acquire") });
        events.push(Event { value: Some(hold.fence), ..event(hold.granted, Step::Ok, "acquire") });
        if let Some((begins, completes)) = hold.release {
            events.push(event(begins, Step::Invoke, "release"));
            events.extend(completes.map(|at| event(at, Step::Ok, "release")));
        }
        let environment = |at| Event::new(at, hold.process + 4, Step::Invoke, "expire", "k");
        events.extend(hold.expires.map(|at| Event { value: Some(hold.process), ..environment(at) }));
    }
    events.sort_by_key(|event| (event.time, event.step));
    events
}

#[track_caller]
fn finds(holds: &[Hold], is_linearizable: bool) {
    let verdict = judge(&written(holds));
    assert_eq!(verdict.faults.is_empty(), is_linearizable, "{verdict} {:?}", verdict.faults);
    assert_eq!((verdict.keys, verdict.grants), (1, holds.len()));
    let mut in_order = holds.to_vec();
    in_order.sort_by_key(|hold| hold.granted);
    assert_eq!(Piece::whole(&in_order).is_linearizable(), is_linearizable, "without the cut");
}

#[test]
fn one_after_the_other_is_linearizable() {
    finds(&[hold(1, 10, 1, 4), hold(2, 20, 6, 8), hold(3, 21, 9, 12)], true);
}

#[test]
fn two_holders_at_once_are_found() {
    finds(&[hold(1, 10, 1, 4), hold(2, 20, 3, 8)], false);
    // So are two of which neither is known to have ended.
    let endless = |process, fence, from| Hold { release: None, ..hold(process, fence, from, 0) };
    finds(&[endless(1, 10, 1), endless(2, 20, 3)], false);
}

#[test]
fn a_fence_that_goes_back_or_is_given_twice_is_found() {
    finds(&[hold(1, 20, 1, 4), Hold { invoked: 5, ..hold(2, 10, 6, 8) }], false);
    finds(&[hold(1, 20, 1, 4), hold(2, 20, 6, 8)], false);
}

/// Its grant may be older than the one that was seen first, but then its hold ended before that one.
#[test]
fn a_smaller_fence_that_is_seen_later_needs_an_expiry() {
    let (late, other) = (hold(1, 10, 6, 8), hold(2, 20, 2, 4));
    finds(&[late.clone(), other.clone()], false);
    let late = Hold { release: None, expires: Some(1), ..late };
    finds(&[late.clone(), other.clone()], true);
    finds(&[Hold { expires: Some(3), ..late.clone() }, other.clone()], false);
    finds(&[Hold { invoked: 3, expires: Some(3), ..late }, other], false);
}

#[test]
fn the_environment_ends_a_hold_no_earlier_than_it_may() {
    let killed = Hold { release: Some((9, None)), expires: Some(3), ..hold(1, 10, 1, 9) };
    finds(&[killed.clone(), hold(2, 20, 4, 6)], true);
    finds(&[killed.clone(), hold(2, 20, 2, 6)], false);
    // A release with an unknown outcome stays in flight: the lock is free at some time after it began, or never.
    let unknown = Hold { release: Some((4, None)), ..hold(1, 10, 1, 4) };
    finds(&[unknown.clone(), hold(2, 20, 5, 6)], true);
    finds(&[unknown, hold(2, 20, 3, 6)], false);
    // One that released with success held the lock until then.
    let held = Hold { release: Some((7, Some(8))), ..killed };
    finds(&[held, hold(2, 20, 4, 6)], false);
}

/// The rounds into which `planted` puts faults for our own judge.
#[test]
fn planted_faults_are_found_by_the_foreign_judge_too() {
    let is_wrong = |round: &Round| !judge(&history::of(round)).faults.is_empty();
    assert!(!is_wrong(&round(&[(100, 200), (300, 400), (500, 9000)])));
    assert!(is_wrong(&round(&[(100, 300), (299, 400)])), "two at a time");
    let mut falls = round(&[(100, 200), (300, 400)]);
    falls.lives[1].fence = 50_000;
    assert!(is_wrong(&falls), "a fence that falls");
    falls.lives[1].fence = falls.lives[0].fence;
    assert!(is_wrong(&falls), "a fence that is given twice");
    // A job that lives on after its dlock was killed, and its guard was not.
    let mut outlives = round(&[(1000, 20_000), (16_000, 16_100)]);
    (outlives.runs[0].ended, outlives.runs[0].outcome) = (11_000 * MS, Outcome::Signal(9));
    outlives.runs[0].hits = vec![(11_000 * MS, Hit::KillDlock)];
    assert!(is_wrong(&outlives), "a job that nobody stops");
}

/// Both judges excuse what the guarantees name: a store that forgot, a job that nobody could stop, a script.
#[test]
fn what_the_guarantees_grant_is_linearizable_with_an_expiry() {
    let mut forgot = round(&[(1000, 3000), (2500, 2600)]);
    forgot.troubles.push(trouble(2400, 2450, true));
    let mut killed = round(&[(1000, 20_000), (16_000, 16_100)]);
    killed.runs[0].hits = vec![(11_000 * MS, Hit::KillBoth)];
    killed.runs[0].outcome = Outcome::Signal(9);
    let mut script = round(&[(1000, 6500), (6000, 6100)]);
    (script.runs[0].kind, script.runs[0].outcome) = (Kind::Script, Outcome::Status(79));
    for mut round in [forgot, killed, script] {
        round.runs[0].ended = round.runs[0].ended.max(round.lives[0].last);
        assert!(!judge_by_ours(&round).granted_overlaps.is_empty());
        let events = history::of(&round);
        assert!(events.iter().any(|event| event.f == "expire"));
        assert_eq!(judge(&events).faults, [""; 0]);
        // Without the environment's operation there is no such order.
        let others: Vec<Event> = events.into_iter().filter(|event| event.f != "expire").collect();
        assert_eq!(judge(&others).faults.len(), 1);
    }
}

/// A random hold among few times and few fences, so that much is concurrent and much is wrong.
fn any_hold(process: u64, dice: &mut Dice) -> Hold {
    let invoked = dice.roll(10);
    let granted = invoked + 1 + dice.roll(6);
    let ends = granted + dice.roll(3);
    let completes = (dice.roll(3) > 0).then(|| ends + dice.roll(5));
    let expires = (dice.roll(4) == 0).then(|| invoked + dice.roll(9));
    // Mostly in the order of the grants.
    let fence = 3 * granted + dice.roll(8);
    Hold { process, fence, invoked, granted, release: Some((ends, completes)), expires }
}

#[test]
fn the_cut_changes_no_verdict() {
    let (mut dice, mut counts) = (Dice(4711), [0, 0]);
    for _ in 0..4_000 {
        let mut holds: Vec<Hold> =
            (0..2 + dice.roll(3)).map(|process| any_hold(process, &mut dice)).collect();
        holds.sort_by_key(|hold| hold.granted);
        let whole = Piece::whole(&holds).is_linearizable();
        let pieces = pieces(&holds);
        assert_eq!(pieces.iter().all(Piece::is_linearizable), whole, "{holds:?}");
        if pieces.len() > 2 {
            counts[usize::from(whole)] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 100), "wrong and right ones that were cut: {counts:?}");
}

#[test]
fn a_history_is_read_as_it_was_written() {
    let mut round = round(&[(1000, 20_000), (16_000, 16_100)]);
    round.runs[0].hits = vec![(11_000 * MS, Hit::KillBoth)];
    round.runs[0].outcome = Outcome::Signal(9);
    let events = history::of(&round);
    assert_eq!(parse(&json_lines(&events)), events);
    assert_eq!(judge(&events).grants, 2);
    // Also that of a job which was killed at once.
    round.lives[1].last = round.lives[1].start;
    assert_eq!(judge(&history::of(&round)).grants, 2);
    let edn = edn(&events);
    let lines: Vec<&str> = edn.lines().collect();
    assert_eq!(lines.len(), events.len());
    assert_eq!(
        lines[..2],
        [
            r#"{:index 0, :time 0, :process 8, :type :invoke, :f :acquire, :value ["k" nil], :note "exclusive"}"#,
            r#"{:index 1, :time 5000000, :process 8, :type :ok, :f :acquire, :value ["k" 1000000]}"#,
        ]
    );
    assert!(
        lines.contains(
            &"{:index 3, :time 10005000000, :process :nemesis, :type :info, :f :KillBoth, :value 1}"
        )
    );
}

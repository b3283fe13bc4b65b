//! Tests of the judge: histories with one planted fault each.

use super::judge::{
    BUSY, BUSY_AROUND, Ended, FULL_DIRECTORY, Fault, Hit, Kind, Outcome, Round, Run, SECOND, Sighting, Time,
    Told, Trouble, judge,
};
use super::lives::Life;
use dlock::lock::Mode;

pub const MS: Time = SECOND / 1000;
const TTL: Time = 5 * SECOND;

/// A round with these jobs: begin and end of each in milliseconds. Later jobs have greater fences.
pub fn round(spans: &[(Time, Time)]) -> Round {
    let mut round = Round { has_queue: true, silence: 5 * SECOND, ..Round::default() };
    for (id, (start, end)) in (1..).zip(spans) {
        round.runs.push(Run {
            id,
            keys: vec!["k"],
            mode: Mode::Exclusive,
            kind: Kind::Plain,
            ttl: TTL,
            waits: true,
            wanted: 0,
            registers: vec![0],
            spawned: start * MS - 5 * MS,
            ended: end * MS + 5 * MS,
            outcome: Outcome::Status(0),
            hits: Vec::new(),
            said: String::new(),
        });
        round.lives.push(Life {
            run: id,
            pid: 1000 + id,
            start: start * MS,
            last: end * MS,
            ended: true,
            fence: start * 1000,
            slot: None,
            refused: 0,
            pending: None,
            accepted: [2, 0, 0, 0],
        });
    }
    let written = 2 * u64::try_from(spans.len()).expect("a few");
    round.registers.insert(0, written);
    let mut told = Told { state: "free".into(), ..Told::default() };
    told.grants = u64::try_from(spans.len()).expect("a few");
    told.succeeded = told.grants;
    told.history = round.lives.iter().rev().map(|life| ended(life.fence, "released")).collect();
    round.told.insert("k", told);
    round
}

fn ended(fence: u64, outcome: &str) -> Ended {
    Ended { fence, outcome: outcome.to_owned(), status: Some(0) }
}

pub fn trouble(from: Time, until: Time, forgets: bool) -> Trouble {
    Trouble { kind: "planted", from: from * MS, until: until * MS, forgets, empties: forgets }
}

#[track_caller]
fn finds(round: &Round, faults: &[Fault]) {
    let verdict = judge(round);
    let mut found: Vec<Fault> = verdict.faults.iter().map(|(fault, _)| *fault).collect();
    found.dedup();
    assert_eq!(found, faults, "{:?}", verdict.faults);
}

#[test]
fn a_good_round_has_no_fault() {
    finds(&round(&[(100, 200), (300, 400), (500, 9000)]), &[]);
}

#[test]
fn two_at_a_time() {
    let meeting = round(&[(100, 300), (299, 400)]);
    finds(&meeting, &[Fault::Overlap]);
    // Two may run together in some modes, and not in others.
    let as_modes = |first, second| {
        let mut round = meeting.clone();
        (round.runs[0].mode, round.runs[1].mode) = (first, second);
        round
    };
    finds(&as_modes(Mode::Shared, Mode::Shared), &[]);
    finds(&as_modes(Mode::Shared, Mode::Exclusive), &[Fault::Overlap]);
    let mut slots = as_modes(Mode::Slots(2), Mode::Slots(2));
    (slots.lives[0].slot, slots.lives[1].slot) = (Some(1), Some(1));
    slots.registers = [(1, 4)].into();
    finds(&slots, &[Fault::Overlap]);
    slots.lives[1].slot = Some(0);
    slots.registers = [(0, 2), (1, 2)].into();
    finds(&slots, &[]);
    slots.runs[1].mode = Mode::Slots(3);
    finds(&slots, &[Fault::Overlap]);
}

#[test]
fn an_overlap_is_granted_only_where_the_guarantees_say_so() {
    let mut forgot = round(&[(1000, 3000), (2500, 2600)]);
    forgot.troubles.push(trouble(2400, 2450, true));
    finds(&forgot, &[]);
    assert_eq!(judge(&forgot).granted_overlaps, [100 * MS]);
    // An outage alone grants no overlap, nor does a store that forgot afterwards, or more than a
    // lease before.
    forgot.troubles[0].forgets = false;
    finds(&forgot, &[Fault::Overlap]);
    forgot.troubles[0] = trouble(2700, 2750, true);
    finds(&forgot, &[Fault::Overlap]);
    let mut late = round(&[(10_000, 30_000), (25_000, 26_000)]);
    late.troubles.push(trouble(20_000, 20_100, true));
    finds(&late, &[Fault::Overlap]);
    // More than a heartbeat and the grace after it: the holder has noticed, and its job is dead.
    let mut deaf = round(&[(10_000, 30_000), (24_400, 24_500)]);
    deaf.troubles.push(trouble(20_000, 20_100, true));
    finds(&deaf, &[Fault::Overlap]);
    // Granted if the holder could not be told.
    deaf.troubles.push(trouble(20_100, 24_000, false));
    finds(&deaf, &[]);
    // A script whose lease is over.
    let mut script = round(&[(1000, 6500), (6000, 6100)]);
    script.runs[0].kind = Kind::Script;
    finds(&script, &[]);
    script.runs[0].hits.push((2000 * MS, Hit::StopJob));
    finds(&script, &[]);
    // Not granted before the end of the lease, whatever was hit.
    script.lives[1].start = 5900 * MS;
    finds(&script, &[Fault::Overlap]);
    script.runs[0].hits.clear();
    finds(&script, &[Fault::Overlap]);
}

/// No process was left, or able for a while, to stop the job of a lease that was over.
#[test]
fn an_overlap_of_the_unguarded_is_granted_when_their_lease_is_over() {
    let with = |spans: &[(Time, Time)], hits: &[(Time, Hit)]| {
        let mut round = round(spans);
        round.runs[0].hits = hits.iter().map(|(at, hit)| (at * MS, *hit)).collect();
        round
    };
    let spans = [(1000, 20_000), (16_000, 16_100)];
    let killed = with(&spans, &[(11_000, Hit::KillBoth)]);
    finds(&killed, &[]);
    // Not granted: they met before that; only one of the two was killed; or the lease was not over.
    finds(&with(&spans, &[(16_050, Hit::KillBoth)]), &[Fault::Overlap]);
    finds(&with(&spans, &[(11_000, Hit::KillDlock)]), &[Fault::Overlap]);
    let early = with(&spans, &[(14_000, Hit::KillBoth)]);
    finds(&early, &[Fault::Overlap]);
    // The lease was over if no renewal had arrived for two seconds; or in a directory.
    let mut cut = early.clone();
    cut.troubles.push(trouble(12_000, 14_000, false));
    finds(&cut, &[]);
    let mut directory = early.clone();
    directory.frees_at_once = true;
    finds(&directory, &[]);
    // Also if the store forgot the lease: no process is left to notice.
    let mut forgotten = early.clone();
    forgotten.troubles.push(trouble(14_500, 14_600, true));
    finds(&forgotten, &[]);
    forgotten.troubles[0] = trouble(16_050, 16_060, true);
    finds(&forgotten, &[Fault::Overlap]);
    // The lease counts in full, even if its holder dies after a tenth of it.
    let first = [(1000, 20_000), (5900, 5950)];
    let mut young = with(&first, &[(1100, Hit::KillBoth)]);
    young.troubles.push(trouble(0, 1100, false));
    finds(&young, &[Fault::Overlap]);
    // A run that stood still as a whole: granted until it continues and for a moment after that.
    let still =
        |on| with(&[(1000, 18_000), (16_000, 19_000)], &[(11_000, Hit::StopAll), (on, Hit::Continue)]);
    finds(&still(17_500), &[]);
    finds(&still(16_500), &[Fault::Overlap]);
    let mut busy = still(16_500);
    busy.troubles.push(trouble(16_600, 17_200, false));
    finds(&busy, &[]);
    // Not granted if the lease was not over.
    let spans = [(1000, 18_000), (16_000, 19_000)];
    finds(&with(&spans, &[(15_000, Hit::StopAll), (17_500, Hit::Continue)]), &[Fault::Overlap]);
    // Nothing is granted to a run that stood still and was not killed meanwhile.
    finds(&with(&spans, &[(11_000, Hit::Stop), (17_500, Hit::Continue)]), &[Fault::Overlap]);
}

#[test]
fn a_fence_that_falls_or_is_given_twice() {
    let mut falls = round(&[(100, 200), (300, 400)]);
    falls.lives[1].fence = 50_000;
    falls.told.clear();
    finds(&falls, &[Fault::Fence]);
    // No fault if the store forgot the lock while the job was about to start.
    falls.troubles.push(trouble(80, 90, true));
    finds(&falls, &[]);
    falls.troubles[0].forgets = false;
    finds(&falls, &[Fault::Fence]);
    falls.troubles.clear();
    falls.lives[1].fence = falls.lives[0].fence;
    finds(&falls, &[Fault::Fence]);
}

#[test]
fn an_update_that_is_lost_or_refused() {
    let mut lost = round(&[(100, 200), (300, 400)]);
    lost.registers.insert(0, 3);
    finds(&lost, &[Fault::LostUpdate]);
    // A job that was killed during its write may have written.
    lost.lives[1].accepted[0] = 1;
    lost.lives[1].pending = Some(0);
    finds(&lost, &[]);
    lost.registers.insert(0, 4);
    finds(&lost, &[]);
    lost.registers.insert(0, 5);
    finds(&lost, &[Fault::LostUpdate]);
    let mut refused = round(&[(100, 200), (300, 400)]);
    refused.lives[0].refused = 1;
    finds(&refused, &[Fault::Stale]);
}

#[test]
fn a_run_that_overtakes() {
    let mut overtaken = round(&[(300, 400), (500, 600)]);
    // The second run waited before the first was started.
    overtaken.runs[1].spawned = 100 * MS;
    overtaken.sightings.push(Sighting { at: 200 * MS, waiting: vec![2], ..Sighting::default() });
    finds(&overtaken, &[Fault::Order]);
    assert_eq!(judge(&overtaken).pairs, 1);
    // In the other order it is one checked pair without a fault.
    let mut served = overtaken.clone();
    (served.lives[0].fence, served.lives[1].fence) = (600_000, 500_000);
    (served.lives[0].start, served.lives[0].last) = (700 * MS, 800 * MS);
    served.told.clear();
    finds(&served, &[]);
    assert_eq!(judge(&served).pairs, 1);
    // Also if both were seen, one behind the other.
    let mut behind = overtaken.clone();
    (behind.runs[0].spawned, behind.runs[1].spawned) = (180 * MS, 50 * MS);
    behind.sightings[0].waiting = vec![2, 1];
    finds(&behind, &[Fault::Order]);
    // Runs that came at the same moment may be in this order by chance.
    behind.runs[0].spawned = 60 * MS;
    finds(&behind, &[]);
    let mut disturbed = overtaken.clone();
    disturbed.troubles.push(trouble(250, 260, false));
    finds(&disturbed, &[]);
    // A machine that was busy for half a second is no excuse; for two seconds it is.
    let busy = |ms: Time| Trouble { kind: BUSY, ..trouble(250, 250 + 2 * BUSY_AROUND / MS + ms, false) };
    disturbed.troubles = vec![busy(500)];
    finds(&disturbed, &[Fault::Order]);
    disturbed.troubles = vec![busy(2000)];
    finds(&disturbed, &[]);
    overtaken.has_queue = false;
    finds(&overtaken, &[]);
}

#[test]
fn a_queue_that_stands_idle() {
    let mut idle = round(&[(100, 200), (60_000, 60_100)]);
    idle.runs[1].spawned = 150 * MS;
    finds(&idle, &[Fault::Stall]);
    idle.troubles.push(trouble(300, 50_000, false));
    finds(&idle, &[]);
    // When only processes are hit, each costs what is promised: none nothing, one dead waiter 5 s,
    // several 10 s.
    let calm = |start: Time, dead: &[Time]| {
        let mut round = round(&[(100, 200), (start, start + 100)]);
        round.is_calm = true;
        round.runs[1].spawned = 150 * MS;
        for (id, at) in (3..).zip(dead) {
            let mut run = Run { id, outcome: Outcome::Signal(9), ..round.runs[0].clone() };
            run.hits = vec![(at * MS, Hit::KillDlock)];
            round.runs.push(run);
        }
        round.told.clear();
        round
    };
    finds(&calm(2100, &[]), &[]);
    finds(&calm(2300, &[]), &[Fault::Stall]);
    finds(&calm(7100, &[180]), &[]);
    // The lease of a hit holder has to end.
    finds(&calm(12_100, &[180]), &[]);
    finds(&calm(12_300, &[180]), &[Fault::Stall]);
    finds(&calm(17_100, &[180, 190]), &[]);
    finds(&calm(17_300, &[180, 190]), &[Fault::Stall]);
    // A run that was hit long after that.
    finds(&calm(7100, &[7200]), &[Fault::Stall]);
}

#[test]
fn an_end_that_nothing_explains() {
    let with = |outcome| {
        let mut round = round(&[(100, 200), (300, 400)]);
        round.runs[1].outcome = outcome;
        round
    };
    finds(&with(Outcome::Status(75)), &[Fault::Status]);
    finds(&with(Outcome::Status(3)), &[Fault::Status]);
    finds(&with(Outcome::Signal(9)), &[Fault::Status]);
    finds(&with(Outcome::Status(101)), &[Fault::Status]);
    finds(&with(Outcome::Status(79)), &[Fault::Loss]);
    // An outage of less than half the ttl explains nothing, a longer one does.
    let mut lost = with(Outcome::Status(79));
    lost.troubles.push(trouble(0, 300, false));
    finds(&lost, &[Fault::Loss]);
    let mut lost = round(&[(100, 200), (300, 9000)]);
    lost.runs[1].outcome = Outcome::Status(79);
    lost.troubles.push(trouble(4000, 8000, false));
    finds(&lost, &[]);
    // A run that ends for lack of memory is as good as killed; its job may not go on.
    let mut starved = with(Outcome::Signal(6));
    finds(&starved, &[Fault::Status]);
    starved.runs[1].hits.push((0, Hit::LittleMemory));
    finds(&starved, &[]);
    starved.runs[1].ended = 300 * MS;
    starved.lives[1].last = 300 * MS + TTL + MS;
    finds(&starved, &[Fault::Status]);
    // No job ran, and the status is a job's.
    let mut missing = round(&[(100, 200), (300, 400)]);
    missing.lives.pop();
    missing.registers.insert(0, 2);
    missing.told.clear();
    finds(&missing, &[Fault::Status]);
    missing.runs[1].kind = Kind::OncePer(SECOND);
    finds(&missing, &[]);
    // A run with too few processes for a guard or a job has none.
    missing.runs[1].kind = Kind::Plain;
    for status in [70, 126] {
        missing.runs[1].outcome = Outcome::Status(status);
        finds(&missing, &[Fault::Status]);
        missing.runs[1].hits = vec![(0, Hit::FewTasks)];
        finds(&missing, &[]);
        missing.runs[1].hits.clear();
    }
}

#[test]
fn too_soon_again() {
    let with = |kind, again| {
        let mut soon = round(&[(1000, 1100), (again, again + 50)]);
        soon.runs.iter_mut().for_each(|run| run.kind = kind);
        soon
    };
    let mut soon = with(Kind::MinHold(SECOND), 1900);
    finds(&soon, &[Fault::TooSoon]);
    // Counted in whole milliseconds it is a second.
    (soon.lives[0].fence, soon.lives[1].fence) = (1_000_900, 2_000_100);
    soon.told.clear();
    finds(&soon, &[]);
    finds(&with(Kind::OncePer(SECOND), 1300), &[Fault::TooSoon]);
    // It may have reached the store so much later.
    finds(&with(Kind::OncePer(SECOND), 1900), &[]);
    // It came long before the grant of the other one.
    let mut repeated = with(Kind::OncePer(SECOND), 9000);
    repeated.runs[1].spawned = 100 * MS;
    finds(&repeated, &[Fault::TooSoon]);
}

#[test]
fn a_job_that_runs_twice_or_for_nobody() {
    let mut twice = round(&[(100, 200), (300, 400)]);
    twice.lives[1].run = 1;
    twice.runs.pop();
    finds(&twice, &[Fault::Twice, Fault::Metrics]);
    twice.lives[1].run = 7;
    twice.told.clear();
    twice.registers.insert(0, 2);
    finds(&twice, &[Fault::Twice]);
}

#[test]
fn a_store_that_reports_wrong_numbers() {
    let good = round(&[(1000, 2000), (3000, 4000)]);
    let told = |change: &dyn Fn(&mut Told)| {
        let mut round = good.clone();
        change(round.told.get_mut("k").expect("it is there"));
        round
    };
    finds(&told(&|told| told.history[0].status = Some(3)), &[Fault::History]);
    finds(&told(&|told| told.history[0].outcome = "expired".into()), &[Fault::History]);
    finds(&told(&|told| told.history[0].fence = 1), &[Fault::History]);
    finds(&told(&|told| told.grants = 1), &[Fault::Metrics]);
    finds(&told(&|told| told.grants = 3), &[Fault::Metrics]);
    // The first grant was not received before its lease was over.
    let mut deaf = told(&|told| told.grants = 3);
    deaf.runs[0].spawned = 0;
    deaf.troubles.push(trouble(0, 900, false));
    finds(&deaf, &[Fault::Metrics]);
    deaf.runs[0].ttl = 900 * MS;
    finds(&deaf, &[]);
    // A directory on a full disk releases without recording the end.
    let mut full = told(&|told| drop(told.history.remove(0)));
    finds(&full, &[Fault::History]);
    full.troubles.push(Trouble { kind: FULL_DIRECTORY, ..trouble(3500, 4001, false) });
    finds(&full, &[]);
    finds(&told(&|told| told.succeeded = 3), &[Fault::Metrics]);
    finds(&told(&|told| told.state = "held".into()), &[Fault::LeftOver]);
    finds(&told(&|told| told.waiters = 1), &[Fault::LeftOver]);
    let mut left = good.clone();
    left.left_over.push("a file".into());
    finds(&left, &[Fault::LeftOver]);
}

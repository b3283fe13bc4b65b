//! A simulated fleet under faults: machines, processes, a network and a server under one virtual
//! clock, all in this process. The lock rules and the code that acquires, waits, renews and gives
//! back are the real ones. A seed decides everything, so a failure can be played again:
//! `DLOCK_FLEET=SEED cargo test one_fleet -- --nocapture`, preceded by
//! `DLOCK_FLEET_PLANTED=KillsLate DLOCK_FLEET_NIGHT=Crashes` if that fault was planted.

#![expect(clippy::expect_used, reason = "a fleet that cannot be built is a fault of the test")]

mod dice;
mod judge;
mod nemesis;
mod network;
mod run;
mod time;

use crate::lock::{Key, Mode, Name, Names, Owner, Ttl};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Patience, Terms};
use dice::Dice;
use network::{Net, Weather};
use run::{Plan, Wants, begin, token};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use time::{MS, MachineId, Nanos, Processes, SECOND, Sim};

/// A fault planted on purpose, to test that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// I1: a lease ends for the server before it ends for its holder.
    EndsLeasesEarly,
    /// I1: two holders have the same slot.
    GivesOneSlotTwice,
    /// I2: a release by a token that holds nothing frees another one's lock.
    FreesForOthers,
    /// I3: the server writes a little later than it reads.
    WritesLater,
    /// I4: a released token can be granted the lock again by a late request.
    ForgetsWhoLeft,
    /// I5: fences do not grow.
    RepeatsFences,
    /// I6: the holder assumes a longer lease than it asked for.
    CountsTooLong,
    /// I6: a refused renewal counts as successful.
    BelievesInAnyRenewal,
    /// I6: a renewal extends a hold that a late request was granted after the holder's own had ended.
    RenewsAnyGrant,
    /// I6: the clock of a machine stands still while the machine is suspended.
    ClockStands,
    /// I6: a job is started although its lease is too old.
    StartsTooLate,
    /// I7: the guard kills too late.
    KillsLate,
    /// I7: dlock waits for a guard that does not run.
    TrustsTheGuard,
    /// I8: the lock is given back before the job is dead.
    GivesBackFirst,
    /// I9: the waiter that came last is granted the lock first.
    ServesTheNewest,
    /// I9: dead waiters keep their places.
    WaitsForTheSilent,
    /// I10: the next waiter starts its job without a grant.
    StartsUnconfirmed,
    /// I11: the last waiter, giving up, leaves its place in the queue for ever.
    LeavesItsPlace,
    /// I13: a min-hold is not kept.
    IgnoresMinHold,
    /// Once a tick: a success counts for a time from its grant, not for those that it kept waiting.
    RepeatsTicks,
    /// Once a tick: a success counts for longer.
    LosesTicks,
    /// A run that fails pauses nothing.
    ForgetsFailures,
    /// What a waiter expects is recorded when it joins, and not when it confirms.
    ExpectsAtTheJoin,
    /// A grant drops what was expected, as that of an older dlock does.
    DropsWhatIsExpected,
    /// Nobody is to announce a missed tick.
    AnnouncesNothing,
    /// What was announced is forgotten.
    ForgetsAnnouncements,
    /// It is announced again at once, as if an hour had passed.
    AnnouncesAgain,
}

/// What is done to a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Night {
    Calm,
    /// Messages are delayed, lost, repeated and late.
    Weather,
    /// Processes and machines are killed, stopped and suspended.
    Crashes,
    /// Links break, in one direction or both; the server stops and is started again.
    Cuts,
    /// All of that, and an operator.
    Everything,
    /// The server forgets everything.
    Forgets,
    /// The server's clock is stepped.
    Steps,
}

const NIGHTS: [Night; 7] = [
    Night::Calm,
    Night::Weather,
    Night::Crashes,
    Night::Cuts,
    Night::Everything,
    Night::Forgets,
    Night::Steps,
];

/// From this time on no more faults happen.
const QUIET: Nanos = 20 * SECOND;
/// By this time every run is over.
const END: Nanos = QUIET + 200 * SECOND;
/// The `--once-per` of those that have it.
const ONCE_PER: Duration = Duration::from_secs(2);
/// The `--pause-on-failure` of those that have it.
const PAUSE: Duration = Duration::from_secs(1);
/// This long after the last run nothing may be left in the records: longer than any lease, min-hold
/// or late message, and than eight steps can set the clock back.
const AFTER: Nanos = 100 * SECOND;

/// The result of a fleet.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "two outcomes are compared by what is printed of them")]
struct Outcome {
    found: Vec<String>,
    jobs: usize,
    grants: u64,
    faults: u64,
    /// A hash of what every job did, to compare two histories.
    history: u64,
}

struct Fleet {
    sim: Arc<Sim>,
    net: Arc<Net>,
    night: Night,
    dice: Dice,
    machines: Vec<MachineId>,
    runs: Vec<Processes>,
    faults: u64,
}

/// Plays one fleet to its end. The seed also decides the night if none is given.
fn play(seed: u64, planted: Planted, night: Option<Night>) -> Outcome {
    let mut dice = Dice(seed);
    let drawn = *dice.pick(&NIGHTS);
    let night = night.unwrap_or(drawn);
    let sim = Sim::new(planted == Planted::ClockStands);
    let weather = Weather { delay: dice.between(MS / 10, 2 * MS), ..Weather::FINE };
    let net = Net::new(Arc::clone(&sim), planted, Dice(dice.next()), weather, drift(&mut dice));
    let machines = (0..dice.between(2, 4))
        .map(|_| sim.machine(dice.below(1_000_000 * SECOND), drift(&mut dice)))
        .collect();
    let mut fleet = Fleet { sim, net, night, dice, machines, runs: Vec::new(), faults: 0 };
    fleet.people();
    fleet.nemesis();
    fleet.end()
}

/// Half a percent at most: for two clocks that is what [`Schedule::deadline`] allows for.
fn drift(dice: &mut Dice) -> i64 {
    i64::try_from(dice.below(9800)).unwrap_or(0) - 4900
}

impl Fleet {
    fn people(&mut self) {
        let is_mixed = self.dice.one_in(3);
        let count = self.dice.between(4, 12);
        for number in 0..count {
            let plan = self.plan(number, is_mixed);
            let dice = Dice(self.dice.next());
            self.runs.push(begin(&self.net, plan, dice));
        }
    }

    fn plan(&mut self, number: u64, is_mixed: bool) -> Plan {
        let dice = &mut self.dice;
        let name = |key: &str| Name::new("dlock:", &Key::new(key).expect("a key")).expect("a name");
        let names = match dice.below(8) {
            0 => Names::new(name("a"), [name("b")]),
            1 | 2 => Names::from(name("b")),
            _ => Names::from(name("a")),
        };
        let mode = match dice.below(5) {
            0 if is_mixed => Mode::Shared,
            1 | 2 if is_mixed => Mode::Slots(2),
            _ => Mode::Exclusive,
        };
        let ms = Duration::from_millis;
        let ttl = Ttl::new(ms(dice.between(500, 4000))).expect("a ttl");
        let grace = ms(dice.between(0, 1000));
        let believed = match self.net.planted {
            Planted::CountsTooLong => Ttl::new(ttl.get() * 3 / 2).expect("a ttl"),
            _ => ttl,
        };
        let lasts = if dice.one_in(5) { dice.below(8 * SECOND) } else { dice.below(1500 * MS) };
        Plan {
            machine: *dice.pick(&self.machines),
            at: dice.below(10 * SECOND),
            names,
            ask: Ask {
                token: token(number),
                mode,
                ttl: ttl.get(),
                min_hold: if dice.one_in(5) { ms(dice.between(100, 1500)) } else { Duration::ZERO },
                owner: Owner { ttl: Some(ttl.get()), ..Owner::default() },
                patience: Patience::Queue,
                terms: Terms {
                    pause_on_failure: dice.one_in(5).then_some(PAUSE),
                    once_per: (mode == Mode::Exclusive && dice.one_in(3)).then_some(ONCE_PER),
                    // Nothing, that nothing is expected, or one of two periods.
                    expect: number.is_multiple_of(2).then_some(PAUSE * (number / 2 % 3) as u32),
                    replaces: self.night != Night::Calm && mode == Mode::Exclusive && dice.one_in(6),
                    ..Terms::default()
                },
                waited: Duration::ZERO,
                has_waited: false,
            },
            until: match dice.below(6) {
                0 => Wants::Now,
                1 | 2 => Wants::Within(ms(dice.between(100, 6000))),
                _ => Wants::InTheEnd,
            },
            schedule: Schedule::new(believed, grace, Duration::from_secs(1)),
            grace: u64::try_from(grace.as_nanos()).unwrap_or(0),
            lasts,
            ends_in: if dice.one_in(3) { 30 * SECOND } else { dice.below(1200 * MS) },
            writes_after: if dice.one_in(4) {
                lasts + dice.below(10 * SECOND)
            } else {
                dice.below(lasts.max(1))
            },
        }
    }

    fn end(self) -> Outcome {
        let Self { sim, net, runs, .. } = self;
        let is_over = || runs.iter().all(|run| sim.is_dead(run.dlock));
        while sim.now() < QUIET || (sim.now() < END && !is_over()) {
            sim.park(0, sim.now() + SECOND);
        }
        let all_served = is_over();
        sim.park(0, sim.now() + AFTER);
        let (table, time, now) = (net.table(), net.time(), sim.now());
        let panics = sim.finish(0);
        let mut judge = net.judge();
        judge.sums_up(&table, time, now);
        let mut found = std::mem::take(&mut judge.found);
        found.extend(panics);
        if !all_served {
            found.push("I9: a run still waits although nothing happens any more".into());
        }
        let mut history = DefaultHasher::new();
        format!("{:?}", judge.jobs).hash(&mut history);
        let history = history.finish();
        Outcome { found, jobs: judge.jobs.len(), grants: judge.grants, faults: self.faults, history }
    }
}

/// The result of the fleet with this seed. It has a thread of its own, which becomes a part of the
/// fleet.
fn played(seed: u64, planted: Planted, night: Option<Night>) -> Outcome {
    std::thread::spawn(move || play(seed, planted, night)).join().expect("the fleet came to its end")
}

/// Plays fleets on all processors until `look` finds something.
fn first<T: Send>(seeds: u64, look: impl Fn(u64) -> Option<T> + Sync) -> Option<T> {
    let (next, found) = (AtomicU64::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while found.lock().expect("nobody panics").is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    if let Some(it) = look(seed) {
                        found.lock().expect("nobody panics").get_or_insert(it);
                    }
                }
            });
        }
    });
    found.into_inner().expect("nobody panics")
}

/// Number of fleets to play: more with --soak.
fn fleets(usual: u64) -> u64 {
    if std::env::var_os("DLOCK_SOAK").is_some() { usual * 50 } else { usual }
}

#[test]
fn fleets_keep_their_promises() {
    let total = Mutex::new(Outcome::default());
    let (began, count) = (std::time::Instant::now(), fleets(600));
    let broken = first(count, |seed| {
        let outcome = played(seed, Planted::Nothing, None);
        let mut total = total.lock().expect("nobody panics");
        total.jobs += outcome.jobs;
        total.grants += outcome.grants;
        total.faults += outcome.faults;
        (!outcome.found.is_empty()).then(|| format!("DLOCK_FLEET={seed}: {:?}", outcome.found))
    });
    assert_eq!(broken, None);
    let total = total.into_inner().expect("nobody panics");
    let (jobs, grants, faults) = (total.jobs, total.grants, total.faults);
    println!("{count} fleets in {:?}: {jobs} jobs, {grants} grants, {faults} faults", began.elapsed());
    assert!(jobs > 1000 && grants > 1000 && faults > 500, "{total:?}");
}

/// Each fault, the invariant that it breaks, and a night on which that shows. A violation that is
/// excused for a while after the server forgot or its clock was stepped is found on such a night,
/// too, if it lasts longer.
const ALL: [(Planted, &str, Night); 32] = [
    (Planted::EndsLeasesEarly, "I1", Night::Everything),
    (Planted::GivesOneSlotTwice, "I1", Night::Weather),
    (Planted::FreesForOthers, "I2", Night::Everything),
    (Planted::WritesLater, "I3", Night::Weather),
    (Planted::ForgetsWhoLeft, "I4", Night::Weather),
    (Planted::RepeatsFences, "I5", Night::Weather),
    (Planted::RepeatsFences, "I5", Night::Forgets),
    (Planted::CountsTooLong, "I6", Night::Cuts),
    (Planted::BelievesInAnyRenewal, "I6", Night::Everything),
    (Planted::BelievesInAnyRenewal, "I1", Night::Forgets),
    (Planted::BelievesInAnyRenewal, "I1", Night::Steps),
    (Planted::RenewsAnyGrant, "I6", Night::Crashes),
    (Planted::ClockStands, "I6", Night::Crashes),
    (Planted::StartsTooLate, "I6", Night::Everything),
    (Planted::KillsLate, "I7", Night::Crashes),
    (Planted::TrustsTheGuard, "I7", Night::Everything),
    (Planted::GivesBackFirst, "I8", Night::Everything),
    (Planted::ServesTheNewest, "I9", Night::Weather),
    (Planted::WaitsForTheSilent, "I9", Night::Everything),
    (Planted::StartsUnconfirmed, "I10", Night::Calm),
    (Planted::LeavesItsPlace, "I11", Night::Weather),
    (Planted::IgnoresMinHold, "I13", Night::Weather),
    (Planted::IgnoresMinHold, "I13", Night::Forgets),
    (Planted::IgnoresMinHold, "I13", Night::Steps),
    (Planted::RepeatsTicks, "Tick", Night::Calm),
    (Planted::LosesTicks, "Tick", Night::Weather),
    (Planted::ForgetsFailures, "Pause", Night::Crashes),
    (Planted::ExpectsAtTheJoin, "Expected", Night::Weather),
    (Planted::DropsWhatIsExpected, "Expected", Night::Calm),
    (Planted::AnnouncesNothing, "Announced", Night::Crashes),
    (Planted::ForgetsAnnouncements, "Announced", Night::Weather),
    (Planted::AnnouncesAgain, "Announced", Night::Calm),
];

/// A fault that shows in one of some thousand fleets, and a seed shortly before one of these.
const RARE: (Planted, u64) = (Planted::StartsTooLate, 2650);

/// Each fault is found as a violation of its own invariant, not only by consequences.
#[test]
fn planted_faults_are_found() {
    for (planted, broken, night) in ALL {
        let named = format!("{broken}:");
        let begin = if planted == RARE.0 { RARE.1 } else { 0 };
        let found = first(5000, |seed| {
            let seed = begin + seed;
            let found = played(seed, planted, Some(night)).found;
            let found = found.into_iter().find(|found| found.starts_with(&named))?;
            Some(format!(
                "DLOCK_FLEET={seed} DLOCK_FLEET_PLANTED={planted:?} DLOCK_FLEET_NIGHT={night:?}: {found}"
            ))
        });
        let found = found.unwrap_or_else(|| unreachable!("{planted:?} is not found in 5000 fleets"));
        println!("{found}");
    }
}

#[test]
fn the_same_seed_has_the_same_history() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| format!("{:?}", played(seed, Planted::Nothing, None)));
        assert_eq!(one, other, "seed {seed}");
        seen.insert(one);
    }
    assert!(seen.len() > 10, "other seeds have other histories: {seen:?}");
}

/// Plays one fleet again, for debugging.
#[test]
fn one_fleet() {
    let asked = |name: &str| std::env::var(name).ok();
    let seed = asked("DLOCK_FLEET").and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let planted = asked("DLOCK_FLEET_PLANTED").map_or(Planted::Nothing, |name| {
        let mut all = ALL.into_iter().map(|(planted, ..)| planted);
        all.find(|planted| format!("{planted:?}") == name).expect("a fault that can be planted")
    });
    let night = asked("DLOCK_FLEET_NIGHT").map(|name| {
        NIGHTS.into_iter().find(|night| format!("{night:?}") == name).expect("a night that there is")
    });
    println!("{:?}", played(seed, planted, night));
}

//! Was anything promised that did not hold? The judge of a night: what the jobs said of themselves, against what was done to
//! them and to the store, and what docs/guarantees.md grants for that. It knows no process and no server.

use super::lives::Life;
use dlock::lock::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Nanoseconds of CLOCK_BOOTTIME.
pub type Time = u64;

pub const SECOND: Time = 1_000_000_000;

/// What a machine with two processors takes longer for than is promised, beside what was felt of it (a trouble of its own).
const SLACK: Time = SECOND;

/// The kind of trouble that a busy machine is by itself, and how much before and after what was felt of it counts as trouble: what
/// others were told to wait for a second for may have begun before, and end after it.
pub const BUSY: &str = "busy machine";
pub const BUSY_AROUND: Time = SECOND;

/// The kind of trouble in which a directory writes down no ends: giving a lock back needs the room more.
pub const FULL_DIRECTORY: &str = "fill the disk of a directory";

/// How a run asks for its lock, where that changes what may be expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// Its command is another run under the same key.
    Nested,
    /// A script that acquires and releases: nothing stops it when its lease ends.
    Script,
    /// At most one success within so long.
    OncePer(Time),
    /// The lock is kept for so long after the grant.
    MinHold(Time),
    /// The newest wins.
    Replace,
}

/// What was done to the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hit {
    KillDlock,
    KillGuard,
    KillJob,
    /// dlock and its guard: nobody is left to stop the job.
    KillBoth,
    /// Stopped for a while, dlock or its guard.
    Stop,
    StopJob,
    /// Stopped for a while, all of them, as if their machine stood still.
    StopAll,
    /// What was stopped goes on.
    Continue,
    Interrupt,
    /// It was started with fewer descriptors than it may need.
    FewFiles,
    /// It was started with less memory than it may need.
    LittleMemory,
    /// It may have fewer processes and threads at a time than it may need.
    FewTasks,
}

/// How the process that was started ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Status(i32),
    Signal(i32),
}

/// One run, as who started it knows it.
#[derive(Debug, Clone)]
pub struct Run {
    pub id: u64,
    pub keys: Vec<&'static str>,
    pub mode: Mode,
    pub kind: Kind,
    pub ttl: Time,
    pub waits: bool,
    /// The status that its job is to end with.
    pub wanted: i32,
    /// The numbers of the job's registers, the slot not added.
    pub registers: Vec<usize>,
    pub spawned: Time,
    pub ended: Time,
    pub outcome: Outcome,
    pub hits: Vec<(Time, Hit)>,
    /// What it said on standard error.
    pub said: String,
}

/// Something that was done to the store, or to the way to it.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub kind: &'static str,
    pub from: Time,
    /// When it was over.
    pub until: Time,
    /// Whether it makes the store forget, or its clock jump: then two may hold the lock for a while.
    pub forgets: bool,
    /// Whether a server lost what it had recorded, though the lock itself may be kept by others.
    pub empties: bool,
}

/// Who stood in the queue of one lock, the first one first, seen by somebody who was answered before that moment.
#[derive(Debug, Clone)]
pub struct Sighting {
    pub at: Time,
    /// Runs.
    pub waiting: Vec<u64>,
}

/// What the store tells of a key when all is over.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub history: Vec<Ended>,
    /// `dlock_grants_total`
    pub grants: u64,
    /// `dlock_jobs_total{result="succeeded"}`
    pub succeeded: u64,
    pub state: String,
    pub waiters: usize,
}

/// One entry of a history.
#[derive(Debug, Clone)]
pub struct Ended {
    pub fence: u64,
    pub outcome: String,
    pub status: Option<i64>,
}

/// Everything known of one round.
#[derive(Debug, Clone, Default)]
pub struct Round {
    pub runs: Vec<Run>,
    pub lives: Vec<Life>,
    pub troubles: Vec<Trouble>,
    pub sightings: Vec<Sighting>,
    pub registers: BTreeMap<usize, u64>,
    pub told: BTreeMap<&'static str, Told>,
    /// Whether waiters are served in the order in which they came.
    pub has_queue: bool,
    /// Whether only processes were hit, so that nothing but they and a busy machine may keep a lock from anybody.
    pub is_calm: bool,
    /// Whether a lock is free at once when dlock and its guard are dead, as in a directory. Else it is when the lease ends.
    pub frees_at_once: bool,
    /// What was found left over.
    pub left_over: Vec<String>,
}

/// What may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Overlap,
    Fence,
    LostUpdate,
    Stale,
    Order,
    Stall,
    Status,
    Loss,
    TooSoon,
    History,
    Metrics,
    LeftOver,
    Twice,
}

/// What the judge says.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub faults: Vec<(Fault, String)>,
    pub grants: usize,
    /// How many overlaps there were that the guarantees grant, and how long they were.
    pub granted_overlaps: Vec<Time>,
    /// How often a register refused somebody who was too late.
    pub refused: u64,
    pub accepted: u64,
    /// Additions that a register took and does not have.
    pub lost: u64,
    /// Of how many pairs it was judged whether the one that came first had its turn first.
    pub pairs: usize,
    /// For how long a run waited, at most, after the last job before it had ended.
    pub longest_stall: Time,
}

impl Verdict {
    /// How many overlaps there were that nothing grants.
    pub fn overlaps(&self) -> usize {
        self.faults.iter().filter(|(fault, _)| *fault == Fault::Overlap).count()
    }
}

/// A run's life, with the run.
#[derive(Clone, Copy)]
pub struct Lived<'a> {
    pub run: &'a Run,
    pub life: &'a Life,
}

/// The lives of those that somebody started, in the order in which they began.
pub fn lived(round: &Round) -> Vec<Lived<'_>> {
    let by_id: BTreeMap<u64, &Run> = round.runs.iter().map(|run| (run.id, run)).collect();
    let mut lived: Vec<Lived> =
        round.lives.iter().filter_map(|life| by_id.get(&life.run).map(|run| Lived { run, life })).collect();
    lived.sort_by_key(|lived| lived.life.start);
    lived
}

impl fmt::Display for Lived<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, life } = self;
        write!(
            f,
            "run {} ({:?} {:?} {:?}, ttl {:.1} s, {:?}) {:.4}–{:.4}{} fence {} slot {:?}, hit {:?}",
            run.id,
            run.keys,
            run.mode,
            run.kind,
            seconds(run.ttl),
            run.outcome,
            seconds(life.start),
            seconds(life.last),
            if life.ended { "" } else { "†" },
            life.fence,
            life.slot,
            run.hits.iter().map(|(at, hit)| format!("{hit:?} {:.4}", seconds(*at))).collect::<Vec<_>>(),
        )
    }
}

pub fn seconds(time: Time) -> f64 {
    std::time::Duration::from_nanos(time).as_secs_f64()
}

/// Judges a round.
pub fn judge(round: &Round) -> Verdict {
    let mut verdict = Verdict::default();
    let started: BTreeSet<u64> = round.runs.iter().map(|run| run.id).collect();
    for life in round.lives.iter().filter(|life| !started.contains(&life.run)) {
        verdict.faults.push((Fault::Twice, format!("nobody started {life:?}")));
    }
    let lived = lived(round);
    verdict.grants = lived.len();
    let mut judge = Judge { round, lived, verdict };
    judge.each_lived_once();
    judge.nobody_meets();
    judge.fences_grow();
    judge.no_update_is_lost();
    judge.served_in_order();
    judge.nobody_stands_idle();
    judge.ends_are_explained();
    judge.not_too_soon();
    judge.what_is_told_is_true();
    judge.nothing_is_left();
    judge.verdict
}

struct Judge<'a> {
    round: &'a Round,
    lived: Vec<Lived<'a>>,
    verdict: Verdict,
}

impl Judge<'_> {
    fn fault(&mut self, fault: Fault, what: String) {
        self.verdict.faults.push((fault, what));
    }

    fn is_safe(&self) -> bool {
        !self.round.troubles.iter().any(|trouble| trouble.forgets)
    }

    fn remembers(&self) -> bool {
        !self.round.troubles.iter().any(|trouble| trouble.forgets || trouble.empties)
    }

    /// How much of a span the store was in trouble.
    fn trouble(&self, from: Time, until: Time) -> Time {
        let clip = |trouble: &Trouble| (trouble.from.max(from), trouble.until.min(until));
        let mut spans: Vec<_> = self.round.troubles.iter().map(clip).filter(|(a, b)| a < b).collect();
        spans.sort_unstable();
        let (mut sum, mut end) = (0, 0);
        for (a, b) in spans {
            sum += b.saturating_sub(a.max(end));
            end = end.max(b);
        }
        sum
    }

    /// The troubles of a span, for whoever looks for a cause.
    fn troubles(&self, from: Time, until: Time) -> Vec<String> {
        let near = self.round.troubles.iter().filter(|one| one.from < until && one.until > from);
        let shown =
            |one: &Trouble| format!("{} {:.3}–{:.3}", one.kind, seconds(one.from), seconds(one.until));
        near.map(shown).collect()
    }

    fn forgot(&self, from: Time, until: Time) -> bool {
        self.round.troubles.iter().any(|one| one.forgets && one.from < until && one.until > from)
    }

    fn each_lived_once(&mut self) {
        let mut seen = BTreeMap::new();
        for lived in self.lived.clone() {
            if let Some(other) = seen.insert(lived.run.id, lived) {
                self.fault(Fault::Twice, format!("one run, two jobs: {other} and {lived}"));
            }
        }
    }

    fn nobody_meets(&mut self) {
        let lived = self.lived.clone();
        let mut still: Vec<Lived> = Vec::new();
        for new in lived {
            still.retain(|old| old.life.last > new.life.start);
            for old in &still {
                if !exclude(*old, new) || old.run.id == new.run.id {
                    continue;
                }
                let (from, until) = (new.life.start, old.life.last.min(new.life.last));
                let elder = if old.life.fence < new.life.fence { *old } else { new };
                if self.grants_overlap(elder, from, until) {
                    self.verdict.granted_overlaps.push(until - from);
                } else {
                    let near = self.troubles(from.saturating_sub(2 * elder.run.ttl), until);
                    let ms = seconds(until - from) * 1000.0;
                    self.fault(
                        Fault::Overlap,
                        format!(
                            "for {ms:.1} ms from {:.4}: {old}\n   and {new}\n   troubles: {near:?}",
                            seconds(from)
                        ),
                    );
                }
            }
            still.push(new);
        }
    }

    /// Whether docs/guarantees.md says that this may be.
    fn grants_overlap(&self, elder: Lived, from: Time, until: Time) -> bool {
        let Lived { run, life } = elder;
        // The holder finds out by its next heartbeat, and its job is then dead within the grace; its old deadline stands in any
        // case. A store that is away meanwhile tells it nothing.
        let forgot = |one: &Trouble| {
            let told = run.ttl / 4 + run.ttl / 5 + SLACK + self.trouble(one.until, until);
            one.forgets && one.from <= from && until <= one.until + told.min(run.ttl)
        };
        if self.round.troubles.iter().any(forgot) {
            return true;
        }
        if run.kind == Kind::Script {
            // Its lease began before the request, and is not ended for it.
            return from >= run.spawned + run.ttl
                && (!run.hits.is_empty() || from >= life.start + run.ttl / 2);
        }
        self.was_unguarded(run, from, until)
    }

    /// Whether nobody was left to stop the job of a run whose lease was over, or nobody could.
    fn was_unguarded(&self, run: &Run, from: Time, until: Time) -> bool {
        let times = |kinds: &[Hit]| -> Vec<Time> {
            run.hits.iter().filter(|(_, hit)| kinds.contains(hit)).map(|(at, _)| *at).collect()
        };
        let first = times(&[Hit::KillBoth, Hit::StopAll]).into_iter().min();
        let Some(first) = first.filter(|first| *first <= from) else { return false };
        // It was renewed every quarter of the ttl until then, and perhaps one renewal was late.
        let renewed = first.saturating_sub(run.ttl / 2 + self.trouble(first.saturating_sub(run.ttl), first));
        let over = run.ttl + renewed.max(run.spawned);
        // A store that forgot it has ended it, and there is nobody to hear of that.
        let over = if self.forgot(run.spawned, from) { first } else { over };
        if from < over && !(self.round.frees_at_once && times(&[Hit::KillBoth]).iter().any(|at| *at <= from))
        {
            return false;
        }
        if times(&[Hit::KillBoth]).iter().any(|at| *at <= until) {
            return true;
        }
        // Those who stop the job go on with it.
        let on = times(&[Hit::Continue]).into_iter().max().unwrap_or(run.ended);
        until <= on + SLACK + self.trouble(on, until)
    }

    fn fences_grow(&mut self) {
        let mut by_fence: BTreeMap<(&str, u64), Lived> = BTreeMap::new();
        let mut last: BTreeMap<&str, Vec<Lived>> = BTreeMap::new();
        for new in self.lived.clone() {
            for key in new.run.keys.clone() {
                let before = by_fence.insert((key, new.life.fence), new);
                if let Some(old) = before.filter(|old| old.run.id != new.run.id) {
                    self.fault(Fault::Fence, format!("one fence, two grants of {key}: {old} and {new}"));
                }
                // The greatest of those that the new one must not meet: of each mode and slot one is enough.
                let greatest = last.entry(key).or_default();
                let smaller = |old: &&Lived| {
                    exclude(**old, new) && old.life.last < new.life.start && old.life.fence > new.life.fence
                };
                // One whose lock was lost, as is granted, before its job came to start may run after who is next.
                let is_no_excuse = |old: &&Lived| !self.grants_overlap(new, old.life.start, new.life.last);
                if let Some(old) = greatest.iter().filter(smaller).find(is_no_excuse).copied() {
                    let near = self.troubles(new.run.spawned, new.life.last);
                    let what = format!("a fence of {key} fell: {old}, then {new}\n   troubles: {near:?}");
                    self.fault(Fault::Fence, what);
                }
                let alike = |old: &&mut Lived| old.run.mode == new.run.mode && old.life.slot == new.life.slot;
                match greatest.iter_mut().find(alike) {
                    Some(old) if old.life.fence < new.life.fence => *old = new,
                    Some(_) => {}
                    None => greatest.push(new),
                }
            }
        }
    }

    fn no_update_is_lost(&mut self) {
        let mut taken: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for lived in self.lived.clone() {
            self.verdict.refused += lived.life.refused;
            for (at, register) in lived.run.registers.iter().enumerate() {
                let slot = lived.life.slot.map_or(0, |slot| usize::try_from(slot).unwrap_or(0));
                let entry = taken.entry(register + slot).or_default();
                entry.0 += lived.life.accepted[at];
                entry.1 += u64::from(lived.life.pending == Some(at));
                self.verdict.accepted += lived.life.accepted[at];
            }
            let has_excuse = !lived.run.hits.is_empty() || lived.run.kind == Kind::Script;
            if lived.life.refused > 0 && self.is_safe() && !has_excuse {
                self.fault(Fault::Stale, format!("it came too late for its register: {lived}"));
            }
        }
        for (register, (sum, pending)) in taken {
            let value = self.round.registers.get(&register).copied().unwrap_or(0);
            self.verdict.lost += sum.saturating_sub(value);
            if !(sum..=sum + pending).contains(&value) {
                let what = format!("register {register} is {value} after {sum} additions that it took");
                self.fault(Fault::LostUpdate, what);
            }
        }
    }

    /// One that was seen in the queue before another was started has its turn before that, and so has one that was seen in front
    /// of another. Of those who came when it had had its turn nothing is learned, so they are not counted.
    fn served_in_order(&mut self) {
        if !self.round.has_queue {
            return;
        }
        let plain = |lived: &&Lived| {
            lived.run.hits.is_empty() && matches!(lived.run.kind, Kind::Plain | Kind::Nested | Kind::Script)
        };
        let undisturbed: BTreeMap<u64, Lived> =
            self.lived.iter().filter(plain).map(|lived| (lived.run.id, *lived)).collect();
        let mut seen: BTreeMap<u64, Time> = BTreeMap::new();
        let mut pairs: BTreeSet<(u64, u64)> = BTreeSet::new();
        for sighting in &self.round.sightings {
            for (place, run) in sighting.waiting.iter().enumerate() {
                let first = seen.entry(*run).or_insert(sighting.at);
                *first = (*first).min(sighting.at);
                pairs.extend(sighting.waiting[place + 1..].iter().map(|behind| (*run, *behind)));
            }
        }
        // Who comes within the same moment may be put in front of another; there it need not stay.
        let spawned = |id: &u64| undisturbed.get(id).map(|lived| lived.run.spawned);
        pairs.retain(|(first, second)| {
            spawned(first).is_some_and(|first| spawned(second) > Some(first + SECOND / 10))
        });
        for (id, first) in &undisturbed {
            let Some(seen) = seen.get(id).copied() else { continue };
            let came = |lived: &&Lived| {
                let shares = first.run.keys.iter().any(|key| lived.run.keys.contains(key));
                shares && lived.run.spawned > seen && lived.run.spawned < first.life.start
            };
            pairs.extend(undisturbed.values().filter(came).map(|second| (*id, second.run.id)));
        }
        for (first, second) in pairs {
            let (Some(first), Some(second)) = (undisturbed.get(&first), undisturbed.get(&second)) else {
                continue;
            };
            if self.may_be_passed_over(first.run.spawned, second.life.start.max(first.life.start)) {
                continue;
            }
            self.verdict.pairs += 1;
            if second.life.fence <= first.life.fence {
                let what = format!("it came later: {second}\n   and overtook {first}");
                self.fault(Fault::Order, what);
            }
        }
    }

    /// Whether somebody who waited then may not have been heard of for so long that he was passed over. A machine that is busy
    /// keeps nobody silent for three seconds and more that starts a program within one.
    fn may_be_passed_over(&self, from: Time, until: Time) -> bool {
        let is_short = |one: &Trouble| one.kind == BUSY && one.until - one.from < 2 * BUSY_AROUND + SECOND;
        let mut near = self.round.troubles.iter().filter(|one| one.from < until && one.until > from);
        near.any(|one| !is_short(one))
    }

    fn nobody_stands_idle(&mut self) {
        let mut ends: BTreeMap<&str, Vec<Time>> = BTreeMap::new();
        for lived in &self.lived {
            for key in &lived.run.keys {
                ends.entry(key).or_default().push(lived.life.last);
            }
        }
        ends.values_mut().for_each(|ends| ends.sort_unstable());
        for lived in
            self.lived.clone().into_iter().filter(|lived| lived.run.waits && lived.run.hits.is_empty())
        {
            let start = lived.life.start;
            let before = |key: &&str| {
                let ends = &ends[*key];
                ends[..ends.partition_point(|end| *end <= start)].last().copied()
            };
            let free = lived.run.keys.iter().filter_map(before).max().unwrap_or(0).max(lived.run.spawned);
            let stall = start.saturating_sub(free);
            self.verdict.longest_stall = self.verdict.longest_stall.max(stall);
            let bound = self.may_stand_idle(lived.run, free, start);
            if stall > bound + self.trouble(free, start) {
                let what = format!(
                    "it waited {:.1} s for nobody, and not {:.1} s: {lived}",
                    seconds(stall),
                    seconds(bound)
                );
                self.fault(Fault::Stall, what);
            }
        }
    }

    /// For how long nobody may have a lock that this run waits for, on a machine that is not busy: a dead waiter costs 5 s, and
    /// several 10 s; over several masters it is 3 s for each lock that is free. Of a holder that was hit the lease has to end.
    fn may_stand_idle(&self, run: &Run, free: Time, start: Time) -> Time {
        if !self.round.is_calm {
            return 20 * SECOND;
        }
        let near = free.saturating_sub(15 * SECOND)..start;
        let hit = |other: &&Run| {
            other.id != run.id
                && other.keys.iter().any(|key| run.keys.contains(key))
                && other.hits.iter().any(|(at, _)| near.contains(at))
        };
        let hit: Vec<&Run> = self.round.runs.iter().filter(hit).collect();
        let lease = hit.iter().filter(|run| run.ended + run.ttl > free).map(|run| run.ttl).max().unwrap_or(0);
        let dead = match (hit.len(), self.round.has_queue) {
            (_, false) => 3 * SECOND,
            (0, true) => 0,
            (1, true) => 5 * SECOND,
            (_, true) => 10 * SECOND,
        };
        // From job to job some programs are started, more of them where a script gives back and takes.
        2 * SLACK + lease + dead
    }

    fn ends_are_explained(&mut self) {
        let lives: BTreeMap<u64, Lived> = self.lived.iter().map(|lived| (lived.run.id, *lived)).collect();
        for run in &self.round.runs {
            let life = lives.get(&run.id).map(|lived| lived.life);
            if let Err((fault, why)) = self.end_is_explained(run, life) {
                let near = self.troubles(run.spawned.saturating_sub(5 * SECOND), run.ended);
                let what = format!("{why}: {run:?}\n   {life:?}\n   troubles, from 5 s before: {near:?}");
                self.verdict.faults.push((fault, what));
            }
        }
    }

    fn end_is_explained(&self, run: &Run, life: Option<&Life>) -> Result<(), (Fault, String)> {
        let has = |hits: &[Hit]| run.hits.iter().any(|(_, hit)| hits.contains(hit));
        let limited = has(&[Hit::FewFiles, Hit::LittleMemory, Hit::FewTasks]);
        let wrong = |why: &str| Err((Fault::Status, why.to_owned()));
        match run.outcome {
            Outcome::Status(status) if status == run.wanted && life.is_some_and(|life| life.ended) => Ok(()),
            Outcome::Status(0) if life.is_none() && matches!(run.kind, Kind::OncePer(_)) => Ok(()),
            Outcome::Status(75) if life.is_none() => Ok(()),
            Outcome::Status(69) if life.is_none() => {
                let explained = self.trouble(run.spawned, run.ended) > 0 || !run.hits.is_empty();
                if explained { Ok(()) } else { wrong("the store was there") }
            }
            // A script that could not give it back, or renew it: the store was away, or the script stood still meanwhile.
            Outcome::Status(69)
                if run.kind == Kind::Script
                    && (self.trouble(run.spawned, run.ended) > 0 || has(&[Hit::Stop, Hit::StopAll])) =>
            {
                Ok(())
            }
            Outcome::Status(69 | 75) => wrong("its job ran all the same"),
            // The job gets TERM then, and may come to its end before the KILL.
            Outcome::Status(70)
                if limited || has(&[Hit::KillGuard, Hit::KillBoth, Hit::Stop, Hit::StopAll]) =>
            {
                Ok(())
            }
            Outcome::Status(71 | 78 | 97 | 126 | 127) if limited && life.is_none() => Ok(()),
            Outcome::Status(79) => {
                let hit = !run.hits.is_empty() || run.kind == Kind::Replace;
                // Where the store is away, giving the lock back takes a while, too.
                let over = life.map_or(run.ended, |life| life.last);
                let from = run.spawned.max(over.saturating_sub(2 * run.ttl));
                let outage = self.trouble(from, run.ended) > run.ttl * 2 / 5;
                if hit || outage || self.forgot(run.spawned, run.ended) {
                    Ok(())
                } else {
                    let why = format!(
                        "the lock was lost after trouble of {:.3} s",
                        seconds(self.trouble(from, run.ended))
                    );
                    Err((Fault::Loss, why))
                }
            }
            // It ended as if it had been killed, and so may its guard, but not both: the job is stopped.
            Outcome::Signal(6 | 11) if has(&[Hit::LittleMemory]) => {
                let lives_on = life.is_some_and(|life| life.last > run.ended + run.ttl);
                if lives_on { wrong("its job lives on") } else { Ok(()) }
            }
            Outcome::Status(134 | 139) if has(&[Hit::LittleMemory]) && life.is_none() => Ok(()),
            Outcome::Signal(9) if has(&[Hit::KillDlock, Hit::KillBoth, Hit::KillJob]) => Ok(()),
            Outcome::Status(137) if has(&[Hit::KillJob]) => Ok(()),
            Outcome::Signal(2 | 15) if has(&[Hit::Interrupt]) => Ok(()),
            Outcome::Status(130 | 143) if has(&[Hit::Interrupt]) => Ok(()),
            // A script of several steps, one of which was hit.
            Outcome::Status(_) if matches!(run.kind, Kind::Script | Kind::Nested) && !run.hits.is_empty() => {
                Ok(())
            }
            _ => wrong("nothing explains how it ended"),
        }
    }

    /// Min-hold and once-per: by the fences, which are microseconds of the store's clock. Both are counted in whole
    /// milliseconds of that.
    fn not_too_soon(&mut self) {
        if !self.remembers() {
            return;
        }
        let mut last: BTreeMap<&str, Lived> = BTreeMap::new();
        let mut by_fence = self.lived.clone();
        by_fence.sort_by_key(|lived| lived.life.fence);
        for new in by_fence {
            let &[key] = &new.run.keys[..] else { continue };
            let span = match new.run.kind {
                Kind::OncePer(span) | Kind::MinHold(span) => span,
                _ => continue,
            };
            if let Some(old) = last.get(key).copied()
                && (new.life.fence / 1000 - old.life.fence / 1000) * 1_000_000 < span
            {
                self.fault(Fault::TooSoon, format!("{old}, and too soon {new}"));
            }
            let counts = match new.run.kind {
                // Only what has succeeded, as far as the store heard of it.
                Kind::OncePer(_) => {
                    new.run.outcome == Outcome::Status(0)
                        && new.run.hits.is_empty()
                        && self.trouble(new.life.last, new.run.ended) == 0
                }
                _ => true,
            };
            if counts {
                last.insert(key, new);
            }
        }
    }

    fn what_is_told_is_true(&mut self) {
        // Over several masters each counts and remembers what it heard itself, and one of them is asked.
        let remembers = self.remembers() && self.round.has_queue;
        for (key, told) in &self.round.told {
            let of_key = |lived: &&Lived| lived.run.keys.contains(key);
            let lives: BTreeMap<u64, Lived> =
                self.lived.iter().filter(of_key).map(|lived| (lived.life.fence, *lived)).collect();
            let mut faults = Vec::new();
            for end in &told.history {
                // One that was hit before it could say anything.
                let Some(lived) = lives.get(&end.fence) else { continue };
                let lived = Some(lived);
                let ran = lived.is_some_and(|lived| lived.life.ended);
                let status = lived.map(|lived| i64::from(lived.run.wanted));
                let script = lived.is_some_and(|lived| lived.run.kind == Kind::Script);
                if end.outcome == "released"
                    && end.status.is_some()
                    && !script
                    && !(ran && end.status == status)
                {
                    let has_excuse = lived.is_some_and(|lived| !lived.run.hits.is_empty());
                    if !has_excuse {
                        faults.push(format!("{key}: the history says {end:?}, and that was {}", show(lived)));
                    }
                }
                let unhurt = lived.is_some_and(|lived| {
                    lived.run.hits.is_empty() && lived.run.outcome == Outcome::Status(lived.run.wanted)
                });
                let trouble = lived.is_some_and(|l| self.trouble(l.life.last, l.run.ended + l.run.ttl) > 0);
                if end.outcome != "released" && unhurt && !script && !trouble && remembers {
                    let near = lived.map(|l| {
                        let run = l.run;
                        let near = self.troubles(run.spawned.saturating_sub(5 * SECOND), run.ended + run.ttl);
                        format!(
                            "{:.4}–{:.4}, {near:?}, {:?}",
                            seconds(run.spawned),
                            seconds(run.ended),
                            run.said
                        )
                    });
                    faults.push(format!("{key}: the history says {end:?} of {}, {near:?}", show(lived)));
                }
            }
            if remembers {
                let known: Vec<u64> = told.history.iter().map(|end| end.fence).collect();
                let missing = lives
                    .values()
                    .rev()
                    .take(known.len().min(48))
                    .find(|lived| !known.contains(&lived.life.fence) && !self.goes_unrecorded(lived));
                if let Some(lived) = missing {
                    let near = self.troubles(lived.life.start, lived.run.ended);
                    let said = &lived.run.said;
                    faults.push(format!("{key}: the history does not tell of {lived}, {near:?}, {said:?}"));
                }
            }
            faults.into_iter().for_each(|fault| self.verdict.faults.push((Fault::History, fault)));
            let of_key = self.round.runs.iter().filter(|run| run.keys.contains(key));
            let (least, most) = (lives.len(), of_key.map(|run| self.grants_of(run)).sum());
            let grants = usize::try_from(told.grants).unwrap_or(usize::MAX);
            if remembers && !(least..=most).contains(&grants) {
                let what = format!("{key}: metrics count {grants} grants; {least} jobs ran in {most} runs");
                self.verdict.faults.push((Fault::Metrics, what));
            }
            let succeeded = lives.values().filter(|lived| lived.life.ended && lived.run.wanted == 0).count();
            if usize::try_from(told.succeeded).unwrap_or(usize::MAX) > succeeded {
                let what =
                    format!("{key}: metrics count {} successes, and there were {succeeded}", told.succeeded);
                self.verdict.faults.push((Fault::Metrics, what));
            }
        }
    }

    /// Whether a history may be without its end.
    fn goes_unrecorded(&self, lived: &Lived) -> bool {
        let full = self.round.troubles.iter().filter(|one| one.kind == FULL_DIRECTORY);
        let mut full = full.filter(|one| one.from < lived.run.ended && one.until > lived.life.last);
        full.next().is_some()
    }

    /// How often a run may have been granted its lock. One that does not hear of a grant before its lease ends asks again.
    fn grants_of(&self, run: &Run) -> usize {
        let deaf =
            if run.hits.is_empty() { self.trouble(run.spawned, run.ended) } else { run.ended - run.spawned };
        1 + usize::try_from(deaf / run.ttl).expect("a few")
    }

    fn nothing_is_left(&mut self) {
        let waits = self.round.told.iter().filter(|(_, told)| told.state != "free" || told.waiters > 0);
        let mut left: Vec<_> =
            waits.map(|(key, told)| format!("{key} is {}, and {} wait", told.state, told.waiters)).collect();
        left.extend(self.round.left_over.clone());
        left.into_iter().for_each(|what| self.fault(Fault::LeftOver, what));
    }
}

fn show(lived: Option<&Lived>) -> String {
    lived.map_or_else(|| "nobody's".to_owned(), ToString::to_string)
}

/// Whether these two may not run at a time.
pub fn exclude(a: Lived, b: Lived) -> bool {
    let meet = a.run.keys.iter().any(|key| b.run.keys.contains(key));
    let together = match (a.run.mode, b.run.mode) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots(one), Mode::Slots(other)) => one == other && a.life.slot != b.life.slot,
        _ => false,
    };
    meet && !together
}

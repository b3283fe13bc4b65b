//! The judge of a night: compares what the jobs recorded with the faults that were made and with
//! what docs/guarantees.md grants for them. It knows no process and no server.

mod ends;
mod evidence;
mod queues;

use super::lives::Life;
use dlock::lock::Mode;
pub use evidence::{Ended, Hit, Kind, Outcome, Round, Run, SECOND, Sighting, Time, Told, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Extra time that a machine with two processors needs beyond what is promised, besides the busy
/// times that were noted (a trouble of their own).
const SLACK: Time = SECOND;

/// The kind of trouble of a busy machine, and how long before and after a noted busy time counts as
/// trouble: a client that was told to wait for a second may have begun before it and end after it.
pub const BUSY: &str = "busy machine";
pub const BUSY_AROUND: Time = SECOND;

/// The kind of trouble in which a directory records no ends: a release needs the room more.
pub const FULL_DIRECTORY: &str = "fill the disk of a directory";

/// A breach of a promise.
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
    /// Found by the foreign judge.
    NotLinearizable,
}

/// The judge's result.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub faults: Vec<(Fault, String)>,
    pub grants: usize,
    /// The lengths of the overlaps that the guarantees grant.
    pub granted_overlaps: Vec<Time>,
    /// Number of times that a register refused a stale fence.
    pub refused: u64,
    pub accepted: u64,
    /// Increments that a register accepted and does not have.
    pub lost: u64,
    /// Number of pairs of waiters whose order was checked.
    pub pairs: usize,
    /// Longest wait of a run after the previous job had ended.
    pub longest_stall: Time,
}

impl Verdict {
    /// Number of overlaps that no guarantee grants.
    pub fn overlaps(&self) -> usize {
        self.faults.iter().filter(|(fault, _)| *fault == Fault::Overlap).count()
    }
}

/// A job's record, with its run.
#[derive(Clone, Copy)]
pub struct Lived<'a> {
    pub run: &'a Run,
    pub life: &'a Life,
}

/// The records of all started runs, in the order of their beginnings.
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

    /// Time within a span in which the store was in trouble.
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

    /// The troubles of a span, for the report.
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

    /// Whether docs/guarantees.md grants this overlap.
    fn grants_overlap(&self, elder: Lived, from: Time, until: Time) -> bool {
        let Lived { run, life } = elder;
        // The holder notices with its next heartbeat, and its job is dead within the grace after
        // that; the old deadline counts in any case. If the store is away meanwhile, the holder
        // learns nothing.
        let forgot = |one: &Trouble| {
            let told = run.ttl / 4 + run.ttl / 5 + SLACK + self.trouble(one.until, until);
            one.forgets && one.from <= from && until <= one.until + told.min(run.ttl)
        };
        if self.round.troubles.iter().any(forgot) {
            return true;
        }
        if run.kind == Kind::Script {
            // The holder's lease began before the request, and the request does not end it.
            return from >= run.spawned + run.ttl
                && (!run.hits.is_empty() || from >= life.start + run.ttl / 2);
        }
        self.was_unguarded(run, from, until)
    }

    /// Whether no process was left, or able, to stop the job of a run whose lease was over.
    fn was_unguarded(&self, run: &Run, from: Time, until: Time) -> bool {
        let times = |kinds: &[Hit]| -> Vec<Time> {
            run.hits.iter().filter(|(_, hit)| kinds.contains(hit)).map(|(at, _)| *at).collect()
        };
        let first = times(&[Hit::KillBoth, Hit::StopAll]).into_iter().min();
        let Some(first) = first.filter(|first| *first <= from) else { return false };
        // The lease was renewed every quarter of the ttl until then, and perhaps one renewal was
        // late.
        let renewed = first.saturating_sub(run.ttl / 2 + self.trouble(first.saturating_sub(run.ttl), first));
        let over = run.ttl + renewed.max(run.spawned);
        // A store that forgot the lease has ended it, and no process is left to notice.
        let over = if self.forgot(run.spawned, from) { first } else { over };
        if from < over && !(self.round.frees_at_once && times(&[Hit::KillBoth]).iter().any(|at| *at <= from))
        {
            return false;
        }
        if times(&[Hit::KillBoth]).iter().any(|at| *at <= until) {
            return true;
        }
        // The processes that stop the job continue with it.
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
                // The greatest fence that the new run must not meet: one of each mode and slot is
                // enough.
                let greatest = last.entry(key).or_default();
                let smaller = |old: &&Lived| {
                    exclude(**old, new) && old.life.last < new.life.start && old.life.fence > new.life.fence
                };
                // A run whose lock was lost, as is granted, before its job started may run after
                // its successor.
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

    /// Checks min-hold by the fences, which are microseconds of the store's clock, in whole
    /// milliseconds as the store does; and once-per by when the runs were started.
    fn not_too_soon(&mut self) {
        if !self.remembers() {
            return;
        }
        let mut last: BTreeMap<&str, Lived> = BTreeMap::new();
        let mut by_fence = self.lived.clone();
        by_fence.sort_by_key(|lived| lived.life.fence);
        for new in by_fence {
            let &[key] = &new.run.keys[..] else { continue };
            let old = last.get(key).copied();
            let is_too_soon = match new.run.kind {
                Kind::MinHold(span) => {
                    old.is_some_and(|old| (new.life.fence / 1000 - old.life.fence / 1000) * 1_000_000 < span)
                }
                // A run arrives when it first tries to reach the store, which a fault may delay.
                Kind::OncePer(span) => old.is_some_and(|old| {
                    let due = (old.run.spawned + span).max(old.life.start);
                    new.run.hits.is_empty() && new.run.spawned + span / 2 < due
                }),
                _ => continue,
            };
            if let Some(old) = old.filter(|_| is_too_soon) {
                self.fault(Fault::TooSoon, format!("{old}, and too soon {new}"));
            }
            let counts = match new.run.kind {
                // Only a success that the store has recorded.
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

/// Whether these two must not run at the same time.
pub fn exclude(a: Lived, b: Lived) -> bool {
    let meet = a.run.keys.iter().any(|key| b.run.keys.contains(key));
    let together = match (a.run.mode, b.run.mode) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots(one), Mode::Slots(other)) => one == other && a.life.slot != b.life.slot,
        _ => false,
    };
    meet && !together
}

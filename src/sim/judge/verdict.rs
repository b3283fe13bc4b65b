//! The checks at the end of a fleet: jobs against each other, and against their own deadlines.

use super::super::time::{MS, Nanos};
use super::{Job, Judge};
use crate::lock::Mode;
use crate::rules::{LockTable, Time};

impl Judge {
    /// The checks at the end.
    pub fn sums_up(&mut self, table: &LockTable, time: Time, now: Nanos) {
        let jobs = self.jobs.clone();
        for (at, job) in jobs.iter().enumerate() {
            for other in &jobs[..at] {
                let both = job.names.iter().find(|name| other.names.contains(name));
                let Some(name) = both.filter(|_| conflict(job, other)) else { continue };
                let overlap = self.together(job, other, now);
                if overlap > 0 {
                    self.blame(format!(
                        "I1: two jobs of {name} run together for {} us: {} {}..{:?} and {} {}..{:?}",
                        overlap / 1000,
                        other.machine,
                        other.start,
                        other.end,
                        job.machine,
                        job.start,
                        job.end
                    ));
                }
            }
            let end = job.end.unwrap_or(now);
            let lease = self.leases.get(&job.token).copied().unwrap_or(0);
            let outlived = outside((lease.max(job.start), end), &self.unwatched(job));
            if outlived > 0 {
                let (names, late) = (&job.names, outlived / 1000);
                self.blame(format!("I6: a job of {names:?} outlives its lease by {late} us, until {end}"));
            }
            let late = outside((job.due.saturating_add(TOLERATED).max(job.start), end), &self.unwatched(job));
            if late > 0 {
                let (names, late) = (&job.names, late / 1000);
                self.blame(format!("I7: a job of {names:?} is killed {late} us too late, at {end}"));
            }
            if job.end.is_none() {
                self.blame(format!("I7: a job of {:?} that began at {} never ends", job.names, job.start));
            }
            if self.is_calm && !job.was_left_alone {
                self.blame(format!("I6: a job of {:?} was disturbed, and nothing had happened", job.names));
            }
        }
        for (name, record) in &table.records {
            let holds = record.holds.values().any(|hold| !hold.until.passed(time) || !hold.cool.passed(time));
            let waits = record.queue.iter().any(|(_, token)| {
                record.waiters.get(token).is_none_or(|waiter| !waiter.stale_at.passed(time))
            });
            if holds || waits {
                self.blame(format!("I11: {name}: something is left: {:?} {:?}", record.holds, record.queue));
            }
        }
    }

    /// How long two jobs ran at the same time, without the exceptions of docs/guarantees.md.
    fn together(&self, one: &Job, other: &Job, now: Nanos) -> Nanos {
        let span = |job: &Job| (job.start, job.end.unwrap_or(now));
        let (a, b) = (span(one), span(other));
        let both = (a.0.max(b.0), a.1.min(b.1));
        if both.0 >= both.1 {
            return 0;
        }
        let mut granted = Vec::new();
        for job in [one, other] {
            // While its lease lasts no other job may run, whatever has become of its processes.
            let lease = self.leases.get(&job.token).copied().unwrap_or(0);
            granted.extend(self.unwatched(job).into_iter().map(|(from, until)| (from.max(lease), until)));
            // After the server forgot, or its clock was stepped, the holder learns of it by its
            // next renewal.
            let since = self.granted.get(&job.token).map_or(0, |(_, at)| *at).min(job.start);
            let hears = job.ttl / 4 + job.ttl / 16 + job.grace.min(job.ttl / 5) + TOLERATED;
            let upsets = self.upsets.iter().filter(|upset| since <= upset.at);
            granted.extend(upsets.map(|upset| (upset.at, upset.heard_from.max(upset.at) + hears)));
        }
        outside(both, &granted)
    }

    /// Times at which nothing could stop a job: its machine was suspended, or dlock and its guard
    /// were both stopped or dead, and a moment after each.
    fn unwatched(&self, job: &Job) -> Vec<(Nanos, Nanos)> {
        let machine = self.suspended.iter().filter(|(machine, ..)| *machine == job.machine);
        let mut spans: Vec<_> = machine.map(|&(_, from, until)| (from, until + TOLERATED)).collect();
        let down = |process| self.down.iter().filter(move |(who, ..)| *who == process);
        for &(_, from, until) in down(job.processes.dlock) {
            for &(_, since, till) in down(job.processes.guard) {
                let (from, until) = (from.max(since), until.min(till));
                if from < until {
                    spans.push((from, until.saturating_add(TOLERATED)));
                }
            }
        }
        spans
    }
}

/// How long a job may run before it is killed, after its machine was suspended or if its guard
/// hangs.
const TOLERATED: Nanos = 15 * MS;

/// How much of a span is outside of all the others.
fn outside((from, until): (Nanos, Nanos), others: &[(Nanos, Nanos)]) -> Nanos {
    let mut others = others.to_vec();
    others.sort_unstable();
    let (mut reached, mut sum) = (from, 0);
    for (since, till) in others.into_iter().filter(|(since, till)| since < till) {
        sum += since.min(until).saturating_sub(reached);
        reached = reached.max(till);
    }
    sum + until.saturating_sub(reached)
}

fn conflict(one: &Job, other: &Job) -> bool {
    match (one.mode, other.mode) {
        (Mode::Shared, Mode::Shared) => false,
        (Mode::Slots(a), Mode::Slots(b)) if a == b => one.slot == other.slot,
        _ => true,
    }
}

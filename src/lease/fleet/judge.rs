//! Was it right? What jobs did, in true time, against what is promised (docs/protocol.md, I1 to I13).

use super::time::{MS, MachineId, Nanos};
use crate::law::{LockTable, Phase, Record, Time};
use crate::lock::{Mode, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A job, as it happened.
#[derive(Debug, Clone)]
pub struct Job {
    pub token: Token,
    pub machine: MachineId,
    pub names: Vec<String>,
    pub mode: Mode,
    pub fence: u64,
    pub slot: Option<u32>,
    pub start: Nanos,
    pub end: Option<Nanos>,
    /// Whether it ended by itself.
    pub was_left_alone: bool,
    /// What it read of each register, to write one more.
    pub read: BTreeMap<String, u64>,
}

/// What the storage behind a lock keeps: it refuses whoever comes with a smaller fence than it has seen.
#[derive(Debug, Default)]
struct Register {
    fence: u64,
    value: u64,
    writes: u64,
}

/// What may happen to a fleet, so what is to be asked of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Excuses {
    /// The server has forgotten, its clock was stepped, or an operator said `--now`: two may run.
    pub overlaps: bool,
    /// Min-holds may be shorter than said: the server's clock was stepped, or an operator ended one.
    pub min_holds: bool,
    /// Nothing happened at all: no job may be disturbed.
    pub calm: bool,
}

#[derive(Debug, Default)]
pub struct Judge {
    pub jobs: Vec<Job>,
    pub found: Vec<String>,
    pub grants: u64,
    pub excuses: Excuses,
    /// Spans in which machines were suspended.
    pub suspended: Vec<(MachineId, Nanos, Nanos)>,
    /// Who has ever stood in a queue, by lock.
    came: BTreeMap<String, BTreeSet<Token>>,
    /// Tokens that were given back by themselves.
    left: BTreeSet<Token>,
    /// Until when an exclusive hold is to be kept at least, in microseconds of the server, and whose it is.
    kept: BTreeMap<String, (Token, u64)>,
    registers: BTreeMap<String, Register>,
}

impl Judge {
    fn blame(&mut self, what: String) {
        if self.found.len() < 8 {
            self.found.push(what);
        }
    }

    /// At a step of the server.
    pub fn looks_at(&mut self, before: &LockTable, after: &LockTable, time: Time, now: Nanos) {
        for (name, record) in &after.records {
            let old = before.records.get(name);
            self.newcomers(name, record, now);
            let granted: Vec<&Token> = record
                .holds
                .keys()
                .filter(|token| old.is_none_or(|old| !old.holds.contains_key(token)))
                .collect();
            for token in granted {
                self.grants += 1;
                self.granted(name, (old, record), token, time, now);
            }
        }
    }

    /// Whoever comes goes to the end of the queue.
    fn newcomers(&mut self, name: &str, record: &Record, now: Nanos) {
        let came = self.came.entry(name.to_owned()).or_default();
        let last =
            record.queue.iter().rev().find(|(_, token)| came.contains(token)).map(|(ticket, _)| *ticket);
        let new: Vec<_> = record.queue.iter().filter(|(_, token)| !came.contains(token)).cloned().collect();
        let is_in_front = new.iter().any(|(ticket, _)| Some(*ticket) < last);
        came.extend(new.into_iter().map(|(_, token)| token));
        if is_in_front {
            self.blame(format!("I9: one comes to {name} and stands before others, at {now}"));
        }
    }

    fn granted(
        &mut self,
        name: &str,
        (old, record): (Option<&Record>, &Record),
        token: &Token,
        time: Time,
        now: Nanos,
    ) {
        if self.left.contains(token) && !self.excuses.overlaps {
            self.blame(format!("I4: {name} is granted to one that has given it back, at {now}"));
        }
        let hold = &record.holds[token];
        if let Some((whose, until)) = self.kept.get(name).cloned()
            && whose != *token
            && time.0 + 2000 < until
            && !self.excuses.min_holds
            && !self.excuses.overlaps
        {
            self.blame(format!(
                "I13: {name} is granted {} us before a min-hold ends, at {now}",
                until - time.0
            ));
        }
        // Whoever has an earlier ticket, is heard of, and wants this lock only.
        let waiter =
            |token: &Token| record.waiters.get(token).or_else(|| old.and_then(|old| old.waiters.get(token)));
        let is_plain = |token: &Token| {
            waiter(token).is_some_and(|waiter| waiter.names.len() == 1 && waiter.mode == Mode::Exclusive)
        };
        let ticket = waiter(token).map(|waiter| waiter.ticket);
        let first = record.queue.iter().find(|(_, other)| is_plain(other));
        if is_plain(token) && first.is_some_and(|(first, _)| Some(*first) < ticket) {
            self.blame(format!("I9: {name} is granted to one that came later, at {now}"));
        }
        if hold.phase == Phase::Held && record.holds.len() > 1 {
            let slots: Vec<u32> = record.holds.values().filter_map(|hold| hold.slot).collect();
            let distinct: BTreeSet<&u32> = slots.iter().collect();
            if distinct.len() < slots.len() {
                self.blame(format!("I1: {name} has a slot twice: {slots:?}, at {now}"));
            }
        }
    }

    /// A hold was given back, and the server said so.
    pub fn left(&mut self, token: &Token) {
        self.left.insert(token.clone());
    }

    /// An operator takes a lock away, and with it its min-hold; perhaps before its job starts.
    pub fn revoked(&mut self) {
        self.excuses.min_holds = true;
    }

    pub fn start(&mut self, mut job: Job, min_hold: Duration) -> usize {
        for name in job.names.iter().filter(|_| job.mode == Mode::Exclusive) {
            let register = self.registers.entry(name.clone()).or_default();
            if job.fence >= register.fence {
                register.fence = job.fence;
                job.read.insert(name.clone(), register.value);
            }
            if !min_hold.is_zero() {
                // A fence is the server's clock at the grant, where that has not been stepped.
                let until = job.fence + u64::try_from(min_hold.as_micros()).unwrap_or(0);
                self.kept.insert(name.clone(), (job.token.clone(), until));
            }
        }
        self.jobs.push(job);
        self.jobs.len() - 1
    }

    /// The job's writes arrive, perhaps long after it.
    pub fn write(&mut self, job: usize) {
        let job = self.jobs[job].clone();
        for (name, value) in &job.read {
            let register = self.registers.entry(name.clone()).or_default();
            if job.fence < register.fence {
                continue;
            }
            register.writes += 1;
            if register.value != *value {
                let text = format!("I5: an update of {name} is lost behind the fence {}", job.fence);
                self.blame(text);
                return;
            }
            register.value += 1;
        }
    }

    pub fn is_over(&self, job: usize) -> bool {
        self.jobs[job].end.is_some()
    }

    pub fn end(&mut self, job: usize, at: Nanos, was_left_alone: bool) {
        let job = &mut self.jobs[job];
        if job.end.is_none() {
            job.end = Some(at);
            job.was_left_alone = was_left_alone;
        }
    }

    pub fn machine_died(&mut self, machine: MachineId, at: Nanos) {
        for job in self.jobs.iter_mut().filter(|job| job.machine == machine && job.end.is_none()) {
            job.end = Some(at);
        }
    }

    /// When everything has ended.
    pub fn sums_up(&mut self, table: &LockTable, time: Time, now: Nanos) {
        let jobs = self.jobs.clone();
        for (at, job) in jobs.iter().enumerate() {
            for other in &jobs[..at] {
                let both = job.names.iter().find(|name| other.names.contains(name));
                let Some(name) = both.filter(|_| conflict(job, other)) else { continue };
                let overlap = self.together(job, other, now);
                if overlap > 0 && !self.excuses.overlaps {
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
                if overlap == 0 && !self.excuses.overlaps {
                    let (first, then) = if other.start < job.start { (other, job) } else { (job, other) };
                    if first.fence >= then.fence {
                        self.blame(format!(
                            "I5: the fence of {name} does not grow: {} to {}",
                            first.fence, then.fence
                        ));
                    }
                }
            }
            if job.end.is_none() {
                self.blame(format!("I7: a job of {:?} that began at {} never ends", job.names, job.start));
            }
            if self.excuses.calm && !job.was_left_alone {
                self.blame(format!("I6: a job of {:?} was disturbed, and nothing had happened", job.names));
            }
        }
        for (name, record) in &table.records {
            let holds = record.holds.values().any(|hold| !hold.until.passed(time) || !hold.cool.passed(time));
            let waits = record
                .queue
                .iter()
                .any(|(_, token)| record.waiters.get(token).is_none_or(|waiter| !waiter.silent.passed(time)));
            if holds || waits {
                self.blame(format!("I11: {name}: something is left: {:?} {:?}", record.holds, record.queue));
            }
        }
    }

    /// For how long two jobs ran at the same time, apart from what a machine that was suspended is granted: it comes back,
    /// and the guard's timer with it.
    fn together(&self, one: &Job, other: &Job, now: Nanos) -> Nanos {
        let span = |job: &Job| (job.start, job.end.unwrap_or(now));
        let (a, b) = (span(one), span(other));
        let (from, to) = (a.0.max(b.0), a.1.min(b.1));
        let mut together = to.saturating_sub(from);
        if together == 0 {
            return 0;
        }
        for job in [one, other] {
            for &(machine, since, until) in &self.suspended {
                if machine == job.machine && since < to && until + GRANTED > from {
                    let apart = (until + GRANTED).min(to).saturating_sub(since.max(from));
                    together = together.saturating_sub(apart);
                }
            }
        }
        together
    }
}

/// So long the job of a machine that was suspended may run before it is killed.
const GRANTED: Nanos = 15 * MS;
fn conflict(one: &Job, other: &Job) -> bool {
    match (one.mode, other.mode) {
        (Mode::Shared, Mode::Shared) => false,
        (Mode::Slots(a), Mode::Slots(b)) if a == b => one.slot == other.slot,
        _ => true,
    }
}

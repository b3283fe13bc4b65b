//! Compares what jobs did, in true time, with what is promised (docs/protocol.md, I1 to I13).

mod ticks;
mod verdict;

use super::time::{MachineId, Nanos, ProcessId, Processes, SECOND};
use crate::lock::{Fence, Mode, Names, Token};
use crate::rules::{Hold, LockTable, Phase, Record, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use ticks::Ticks;

/// A job, as it happened.
#[derive(Debug, Clone)]
pub struct Job {
    pub token: Token,
    pub machine: MachineId,
    pub processes: Processes,
    pub ttl: Nanos,
    pub grace: Nanos,
    /// When it had to be dead, by what dlock had told the guard.
    pub due: Nanos,
    pub names: Vec<String>,
    pub mode: Mode,
    pub fence: u64,
    pub slot: Option<u32>,
    pub start: Nanos,
    pub end: Option<Nanos>,
    /// Whether it ended by itself.
    pub was_left_alone: bool,
    /// The value that it read from each register, to write the next one.
    pub read: BTreeMap<String, u64>,
}

/// The storage behind a lock. It refuses a writer with a smaller fence than it has seen.
#[derive(Debug, Default)]
struct Register {
    fence: u64,
    value: u64,
    writes: u64,
}

/// The part of a server's answer that can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Granted(Fence),
    /// The caller did not get the lock.
    Refused,
    /// It is skipped: the job is done.
    Done,
    Renewed,
    Released,
    Nothing,
}

/// At `at` the server forgot everything, or its clock was stepped. It answered again from
/// `heard_from` on.
#[derive(Debug, Clone, Copy)]
struct Upset {
    at: Nanos,
    heard_from: Nanos,
}

#[derive(Debug, Default)]
pub struct Judge {
    pub jobs: Vec<Job>,
    pub found: Vec<String>,
    pub grants: u64,
    /// No faults happen: no job may be disturbed.
    pub is_calm: bool,
    /// Times at which machines were suspended.
    pub suspended: Vec<(MachineId, Nanos, Nanos)>,
    /// Times at which processes were stopped, or dead because they were killed.
    down: Vec<(ProcessId, Nanos, Nanos)>,
    upsets: Vec<Upset>,
    /// When the server last forgot everything.
    forgot: Option<Nanos>,
    /// All tokens that were ever in a queue, by lock.
    came: BTreeMap<String, BTreeSet<Token>>,
    /// Tokens that were given back by their own run.
    left: BTreeSet<Token>,
    /// Times at which the server did not answer.
    pub away: Vec<(Nanos, Nanos)>,
    /// When the server last received a request with a token.
    heard: BTreeMap<Token, Nanos>,
    /// When a token was last granted its locks, by the server's clock and in true time.
    granted: BTreeMap<Token, (Time, Nanos)>,
    /// The fence in the last grant that was answered, by token.
    told: BTreeMap<Token, Fence>,
    /// When the lease of a token ends in true time, without a further renewal.
    leases: BTreeMap<Token, Nanos>,
    /// The greatest fence granted, by lock.
    fences: BTreeMap<String, u64>,
    /// Tokens whose lock an operator has revoked, and with it their min-hold.
    revoked: BTreeSet<Token>,
    /// Holder and end of the min-hold of each exclusive lock, in microseconds of the server's
    /// clock.
    kept: BTreeMap<String, (Token, u64)>,
    registers: BTreeMap<String, Register>,
    ticks: Ticks,
    /// Until when a failure has paused each lock, in microseconds of the server's clock.
    shut: BTreeMap<String, u64>,
}

impl Judge {
    /// Keeps two violations of each kind, so that the consequences of one fault do not hide
    /// another.
    fn blame(&mut self, what: String) {
        let kind = what.split(':').next().unwrap_or_default();
        if self.found.iter().filter(|found| found.split(':').next() == Some(kind)).count() < 2 {
            self.found.push(what);
        }
    }

    /// Checks one operation of the server. `truly` converts a span of its clock to true time.
    pub fn looks_at(
        &mut self,
        before: &LockTable,
        after: &LockTable,
        by: Option<(&Token, &Names, Said)>,
        (time, now): (Time, Nanos),
        truly: impl Fn(Duration) -> Nanos,
    ) {
        if let Some((token, names, said)) = by {
            self.check_answer(after, token, said, now);
            self.check_ticks(before, after, (token, names, said), now);
            self.check_expected(before, after, (token, names, said), now);
            let has_run = self.jobs.iter().any(|job| job.token == *token);
            if said == Said::Released && has_run && !self.has_succeeded(token) {
                self.failed(before, token, time);
            }
            self.check_other_holds(before, after, token, (time, now));
            self.heard.insert(token.clone(), now);
            // A renewal need not suspend stale waiters: waiters send requests of their own.
            if matches!(said, Said::Granted(_) | Said::Refused | Said::Done) {
                self.check_stale_waiters(after, token, names, now);
            }
        }
        for (name, record) in &after.records {
            let old = before.records.get(name);
            self.check_newcomers(name, record, now);
            let is_new = |token: &Token| old.is_none_or(|old| !old.holds.contains_key(token));
            let mut granted: Vec<_> = record.holds.iter().filter(|(token, _)| is_new(token)).collect();
            // One operation may grant several.
            granted.sort_by_key(|(_, hold)| hold.fence);
            for (token, _) in granted {
                self.grants += 1;
                self.granted(name, (old, record), token, time, now);
            }
            for (token, hold) in &record.holds {
                // An answer that was lost counts, too: the holder may assume a shorter lease, not a
                // longer one.
                if hold.phase == Phase::Held && hold.confirmed && by.is_some_and(|(who, ..)| who == token) {
                    let left = Duration::from_micros((hold.until.0 * 1000).saturating_sub(time.0));
                    self.leases.insert(token.clone(), now + truly(left));
                }
            }
        }
    }

    /// A run gives back what it holds, and has failed.
    fn failed(&mut self, before: &LockTable, token: &Token, time: Time) {
        for (name, record) in &before.records {
            let hold = record.holds.get(token).filter(|hold| hold.confirmed && hold.asked.is_none());
            let hold = hold.filter(|hold| hold.phase == Phase::Held && !hold.until.passed(time));
            if let Some(lasts) = hold.and_then(|hold| hold.pause_on_failure) {
                let until = time.0 + u64::try_from(lasts.as_micros()).unwrap_or(0);
                let shut = self.shut.entry(name.clone()).or_default();
                *shut = until.max(*shut);
            }
        }
    }

    /// Checks that the answer agrees with the records.
    fn check_answer(&mut self, after: &LockTable, token: &Token, said: Said, now: Nanos) {
        let mut holds = after.records.values().filter_map(|record| record.holds.get(token));
        let held = |hold: &Hold| hold.phase == Phase::Held;
        let is_so = match said {
            Said::Granted(_) | Said::Renewed => holds.any(held),
            Said::Released => !holds.any(held),
            Said::Refused | Said::Done | Said::Nothing => true,
        };
        if !is_so {
            self.blame(format!("I3: {said:?} is answered and not written, at {now}"));
        }
        if let Said::Granted(fence) = said {
            self.told.insert(token.clone(), fence);
        }
        let lives = |job: &Job| job.token == *token && job.end.is_none_or(|end| end > now);
        let is_another = |job: &Job| {
            after
                .records
                .values()
                .filter_map(|record| record.holds.get(token))
                .any(|hold| hold.fence != job.fence)
        };
        if said == Said::Renewed && self.jobs.iter().any(|job| lives(job) && is_another(job)) {
            self.blame(format!("I6: a renewal extends a hold of another grant, at {now}"));
        }
        if said == Said::Released && self.jobs.iter().any(lives) {
            self.blame(format!("I8: a lock is given back, and its job lives, at {now}"));
        }
    }

    /// Checks that a request takes nothing from another holder whose lease lasts.
    fn check_other_holds(
        &mut self,
        before: &LockTable,
        after: &LockTable,
        token: &Token,
        (time, now): (Time, Nanos),
    ) {
        for (name, old) in &before.records {
            let others = old.holds.iter().filter(|(other, hold)| {
                *other != token && hold.confirmed && hold.phase == Phase::Held && !hold.until.passed(time)
            });
            for (other, hold) in others {
                let left = after.records.get(name).and_then(|record| record.holds.get(other));
                if left.is_none_or(|left| left.until < hold.until) {
                    self.blame(format!("I2: the hold of {name} is ended by somebody else, at {now}"));
                }
            }
        }
    }

    /// Checks that after a waiter's request none of those before it has been silent for long. A
    /// waiter that nobody waits behind delays nobody.
    fn check_stale_waiters(&mut self, after: &LockTable, token: &Token, names: &Names, now: Nanos) {
        let queues = names.iter().filter_map(|name| after.records.get(name.as_str()));
        let before = queues.flat_map(|record| {
            let place = record.queue.iter().position(|(_, other)| other == token);
            record.queue.iter().take(place.unwrap_or_default())
        });
        let waiting = before.filter_map(|(_, token)| self.heard.get(token));
        // After a clock was set back, all of them count as recent again.
        let is_silent = |heard: Nanos| {
            let away =
                self.away.iter().map(|(from, until)| until.min(&now).saturating_sub(*from.max(&heard)));
            self.upsets.is_empty() && heard + STALE_AFTER + away.sum::<Nanos>() < now
        };
        let stale_at = waiting.filter(|heard| is_silent(**heard)).count();
        if stale_at > 0 {
            self.blame(format!("I9: {stale_at} that died long ago still have their places, at {now}"));
        }
    }

    /// Checks that a new waiter goes to the end of the queue.
    fn check_newcomers(&mut self, name: &str, record: &Record, now: Nanos) {
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
        if self.left.contains(token) {
            self.blame(format!("I4: {name} is granted to one that has given it back, at {now}"));
        }
        let hold = &record.holds[token];
        self.granted.insert(token.clone(), (time, now));
        let last = self.fences.entry(name.to_owned()).or_default();
        let former = std::mem::replace(last, hold.fence.max(*last));
        if hold.fence <= former {
            self.blame(format!(
                "I5: the fence of {name} does not grow: {former} to {}, at {now}",
                hold.fence
            ));
        }
        if let Some((whose, until)) = self.kept.get(name).cloned()
            && whose != *token
            && time.0 + 2000 < until
        {
            self.blame(format!(
                "I13: {name} is granted {} us before a min-hold ends, at {now}",
                until - time.0
            ));
        }
        if let Some(until) = self.shut.get(name).filter(|until| time.0 + 2000 < **until) {
            let early = until - time.0;
            self.blame(format!(
                "Pause: {name} is granted {early} us before a failure's pause ends, at {now}"
            ));
        }
        // The first waiter in the queue that wants this lock only, exclusively.
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

    /// A release was confirmed by the server.
    pub fn left(&mut self, token: &Token) {
        self.left.insert(token.clone());
    }

    /// An operator revokes a lock, and with it its min-hold; perhaps before its job starts.
    pub fn revoked(&mut self, name: &str, table: &LockTable) {
        self.kept.remove(name);
        let holders = table.records.get(name).into_iter().flat_map(|record| record.holds.keys());
        self.revoked.extend(holders.cloned());
    }

    /// The server loses everything, and answers again at `heard_from`.
    pub fn forgot(&mut self, at: Nanos, heard_from: Nanos) {
        self.upsets.push(Upset { at, heard_from });
        self.forgot = Some(at);
        // The server cannot honour what it forgot: min-holds and released tokens.
        self.kept.clear();
        self.shut.clear();
        self.left.clear();
        self.forget_announcements();
    }

    /// The server's clock, which showed `time`, is set, so leases may end for it at once. Min-holds
    /// still hold by that clock, except those that are over now.
    pub fn clock_stepped(&mut self, at: Nanos, time: Time) {
        self.kept.retain(|_, (_, until)| time.0 < *until);
        self.upsets.push(Upset { at, heard_from: at });
    }

    /// A process is stopped until `until`, or killed.
    pub fn is_down(&mut self, process: ProcessId, from: Nanos, until: Nanos) {
        self.down.push((process, from, until));
    }

    pub fn start(&mut self, mut job: Job, min_hold: Duration) -> usize {
        if self.told.get(&job.token).is_none_or(|fence| fence.0 != job.fence) {
            let (names, fence) = (&job.names, job.fence);
            self.blame(format!(
                "I10: a job of {names:?} starts with the fence {fence}, which was not granted"
            ));
        }
        // The min-hold of a forgotten grant does not hold.
        let granted =
            self.granted.get(&job.token).filter(|(_, at)| self.forgot.is_none_or(|forgot| forgot < *at));
        let granted = granted.filter(|_| !self.revoked.contains(&job.token)).map(|(time, _)| time.0);
        for name in job.names.iter().filter(|_| job.mode == Mode::Exclusive) {
            let register = self.registers.entry(name.clone()).or_default();
            if job.fence >= register.fence {
                register.fence = job.fence;
                job.read.insert(name.clone(), register.value);
            }
            if let Some(granted) = granted.filter(|_| !min_hold.is_zero()) {
                let until = granted + u64::try_from(min_hold.as_micros()).unwrap_or(0);
                self.kept.insert(name.clone(), (job.token.clone(), until));
            }
        }
        self.jobs.push(job);
        self.jobs.len() - 1
    }

    /// The job's writes arrive, perhaps long after its end.
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

    /// The job of a run that lives.
    pub fn job_of(&self, processes: Processes) -> Option<usize> {
        self.jobs.iter().position(|job| job.processes.job == processes.job && job.end.is_none())
    }

    /// One of the runs whose job lives.
    pub fn one_that_lives(&self, pick: usize) -> Option<Processes> {
        let lives: Vec<_> = self.jobs.iter().filter(|job| job.end.is_none()).collect();
        lives.get(pick % lives.len().max(1)).map(|job| job.processes)
    }

    pub fn end(&mut self, job: usize, at: Nanos, was_left_alone: bool, due: Nanos) {
        let job = &mut self.jobs[job];
        if job.end.is_none() {
            job.end = Some(at);
            job.due = due;
            job.was_left_alone = was_left_alone;
        }
    }

    pub fn machine_died(&mut self, machine: MachineId, at: Nanos) {
        for job in self.jobs.iter_mut().filter(|job| job.machine == machine && job.end.is_none()) {
            job.end = Some(at);
        }
    }
}

/// How long a waiter may be silent while the server is there: 5 s, and 5 s again after a gap
/// without heartbeats. The clocks run differently.
const STALE_AFTER: Nanos = 11 * SECOND;

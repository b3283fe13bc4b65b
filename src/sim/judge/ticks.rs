//! Once a tick: no run repeats what it waited for, and none is skipped because of another tick's
//! success. In true time, so it allows for the difference of two clocks.

use super::super::ONCE_PER;
use super::super::time::{MS, Nanos};
use super::{Judge, Said};
use crate::lock::{Name, Names, Token};
use crate::rules::{Ask, LockTable, Missed, Notice, Record, Refusal, Subject};
use std::collections::BTreeMap;
use std::time::Duration;

/// How far two clocks may differ after the longest wait.
const TOLERATED: Nanos = 500 * MS;

/// A success that the server has recorded. It arrived between two times.
#[derive(Debug, Clone, Copy)]
struct Success {
    tried: Nanos,
    arrived: Nanos,
    granted: Nanos,
    fence: u64,
}

#[derive(Debug, Default)]
pub(super) struct Ticks {
    /// When each run first tried to reach the server.
    tried: BTreeMap<Token, Nanos>,
    /// When the server last had a request of each run that had no place in its queue.
    arrived: BTreeMap<Token, Nanos>,
    successes: BTreeMap<String, Vec<Success>>,
    /// What each run expects, if it says so: a success this often, or nothing.
    expects: BTreeMap<Token, Option<Duration>>,
    /// What was announced last of each lock, by its kind, and by which run.
    announced: BTreeMap<(String, Missed), (Subject, String)>,
}

impl Judge {
    /// A run tries to reach the server for the first time.
    pub fn tries(&mut self, ask: &Ask, now: Nanos) {
        self.ticks.tried.insert(ask.token.clone(), now);
        let every = ask.terms.expect.map(|every| (!every.is_zero()).then_some(every));
        self.ticks.expects.extend(every.map(|every| (ask.token.clone(), every)));
    }

    /// Whether its job has ended by itself.
    pub fn has_succeeded(&self, token: &Token) -> bool {
        self.jobs.iter().any(|job| job.token == *token && job.end.is_some() && job.was_left_alone)
    }

    /// The server has forgotten what was announced.
    pub(super) fn forget_announcements(&mut self) {
        self.ticks.announced.clear();
    }

    /// Checks that a run that joins a queue or is granted a lock has said what it expects, and that
    /// nobody else changes that.
    pub(super) fn check_expected(
        &mut self,
        before: &LockTable,
        after: &LockTable,
        (token, names, said): (&Token, &Names, Said),
        now: Nanos,
    ) {
        for name in names.iter().map(Name::as_str) {
            let (old, new) = (before.records.get(name), after.records.get(name));
            let waits = |record: &Record| record.waiters.contains_key(token);
            let every = |record: &Record| record.expected.map(|expected| expected.every);
            let (was, is) = (old.and_then(every), new.and_then(every));
            let has_joined = new.is_some_and(waits) && !old.is_some_and(waits);
            let is_right = match self.ticks.expects.get(token) {
                Some(own) if has_joined || matches!(said, Said::Granted(_)) => is == *own,
                own => is == was || own == Some(&is),
            };
            if !is_right {
                self.blame(format!("Expected: {name} has {is:?} after {was:?}, at {now}"));
            }
        }
    }

    /// Checks that one run is to announce the refusals of each kind for the same reason, and no other.
    pub fn check_announcement(&mut self, name: &Name, refusal: &Refusal, announces: bool, now: Nanos) {
        let Some(Notice { kind, subject: Some(subject), by }) = refusal.notice.clone() else { return };
        let about = (name.as_str().to_owned(), kind);
        let last = self.ticks.announced.get(&about);
        let was_announced = last.is_some_and(|(last, whose)| last.is(subject) && *whose != by);
        if announces == was_announced {
            let blamed = format!("Announced: {kind:?} of {subject:?}: {announces}, after {last:?}, at {now}");
            self.blame(blamed);
        }
        if announces {
            self.ticks.announced.insert(about, (subject, by));
        }
    }

    /// Checks an answer, and what it has changed.
    pub(super) fn check_ticks(
        &mut self,
        before: &LockTable,
        after: &LockTable,
        (token, names, said): (&Token, &Names, Said),
        now: Nanos,
    ) {
        let has_place = before.records.values().any(|record| record.waiters.contains_key(token));
        let asks = matches!(said, Said::Granted(_) | Said::Refused | Said::Done);
        if asks && !has_place && !self.granted.contains_key(token) {
            self.ticks.arrived.insert(token.clone(), now);
        }
        let span = u64::try_from(ONCE_PER.as_nanos()).unwrap_or(0);
        let (tried, arrived) = (self.ticks.tried.get(token).copied(), self.ticks.arrived.get(token).copied());
        let (Some(tried), Some(arrived)) = (tried, arrived) else { return };
        // A server that forgot, or whose clock was stepped, promises nothing.
        if !self.upsets.is_empty() {
            return;
        }
        for name in names.iter().map(Name::as_str) {
            let all = self.ticks.successes.entry(name.to_owned()).or_default();
            let is_enough = |last: &Success| tried < (last.arrived + span).max(last.granted) + TOLERATED;
            let is_lost = said == Said::Done && !all.iter().any(is_enough);
            let Some(success) = after.records.get(name).and_then(|record| record.success.as_ref()) else {
                continue;
            };
            let (fence, granted) = (success.fence.0, self.granted.get(token).map(|(_, at)| *at));
            let is_new = all.last().is_none_or(|last| last.fence != fence);
            let is_repeated = |last: &Success| arrived + TOLERATED < (last.tried + span).max(last.granted);
            // A run of several locks repeats those that are done if one is not.
            let repeats = is_new && names.as_slice().len() == 1 && all.iter().any(is_repeated);
            if let Some(granted) = granted.filter(|_| is_new && said == Said::Released) {
                all.push(Success { tried, arrived, granted, fence });
            }
            if is_lost {
                self.blame(format!("Tick: a run of {name} is skipped, and its tick is lost, at {now}"));
            }
            if repeats && said == Said::Released {
                self.blame(format!("Tick: a run of {name} repeats what it waited for, at {now}"));
            }
        }
    }
}

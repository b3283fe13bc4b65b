//! Once a tick: no run repeats what it waited for, and none is skipped because of another tick's
//! success. In true time, so it allows for the difference of two clocks.

use super::super::ONCE_PER;
use super::super::time::{MS, Nanos};
use super::{Judge, Said};
use crate::lock::{Name, Names, Token};
use crate::rules::LockTable;
use std::collections::BTreeMap;

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
}

impl Judge {
    /// A run tries to reach the server for the first time.
    pub fn tries(&mut self, token: &Token, now: Nanos) {
        self.ticks.tried.insert(token.clone(), now);
    }

    /// Whether its job has ended by itself.
    pub fn has_succeeded(&self, token: &Token) -> bool {
        self.jobs.iter().any(|job| job.token == *token && job.end.is_some() && job.was_left_alone)
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

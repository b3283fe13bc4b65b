//! The totals of a lock since it was first used (or last forgotten), for `dlock metrics`: grants,
//! refusals, times waited and held, results. No decision depends on them.

use super::answer::Outcome;
use super::time::millis;
use crate::exit::Ended;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The upper bounds of the histogram's buckets, in milliseconds, for jobs of seconds to a day; the
/// last bucket has none.
pub const BOUNDS: [u64; 8] = [1_000, 10_000, 60_000, 600_000, 3_600_000, 10_800_000, 28_800_000, 86_400_000];

/// The totals of one lock since it was first used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stat {
    /// How many grants were confirmed.
    pub grants: u64,
    /// How long the granted callers had waited, together, in milliseconds.
    pub waited_ms: u64,
    /// How long the lock was held; its count is the number of ends.
    pub held: Histogram,
    /// Number of callers that were refused because they do not wait, or because the queue was full.
    pub busy: u64,
    /// How often `--once-per` skipped a run.
    pub done: u64,
    /// How often a run with `--replace` superseded an older one.
    pub superseded: u64,
    /// How often a waiter left the queue without the lock.
    pub given_up: u64,
    /// When a hold last ended with each outcome, in milliseconds since 1970.
    pub last: BTreeMap<Outcome, u64>,
    /// How many jobs ended by themselves with status 0.
    pub succeeded: u64,
    /// How many holds failed: the job ended with another status or by a signal, or the outcome was
    /// not [`Outcome::Released`].
    pub failed: u64,
    /// When a job last succeeded, in milliseconds since 1970.
    pub last_success: Option<u64>,
    /// When a job last failed.
    pub last_failure: Option<u64>,
}

/// Spans, counted by length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Histogram {
    /// How many fell into each bucket: at most its bound, and more than the bound before it.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// Their sum, in milliseconds.
    pub sum: u64,
}

/// Adds one. Does not overflow: another program may have written any number into the record.
pub(super) fn count(total: &mut u64) {
    *total = total.saturating_add(1);
}

impl Histogram {
    pub fn add(&mut self, span: Duration) {
        let ms = millis(span);
        let bucket = BOUNDS.iter().position(|bound| ms <= *bound).unwrap_or(BOUNDS.len());
        count(&mut self.buckets[bucket]);
        self.sum = self.sum.saturating_add(ms);
    }

    /// Number of spans.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}

impl Stat {
    /// Joins the totals with those of the same lock on another server. Each has seen most of what
    /// happened, so the larger of two counts is nearer to the truth; so is the later of two times.
    /// Of two histograms, the one that counted more: a span that each server measures by its own
    /// clock may lie in different buckets.
    pub fn join(&mut self, other: &Self) {
        for (all, one) in [
            (&mut self.grants, other.grants),
            (&mut self.waited_ms, other.waited_ms),
            (&mut self.busy, other.busy),
            (&mut self.done, other.done),
            (&mut self.superseded, other.superseded),
            (&mut self.given_up, other.given_up),
            (&mut self.succeeded, other.succeeded),
            (&mut self.failed, other.failed),
        ] {
            *all = one.max(*all);
        }
        for (outcome, at) in &other.last {
            let last = self.last.entry(*outcome).or_default();
            *last = (*last).max(*at);
        }
        let (all, one) = (&self.held, &other.held);
        if (one.count(), one.sum) > (all.count(), all.sum) {
            self.held = one.clone();
        }
        self.last_success = self.last_success.max(other.last_success);
        self.last_failure = self.last_failure.max(other.last_failure);
    }

    /// Counts a confirmed grant.
    pub(super) fn grant(&mut self, waited: u64) {
        count(&mut self.grants);
        self.waited_ms = self.waited_ms.saturating_add(waited);
    }

    /// Counts an end; both times are milliseconds since 1970.
    pub(super) fn end(&mut self, since: u64, ended: u64, outcome: Outcome, job: Option<Ended>) {
        self.last.insert(outcome, ended);
        self.held.add(Duration::from_millis(ended.saturating_sub(since)));
        match (outcome, job) {
            (Outcome::Released, Some(Ended::Code(0))) => {
                count(&mut self.succeeded);
                self.last_success = Some(ended);
            }
            // A script or a hold gave it back: the result of its job is unknown.
            (Outcome::Released, None) => {}
            _ => {
                count(&mut self.failed);
                self.last_failure = Some(ended);
            }
        }
    }
}

//! What is counted of a lock? Totals since it was first used (or last forgotten), for `dlock metrics`: how often it was
//! granted and refused, how long people waited and held, how it ended. Nothing here decides anything.

use super::answer::Outcome;
use super::time::millis;
use crate::exit::Ended;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The upper bounds of the histograms' buckets, in milliseconds; the last bucket has none.
pub const BOUNDS: [u64; 8] = [10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000];

/// The totals of one lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stat {
    /// How long whoever was granted the lock had waited; its count is that of the grants.
    pub waited: Histogram,
    /// How long it was held; its count is that of the ends.
    pub held: Histogram,
    /// How often somebody who did not wait was refused.
    pub busy: u64,
    /// How often somebody found done what it wanted the lock for.
    pub done: u64,
    /// How often a waiter was sent home by one that came later.
    pub superseded: u64,
    /// How often a waiter left the queue without the lock.
    pub given_up: u64,
    /// How often a hold ended so.
    pub ends: BTreeMap<Outcome, u64>,
    /// When a hold last ended so, in milliseconds since 1970.
    pub last: BTreeMap<Outcome, u64>,
    /// How many jobs ended by themselves with status 0.
    pub succeeded: u64,
    /// How many jobs ended with another status or of a signal, or not by themselves.
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
    /// How many fell into each bucket: not above its bound, and above that of the one before.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// All together, in milliseconds.
    pub sum: u64,
}

/// One more; a record that somebody else wrote may have a total that has no next one.
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

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }
}

impl Stat {
    /// Joins the totals with those of another lock, or of the same one elsewhere: each count by `join`, and of each time the
    /// later one. The histograms are left to who knows how they go together.
    pub fn join(&mut self, other: &Self, join: impl Fn(u64, u64) -> u64) {
        for (all, one) in [
            (&mut self.busy, other.busy),
            (&mut self.done, other.done),
            (&mut self.superseded, other.superseded),
            (&mut self.given_up, other.given_up),
            (&mut self.succeeded, other.succeeded),
            (&mut self.failed, other.failed),
        ] {
            *all = join(*all, one);
        }
        for (outcome, count) in &other.ends {
            let all = self.ends.entry(*outcome).or_default();
            *all = join(*all, *count);
        }
        for (outcome, at) in &other.last {
            let last = self.last.entry(*outcome).or_default();
            *last = (*last).max(*at);
        }
        self.last_success = self.last_success.max(other.last_success);
        self.last_failure = self.last_failure.max(other.last_failure);
    }

    /// Counts an end; both times are milliseconds since 1970.
    pub(super) fn end(&mut self, since: u64, ended: u64, outcome: Outcome, job: Option<Ended>) {
        count(self.ends.entry(outcome).or_default());
        self.last.insert(outcome, ended);
        self.held.add(Duration::from_millis(ended.saturating_sub(since)));
        match (outcome, job) {
            (Outcome::Released, Some(Ended::Code(0))) => {
                count(&mut self.succeeded);
                self.last_success = Some(ended);
            }
            // What a script gave back, who knows.
            (Outcome::Released, None) => {}
            _ => {
                count(&mut self.failed);
                self.last_failure = Some(ended);
            }
        }
    }
}

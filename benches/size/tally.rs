//! What the coordinator and its workers tell each other, one JSON value a line, and the counts that
//! the workers send back.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is done to the servers. Each phase begins with that, and goes on for a while afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// The holders and waiters arrive.
    Start,
    /// Nothing happens.
    Quiet,
    /// The servers stand still for 0.4 ttl.
    Outage,
    /// The leader is killed.
    Failover,
    /// The servers are ended and started again, with their data, one after the other.
    Restart,
    /// The herd comes.
    Herd,
}

/// What a worker process is started for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    pub role: Role,
    pub url: String,
    pub ttl: Duration,
    /// The number of the first holder, waiter or run of this worker, and how many it has.
    pub first: usize,
    pub count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Hold,
    Wait,
    /// So many `run`s in the whole herd.
    Herd(usize),
}

/// What the coordinator tells a worker. The end of the input ends the worker as well.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Order {
    Phase(Phase),
    Report,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// All locks are held, all waiters wait, the herd is ready.
    Up,
    Counted(Tally),
    Failed(String),
}

/// What happened to the holders within a phase.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Spell {
    pub renewals: u64,
    /// Jobs that got TERM, or would have got it.
    pub disturbed: u64,
    /// From the request of a renewal that succeeded to its answer.
    pub longest_renewal: Duration,
    /// From the request of a success to the answer of the next one, or until now.
    pub longest_gap: Duration,
}

/// How the runs of the herd ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Herd {
    pub got: u64,
    pub busy: u64,
    /// By the exit status of the error.
    pub failed: BTreeMap<u8, u64>,
    /// The longest run, and the end of the last one, counted from the beginning of the herd.
    pub longest: Duration,
    pub over_after: Duration,
}

/// The counts of one worker, or of several.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tally {
    pub phases: BTreeMap<Phase, Spell>,
    pub herd: Herd,
    /// What went wrong, and how often.
    pub remarks: BTreeMap<String, u64>,
}

impl Tally {
    pub fn remark(&mut self, text: String) {
        *self.remarks.entry(text).or_default() += 1;
    }

    pub fn add(&mut self, other: Self) {
        for (phase, more) in other.phases {
            let spell = self.phases.entry(phase).or_default();
            spell.renewals += more.renewals;
            spell.disturbed += more.disturbed;
            spell.longest_renewal = spell.longest_renewal.max(more.longest_renewal);
            spell.longest_gap = spell.longest_gap.max(more.longest_gap);
        }
        self.herd.got += other.herd.got;
        self.herd.busy += other.herd.busy;
        for (status, count) in other.herd.failed {
            *self.herd.failed.entry(status).or_default() += count;
        }
        self.herd.longest = self.herd.longest.max(other.herd.longest);
        self.herd.over_after = self.herd.over_after.max(other.herd.over_after);
        for (text, count) in other.remarks {
            *self.remarks.entry(text).or_default() += count;
        }
    }

    pub fn disturbed(&self) -> u64 {
        self.phases.values().map(|spell| spell.disturbed).sum()
    }
}

//! What the judge knows of a round: the runs, the faults, the queues that were seen, and the
//! store's numbers.

use super::super::lives::Life;
use dlock::lock::Mode;
use std::collections::BTreeMap;

/// Nanoseconds of CLOCK_BOOTTIME.
pub type Time = u64;

pub const SECOND: Time = 1_000_000_000;

/// How a run takes its lock, where that changes what may be expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// Its command is another run under the same key.
    Nested,
    /// A script that acquires and releases: nothing stops it when its lease ends.
    Script,
    /// At most one success within this time.
    OncePer(Time),
    /// The lock is kept for this time after the grant.
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
    /// dlock and its guard are killed: no process is left to stop the job.
    KillBoth,
    /// dlock or its guard is stopped for a while.
    Stop,
    StopJob,
    /// All processes are stopped for a while, as if their machine stood still.
    StopAll,
    /// The stopped processes continue.
    Continue,
    Interrupt,
    /// The run was started with fewer descriptors than it may need.
    FewFiles,
    /// The run was started with less memory than it may need.
    LittleMemory,
    /// The run may have fewer processes and threads at a time than it may need.
    FewTasks,
}

/// How the process that was started ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Status(i32),
    Signal(i32),
}

/// One run, as its starter knows it.
#[derive(Debug, Clone)]
pub struct Run {
    pub id: u64,
    pub keys: Vec<&'static str>,
    pub mode: Mode,
    pub kind: Kind,
    pub ttl: Time,
    pub waits: bool,
    /// The exit status that the job was given.
    pub wanted: i32,
    /// The numbers of the job's registers, without the slot.
    pub registers: Vec<usize>,
    pub spawned: Time,
    pub ended: Time,
    pub outcome: Outcome,
    pub hits: Vec<(Time, Hit)>,
    /// Its messages on standard error.
    pub said: String,
}

/// A fault of the store or of the way to it.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub kind: &'static str,
    pub from: Time,
    /// When the trouble was over.
    pub until: Time,
    /// Whether the store may forget, or its clock jump: then two may hold the lock for a while.
    pub forgets: bool,
    /// Whether a server lost what it had recorded, though the lock itself may be kept by others.
    pub empties: bool,
}

/// One lock as the store showed it between two moments.
#[derive(Debug, Clone, Default)]
pub struct Sighting {
    pub from: Time,
    pub at: Time,
    pub key: String,
    /// The fences of its holders.
    pub fences: Vec<u64>,
    /// The ids of the waiting runs, in order.
    pub waiting: Vec<u64>,
}

/// The store's statistics of a key at the end.
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

/// All that is known of one round.
#[derive(Debug, Clone, Default)]
pub struct Round {
    pub runs: Vec<Run>,
    pub lives: Vec<Life>,
    pub troubles: Vec<Trouble>,
    pub sightings: Vec<Sighting>,
    pub registers: BTreeMap<usize, u64>,
    pub told: BTreeMap<&'static str, Told>,
    /// Whether waiters are granted the lock in the order of arrival.
    pub has_queue: bool,
    /// How long a waiter may be silent before it is passed over.
    pub silence: Time,
    /// Whether only processes were hit, so that only they and a busy machine may delay a waiter.
    pub is_calm: bool,
    /// Whether a lock is free at once when dlock and its guard are dead, as in a directory.
    /// Otherwise it is free when the lease ends.
    pub frees_at_once: bool,
    /// The leftovers.
    pub left_over: Vec<String>,
}

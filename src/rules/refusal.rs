//! The last refusals of a lock: which caller was refused, and why. They answer "why did the job not
//! run?". No decision depends on them.

use super::answer::{Blocker, Done, State, Superseded};
use super::time::millis;
use crate::lock::{Owner, shorten};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How many of the last refusals of a lock are recorded: as many as of its ends.
pub const REFUSALS_KEPT: usize = super::LOG_KEPT;
/// The greatest number of bytes of a command or a reason in a refusal.
const REFUSAL_TEXT_MAX: usize = 200;

/// A request for a lock that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// When, by the store's clock, in milliseconds since 1970. The store sets it.
    #[serde(default)]
    pub at: u64,
    pub owner: Owner,
    pub why: Why,
    /// The owner of the hold, the success, the pause or the newer run; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Owner>,
    /// How long it had waited, in milliseconds.
    #[serde(default)]
    pub waited: u64,
}

/// Why a caller did not get the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Another holder had it.
    Busy,
    /// The job is done already (`--once-per`).
    Done,
    /// An operator has paused it.
    Paused,
    /// A newer run replaced it (`--replace`).
    Superseded,
    /// Its time to wait was over.
    GaveUp,
    /// Its dlock ended while it waited: by a signal, or by an error.
    Interrupted,
    /// The queue was full.
    QueueFull,
    /// Nobody was in the way but those who waited already.
    Behind,
}

impl Why {
    /// The word for it in records and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Done => "done",
            Self::Paused => "paused",
            Self::Superseded => "superseded",
            Self::GaveUp => "gave-up",
            Self::Interrupted => "interrupted",
            Self::QueueFull => "queue-full",
            Self::Behind => "behind",
        }
    }
}

impl Refusal {
    fn new(owner: &Owner, why: Why, by: Option<&Owner>, waited: Duration) -> Self {
        let short = |owner: &Owner| {
            let mut owner = Owner { ttl: None, once_per: None, ..owner.clone() };
            shorten(&mut owner.command, REFUSAL_TEXT_MAX);
            owner.reason.iter_mut().for_each(|reason| shorten(reason, REFUSAL_TEXT_MAX));
            owner
        };
        Self { at: 0, owner: short(owner), why, by: by.map(short), waited: millis(waited) }
    }

    /// The lock was busy. With `waited`, the caller gave up after that time.
    pub fn busy(owner: &Owner, blocker: &Blocker, waited: Option<Duration>) -> Self {
        let is_first_try = waited.is_none() && blocker.queue_full.is_none();
        let (why, by) = match (&blocker.paused, &blocker.holder) {
            (Some(pause), _) if blocker.state == State::Paused && blocker.queue_full.is_none() => {
                (Why::Paused, Some(&pause.by))
            }
            _ if is_first_try && blocker.before.is_some() => (Why::Behind, blocker.before.as_ref()),
            (_, holder) => {
                let why = match (blocker.queue_full, waited) {
                    (Some(_), _) => Why::QueueFull,
                    (None, Some(_)) => Why::GaveUp,
                    (None, None) => Why::Busy,
                };
                (why, holder.as_ref().map(|holder| &holder.owner))
            }
        };
        Self::new(owner, why, by, waited.unwrap_or_default())
    }

    /// Its dlock ended while it waited. `by` has the lock.
    pub fn interrupted(owner: &Owner, by: Option<&Owner>, waited: Duration) -> Self {
        Self::new(owner, Why::Interrupted, by, waited)
    }

    /// The job was done already.
    pub fn done(owner: &Owner, done: &Done, waited: Duration) -> Self {
        Self::new(owner, Why::Done, Some(&done.success.owner), waited)
    }

    /// A newer run replaced the caller.
    pub fn superseded(owner: &Owner, superseded: &Superseded, waited: Duration) -> Self {
        Self::new(owner, Why::Superseded, Some(&superseded.by), waited)
    }
}

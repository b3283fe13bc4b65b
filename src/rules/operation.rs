//! The arguments of the operations on a lock, for the lock rules, the stores and the commands. The
//! scripts of Redis get them as JSON.

use super::answer::{Outcome, is_not};
use super::time::{Time, millis, ms};
use crate::exit::Ended;
use crate::lock::{Fence, Mode, Owner, Token};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The arguments of `acquire`.
#[derive(Debug, Clone, Serialize)]
pub struct Ask {
    /// Names the hold, from the first request to the last.
    pub token: Token,
    /// Exclusive, shared, or slots.
    pub mode: Mode,
    #[serde(with = "ms")]
    pub ttl: Duration,
    /// The shortest time for which the lock is kept after the grant.
    #[serde(with = "ms")]
    pub min_hold: Duration,
    pub owner: Owner,
    /// Whether to wait in the queue if the lock cannot be granted now.
    pub patience: Patience,
    pub terms: Terms,
    /// How long the caller has been asking. It tells when the caller arrived, if the caller has no
    /// place in the queue.
    #[serde(with = "ms")]
    pub waited: Duration,
    /// Whether the caller has had a place in the queue, which the store may have forgotten. If so,
    /// even a full queue accepts it again.
    #[serde(skip_serializing_if = "is_not")]
    pub has_waited: bool,
}

impl Ask {
    /// When the caller arrived, by its own clock.
    pub(super) fn came(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(millis(self.waited).saturating_mul(1000)))
    }
}

/// The arguments of `renew`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Renew<'a> {
    pub token: &'a Token,
    /// The fence of the grant. A hold with another fence is not the caller's: a late `acquire` was
    /// granted it after the caller's own had ended. None if the caller knows its token only.
    #[serde(serialize_with = "Fence::as_text", skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    #[serde(with = "ms")]
    pub ttl: Duration,
    /// What [`Owner::rest`] becomes; None if it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<&'a str>,
}

/// Conditions of an acquire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Grant only if no hold has succeeded whose run arrived less than this before the caller, or that
    /// was granted after the caller arrived: one run per tick of a timetable.
    #[serde(with = "ms", skip_serializing_if = "Option::is_none")]
    pub once_per: Option<Duration>,
    /// The newest wins: holders are asked to end, and the older waiter with `--replace` is
    /// superseded.
    #[serde(skip_serializing_if = "is_not")]
    pub replaces: bool,
    /// Once granted, the hold is not asked to end by a run with `--replace`.
    #[serde(skip_serializing_if = "is_not", alias = "stays")]
    pub not_replaceable: bool,
    /// If the lease runs out, nobody is granted the lock for this long.
    #[serde(with = "ms", skip_serializing_if = "Option::is_none")]
    pub pause_on_failure: Option<Duration>,
    /// Grant also while the lock is paused.
    #[serde(skip_serializing_if = "is_not")]
    pub during_pause: bool,
    /// How often a run is to succeed; zero: no run is expected any more.
    #[serde(with = "ms", skip_serializing_if = "Option::is_none")]
    pub expect: Option<Duration>,
}

impl Terms {
    /// Whether all of them are the defaults.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether to wait in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Patience {
    /// Do not wait.
    None,
    Queue,
}

/// How a hold ended, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Whether CMD ran, and what ended it. If it did not run, no min-hold is kept and nothing is
    /// logged.
    pub ran: Ran,
    /// CMD's exit status or signal, where known.
    pub job: Option<Ended>,
    /// Whether the lock was acquired with [`Terms::once_per`]. A success counts for later runs only
    /// then.
    pub once_per: bool,
    /// The fence of the grant. A hold with another fence was granted by a late `acquire` after the
    /// caller's own had ended: it is dropped. None: the hold of this token, whatever its fence is.
    pub fence: Option<Fence>,
    /// The job has failed, and nobody is to be granted the lock for a while (`--pause-on-failure`).
    pub pause: Option<FailurePause>,
}

impl End {
    /// Of a caller whose command did not run.
    pub const NOT_RUN: Self = Self { ran: Ran::No, job: None, once_per: false, fence: None, pause: None };

    /// Whether it is a success that counts for later runs with [`Terms::once_per`].
    pub fn counts(&self) -> bool {
        self.once_per && self.ran == Ran::Yes && self.job == Some(Ended::Code(0))
    }
}

/// A pause that a failed run leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailurePause {
    #[serde(with = "ms")]
    pub lasts: Duration,
    /// How the run failed.
    pub reason: String,
}

/// Whether the command was started under the hold, and what ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// It ran, and ended by itself.
    Yes,
    /// It ran, and was stopped for this reason.
    Cut(Outcome),
    No,
}

impl Ran {
    /// The outcome in the log, if the end is logged.
    pub const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Yes => Some(Outcome::Released),
            Self::Cut(outcome) => Some(outcome),
            Self::No => None,
        }
    }
}

/// What `forget` forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forget {
    /// The success that `--once-per` counts from.
    Success,
    /// What is expected of the lock.
    Expected,
}

/// A pause that begins now.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct NewPause<'a> {
    /// The operator, with the reason.
    pub by: &'a Owner,
    #[serde(with = "ms")]
    pub lasts: Duration,
    /// Whether it may end earlier than the present pause.
    pub shortens: bool,
}

/// How to take a lock away.
#[derive(Debug, Clone, Serialize)]
pub struct Revoke {
    /// When the next grant may come.
    pub when: When,
    /// The operator, for the log.
    pub by: Owner,
}

/// When the next grant may come after a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// When the old job is known to be dead, or its lease ends.
    Safe,
    /// At once; both may run.
    Now,
}

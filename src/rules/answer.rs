//! The answers of the operations. The lock rules give them, the stores pass them on, and the
//! commands and the output read them. Times are on the store's clock, in milliseconds since 1970
//! unless stated otherwise. The scripts of Redis answer with the same fields, as JSON.

use super::time::{millis, ms};
use crate::exit::Ended;
use crate::lock::{Fence, Mode, Owner, owner_or_unknown};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Acquired {
    /// The token holds the lock, for the ttl asked for, counted from before the call.
    Granted(Grant),
    /// The token waits in the queue.
    Waiting(Waiting),
    /// The lock is not granted, and the token has no place in the queue: it does not wait, or the
    /// queue is full.
    Busy(Blocker),
    /// The job is done already ([`super::Terms::once_per`]). The token has no place in the queue.
    Done(Done),
    /// A newer run replaces it ([`super::Terms::replaces`]). The token has no place in the queue.
    Superseded(Superseded),
    /// The token was given back or revoked earlier: the answer to a request that arrives late (I4).
    TokenEnded,
}

/// The success because of which `--once-per` skips a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Done {
    /// Index of the lock in the request, in order of name. Of several, the one that is due first.
    pub at: usize,
    pub success: Success,
    /// Time since that hold was granted.
    #[serde(with = "ms")]
    pub ago: Duration,
    /// How much later than that run this one arrived; zero if it arrived earlier.
    #[serde(with = "ms")]
    pub age: Duration,
    /// Time until a run that arrives then is due; zero if one that arrives now is.
    #[serde(with = "ms")]
    pub due: Duration,
}

/// The newer run that superseded a caller.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Superseded {
    /// Index of the lock in the request, in order of name.
    pub at: usize,
    /// Owner of the newer run; empty if the store has forgotten it.
    pub by: Owner,
}

/// A hold whose job ended by itself with status 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Success {
    #[serde(deserialize_with = "owner_or_unknown")]
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    /// How long it had waited, in milliseconds: it arrived that long before the grant.
    #[serde(default)]
    pub waited: u64,
    pub ended: u64,
}

impl Success {
    /// When its run arrived, in milliseconds since 1970.
    pub const fn arrived(&self) -> u64 {
        self.since.saturating_sub(self.waited)
    }

    /// Until when a run with `--once-per` must arrive to be skipped because of this success, if that
    /// holds for a run that arrived at `came`. In milliseconds since 1970.
    pub(super) fn counts_until(&self, now: u64, came: u64, span: Duration) -> Option<u64> {
        let span = millis(span);
        let until = self.arrived().saturating_add(span).max(self.since);
        (came < until && self.since < now.saturating_add(span)).then_some(until)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Grant {
    /// The fence of this grant.
    pub fence: Fence,
    /// How long the token waited in the queue.
    #[serde(with = "ms")]
    pub waited: Duration,
    /// Its slot, if the lock has slots: no other live hold of any of its locks has the same.
    pub slot: Option<u32>,
}

/// The proof that a token holds every lock of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    pub mode: Mode,
    /// Its slot, if the lock has slots.
    pub slot: Option<u32>,
    /// The fence of the grant.
    pub fence: Fence,
    /// What is left of the lease.
    #[serde(with = "ms")]
    pub lease: Duration,
    /// Who asked the holder to end.
    #[serde(default)]
    pub asked: Option<Owner>,
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Waiting {
    /// Number of waiters before this one that are not suspended.
    pub ahead: u64,
    /// Time until the earliest event that can advance this waiter.
    #[serde(with = "ms")]
    pub next: Duration,
    /// What blocks it.
    pub blocker: Blocker,
    /// Estimated time until its grant, if known.
    #[serde(skip)]
    pub turn: Option<Duration>,
}

/// What blocks a grant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Blocker {
    /// Index of the blocking lock in the request, in order of name.
    #[serde(default)]
    pub at: usize,
    /// What the lock key says.
    pub state: State,
    /// Its mode while held, cooling or revoked; none for a foreign holder, and where only other
    /// waiters block it.
    pub mode: Option<Mode>,
    /// The hold that blocks it. Of several, the one that runs out last, or first where that is
    /// enough (a slot). None for a foreign holder, and where only a marker is left.
    pub holder: Option<Holder>,
    /// Number of further holders.
    pub others: u64,
    /// Time until the first event that may end the blocking; none if it has no end (a foreign key
    /// without TTL).
    #[serde(default, with = "ms")]
    pub left: Option<Duration>,
    /// The pause, if the lock is paused, whether it is held or not.
    pub paused: Option<Pause>,
    /// The first in the queue, if the lock itself would admit the caller.
    pub before: Option<Owner>,
    /// How many wait, if the caller was refused because the queue is full ([`super::QUEUE_MAX`]).
    pub queue_full: Option<usize>,
}

impl Blocker {
    /// The lock is held in this mode, and the holders are not known.
    pub const fn others(mode: Mode) -> Self {
        let (state, mode) = (State::Held, Some(mode));
        let (at, others, holder, left, paused, before, queue_full) = (0, 0, None, None, None, None, None);
        Self { at, state, mode, holder, others, left, paused, before, queue_full }
    }

    /// For a caller that a pause does not keep out.
    pub fn without_pause(self) -> Self {
        match self.state {
            State::Paused => Self { state: State::Free, left: None, paused: None, ..self },
            _ => Self { paused: None, ..self },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Renewal {
    /// Held, for the ttl asked for, counted from before the call.
    Renewed,
    /// Renewed, and an operator asks the holder to end its job and give the lock back.
    Asked,
    /// Renewed, and a newer run with `--replace` asks that.
    Superseded,
    /// An operator revoked it. The holder may still report by `leave` that its job is dead.
    Revoked,
    /// The token holds nothing (expired, taken over, or the store forgot).
    NotHeld,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Left {
    /// The hold is given back. A min-hold keeps the lock for `cooling` longer.
    Released {
        /// What is left of the min-hold.
        #[serde(with = "ms")]
        cooling: Duration,
    },
    /// The place in the queue is given up.
    Dequeued,
    /// It was given back before.
    Already,
    /// The token neither holds nor waits.
    NotHeld,
}

impl Left {
    /// What is left of the min-hold; none if there was no hold.
    pub const fn cooling(self) -> Option<Duration> {
        if let Self::Released { cooling } = self { Some(cooling) } else { None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Requested {
    /// The holder will learn of it.
    Asked,
    /// There is no such hold any more.
    Gone,
}

/// The answer to `revoke`: what was there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Revoked {
    Free,
    /// The lock was held. The renewals of these holds fail from now on, and the next grant comes
    /// after `left` at the latest.
    Holds {
        /// The former holders, the oldest first.
        holders: Vec<Holder>,
        /// What is left of their leases; zero if the lock is free now.
        #[serde(with = "ms")]
        left: Duration,
    },
    /// Only a min-hold kept the lock, and no job ran under it. The lock is free now.
    Cooling,
    /// It was revoked before; or it is held, but no hold is on record. The old job may live for
    /// `left` longer.
    AlreadyRevoked {
        /// The former holders, where they are known.
        #[serde(default)]
        holders: Vec<Holder>,
        /// What is left of their leases.
        #[serde(with = "ms")]
        left: Duration,
    },
    /// A value that dlock did not write; it was not changed.
    Foreign(Foreign),
    /// A STRING that was not a lock of dlock's, deleted by [`When::Now`].
    ForeignDeleted,
}

/// What the lock key says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Held,
    Free,
    /// Given back, and kept for the rest of a min-hold.
    Cooling,
    /// Taken away by an operator while the old job may still live.
    Revoked,
    /// Free, but paused: it is granted to nobody.
    Paused,
}

impl State {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Free => "free",
            Self::Cooling => "cooling",
            Self::Revoked => "revoked",
            Self::Paused => "paused",
        }
    }
}

/// A pause: the lock is granted to nobody meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The operator or the run that failed, with the reason.
    #[serde(deserialize_with = "owner_or_unknown")]
    pub by: Owner,
    pub since: u64,
    /// When it ends by itself.
    pub until: u64,
    #[serde(default, skip_serializing_if = "Cause::is_operator")]
    pub cause: Cause,
}

/// Why a lock is paused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// `dlock pause`.
    #[default]
    Operator,
    /// A run with `--pause-on-failure` has failed.
    Failure,
}

impl Cause {
    /// Names the option, after the reason.
    pub const fn note(self) -> &'static str {
        match self {
            Self::Operator => "",
            Self::Failure => " (--pause-on-failure)",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_operator(&self) -> bool {
        *self == Self::Operator
    }
}

/// A value under the lock's name that dlock did not write.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Foreign {
    /// The type of the value, as Redis names it: `string`, `hash`, …
    pub kind: String,
    /// What is left of its TTL; none without one.
    #[serde(default, with = "ms")]
    pub left: Option<Duration>,
}

/// A hold, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Holder {
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    /// Time since the grant.
    #[serde(with = "ms")]
    pub held: Duration,
    /// Time from its arrival to the grant.
    #[serde(with = "ms")]
    pub waited: Duration,
    /// What is left of the lease.
    #[serde(with = "ms")]
    pub lease: Duration,
    /// Its slot, if the lock has slots.
    pub slot: Option<u32>,
    /// Who asked it to end.
    pub asked: Option<Owner>,
    /// Whether a newer run with `--replace` asked, not an operator.
    #[serde(default)]
    pub superseded: bool,
    /// Whether the grant was confirmed. If not, its waiter was woken and has not answered yet.
    pub confirmed: bool,
    /// Whether it was granted while the lock was paused.
    #[serde(default)]
    pub during_pause: bool,
}

impl Holder {
    /// The length of the lease, where a dlock renews it.
    pub fn ttl(&self) -> Option<Duration> {
        self.owner.ttl.filter(|_| self.confirmed)
    }

    /// Time since it was renewed, or granted if it was not renewed since; None if no dlock renews
    /// it.
    pub fn renewed_ago(&self) -> Option<Duration> {
        Some(self.ttl()?.saturating_sub(self.lease).min(self.held))
    }

    /// Whether it was not renewed for more than half of its lease although a dlock should: that
    /// dlock is stopped or cut off.
    pub fn is_stale(&self) -> bool {
        self.ttl().is_some_and(|ttl| self.renewed_ago().is_some_and(|ago| ago > ttl / 2))
    }
}

/// One end of a hold in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedEnd {
    pub outcome: Outcome,
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    pub ended: u64,
    /// How long it had waited, in milliseconds.
    pub waited: u64,
    /// How the job ended, where known.
    pub job: Option<Ended>,
    /// The owner who forced the end or asked for it.
    pub by: Option<Owner>,
    /// Whether it was granted while the lock was paused.
    #[serde(default, skip_serializing_if = "is_not")]
    pub during_pause: bool,
}

impl LoggedEnd {
    /// Whether its job ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        self.outcome == Outcome::Released && self.job == Some(Ended::Code(0))
    }

    /// Whether it counts as failed: it was not given back, or its job ended with another status or
    /// by a signal.
    pub fn is_failure(&self) -> bool {
        self.outcome != Outcome::Released || self.job.is_some_and(|job| job != Ended::Code(0))
    }

    /// The word for it in output. Records have no word for `ended`, so that a dlock that does not
    /// know it can read them.
    pub fn word(&self) -> &'static str {
        match (self.outcome, self.job) {
            (Outcome::Released, None) => "ended",
            (outcome, _) => outcome.word(),
        }
    }

    /// This end as a success; meaningful only if it is one.
    pub fn success(&self) -> Success {
        let Self { fence, since, waited, ended, .. } = *self;
        Success { owner: self.owner.clone(), fence, since, waited, ended }
    }
}

/// How a hold ended. All but the first count as failed, whatever the job's status was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Given back by a dlock whose job had ended by itself; or, without a job, by a script or a
    /// `dlock hold`.
    Released,
    /// Its dlock was killed; the guard stopped the job and gave the lock back.
    Crashed,
    /// Its lease ran out and it was not given back; or it could not be renewed, and its job was
    /// stopped in time.
    Expired,
    /// The lock key vanished or changed under it.
    Lost,
    /// Its job reached its time limit and was stopped.
    Timeout,
    /// An operator asked it to end, and its dlock stopped the job and gave the lock back.
    Stopped,
    /// A newer run with `--replace` asked it to end, and its dlock stopped the job and gave the
    /// lock back.
    Superseded,
    /// An operator took it away.
    Forced,
}

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::Released,
        Self::Crashed,
        Self::Expired,
        Self::Lost,
        Self::Timeout,
        Self::Stopped,
        Self::Superseded,
        Self::Forced,
    ];

    /// The word for it in records and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Crashed => "crashed",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Timeout => "timeout",
            Self::Stopped => "stopped",
            Self::Superseded => "superseded",
            Self::Forced => "forced",
        }
    }

    /// The outcome with this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) const fn is_not(flag: &bool) -> bool {
    !*flag
}

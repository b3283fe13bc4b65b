//! What does a lock answer? The answers of the operations, as the law gives them, the stores pass them on and the commands
//! and the output read them. Times are the store's own clock, in milliseconds since 1970 where not said otherwise.

use crate::exit::Ended;
use crate::lock::{Fence, Mode, Owner};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The token holds the lock, for the ttl asked for, counted from before the call.
    Granted(Grant),
    /// The token stands in the queue.
    Waiting(Waiting),
    /// The lock is not to be had, and the token has no place in the queue.
    Busy(Blocker),
    /// What it was wanted for is done ([`super::Terms::once_per`]). The token has no place in the queue.
    Done(Done),
    /// One that came later replaces it ([`super::Terms::replaces`]). The token has no place in the queue.
    Superseded(Superseded),
    /// The token was given back or revoked earlier: the answer to a request that arrives late (I4).
    Spent,
}

/// Who did what a lock was wanted for, and when the next one may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Which of the locks asked for it is, counted in order of name: of several the one that is due first.
    pub at: usize,
    pub success: Success,
    /// How long ago that was granted.
    pub ago: Duration,
    /// How long until the next one is due.
    pub due: Duration,
}

/// By whom one who wanted locks was sent home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superseded {
    /// Which of the locks asked for both wanted, counted in order of name.
    pub at: usize,
    /// Who came last; nobody where the store has forgotten that.
    pub by: Owner,
}

/// A hold whose job ended by itself with status 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Success {
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    pub ended: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fence of this grant.
    pub fence: Fence,
    /// How long the token stood in the queue.
    pub waited: Duration,
    /// Its slot, of a lock with slots: no other live hold of any of its locks has the same.
    pub slot: Option<u32>,
}

/// What a token proves: that it holds every lock asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    pub mode: Mode,
    /// Its slot, of a lock with slots.
    pub slot: Option<u32>,
    /// The fence of the grant.
    pub fence: Fence,
    /// What is left of the lease.
    pub lease: Duration,
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// How many live waiters stand before this one.
    pub ahead: u64,
    /// How long until the earliest event that can advance this waiter.
    pub next: Duration,
    /// What stands in the way.
    pub blocker: Blocker,
    /// How long until its turn, where somebody has looked how long runs mostly take.
    pub turn: Option<Duration>,
}

/// What stands in the way of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// Which of the locks asked for it is, counted in order of name.
    pub at: usize,
    /// What the lock key says.
    pub state: State,
    /// How it is held or kept; null for a foreign holder, and where nothing is in the way but who waits before.
    pub mode: Option<Mode>,
    /// A hold in the way: of several the one that runs out last, or first where the first will do (a slot). Null for a
    /// foreign holder, and where only a marker is left.
    pub holder: Option<Holder>,
    /// How many more hold it.
    pub others: u64,
    /// How long until the first event that may end what is in the way; null where it has no end (a foreign key without
    /// TTL).
    pub left: Option<Duration>,
    /// That nobody is granted it, whoever holds it now.
    pub paused: Option<Pause>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Held, for the ttl asked for, counted from before the call.
    Renewed,
    /// The same, and an operator asks the holder to end its job and give the lock back.
    Asked,
    /// The same, and it is one that came later who asks, and replaces the holder.
    Superseded,
    /// An operator revoked it; the token may still say when the job is dead, by `leave`.
    Revoked,
    /// The token holds nothing (expired, taken over, or the store forgot).
    NotHeld,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The hold is given back; for `cooling` longer nobody is granted the lock (min-hold).
    Released {
        /// What is left of the min-hold.
        cooling: Duration,
    },
    /// The place in the queue is given up.
    Dequeued,
    /// It was given back before.
    Already,
    /// The token neither holds nor waits.
    NotHeld,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// The holder is told.
    Asked,
    /// There is no such hold any more.
    Gone,
}

/// What `revoke` answers: what was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    Free,
    /// Holds, whose renewals fail from now on; the next grant comes after `left` at the latest.
    Holds {
        /// Who held it, the oldest first.
        holders: Vec<Holder>,
        /// What is left of their leases; zero if the lock is free now.
        left: Duration,
    },
    /// A min-hold remainder with no job under it; free now.
    Cooling,
    /// It was revoked before, and the old job may live for `left` longer.
    AlreadyRevoked {
        /// Who held it, where that is known.
        holders: Vec<Holder>,
        /// What is left of their leases.
        left: Duration,
    },
    /// Not a lock of dlock's, and left alone.
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
    /// Taken away by an operator, while the old job may still live.
    Revoked,
    /// Free, and granted to nobody, for an operator has paused it.
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

/// Who has paused a lock: nobody is granted it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who did it; the reason is there.
    pub by: Owner,
    pub since: u64,
    /// When it ends by itself.
    pub until: u64,
}

/// A value under the lock's name that dlock did not write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The type of the value, as Redis names it: `string`, `hash`, …
    pub kind: String,
    /// How long it lasts; null without a TTL.
    pub left: Option<Duration>,
}

/// A hold, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    /// How long ago that was.
    pub held: Duration,
    /// What is left of the lease.
    pub lease: Duration,
    /// Its slot, of a lock with slots.
    pub slot: Option<u32>,
    /// Who asked it to end.
    pub asked: Option<Owner>,
    /// Whether that is one that replaces it, not an operator.
    pub superseded: bool,
    /// Whether the grant was confirmed. If not, its waiter has been woken and has not come yet.
    pub confirmed: bool,
}

impl Holder {
    /// The length of the lease, where a dlock renews it.
    pub fn ttl(&self) -> Option<Duration> {
        self.owner.ttl.filter(|_| self.confirmed)
    }

    /// How long ago it was renewed, or granted if it was not renewed since; none where no dlock renews it.
    pub fn renewed_ago(&self) -> Option<Duration> {
        Some(self.ttl()?.saturating_sub(self.lease).min(self.held))
    }

    /// Whether it was not renewed for more than half of its lease, although a dlock should: it is stopped, or cut off.
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
    /// Who forced it, or asked for it.
    pub by: Option<Owner>,
}

impl LoggedEnd {
    /// Whether its job ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        self.outcome == Outcome::Released && self.job == Some(Ended::Code(0))
    }

    /// Whether it counts as failed: it was not given back, or its job ended with another status or of a signal.
    pub fn is_failure(&self) -> bool {
        self.outcome != Outcome::Released || self.job.is_some_and(|job| job != Ended::Code(0))
    }

    /// What is told of one that succeeded.
    pub fn success(&self) -> Success {
        Success { owner: self.owner.clone(), fence: self.fence, since: self.since, ended: self.ended }
    }
}

/// How a hold ended. All but the first count as failed, whatever the job's status was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Given back, by a dlock whose job had ended by itself or by a script.
    Released,
    /// Its dlock was killed; the guard stopped the job and gave the lock back.
    Crashed,
    /// Its lease ran out, and nobody had given it back; or it could not be renewed, and its job was stopped in time.
    Expired,
    /// The lock key vanished or changed under it.
    Lost,
    /// Its job ran for as long as it may, and was stopped.
    Timeout,
    /// An operator asked it to end, and its dlock stopped the job and gave the lock back.
    Stopped,
    /// The same, for one that came later and replaces it.
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

    /// As it is written everywhere.
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

    /// The one that is written so.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }
}

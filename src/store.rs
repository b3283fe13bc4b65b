//! What is a store, and what can go wrong with it? A store keeps locks and offers the operations of the law as atomic
//! steps. The trait, what it answers, and the one place where terminal and transient errors are told apart.
//! It does not know that children exist, and prints nothing.
//!
//! Times in answers are the store's own clock, in milliseconds since 1970 where not said otherwise: a client's clock
//! decides nothing (I3) and is never mixed in.

use crate::clock::Moment;
use crate::exit::Exit;
use crate::lock::{Fence, Name, Owner, Token};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

pub mod file;
pub mod redis;

/// The operations that every store offers. Each is one atomic step, safe to send again after a lost reply (I4), and
/// answers or fails by `by`.
pub trait Store: Send {
    /// Called once before a hold or a wait begins, while the process has one thread: what tells of its death must be
    /// shared with the guard, which is forked next. Returns the descriptors that the guard is to keep open.
    fn prepare(&mut self, token: &Token) -> Result<Vec<RawFd>, Error>;

    /// Asks for the lock; also a waiter's heartbeat, and how it confirms a grant (I10).
    fn acquire(&mut self, name: &Name, ask: &Ask, by: Moment) -> Result<Acquired, Error>;

    /// Extends the lease. Only `Renewal::Renewed` means that the lock is still held.
    fn renew(&mut self, name: &Name, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error>;

    /// Gives back whatever the token has: the hold, or the place in the queue.
    fn leave(&mut self, name: &Name, token: &Token, end: &End, by: Moment) -> Result<Left, Error>;

    /// Takes the lock away from whoever holds it.
    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error>;

    /// What the store knows of the lock. Changes nothing.
    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error>;

    /// The locks under a prefix of which the store has any record, in order of name.
    fn list(&mut self, prefix: &str, by: Moment) -> Result<Vec<Name>, Error>;

    /// Sleeps until something may have changed for the waiter that `acquire` last answered [`Acquired::Waiting`], at
    /// the latest until `until`. Waking early is allowed.
    fn sleep(&mut self, name: &Name, token: &Token, until: Moment) -> Result<(), Error>;

    /// Forgets every connection, so that the next call starts on a new one.
    fn reset(&mut self);
}

/// What `acquire` asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Names the hold, from the first call to the last.
    pub token: Token,
    /// The lease.
    pub ttl: Duration,
    /// How long after the grant the lock is kept at least.
    pub min_hold: Duration,
    /// Who asks.
    pub owner: Owner,
    /// Whether to stand in the queue if the lock is not to be had now.
    pub patience: Patience,
}

/// Whether to stand in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Take it now or not at all.
    None,
    /// Queue up.
    Queue,
}

/// What `acquire` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The token holds the lock, for the ttl asked for, counted from before the call.
    Granted(Grant),
    /// The token stands in the queue.
    Waiting(Waiting),
    /// The lock is not to be had, and the token has no place in the queue.
    Busy(Blocker),
    /// The token was given back or revoked earlier: the answer to a request that arrives late (I4).
    Spent,
}

/// A lock granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fence of this grant.
    pub fence: Fence,
    /// How long the token stood in the queue.
    pub waited: Duration,
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
}

/// What stands in the way of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// What the lock key says.
    pub state: State,
    /// The hold in the way; null for a foreign holder, and where only a marker is left.
    pub holder: Option<Holder>,
    /// How much is left of what is in the way; null where it has no end (a foreign key without TTL).
    pub left: Option<Duration>,
}

/// What `renew` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Held, for the ttl asked for, counted from before the call.
    Renewed,
    /// An operator revoked it; the token may still say when the job is dead, by `leave`.
    Revoked,
    /// The token holds nothing (expired, taken over, or the store forgot).
    NotHeld,
}

/// How a hold ended, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Whether CMD ran; if not, no min-hold is kept and nothing is logged.
    pub ran: Ran,
    /// CMD's exit status or signal, where known.
    pub job: Option<JobEnd>,
}

/// Whether the command was started under the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// It was.
    Yes,
    /// It was not.
    No,
}

/// How a job ended, as the log keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobEnd {
    /// Exit status.
    Status(u8),
    /// Number of the signal it died of.
    Signal(i32),
}

/// What `leave` answers.
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

/// How to take a lock away.
#[derive(Debug, Clone)]
pub struct Revoke {
    /// When the next grant may come.
    pub when: When,
    /// Who does it, for the log.
    pub by: Owner,
}

/// When the next grant may come after a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When the old job is known dead, or its lease ends.
    Safe,
    /// At once; both may run.
    Now,
}

/// What `revoke` answers: what was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// Nothing.
    Free,
    /// A hold, whose renewals fail from now on; the next grant comes after `left` at the latest.
    Hold {
        /// Who held it.
        holder: Holder,
        /// What is left of its lease; zero if the lock is free now.
        left: Duration,
    },
    /// A min-hold remainder with no job under it; free now.
    Cooling,
    /// It was revoked before, and the old job may live for `left` longer.
    AlreadyRevoked {
        /// Who held it.
        holder: Option<Holder>,
        /// What is left of its lease.
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
    /// Somebody holds it.
    Held,
    /// Nobody does.
    Free,
    /// Given back, and kept for the rest of a min-hold.
    Cooling,
    /// Taken away by an operator, while the old job may still live.
    Revoked,
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
    /// Who.
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    /// How long ago that was.
    pub held: Duration,
    /// What is left of the lease.
    pub lease: Duration,
    /// Whether the grant was confirmed. If not, its waiter has been woken and has not come yet.
    pub confirmed: bool,
}

/// A waiter, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// Who.
    pub owner: Owner,
    /// How long it has been waiting.
    pub waiting: Duration,
}

/// All that the store knows of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The lock.
    pub name: Name,
    /// The store's clock.
    pub now: u64,
    /// What the lock key says; a foreign value counts as held.
    pub state: State,
    /// The foreign value, if it is one.
    pub foreign: Option<Foreign>,
    /// The hold (held or revoked).
    pub holder: Option<Holder>,
    /// How long until the lock is free if nobody does anything; null where it has no end.
    pub left: Option<Duration>,
    /// The last fence given out.
    pub fence: Option<Fence>,
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
    /// The last ends, newest first, at most 64.
    pub log: Vec<LoggedEnd>,
}

/// One end of a hold in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// Who held it.
    pub owner: Owner,
    /// The fence of the grant.
    pub fence: Fence,
    /// When it was granted.
    pub since: u64,
    /// When it ended.
    pub ended: u64,
    /// How long it had waited, in milliseconds.
    pub waited: u64,
    /// How the job ended, where known.
    pub job: Option<JobEnd>,
    /// Who forced it.
    pub by: Option<Owner>,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Given back.
    Released,
    /// Its lease ran out.
    Expired,
    /// The lock key vanished or changed under it.
    Lost,
    /// An operator took it away.
    Forced,
}

/// A failure of a store. The text names no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// No connection, no answer in time, or the connection broke.
    Unreachable(String),
    /// It answered, and cannot serve now: loading, read-only, out of memory, cannot persist.
    Unavailable(String),
    /// Authentication failed or a right is missing.
    Denied(String),
    /// This place cannot hold locks, whenever one asks.
    Unfit(String),
    /// It answered with something that is not understood.
    Garbled(String),
}

impl Error {
    /// Whether the same call may succeed a moment later. A holder retries these until its deadline, a queued waiter
    /// rides them out; the others end it at once.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unavailable(_) => true,
            Self::Denied(_) | Self::Unfit(_) | Self::Garbled(_) => false,
        }
    }

    /// The exit status of this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Unreachable(_) | Self::Unavailable(_) | Self::Garbled(_) => Exit::Unavailable,
            Self::Denied(_) => Exit::Denied,
            Self::Unfit(_) => Exit::Config,
        }
    }

    /// The same error with its text changed.
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(text) => Self::Unreachable(change(text)),
            Self::Unavailable(text) => Self::Unavailable(change(text)),
            Self::Denied(text) => Self::Denied(change(text)),
            Self::Unfit(text) => Self::Unfit(change(text)),
            Self::Garbled(text) => Self::Garbled(change(text)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(text)
            | Self::Unavailable(text)
            | Self::Denied(text)
            | Self::Unfit(text)
            | Self::Garbled(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

//! What a store does: it keeps locks, and offers the operations of the lock rules as atomic
//! transactions. This module has the trait, its answers and its errors, and says which errors are
//! transient. A store knows nothing of child processes, and prints nothing.
//!
//! Times in answers are on the store's clock, in milliseconds since 1970 unless stated otherwise.
//! No lease ends by a client's wall clock (I3). (etcd tells the time only to the second; the rest
//! of a second comes from the client's clock.)

use crate::clock::Moment;
use crate::exit::Exit;
use crate::lock::{Fence, Name, Names, Owner, Token};
use crate::rules::{
    Acquired, Ask, End, Forget, Left, LoggedEnd, NewPause, Proof, Refusal, Renew, Renewal, Requested, Revoke,
    Revoked,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

pub use crate::rules::view::{View, Waiter};

pub mod engine;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod events;
pub mod file;
pub mod net;
pub mod probe;
pub mod quorum;
pub mod redis;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// The operations of a store. Each is one atomic transaction, may be sent again after a lost reply
/// (I4), and answers or fails before the deadline `deadline`.
pub trait Store: Send {
    /// Prepares a hold or a wait by this token. Called once, while the process still has one
    /// thread: the guard is forked next, and must share what reports the death of this process.
    /// Returns the descriptors that the guard has to keep open.
    fn prepare(&mut self, _: &Token) -> Result<Vec<RawFd>, Error> {
        Ok(Vec::new())
    }

    /// Detaches the hold from this process: from now on, it ends by its lease or when a process
    /// with the token releases it. Only a store that notices the death of processes has to do
    /// anything.
    fn hand_over(&mut self, _: &Names, _: &Token, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    /// Asks for the locks, all or nothing. It is also a waiter's heartbeat, and confirms a grant
    /// (I10).
    fn acquire(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error>;

    /// Extends the lease. After `Renewed`, `Asked` and `Superseded` all the locks are still held.
    fn renew(&mut self, names: &Names, renew: &Renew<'_>, deadline: Moment) -> Result<Renewal, Error>;

    /// How long a holder waits for the answer to a renewal.
    fn endurance(&self) -> Endurance {
        Endurance::Short
    }

    /// Releases what the token has: the hold, or the place in the queue.
    fn leave(&mut self, names: &Names, token: &Token, end: &End, deadline: Moment) -> Result<Left, Error>;

    /// Whether the token holds all of these locks, and how. Changes nothing. `fence` is that of the grant,
    /// if the caller knows it: the answer for a store whose record of it was evicted.
    fn prove(
        &mut self,
        names: &Names,
        token: &Token,
        fence: Option<Fence>,
        deadline: Moment,
    ) -> Result<Option<Proof>, Error>;

    /// Asks the holder with this fence to end its job and release the lock. Its next renewal
    /// answers [`Renewal::Asked`], and its [`Subscription`] wakes it for that.
    fn request(
        &mut self,
        name: &Name,
        fence: Fence,
        who: &Owner,
        deadline: Moment,
    ) -> Result<Requested, Error>;

    /// Sleeps on the store's own connection. Returns true when the holder was
    /// [asked](Store::request) to end or has lost a lock, false at `until` or on an
    /// [interrupt](crate::store::net::interrupt), and None if the holder needs a [`Subscription`].
    /// A broken connection wakes nobody: the next renewal opens another.
    fn listen_as_holder(&mut self, _: &Names, _: &Token, _until: Moment) -> Option<bool> {
        None
    }

    /// Wakes the [`Subscription`] of `token` on each change of the lock, for
    /// [`crate::rules::WATCH_KEPT`].
    fn watch(&mut self, name: &Name, token: &Token, deadline: Moment) -> Result<(), Error>;

    /// A subscription of a token that holds or watches these locks. It is used independently of the
    /// store, on a connection of its own if the store has connections.
    fn subscribe(&mut self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription>;

    /// Lets a job run again before its [`crate::rules::Terms::once_per`] is over, or expects no run of
    /// it any more. Returns whether there was something to forget.
    fn forget(&mut self, name: &Name, what: Forget, deadline: Moment) -> Result<bool, Error>;

    /// Blocks grants of the lock for a while or, with None, allows them again. Returns whether
    /// grants were blocked before. A holder goes on.
    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, deadline: Moment) -> Result<bool, Error>;

    /// Takes the lock away from its holders.
    fn revoke(&mut self, name: &Name, revoke: &Revoke, deadline: Moment) -> Result<Revoked, Error>;

    /// The last ends of holds of the lock, newest first, for a waiter with this token. Changes
    /// nothing.
    fn ends(&mut self, name: &Name, _token: &Token, deadline: Moment) -> Result<Vec<LoggedEnd>, Error> {
        self.inspect(name, deadline).map(|view| view.log)
    }

    /// Records that a caller did not get the lock, beside the lock's own record, which does not
    /// change. If many are refused at once, some may not be recorded. Returns whether the caller is to
    /// announce it ([`Refusal::notice`]); of many with the same reason, one is.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<bool, Error>;

    /// The last refusals of the lock, newest first. Changes nothing.
    fn refusals(&mut self, name: &Name, deadline: Moment) -> Result<Vec<Refusal>, Error>;

    /// What the store knows of the lock. Changes nothing.
    fn inspect(&mut self, name: &Name, deadline: Moment) -> Result<View, Error>;

    /// [`Store::inspect`] of the first of these locks, and of as many of the next ones as the same
    /// answer covers. Each view has at most `ends` ends and, if `ends` is 0, not the last success.
    /// An error concerns the first lock.
    fn inspect_some(&mut self, names: &[Name], _ends: usize, deadline: Moment) -> Result<Vec<View>, Error> {
        names.iter().take(1).map(|name| self.inspect(name, deadline)).collect()
    }

    /// The locks with a record under a prefix, in order of name, as far as the store can tell: one
    /// of several servers may be gone, a record may be damaged. `which` leaves out idle locks, if
    /// the store can tell them without reading each lock. There is no deadline for the whole,
    /// because the time grows with the number of locks; each store bounds its requests itself.
    fn find(&mut self, prefix: &str, which: Which) -> Result<Found, Error>;

    /// Sleeps until something may have changed for the waiter that `acquire` last answered
    /// [`Acquired::Waiting`], at the latest until `until`. May wake early.
    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error>;

    /// Drops every connection, so that the next call starts on a new one.
    fn reset(&mut self);

    /// Some locks with a record under a prefix, for a suggestion: as many as a few requests find.
    fn glimpse(&mut self, prefix: &str) -> Result<Vec<Name>, Error> {
        self.find(prefix, Which::Known).map(|found| found.names)
    }
}

/// How long to wait for the answer to a renewal.
pub enum Endurance {
    /// A short time: no server is needed, or a late answer is worth nothing.
    Short,
    /// A long time, because a retry would need a new connection.
    Long,
    /// As long as the lease lasts, with a second attempt beside the first.
    Beside {
        /// The same store, with its own connections. None if the store itself makes the second
        /// attempt.
        second: Option<Box<dyn Store>>,
        /// The error for a server that does not answer in time.
        timeout_error: Error,
    },
}

/// Why a [`Store::sleep`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slept {
    /// Something may have changed.
    Woken,
    /// The time has come, or there was an interrupt.
    Through,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Locks that are held, waited for or cooling, and some that were so a moment ago.
    Live,
    /// Also locks that were used within the last [`crate::rules::SPENT_KEPT`].
    Recent,
    /// All locks with a record.
    Known,
}

#[derive(Debug, Default)]
pub struct Found {
    /// The locks, in order of name.
    pub names: Vec<Name>,
    /// Why parts of the store could not be read. [`Error::Garbled`] is one damaged record, whose
    /// lock is not known.
    pub missing: Vec<Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// A holder, for [`Store::request`].
    Holder,
    /// A watcher, for [`Store::watch`].
    Watcher,
}

/// Pause of a subscription after a failure, so that its connection is not dialled repeatedly.
pub const BACKOFF: Duration = Duration::from_secs(1);

/// Reports to a holder or a watcher that something has happened.
pub trait Subscription: Send {
    /// Sleeps until something may have happened (true), at the latest until `until` (false); a
    /// watcher that has to connect may take as long as a request. After a failure it pauses before
    /// it connects again.
    fn sleep(&mut self, until: Moment) -> Result<bool, Error>;

    /// The lock that the last event concerned. None if it may be any of the locks.
    fn about(&self) -> Option<&Name> {
        None
    }
}

/// A failure of a store. The text contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Error {
    /// No connection: nothing listens there, there is no route, or the name cannot be looked up.
    Unreachable(String),
    /// The server does not answer in time, hangs up, is full or still loads its data. It may serve a
    /// client that comes a moment later.
    Overloaded(String),
    /// The host does not exist, or something else than the named server answers: it speaks no TLS,
    /// or its certificate is not trusted.
    Misnamed(String),
    /// It answered and cannot serve now: read-only, out of memory, cannot persist.
    Unavailable(String),
    /// Others changed the lock at each attempt, until the time of the operation was over. It has
    /// changed nothing, unless its last attempt arrived and the answer did not.
    Contended(String),
    /// It did the operation, and too few replicas acknowledged it in time.
    Unacknowledged(String),
    /// The password was refused, or cannot be read.
    Password(String),
    /// A right is missing, or the server lets nobody in from here.
    Denied(String),
    /// This store can never hold locks.
    Unfit(String),
    /// It sent an answer that is not understood, or the record of a lock is damaged. Such a record
    /// is never written over.
    Garbled(String),
}

impl Error {
    /// Whether the same call may succeed a moment later. After such an error a queued waiter keeps
    /// waiting; any other error ends its wait at once. A holder retries its renewal after every
    /// error, until its deadline.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Password(_) | Self::Denied(_) | Self::Unfit(_) | Self::Garbled(_))
    }

    /// Whether a caller should wait for a store that it has not reached yet. A host name that does
    /// not exist is then most likely misspelt. Once the store has answered, an unknown name is an
    /// outage like any other.
    pub fn is_outage(&self) -> bool {
        self.is_transient() && !matches!(self, Self::Misnamed(_))
    }

    /// The exit status of this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Password(_) | Self::Denied(_) => Exit::Denied,
            Self::Unfit(_) => Exit::Config,
            _ => Exit::Unavailable,
        }
    }

    /// The same error with its text changed.
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(text) => Self::Unreachable(change(text)),
            Self::Overloaded(text) => Self::Overloaded(change(text)),
            Self::Misnamed(text) => Self::Misnamed(change(text)),
            Self::Unavailable(text) => Self::Unavailable(change(text)),
            Self::Contended(text) => Self::Contended(change(text)),
            Self::Unacknowledged(text) => Self::Unacknowledged(change(text)),
            Self::Password(text) => Self::Password(change(text)),
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
            | Self::Overloaded(text)
            | Self::Misnamed(text)
            | Self::Unavailable(text)
            | Self::Contended(text)
            | Self::Unacknowledged(text)
            | Self::Password(text)
            | Self::Denied(text)
            | Self::Unfit(text)
            | Self::Garbled(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// Serializes a script's argument.
fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Garbled(error.to_string()))
}

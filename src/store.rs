//! What is a store, and what can go wrong with it? A store keeps locks and offers the operations of the law as atomic
//! steps. The trait, what it answers, and the one place where terminal and transient errors are told apart.
//! It does not know that children exist, and prints nothing.
//!
//! Times in answers are the store's own clock, in milliseconds since 1970 where not said otherwise: a client's clock
//! decides nothing (I3) and is never mixed in.

use crate::clock::Moment;
use crate::exit::Exit;
use crate::lock::{Fence, Name, Names, Owner, Token};
use crate::rules::{
    Acquired, Ask, End, Left, LoggedEnd, NewPause, Proof, Refusal, Renewal, Requested, Revoke, Revoked,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

pub use crate::rules::view::{View, Waiter};

mod engine;
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

/// The operations that every store offers. Each is one atomic step, safe to send again after a lost reply (I4), and
/// answers or fails by `by`.
pub trait Store: Send {
    /// Called once before a hold or a wait begins, while the process has one thread: what tells of its death must be
    /// shared with the guard, which is forked next. Returns the descriptors that the guard is to keep open.
    fn prepare(&mut self, _: &Token) -> Result<Vec<RawFd>, Error> {
        Ok(Vec::new())
    }

    /// The hold is from now on whoever's has the token: it does not end with this process, but by its lease, or when it
    /// is given back. Only a store that hears of deaths has anything to do for that.
    fn hand_over(&mut self, _: &Names, _: &Token, _: Moment) -> Result<(), Error> {
        Ok(())
    }

    /// Asks for the locks, all or nothing; also a waiter's heartbeat, and how it confirms a grant (I10).
    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error>;

    /// Extends the lease. Only `Renewal::Renewed` means that all the locks are still held.
    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error>;

    /// What a holder does with a renewal that is not answered soon.
    fn endurance(&self) -> Endurance {
        Endurance::Short
    }

    /// Gives back whatever the token has: the hold, or the place in the queue.
    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error>;

    /// Whether the token holds all of these locks, and how. Changes nothing.
    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error>;

    /// Asks the hold with this fence to end its job and give the lock back: its next renewal answers
    /// [`Renewal::Asked`], and its [`Subscription`] wakes it for that.
    fn request(&mut self, name: &Name, fence: Fence, who: &Owner, by: Moment) -> Result<Requested, Error>;

    /// Has the [`Subscription`] of `token` woken whenever something changes about the lock, for [`crate::rules::WATCH_KEPT`].
    fn watch(&mut self, name: &Name, token: &Token, by: Moment) -> Result<(), Error>;

    /// A subscription of a token that holds these locks, or watches them. It is used apart from the store, on a connection of its
    /// own where there are connections.
    fn subscribe(
        &mut self,
        names: &[Name],
        token: &Token,
        listener: Listener,
    ) -> Result<Box<dyn Subscription>, Error>;

    /// Makes what is wanted once in a while ([`crate::rules::Terms::once_per`]) due again; whether it was done.
    fn forget(&mut self, name: &Name, by: Moment) -> Result<bool, Error>;

    /// Has nobody granted the lock for so long, or, without that, from now on again; whether it was paused before. Who
    /// holds it goes on.
    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, by: Moment) -> Result<bool, Error>;

    /// Takes the lock away from whoever holds it.
    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error>;

    /// The last ends of holds of the lock, newest first, for one who waits for it with that token. Changes nothing.
    fn ends(&mut self, name: &Name, _token: &Token, by: Moment) -> Result<Vec<LoggedEnd>, Error> {
        self.inspect(name, by).map(|view| view.log)
    }

    /// Notes that somebody did not get the lock, beside what is kept of the lock itself, which does not change by that. Where
    /// many are refused at a time, some may not be noted.
    fn refuse(&mut self, name: &Name, refusal: &Refusal, by: Moment) -> Result<(), Error>;

    /// Who did not get the lock lately, newest first. Changes nothing.
    fn refusals(&mut self, name: &Name, by: Moment) -> Result<Vec<Refusal>, Error>;

    /// What the store knows of the lock. Changes nothing.
    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error>;

    /// [`Store::inspect`] of the first of these locks, and of as many of those behind it as the same answer tells of; of
    /// each with no more than so many of its last ends, and where none is wanted without the last that succeeded. An error
    /// is one of the first lock.
    fn inspect_some(&mut self, names: &[Name], _ends: usize, by: Moment) -> Result<Vec<View>, Error> {
        names.iter().take(1).map(|name| self.inspect(name, by)).collect()
    }

    /// The locks under a prefix of which the store has a record, in order of name, as far as it answers: where it is
    /// several servers, one of them may be gone, and a record may be damaged. What is idle is left out as `which` says, if
    /// the store can tell that without looking at each lock. Takes as long as the store is large; only each step is
    /// bounded.
    fn find(&mut self, prefix: &str, which: Which) -> Result<Found, Error>;

    /// Sleeps until something may have changed for the waiter that `acquire` last answered [`Acquired::Waiting`], at
    /// the latest until `until`. Waking early is allowed.
    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error>;

    /// Forgets every connection, so that the next call starts on a new one.
    fn reset(&mut self);
}

/// How long a renewal is waited for.
pub enum Endurance {
    /// A short time: it needs no server, or what comes late tells nothing.
    Short,
    /// A long time, for each attempt is a new connection.
    Long,
    /// As long as the lease lasts, with a second attempt beside it.
    Beside {
        /// The same place, by connections of its own.
        second: Box<dyn Store>,
        /// The error for a server that does not answer in time.
        late: Error,
    },
}

/// Why a [`Store::sleep`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slept {
    /// Something may have changed.
    Woken,
    /// There is no more to it than that the time has come, or an alarm.
    Through,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that somebody holds or waits for, or that are kept; and some of which that was so until now.
    Live,
    /// And those that were used within the last [`crate::rules::SPENT_KEPT`].
    Recent,
    /// All of which there is any record.
    Known,
}

#[derive(Debug, Default)]
pub struct Found {
    /// The locks, in order of name.
    pub names: Vec<Name>,
    /// Why a part of the store could not be asked. What is [`Error::Garbled`] is one damaged record, whose lock is not
    /// known.
    pub missing: Vec<Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// A holder, for [`Store::request`].
    Holder,
    /// Somebody who looks on, for [`Store::watch`].
    Watcher,
}

/// Where a holder or somebody who looks on hears that something happened.
pub trait Subscription: Send {
    /// Sleeps until something may have happened (true), at the latest until `until` (false). After a failure it waits
    /// for a while before it connects again.
    fn sleep(&mut self, until: Moment) -> Result<bool, Error>;

    /// Which lock the last news was of, where it can tell; else it may be any of its locks.
    fn about(&self) -> Option<&Name> {
        None
    }
}

/// A failure of a store. The text names no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Error {
    /// No connection, no answer in time, or the connection broke.
    Unreachable(String),
    /// No host has that name, or what answers there is something else than was named: it speaks no TLS, or has a
    /// certificate that is not trusted.
    Misnamed(String),
    /// It answered, and cannot serve now: loading, read-only, out of memory, cannot persist.
    Unavailable(String),
    /// It did what was asked, and too few of its replicas acknowledged that in time.
    Unacknowledged(String),
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
            Self::Unreachable(_) | Self::Misnamed(_) | Self::Unavailable(_) | Self::Unacknowledged(_) => true,
            Self::Denied(_) | Self::Unfit(_) | Self::Garbled(_) => false,
        }
    }

    /// Whether waiting may mend it although nothing has been heard of this store yet. A name that does not exist is
    /// mostly a name that was misspelt; once it was known, its absence is an outage like any other.
    pub fn is_outage(&self) -> bool {
        self.is_transient() && !matches!(self, Self::Misnamed(_))
    }

    /// The exit status of this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Unreachable(_)
            | Self::Misnamed(_)
            | Self::Unavailable(_)
            | Self::Unacknowledged(_)
            | Self::Garbled(_) => Exit::Unavailable,
            Self::Denied(_) => Exit::Denied,
            Self::Unfit(_) => Exit::Config,
        }
    }

    /// The same error with its text changed.
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(text) => Self::Unreachable(change(text)),
            Self::Misnamed(text) => Self::Misnamed(change(text)),
            Self::Unavailable(text) => Self::Unavailable(change(text)),
            Self::Unacknowledged(text) => Self::Unacknowledged(change(text)),
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
            | Self::Misnamed(text)
            | Self::Unavailable(text)
            | Self::Unacknowledged(text)
            | Self::Denied(text)
            | Self::Unfit(text)
            | Self::Garbled(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// A value as the records of a store keep it.
fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Garbled(error.to_string()))
}

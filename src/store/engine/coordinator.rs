//! What must a store do for the [engine](super)? It keeps the records of locks with their versions,
//! tells the time, writes records unless another process has written them meanwhile, and knows
//! which processes live. It does not decide what the records say. docs/adding-a-store.md explains
//! how to write one.

use super::stored_lock::{Change, StoredLock};
use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{HEARTBEAT, Time};
use crate::store::{Endurance, Error, Listener, Subscription};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::time::Duration;

/// A place where locks are kept: a database, etcd, ZooKeeper, a directory. Leases end by its clock
/// (I3). A *session* is something that the store ends by itself unless a client keeps it alive:
/// etcd's lease, or ZooKeeper's session. A clone has its own connection and session, and the same
/// token.
pub trait Coordinator: Clone + Send {
    /// What [`Coordinator::read`] tells [`Coordinator::commit`]: open files, sessions, which server
    /// answered. Dropping it leaves the records unchanged and unlocks them.
    type Seen;
    /// A watch on the death of another token's owner, which ends a [`Coordinator::wait`].
    type Watch: Send;

    /// What extends a lease.
    const LEASES: Leases;

    /// A position in the queue, and a number of heartbeat intervals. A waiter behind this position
    /// reads the records less often, because each read covers the whole queue: at most this number
    /// of intervals apart. What [`Coordinator::watch`] tells wakes it in any case, and it sends
    /// heartbeats as often as the others.
    const CROWD: (u64, u32);

    /// Longest time between two heartbeats of a waiter. It may be longer than
    /// [`crate::rules::RARER_HEARTBEAT`] only where the store's own session, and not the deadline in
    /// [`KeepAlive`], decides when a waiter is stale.
    const HEARTBEAT: Duration = HEARTBEAT;

    /// One process in this many [cleans up](Coordinator::clean_up), after its first acquire.
    const CLEANS_UP_ONE_IN: u32 = 512;

    /// Time for a request that has no deadline of its own.
    fn request_time(&self) -> Duration;

    /// The token that the store keeps in place of this one, such as a hash of it. Then nobody can
    /// renew or release a hold with what the records say.
    fn stored(&self, token: &Token) -> Token {
        token.clone()
    }

    /// Begins this process's liveness under the token, while the process has one thread. Returns
    /// the descriptors that the guard must keep open, if the liveness lasts as long as any process
    /// has them open.
    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error>;

    /// This process's liveness under the token, as other processes see it.
    fn own(&self, _: &Token) -> OwnLiveness {
        OwnLiveness::Unseen
    }

    /// Ends the liveness, if it is this process's own. By now the token holds and waits for
    /// nothing, or its hold no longer depends on this process ([`crate::store::Store::hand_over`]).
    fn end(&mut self, _: &Token, _: Moment) {}

    /// The locks in order of name, with their whole queues, and one time for all of them, which is
    /// read before the deadlines that holders and waiters have published outside the records. Those
    /// deadlines, and what the store knows of sessions, are in the records already.
    fn read(&mut self, reading: &Reading<'_>) -> Result<Snapshot<Self::Seen>, Error>;

    /// Whether the owner of the token is known to be dead. Otherwise only the end of its lease ends
    /// its hold, and only missed heartbeats end its place in the queue. Called after a read, during
    /// the same operation.
    fn is_dead(&mut self, _: &Self::Seen, _: &Token) -> bool {
        false
    }

    /// Writes the changed records, all or nothing, if no lock of the batch has changed since it was
    /// read. Then wakes the tokens of the batch. Only a kill or, in a directory, an error in the
    /// middle may leave just the first records written, in order of name.
    fn commit(&mut self, seen: Self::Seen, batch: Batch<'_>) -> Result<Written, Error>;

    /// Extends a lease, or sends a heartbeat, outside the records. Returns whether the store took
    /// it: the token still has what is extended, and others can see the new end.
    fn keep_alive(&mut self, _: &KeepAlive<'_>, _: Moment) -> Result<bool, Error> {
        Ok(false)
    }

    /// Watches the owner of this token, to notice its death.
    fn watch(&mut self, token: &Token, deadline: Moment) -> Watching<Self::Watch>;

    /// Sleeps until the owner of `token`, which waits for these locks, is woken or one of the
    /// `watches` ends, but not beyond `until` and not through an
    /// [interrupt](crate::store::net::interrupt). Returns whether it was woken. `ahead` is the number of
    /// waiters before it: a store that must poll may poll less often far back in the queue.
    fn wait(
        &mut self,
        names: &Names,
        token: &Token,
        ahead: u64,
        watches: &mut dyn Iterator<Item = &Self::Watch>,
        until: Moment,
    ) -> Result<bool, Error>;

    /// See [`crate::store::Store::listen_as_holder`].
    fn listen_as_holder(&mut self, _: &Names, _: &Token, _until: Moment) -> Option<bool> {
        None
    }

    /// A subscription to what wakes the owner of `token`, which holds or watches these locks.
    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription>;

    /// For each record, the lock's full name, or what is wrong with the record.
    fn list(&mut self, deadline: Moment) -> Result<Vec<Result<String, Error>>, Error>;

    /// Removes what is too old or was left by dead processes. Errors are ignored, because no
    /// operation depends on it.
    fn clean_up(&mut self, _: Moment) {}

    /// Drops all connections.
    fn reset(&mut self) {}

    /// See [`crate::store::Store::endurance`].
    fn endurance(&self) -> Endurance {
        Endurance::Short
    }
}

/// What extends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leases {
    /// Only a write of the record.
    Recorded,
    /// A deadline that the holder publishes outside the record. Others read the clock first and
    /// this deadline second.
    Published,
    /// A session, which alone decides when the lease is over. Its time counts from when it was
    /// extended. The records come as [`crate::rules::Record::judge`] leaves them, and a commit
    /// makes sure that the caller has a session for what it is granted or waits for.
    Sessions,
}

/// What to read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'r> {
    /// Full names of the locks.
    pub names: &'r BTreeSet<String>,
    /// The caller's token, as it is [stored](Coordinator::stored).
    pub me: Option<&'r Token>,
    /// The lease that the caller asks for, if it asks for one. If one session serves the whole
    /// process (ZooKeeper), it gets this length.
    pub lease: Option<Duration>,
    pub purpose: Purpose,
    pub deadline: Moment,
}

impl Reading<'_> {
    /// Whether a commit follows that may extend a lease, so that the read itself may be left out.
    #[cfg(any(feature = "sql", feature = "zookeeper"))]
    pub fn may_renew(&self) -> bool {
        self.purpose == Purpose::Change && self.lease.is_some()
    }
}

/// What a lock is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To know it. Other processes may change it meanwhile.
    Look,
    /// The same, with the last ends and the ends of all leases, as exactly as the store knows them.
    LookAtAll,
    /// To commit a change.
    Change,
    /// The same, and for about a second only processes that reserve too can change it. Otherwise a
    /// holder could lose every race for its record against newcomers. A store may ignore that.
    Reserve,
}

impl Purpose {
    /// Whether a commit follows.
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Change | Self::Reserve)
    }
}

/// The locks at one time.
#[derive(Debug)]
pub struct Snapshot<S> {
    pub locks: Vec<StoredLock>,
    pub now: Time,
    pub seen: S,
}

/// What an operation writes.
#[derive(Debug)]
pub struct Batch<'b> {
    /// All locks that were read, in order of name.
    pub changes: Vec<Change>,
    /// The caller's token.
    pub me: Option<&'b Token>,
    /// The time of the operation.
    pub now: Time,
    /// The tokens to wake.
    pub woken: &'b [Token],
    pub deadline: Moment,
}

/// A renewal or a heartbeat outside the records.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive<'s> {
    pub names: &'s Names,
    pub token: &'s Token,
    /// On CLOCK_BOOTTIME: when the lease ends, or the waiter becomes stale.
    pub until: Moment,
    /// Length of the holder's lease; None for a waiter.
    pub ttl: Option<Duration>,
}

/// This process's liveness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnLiveness {
    /// Others cannot tell whether this process lives.
    Unseen,
    /// Others see that it lives.
    Seen,
    /// Another process that shares it, such as the guard, has ended it.
    Ended,
}

/// The outcome of [`Coordinator::watch`].
#[derive(Debug)]
pub enum Watching<W> {
    /// It lives, and the watch will report its end.
    Watched(W),
    /// The process has died.
    Ended,
    /// Its file or node does not exist: the token was released, or someone removed it.
    Missing,
    /// It cannot be watched now.
    Unknown,
}

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// All records are written.
    Yes,
    /// Nothing is written: another process has changed one of the records since it was read. The
    /// engine reads and decides again.
    Conflict,
    /// Not known to be written: the connection broke, or the server cannot write. The engine reads
    /// and decides again, and fails with this error if there is no time for that.
    Unknown(Error),
    /// Nothing is written: it is more than the store takes in one request. The error is for the
    /// user, if the operation cannot write less.
    TooLarge(Error),
}

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
impl Written {
    /// The records are more than the store with this name takes in one request.
    pub fn too_large(shown: &str) -> Self {
        Self::TooLarge(Error::Unavailable(format!(
            "{shown}: the lock has too many holders and waiters for one request; try again when some have left"
        )))
    }
}

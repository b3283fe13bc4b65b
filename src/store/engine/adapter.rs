//! What must a coordinator do for the [engine](super)? It keeps the records of locks with their
//! versions, tells the time, writes the records unless another process wrote them meanwhile, and
//! knows which processes live. It does not decide what the records say.

use super::queue::Queue;
use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{LoggedEnd, Record, Time};
use crate::store::{Endurance, Error, Listener, Subscription};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::time::Duration;

/// See [`Adapter::crowd`].
const CROWD: u64 = 50;
/// See [`Adapter::rarely`].
const RARELY: u32 = 8;

/// What a coordinator does for the engine. Leases end by the coordinator's clock (I3). A *session*
/// is what the coordinator ends by itself if nobody keeps it alive: etcd's lease, or ZooKeeper's
/// session.
pub trait Adapter: Clone + Send {
    /// What the coordinator keeps of one lock.
    type Entry: Entry;
    /// A watch on the liveness of another token. The end of that liveness ends a
    /// [`Adapter::sleep`].
    type Watch: Send;

    /// Called before an operation that must end by `deadline`. A server's adapter notes the
    /// deadline. The directory's checks whether its path leads to another directory now.
    fn refresh(&mut self, deadline: Moment) -> Result<(), Error>;

    /// Position in the queue from which on a waiter reads the records less often, because reading
    /// covers the whole queue. The end of its predecessor wakes it in any case, and it sends
    /// heartbeats as often as the others.
    fn crowd(&self) -> u64 {
        CROWD
    }

    /// The most heartbeat intervals between two reads of such a waiter.
    fn rarely(&self) -> u32 {
        RARELY
    }

    /// Returns the records of these locks in order of name, and one time for all of them, which is
    /// read before the deadlines that holders and waiters have published. Either nobody else
    /// changes the records until they are written or released, or [`Adapter::write`] reports a
    /// conflict. `me` is the caller's token.
    fn lock(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        deadline: Moment,
    ) -> Result<(Vec<Self::Entry>, Time), Error>;

    /// Returns the same without locking: other processes may change the records meanwhile.
    fn look(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<Self::Entry>, Time), Error>;

    /// Adds the waiter at this place of the queue to `record`, for the lock rules, with the
    /// deadline that the waiter has published since. Returns the locks that it waits for. If the
    /// waiter has left, removes it from the queue.
    fn show(
        &self,
        entry: &mut Self::Entry,
        waiter: usize,
        record: &mut Record,
        now: Time,
    ) -> Result<Vec<String>, Error>;

    /// True: for about a second, only processes that reserve too can change what this one
    /// [locks](Adapter::lock). Otherwise a holder could lose every race for its record against
    /// newcomers. False ends it.
    fn reserve(&self, _: bool) {}

    /// Writes the records that have changed, releases all, and then wakes these tokens. It writes
    /// all or nothing. Only a kill or, in a directory, an error in the middle may leave just the
    /// first ones written, in order of name.
    fn write(
        &self,
        entries: Vec<(Self::Entry, Changed)>,
        now: Time,
        woken: &[Token],
    ) -> Result<Written, Error>;

    /// Releases the records without a change.
    fn release(&self, entries: Vec<Self::Entry>);

    /// Drops all connections.
    fn reset(&mut self) {}

    /// See [`crate::store::Store::endurance`].
    fn endurance(&self) -> Endurance {
        Endurance::Short
    }

    /// For each record, the lock's full name, or what is wrong with the record.
    fn names(&self) -> Result<Vec<Result<String, Error>>, Error>;

    /// Removes, now and then, what dead processes have left.
    fn clean_up(&self);

    /// Now, on the clock that this coordinator's leases are measured by.
    fn now(&self) -> Duration;

    /// The token that the coordinator keeps in place of this one, such as a hash of it. Then nobody
    /// can renew or release a hold with what the records say.
    fn stored(&self, token: &Token) -> Token {
        token.clone()
    }

    /// Called before an acquire with this token. If one session serves the whole process
    /// (ZooKeeper), it gets this ttl.
    fn attend(&mut self, _: &Token, _ttl: Duration) {}

    /// Begins this process's liveness under the token. Returns the descriptors that the guard must
    /// keep open: the liveness lasts as long as any process has them open (a directory; servers
    /// return none).
    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error>;

    /// Ends the liveness, if it is this process's own.
    fn end(&mut self, token: &Token);

    /// Whether this process has begun the token's liveness, and others can check it.
    fn is_mine(&self, token: &Token) -> bool;

    /// Called before the token is released. After it no thread of this process acquires with it.
    fn give_up(&self, token: &Token);

    /// Whether this process has called [`Adapter::give_up`] for the token.
    fn is_given_up(&self, token: &Token) -> bool;

    /// Whether another process that shares the token's liveness with this one, such as the guard,
    /// has ended it.
    fn was_ended(&self, token: &Token) -> bool;

    /// Publishes outside the record when the token's lease ends, by [`Adapter::now`]. Returns
    /// whether others can read it. They read the clock first and this end second.
    fn publish_lease(&self, token: &Token, until: Duration) -> bool;

    /// Whether the session alone decides when a lease is over (etcd; in ZooKeeper the end in the
    /// record counts, too). Then the adapter returns the records as [`Record::judge`] leaves them,
    /// and [`Adapter::write`] makes sure that the caller has a session for what it is granted or
    /// waits for. Its time counts from when the operation began.
    fn has_sessions(&self) -> bool {
        false
    }

    /// Extends the session that the token holds these locks by. The `ttl` counts from when the call
    /// began. Returns whether there was a session. Only the next read proves it: a server that is
    /// cut off may have answered, and then that read fails.
    fn extend(&self, _: &Names, _: &Token, _ttl: Duration) -> Result<bool, Error> {
        Ok(false)
    }

    /// Publishes, like [`Adapter::publish_lease`], the time until which a waiter is not stale. Returns
    /// whether that is enough: the token still waits, and others can read it.
    fn publish_heartbeat(&self, names: &Names, token: &Token, until: Duration) -> bool;

    /// Whether the adapter can also watch a token that is not [tracked](Entry::tracked).
    fn has_watch_target(&self) -> bool {
        false
    }

    /// Whether the owner of the token lives.
    fn liveness(&self, token: &Token) -> Liveness<Self::Watch>;

    /// Removes the liveness of a dead token that no record names any more.
    fn forget(&self, token: &Token);

    /// Sleeps until the owner of `token`, which waits for these locks, is woken or one of the
    /// `others` ends. Returns false after `limit`, or after an
    /// [interrupt](crate::store::net::interrupt). `ahead` is the position in the queue: an
    /// adapter that must poll may poll less often far back.
    fn sleep<'a>(
        &self,
        names: &Names,
        token: &Token,
        ahead: u64,
        others: impl Iterator<Item = &'a Self::Watch>,
        limit: Duration,
    ) -> Result<bool, Error>
    where
        Self::Watch: 'a;

    /// A subscription to what wakes the owner of `token`, which holds or watches these locks.
    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription>;
}

/// What the coordinator keeps of one lock.
pub trait Entry {
    /// The lock's full name.
    fn name(&self) -> &str;
    /// The record for the lock rules, without the waiters that [`Adapter::show`] has not added.
    fn record(&mut self) -> &mut Record;
    /// The tokens whose liveness can be checked. Others count as alive.
    fn tracked(&self) -> &BTreeMap<Token, Tracked>;
    /// The same, mutable.
    fn tracked_mut(&mut self) -> &mut BTreeMap<Token, Tracked>;
    /// The waiters.
    fn queue(&self) -> &Queue;
    /// A number that differs after every change.
    fn version(&self) -> u64;
    /// The last ends that are not in the record, newest first.
    fn log(&self) -> Vec<LoggedEnd>;
}

/// What is known of a token whose liveness can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// Number of locks that the token asked for together. Once it is reaped in all of them, its
    /// liveness can be removed.
    pub locks: u32,
    /// Length of the token's lease in milliseconds. If the published end can no longer be read, the
    /// lease counts as lasting this long from now.
    pub ttl: u64,
}

/// For which holders the published end of the lease is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// Holders whose lease is over by the record.
    Due,
    /// All holders.
    All,
}

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// All records are written.
    Yes,
    /// Nothing is written: another process has changed one of the records since it was read.
    Conflict,
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

/// Whether a record has changed and must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Must be written.
    Yes,
    /// Only released.
    No,
}

/// Whether the owner of a token lives.
#[derive(Debug)]
pub enum Liveness<W> {
    /// Alive, with a watch that notices its end.
    Alive(W),
    /// The process has died.
    Dead,
    /// There is no liveness: the token was released, or somebody removed the file or key.
    Missing,
    /// Cannot be determined now. Then only the end of the lease ends the token's hold, and only
    /// missed heartbeats its place.
    Unknown,
}

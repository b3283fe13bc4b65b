//! What must a coordinator do for the [engine](super)? Keep records of locks, tell their versions and the time, write them if
//! nobody else did meanwhile, and know who lives. What is done with the records is not its affair.

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

/// What a coordinator does for the engine. The clock by which leases end is its own (I3).
pub trait Adapter: Clone + Send {
    /// What it keeps of one lock.
    type Entry: Entry;
    /// Another life, watched: its end ends a [`Adapter::sleep`].
    type Watch: Send;

    /// To be called before an operation, which is to end by `deadline`: what was moved meanwhile is found again.
    fn refresh(&mut self, deadline: Moment) -> Result<(), Error>;

    /// Whoever has more than this many before it looks at the records the more rarely the more there are, for it reads over
    /// all of them. It is woken by whoever is before it in any case, and makes itself heard as often as the others.
    fn crowd(&self) -> u64 {
        CROWD
    }

    /// How many times as rarely as others at most.
    fn rarely(&self) -> u32 {
        RARELY
    }

    /// The records of these locks in order of name, and the time for all of them, read before what holders and waiters have
    /// said themselves. Nobody else changes them before they are written or let go; or [`Adapter::write`] tells that
    /// somebody did. `me` is who asks.
    fn lock(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        deadline: Moment,
    ) -> Result<(Vec<Self::Entry>, Time), Error>;

    /// The records of these locks as they are now, while others may change them.
    fn look(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<Self::Entry>, Time), Error>;

    /// Shows the law, which has the record, the waiter at that place of the queue, with what it has said itself since.
    /// Answers the locks that it waits for. One that turns out to have left is taken out of the queue.
    fn show(
        &self,
        entry: &mut Self::Entry,
        waiter: usize,
        record: &mut Record,
        now: Time,
    ) -> Result<Vec<String>, Error>;

    /// Whether this process comes before those who do not insist from now on: what it [locks](Adapter::lock) they do not
    /// change for a moment. For a holder that would else lose each race for its record against those who come.
    fn insist(&self, _: bool) {}

    /// Writes the records that have changed, lets go of all, and then wakes those. Either nothing is written, or all; if it
    /// is killed in between, those that come first in order of name.
    fn write(
        &self,
        entries: Vec<(Self::Entry, Changed)>,
        now: Time,
        woken: &[Token],
    ) -> Result<Written, Error>;

    /// Lets go of records as they were.
    fn release(&self, entries: Vec<Self::Entry>);

    /// Forgets every connection.
    fn reset(&mut self) {}

    /// See [`crate::store::Store::endurance`].
    fn endurance(&self) -> Endurance {
        Endurance::Short
    }

    /// The full names of all locks of which something is kept, or what is wrong with what is kept.
    fn names(&self) -> Result<Vec<Result<String, Error>>, Error>;

    /// Removes now and then what the dead have left.
    fn tidy(&self);

    /// The time on this process' clock by which leases are counted here.
    fn now(&self) -> Duration;

    /// The token that stands for this one in all that the coordinator keeps. Its records and keys then tell no token by
    /// which a hold could be renewed or given back.
    fn stored(&self, token: &Token) -> Token {
        token.clone()
    }

    /// The token is about to be asked for: where the lease is a session, that is as long.
    fn attend(&mut self, _: &Token, _ttl: Duration) {}

    /// Begins the life of this process under that token. Answers the descriptors that the guard is to keep open: it lasts
    /// as long as they are open anywhere.
    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error>;

    /// Ends it, if it is this process' own.
    fn end(&mut self, token: &Token);

    /// Whether others may believe in the token for this process has its life.
    fn is_mine(&self, token: &Token) -> bool;

    /// The token is about to be given back: no other thread of this process asks with it again.
    fn give_up(&self, token: &Token);

    /// Whether it was given back by this process, or is about to be.
    fn is_given_up(&self, token: &Token) -> bool;

    /// Whether this process has the life of the token, and another one that has it too has ended it.
    fn was_ended(&self, token: &Token) -> bool;

    /// Says in this process' own place that the lease of its token ends then by [`Adapter::now`]. Whether others can hear
    /// it; what they read afterwards they judge by a clock that they have read before.
    fn say_lease(&self, token: &Token, until: Duration) -> bool;

    /// Whether a lease is a session, which the coordinator ends by itself. Then the records are handed out as
    /// [`Record::judge`] leaves them, whose lease is over is told by the coordinator alone, and [`Adapter::write`] sees to it
    /// that whoever asks has a session for what it is granted or waits for, counted from before the operation.
    fn has_sessions(&self) -> bool {
        false
    }

    /// Keeps the session by which the token holds these locks for `ttl` longer, counted from before the call; whether there
    /// still was one. Only what is looked at next proves it: that fails where somebody may have said so who had no say.
    fn extend(&self, _: &Names, _: &Token, _ttl: Duration) -> Result<bool, Error> {
        Ok(false)
    }

    /// Says in the same way as [`Adapter::say_lease`] that a waiter for these locks is not silent until then. Whether that
    /// is all there is to say: it still waits, and others can hear it.
    fn say_heard(&self, names: &Names, token: &Token, until: Duration) -> bool;

    /// Whether it can also watch a token of which nothing is tracked.
    fn watches_anybody(&self) -> bool {
        false
    }

    /// Whether the owner of a token lives.
    fn liveness(&self, token: &Token) -> Liveness<Self::Watch>;

    /// Forgets a dead one of whom no record tells any more.
    fn forget(&self, token: &Token);

    /// Sleeps until the owner of `token`, which waits for these locks, is woken or one of the others ends, at the most for
    /// `limit`: then it answers false. An [alarm](crate::store::net::alarm) ends it, too. The more are `ahead`, the later it may
    /// notice where nothing wakes it.
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

    /// What hears when the owner of `token`, which holds these locks or looks on, is woken.
    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription>;
}

/// What is kept of one lock.
pub trait Entry {
    /// Its full name.
    fn name(&self) -> &str;
    /// What the law keeps, but for those waiters that it was not shown.
    fn record(&mut self) -> &mut Record;
    /// The tokens whose owners can be told to live or not. Others are believed to live.
    fn tracked(&self) -> &BTreeMap<Token, Tracked>;
    /// The same, to be changed.
    fn tracked_mut(&mut self) -> &mut BTreeMap<Token, Tracked>;
    /// Who waits.
    fn queue(&self) -> &Queue;
    /// Another one for every change.
    fn version(&self) -> u64;
    /// Those of the last ends that the record does not have, newest first.
    fn log(&self) -> Vec<LoggedEnd>;
}

/// What is known of a token whose owner can be told to live or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// How many locks it asked for together: where it is reaped in all of them, its life can go.
    pub locks: u32,
    /// How long a lease it takes, in milliseconds: so long it may believe in one whose end can no longer be read.
    pub ttl: u64,
}

/// Whose own word about the end of their leases is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// Of those whose lease is over by the record.
    Due,
    /// Of all.
    All,
}

/// What became of the records that were to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// They are.
    Yes,
    /// Nothing was: somebody else has changed one of them since it was read.
    Conflict,
    /// Nothing was: it is more than the store takes at once, which is said where it cannot be less.
    TooLarge(Error),
}

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
impl Written {
    /// It is more than the store with this name takes at once.
    pub fn too_large(shown: &str) -> Self {
        Self::TooLarge(Error::Unavailable(format!(
            "{shown}: too many hold the lock or wait for it, more than one request can say; try again when some have left"
        )))
    }
}

/// Whether a record has to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It has.
    Yes,
    /// It is as it was.
    No,
}

/// What can be told of the owner of a token.
#[derive(Debug)]
pub enum Liveness<W> {
    /// It lives.
    Alive(W),
    /// It does not.
    Dead,
    /// It has given everything back, or somebody removed what would tell.
    Missing,
    /// It cannot be told now. Then only its lease or its silence ends it.
    Unknown,
}

//! What the SQL of each database must do. Its text is in `postgres` and `mysql`. Everything that
//! comes from a user goes into a statement as hexadecimal digits, so none of it can be taken for
//! SQL.

use super::link::{Answer, Link};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{HISTORY_KEPT, millis};
use crate::store::Error;
use crate::store::engine::coordinator::Batch;
use crate::store::engine::stored_lock::{Parts, StoredLock};
use crate::store::net::Address;
use crate::store::net::target::Target;
use std::ops::RangeInclusive;

/// How long a reservation of a lock lasts, in milliseconds: a few round trips.
pub const RESERVED: u64 = 1000;
/// A lock whose `reserved` is further in the future than this is not reserved: the server's clock
/// was set back. More than [`RESERVED`], because a statement that is refused may have arrived
/// before the one that reserved the lock.
pub const RESERVED_MOST: u64 = 10_000;

/// A waiter with fewer than this number before it is near the front of its queue.
pub const NEAR: usize = 8;

/// A write: all of it, if no lock has another version meanwhile, or none.
#[derive(Debug, Default)]
pub struct Write {
    /// All locks that were read, each with its version.
    pub read: Vec<(String, u64)>,
    /// Whether to write even if another process has [reserved](Dialect::reserve) one of the locks.
    pub reserves: bool,
    /// If set, writes only while the server's clock, in microseconds since 1970, is one of these.
    pub within: Option<RangeInclusive<u64>>,
    pub locks: Vec<NewLock>,
    /// Tokens to notify.
    pub woken: Vec<Token>,
}

/// A lock that is written.
#[derive(Debug)]
pub struct NewLock {
    pub name: String,
    pub version: u64,
    /// When the lock counts as last used, in milliseconds since 1970: at the time of the write; in the
    /// future if it is to be kept for longer than others. An earlier dlock keeps it as long, too.
    pub used: u64,
    /// Whether `status` should list the lock.
    pub is_kept: bool,
    pub parts: Parts,
}

impl Write {
    /// The write that takes the locks of a batch to their new state, and the locks as it leaves
    /// them.
    pub fn of(batch: Batch<'_>) -> Result<(Self, Vec<StoredLock>), serde_json::Error> {
        let woken = batch.woken.to_vec();
        let (mut write, mut left) = (Self { woken, ..Self::default() }, Vec::new());
        for mut change in batch.changes {
            let (name, version) = (change.after.name.clone(), change.after.version);
            // By the clock, so that a server that has lost writes does not give a version twice.
            let next = batch.now.0.max(version + 1);
            write.read.push((name.clone(), version));
            if change.is_changed {
                // A connection does not prove that its client lives.
                change.after.tracked.clear();
                let parts = change.parts(batch.now)?;
                let is_kept = !change.after.is_empty();
                let longer = change.after.record.removed_after() - 2 * HISTORY_KEPT;
                let used = batch.now.millis().saturating_add(millis(longer));
                change.after.version = next;
                write.locks.push(NewLock { name, version: next, used, is_kept, parts });
            }
            left.push(change.after);
        }
        Ok((write, left))
    }

    /// The lock, if its row is all that the write changes, and no token is woken: a renewal, or the
    /// confirmation of a grant. Such a write can be a plain `UPDATE`, which costs the server less.
    pub fn sole(&self) -> Option<&NewLock> {
        let [lock] = self.locks.as_slice() else { return None };
        let Parts { waiters, gone, ends, .. } = &lock.parts;
        let is_sole = waiters.is_empty() && gone.is_empty() && ends.is_empty() && self.woken.is_empty();
        Some(lock).filter(|_| is_sole && self.read.len() == 1)
    }

    /// The condition that a row may be written, besides its version. `open` is the condition that
    /// nobody has reserved it, and `now` the server's time.
    pub fn condition(&self, open: &str, now: &str) -> String {
        let open = if self.reserves { String::new() } else { format!(" AND {open}") };
        match &self.within {
            Some(within) => format!("{open} AND {now} BETWEEN {} AND {}", within.start(), within.end()),
            None => open,
        }
    }
}

/// The SQL of one kind of database. Each method returns one statement, or several to be sent
/// together. `names` is a [list](Dialect::list) of names.
pub trait Dialect: Send + Sync {
    fn connect(&self, target: &Target, server: &Address, deadline: Moment) -> Result<Box<dyn Link>, Error>;

    /// Create the tables if they are missing.
    fn tables(&self) -> &'static [&'static str];

    /// Returns, in five columns:
    /// - `t`, NULL, the time in microseconds since 1970, the server process, NULL;
    /// - `r`, name, version, NULL, body for each lock;
    /// - `w`, name, token, end of silence by the last heartbeat, body for each waiter;
    /// - `e`, name, number, NULL, body for each end, if asked for.
    ///
    /// The time is read before the rows, and all rows are of one moment. Names and bodies are in
    /// hexadecimal digits.
    fn read(&self, names: &str, with_ends: bool) -> String;

    /// Returns the server's time, in microseconds since 1970.
    fn time(&self) -> String;

    /// Creates rows for locks that have none. The version of such a row comes from the clock, so
    /// that a row that was removed and made again has another one.
    fn begin(&self, names: &[&str]) -> String;

    /// Reserves these locks for [`RESERVED`], so that only a write that reserves too can change
    /// them. It does not change the version, and the next write ends it. Sent as a text of its own:
    /// the rows must not be locked while the queue is sent, because the client may have stopped.
    fn reserve(&self, names: &str) -> String;

    /// Writes everything, or nothing if a [condition](Write::condition) is not met.
    fn write(&self, write: &Write) -> String;

    /// Whether the last answer to a [write](Dialect::write) says that it was done.
    fn is_written(&self, answer: &Answer) -> bool;

    /// A statement to run some time after a successful write. Nobody waits for it, and it may be
    /// lost.
    fn behind(&self, _: &Write) -> Option<String> {
        None
    }

    /// Records a waiter's heartbeat: it is not stale for this many milliseconds from now. Changes
    /// one row for each queue that it is in.
    fn heartbeat(&self, names: &str, token: &Token, millis: u64) -> String;

    /// Returns a row of 1 for each of these locks in whose queue the token is. Then, if waiters have no
    /// [channels](Dialect::wake_channel), a row of 0 for each waiter before it, at most [`NEAR`].
    fn waits(&self, names: &str, token: &Token) -> String;

    /// Returns the version of each of these locks, in order of name.
    fn versions(&self, names: &str) -> String;

    /// Returns the names of all locks that `status` should list.
    fn names(&self) -> String;

    /// Returns one row: product and version; 1 if the server is a standby; the settings that let a
    /// crash undo a commit, or an empty text; and the user's role if it has all rights.
    fn survey(&self) -> String;

    /// Asks who else may change the tables: one row that names their owner, all users, or both; else
    /// NULL. None where tables have no owner.
    fn others(&self) -> Option<String> {
        None
    }

    /// Returns the settings that make a commit wait for a standby: rows of a name and a value.
    fn acknowledgement(&self) -> String;

    /// Whether a commit waits for a standby, by the values that `setting` returns: an empty text for a
    /// setting that the server does not have.
    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> String) -> bool;

    /// How messages name these settings.
    fn acknowledged_by(&self) -> &'static str;

    /// Deletes all rows of these locks.
    fn remove(&self, names: &str) -> Vec<String>;

    /// Deletes rows that are too old.
    fn clean_up(&self) -> Vec<String>;

    /// Subscribes this connection to the token's notification channel, if there are channels.
    fn wake_channel(&self, _: &Token) -> Option<String> {
        None
    }

    /// A literal of these bytes.
    fn bytes(&self, bytes: &[u8]) -> String;

    /// A list of literals of these names.
    fn list(&self, names: &mut dyn Iterator<Item = &str>) -> String {
        join(names.map(|name| self.bytes(name.as_bytes())))
    }
}

/// Joins with commas.
pub fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

//! The SQL that all databases share, and what each statement of a dialect must do. Everything that
//! comes from a user goes into a statement as hexadecimal digits, so none of it can be taken for
//! SQL.

use super::row::{self, LockRow, Waiters};
use crate::lock::{Mode, Names, Token};
use crate::rules::{LOG_KEPT, Record, Time};
use crate::store::engine::Changed;
use crate::store::engine::queue::{Changes, Place, Waiting};
use ring::digest::{SHA256, digest};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a reservation of a lock lasts, in milliseconds: a few round trips.
pub const RESERVED: u64 = 1000;
/// A lock whose `used` is further in the future than this is not reserved: the server's clock was
/// set back. More than [`RESERVED`], because a statement that is refused may have arrived before
/// the one that reserved the lock.
pub const RESERVED_MOST: u64 = 10_000;

/// What to read.
pub struct Question<'q> {
    pub names: &'q BTreeSet<String>,
    /// The caller's token: the rules may decide about its waiter and its predecessor.
    pub me: Option<&'q Token>,
    /// Which waiters to read.
    pub waiters: Waiters,
    /// Whether to read the ends too.
    pub with_ends: bool,
}

/// A write: all of it, if no lock has another version meanwhile, or none.
#[derive(Debug, Default)]
pub struct Change {
    /// All locks that were read, each with its version.
    pub read: Vec<(String, u64)>,
    /// Whether to write even if another process has [reserved](Dialect::reserve_and_read) one of
    /// the locks.
    pub reserves: bool,
    pub bodies: Vec<NewBody>,
    /// Waiters that have left.
    pub gone: Vec<(String, Token)>,
    /// New or changed waiters, and the note of each new one.
    pub come: Vec<(String, Waiting, Option<Vec<u8>>)>,
    /// New ends, with their numbers.
    pub ends: Vec<(String, u64, Vec<u8>)>,
    /// For each lock the number of the last end to delete.
    pub old_ends: Vec<(String, u64)>,
    /// Tokens to notify.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "MySQL has no channels"))]
    pub woken: Vec<Token>,
}

/// The row of one lock.
#[derive(Debug)]
pub struct NewBody {
    pub name: String,
    pub version: u64,
    /// Time of the last use, in milliseconds since 1970.
    pub used: u64,
    /// Whether `status` should list the lock.
    pub is_kept: bool,
    pub body: Vec<u8>,
}

/// The SQL of one kind of database. Each method returns one statement, or several to be sent
/// together.
pub trait Dialect {
    /// Create the tables if they are missing.
    fn tables(&self) -> &'static [&'static str];

    /// Returns rows of: the kind (`t` time and server process, `r` lock, `w` waiter, `e` end), the
    /// name, and up to nine more columns. A lock of which not all waiters are read also has the
    /// latest deadline that any of its waiters has published.
    fn read(&self, question: &Question<'_>) -> String;

    /// Returns the server's time, in microseconds since 1970.
    fn time(&self) -> String;

    /// Creates rows for locks that have none.
    fn begin(&self, names: &[&String], now: Time) -> String;

    /// Reserves these locks for [`RESERVED`], so that only a write that reserves too can change
    /// them; then [`Dialect::read`]. A reservation adds 2 to `kept` and sets `used` in the future.
    /// It does not change the version, and the next write ends it. The rows of the locks must not
    /// be locked while rows are sent, because the client may have stopped.
    fn reserve_and_read(&self, question: &Question<'_>) -> Vec<String>;

    /// Writes the change. Returns 1 in the last row if it was written.
    fn write(&self, change: &Change) -> String;

    /// SQL to put before a write.
    fn before_write(&self, _: &Change) -> &'static str {
        ""
    }

    /// A statement to run some time after a successful write. Nobody waits for it, and it may be
    /// lost.
    fn behind(&self, _: &Change) -> Option<String> {
        None
    }

    /// A statement after a write that others see before it is on the disk. It changes as many rows
    /// as there are new ends if the write was not lost, and returns when the write is on the disk.
    /// None if a write is on the disk when it returns.
    fn secure(&self, _: &Change) -> Option<String> {
        None
    }

    /// Returns the notes of these waiters: rows of a token and a note.
    fn notes(&self, name: &str, tokens: &[Token]) -> String;

    /// Records a waiter's heartbeat: it is not stale for this many milliseconds from now. Changes
    /// one row for each queue that it waits in.
    fn heard(&self, names: &Names, token: &Token, millis: u64) -> String;

    /// Returns one row for each of these locks that the token waits for.
    fn waits(&self, names: &Names, token: &Token) -> String;

    /// Returns the version of each of these locks, in order of name.
    fn versions(&self, names: &BTreeSet<String>) -> String;

    /// Returns the names of all locks that `status` should list.
    fn names(&self) -> String;

    /// Returns one row: product and version; 1 if the server is a standby; the settings that let a
    /// crash undo a commit, or an empty text; and the user's role if it has all rights.
    fn survey(&self) -> String;

    /// Returns the settings that make a commit wait for a standby: rows of a name and a value.
    fn acknowledgement(&self) -> String;

    /// Whether a commit waits for a standby, by the values that `setting` returns.
    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> Option<String>) -> bool;

    /// How messages name these settings.
    fn acknowledged_by(&self) -> &'static str;

    /// Deletes all rows of a lock.
    fn remove(&self, name: &str) -> Vec<String>;

    /// Deletes rows that are too old.
    fn clean_up(&self) -> Vec<String>;

    /// Whether the database has notification channels.
    fn has_channels(&self) -> bool;

    /// Subscribes this connection to the token's notification channel, if there are channels.
    fn wake_channel(&self, token: &Token) -> Option<String>;

    /// SQL to put before a statement, so that this connection takes the token's advisory lock. Only
    /// waking depends on that lock. None if the database has no advisory locks.
    fn take_advisory_lock(&self, _: &Token) -> Option<String> {
        None
    }

    /// SQL to put before a statement, so that this connection releases the advisory lock, which
    /// wakes the waiters that sleep at it.
    fn drop_advisory_lock(&self) -> Option<String> {
        None
    }

    /// Sleeps until the token's advisory lock is released, at most this long. Returns 1 if it was,
    /// 2 if nobody holds it, and 0 if it is still held.
    fn sleep_at_advisory_lock(&self, _: &Token, _: Duration) -> Option<String> {
        None
    }

    /// A literal of these bytes.
    fn bytes(&self, bytes: &[u8]) -> String;

    fn list(&self, names: &mut dyn Iterator<Item = &str>) -> String {
        join(names.map(|name| self.bytes(name.as_bytes())))
    }
}

/// Joins with commas.
pub fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// A mode as a number: 0 exclusive, -1 shared, otherwise the number of slots.
pub fn mode(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Slots(slots) => i64::from(slots),
    }
}

/// What a token's advisory lock is named after: a hash, because every user of the server can see
/// the name.
pub fn advisory_lock(token: &Token) -> [u8; 8] {
    let hash = digest(&SHA256, token.secret().as_bytes());
    hash.as_ref().first_chunk().copied().unwrap_or_default()
}

/// A place as a number.
pub fn place(place: Place) -> u8 {
    match place {
        Place::Queued => 0,
        Place::Suspended => 1,
    }
}

impl Change {
    /// The write that takes these rows to their new state.
    pub fn of(
        rows: Vec<(LockRow, Changed)>,
        now: Time,
        woken: &[Token],
        reserves: bool,
    ) -> Result<Self, serde_json::Error> {
        let mut change = Self { woken: woken.to_vec(), reserves, ..Self::default() };
        for (row, changed) in rows {
            change.read.push((row.name.clone(), row.version));
            if changed == Changed::Yes {
                change.add(row, now)?;
            }
        }
        Ok(change)
    }

    fn add(&mut self, mut row: LockRow, now: Time) -> Result<(), serde_json::Error> {
        let name = row.name.clone();
        let Changes { news, gone } = row.queue.changes(&row.record, &row.tracked);
        let forgotten = row.queue.waiting.iter().filter(|waiting| waiting.is_forgotten(now));
        let is_new = |waiting: &&Waiting| news.iter().any(|(new, _)| new.token == waiting.token);
        let gone = gone.into_iter().chain(forgotten).filter(|waiting| !is_new(waiting));
        self.gone.extend(gone.filter_map(|waiting| Some((name.clone(), waiting.token()?))));
        for (waiting, note) in news {
            let note = note.map(|note| serde_json::to_vec(&note)).transpose()?;
            self.come.push((name.clone(), waiting, note));
        }
        (row.record.waiters, row.record.queue) = Default::default();
        let mut ends = row.ends;
        for end in std::mem::take(&mut row.record.log).iter().rev() {
            ends += 1;
            self.ends.push((name.clone(), ends, serde_json::to_vec(end)?));
        }
        if ends > row.ends {
            self.old_ends.push((name.clone(), ends.saturating_sub(LOG_KEPT as u64)));
        }
        let is_kept = ends > 0 || row.record != Record::default();
        let (version, used, body) = (row.version, now.millis(), row::body(ends, &row.record)?);
        self.bodies.push(NewBody { name, version, used, is_kept, body });
        Ok(())
    }
}

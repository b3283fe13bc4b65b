//! In which words is a database asked? What each statement is to do, and the words that all databases share. Everything that
//! comes from a user goes into a statement as hexadecimal digits, so nothing in it can be taken for words.

use super::row::{self, LockRow, Waiters};
use crate::lock::{Mode, Names, Token};
use crate::rules::{LOG_KEPT, Record, Time};
use crate::store::engine::Changed;
use crate::store::engine::queue::{Changes, Place, Waiting};
use ring::digest::{SHA256, digest};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a lock is reserved, in milliseconds: some round trips.
pub const RESERVED: u64 = 1000;
/// Used further in the future than this it is not reserved: a clock was set back. It is more than [`RESERVED`], for who is
/// refused may have come before who reserved it.
pub const RESERVED_MOST: u64 = 10_000;

/// Which locks to read.
pub struct Question<'q> {
    pub names: &'q BTreeSet<String>,
    /// Who asks: it and who is before it may matter to the law.
    pub me: Option<&'q Token>,
    /// Of whom the rows are wanted.
    pub waiters: Waiters,
    /// Whether the ends are wanted, too.
    pub with_ends: bool,
}

/// What is to be written, in one act, if none of the locks has another version.
#[derive(Debug, Default)]
pub struct Change {
    /// All locks that were read, each with its version.
    pub read: Vec<(String, u64)>,
    /// Whether it is written although somebody else has [reserved](Grammar::reserve) one of them.
    pub insists: bool,
    pub bodies: Vec<NewBody>,
    /// Who waits no more.
    pub gone: Vec<(String, Token)>,
    /// Who came, or is otherwise than before; with what does not change about it where it came.
    pub come: Vec<(String, Waiting, Option<Vec<u8>>)>,
    /// New ends, with their numbers.
    pub ends: Vec<(String, u64, Vec<u8>)>,
    /// The ends up to this number are too many.
    pub old_ends: Vec<(String, u64)>,
    /// Whose bells to ring.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "MySQL has no bells"))]
    pub woken: Vec<Token>,
}

/// A lock's own row.
#[derive(Debug)]
pub struct NewBody {
    pub name: String,
    pub version: u64,
    /// When it was used, in milliseconds since 1970.
    pub used: u64,
    /// Whether there is anything to tell of it.
    pub is_kept: bool,
    pub body: Vec<u8>,
}

/// The words of one kind of database. Each answers a whole statement, or several to be sent together.
pub trait Grammar {
    /// Makes the tables, if they are missing.
    fn tables(&self) -> &'static [&'static str];

    /// The rows: the kind (`t` the time and who answers, `r` a lock, `w` a waiter, `e` an end), the name, and up to nine
    /// columns more. A lock of which not all waiters are read tells until when one of them has said to be there.
    fn read(&self, question: &Question<'_>) -> String;

    /// The time, in microseconds since 1970.
    fn time(&self) -> String;

    /// Makes rows for locks that have none.
    fn begin(&self, names: &[&String], now: Time) -> String;

    /// For [`RESERVED`] nobody changes these locks but who insists; and then [`Grammar::read`]. The `kept` of a reserved lock
    /// is 2 more, and its `used` is in the future. It does not get another version by that, and its next write ends it.
    /// No row of a lock is locked while rows are sent: who asked may have stopped.
    fn reserve_and_read(&self, question: &Question<'_>) -> Vec<String>;

    /// Answers 1 in the last row if it was done.
    fn write(&self, change: &Change) -> String;

    /// Words to be put before that.
    fn before_write(&self, _: &Change) -> &'static str {
        ""
    }

    /// What is to follow a write some time, if it was done. Nobody waits for it, and nothing is wrong where it is not done.
    fn behind(&self, _: &Change) -> Option<String> {
        None
    }

    /// What is to follow a write that others are told of before it is on a disk: it changes as many rows as there are new ends
    /// if all of it is still there, and has it on the disk when it answers. Nothing where a write is on the disk at once.
    fn secure(&self, _: &Change) -> Option<String> {
        None
    }

    /// What does not change about these waiters: of each its token and that.
    fn notes(&self, name: &str, tokens: &[Token]) -> String;

    /// A waiter is not silent for so many milliseconds from now on. Changes as many rows as it waits in.
    fn heard(&self, names: &Names, token: &Token, millis: u64) -> String;

    /// One row for each of these locks that the token waits for.
    fn waits(&self, names: &Names, token: &Token) -> String;

    /// One row for each of these locks, in order of name: what changes when anything does.
    fn versions(&self, names: &BTreeSet<String>) -> String;

    /// The names of all locks of which there is anything to tell.
    fn names(&self) -> String;

    /// One row: what the database calls itself, with its version; 1 if it is a standby; and what is set so that a crash may
    /// take back what was done, as a text, empty if nothing is; and what the user is that may do all there, if it is that.
    fn survey(&self) -> String;

    /// The settings of the server by which a commit waits until a standby has it: rows of a name and a value.
    fn acknowledgement(&self) -> String;

    /// Whether it waits so. `setting` has the values.
    fn is_acknowledged(&self, setting: &dyn Fn(&str) -> Option<String>) -> bool;

    /// How messages name these settings.
    fn acknowledged_by(&self) -> &'static str;

    /// Removes all that is kept of a lock.
    fn remove(&self, name: &str) -> Vec<String>;

    /// Removes what is too old to keep.
    fn tidy(&self) -> Vec<String>;

    /// Whether the database has bells.
    fn has_bells(&self) -> bool;

    /// Has the bell of a token ring on this connection from now on, if there are bells.
    fn bell(&self, token: &Token) -> Option<String>;

    /// Has this connection hold the latch of a token: a lock of the server that nothing but waking depends on. Nothing where
    /// there are none; words to be put before a statement, as those of the next one.
    fn hold_latch(&self, _: &Token) -> Option<String> {
        None
    }

    /// Lets go of it, if this connection holds it: whoever sleeps there wakes.
    fn drop_latch(&self) -> Option<String> {
        None
    }

    /// Sleeps for so long until the latch of a token is let go. Answers 1 if it was, 2 if nobody holds it, and 0 if it is held.
    fn sleep_at_latch(&self, _: &Token, _: Duration) -> Option<String> {
        None
    }

    /// These bytes.
    fn bytes(&self, bytes: &[u8]) -> String;

    fn list(&self, names: &mut dyn Iterator<Item = &str>) -> String {
        join(names.map(|name| self.bytes(name.as_bytes())))
    }
}

/// With commas between them.
pub fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// How a mode is written: 0 for one holder, -1 for any number, else how many.
pub fn mode(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Slots(slots) => i64::from(slots),
    }
}

/// What a latch is named after. All who may look at the server see that, so it does not tell the token.
pub fn latch(token: &Token) -> [u8; 8] {
    let hash = digest(&SHA256, token.secret().as_bytes());
    hash.as_ref().first_chunk().copied().unwrap_or_default()
}

/// How a place is written.
pub fn place(place: Place) -> u8 {
    match place {
        Place::Queued => 0,
        Place::Parked => 1,
    }
}

impl Change {
    /// What became of these rows.
    pub fn of(
        rows: Vec<(LockRow, Changed)>,
        now: Time,
        woken: &[Token],
        insists: bool,
    ) -> Result<Self, serde_json::Error> {
        let mut change = Self { woken: woken.to_vec(), insists, ..Self::default() };
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

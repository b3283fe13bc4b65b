//! The one format in which stores keep a lock. A store may keep a lock as one value
//! ([`StoredLock::to_value`]), or as a body with one value for each waiter ([`Change::parts`]), so
//! that a change writes no more than it must. In both, the last ends of holds are values of their
//! own, and are written once.
//!
//! Users with write access may have put anything there, so [`super::bounds`] checks all that is
//! read. The store turns what is refused into `Error::Garbled`, and never writes over it.

use super::bounds;
use crate::lock::Token;
use crate::rules::{Hold, LoggedEnd, Phase, Record, Time, Waiter, millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format of what is written.
const FORMAT: u32 = 1;

/// Number of released tokens that a record remembers, for requests that arrive late or again.
const RELEASED_MAX: usize = 16;

/// A lock that was read.
#[derive(Debug, Clone, Default)]
pub struct StoredLock {
    /// The lock's full name.
    pub name: String,
    /// Differs after every change; 0 if nothing is recorded.
    pub version: u64,
    /// The record with all waiters. Its `log` has only the ends of the present operation.
    pub record: Record,
    /// How many holds have ended so far.
    pub ends: u64,
    /// The tokens whose liveness can be checked; others count as alive.
    pub tracked: BTreeMap<Token, Tracked>,
    /// The last ends that were read, newest first.
    pub log: Vec<LoggedEnd>,
}

/// What is known of a token whose liveness can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// Length of the token's lease in milliseconds. If the published end can no longer be read, the
    /// lease counts as lasting this long from now.
    pub ttl: u64,
}

/// A lock before and after an operation.
#[derive(Debug)]
pub struct Change {
    /// The record as it was read.
    pub before: Record,
    /// The lock as the operation leaves it.
    pub after: StoredLock,
    /// Whether it must be written.
    pub is_changed: bool,
}

/// The values that a change writes, for a store in which each waiter has a value of its own.
#[derive(Debug)]
pub struct Parts {
    /// The record without its waiters.
    pub body: Vec<u8>,
    /// New and changed waiters.
    pub waiters: Vec<WaiterPart>,
    /// Waiters that have left.
    pub gone: Vec<Token>,
    pub ends: Vec<EndPart>,
}

/// A waiter's value.
#[derive(Debug)]
pub struct WaiterPart {
    pub token: Token,
    /// Whether it is in the queue, and not suspended.
    pub is_queued: bool,
    /// Its place in the queue: smaller tickets come first.
    pub ticket: u64,
    pub value: Vec<u8>,
}

/// The value of an end, and its number, counted from 1.
#[derive(Debug)]
pub struct EndPart {
    pub number: u64,
    pub value: Vec<u8>,
}

/// The form of a value, and of a body.
#[derive(Serialize, Deserialize)]
struct Form<N, R, T> {
    format: u32,
    /// The lock's name. A body has an empty one: its key tells the name.
    #[serde(default)]
    name: N,
    /// When it was last written, in milliseconds since 1970.
    used: u64,
    ends: u64,
    record: R,
    tracked: T,
}

/// The form of a waiter's value.
#[derive(Serialize, Deserialize)]
struct WaiterForm<W> {
    is_queued: bool,
    waiter: W,
}

impl StoredLock {
    /// A lock without a record.
    pub fn absent(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Parses a value or a body. Returns the lock, and when it was last written. The error is one
    /// short line.
    pub fn parse(value: &[u8], version: u64) -> Result<(Self, u64), String> {
        let mut form: Form<String, Record, BTreeMap<Token, Tracked>> =
            serde_json::from_slice(value).map_err(|error| why_not(value, &error))?;
        if form.format != FORMAT {
            return Err(other_format(form.format));
        }
        bounds::check(&mut form.record)?;
        bounds::check_number(form.used.max(form.ends))?;
        let Form { name, used, ends, record, tracked, .. } = form;
        Ok((Self { name, version, record, ends, tracked, log: Vec::new() }, used))
    }

    /// Adds a waiter from its own value.
    pub fn add_waiter(&mut self, token: Token, value: &[u8]) -> Result<(), &'static str> {
        let WaiterForm { is_queued, waiter } =
            serde_json::from_slice::<WaiterForm<Waiter>>(value).map_err(|_| "a waiter cannot be read")?;
        bounds::check_waiter(&waiter)?;
        if !waiter.names.contains(&self.name) {
            return Err("a waiter waits for other locks");
        }
        if is_queued {
            self.record.queue.insert((waiter.ticket, token.clone()));
        }
        self.record.waiters.insert(token, waiter);
        Ok(())
    }

    /// Adds an end; call it for the newest end first. An end that cannot be read is left out, so
    /// that the others can still be shown. So is an end that came after the record was read, where
    /// a store reads the two one after the other: the view must show one moment.
    pub fn add_end(&mut self, value: &[u8]) {
        let Ok(end) = serde_json::from_slice::<LoggedEnd>(value) else { return };
        let is_it = |hold: &Hold| hold.fence == end.fence.0;
        let lasts = self.record.holds.values().any(|hold| is_it(hold) && hold.phase == Phase::Held);
        let is_known = self.log.iter().chain(&self.record.log).any(|known| known.fence == end.fence);
        if end.fence.0 <= self.record.fence && !lasts && !is_known {
            self.log.push(end);
        }
    }

    /// Forgets the whole record if the lock is vacant and `used`, the time of its last use, is longer ago
    /// than its [history is kept](Record::history_kept).
    pub fn forget_history(&mut self, used: u64, now: Time) {
        if self.record.is_vacant(now)
            && self.record.waiters.is_empty()
            && now.millis().saturating_sub(used) > millis(self.record.history_kept())
        {
            *self = Self { version: self.version, ..Self::absent(&self.name) };
        }
    }

    /// Whether the token holds the lock alone and nobody waits. Then no other process is likely to
    /// change the record before the token's next renewal.
    #[cfg(any(feature = "sql", feature = "zookeeper"))]
    pub fn is_quietly_held_by(&self, token: &Token) -> bool {
        let Record { holds, waiters, .. } = &self.record;
        holds.len() == 1 && holds.contains_key(token) && waiters.is_empty()
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.ends == 0 && self.record == Record::default()
    }

    /// The value or the body, as JSON.
    fn form(&self, now: Time, name: &str) -> Result<Vec<u8>, serde_json::Error> {
        let Self { record, tracked, .. } = self;
        let (used, ends) = (now.millis(), self.ends);
        serde_json::to_vec(&Form { format: FORMAT, name, used, ends, record, tracked })
    }

    /// Drops what need not be recorded: all but the newest tombstones, and what is known of tokens
    /// that the record no longer names.
    fn trim(&mut self) {
        drop_old_tombstones(&mut self.record);
        let Record { holds, tombstones, watchers, waiters, .. } = &self.record;
        self.tracked.retain(|token, _| {
            tombstones.contains_key(token)
                || watchers.contains_key(token)
                || waiters.contains_key(token)
                || holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling)
        });
    }

    /// Takes the new ends out of the record, oldest first, and counts them.
    fn take_ends(&mut self) -> Result<Vec<EndPart>, serde_json::Error> {
        let mut ends = Vec::new();
        for end in std::mem::take(&mut self.record.log).iter().rev() {
            self.ends += 1;
            ends.push(EndPart { number: self.ends, value: serde_json::to_vec(end)? });
        }
        Ok(ends)
    }

    /// Returns one value for the whole lock, and the new ends, oldest first.
    pub fn to_value(&mut self, now: Time) -> Result<(Vec<u8>, Vec<EndPart>), serde_json::Error> {
        self.trim();
        let ends = self.take_ends()?;
        Ok((self.form(now, &self.name)?, ends))
    }
}

/// Drops all but the newest tombstones.
pub fn drop_old_tombstones(record: &mut Record) {
    let tombstones = &mut record.tombstones;
    let mut by_age: Vec<_> =
        tombstones.iter().map(|(token, tombstone)| (tombstone.until, token.clone())).collect();
    by_age.sort_unstable();
    for (_, token) in by_age.iter().rev().skip(RELEASED_MAX) {
        tombstones.remove(token);
    }
}

/// Why a value cannot be parsed. If its format is another one, that is the reason, whatever else is
/// wrong.
fn why_not(value: &[u8], error: &serde_json::Error) -> String {
    /// The part that every format has.
    #[derive(Deserialize)]
    struct Any {
        format: u32,
    }
    match serde_json::from_slice::<Any>(value) {
        Ok(any) if any.format != FORMAT => other_format(any.format),
        _ => error.to_string().chars().filter(|c| !c.is_control()).take(120).collect(),
    }
}

fn other_format(format: u32) -> String {
    format!("format {format}, this dlock knows {FORMAT}")
}

impl Change {
    /// The values that this change writes, where each waiter has a value of its own.
    pub fn parts(&mut self, now: Time) -> Result<Parts, serde_json::Error> {
        let lock = &mut self.after;
        lock.trim();
        let ends = lock.take_ends()?;
        let is_queued =
            |record: &Record, token: &Token, ticket: u64| record.queue.contains(&(ticket, token.clone()));
        let mut waiters = Vec::new();
        for (token, waiter) in &lock.record.waiters {
            let is_queued_now = is_queued(&lock.record, token, waiter.ticket);
            let is_same = self.before.waiters.get(token).is_some_and(|before| {
                before == waiter && is_queued(&self.before, token, before.ticket) == is_queued_now
            });
            if !is_same {
                let value = serde_json::to_vec(&WaiterForm { is_queued: is_queued_now, waiter })?;
                let (token, ticket) = (token.clone(), waiter.ticket);
                waiters.push(WaiterPart { token, is_queued: is_queued_now, ticket, value });
            }
        }
        let is_gone = |token: &&Token| !lock.record.waiters.contains_key(*token);
        let gone = self.before.waiters.keys().filter(is_gone).cloned().collect();
        let (waiting, queue) =
            (std::mem::take(&mut lock.record.waiters), std::mem::take(&mut lock.record.queue));
        let body = lock.form(now, "");
        (lock.record.waiters, lock.record.queue) = (waiting, queue);
        Ok(Parts { body: body?, waiters, gone, ends })
    }
}

//! A lock in znodes: naming, parsing and checks. One node has the record. Its children are the
//! waiters, whose names say what is needed of each, and the last ends, in a ring that is written
//! over. Every change writes the lock's node, so its version is the version of all of it. Anybody
//! with write access may have put anything there, so everything is checked.

use super::jute::{Ask, Stat};
use crate::lock::{Mode, SLOTS_MAX, Token};
use crate::rules::{Due, LOG_KEPT, Phase, Record, SILENCE, TICKET_KEPT, Time, millis};
use crate::store::Error;
use crate::store::engine::Tracked;
use crate::store::engine::bounds::{self, NUMBER_MOST, check_number};
use crate::store::engine::kept::{self, Kept};
use crate::store::engine::queue::{Changes, Note, Place, Waiting};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

const FORMAT: u32 = 1;
/// Characters of a lock's name that are not percent-encoded in the name of its node.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':')
    .remove(b'@')
    .remove(b'+')
    .remove(b'=')
    .remove(b'~');

/// The data of a lock's node.
#[derive(Debug, Serialize, Deserialize)]
struct Body<R, T> {
    format: u32,
    /// Number of ends so far.
    ends: u64,
    /// The record without waiters and log.
    record: R,
    tracked: T,
}

/// Whether a lock with this record is unused. Its holder's session may last although the record is
/// old.
pub fn is_vacant(body: &[u8], now: Time) -> bool {
    let body = serde_json::from_slice::<Body<Record, serde::de::IgnoredAny>>(body);
    body.is_ok_and(|body| body.format == FORMAT && body.record.is_vacant(now))
}

/// The data of a waiter's node, besides what its name says.
#[derive(Debug, Serialize, Deserialize)]
struct WaiterData {
    since: u64,
    silent: u64,
    forget: u64,
    note: Box<RawValue>,
}

/// A lock.
#[derive(Debug, Default)]
pub struct LockNode {
    kept: Kept,
    pub path: String,
    /// Version of the node. None if it does not exist yet.
    node_version: Option<i32>,
    /// Names of the existing nodes of ends.
    ring: BTreeSet<String>,
    /// Whether it is known to have changed since it was read.
    is_stale: bool,
}

impl Deref for LockNode {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.kept
    }
}

impl DerefMut for LockNode {
    fn deref_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

/// The requests that write a lock.
pub struct Change {
    pub asks: Vec<Ask>,
    /// Whether the lock had no node.
    pub is_new: bool,
}

impl LockNode {
    /// A lock without a node.
    pub fn absent(name: &str, path: String) -> Self {
        Self { kept: Kept::absent(name), path, ..Self::default() }
    }

    /// Whether it is known to have changed since it was read.
    pub const fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Removes a waiter whose node is gone.
    pub fn drop_waiter(&mut self, at: usize) {
        self.queue.waiting.remove(at);
        self.is_stale = true;
    }

    /// Parses a lock's node and the names of its children.
    pub fn parse(
        name: &str,
        path: String,
        body: &[u8],
        stat: Stat,
        children: Vec<String>,
        now: Time,
    ) -> Result<Self, String> {
        let mut lock = Self { node_version: Some(stat.version), ..Self::absent(name, path) };
        lock.version = u64::from(stat.version.cast_unsigned()) + 1;
        let body: Body<Record, BTreeMap<Token, Tracked>> = kept::parse(body, FORMAT)?;
        bounds::check(&body.record)?;
        check_number(body.ends)?;
        (lock.ends, lock.tracked) = (body.ends, body.tracked);
        lock.set_record(body.record, stat.mtime, now);
        for child in children {
            match child.strip_prefix("w-") {
                Some(rest) => {
                    lock.queue.waiting.push(parse_waiter(rest).ok_or("a waiter has an invalid name")?)
                }
                None => drop(lock.ring.insert(child)),
            }
        }
        lock.queue.waiting.sort_by_key(Waiting::key);
        Ok(lock)
    }

    /// Path of a waiter's node.
    pub fn waiter_path(&self, waiting: &Waiting) -> String {
        format!("{}/{}", self.path, waiter_name(waiting))
    }

    /// Path of the node of a waiting token.
    pub fn path_of(&self, token: &Token) -> Option<String> {
        self.queue.find(token).map(|at| self.waiter_path(&self.queue.waiting[at]))
    }

    /// Released tokens that may still have a session.
    pub fn left(&self) -> impl Iterator<Item = &Token> {
        self.record.spent.keys().filter(|token| self.tracked.contains_key(*token))
    }

    /// Paths of the ends, newest first.
    pub fn end_paths(&self) -> Vec<String> {
        let numbers = (self.ends.saturating_sub(LOG_KEPT as u64)..self.ends).rev();
        let there = numbers.map(end_name).filter(|name| self.ring.contains(name));
        there.map(|name| format!("{}/{name}", self.path)).collect()
    }

    /// Sets the ends. One that cannot be read is left out, so that the others can still be shown.
    pub fn set_log<'b>(&mut self, ends: impl Iterator<Item = &'b [u8]>) {
        self.log = ends.filter_map(|end| serde_json::from_slice(end).ok()).collect();
    }

    /// Waiters to read in advance: the first `front`, `me` and its predecessor, or the last waiter
    /// if `me` may join behind it, and the newest one of those that replace others.
    pub fn wanted(&self, front: usize, me: Option<&Token>) -> Vec<&Waiting> {
        let queued: Vec<&Waiting> =
            self.queue.waiting.iter().filter(|waiting| waiting.place == Place::Queued).collect();
        let mut wanted: Vec<&Waiting> = queued.iter().take(front).copied().collect();
        match me.map(|me| self.queue.find(me)) {
            Some(Some(at)) => {
                let mine = &self.queue.waiting[at];
                wanted.push(mine);
                wanted.extend(queued.iter().rev().find(|waiting| waiting.key() < mine.key()));
            }
            Some(None) if !me.is_some_and(|me| self.record.holds.contains_key(me)) => {
                wanted.extend(queued.last());
            }
            _ => {}
        }
        let newest = self.record.newest.as_ref().and_then(|newest| self.queue.find(&newest.token));
        wanted.extend(newest.map(|at| &self.queue.waiting[at]));
        wanted.sort_by_key(|waiting| waiting.key());
        wanted.dedup_by_key(|waiting| waiting.key());
        wanted
    }

    /// Shows the lock rules a waiter. `heard` is the time of its last heartbeat, in milliseconds.
    /// Returns the locks that it waits for.
    pub fn show(
        &mut self,
        at: usize,
        data: &[u8],
        heard: Option<u64>,
        record: &mut Record,
    ) -> Result<Vec<String>, &'static str> {
        let bad = "a waiter cannot be read";
        let kept: WaiterData = serde_json::from_slice(data).map_err(|_| bad)?;
        let note: Note = serde_json::from_str(kept.note.get()).map_err(|_| bad)?;
        let Some(waiting) = self.queue.waiting.get_mut(at) else { return Ok(Vec::new()) };
        for number in [kept.since, kept.silent, kept.forget] {
            check_number(number)?;
        }
        (waiting.since, waiting.silent) = (kept.since, kept.silent);
        // The name of a suspended waiter's node has its value.
        if waiting.place == Place::Queued {
            waiting.forget = kept.forget;
        }
        let holds = waiting.token().is_some_and(|token| record.holds.contains_key(&token));
        let Kept { queue, name, tracked, .. } = &mut self.kept;
        queue.show(at, note, name, record, tracked, |_, waiter| {
            let Some(heard) = heard.filter(|_| !holds) else { return };
            let (silent, forget) = deadlines(heard);
            waiter.silent = waiter.silent.max(silent);
            waiter.forget = waiter.forget.max(forget);
        })
    }

    /// The requests that write the lock as the lock rules left it.
    pub fn change(mut self, now: Time) -> Result<Change, Error> {
        if self.node_version.is_none() && self.record == Record::default() {
            return Ok(Change { asks: Vec::new(), is_new: false });
        }
        let garbled = |error: serde_json::Error| Error::Garbled(error.to_string());
        let (mut gone, mut added) = (BTreeSet::new(), Vec::new());
        let Changes { news, gone: left } = self.queue.changes(&self.record, &self.tracked);
        gone.extend(left.into_iter().map(waiter_name));
        let forgotten = self.queue.waiting.iter().filter(|waiting| waiting.is_forgotten(now));
        gone.extend(forgotten.map(waiter_name));
        for (waiting, note) in news {
            let old = waiting.token().and_then(|token| self.queue.find(&token));
            let old_name = old.map(|at| waiter_name(&self.queue.waiting[at]));
            let note = match note {
                Some(note) => serde_json::value::to_raw_value(&note).map_err(garbled)?,
                None => self.kept_note(&waiting)?,
            };
            let Waiting { since, silent, forget, .. } = waiting;
            let data = serde_json::to_vec(&WaiterData { since, silent, forget, note }).map_err(garbled)?;
            let name = waiter_name(&waiting);
            let path = format!("{}/{name}", self.path);
            if old_name.as_ref() == Some(&name) {
                gone.remove(&name);
                added.push(Ask::Set { path, data });
            } else {
                gone.extend(old_name);
                added.push(Ask::Create { path, data });
            }
        }
        (self.record.waiters, self.record.queue) = Default::default();
        let mut ends = Vec::new();
        for end in std::mem::take(&mut self.record.log).iter().rev() {
            let name = end_name(self.ends);
            let (path, data) = (format!("{}/{name}", self.path), serde_json::to_vec(end).map_err(garbled)?);
            ends.push(if self.ring.insert(name) {
                Ask::Create { path, data }
            } else {
                Ask::Set { path, data }
            });
            self.ends += 1;
        }
        let Kept { record: Record { holds, spent, .. }, tracked, .. } = &mut self.kept;
        tracked.retain(|token, _| {
            spent.contains_key(token) || holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling)
        });
        let body = Body { format: FORMAT, ends: self.ends, record: &self.record, tracked: &self.tracked };
        let (path, data) = (self.path.clone(), serde_json::to_vec(&body).map_err(garbled)?);
        let mut asks = vec![match self.node_version {
            Some(version) => Ask::SetIf { path, data, version },
            None => Ask::Create { path, data },
        }];
        asks.extend(gone.into_iter().map(|name| Ask::Delete { path: format!("{}/{name}", self.path) }));
        asks.extend(added);
        asks.extend(ends);
        Ok(Change { asks, is_new: self.node_version.is_none() })
    }

    /// Path of a token's node in the queue, as the lock rules left it.
    pub fn place_of(&self, token: &Token) -> Option<String> {
        let ticket = self
            .record
            .waiters
            .get(token)
            .filter(|waiter| self.record.queue.contains(&(waiter.ticket, token.clone())))?;
        let bytes = token.secret().as_bytes().try_into().ok()?;
        let waiting = Waiting::new(bytes, ticket.ticket, ticket.mode, Place::Queued);
        Some(self.waiter_path(&waiting))
    }

    /// A check that the lock has not changed since it was read.
    pub fn check(&self) -> Option<Ask> {
        let version = Some(self.node_version?);
        Some(Ask::Check { path: self.path.clone(), version })
    }

    fn kept_note(&self, waiting: &Waiting) -> Result<Box<RawValue>, Error> {
        let data = waiting.token().and_then(|token| self.notes.get(&token));
        let kept = data.and_then(|data| serde_json::from_slice::<WaiterData>(data).ok());
        kept.map(|kept| kept.note).ok_or_else(|| Error::Garbled("the note of a waiter is missing".into()))
    }
}

/// Name of a lock's node.
pub fn lock_name(name: &str) -> String {
    match utf8_percent_encode(name, PLAIN).to_string() {
        name if name.bytes().all(|byte| byte == b'.') => name.replace('.', "%2E"),
        name => name,
    }
}

/// The lock of a node with this name.
pub fn name_of(node: &str) -> Option<String> {
    percent_decode_str(node).decode_utf8().ok().map(Into::into)
}

/// Name of a waiter's node.
fn waiter_name(waiting: &Waiting) -> String {
    let token = String::from_utf8_lossy(&waiting.token);
    let mode = match waiting.mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Slots(slots) => format!("n{slots}"),
    };
    let place = match waiting.place {
        Place::Queued => "q".into(),
        Place::Suspended => format!("p{}", waiting.forget),
    };
    format!("w-{:016x}-{token}-{mode}-{place}", waiting.ticket)
}

fn parse_waiter(rest: &str) -> Option<Waiting> {
    let mut parts = rest.split('-');
    let (ticket, token, mode, place) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let number = |text: &str| text.parse().ok().filter(|number| *number <= NUMBER_MOST);
    let ticket = u64::from_str_radix(ticket, 16).ok().filter(|ticket| *ticket <= NUMBER_MOST)?;
    let token = Token::parse(token).ok()?;
    let mode = match (mode.split_at_checked(1)?, mode) {
        (_, "x") => Mode::Exclusive,
        (_, "s") => Mode::Shared,
        (("n", slots), _) => Mode::Slots(slots.parse().ok().filter(|slots| *slots <= SLOTS_MAX)?),
        _ => return None,
    };
    let (place, forget) = match (place.split_at_checked(1)?, place) {
        (_, "q") => (Place::Queued, 0),
        (("p", forget), _) => (Place::Suspended, number(forget)?),
        _ => return None,
    };
    let mut waiting = Waiting::new(token.secret().as_bytes().try_into().ok()?, ticket, mode, place);
    waiting.forget = forget;
    parts.next().is_none().then_some(waiting)
}

/// Name of the node of an end.
fn end_name(number: u64) -> String {
    format!("e{:02}", number % LOG_KEPT as u64)
}

/// The error for data that is not understood.
pub fn garbled(shown: &str, name: &str, path: &str, why: &str) -> Error {
    Error::Garbled(format!(
        "{shown}: the record of the lock {name:?} is not dlock's, or damaged ({why}); it was not changed: delete the node \
         {path} with all below it when nothing runs under its lock"
    ))
}

/// Whether a hold's end by the record has passed.
pub fn is_over(record: &Record, token: &Token, now: Time) -> bool {
    let hold = record.holds.get(token).filter(|hold| hold.phase != Phase::Cooling);
    hold.is_some_and(|hold| hold.confirmed && hold.until.passed(now))
}

/// The holders with a confirmed grant, and the ends of their leases by the record.
pub fn believed(record: &Record) -> impl Iterator<Item = (&Token, Due)> {
    let confirmed = record.holds.iter().filter(|(_, hold)| hold.confirmed && hold.phase != Phase::Cooling);
    confirmed.map(|(token, hold)| (token, hold.until))
}

/// When a waiter with this last heartbeat, in milliseconds, becomes stale and is forgotten.
fn deadlines(heard: u64) -> (Due, Due) {
    (Due(heard.saturating_add(millis(SILENCE))), Due(heard.saturating_add(millis(TICKET_KEPT))))
}

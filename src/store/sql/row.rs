//! Reads and checks the rows of a lock. Any user with write access may have put anything
//! there: every value has bounds, and dlock does not touch what it cannot read.

use super::{Answer, heard};
use crate::lock::{Mode, SLOTS_MAX, Token};
use crate::rules::{Due, LoggedEnd, Record, SILENCE, Time, millis};
use crate::store::Error;
use crate::store::engine::bounds::{self, check_number};
use crate::store::engine::kept::{self, Kept};
use crate::store::engine::queue::{Place, Waiting};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const FORMAT: u32 = 1;
/// Number of waiters in each queue that a holder reads.
pub const FRONT: usize = 4;

/// The body of a lock's row.
#[derive(Debug, Serialize, Deserialize)]
pub struct Body<R> {
    format: u32,
    /// Number of holds that have ended so far.
    ends: u64,
    /// The record without waiters and log.
    record: R,
}

/// Which waiters are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waiters {
    All,
    /// The first [`FRONT`] of each queue and one more, and all suspended ones.
    Front,
}

/// A lock. No token is tracked, because a connection does not prove that its client lives.
pub type LockRow = Box<Kept>;

/// The body to write for a record, with the number of its ends.
pub fn body(ends: u64, record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body { format: FORMAT, ends, record })
}

/// What a database returned.
pub struct Found {
    pub now: Time,
    /// The server process that answered.
    pub process: u64,
    /// The rows of locks, waiters and ends, unparsed.
    locks: BTreeMap<String, Fields>,
    waiters: Vec<(String, Fields)>,
    ends: Vec<(String, Fields)>,
}

/// The columns after the name.
#[derive(Default)]
struct Fields(Vec<Option<Vec<u8>>>);

impl Fields {
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at)?.as_deref()
    }

    fn number(&self, at: usize) -> Result<u64, &'static str> {
        let text = self.bytes(at).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let number = text.and_then(|text| text.parse().ok()).ok_or("a number is invalid")?;
        check_number(number).map(|()| number)
    }

    fn binary(&self, at: usize) -> Option<Vec<u8>> {
        unhex(self.bytes(at)?)
    }
}

impl Found {
    pub fn parse(answers: &[Answer], shown: &str) -> Result<Self, Error> {
        let rows = answers.last().map(|answer| answer.rows.as_slice()).unwrap_or_default();
        let mut found =
            Self { now: Time(0), process: 0, locks: BTreeMap::new(), waiters: Vec::new(), ends: Vec::new() };
        let bad = |why: &str| Error::Garbled(format!("{shown}: {why}"));
        for row in rows {
            let kind = row.first().and_then(|kind| kind.as_deref()).unwrap_or_default();
            let fields = Fields(row.get(2..).unwrap_or_default().to_vec());
            if kind == b"t" {
                found.now = Time(fields.number(0).map_err(bad)?);
                found.process = fields.number(1).unwrap_or_default();
                continue;
            }
            let name = row.get(1).and_then(|name| name.as_deref()).and_then(unhex);
            let Some(name) = name.and_then(|name| String::from_utf8(name).ok()) else {
                return Err(bad("the name of a lock is invalid"));
            };
            match kind {
                b"r" => drop(found.locks.insert(name, fields)),
                b"w" => found.waiters.push((name, fields)),
                _ => found.ends.push((name, fields)),
            }
        }
        if found.now == Time(0) {
            return Err(bad("its answer has no time"));
        }
        Ok(found)
    }

    /// Whether the lock has a row.
    pub fn has(&self, name: &str) -> bool {
        self.locks.contains_key(name)
    }

    /// Parses these locks, in order of name. A lock without a row is one that was never used.
    pub fn locks(
        self,
        names: &BTreeSet<String>,
        waiters: Waiters,
        shown: &str,
    ) -> Result<Vec<LockRow>, Error> {
        let mut locks: BTreeMap<&str, LockRow> = BTreeMap::new();
        for name in names {
            let row = self.locks.get(name).map(|fields| read(name, fields, self.now));
            let row = row.unwrap_or_else(|| Ok(Box::new(Kept::absent(name))));
            locks.insert(name, row.map_err(|why| garbled(shown, name, &why))?);
        }
        for (name, fields) in &self.waiters {
            let Some(lock) = locks.get_mut(name.as_str()) else { continue };
            let added = add_waiter(lock, fields);
            // A damaged waiter must not end a holder's job.
            if waiters != Waiters::Front {
                added.map_err(|why| garbled(shown, name, why))?;
            }
        }
        let mut ends: Vec<(&str, u64, LoggedEnd)> = Vec::new();
        for (name, fields) in &self.ends {
            let number = fields.number(0).map_err(|why| garbled(shown, name, why))?;
            // An end that cannot be read must not hide the others.
            let end = fields.binary(1).and_then(|end| serde_json::from_slice(&end).ok());
            ends.extend(end.map(|end| (name.as_str(), number, end)));
        }
        ends.sort_by_key(|(_, number, _)| std::cmp::Reverse(*number));
        for (name, _, end) in ends {
            locks.get_mut(name).into_iter().for_each(|lock| lock.log.push(end.clone()));
        }
        for lock in locks.values_mut() {
            let queued = lock.queue.waiting.iter().filter(|waiting| waiting.place == Place::Queued);
            if waiters == Waiters::Front && queued.clone().count() > FRONT {
                let last = queued.map(|waiting| waiting.ticket).max();
                lock.queue.waiting.extend(last.map(Waiting::unread));
            }
            lock.queue.waiting.sort_by_key(Waiting::key);
        }
        Ok(locks.into_values().collect())
    }
}

fn read(name: &str, fields: &Fields, now: Time) -> Result<LockRow, String> {
    let (version, used) = (fields.number(0)?, fields.number(1)?);
    let mut lock = Box::new(Kept { version, ..Kept::absent(name) });
    let body = fields
        .binary(2)
        .ok_or("its body is missing, or max_allowed_packet of the server is too small for it")?;
    if body.is_empty() {
        return Ok(lock);
    }
    let body: Body<Record> = kept::parse(&body, FORMAT)?;
    bounds::check(&body.record)?;
    lock.ends = body.ends;
    lock.set_record(body.record, used, now);
    if fields.bytes(3).is_some() {
        record_heartbeat(&mut lock, fields.number(3)?);
    }
    Ok(lock)
}

fn add_waiter(lock: &mut LockRow, fields: &Fields) -> Result<(), &'static str> {
    let text = fields.bytes(0).and_then(|bytes| std::str::from_utf8(bytes).ok());
    let token = text.and_then(|text| Token::parse(text).ok()).ok_or("a token is invalid")?;
    let mode = match fields.bytes(5) {
        Some(b"-1") => Mode::Shared,
        _ => match u32::try_from(fields.number(5)?) {
            Ok(0) => Mode::Exclusive,
            Ok(slots) if slots <= SLOTS_MAX => Mode::Slots(slots),
            _ => return Err("a waiter wants too many slots"),
        },
    };
    let place = match fields.number(6)? {
        0 => Place::Queued,
        1 => Place::Suspended,
        _ => return Err("a waiter has no place in the queue"),
    };
    let bytes = token.secret().as_bytes().try_into().map_err(|_| "a token is invalid")?;
    let mut waiting = Waiting::new(bytes, fields.number(1)?, mode, place);
    let (silent, forget) = heard(fields.number(7)?);
    waiting.since = fields.number(2)?;
    waiting.silent = fields.number(3)?.max(silent);
    waiting.forget = fields.number(4)?.max(forget);
    record_heartbeat(lock, silent);
    if let Some(note) = fields.binary(8) {
        lock.notes.insert(token, note);
    }
    lock.queue.waiting.push(waiting);
    Ok(())
}

/// Records a heartbeat after which a waiter is not stale until `silent`.
fn record_heartbeat(lock: &mut LockRow, silent: u64) {
    let absence = &mut lock.record.absence;
    if absence.heard.0 > 0 {
        absence.heard = absence.heard.max(Due(silent.saturating_sub(millis(SILENCE))));
    }
}

/// A waiter's token and note.
pub fn note(row: &[Option<Vec<u8>>]) -> Option<(Token, Vec<u8>)> {
    let [Some(token), Some(note)] = row else { return None };
    Some((Token::parse(std::str::from_utf8(token).ok()?).ok()?, unhex(note)?))
}

/// The error for a row that cannot be read.
pub fn garbled(shown: &str, name: &str, why: &str) -> Error {
    Error::Garbled(format!(
        "{shown}: the record of the lock {name:?} is not dlock's, or damaged ({why}); it was not changed: delete its rows \
         in dlock_locks, and on PostgreSQL in dlock_waiters and dlock_ends, when nothing runs under it"
    ))
}

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that the hexadecimal digits stand for.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

//! What do the rows of a lock say? Reading and checking them. Whoever may write the tables may have put anything there: all of
//! it has bounds, and what is not understood is left as it is.

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
/// So many of a queue are read at once by whoever holds the lock.
pub const FRONT: usize = 4;

/// What the database keeps of one lock in one value.
#[derive(Debug, Serialize, Deserialize)]
pub struct Body<R> {
    format: u32,
    /// How many ends there have been.
    ends: u64,
    /// Without those who wait, and without the log.
    record: R,
}

/// Whose rows are read of those who wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waiters {
    All,
    /// Those of the first [`FRONT`] of each queue, of one more if there is one, and of those who stand beside it.
    Front,
}

/// A lock. Nobody is tracked: no connection tells who lives.
pub type LockRow = Box<Kept>;

/// What is written of a record after so many ends.
pub fn body(ends: u64, record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body { format: FORMAT, ends, record })
}

/// What was read.
pub struct Found {
    pub now: Time,
    /// Who answered.
    pub process: u64,
    /// The rows of locks, of those who wait, and of ends, each as the database told it.
    locks: BTreeMap<String, Fields>,
    waiters: Vec<(String, Fields)>,
    ends: Vec<(String, Fields)>,
}

/// The columns behind the name.
#[derive(Default)]
struct Fields(Vec<Option<Vec<u8>>>);

impl Fields {
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at)?.as_deref()
    }

    fn number(&self, at: usize) -> Result<u64, &'static str> {
        let text = self.bytes(at).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let number = text.and_then(|text| text.parse().ok()).ok_or("a number is none")?;
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
                return Err(bad("the name of a lock is none"));
            };
            match kind {
                b"r" => drop(found.locks.insert(name, fields)),
                b"w" => found.waiters.push((name, fields)),
                _ => found.ends.push((name, fields)),
            }
        }
        if found.now == Time(0) {
            return Err(bad("it does not tell the time"));
        }
        Ok(found)
    }

    /// Whether there is a row of that lock.
    pub fn has(&self, name: &str) -> bool {
        self.locks.contains_key(name)
    }

    /// These locks, in order of name. One without a row is as nobody ever used it.
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
            // What stands beside a lock ends no job that runs under it.
            if waiters != Waiters::Front {
                added.map_err(|why| garbled(shown, name, why))?;
            }
        }
        let mut ends: Vec<(&str, u64, LoggedEnd)> = Vec::new();
        for (name, fields) in &self.ends {
            let number = fields.number(0).map_err(|why| garbled(shown, name, why))?;
            // One that cannot be read keeps nobody from the others.
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
        .ok_or("its body is not there, or max_allowed_packet of the server is too small for it")?;
    if body.is_empty() {
        return Ok(lock);
    }
    let body: Body<Record> = kept::parse(&body, FORMAT)?;
    bounds::check(&body.record)?;
    lock.ends = body.ends;
    lock.set_record(body.record, used, now);
    if fields.bytes(3).is_some() {
        has_heard(&mut lock, fields.number(3)?);
    }
    Ok(lock)
}

fn add_waiter(lock: &mut LockRow, fields: &Fields) -> Result<(), &'static str> {
    let text = fields.bytes(0).and_then(|bytes| std::str::from_utf8(bytes).ok());
    let token = text.and_then(|text| Token::parse(text).ok()).ok_or("a token is none")?;
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
        1 => Place::Parked,
        _ => return Err("a waiter stands nowhere"),
    };
    let bytes = token.secret().as_bytes().try_into().map_err(|_| "a token is none")?;
    let mut waiting = Waiting::new(bytes, fields.number(1)?, mode, place);
    let (silent, forget) = heard(fields.number(7)?);
    waiting.since = fields.number(2)?;
    waiting.silent = fields.number(3)?.max(silent);
    waiting.forget = fields.number(4)?.max(forget);
    has_heard(lock, silent);
    if let Some(note) = fields.binary(8) {
        lock.notes.insert(token, note);
    }
    lock.queue.waiting.push(waiting);
    Ok(())
}

/// One who waits has said that it is to be believed for so long.
fn has_heard(lock: &mut LockRow, silent: u64) {
    let absence = &mut lock.record.absence;
    if absence.heard.0 > 0 {
        absence.heard = absence.heard.max(Due(silent.saturating_sub(millis(SILENCE))));
    }
}

/// A waiter's token, and what does not change about it.
pub fn note(row: &[Option<Vec<u8>>]) -> Option<(Token, Vec<u8>)> {
    let [Some(token), Some(note)] = row else { return None };
    Some((Token::parse(std::str::from_utf8(token).ok()?).ok()?, unhex(note)?))
}

/// The error for what is not understood.
pub fn garbled(shown: &str, name: &str, why: &str) -> Error {
    Error::Garbled(format!(
        "{shown}: what is kept of the lock {name:?} is not dlock's, or damaged ({why}); it was left as it is: delete its rows \
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

/// The bytes for which hexadecimal digits stand.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

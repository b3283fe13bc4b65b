//! The etcd keys of a lock and their values: naming, parsing and checks. Anybody with write access
//! may have put anything there. So every value is checked against bounds, and one that is not
//! understood stays as it is.
//!
//! | key behind the prefix | value |
//! |---|---|
//! | `lock/NAME` | the record of a lock, without its waiters and its log of ends |
//! | `hold/NAME/HASH` | a holder's session; when its lease ends, the hold is over |
//! | `wait/NAME/TICKET/HASH` | a waiter, on a short lease that it keeps alive |
//! | `call/NAME/TICKET/HASH` | a waiter out of the queue: granted and not confirmed, or come back |
//! | `life/HASH` | a holder or waiter, on its lease; others watch it; a touch wakes the owner |
//! | `end/NAME/NUMBER` | one of the last ends |
//!
//! HASH stands for a token in keys and records ([`crate::lock::Token::hashed`]).

use super::words::{Bytes, Pair, Range, Span};
use crate::lock::{Mode, SLOTS_MAX, Token};
use crate::rules::{Due, Hold, LoggedEnd, Phase, Record, SILENCE, TICKET_KEPT, Time};
use crate::store::engine::Tracked;
use crate::store::engine::bounds::{self, check_number};
use crate::store::engine::kept::{self, Kept};
use crate::store::engine::queue::{Place, Waiting};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const FORMAT: u32 = 1;

/// Escapes all but letters, digits and - _ . : (in the name of a lock).
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// Builds the keys behind a prefix.
pub struct Layout<'p>(pub &'p str);

impl Layout<'_> {
    /// A lock's key of this kind, or the prefix of such keys.
    pub fn key(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{}", self.0, utf8_percent_encode(name, PLAIN))
    }

    pub fn lock(&self, name: &str) -> Bytes {
        Bytes(self.key("lock", name).into())
    }

    /// The range of all records.
    pub fn locks(&self) -> Span {
        below(format!("{}/lock/", self.0))
    }

    /// The name of the lock whose record has this key. None if the key is not a record's.
    pub fn name_of(&self, key: &Bytes) -> Option<String> {
        let name = key.0.strip_prefix(format!("{}/lock/", self.0).as_bytes())?;
        percent_decode(name).decode_utf8().ok().map(Into::into)
    }

    pub fn hold(&self, name: &str, token: &Token) -> Bytes {
        Bytes(format!("{}/{}", self.key("hold", name), token.secret()).into())
    }

    pub fn holds(&self, name: &str) -> Span {
        below(format!("{}/", self.key("hold", name)))
    }

    pub fn waiter(&self, name: &str, waiting: &Waiting) -> Bytes {
        let kind = match waiting.place {
            Place::Queued => "wait",
            Place::Suspended => "call",
        };
        let mut key = format!("{}/{:016x}/", self.key(kind, name), waiting.ticket).into_bytes();
        key.extend(waiting.token);
        Bytes(key)
    }

    pub fn waiters(&self, name: &str, place: Place) -> Span {
        let kind = match place {
            Place::Queued => "wait",
            Place::Suspended => "call",
        };
        below(format!("{}/", self.key(kind, name)))
    }

    pub fn life(&self, token: &Token) -> Bytes {
        Bytes(format!("{}/life/{}", self.0, token.secret()).into())
    }

    pub fn end(&self, name: &str, number: u64) -> Bytes {
        Bytes(format!("{}/{number:016x}", self.key("end", name)).into())
    }

    pub fn ends(&self, name: &str) -> Span {
        below(format!("{}/", self.key("end", name)))
    }
}

/// The range of all keys that begin with `start`, which ends with a slash.
fn below(start: String) -> Span {
    let mut end = start.clone().into_bytes();
    end.pop();
    end.push(b'/' + 1);
    Span { key: Bytes(start.into()), range_end: Some(Bytes(end)) }
}

impl Span {
    /// Reads the whole span.
    pub fn whole(self) -> Range {
        Range { span: self, ..Range::default() }
    }
}

/// The value of `lock/NAME`.
#[derive(Debug, Serialize, Deserialize)]
struct Body<R> {
    format: u32,
    /// Number of ends so far.
    ends: u64,
    /// Time of the last use, in milliseconds since 1970.
    used: u64,
    /// The record without waiters and log.
    record: R,
}

/// The value of a waiter's key.
#[derive(Serialize, Deserialize)]
pub struct Row {
    since: u64,
    mode: Mode,
    note: Box<RawValue>,
}

impl Row {
    /// Serializes a waiter.
    pub fn of(waiting: &Waiting, note: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        let note = serde_json::from_slice(note)?;
        serde_json::to_vec(&Self { since: waiting.since, mode: waiting.mode, note })
    }
}

/// A lock as it was read. Its version is the revision of the record's last change.
#[derive(Debug, Default)]
pub struct Node {
    kept: Kept,
    /// Holders with a session: the id of its lease, and the ttl.
    pub sessions: BTreeMap<Token, (u64, Duration)>,
    /// Ids of the waiters' leases.
    pub leases: BTreeMap<Token, u64>,
}

impl Deref for Node {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.kept
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

impl Node {
    /// A lock without a record.
    pub fn absent(name: &str) -> Self {
        Self { kept: Kept::absent(name), ..Self::default() }
    }

    /// Adds the record, if there is one.
    pub fn add_record(&mut self, pair: Option<&Pair>, now: Time) -> Result<(), String> {
        let Some(pair) = pair else { return Ok(()) };
        self.version = pair.mod_revision.0;
        let body: Body<Record> = kept::parse(&pair.value.0, FORMAT)?;
        check_number(body.ends.max(body.used))?;
        bounds::check(&body.record)?;
        self.ends = body.ends;
        self.set_record(body.record, body.used, now);
        // No gap in heartbeats is counted here: etcd ends the leases of stale waiters.
        self.record.absence = Default::default();
        Ok(())
    }

    /// Adds a holder's session.
    pub fn add_session(&mut self, pair: &Pair) -> Result<(), &'static str> {
        let token = token_of(&pair.key).ok_or("a token is invalid")?;
        let ttl = std::str::from_utf8(&pair.value.0).ok().and_then(|text| text.parse().ok());
        let ttl = ttl.filter(|ttl| check_number(*ttl).is_ok()).ok_or("the length of a lease is invalid")?;
        self.sessions.insert(token.clone(), (pair.lease.0, Duration::from_millis(ttl)));
        self.tracked.insert(token, Tracked { locks: 1, ttl });
        Ok(())
    }

    /// Adds a waiter, or updates a known one. The value is empty where only the keys were read.
    pub fn add_waiter(&mut self, pair: &Pair, place: Place, now: Time) -> Result<(), &'static str> {
        let token = token_of(&pair.key).ok_or("a token is invalid")?;
        let bytes = token.secret().as_bytes().try_into().map_err(|_| "a token is invalid")?;
        let ticket = pair.key.0.rsplit(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let ticket = std::str::from_utf8(ticket).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        let ticket = ticket.ok_or("a ticket is invalid")?;
        check_number(ticket)?;
        let mut waiting = Waiting::new(bytes, ticket, Mode::Exclusive, place);
        waiting.silent = Due::after(now, SILENCE).0;
        waiting.forget = Due::after(now, TICKET_KEPT).0;
        self.leases.insert(token.clone(), pair.lease.0);
        let known = self.queue.find(&token);
        if !pair.value.0.is_empty() {
            let row: Row = serde_json::from_slice(&pair.value.0).map_err(|_| "a waiter cannot be read")?;
            check_number(row.since)?;
            if matches!(row.mode, Mode::Slots(slots) if slots > SLOTS_MAX) {
                return Err("a waiter wants too many slots");
            }
            (waiting.since, waiting.mode) = (row.since, row.mode);
            self.notes.insert(token, row.note.get().as_bytes().to_vec());
        } else if known.is_some() {
            return Ok(());
        }
        match known {
            Some(at) => self.queue.waiting[at] = waiting,
            None => self.queue.waiting.push(waiting),
        }
        Ok(())
    }

    /// Restores the caller's place in the queue if etcd has forgotten it. The lock rules then see
    /// the caller as a suspended waiter.
    pub fn remember(&mut self, me: &Token, mut waiting: Waiting, note: &[u8], now: Time) {
        if self.queue.find(me).is_none() && !self.record.holds.contains_key(me) {
            (waiting.silent, waiting.forget) = (now.millis(), Due::after(now, TICKET_KEPT).0);
            waiting.place = Place::Suspended;
            self.queue.waiting.push(waiting);
            self.notes.insert(me.clone(), note.to_vec());
        }
    }

    /// Adds an end. An end that cannot be read is left out, so that the others can still be shown.
    pub fn add_end(&mut self, pair: &Pair) {
        self.log.extend(serde_json::from_slice::<LoggedEnd>(&pair.value.0).ok());
    }

    /// Sorts the waiters by ticket and tells the lock rules which holds live. An unconfirmed grant
    /// lives on its waiter's lease, any other hold on its session. `left` has the remaining time of
    /// those leases that were looked up.
    pub fn judge(&mut self, now: Time, left: &BTreeMap<u64, Duration>) {
        self.queue.waiting.sort_by_key(Waiting::key);
        let Self { kept: Kept { record, .. }, sessions, leases } = self;
        record.judge(now, |token: &Token, hold: &Hold| {
            let session = sessions.get(token).map(|(lease, ttl)| left.get(lease).copied().unwrap_or(*ttl));
            let is_heard = hold.confirmed || hold.phase == Phase::Revoked;
            session.or_else(|| leases.get(token).filter(|_| !is_heard).map(|_| SILENCE))
        });
    }
}

/// Serializes a record with its number of ends and the time of its last use.
pub fn body(ends: u64, used: u64, record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body { format: FORMAT, ends, used, record })
}

/// Time of a record's last use, in milliseconds since 1970. None if the lock would be in use even
/// without its holders. The caller must check that no session is left: a renewal does not write the
/// record, so the record of a held lock can look old.
pub fn free_since(value: &[u8], now: Time) -> Option<u64> {
    let Body { format, used, mut record, .. } = serde_json::from_slice::<Body<Record>>(value).ok()?;
    if format != FORMAT || bounds::check(&record).is_err() {
        return None;
    }
    record.judge(now, |_, _| None);
    let holders: Vec<Token> = record.holds.keys().cloned().collect();
    // A min-hold outlives its holder's session.
    holders.iter().for_each(|holder| record.reap(now, holder));
    record.is_vacant(now).then_some(used)
}

/// The token hash at the end of a key.
fn token_of(key: &Bytes) -> Option<Token> {
    let token = key.0.rsplit(|byte| *byte == b'/').next()?;
    std::str::from_utf8(token).ok().and_then(|text| Token::parse(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Lock;
    use anyhow::{Result, ensure};

    #[test]
    fn a_record_in_use_is_not_old() -> Result<()> {
        let body = |record| serde_json::to_vec(&Body { format: FORMAT, ends: 3, used: 5, record });
        let held = Lock::Exclusive { token: Token::random()?, until: Due(9) };
        ensure!(free_since(&body(Record::default())?, Time(7_000)) == Some(5));
        ensure!(free_since(&body(Record { lock: held, ..Record::default() })?, Time(10_000)).is_none());
        let kept = |until| Record { lock: Lock::Cooling { until: Due(until) }, ..Record::default() };
        ensure!(free_since(&body(kept(9))?, Time(10_000)) == Some(5));
        ensure!(free_since(&body(kept(11))?, Time(10_000)).is_none());
        ensure!(free_since(b"not a record", Time(10_000)).is_none());
        Ok(())
    }
}

//! Under which keys does etcd keep what of a lock, and what do they say? Reading and checking them. Whoever may write there may
//! have put anything there: all of it has bounds, and what is not understood is left as it is.
//!
//! | key behind the prefix | is |
//! |---|---|
//! | `lock/NAME` | the record of a lock, without who waits and without its ends |
//! | `hold/NAME/HASH` | that a holder has its session: its lease ends the hold |
//! | `wait/NAME/TICKET/HASH` | one who waits, on a short lease that it keeps |
//! | `call/NAME/TICKET/HASH` | one who was granted the lock or passed over, on the same lease |
//! | `life/HASH` | what others watch of one who holds or waits, and touch to wake it; on the lease of the one or the other |
//! | `end/NAME/NUMBER` | one of the last ends |
//!
//! HASH is what stands for a token in all of this ([`crate::lock::Token::hashed`]).

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

/// What stands for itself in the name of a lock.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// Where the keys are.
pub struct Layout<'p>(pub &'p str);

impl Layout<'_> {
    /// That of one kind, or the beginning of all of it.
    pub fn key(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{}", self.0, utf8_percent_encode(name, PLAIN))
    }

    pub fn lock(&self, name: &str) -> Bytes {
        Bytes(self.key("lock", name).into())
    }

    /// All records.
    pub fn locks(&self) -> Span {
        below(format!("{}/lock/", self.0))
    }

    /// The name of the lock whose record has this key.
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
            Place::Parked => "call",
        };
        let mut key = format!("{}/{:016x}/", self.key(kind, name), waiting.ticket).into_bytes();
        key.extend(waiting.token);
        Bytes(key)
    }

    pub fn waiters(&self, name: &str, place: Place) -> Span {
        let kind = match place {
            Place::Queued => "wait",
            Place::Parked => "call",
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

/// All keys that begin so; the beginning ends with a slash.
fn below(start: String) -> Span {
    let mut end = start.clone().into_bytes();
    end.pop();
    end.push(b'/' + 1);
    Span { key: Bytes(start.into()), range_end: Some(Bytes(end)) }
}

impl Span {
    /// All of it.
    pub fn whole(self) -> Range {
        Range { span: self, ..Range::default() }
    }
}

/// What is kept of one lock in one value.
#[derive(Debug, Serialize, Deserialize)]
struct Body<R> {
    format: u32,
    /// How many ends there have been.
    ends: u64,
    /// When it was used, in milliseconds since 1970.
    used: u64,
    /// Without those who wait, and without the log.
    record: R,
}

/// One who waits.
#[derive(Serialize, Deserialize)]
pub struct Row {
    since: u64,
    mode: Mode,
    note: Box<RawValue>,
}

impl Row {
    /// What is written of one who waits.
    pub fn of(waiting: &Waiting, note: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        let note = serde_json::from_slice(note)?;
        serde_json::to_vec(&Self { since: waiting.since, mode: waiting.mode, note })
    }
}

/// What was read of one lock. Its version is the revision at which the record was changed last.
#[derive(Debug, Default)]
pub struct Node {
    kept: Kept,
    /// Those who have a session, with its lease and how long that lasts.
    pub sessions: BTreeMap<Token, (u64, Duration)>,
    /// The leases of those who wait.
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
    /// One without a record.
    pub fn absent(name: &str) -> Self {
        Self { kept: Kept::absent(name), ..Self::default() }
    }

    /// The record, of which there may be none.
    pub fn add_record(&mut self, pair: Option<&Pair>, now: Time) -> Result<(), String> {
        let Some(pair) = pair else { return Ok(()) };
        self.version = pair.mod_revision.0;
        let body: Body<Record> = kept::parse(&pair.value.0, FORMAT)?;
        check_number(body.ends.max(body.used))?;
        bounds::check(&body.record)?;
        self.ends = body.ends;
        self.set_record(body.record, body.used, now);
        // Who is silent is told by leases.
        self.record.absence = Default::default();
        Ok(())
    }

    /// One who has a session.
    pub fn add_session(&mut self, pair: &Pair) -> Result<(), &'static str> {
        let token = token_of(&pair.key).ok_or("a token is none")?;
        let ttl = std::str::from_utf8(&pair.value.0).ok().and_then(|text| text.parse().ok());
        let ttl = ttl.filter(|ttl| check_number(*ttl).is_ok()).ok_or("the length of a lease is none")?;
        self.sessions.insert(token.clone(), (pair.lease.0, Duration::from_millis(ttl)));
        self.tracked.insert(token, Tracked { locks: 1, ttl });
        Ok(())
    }

    /// One who waits; without its value, where only the keys were asked for. It may be known already.
    pub fn add_waiter(&mut self, pair: &Pair, place: Place, now: Time) -> Result<(), &'static str> {
        let token = token_of(&pair.key).ok_or("a token is none")?;
        let bytes = token.secret().as_bytes().try_into().map_err(|_| "a token is none")?;
        let ticket = pair.key.0.rsplit(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let ticket = std::str::from_utf8(ticket).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        let ticket = ticket.ok_or("a ticket is none")?;
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

    /// Puts whoever asks where it stood, if etcd has forgotten that: the law knows it as one that was passed over.
    pub fn remember(&mut self, me: &Token, mut waiting: Waiting, note: &[u8], now: Time) {
        if self.queue.find(me).is_none() && !self.record.holds.contains_key(me) {
            (waiting.silent, waiting.forget) = (now.millis(), Due::after(now, TICKET_KEPT).0);
            waiting.place = Place::Parked;
            self.queue.waiting.push(waiting);
            self.notes.insert(me.clone(), note.to_vec());
        }
    }

    /// One of the ends; one that cannot be read keeps nobody from the others.
    pub fn add_end(&mut self, pair: &Pair) {
        self.log.extend(serde_json::from_slice::<LoggedEnd>(&pair.value.0).ok());
    }

    /// Puts those who wait in order, and tells the law who lives. `left` is what is left of a lease, where that was asked.
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

/// What is written of a record after so many ends.
pub fn body(ends: u64, used: u64, record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body { format: FORMAT, ends, used, record })
}

/// When a record was used last of which nothing else depends: its lock is free, if none of its holders has a session any more. In
/// milliseconds since 1970. A holder's renewals do not change it, so one that looks old may be of a lock that is held.
pub fn free_since(value: &[u8], now: Time) -> Option<u64> {
    let Body { format, used, mut record, .. } = serde_json::from_slice::<Body<Record>>(value).ok()?;
    if format != FORMAT || bounds::check(&record).is_err() {
        return None;
    }
    record.judge(now, |_, _| None);
    let holders: Vec<Token> = record.holds.keys().cloned().collect();
    // A min-hold stands.
    holders.iter().for_each(|holder| record.reap(now, holder));
    record.is_vacant(now).then_some(used)
}

/// The token at the end of a key.
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
    fn what_is_held_is_not_old() -> Result<()> {
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

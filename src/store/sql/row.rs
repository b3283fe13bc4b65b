//! Reads and checks rows. Any user with write access may have put anything there:
//! every value has bounds, and dlock does not touch a lock that it cannot read.

use crate::lock::Token;
use crate::rules::{Due, SILENCE, TICKET_KEPT, Time, millis};
use crate::store::Error;
use crate::store::engine::bounds::check_number;
use crate::store::engine::stored_lock::StoredLock;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A row of an answer: its columns as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row(pub Vec<Option<Vec<u8>>>);

/// What a database returned.
pub struct Found {
    pub now: Time,
    /// The server process that answered.
    pub process: u64,
    /// The locks in order of name. One without a row has the version 0.
    pub locks: Vec<StoredLock>,
}

impl Found {
    /// Parses the answer to [`super::dialect::Dialect::read`].
    pub fn parse(rows: &[Row], names: &BTreeSet<String>, shown: &str) -> Result<Self, Error> {
        let of = |kind: &'static [u8]| rows.iter().filter(move |row| row.bytes(0) == Some(kind));
        let bad = |why: &str| Error::Garbled(format!("{shown}: {why}"));
        let clock = of(b"t").next().ok_or_else(|| bad("its answer has no time"))?;
        let (now, process) = (Time(clock.number(2).map_err(bad)?), clock.number(3).unwrap_or_default());
        let mut locks: BTreeMap<&str, (StoredLock, u64)> =
            names.iter().map(|name| (name.as_str(), (StoredLock::absent(name), 0))).collect();
        for row in of(b"r") {
            let name = row.name(1).unwrap_or_default();
            if let Some(lock) = locks.get_mut(name.as_str()) {
                *lock = row.lock(&name).map_err(|why| garbled(shown, &name, &why))?;
            }
        }
        for row in of(b"w") {
            if let Some((lock, _)) = row.name(1).and_then(|name| locks.get_mut(name.as_str())) {
                // A waiter that cannot be read must not end a holder's job, nor block the others.
                // It counts as gone, and joins again when it asks.
                row.add_waiter(lock).ok();
            }
        }
        for (lock, used) in locks.values_mut() {
            // The rows of ends stay for longer, and new ends must have greater numbers.
            let ends = lock.ends;
            lock.forget_history(*used, now);
            lock.ends = ends;
        }
        let mut ends: Vec<_> = of(b"e").collect();
        ends.sort_by_key(|row| Reverse(row.number(2).unwrap_or_default()));
        for row in ends {
            if let Some((lock, _)) = row.name(1).and_then(|name| locks.get_mut(name.as_str())) {
                lock.add_end(&row.binary(4).unwrap_or_default());
            }
        }
        Ok(Self { now, process, locks: locks.into_values().map(|(lock, _)| lock).collect() })
    }
}

impl Row {
    pub fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at)?.as_deref()
    }

    /// A column as text; empty if there is none.
    pub fn text(&self, at: usize) -> Cow<'_, str> {
        String::from_utf8_lossy(self.bytes(at).unwrap_or_default())
    }

    fn number(&self, at: usize) -> Result<u64, &'static str> {
        let number = self.text(at).parse().map_err(|_| "a number is invalid")?;
        check_number(number).map(|()| number)
    }

    fn binary(&self, at: usize) -> Option<Vec<u8>> {
        unhex(self.bytes(at)?)
    }

    /// A column that has a name, in hexadecimal digits.
    pub fn name(&self, at: usize) -> Option<String> {
        String::from_utf8(self.binary(at)?).ok()
    }

    /// A lock, and when it was last written.
    fn lock(&self, name: &str) -> Result<(StoredLock, u64), String> {
        let version = self.number(2)?;
        let body = self
            .binary(4)
            .ok_or("its body is missing, or max_allowed_packet of the server is too small for it")?;
        if body.is_empty() {
            return Ok((StoredLock { version, ..StoredLock::absent(name) }, 0));
        }
        let (lock, used) = StoredLock::parse(&body, version)?;
        Ok((StoredLock { name: name.into(), ..lock }, used))
    }

    /// Adds a waiter, with the heartbeat that it has sent since it was last written.
    fn add_waiter(&self, lock: &mut StoredLock) -> Result<(), &'static str> {
        let token = Token::parse(&self.text(2)).map_err(|_| "a token is invalid")?;
        let stale_at = self.number(3)?;
        lock.add_waiter(token.clone(), &self.binary(4).unwrap_or_default())?;
        let heard = stale_at.saturating_sub(millis(SILENCE));
        if let Some(waiter) = lock.record.waiters.get_mut(&token) {
            waiter.stale_at = waiter.stale_at.max(Due(stale_at));
            waiter.forget = waiter.forget.max(Due(heard.saturating_add(millis(TICKET_KEPT))));
        }
        let absence = &mut lock.record.absence;
        if absence.heard.0 > 0 {
            absence.heard = absence.heard.max(Due(heard));
        }
        Ok(())
    }
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
fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

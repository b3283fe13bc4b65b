//! Lets a renewal begin without reading: what this process wrote last is what the record says, if
//! nobody has written since. The write finds out, by the version.
//!
//! *The server's clock* is not read either. It is reckoned: the time that was read last, and what
//! has passed since. The lease in the record must not end before the one that the holder counts on,
//! so the reckoned time must not be behind the server's clock. The server checks that when the write
//! arrives. If the write is refused, the renewal reads.

use super::{Seen, Tables};
use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::Time;
use crate::store::engine::coordinator::{Reading, Snapshot};
use crate::store::engine::stored_lock::StoredLock;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Added to the reckoned time, because the write may take this much longer to arrive than the
/// request that read the clock.
const AHEAD: Duration = Duration::from_millis(200);
/// How much further ahead the reckoned time may be. The lease in the record ends later by the sum of
/// both.
const BEHIND: Duration = Duration::from_secs(1);

/// The server's clock when it was last read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Index of the server.
    pub server: usize,
    pub read: Time,
    /// When the request was sent that read it.
    pub sent: Moment,
}

impl Clock {
    /// The reckoned time, and which times of the server's clock it is good for, in microseconds
    /// since 1970.
    fn reckon(&self) -> (Time, RangeInclusive<u64>) {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let now = self.read.0.saturating_add(micros(Moment::now().since(self.sent) + AHEAD));
        (Time(now), now.saturating_sub(micros(AHEAD + BEHIND))..=now)
    }
}

/// What this process's last write left: locks that it holds alone, and nobody waits for.
pub(super) struct Remembered {
    pub token: Token,
    pub locks: Vec<StoredLock>,
    pub clock: Clock,
}

impl Remembered {
    /// Returns None if another process is likely to change one of the locks before the next renewal.
    pub fn of(token: &Token, locks: Vec<StoredLock>, clock: Clock) -> Option<Self> {
        let is_quiet = locks.iter().all(|lock| lock.is_quietly_held_by(token));
        is_quiet.then(|| Self { token: token.clone(), locks, clock })
    }
}

impl Tables {
    /// The versions of these locks as this process left them, in order of name, if it knows.
    pub(super) fn remembered_versions(&self, names: &Names) -> Option<Vec<u64>> {
        let locks = &self.remembered.as_ref()?.locks;
        let is_same = locks.iter().map(|lock| lock.name.as_str()).eq(names.iter().map(Name::as_str));
        is_same.then(|| locks.iter().map(|lock| lock.version).collect())
    }

    /// What is remembered of these locks, if a lease is to be extended. It is returned once: if the
    /// write is refused, the next read must be a real one.
    pub(super) fn recall(&mut self, reading: &Reading<'_>) -> Option<Snapshot<Seen>> {
        if !reading.may_renew() {
            return None;
        }
        let Remembered { token, locks, clock } = self.remembered.take()?;
        let is_same = locks.iter().map(|lock| &lock.name).eq(reading.names);
        let is_there = self.line.as_ref().is_some_and(|line| line.server == clock.server);
        if !is_same || !is_there || reading.me != Some(&token) {
            return None;
        }
        let (now, within) = clock.reckon();
        // The reckoned time is ahead, and must not end a lease that is not over yet.
        let is_over =
            |lock: &StoredLock| lock.record.holds.get(&token).is_none_or(|hold| hold.until.passed(now));
        if locks.iter().any(is_over) {
            return None;
        }
        Some(Snapshot {
            locks,
            now,
            seen: Seen { clock: Some(clock), within: Some(within), reserves: false },
        })
    }
}

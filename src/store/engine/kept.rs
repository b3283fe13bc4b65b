//! A lock as a server's store has read it. Also parses stored values.

use super::queue::Queue;
use super::{Entry, Tracked};
use crate::lock::Token;
use crate::rules::{HISTORY_KEPT, LoggedEnd, Record, Time, millis};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::DerefMut;

/// Each server's adapter wraps it in a type that dereferences to it; that type is its [`Entry`].
#[derive(Debug, Default)]
pub struct Kept {
    /// The lock's full name.
    pub name: String,
    /// Differs after every change; 0 if nothing is recorded.
    pub version: u64,
    pub record: Record,
    /// How many holds have ended so far.
    pub ends: u64,
    pub queue: Queue,
    /// The notes of those waiters that the rules may decide about.
    pub notes: BTreeMap<Token, Vec<u8>>,
    pub tracked: BTreeMap<Token, Tracked>,
    /// The last ends that were read, newest first.
    pub log: Vec<LoggedEnd>,
}

impl Kept {
    /// A lock without a record.
    pub fn absent(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Whether `me` holds the lock and needs only the first waiters. Not after `--replace`: the
    /// superseded waiter may be anywhere in the queue.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd"))]
    pub fn is_enough_for(&self, me: &Token) -> bool {
        self.record.holds.contains_key(me) && self.record.newest.is_none()
    }

    /// Sets the record, which was last used at `used` (milliseconds since 1970), unless it is
    /// vacant and has been unused for [`HISTORY_KEPT`].
    pub fn set_record(&mut self, record: Record, used: u64, now: Time) {
        if !record.is_vacant(now) || now.millis().saturating_sub(used) <= millis(HISTORY_KEPT) {
            self.record = record;
        }
    }
}

impl<E: DerefMut<Target = Kept>> Entry for E {
    fn name(&self) -> &str {
        &self.name
    }

    fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    fn tracked(&self) -> &BTreeMap<Token, Tracked> {
        &self.tracked
    }

    fn tracked_mut(&mut self) -> &mut BTreeMap<Token, Tracked> {
        &mut self.tracked
    }

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn log(&self) -> Vec<LoggedEnd> {
        self.log.clone()
    }
}

/// Parses a value with a `format` field. The error is one short line.
pub fn parse<B: DeserializeOwned>(value: &[u8], format: u32) -> Result<B, String> {
    /// The part that every format has.
    #[derive(Deserialize)]
    struct Any {
        format: u32,
    }
    match serde_json::from_slice::<Any>(value) {
        Ok(any) if any.format != format => Err(format!("format {}, this dlock knows {format}", any.format)),
        _ => serde_json::from_slice(value)
            .map_err(|error| error.to_string().chars().filter(|c| !c.is_control()).take(120).collect()),
    }
}

//! What is kept of one lock where a store reads it whole: its record, who waits, and how it is told from what is none.

use super::queue::Queue;
use super::{Entry, Tracked};
use crate::lock::Token;
use crate::rules::{HISTORY_KEPT, LoggedEnd, Record, Time, millis};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::ops::DerefMut;

/// A lock as a store told it.
#[derive(Debug, Default)]
pub struct Kept {
    /// The full name.
    pub name: String,
    /// Another one for every change; 0 where nothing is kept.
    pub version: u64,
    pub record: Record,
    /// How many ends there have been.
    pub ends: u64,
    pub queue: Queue,
    /// What does not change about those who wait, of those to whom the law may turn.
    pub notes: BTreeMap<Token, Vec<u8>>,
    pub tracked: BTreeMap<Token, Tracked>,
    /// Of the last ends those that were read, newest first.
    pub log: Vec<LoggedEnd>,
}

impl Kept {
    /// A lock of which nothing is kept.
    pub fn absent(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Whether `me` holds it and need not know of anybody who waits but the first ones. Whom somebody newer sends home may stand
    /// anywhere.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd"))]
    pub fn is_enough_for(&self, me: &Token) -> bool {
        self.record.holds.contains_key(me) && self.record.newest.is_none()
    }

    /// Takes over a record that was used last at `used`, in milliseconds since 1970, unless it is only of what is long past.
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

/// Reads a value that says in which format it is. The error is one short line.
pub fn parse<B: DeserializeOwned>(value: &[u8], format: u32) -> Result<B, String> {
    /// What can be read of any format.
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

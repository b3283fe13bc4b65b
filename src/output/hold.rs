//! The lines of `hold --json`, one object for each event, for a program that holds a lock by a
//! pipe. A field without a value is null; spans are whole milliseconds. docs/hold.md explains the
//! fields; adding one is a minor change.

use super::json::{self, Object};
use super::report::HowLost;
use super::time;
use crate::error::Error;
use crate::lock::{Fence, Key};
use serde::Serialize;

/// An event of a hold.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum HoldEvent<'a> {
    /// In the queue.
    Waiting {
        /// Number of waiters ahead in the queue.
        ahead: u64,
        /// The holder, or one of several.
        holder: Option<Object>,
    },
    /// The lock was not obtained. dlock exits with this status.
    Busy { holder: Option<Object>, status: u8 },
    /// The lock is held. The only line that contains the token.
    Granted { token: &'a str, fence: Fence, slot: Option<u32>, lease_ms: u64, waited_ms: u64 },
    /// The store does not answer.
    Trouble {
        error: String,
        /// Time until the lock is lost if nothing changes; `None` while it is waited for.
        left_ms: Option<u64>,
    },
    /// The store answers again.
    Recovered,
    /// An operator or a newer run asks for the lock. It is still held.
    Asked { by: Option<Object>, superseded: bool },
    /// The lock is lost, or about to be.
    Lost {
        how: HowLost,
        /// After this time another may have the lock; 0: another may have it already.
        left_ms: u64,
    },
    /// The lock was given back.
    Released,
}

/// An event as a line.
pub fn line(event: &HoldEvent<'_>, keys: &[Key], store: &str) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Line<'a> {
        time: String,
        #[serde(flatten)]
        event: &'a HoldEvent<'a>,
        keys: Vec<&'a str>,
        store: &'a str,
    }
    let keys = keys.iter().map(Key::as_str).collect();
    json::line(&Line { time: time::utc(time::now()), event, keys, store })
}

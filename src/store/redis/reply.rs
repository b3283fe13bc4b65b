//! Reads what scripts answer, and trusts nothing in it. What is not as the script's header
//! describes, or is longer or greater than dlock ever writes, is [`Error::Garbled`]. A damaged lock
//! is an error for that lock only.

use crate::lock::{Fence, Mode, Name};
use crate::rules::stat::{Histogram, Stat};
use crate::rules::{
    Expected, Foreign, Holder, LOG_KEPT, LoggedEnd, NUMBERS_END, Outcome, Pause, REFUSALS_KEPT, Refusal,
    State, Success, ms,
};
use crate::store::net::failure::plain;
use crate::store::{Error, View, Waiter};
use redis::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The answer of a script.
pub struct Reply {
    value: Value,
    store: Arc<str>,
}

/// The error for a malformed answer.
pub fn garbled(store: &str, what: &str) -> Error {
    Error::Garbled(format!("{store} answered with {what}; does another program use dlock's keys there?"))
}

/// What every answer has.
#[derive(Deserialize)]
pub struct Head {
    pub outcome: String,
    /// The server's clock.
    pub now: u64,
    /// The run id of a master of a quorum.
    pub run_id: Option<String>,
    /// Time until this master of a quorum counts, if it does not.
    #[serde(default, with = "ms")]
    pub counts_in: Option<Duration>,
}

impl Reply {
    pub fn new(value: Value, store: &str) -> Self {
        Self { value, store: store.into() }
    }

    /// The fields of the answer.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let Value::BulkString(bytes) = &self.value else {
            return Err(garbled(&self.store, "a reply that is no text"));
        };
        // Another program's values in it may be no UTF-8.
        serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(|error| {
            garbled(&self.store, &format!("what is not understood: {}", plain(&error.to_string())))
        })
    }

    /// Whether this is the outcome.
    pub fn is(&self, outcome: &str) -> Result<bool, Error> {
        Ok(self.read::<Head>()?.outcome == outcome)
    }

    /// The server's clock, and an answer for each lock.
    pub fn locks(self) -> Result<(u64, Vec<Self>), Error> {
        let values = if let Value::Array(values) = self.value { values } else { Vec::new() };
        let mut parts = values.into_iter().map(|value| Self { value, store: self.store.clone() });
        match (parts.next(), parts.len()) {
            (Some(head), 1..) => Ok((head.read::<Head>()?.now, parts.collect())),
            _ => Err(garbled(&self.store, "a reply without the lock")),
        }
    }
}

/// A lock, as `inspect` answers. The log and the totals are as they are stored.
#[derive(Deserialize)]
pub struct Seen {
    state: State,
    mode: Option<Mode>,
    foreign: Option<Foreign>,
    #[serde(default)]
    holders: Vec<Holder>,
    #[serde(default, with = "ms")]
    left: Option<Duration>,
    #[serde(default)]
    waiters: Vec<Waiter>,
    paused: Option<Pause>,
    #[serde(flatten)]
    history: History,
}

/// What a lock was used for.
#[derive(Deserialize)]
pub struct History {
    pub fence: Option<Fence>,
    #[serde(default)]
    log: Vec<String>,
    #[serde(default)]
    stat: BTreeMap<String, String>,
    pub success: Option<Success>,
    pub expected: Option<Expected>,
}

/// The answer to `refuse`.
#[derive(Deserialize)]
pub struct Noted {
    /// Whether the caller is to announce it.
    pub announces: bool,
}

/// The last refusals, as they are stored.
#[derive(Deserialize)]
pub struct Refusals {
    #[serde(default)]
    refusals: Vec<String>,
}

impl Seen {
    pub fn view(self, name: &Name, now: u64) -> View {
        let (log, stat) = (self.history.log(), self.history.stat());
        let Self { state, mode, foreign, holders, left, waiters, paused, history } = self;
        let (name, History { fence, success, expected, .. }) = (name.clone(), history);
        View {
            name,
            now,
            state,
            mode,
            holders,
            left,
            foreign,
            fence,
            waiters,
            log,
            stat,
            paused,
            success,
            expected,
        }
    }
}

impl History {
    /// The last ends. An entry that is not understood is skipped.
    pub fn log(&self) -> Vec<LoggedEnd> {
        let sane = |end: &LoggedEnd| end.since.max(end.ended).max(end.waited) < NUMBERS_END;
        let ends = self.log.iter().filter_map(|json| serde_json::from_str(json).ok());
        ends.filter(sane).take(LOG_KEPT).collect()
    }

    pub fn stat(&self) -> Stat {
        let mut stat = Stat::default();
        for (field, total) in &self.stat {
            // A number of another program's does not count.
            if let Some(total) = total.parse().ok().filter(|total| *total < NUMBERS_END) {
                count(&mut stat, field, total);
            }
        }
        stat
    }
}

impl Refusals {
    /// The refusals, newest first. One that is not understood is skipped.
    pub fn read(&self) -> Vec<Refusal> {
        let sane = |refusal: &Refusal| refusal.at.max(refusal.waited) < NUMBERS_END;
        let refusals = self.refusals.iter().filter_map(|json| serde_json::from_str(json).ok());
        refusals.filter(sane).take(REFUSALS_KEPT).collect()
    }
}

/// Adds one field of the totals. Fields of other versions are skipped.
fn count(stat: &mut Stat, field: &str, total: u64) {
    let (kind, which) = field.split_once('.').unwrap_or((field, ""));
    match kind {
        "waited" if which == "sum" => add(&mut stat.waited_ms, total),
        // An earlier version counted in buckets.
        "waited" => add(&mut stat.grants, total),
        "held" => span(&mut stat.held, which, total),
        "done" => add(&mut stat.done, total),
        "superseded" => add(&mut stat.superseded, total),
        "busy" => add(&mut stat.busy, total),
        "given-up" => add(&mut stat.given_up, total),
        "succeeded" => add(&mut stat.succeeded, total),
        "failed" => add(&mut stat.failed, total),
        "last-job" if which == "succeeded" => stat.last_success = Some(total),
        "last-job" if which == "failed" => stat.last_failure = Some(total),
        "last" => stat.last.extend(Outcome::of_word(which).map(|outcome| (outcome, total))),
        _ => {}
    }
}

fn span(histogram: &mut Histogram, which: &str, total: u64) {
    if which == "sum" {
        add(&mut histogram.sum, total);
    } else if let Some(bucket) = which.parse().ok().and_then(|at: usize| histogram.buckets.get_mut(at)) {
        add(bucket, total);
    }
}

/// Adds without overflow: the server's numbers may be wrong.
fn add(sum: &mut u64, total: u64) {
    *sum = sum.saturating_add(total);
}

//! What does a script's reply say? Reads the flat arrays of the scripts, field by field, and trusts nothing in them:
//! whatever is not as the script's header says is [`Error::Garbled`].

use crate::law::stat::{Histogram, Stat};
use crate::law::{Blocker, Holder, JobEnd, LoggedEnd, Outcome, State};
use crate::lock::{Fence, Mode, Owner, SLOTS_MAX};
use crate::store::Error;
use redis::Value;
use std::time::Duration;
use std::vec;

/// The fields of one reply, read from the front.
pub struct Reply {
    fields: vec::IntoIter<Value>,
    store: String,
    now: u64,
}

impl Reply {
    /// Takes a reply apart: its first field, what it says; its second, the server's clock; and the rest.
    pub fn open(value: Value, store: &str) -> Result<(String, Self), Error> {
        let Value::Array(fields) = value else { return Err(garbled(store, "a reply that is no array")) };
        let mut reply = Self { fields: fields.into_iter(), store: store.into(), now: 0 };
        let what = reply.text()?;
        reply.now = reply.number()? / 1000;
        Ok((what, reply))
    }

    /// The server's clock, in milliseconds since 1970.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The next field as text.
    pub fn text(&mut self) -> Result<String, Error> {
        match self.fields.next() {
            Some(Value::BulkString(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Some(Value::SimpleString(text)) => Ok(text),
            Some(Value::Okay) => Ok("OK".into()),
            Some(Value::Int(number)) => Ok(number.to_string()),
            _ => Err(garbled(&self.store, "a field that is missing or no text")),
        }
    }

    /// The next field as a number.
    pub fn number(&mut self) -> Result<u64, Error> {
        let text = self.text()?;
        text.parse().map_err(|_| garbled(&self.store, "a field that should be a number"))
    }

    /// The next field as a span, sent in milliseconds.
    pub fn span(&mut self) -> Result<Duration, Error> {
        self.number().map(Duration::from_millis)
    }

    /// The next field as a reply of its own.
    pub fn nested(&mut self) -> Result<Self, Error> {
        match self.fields.next() {
            Some(Value::Array(fields)) => {
                Ok(Self { fields: fields.into_iter(), store: self.store.clone(), now: self.now })
            }
            _ => Err(garbled(&self.store, "a field that should be an array")),
        }
    }

    /// Whether all fields have been read.
    pub fn is_empty(&self) -> bool {
        self.fields.len() == 0
    }

    /// The next field as a span, if it is not empty.
    pub fn span_if_any(&mut self) -> Result<Option<Duration>, Error> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        let ms = text.parse().map_err(|_| garbled(&self.store, "a span that is no number"))?;
        Ok(Some(Duration::from_millis(ms)))
    }

    /// The next field as a mode, if it is not empty.
    pub fn mode(&mut self) -> Result<Option<Mode>, Error> {
        let text = self.text()?;
        match (text.as_str(), text.strip_prefix("slots/").map(str::parse)) {
            ("", _) => Ok(None),
            ("exclusive", _) => Ok(Some(Mode::Exclusive)),
            ("shared", _) => Ok(Some(Mode::Shared)),
            (_, Some(Ok(slots @ 1..=SLOTS_MAX))) => Ok(Some(Mode::Slots(slots))),
            _ => Err(garbled(&self.store, "a mode that is not known")),
        }
    }

    /// The next field as a slot, if it is not empty.
    pub fn slot(&mut self) -> Result<Option<u32>, Error> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| garbled(&self.store, "a slot that is no number"))
    }

    /// The next field as a state, and whether the value is foreign.
    pub fn state(&mut self) -> Result<(State, bool), Error> {
        match self.text()?.as_str() {
            "free" => Ok((State::Free, false)),
            "held" => Ok((State::Held, false)),
            "foreign" => Ok((State::Held, true)),
            "cooling" => Ok((State::Cooling, false)),
            "revoked" => Ok((State::Revoked, false)),
            _ => Err(garbled(&self.store, "a state that is not known")),
        }
    }

    /// The next twelve fields: what is in the way, at one of `locks` locks.
    pub fn blocker(&mut self, locks: usize) -> Result<Blocker, Error> {
        let at = usize::try_from(self.number()?).ok().filter(|at| *at < locks);
        let at = at.ok_or_else(|| garbled(&self.store, "a lock that was not asked for"))?;
        let (state, is_foreign) = self.state()?;
        let (mode, left) = (self.mode()?, self.span_if_any()?);
        let (owner, fence) = (self.text()?, self.text()?);
        if is_foreign || fence.is_empty() {
            return Ok(Blocker { at, state, mode, holder: None, others: 0, left });
        }
        let holder = self.holder(&owner, &fence)?;
        Ok(Blocker { at, state, mode, holder: Some(holder), others: self.number()?, left })
    }

    /// The next field as holds, seven fields each.
    pub fn holders(&mut self) -> Result<Vec<Holder>, Error> {
        let mut nested = self.nested()?;
        let mut holders = Vec::new();
        while !nested.is_empty() {
            let (owner, fence) = (nested.text()?, nested.text()?);
            holders.push(nested.holder(&owner, &fence)?);
        }
        Ok(holders)
    }

    /// A hold whose first two fields were read, and whose next five follow.
    pub fn holder(&mut self, owner: &str, fence: &str) -> Result<Holder, Error> {
        let fence = fence.parse().map_err(|_| garbled(&self.store, "a hold that is not understood"))?;
        let since = self.number()? / 1000;
        let until = self.number()?;
        Ok(Holder {
            owner: owner_from(owner),
            fence: Fence(fence),
            since,
            held: Duration::from_millis(self.now.saturating_sub(since)),
            lease: Duration::from_millis(until.saturating_sub(self.now)),
            slot: self.slot()?,
            asked: Some(self.text()?).filter(|json| !json.is_empty()).map(|json| owner_from(&json)),
            confirmed: self.text()? == "1",
        })
    }

    /// The next field as totals: fields and what to add to them.
    pub fn stat(&mut self) -> Result<Stat, Error> {
        let mut nested = self.nested()?;
        let mut stat = Stat::default();
        while !nested.is_empty() {
            let (field, total) = (nested.text()?, nested.number()?);
            count(&mut stat, &field, total);
        }
        Ok(stat)
    }

    /// The error for an answer that no script gives.
    pub fn unknown(&self) -> Error {
        garbled(&self.store, "an answer that is not known")
    }

    /// The next field as an entry of the log; `None` where another version wrote what this one cannot read.
    pub fn logged_end(&mut self) -> Result<Option<LoggedEnd>, Error> {
        Ok(logged_end(&self.text()?))
    }
}

/// Adds one field of the totals. What another version counts is passed over.
fn count(stat: &mut Stat, field: &str, total: u64) {
    let (kind, which) = field.split_once('.').unwrap_or((field, ""));
    match kind {
        "waited" => span(&mut stat.waited, which, total),
        "held" => span(&mut stat.held, which, total),
        "busy" => stat.busy += total,
        "given-up" => stat.given_up += total,
        "succeeded" => stat.succeeded += total,
        "failed" => stat.failed += total,
        "last-job" if which == "succeeded" => stat.last_success = Some(total),
        "last-job" if which == "failed" => stat.last_failure = Some(total),
        "end" | "last" => {
            let Some(outcome) = outcome(which) else { return };
            if kind == "end" {
                *stat.ends.entry(outcome).or_default() += total;
            } else {
                stat.last.insert(outcome, total);
            }
        }
        _ => {}
    }
}

fn span(histogram: &mut Histogram, which: &str, total: u64) {
    if which == "sum" {
        histogram.sum += total;
    } else if let Some(bucket) = which.parse().ok().and_then(|at: usize| histogram.buckets.get_mut(at)) {
        *bucket += total;
    }
}

fn outcome(word: &str) -> Option<Outcome> {
    match word {
        "released" => Some(Outcome::Released),
        "expired" => Some(Outcome::Expired),
        "lost" => Some(Outcome::Lost),
        "forced" => Some(Outcome::Forced),
        _ => None,
    }
}

/// An owner as stored; what cannot be read is shown as nobody rather than failing the command.
pub fn owner_from(json: &str) -> Owner {
    serde_json::from_str(json).unwrap_or_default()
}

fn logged_end(json: &str) -> Option<LoggedEnd> {
    let [outcome, owner, fence, since, ended, waited, job, by]: [String; 8] =
        serde_json::from_str(json).ok()?;
    Some(LoggedEnd {
        outcome: self::outcome(&outcome)?,
        owner: owner_from(&owner),
        fence: Fence(fence.parse().ok()?),
        since: since.parse::<u64>().ok()? / 1000,
        ended: ended.parse().ok()?,
        waited: waited.parse().ok()?,
        job: serde_json::from_str::<JobEnd>(&job).ok(),
        by: (!by.is_empty()).then(|| owner_from(&by)),
    })
}

/// The error for a reply that is not as it should be.
pub fn garbled(store: &str, what: &str) -> Error {
    Error::Garbled(format!("{store} answered with {what}; does another program use dlock's keys there?"))
}

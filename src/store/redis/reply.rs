//! What does a script's reply say? Reads the flat arrays of the scripts, field by field, and trusts nothing in them:
//! whatever is not as the script's header says is [`Error::Garbled`].

use crate::law::{Blocker, Foreign, Holder, JobEnd, LoggedEnd, Outcome, State};
use crate::lock::{Fence, Mode, Owner};
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

/// What stands in the way, and the foreign value if that is what does.
pub struct Seen {
    /// What stands in the way.
    pub blocker: Blocker,
    /// The foreign value.
    pub foreign: Option<Foreign>,
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

    /// The next seven fields: what stands in the way of a grant.
    pub fn seen(&mut self) -> Result<Seen, Error> {
        let word = self.text()?;
        let left = Some(self.text()?).filter(|text| !text.is_empty());
        let left = left.map(|text| text.parse().map(Duration::from_millis)).transpose();
        let left = left.map_err(|_| garbled(&self.store, "a span that is no number"))?;
        let who = self.text()?;
        let rest = [self.text()?, self.text()?, self.text()?, self.text()?];
        let state = match word.as_str() {
            "free" => State::Free,
            "held" | "foreign" => State::Held,
            "cooling" => State::Cooling,
            "revoked" => State::Revoked,
            _ => return Err(garbled(&self.store, "a state that is not known")),
        };
        if word == "foreign" {
            let foreign = Some(Foreign { kind: who, left });
            return Ok(Seen {
                blocker: Blocker { at: 0, state, mode: None, holder: None, others: 0, left },
                foreign,
            });
        }
        let holder = if rest[0].is_empty() { None } else { Some(self.holder(&who, &rest)?) };
        let mode = (state != State::Free).then_some(Mode::Exclusive);
        Ok(Seen { blocker: Blocker { at: 0, state, mode, holder, others: 0, left }, foreign: None })
    }

    fn holder(&self, owner: &str, [fence, since, until, confirmed]: &[String; 4]) -> Result<Holder, Error> {
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| garbled(&self.store, "a hold that is not understood"))
        };
        let since = number(since)? / 1000;
        Ok(Holder {
            owner: owner_from(owner),
            fence: Fence(number(fence)?),
            since,
            held: Duration::from_millis(self.now.saturating_sub(since)),
            lease: Duration::from_millis(number(until)?.saturating_sub(self.now)),
            slot: None,
            confirmed: confirmed == "1",
        })
    }

    /// The next field as an entry of the log; `None` where another version wrote what this one cannot read.
    pub fn logged_end(&mut self) -> Result<Option<LoggedEnd>, Error> {
        Ok(logged_end(&self.text()?))
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
        outcome: match outcome.as_str() {
            "released" => Outcome::Released,
            "expired" => Outcome::Expired,
            "lost" => Outcome::Lost,
            "forced" => Outcome::Forced,
            _ => return None,
        },
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

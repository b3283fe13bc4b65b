//! Reads the flat arrays that scripts reply, field by field, and trusts nothing in them. What is
//! not as the script's header describes, or is longer or greater than dlock ever writes, is
//! [`Error::Garbled`]. A damaged lock is an error for that lock only.

use crate::exit::Ended;
use crate::lock::{Fence, Mode, Name, Owner, SLOTS_MAX};
use crate::rules::stat::{Histogram, Stat};
use crate::rules::{
    Blocker, Done, Foreign, Holder, LOG_KEPT, LoggedEnd, Outcome, Pause, REFUSALS_KEPT, Refusal, State,
    Success,
};
use crate::store::{Error, View, Waiter};
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

/// Most bytes in a field: an entry of the log with two owners in it, each character escaped twice.
const FIELD_MAX: usize = 256 * 1024;
/// All numbers are less than this: greater integers are not exact in Lua.
const NUMBERS_END: u64 = 1 << 53;

/// The fields of one reply, read from the front.
pub struct Reply {
    fields: vec::IntoIter<Value>,
    store: Arc<str>,
    pub now: u64,
}

impl Reply {
    /// Opens a reply. Returns its first field, the answer; the second one is the server's clock;
    /// the rest is read by the other functions.
    pub fn open(value: Value, store: &str) -> Result<(String, Self), Error> {
        let Value::Array(fields) = value else { return Err(garbled(store, "a reply that is no array")) };
        let mut reply = Self { fields: fields.into_iter(), store: store.into(), now: 0 };
        let what = reply.text()?;
        reply.now = reply.number()? / 1000;
        Ok((what, reply))
    }

    pub fn text(&mut self) -> Result<String, Error> {
        match self.fields.next() {
            Some(Value::BulkString(bytes)) if bytes.len() > FIELD_MAX => {
                Err(garbled(&self.store, &format!("a field of {} bytes", bytes.len())))
            }
            Some(Value::BulkString(bytes)) => Ok(String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
            Some(Value::SimpleString(text)) => Ok(text),
            Some(Value::Okay) => Ok("OK".into()),
            Some(Value::Int(number)) => Ok(number.to_string()),
            _ => Err(garbled(&self.store, "a field that is missing or no text")),
        }
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let text = self.text()?;
        self.number_in(&text)
    }

    /// A number that was read as text.
    pub fn number_in(&self, text: &str) -> Result<u64, Error> {
        let number = text.parse().ok().filter(|number| *number < NUMBERS_END);
        number
            .ok_or_else(|| garbled(&self.store, "a field that should be a number, and one that dlock writes"))
    }

    pub fn owner(&mut self) -> Result<Owner, Error> {
        let json = self.text()?;
        self.owner_in(&json)
    }

    /// An owner that was read as text.
    pub fn owner_in(&self, json: &str) -> Result<Owner, Error> {
        serde_json::from_str(json)
            .map_err(|error| garbled(&self.store, &format!("an owner that is not understood: {error}")))
    }

    /// An owner on which nothing depends: if it is not understood, an unknown one.
    fn owner_or_unknown(&self, json: &str) -> Owner {
        let unknown = |_| Owner { host: "?".into(), user: "?".into(), ..Owner::default() };
        self.owner_in(json).unwrap_or_else(unknown)
    }

    /// Like [`Self::owner_in`], if the text is not empty.
    pub fn owner_if_any(&self, json: &str) -> Result<Option<Owner>, Error> {
        if json.is_empty() { Ok(None) } else { self.owner_in(json).map(Some) }
    }

    /// The next field as a fence, if there is one. A number greater than any fence of dlock's does
    /// not count.
    pub fn fence(&mut self) -> Result<Option<Fence>, Error> {
        Ok(self.text()?.parse().ok().filter(|fence| (1..NUMBERS_END).contains(fence)).map(Fence))
    }

    /// The next field as a span, sent in milliseconds.
    pub fn span(&mut self) -> Result<Duration, Error> {
        self.number().map(Duration::from_millis)
    }

    /// The next field as a reply of its own. An empty text stands for an empty list.
    pub fn nested(&mut self) -> Result<Self, Error> {
        let fields = match self.fields.next() {
            Some(Value::Array(fields)) => fields,
            Some(Value::BulkString(text)) if text.is_empty() => Vec::new(),
            _ => return Err(garbled(&self.store, "a field that should be an array")),
        };
        Ok(Self { fields: fields.into_iter(), store: self.store.clone(), now: self.now })
    }

    pub fn is_empty(&self) -> bool {
        self.fields.len() == 0
    }

    /// Number of fields left.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// The next field as a span, if it is not empty.
    pub fn span_if_any(&mut self) -> Result<Option<Duration>, Error> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        self.number_in(&text).map(|ms| Some(Duration::from_millis(ms)))
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
        self.slot_in(&text)
    }

    fn slot_in(&self, text: &str) -> Result<Option<u32>, Error> {
        if text.is_empty() {
            return Ok(None);
        }
        let slot = text.parse().ok().filter(|slot| *slot < SLOTS_MAX);
        slot.map(Some).ok_or_else(|| garbled(&self.store, "a slot that there is not"))
    }

    /// The next field as a state, and whether the value is foreign.
    pub fn state(&mut self) -> Result<(State, bool), Error> {
        match self.text()?.as_str() {
            "free" => Ok((State::Free, false)),
            "held" => Ok((State::Held, false)),
            "foreign" => Ok((State::Held, true)),
            "cooling" => Ok((State::Cooling, false)),
            "revoked" => Ok((State::Revoked, false)),
            "paused" => Ok((State::Paused, false)),
            _ => Err(garbled(&self.store, "a state that is not known")),
        }
    }

    /// The next field as the index of one of `locks` locks.
    pub fn lock(&mut self, locks: usize) -> Result<usize, Error> {
        let at = usize::try_from(self.number()?).ok().filter(|at| *at < locks);
        at.ok_or_else(|| garbled(&self.store, "a lock that was not asked for"))
    }

    /// The next fourteen fields: what blocks a grant, at one of `locks` locks.
    pub fn blocker(&mut self, locks: usize) -> Result<Blocker, Error> {
        let at = self.lock(locks)?;
        let (state, is_foreign) = self.state()?;
        let (mode, left, paused) = (self.mode()?, self.span_if_any()?, self.pause()?);
        let (owner, fence) = (self.text()?, self.text()?);
        if is_foreign || fence.is_empty() {
            return Ok(Blocker { at, state, mode, holder: None, others: 0, left, paused });
        }
        let holder = self.holder(&owner, &fence)?;
        Ok(Blocker { at, state, mode, holder: Some(holder), others: self.number()?, left, paused })
    }

    /// The next field as holds, each in the form of its record.
    pub fn holders(&mut self) -> Result<Vec<Holder>, Error> {
        let mut nested = self.nested()?;
        let mut holders = Vec::new();
        while !nested.is_empty() {
            let record = nested.text()?;
            holders.push(self.recorded(&record)?);
        }
        Ok(holders)
    }

    /// A hold from its record.
    fn recorded(&self, record: &str) -> Result<Holder, Error> {
        let fields = serde_json::from_str::<Vec<serde_json::Value>>(record).unwrap_or_default();
        let text = |at| fields.get(at).and_then(serde_json::Value::as_str);
        // As in record.lua, the last field may be missing.
        let wanted = [8, 2, 3, 4, 1, 9, 6].into_iter().map(text).chain([Some(text(11).unwrap_or(""))]);
        let wanted = wanted.collect::<Option<Vec<_>>>().and_then(|wanted| wanted.try_into().ok());
        self.hold_of(wanted.ok_or_else(|| garbled(&self.store, "a hold that is not understood"))?)
    }

    /// A hold: two fields that were read already, and the next six.
    pub fn holder(&mut self, owner: &str, fence: &str) -> Result<Holder, Error> {
        let [since, until, slot, asked, confirmed, word] =
            [self.text()?, self.text()?, self.text()?, self.text()?, self.text()?, self.text()?];
        self.hold_of([owner, fence, &since, &until, &slot, &asked, &confirmed, &word])
    }

    /// A hold from its fields.
    fn hold_of(&self, fields: [&str; 8]) -> Result<Holder, Error> {
        let [owner, fence, since, until, slot, asked, confirmed, word] = fields;
        let (since, until) = (self.number_in(since)? / 1000, self.number_in(until)?);
        Ok(Holder {
            owner: self.owner_in(owner)?,
            fence: Fence(self.number_in(fence)?),
            since,
            held: Duration::from_millis(self.now.saturating_sub(since)),
            lease: Duration::from_millis(until.saturating_sub(self.now)),
            slot: self.slot_in(slot)?,
            asked: self.owner_if_any(asked)?,
            confirmed: confirmed == "1",
            superseded: word == "superseded",
        })
    }

    /// The next field as totals: pairs of name and count.
    pub fn stat(&mut self) -> Result<Stat, Error> {
        let mut nested = self.nested()?;
        let mut stat = Stat::default();
        while !nested.is_empty() {
            let (field, total) = (nested.text()?, nested.number()?);
            count(&mut stat, &field, total);
        }
        Ok(stat)
    }

    /// The next field as a pause, if there is one.
    pub fn pause(&mut self) -> Result<Option<Pause>, Error> {
        let json = self.text()?;
        // A damaged pause counts as none, as in the scripts.
        let Ok(fields) = serde_json::from_str::<Vec<String>>(&json) else { return Ok(None) };
        let [by, since, until] = fields.as_slice() else { return Ok(None) };
        let (since, until) = (self.number_in(since)?, self.number_in(until)?);
        Ok(Some(Pause { by: self.owner_or_unknown(by), since, until }))
    }

    /// The next four fields: a successful hold.
    fn success(&mut self) -> Result<Success, Error> {
        let owner = self.text().map(|json| self.owner_or_unknown(&json))?;
        let fence = Fence(self.number()?);
        Ok(Success { owner, fence, since: self.number()?, ended: self.number()? })
    }

    /// The next field as a successful hold, if there is one.
    pub fn last_success(&mut self) -> Result<Option<Success>, Error> {
        let mut nested = self.nested()?;
        if nested.is_empty() { Ok(None) } else { nested.success().map(Some) }
    }

    /// The next five fields: the success that makes `--once-per` skip a run.
    pub fn done(&mut self, at: usize) -> Result<Done, Error> {
        let (success, due) = (self.success()?, self.span()?);
        let ago = Duration::from_millis(self.now.saturating_sub(success.since));
        Ok(Done { at, success, ago, due })
    }

    /// All fields: the view of a lock.
    pub fn view(&mut self, name: &Name) -> Result<View, Error> {
        let now = self.now;
        let (state, is_foreign) = self.state()?;
        let (mode, left, kind) = (self.mode()?, self.span_if_any()?, self.text()?);
        let foreign = is_foreign.then_some(Foreign { kind, left });
        let fence = self.fence()?;
        let holders = self.holders()?;
        let mut queue = self.nested()?;
        let mut waiters = Vec::new();
        while !queue.is_empty() {
            let owner = queue.owner()?;
            let mode = queue.mode()?.unwrap_or_default();
            let waiting = Duration::from_millis(now.saturating_sub(queue.number()? / 1000));
            let replaces = !queue.text()?.is_empty();
            waiters.push(Waiter { owner, mode, replaces, waiting });
        }
        let log = self.log()?;
        let (stat, success, paused) = (self.stat()?, self.last_success()?, self.pause()?);
        let name = name.clone();
        Ok(View {
            name,
            now,
            state,
            mode,
            foreign,
            holders,
            left,
            fence,
            waiters,
            log,
            stat,
            success,
            paused,
        })
    }

    /// The next field as the last ends.
    pub fn log(&mut self) -> Result<Vec<LoggedEnd>, Error> {
        let (mut ends, mut log) = (self.nested()?, Vec::new());
        while !ends.is_empty() {
            log.extend(ends.logged_end()?);
        }
        log.truncate(LOG_KEPT);
        Ok(log)
    }

    /// The next field as refusals. A damaged one is skipped: nothing depends on it.
    pub fn refusals(&mut self) -> Result<Vec<Refusal>, Error> {
        let (mut nested, mut refusals) = (self.nested()?, Vec::new());
        while !nested.is_empty() {
            let text = nested.text()?;
            let Some((at, json)) = text.split_once(' ') else { continue };
            let (at, refusal) = (self.number_in(at), serde_json::from_str::<Refusal>(json));
            if let (Ok(at), Ok(refusal)) = (at, refusal) {
                refusals.push(Refusal { at, waited: refusal.waited.min(NUMBERS_END), ..refusal });
            }
        }
        refusals.truncate(REFUSALS_KEPT);
        Ok(refusals)
    }

    /// The error for an unknown answer.
    pub fn unknown(&self) -> Error {
        garbled(&self.store, "an answer that is not known")
    }

    /// The next field as an entry of the log; `None` if another version wrote it in a form that is
    /// not understood.
    pub fn logged_end(&mut self) -> Result<Option<LoggedEnd>, Error> {
        let json = self.text()?;
        let Ok(fields) = serde_json::from_str::<[String; 8]>(&json) else { return Ok(None) };
        let [outcome, owner, fence, since, ended, waited, job, by] = fields;
        let Some(outcome) = Outcome::of_word(&outcome) else { return Ok(None) };
        Ok(Some(LoggedEnd {
            outcome,
            owner: self.owner_in(&owner)?,
            fence: Fence(self.number_in(&fence)?),
            since: self.number_in(&since)? / 1000,
            ended: self.number_in(&ended)?,
            waited: self.number_in(&waited)?,
            job: serde_json::from_str::<Ended>(&job).ok(),
            by: self.owner_if_any(&by)?,
        }))
    }
}

/// Adds one field of the totals. Fields of other versions are skipped.
fn count(stat: &mut Stat, field: &str, total: u64) {
    let (kind, which) = field.split_once('.').unwrap_or((field, ""));
    match kind {
        "waited" => span(&mut stat.waited, which, total),
        "held" => span(&mut stat.held, which, total),
        "done" => add(&mut stat.done, total),
        "superseded" => add(&mut stat.superseded, total),
        "busy" => add(&mut stat.busy, total),
        "given-up" => add(&mut stat.given_up, total),
        "succeeded" => add(&mut stat.succeeded, total),
        "failed" => add(&mut stat.failed, total),
        "last-job" if which == "succeeded" => stat.last_success = Some(total),
        "last-job" if which == "failed" => stat.last_failure = Some(total),
        "end" | "last" => {
            let Some(outcome) = Outcome::of_word(which) else { return };
            if kind == "end" {
                add(stat.ends.entry(outcome).or_default(), total);
            } else {
                stat.last.insert(outcome, total);
            }
        }
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

/// The error for a malformed reply.
pub fn garbled(store: &str, what: &str) -> Error {
    Error::Garbled(format!("{store} answered with {what}; does another program use dlock's keys there?"))
}

//! The JSON of `status` and `history`, and what all JSON of dlock has in common; other commands'
//! JSON is in their own modules (`acquired`, `doctor`, `report`, `watch`). Every field is always
//! present, null if unknown; times are RFC 3339 in UTC, spans whole milliseconds. It never contains
//! a token: a [`View`] has none. docs/status.md explains the fields; adding one is a minor change,
//! anything else a major one.

use super::escape::acts;
use super::history::HistoryEntry;
use super::time::{millis, utc};
use crate::error::Error;
use crate::exit::Ended;
use crate::lock::{Mode, Owner};
use crate::rules::{Holder, LastSuccess, LoggedEnd, Pause, Refusal, Success};
use crate::store::{View, Waiter};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// The fields of a JSON object, in this order.
#[derive(Debug, Default, Clone)]
pub struct Object(Vec<(&'static str, Field)>);

/// An object has a variant of its own, because a [`Value`] sorts its fields by name.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Field {
    Value(Value),
    Object(Option<Object>),
    Objects(Vec<Object>),
}

impl Object {
    pub fn set(mut self, name: &'static str, value: impl Serialize) -> Self {
        self.0.push((name, Field::Value(serde_json::to_value(value).unwrap_or_default())));
        self
    }

    /// Adds an object as a field; null if there is none.
    pub fn set_object(mut self, name: &'static str, object: Option<Self>) -> Self {
        self.0.push((name, Field::Object(object)));
        self
    }

    fn set_objects(mut self, name: &'static str, objects: impl Iterator<Item = Self>) -> Self {
        self.0.push((name, Field::Objects(objects.collect())));
        self
    }

    /// Adds the fields of another object.
    pub fn with(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The output of `status --json`: an array, also for one key. `refused` has the last refusal of
/// each lock, if it was read.
pub fn status(views: &[View], refused: &[Option<Refusal>]) -> Result<String, Error> {
    let locks = views.iter().enumerate();
    let locks = locks.map(|(at, view)| lock(view, refused.get(at).and_then(Option::as_ref)));
    pretty(&locks.collect::<Vec<_>>())
}

/// The output of `history --json`: an array, newest end first, each with its key.
pub fn history(all: &[(String, HistoryEntry)]) -> Result<String, Error> {
    let entries = all.iter().map(|(key, entry)| match entry {
        HistoryEntry::End(end, counts_until) => last_run(key, end, *counts_until),
        HistoryEntry::Refusal(refusal) => refused(key, refusal),
    });
    pretty(&entries.collect::<Vec<_>>())
}

/// A value as indented JSON, safe to show on a terminal.
pub fn pretty(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map(|json| escaped_json(&json) + "\n").map_err(internal)
}

/// A value as a line of JSON, safe to show on a terminal.
pub fn line(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map(|json| escaped_json(&json) + "\n").map_err(internal)
}

fn internal(error: serde_json::Error) -> Error {
    Error::Internal(error.to_string())
}

/// Escapes what JSON allows and a terminal or a CI runner would act on, as `escaped` does. Such
/// characters occur in strings only, except the line ends between fields.
fn escaped_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && acts(c) || c == '#' && safe.ends_with('#') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// A mode for programs: its name, and the number of slots; null if unknown.
pub fn mode(mode: Option<Mode>) -> Object {
    let (name, slots) = match mode {
        None => (None, None),
        Some(Mode::Exclusive) => (Some("exclusive"), None),
        Some(Mode::Shared) => (Some("shared"), None),
        Some(Mode::Slots(slots)) => (Some("slots"), Some(slots)),
    };
    Object::default().set("mode", name).set("slots", slots)
}

/// A process and its command; null if unknown.
pub fn who(owner: Option<&Owner>) -> Object {
    Object::default()
        .set("host", owner.map(|owner| &owner.host))
        .set("pid", owner.map(|owner| owner.pid))
        .set("user", owner.map(|owner| &owner.user))
        .set("command", owner.map(|owner| &owner.command))
        .set("reason", owner.and_then(|owner| owner.reason.as_deref()))
}

fn person(Owner { host, pid, user, .. }: &Owner) -> Object {
    Object::default().set("host", host).set("pid", pid).set("user", user)
}

/// Who acted on a hold, and why.
pub fn actor(owner: &Owner) -> Object {
    person(owner).set("reason", &owner.reason)
}

/// How a job ended; null if there was none or it is unknown.
pub fn job_end(job: Option<Ended>) -> Object {
    let (status, signal) = match job {
        Some(Ended::Code(status)) => (Some(status), None),
        Some(Ended::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    Object::default().set("exit_status", status).set("signal", signal)
}

fn lock(view: &View, refusal: Option<&Refusal>) -> Object {
    let key = view.name.key();
    let foreign = view.foreign.as_ref().map(|foreign| hold(None, foreign.left));
    let holders = view.holders.iter().map(holder).chain(foreign);
    let wanted = || view.waiters.first().map(|waiter| waiter.mode);
    let success = view.last_success();
    Object::default()
        .set("key", key)
        .set("known", view.is_known())
        .set("state", view.state)
        .with(mode(view.mode.or_else(wanted)))
        .set("fence", view.fence)
        .set_objects("holders", holders)
        .set_objects("waiters", view.waiters.iter().zip(view.turns()).map(waiter))
        .set_object("last_run", view.log.first().map(|end| last_run(key, end, view.counts_until(end))))
        .set_object("last_success", success.as_ref().map(last_success))
        .set_object("done", view.counting().map(|(success, until)| done(success, until)))
        .set_object("last_refusal", refusal.map(|refusal| refused(key, refusal)))
        .set_object("paused", view.paused.as_ref().map(paused))
        .set("expect_ms", view.expected.map(|expected| millis(expected.every)))
        .set("overdue", view.overdue())
}

fn refused(key: &str, refusal: &Refusal) -> Object {
    Object::default()
        .set("key", key)
        .set("outcome", "refused")
        .set("why", refusal.why)
        .with(who(Some(&refusal.owner)))
        .set("refused_at", utc(refusal.at))
        .set("waited_ms", refusal.waited)
        .set_object("refused_by", refusal.by.as_ref().map(actor))
}

pub fn holder(holder: &Holder) -> Object {
    hold(Some(holder), Some(holder.lease))
}

/// A hold; of a program other than dlock only the end is known.
fn hold(holder: Option<&Holder>, lease: Option<Duration>) -> Object {
    let renewed_at = |holder: &Holder| {
        let now = holder.since.saturating_add(millis(holder.held));
        Some(utc(now.saturating_sub(millis(holder.renewed_ago()?))))
    };
    who(holder.map(|holder| &holder.owner))
        .set("slot", holder.and_then(|holder| holder.slot))
        .set("fence", holder.map(|holder| holder.fence))
        .set("acquired_at", holder.map(|holder| utc(holder.since)))
        .set("held_ms", holder.map(|holder| millis(holder.held)))
        .set("ttl_ms", holder.and_then(Holder::ttl).map(millis))
        .set("lease_ms", lease.map(millis))
        .set("renewed_at", holder.and_then(renewed_at))
        .set("stale", holder.is_some_and(Holder::is_stale))
        .set("foreign", holder.is_none())
        .set_object("asked_by", holder.and_then(|holder| holder.asked.as_ref()).map(actor))
        .set("superseded", holder.is_some_and(|holder| holder.superseded))
        .set("rest", holder.and_then(|holder| holder.owner.rest.as_deref()))
}

fn waiter((waiter, turn): (&Waiter, Option<Duration>)) -> Object {
    person(&waiter.owner)
        .with(mode(Some(waiter.mode)))
        .set("waiting_ms", millis(waiter.waiting))
        .set("turn_ms", turn.map(millis))
        .set("replaces", waiter.replaces)
}

/// The success that counts for `--once-per`.
fn done(success: &Success, until: Option<u64>) -> Object {
    person(&success.owner)
        .set("arrived_at", utc(success.arrived()))
        .set("granted_at", utc(success.since))
        .set("until", until.map(utc))
}

fn paused(Pause { by, since, until, cause }: &Pause) -> Object {
    actor(by).set("since", utc(*since)).set("until", utc(*until)).set("cause", cause)
}

fn last_success(success: &LastSuccess) -> Object {
    let (known, ended) = match success {
        LastSuccess::Known(success) => (Some(success), success.ended),
        LastSuccess::EndedAt(ended) => (None, *ended),
    };
    who(known.map(|success| &success.owner))
        .set("fence", known.map(|success| success.fence))
        .set("acquired_at", known.map(|success| utc(success.since)))
        .set("ended_at", utc(ended))
}

fn last_run(key: &str, end: &LoggedEnd, counts_until: Option<u64>) -> Object {
    Object::default()
        .set("key", key)
        .set("outcome", end.word())
        .with(who(Some(&end.owner)))
        .set("fence", end.fence)
        .set("acquired_at", utc(end.since))
        .set("ended_at", utc(end.ended))
        .set("held_ms", end.ended.saturating_sub(end.since))
        .set("waited_ms", end.waited)
        .with(job_end(end.job))
        .set_object("forced_by", end.by.as_ref().map(actor))
        .set("counts_until", counts_until.map(utc))
        .set("during_pause", end.during_pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_present() -> Result<(), Box<dyn std::error::Error>> {
        let text = status(&crate::output::table::tests::views()?, &[])?;
        println!("{text}");
        assert!(!text.contains(|c: char| c != '\n' && acts(c)));
        let array: Value = serde_json::from_str(&text)?;
        for lock in array.as_array().into_iter().flatten() {
            let fields = [
                "key",
                "known",
                "state",
                "mode",
                "slots",
                "fence",
                "holders",
                "waiters",
                "last_run",
                "last_success",
                "done",
                "last_refusal",
                "paused",
                "expect_ms",
                "overdue",
            ];
            assert!(fields.iter().all(|field| lock.get(field).is_some()), "{lock}");
            for holder in lock["holders"].as_array().into_iter().flatten() {
                let fields = ["host", "pid", "user", "command", "reason", "slot", "fence", "acquired_at"];
                let more = ["held_ms", "ttl_ms", "lease_ms", "renewed_at", "stale", "foreign", "asked_by"];
                let fields = fields.iter().chain(&more).chain(&["superseded"]);
                assert!(fields.clone().all(|field| holder.get(field).is_some()), "{holder}");
            }
        }
        assert_eq!(array[0]["last_run"]["exit_status"], 3);
        assert_eq!(array[0]["holders"][0]["acquired_at"], "2025-11-21T11:20:00.000Z");
        assert_eq!(array[3]["holders"][0]["foreign"], true);
        assert_eq!(array[1]["key"], "b\u{202e}c");
        assert_eq!(status(&[], &[])?, "[]\n");
        Ok(())
    }
}

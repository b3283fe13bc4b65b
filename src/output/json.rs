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
use crate::lock::{Fence, Mode, Owner};
use crate::rules::{self, Cause, Holder, LoggedEnd, Pause, Refusal, State, Why};
use crate::store::{View, Waiter};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// The output of `status --json`: an array, also for one key. `refused` has the last refusal of
/// each lock, if it was read.
pub fn status(views: &[View], refused: &[Option<Refusal>]) -> Result<String, Error> {
    let successes: Vec<_> = views.iter().map(View::last_success).collect();
    let locks = views.iter().zip(&successes).enumerate().map(|(at, (view, success))| Lock {
        last_refusal: refused.get(at).and_then(Option::as_ref).map(|one| Refused::of(view.name.key(), one)),
        ..Lock::of(view, success.as_ref())
    });
    pretty(&locks.collect::<Vec<_>>())
}

/// The output of `history --json`: an array, newest end first, each with its key.
pub fn history(all: &[(String, HistoryEntry)]) -> Result<String, Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Entry<'a> {
        End(Box<LastRun<'a>>),
        Refusal(Refused<'a>),
    }
    let entries = all.iter().map(|(key, told)| match told {
        HistoryEntry::End(end, counts_until) => Entry::End(Box::new(LastRun::of(key, end, *counts_until))),
        HistoryEntry::Refusal(refusal) => Entry::Refusal(Refused::of(key, refusal)),
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

/// A mode for programs: its name, and the number of slots.
pub fn mode(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Slots(slots) => ("slots", Some(slots)),
    }
}

/// A process and its command; null if unknown.
#[derive(Default, Serialize)]
pub struct Who<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    user: Option<&'a str>,
    command: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> From<&'a Owner> for Who<'a> {
    fn from(Owner { host, pid, user, command, reason, .. }: &'a Owner) -> Self {
        let (host, pid, user) = (Some(&**host), Some(*pid), Some(&**user));
        Self { host, pid, user, command: Some(command), reason: reason.as_deref() }
    }
}

#[derive(Debug, Serialize)]
pub struct Person<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
}

impl<'a> From<&'a Owner> for Person<'a> {
    fn from(Owner { host, pid, user, .. }: &'a Owner) -> Self {
        Self { host, pid: *pid, user }
    }
}

/// Who acted on a hold, and why.
#[derive(Debug, Serialize)]
pub struct Actor<'a> {
    #[serde(flatten)]
    who: Person<'a>,
    reason: Option<&'a str>,
}

impl<'a> From<&'a Owner> for Actor<'a> {
    fn from(owner: &'a Owner) -> Self {
        Self { who: owner.into(), reason: owner.reason.as_deref() }
    }
}

/// How a job ended; null if there was none or it is unknown.
#[derive(Debug, Default, Serialize)]
pub struct JobEnd {
    exit_status: Option<u8>,
    signal: Option<i32>,
}

impl From<Option<Ended>> for JobEnd {
    fn from(job: Option<Ended>) -> Self {
        match job {
            Some(Ended::Code(status)) => Self { exit_status: Some(status), signal: None },
            Some(Ended::Signal(signal)) => Self { exit_status: None, signal: Some(signal) },
            None => Self::default(),
        }
    }
}

#[derive(Serialize)]
struct Lock<'a> {
    key: &'a str,
    known: bool,
    state: State,
    mode: Option<&'static str>,
    slots: Option<u32>,
    fence: Option<Fence>,
    holders: Vec<Holds<'a>>,
    waiters: Vec<Waits<'a>>,
    last_run: Option<LastRun<'a>>,
    last_success: Option<LastSuccess<'a>>,
    done: Option<Done<'a>>,
    last_refusal: Option<Refused<'a>>,
    paused: Option<Paused<'a>>,
    expect_ms: Option<u64>,
    overdue: Option<bool>,
}

/// A refusal.
#[derive(Serialize)]
struct Refused<'a> {
    key: &'a str,
    outcome: &'static str,
    why: Why,
    #[serde(flatten)]
    who: Who<'a>,
    refused_at: String,
    waited_ms: u64,
    refused_by: Option<Actor<'a>>,
}

impl<'a> Refused<'a> {
    fn of(key: &'a str, refusal: &'a Refusal) -> Self {
        Self {
            key,
            outcome: "refused",
            why: refusal.why,
            who: (&refusal.owner).into(),
            refused_at: utc(refusal.at),
            waited_ms: refusal.waited,
            refused_by: refusal.by.as_ref().map(Actor::from),
        }
    }
}

/// A hold.
#[derive(Default, Serialize)]
pub struct Holds<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    slot: Option<u32>,
    fence: Option<Fence>,
    acquired_at: Option<String>,
    held_ms: Option<u64>,
    ttl_ms: Option<u64>,
    lease_ms: Option<u64>,
    renewed_at: Option<String>,
    stale: bool,
    foreign: bool,
    asked_by: Option<Actor<'a>>,
    superseded: bool,
    rest: Option<&'a str>,
}

#[derive(Serialize)]
struct Waits<'a> {
    #[serde(flatten)]
    who: Person<'a>,
    mode: &'static str,
    slots: Option<u32>,
    waiting_ms: u64,
    turn_ms: Option<u64>,
    replaces: bool,
}

#[derive(Serialize)]
struct LastRun<'a> {
    key: &'a str,
    outcome: &'static str,
    #[serde(flatten)]
    who: Who<'a>,
    fence: Fence,
    acquired_at: String,
    ended_at: String,
    held_ms: u64,
    waited_ms: u64,
    #[serde(flatten)]
    job: JobEnd,
    forced_by: Option<Actor<'a>>,
    counts_until: Option<String>,
    during_pause: bool,
}

/// The success that counts for `--once-per`.
#[derive(Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    by: Person<'a>,
    arrived_at: String,
    granted_at: String,
    until: Option<String>,
}

#[derive(Serialize)]
struct Paused<'a> {
    #[serde(flatten)]
    by: Actor<'a>,
    since: String,
    until: String,
    cause: Cause,
}

#[derive(Default, Serialize)]
struct LastSuccess<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    fence: Option<Fence>,
    acquired_at: Option<String>,
    ended_at: String,
}

impl<'a> Lock<'a> {
    fn of(view: &'a View, success: Option<&'a rules::LastSuccess>) -> Self {
        let foreign = view.foreign.as_ref().map(|foreign| Holds {
            lease_ms: foreign.left.map(millis),
            foreign: true,
            ..Holds::default()
        });
        let wanted = || view.waiters.first().map(|waiter| waiter.mode);
        let (mode, slots) = view.mode.or_else(wanted).map(mode).unzip();
        Self {
            key: view.name.key(),
            known: view.is_known(),
            state: view.state,
            mode,
            slots: slots.flatten(),
            fence: view.fence,
            holders: view.holders.iter().map(Holds::of).chain(foreign).collect(),
            waiters: view.waiters.iter().zip(view.turns()).map(|(one, turn)| Waits::of(one, turn)).collect(),
            last_run: view.log.first().map(|end| LastRun::of(view.name.key(), end, view.counts_until(end))),
            last_success: success.map(LastSuccess::of),
            done: view.counting().map(|(success, until)| Done {
                by: (&success.owner).into(),
                arrived_at: utc(success.arrived()),
                granted_at: utc(success.since),
                until: until.map(utc),
            }),
            last_refusal: None,
            paused: view.paused.as_ref().map(Paused::of),
            expect_ms: view.expected.map(|expected| millis(expected.every)),
            overdue: view.overdue(),
        }
    }
}

impl<'a> Holds<'a> {
    pub fn of(holder: &'a Holder) -> Self {
        let now = holder.since.saturating_add(millis(holder.held));
        let renewed_at = |ago| utc(now.saturating_sub(millis(ago)));
        Self {
            who: (&holder.owner).into(),
            slot: holder.slot,
            fence: Some(holder.fence),
            acquired_at: Some(utc(holder.since)),
            held_ms: Some(millis(holder.held)),
            ttl_ms: holder.ttl().map(millis),
            lease_ms: Some(millis(holder.lease)),
            renewed_at: holder.renewed_ago().map(renewed_at),
            stale: holder.is_stale(),
            foreign: false,
            asked_by: holder.asked.as_ref().map(Actor::from),
            superseded: holder.superseded,
            rest: holder.owner.rest.as_deref(),
        }
    }
}

impl<'a> Waits<'a> {
    fn of(waiter: &'a Waiter, turn: Option<Duration>) -> Self {
        let ((mode, slots), turn_ms) = (mode(waiter.mode), turn.map(millis));
        Self {
            who: (&waiter.owner).into(),
            mode,
            slots,
            waiting_ms: millis(waiter.waiting),
            turn_ms,
            replaces: waiter.replaces,
        }
    }
}

impl<'a> Paused<'a> {
    fn of(Pause { by, since, until, cause }: &'a Pause) -> Self {
        Self { by: by.into(), since: utc(*since), until: utc(*until), cause: *cause }
    }
}

impl<'a> LastSuccess<'a> {
    fn of(success: &'a rules::LastSuccess) -> Self {
        match success {
            rules::LastSuccess::Known(success) => Self {
                who: (&success.owner).into(),
                fence: Some(success.fence),
                acquired_at: Some(utc(success.since)),
                ended_at: utc(success.ended),
            },
            rules::LastSuccess::EndedAt(ended) => Self { ended_at: utc(*ended), ..Self::default() },
        }
    }
}

impl<'a> LastRun<'a> {
    fn of(key: &'a str, end: &'a LoggedEnd, counts_until: Option<u64>) -> Self {
        Self {
            key,
            outcome: end.word(),
            who: (&end.owner).into(),
            fence: end.fence,
            acquired_at: utc(end.since),
            ended_at: utc(end.ended),
            held_ms: end.ended.saturating_sub(end.since),
            waited_ms: end.waited,
            job: end.job.into(),
            forced_by: end.by.as_ref().map(Actor::from),
            counts_until: counts_until.map(utc),
            during_pause: end.during_pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_present() -> Result<(), Box<dyn std::error::Error>> {
        let text = status(&crate::output::table::tests::views()?, &[])?;
        println!("{text}");
        assert!(!text.contains(|c: char| c != '\n' && acts(c)));
        let array: serde_json::Value = serde_json::from_str(&text)?;
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

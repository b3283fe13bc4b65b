//! How is an event told? To people as one line, with local time; to programs as one JSON object on a line. docs/watch.md
//! explains both.

use super::busy::who;
use super::time::{local, millis, span, utc};
use super::{Coloured, escaped, json};
use crate::exit::Ended;
use crate::law::Outcome;
use crate::lock::{Fence, Mode, Owner};
use crate::store::events::{Event, EventKind};
use serde::Serialize;

/// The line for people; `now` is the store's clock.
pub fn line(key: &str, event: &Event, now: u64, colours: Coloured) -> String {
    let word = format!("{:<8}", word(event.kind));
    let word = match (colours, colour(event)) {
        (Coloured::Yes, Some(colour)) => format!("\x1b[{colour}m{word}\x1b[0m"),
        _ => word,
    };
    let (time, told) = (local(event.at, now), told(event));
    format!("{time} {word} {}  {}\n", escaped(key), escaped(&told))
}

fn word(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Waiting => "waiting",
        EventKind::Left => "left",
        EventKind::Busy => "busy",
        EventKind::Granted => "granted",
        EventKind::Released => Outcome::Released.word(),
        EventKind::Crashed => Outcome::Crashed.word(),
        EventKind::Timeout => Outcome::Timeout.word(),
        EventKind::Stopped => Outcome::Stopped.word(),
        EventKind::Lost => Outcome::Lost.word(),
        EventKind::Expired => Outcome::Expired.word(),
        EventKind::Forced => Outcome::Forced.word(),
        EventKind::Ended => "ended",
    }
}

/// The colours of `history`: how it went decides.
fn colour(event: &Event) -> Option<u8> {
    match (event.kind, event.job) {
        (EventKind::Released, Some(Ended::Code(0))) => Some(32),
        (EventKind::Released, Some(_)) => Some(31),
        (EventKind::Timeout, _) => Some(31),
        (EventKind::Crashed | EventKind::Lost | EventKind::Expired, _) => Some(35),
        (EventKind::Stopped | EventKind::Forced, _) => Some(33),
        (EventKind::Granted, _) => Some(1),
        (
            EventKind::Waiting | EventKind::Left | EventKind::Busy | EventKind::Released | EventKind::Ended,
            _,
        ) => None,
    }
}

/// Who, what it runs, how long, how it ended.
fn told(event: &Event) -> String {
    if event.kind == EventKind::Busy {
        return match event.count {
            1 => "one that did not wait was refused".into(),
            count => format!("{count} that did not wait were refused"),
        };
    }
    let mut parts = Vec::new();
    if let Some(owner) = &event.owner {
        let because = owner.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        parts.push(format!("{} '{}'{because}", who(owner), owner.command));
    }
    if let (EventKind::Waiting | EventKind::Granted, Some(mode @ (Mode::Shared | Mode::Slots(_)))) =
        (event.kind, event.mode)
    {
        match event.slot {
            Some(slot) => parts.push(format!("slot {slot} of {mode}")),
            None => parts.push(mode.to_string()),
        }
    }
    if let (EventKind::Left | EventKind::Granted, Some(waited)) = (event.kind, event.waited)
        && !waited.is_zero()
    {
        parts.push(format!("waited {}", span(waited)));
    }
    if let Some(held) = event.held {
        parts.push(format!("held {}", span(held)));
    }
    match (event.kind, event.job) {
        (_, Some(Ended::Code(status))) => parts.push(format!("exit {status}")),
        (_, Some(Ended::Signal(signal))) => parts.push(format!("signal {signal}")),
        _ => {}
    }
    match (event.kind, event.job) {
        (EventKind::Crashed, _) => parts.push("its dlock was killed".into()),
        (EventKind::Timeout, _) => parts.push("it ran for as long as it may".into()),
        (EventKind::Lost, None) => parts.push("the lock vanished under it".into()),
        (EventKind::Expired, None) => parts.push("not given back".into()),
        (EventKind::Ended, None) => parts.push("the log does not say how".into()),
        _ => {}
    }
    match (event.kind, &event.by) {
        (EventKind::Forced, Some(by)) => parts.push(format!("taken away by {}", who(by))),
        (_, Some(by)) => parts.push(format!("asked for by {}", who(by))),
        (_, None) => {}
    }
    parts.join(", ")
}

#[derive(Serialize)]
struct Object<'a> {
    event: &'static str,
    at: String,
    key: &'a str,
    host: Option<&'a str>,
    pid: Option<u32>,
    user: Option<&'a str>,
    command: Option<&'a str>,
    reason: Option<&'a str>,
    mode: Option<&'static str>,
    slots: Option<u32>,
    slot: Option<u32>,
    fence: Option<Fence>,
    waited_ms: Option<u64>,
    held_ms: Option<u64>,
    exit_status: Option<u8>,
    signal: Option<i32>,
    by: Option<Person<'a>>,
    count: u64,
}

#[derive(Serialize)]
struct Person<'a> {
    host: &'a str,
    pid: u32,
    user: &'a str,
}

/// The line for programs.
pub fn object(key: &str, event: &Event) -> serde_json::Result<String> {
    let owner = event.owner.as_ref();
    let (exit_status, signal) = match event.job {
        Some(Ended::Code(status)) => (Some(status), None),
        Some(Ended::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let (mode, slots) = match event.mode {
        None => (None, None),
        Some(Mode::Exclusive) => (Some("exclusive"), None),
        Some(Mode::Shared) => (Some("shared"), None),
        Some(Mode::Slots(slots)) => (Some("slots"), Some(slots)),
    };
    let line = json::line(&Object {
        event: word(event.kind),
        at: utc(event.at),
        key,
        host: owner.map(|owner| &*owner.host),
        pid: owner.map(|owner| owner.pid),
        user: owner.map(|owner| &*owner.user),
        command: owner.map(|owner| &*owner.command),
        reason: owner.and_then(|owner| owner.reason.as_deref()),
        mode,
        slots,
        slot: event.slot,
        fence: event.fence,
        waited_ms: event.waited.map(millis),
        held_ms: event.held.map(millis),
        exit_status,
        signal,
        by: event.by.as_ref().map(|Owner { host, pid, user, .. }| Person { host, pid: *pid, user }),
        count: event.count,
    })?;
    Ok(line + "\n")
}

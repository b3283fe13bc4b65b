//! Formats an event: for people as one line with local time, for programs as one JSON object on a
//! line. docs/watch.md explains both.

use super::json::Object;
use super::owner::{because, who};
use super::time::{local, millis, span, utc};
use super::{Coloured, escaped, history, json};
use crate::error::Error;
use crate::exit::Ended;
use crate::lock::Mode;
use crate::rules::Outcome;
use crate::store::events::{Event, EventKind};

/// The line for people; `now` is the store's clock.
pub fn line(key: &str, event: &Event, now: u64, colours: Coloured) -> String {
    let word = format!("{:<8}", word(event.kind));
    let word = colours.paint(&word, colour(event));
    let (time, details) = (local(event.at, now), details(event));
    format!("{time} {word} {}  {}\n", escaped(key), escaped(&details))
}

fn word(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Waiting => "waiting",
        EventKind::Left => "left",
        EventKind::Busy => "busy",
        EventKind::Done => "done",
        EventKind::Superseded => "superseded",
        EventKind::Paused => "paused",
        EventKind::Resumed => "resumed",
        EventKind::Granted => "granted",
        EventKind::Over(outcome) => outcome.word(),
        EventKind::Ended => "ended",
    }
}

fn colour(event: &Event) -> Option<&'static str> {
    match event.kind {
        EventKind::Granted => Some("\x1b[1m"),
        EventKind::Over(outcome) => history::colour(outcome, event.job),
        _ => None,
    }
}

/// Who, what it runs, how long, how it ended.
fn details(event: &Event) -> String {
    let counted = |one: &str, many: &str| match event.count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    if event.kind == EventKind::Busy {
        return counted("attempt was", "attempts were") + " refused: without --wait, or the queue was full";
    }
    if event.kind == EventKind::Done {
        return counted("run was", "runs were") + " skipped: already done (--once-per)";
    }
    let mut parts = Vec::new();
    if let Some(owner) = &event.owner {
        let because = because(owner);
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
    if let (EventKind::Left | EventKind::Superseded | EventKind::Granted, Some(waited)) =
        (event.kind, event.waited)
        && !waited.is_zero()
    {
        parts.push(format!("waited {}", span(waited)));
    }
    parts.extend(event.held.map(|held| format!("held {}", span(held))));
    parts.extend(event.job.map(|job| match job {
        Ended::Code(status) => format!("exit {status}"),
        Ended::Signal(signal) => format!("signal {signal}"),
    }));
    match (event.kind, event.job) {
        (EventKind::Over(Outcome::Crashed), _) => parts.push("its dlock was killed".into()),
        (EventKind::Over(Outcome::Timeout), _) => parts.push("--max-run was over".into()),
        (EventKind::Over(Outcome::Lost), None) => parts.push("the lock was gone from the store".into()),
        (EventKind::Over(Outcome::Expired), None) => parts.push("not given back".into()),
        (EventKind::Ended, None) => parts.push("the log does not say how".into()),
        _ => {}
    }
    match (event.kind, &event.by) {
        (EventKind::Over(Outcome::Forced), Some(by)) => parts.push(format!("taken away by {}", who(by))),
        (EventKind::Over(Outcome::Superseded), Some(by)) => parts.push(format!("replaced by {}", who(by))),
        (_, Some(by)) => parts.push(format!("requested by {}", who(by))),
        (_, None) => {}
    }
    parts.join(", ")
}

/// The line for programs.
pub fn object(key: &str, event: &Event) -> Result<String, Error> {
    let object = Object::default()
        .set("event", word(event.kind))
        .set("at", utc(event.at))
        .set("key", key)
        .with(json::who(event.owner.as_ref()))
        .with(json::mode(event.mode))
        .set("slot", event.slot)
        .set("fence", event.fence)
        .set("waited_ms", event.waited.map(millis))
        .set("held_ms", event.held.map(millis))
        .with(json::job_end(event.job))
        .set_object("by", event.by.as_ref().map(json::actor))
        .set("count", event.count);
    json::line(&object)
}

//! The state of a lock as one clause, for `wait` and `release`. `busy` says why a request was not
//! granted.

use super::busy::{and_others, asked_to_stop, held_briefly, quoted_command};
use super::columns::{Width, width};
use super::escaped;
use super::live::Said;
use super::owner::{because, left_behind, who};
use super::time::{local, millis, span};
use crate::clock::Moment;
use crate::exit::Ended;
use crate::lock::By;
use crate::rules::{Holder, LoggedEnd, Outcome, Pause, State};
use crate::store::View;
use std::time::Duration;

/// The state of a lock, as a clause that reads after its name.
pub fn state(view: &View) -> String {
    let left = view.left.map(|left| format!(" for {} more", span(left))).unwrap_or_default();
    match (view.state, view.holders.as_slice()) {
        (State::Free, _) if view.waiters.is_empty() => "is free".into(),
        (State::Free, _) => format!("is free, with {} in the queue", queued(view.waiters.len())),
        (State::Paused, _) => match &view.paused {
            Some(pause) => format!("is paused by {}{},{left}", who(&pause.by), because(&pause.by)),
            None => "is paused".into(),
        },
        (State::Cooling, _) => format!("is kept by the --min-hold of a run that is over,{left}"),
        (State::Revoked, []) => format!("was taken away by an operator; the old job may still run{left}"),
        (State::Revoked, [holder, ..]) => {
            let who = who(&holder.owner);
            format!("was taken away from {who} by an operator; the old job may still run{left}")
        }
        (State::Held, []) => match view.left {
            Some(_) => format!("is held by a program other than dlock,{left}"),
            None => "is held by a program other than dlock and never expires".into(),
        },
        (State::Held, [holder, others @ ..]) => {
            let others = and_others(others.len() as u64, "and");
            let (held, lease) = (span(holder.held), span(holder.lease));
            format!("has been held for {held} by {}{others}, lease good for {lease} more", who(&holder.owner))
        }
    }
}

/// The state of a lock that is waited for, and if it is to be done, that it is not, as a clause that
/// reads after its name.
pub fn awaited(view: &View, to_be_done: bool) -> String {
    if !to_be_done {
        return state(view);
    }
    let ago = view.stat.last_success.map(|ended| span(Duration::from_millis(view.now.saturating_sub(ended))));
    let last = ago.map_or_else(|| "no success is known".into(), |ago| format!("it last succeeded {ago} ago"));
    format!("is not done ({last}), and {}", state(view))
}

/// A line about the pause of a lock, if it is paused.
pub fn pause(view: &View) -> Option<String> {
    let Pause { by, until, cause, .. } = view.paused.as_ref()?;
    let (key, until) = (view.name.key(), local(*until, view.now));
    let text = format!("{key} is paused by {}{}{}, until {until}", who(by), because(by), cause.note());
    Some(escaped(&text).into_owned() + "\n")
}

/// What is expected of a lock, and whether it is overdue, as a clause that reads after its name; None
/// if nothing is.
pub fn expected(view: &View) -> Option<String> {
    let (expected, ms, is_overdue) = (view.expected?, Duration::from_millis, view.overdue() == Some(true));
    let ago = |at: u64| span(ms(view.now.saturating_sub(at)));
    let last = match view.stat.last_success {
        Some(ended) if ended > view.now && is_overdue => {
            format!("the last one was recorded by a clock that was {} ahead", span(ms(ended - view.now)))
        }
        Some(ended) => format!("the last one ended {} ago", ago(ended)),
        None if expected.since > view.now => "none on record".into(),
        None => format!("none on record, expected since {} ago", ago(expected.since)),
    };
    let overdue = if is_overdue { "overdue: " } else { "" };
    Some(format!("{overdue}a success each {}, {last}", span(expected.every)))
}

/// Returns a function that makes the line about waiting, for a wait that began at `since`.
pub fn line(store: String, view: View, to_be_done: bool, since: Moment) -> impl Fn(Width) -> Said {
    let seen = Moment::now();
    move |room| {
        let now = Moment::now();
        let view = aged(&view, now.since(seen));
        Said {
            text: watching(&store, &view, to_be_done, now.since(since), room),
            key: view.name.key().to_owned(),
            holder: view.holders.first().cloned(),
            ahead: None,
        }
    }
}

/// The same view as it would be `age` later if nothing has changed.
fn aged(view: &View, age: Duration) -> View {
    let mut view = view.clone();
    view.left = view.left.map(|left| left.saturating_sub(age));
    for holder in &mut view.holders {
        holder.held = holder.held.saturating_add(age);
        holder.lease = holder.lease.saturating_sub(age);
    }
    view
}

/// The line about waiting for `waited` so far, in a short form if the terminal is narrow.
fn watching(store: &str, view: &View, to_be_done: bool, waited: Duration, room: Width) -> String {
    let key = view.name.key();
    let seconds = Duration::from_secs(waited.as_secs());
    let since = if seconds.is_zero() { String::new() } else { format!(" for {}", span(seconds)) };
    let whole = format!("waiting{since}: {key} in {store} {}", awaited(view, to_be_done));
    match room {
        Width::Columns(columns) if width(&whole) > columns => {
            let state = match view.holders.as_slice() {
                [holder, others @ ..] if view.state == State::Held => {
                    held_briefly(holder, others.len() as u64)
                }
                _ if to_be_done => "it is not done".into(),
                _ => format!("it {}", state(view)),
            };
            format!("waiting {} for {key}: {state}", span(seconds))
        }
        _ => whole,
    }
}

pub fn queued(waiters: usize) -> String {
    match waiters {
        1 => "1 waiter".into(),
        waiters => format!("{waiters} waiters"),
    }
}

/// A hold in full, as a line, for an operator's decision.
pub fn hold(holder: &Holder) -> String {
    let now = holder.since.saturating_add(millis(holder.held));
    let slot = holder.slot.map(|slot| format!("slot {slot}: ")).unwrap_or_default();
    let how = match holder.owner.by {
        By::Run => "running",
        By::Acquire => "acquired by a script:",
        By::Hold => "for",
    };
    let (who, what) = (who(&holder.owner), quoted_command(&holder.owner));
    let (rest, because, asked) = (left_behind(&holder.owner), because(&holder.owner), asked_to_stop(holder));
    let (since, held, lease) = (local(holder.since, now), span(holder.held), span(holder.lease));
    format!(
        "{slot}held by {who} since {since} ({held} ago), {how} {what}{rest}{because}, lease good for {lease} more{asked}"
    )
}

/// How a hold ended, as a clause that reads after its owner.
pub fn end(end: &LoggedEnd) -> String {
    let how = match end.outcome {
        Outcome::Released => "gave the lock back",
        Outcome::Crashed => "was killed, and its guard gave the lock back",
        Outcome::Timeout => "stopped its job after --max-run, and gave the lock back",
        Outcome::Stopped => "stopped its job, and gave the lock back",
        Outcome::Superseded => "stopped its job for a newer run, and gave the lock back",
        Outcome::Expired => "did not renew the lock, and its lease ended",
        Outcome::Lost => "lost the lock",
        Outcome::Forced => "held the lock until an operator took it away",
    };
    match end.job {
        Some(Ended::Code(status)) => format!("{how}; its job ended with status {status}"),
        Some(Ended::Signal(signal)) => format!("{how}; its job died of signal {signal}"),
        None => how.into(),
    }
}

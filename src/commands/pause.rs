//! `dlock pause` and `dlock resume`: while a lock is paused, the store grants it to no new holder.
//! Holders go on, or are asked to end.

use super::context::Context;
use super::key_operands::{KeyOperands, Meant};
use super::owner::owner;
use crate::cli::pause::{Pause, Resume};
use crate::cli::point::Point;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Name, Owner, PAUSE_MOST};
use crate::output::owner::{because, who};
use crate::output::time::{millis, moment, now, span};
use crate::output::{Event, Kind, What};
use crate::rules::{self, NewPause};
use crate::store::{self, Store, View};
use std::time::Duration;

/// How long a lock is paused without `--for`.
const LASTS: Duration = Duration::from_secs(60 * 60);

pub fn pause(context: &Context, flags: &Pause) -> anyhow::Result<Exit> {
    let by = owner("dlock pause".into(), Some(flags.reason.clone()).filter(|text| !text.is_empty()));
    let until = flags.until.map(|until| end_of(until, now())).transpose()?;
    let pause = |store: &mut dyn Store, name: &Name, meant| {
        let before = store.inspect(name, context.deadline())?;
        // The machine's zone and clock say which moment is meant, the store's how far away it is.
        let left =
            |until: u64| Duration::from_millis(until.saturating_sub(before.now).max(1)).min(PAUSE_MOST);
        let given = until.map(left).or(flags.lasts);
        let at = until.map(|until| format!(" until {},", moment(until))).unwrap_or_default();
        let lasts = given.unwrap_or(LASTS);
        let longer = longer_pause(&before, lasts);
        let stays = meant == Meant::ByPattern && longer.is_some();
        if !stays {
            let new = NewPause { by: &by, lasts, shortens: given.is_some() };
            store.pause(name, Some(new), context.deadline())?;
        }
        let now = store.inspect(name, context.deadline())?;
        let mut held = ask_to_end_if(context, store, &now, flags.stop.then_some(&by))?;
        if meant == Meant::ByName {
            held.push_str(&context.if_unknown(store, &now));
        }
        let text = match longer {
            None => format!("is paused{at} for {}: no new holder until then{held}", span(lasts)),
            Some((own, left)) => {
                let (left, by) = (span(left), format!("by {}{}", who(&own.by), because(&own.by)));
                match given {
                    _ if stays => format!("stays paused for {left} more, {by}{held}"),
                    None => format!(
                        "is paused for {left}, as long as it was {by}: no new holder until then{held}"
                    ),
                    Some(lasts) => {
                        format!(
                            "is paused{at} for {}: no new holder until then; it was for {left} {by}{held}",
                            span(lasts)
                        )
                    }
                }
            }
        };
        say(context, Kind::Note, What::Paused, name, &text);
        Ok(true)
    };
    Ok(KeyOperands::of(context, &flags.keys)?.change(context, "", pause)?)
}

/// The end of a pause until this moment, in milliseconds since 1970.
fn end_of(until: Point, now: u64) -> Result<u64, Error> {
    let end = until.next(now).ok_or_else(|| Error::Usage("--until is in the past".into()))?;
    if end.saturating_sub(now) > millis(PAUSE_MOST) {
        return Err(Error::Usage(format!("--until is {}: a pause lasts 40 days at most", moment(end))));
    }
    Ok(end)
}

/// The pause in force, and the time left, if it ends later than a new pause would.
fn longer_pause(view: &View, lasts: Duration) -> Option<(&rules::Pause, Duration)> {
    let pause = view.paused.as_ref()?;
    let left = Duration::from_millis(pause.until.saturating_sub(view.now));
    (left > lasts).then_some((pause, left))
}

/// Asks the holders to end, if `by` is given. Returns a clause about what each holder does,
/// including a holder that was granted the lock just before.
fn ask_to_end_if(
    context: &Context,
    store: &mut dyn Store,
    view: &View,
    by: Option<&Owner>,
) -> Result<String, store::Error> {
    let goes_on = if by.is_some() { "is asked to end" } else { "goes on" };
    let mut said = String::new();
    let runs = view.holders.iter().filter(|holder| holder.during_pause).map(|holder| (&holder.owner, "runs"));
    let waits =
        view.waiters.iter().filter(|waiter| waiter.during_pause).map(|waiter| (&waiter.owner, "waits"));
    for (owner, does) in runs.chain(waits) {
        let text = format!("is used during its pause: {} {does}{}", who(owner), because(owner));
        say(context, Kind::Detail, What::Paused, &view.name, &text);
    }
    for holder in &view.holders {
        if let Some(by) = by {
            store.request(&view.name, holder.fence, by, context.deadline())?;
        }
        let just = if holder.confirmed { "" } else { "was granted the lock just before and " };
        said.push_str(&format!("; {} {just}{goes_on}", who(&holder.owner)));
    }
    Ok(said)
}

pub fn resume(context: &Context, flags: &Resume) -> anyhow::Result<Exit> {
    let resume = |store: &mut dyn Store, name: &Name, meant| {
        let was = store.pause(name, None, context.deadline())?;
        match (was, meant) {
            (true, _) => say(context, Kind::Note, What::Resumed, name, "is not paused any more"),
            (false, Meant::ByName) => {
                let text = format!("was not paused{}", unknown(context, store, name)?);
                say(context, Kind::Note, What::Unchanged, name, &text);
            }
            // Most of the locks that a pattern matches are not paused.
            (false, Meant::ByPattern) => say(context, Kind::Detail, What::Unchanged, name, "was not paused"),
        }
        Ok(was)
    };
    Ok(KeyOperands::of(context, &flags.keys)?.change(context, "was paused", resume)?)
}

/// A clause about a lock that the store does not know.
pub(super) fn unknown(context: &Context, store: &mut dyn Store, name: &Name) -> Result<String, store::Error> {
    let view = store.inspect(name, context.deadline())?;
    Ok(context.if_unknown(store, &view))
}

fn say(context: &Context, kind: Kind, what: What, name: &Name, said: &str) {
    let text = format!("{} in {} {said}", name.key(), context.settings.store);
    context.printer.say(kind, Event::from(what).about(name.key()), &text);
}

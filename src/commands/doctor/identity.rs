//! The identity of a store: a random text in it, the same on every machine whose settings mean the
//! same store and prefix. It is the label of a hold of a lock of dlock's own. `doctor` leaves such a
//! hold if there is none, and once a day, so that the record is kept. It creates no table, directory
//! or node for that.

use crate::commands::context::{Context, IDENTITY_KEY};
use crate::commands::owner::owner;
use crate::lock::{Key, Mode, Names, Token};
use crate::rules::{Acquired, Ask, End, LoggedEnd, Outcome, Patience, Ran, Terms, millis};
use crate::store::probe::{Survey, Tried};
use crate::store::{Error, Store, View};
use std::time::Duration;

/// Time after which the record is written again.
const AGAIN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
const TTL: Duration = Duration::from_secs(5);
/// Digits of the identity of a server.
const DIGITS: usize = 8;

/// The identity of the store; of independent masters, that of each. None if it has none, and none
/// may be written.
pub fn identity(context: &Context, survey: &Survey) -> Option<String> {
    if !has_place(survey) {
        return None;
    }
    let names: Names = context.name(&Key::new(IDENTITY_KEY).ok()?).ok()?.into();
    let parts: Vec<Option<String>> = context
        .open_each()
        .ok()?
        .into_iter()
        .map(|mut store| of_server(context, &mut *store, &names, is_own(survey)).ok().flatten())
        .collect();
    let is_known = parts.iter().any(Option::is_some);
    // A URL may name the masters in any order.
    let mut shown: Vec<String> = parts.into_iter().map(|part| part.unwrap_or_else(|| "?".into())).collect();
    shown.sort_by_key(|part| (part == "?", part.clone()));
    is_known.then(|| shown.join("+"))
}

/// Whether dlock's data is there already, or needs no place of its own.
fn has_place(survey: &Survey) -> bool {
    match survey {
        Survey::Servers { nodes, .. } | Survey::Masters(nodes) => nodes.iter().any(|node| node.facts.is_ok()),
        Survey::Directory(directory) => matches!(directory.found, Some(Ok(_))),
        Survey::Database(database) => {
            database.as_ref().is_ok_and(|database| database.tried == Ok(Tried::Done))
        }
        Survey::Ensemble(ensemble) => matches!(ensemble.tried, Ok(Some(_))),
    }
}

/// Whether the users of the store can read what this user writes there: the nodes of an administrator
/// are closed to them.
fn is_own(survey: &Survey) -> bool {
    match survey {
        Survey::Ensemble(ensemble) => matches!(&ensemble.tried, Ok(Some(others)) if others.is_empty()),
        _ => true,
    }
}

fn of_server(
    context: &Context,
    store: &mut dyn Store,
    names: &Names,
    is_own: bool,
) -> Result<Option<String>, Error> {
    let random = Token::random().map_err(|error| Error::Unavailable(error.to_string()))?;
    let view = store.inspect(names.first(), context.deadline())?;
    let label = |view: &View| known(view).map(|end| end.owner.command.clone());
    let found = label(&view);
    let is_recent = known(&view).is_some_and(|end| view.now < end.ended.saturating_add(millis(AGAIN_AFTER)));
    if is_recent || !is_own {
        return Ok(found);
    }
    let kept = found.clone().unwrap_or_else(|| random.secret().chars().take(DIGITS).collect());
    // A read-only user sees what is there.
    let written = write(context, store, names, &random, kept, found.is_none());
    match found {
        Some(found) => Ok(Some(found)),
        None => written.and_then(|()| Ok(label(&store.inspect(names.first(), context.deadline())?))),
    }
}

/// The last end that has the identity: one of a doctor that gave the lock back. The label of one that
/// died is another text, if it was the first or not as fast as the first.
fn known(view: &View) -> Option<&LoggedEnd> {
    view.log.iter().find(|end| end.outcome == Outcome::Released)
}

/// Leaves the end of a hold with this label. If `is_first`, another doctor may have been faster.
fn write(
    context: &Context,
    store: &mut dyn Store,
    names: &Names,
    token: &Token,
    label: String,
    is_first: bool,
) -> Result<(), Error> {
    store.prepare(token)?;
    let ask = Ask {
        token: token.clone(),
        mode: Mode::Exclusive,
        ttl: TTL,
        min_hold: Duration::ZERO,
        owner: owner(label, None),
        patience: Patience::None,
        terms: Terms::default(),
        waited: Duration::ZERO,
        has_waited: false,
    };
    let Acquired::Granted(grant) = store.acquire(names, &ask, context.deadline())? else { return Ok(()) };
    let is_needed = !is_first || known(&store.inspect(names.first(), context.deadline())?).is_none();
    let ran = if is_needed { Ran::Yes } else { Ran::No };
    let end = End { ran, job: None, once_per: false, fence: Some(grant.fence), pause: None };
    store.leave(names, token, &end, context.deadline()).map(drop)
}

//! `dlock status`: shows holders and waiters. Changes nothing.

use super::context::Context;
use super::key_operands::{Damaged, KeyOperands};
use crate::cli;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::columns::Width;
use crate::output::record::{self, Namespace};
use crate::output::{self, Kind, What, json, table};
use crate::rules::{LOG_KEPT, Refusal, State};
use crate::store::{self, Store, View, Which};
use std::time::Duration;

mod watch;

/// How many of the last ends a table row shows.
const IN_A_LINE: usize = 1;

pub fn status(context: &Context, flags: &cli::Status) -> anyhow::Result<Exit> {
    let Context { settings, printer } = context;
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let mut store = context.open()?;
    if let Some(every) = flags.watch {
        return watch::watch(context, store, wanted, every.unwrap_or(Duration::from_secs(1)));
    }
    let ends = if flags.json || wanted.single().is_some() { LOG_KEPT } else { IN_A_LINE };
    let which = if flags.all { Which::Known } else { Which::Live };
    let seen = look(&wanted, &mut *store, which, ends).map_err(|error| context.with_origin(error))?;
    for damaged in &seen.damaged {
        printer.say(Kind::Error, What::Unreadable, &damaged.line);
    }
    // One more request for each lock that was named.
    let refused: Vec<Option<Refusal>> = seen
        .views
        .iter()
        .map(|view| {
            let is_named = wanted.named.contains(&view.name);
            let refusals = is_named.then(|| store.refusals(&view.name, context.deadline()));
            refusals?.ok()?.into_iter().next()
        })
        .collect();
    output::print(&text(settings, flags, &wanted, &seen, &refused)?)?;
    let lacks = seen.damaged.iter().any(|damaged| damaged.is_asked_for);
    Ok(if lacks { Exit::Unavailable } else { Exit::Ok })
}

fn text(
    settings: &Settings,
    flags: &cli::Status,
    wanted: &KeyOperands,
    seen: &Overview,
    refused: &[Option<Refusal>],
) -> Result<String, Error> {
    if flags.json {
        return json::status(&seen.views, refused);
    }
    let (width, colours) = (Width::of_stdout(), output::coloured(settings.color));
    Ok(match (wanted.single(), seen.views.as_slice()) {
        (Some(_), [view]) => {
            let refused = refused.first().and_then(Option::as_ref);
            record::record(view, refused, &place(settings), width, colours)
        }
        (_, []) if !seen.damaged.is_empty() => String::new(),
        (_, []) => place(settings).empty(&wanted.patterns()),
        (_, views) if flags.all => table::all(views, width, colours),
        (_, views) => table::status(views, width, colours),
    })
}

fn place(settings: &Settings) -> Namespace {
    Namespace { store: settings.store.to_string(), prefix: settings.prefix.clone() }
}

struct Overview {
    views: Vec<View>,
    /// Messages about locks that cannot be shown.
    damaged: Vec<Damaged>,
}

/// Reads the locks that were named or match a pattern, or without either all that are not simply
/// free, each with its last `ends` ends.
fn look(
    wanted: &KeyOperands,
    store: &mut dyn Store,
    which: Which,
    ends: usize,
) -> Result<Overview, store::Error> {
    let which = if wanted.patterns.is_empty() { which } else { Which::Known };
    let (mut views, mut damaged) = (Vec::new(), Vec::new());
    let seen = |view: View, is_named| {
        let is_matched = which == Which::Known && view.is_used();
        if is_named || is_matched || view.state != State::Free || !view.waiters.is_empty() {
            views.push(view);
        }
    };
    wanted.look(store, which, ends, "shown", seen, |lack| damaged.push(lack))?;
    Ok(Overview { views, damaged })
}

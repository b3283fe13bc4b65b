//! `dlock status`: shows holders and waiters. Changes nothing.

use super::context::Context;
use super::key_operands::{KeyOperands, Overview};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::output::columns::Width;
use crate::output::record::{self, Namespace};
use crate::output::{self, Kind, What, json, safe_lines, table};
use crate::rules::{LOG_KEPT, Refusal, State};
use crate::store::{self, Store, View, Which};

/// How many of the last ends a table row shows.
const IN_A_LINE: usize = 1;

pub fn status(context: &Context, flags: &cli::Status) -> anyhow::Result<Exit> {
    let settings = &context.settings;
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let mut store = context.open()?;
    let ends = if flags.json || wanted.single().is_some() { LOG_KEPT } else { IN_A_LINE };
    let which = if flags.all { Which::Known } else { Which::Live };
    let seen = look(context, &wanted, &mut *store, which, ends);
    let Overview { mut views, is_damaged, mut exit } = seen.map_err(|error| context.with_origin(error))?;
    if flags.overdue {
        let is_lacking = report_unexpected(context, &wanted, &mut *store, &views);
        views.retain(|view| view.overdue() == Some(true));
        if exit == Exit::Ok && (is_lacking || !views.is_empty()) {
            exit = Exit::Busy(Exit::BUSY);
        }
    }
    // One more request for each lock that was named.
    let refused: Vec<Option<Refusal>> = views
        .iter()
        .map(|view| {
            let is_named = wanted.named.contains(&view.name);
            let refusals = is_named.then(|| store.refusals(&view.name, context.deadline()));
            refusals?.ok()?.into_iter().next()
        })
        .collect();
    let unused = wanted.unused(&views).filter(|_| !flags.json);
    let near = unused.map(|view| context.suggestion(&mut *store, view)).unwrap_or_default();
    let (width, colours) = (Width::of_stdout(), output::coloured(settings.color));
    let text = match (wanted.single(), views.as_slice()) {
        _ if flags.json => json::status(&views, &refused)?,
        _ if flags.overdue => table::overdue(&views),
        (Some(_), [view]) => {
            let refused = refused.first().and_then(Option::as_ref);
            record::record(view, refused, &near, &place(settings), width, colours)
        }
        (_, []) if is_damaged => String::new(),
        (_, []) => place(settings).empty(&wanted.patterns()),
        (_, views) if flags.all || !wanted.patterns.is_empty() => table::all(views, width, colours),
        (_, views) => table::status(views, width, colours),
    };
    output::print(&if flags.json { text } else { safe_lines(&text) })?;
    if !flags.overdue && (flags.json || !views.is_empty()) {
        wanted.say_unmatched(context, &views);
    }
    if !flags.json && unused.is_none() {
        // The table shows which were never used.
        wanted.say_unknown(context, &mut *store, &views, |near| !near.is_empty());
    }
    Ok(exit)
}

fn place(settings: &Settings) -> Namespace {
    Namespace { store: settings.store.to_string(), prefix: settings.prefix.clone() }
}

/// Reads the locks that were named or match a pattern; without either, the locks that `which`
/// selects. Each has its last `ends` ends. Leaves out a lock that is free and has no waiter, unless
/// it was named, or was used and `which` is `Known`, as for a pattern.
fn look(
    context: &Context,
    wanted: &KeyOperands,
    store: &mut dyn Store,
    which: Which,
    ends: usize,
) -> Result<Overview, store::Error> {
    let which = if wanted.patterns.is_empty() { which } else { Which::Known };
    let mut seen = wanted.look(context, store, which, ends, "shown")?;
    seen.views.retain(|view| {
        let is_matched = which == Which::Known && view.is_used() || wanted.named.contains(&view.name);
        let is_overdue = view.overdue() == Some(true);
        is_matched || is_overdue || view.state != State::Free || !view.waiters.is_empty()
    });
    Ok(seen)
}

/// Says which of the keys and patterns expect no run, so that nobody would hear of a missing one.
/// Returns whether there are any.
fn report_unexpected(context: &Context, wanted: &KeyOperands, store: &mut dyn Store, views: &[View]) -> bool {
    let (expecting, others): (Vec<_>, Vec<_>) = views.iter().partition(|view| view.expected.is_some());
    let expecting: Vec<_> = expecting.iter().map(|view| view.name.clone()).collect();
    let place = &context.settings.store;
    let mut unexpected = Vec::new();
    for view in others.iter().filter(|view| wanted.named.contains(&view.name)) {
        let near = context.if_unknown(store, view);
        unexpected.push(format!("no run of {} is expected in {place}{near}", view.name.key()));
    }
    unexpected.extend(wanted.unmatched(&expecting, place).map(|none| format!("{none} and expects a run")));
    for text in &unexpected {
        let text =
            format!("{text}; name what is expected: dlock run --expect, or --once-per day and the like");
        context.printer.say(Kind::Warning, What::Matched, &text);
    }
    !unexpected.is_empty()
}

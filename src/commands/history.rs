//! `dlock history`: shows how the last runs under some locks ended. Changes nothing. The store
//! keeps the last 64 ends of each lock for 40 days, also of holders that vanished.

use super::context::Context;
use super::key_operands::{KeyOperands, Overview};
use crate::cli::history::History;
use crate::cli::point::Point;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::Name;
use crate::output::columns::Width;
use crate::output::history::{HistoryEntry, between, picture, refused, table, ticks};
use crate::output::{self, Kind, What, describe, json, safe_lines, time};
use crate::rules::{LOG_KEPT, LoggedEnd, Refusal};
use crate::store::{View, Which};

pub fn history(context: &Context, flags: &History) -> anyhow::Result<Exit> {
    let moment =
        flags.since.filter(|since| !matches!(since, Point::Span(_))).map(|since| since.last(time::now()));
    match moment {
        Some(None) => return Err(Error::Usage("--since is in the future".into()).into()),
        Some(Some(at)) => {
            context.printer.say(Kind::Note, What::Setting, &format!("since {}", time::moment(at)))
        }
        None => {}
    }
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let mut store = context.open()?;
    let origin = |error| context.with_origin(error);
    let looked = wanted.look(context, &mut *store, Which::Known, LOG_KEPT, "shown");
    let Overview { views, exit, .. } = looked.map_err(origin)?;
    let with_refusals = views.iter().filter(|_| flags.refused);
    let refusals = with_refusals.map(|view| store.refusals(&view.name, context.deadline()));
    let refusals = refusals.collect::<Result<_, _>>().map_err(origin)?;
    let all = chosen(&views, refusals, flags, moment.flatten());
    let ends = all.iter().filter_map(|(key, entry)| match entry {
        HistoryEntry::End(end, until) => Some((key.clone(), (end.clone(), until.is_some()))),
        HistoryEntry::Refusal(_) => None,
    });
    let (keys, (log, counts)): (Vec<String>, (Vec<LoggedEnd>, Vec<bool>)) = ends.unzip();
    let shown = if wanted.single().is_some() { None } else { Some(&*keys) };
    let key_of = |key: &str| shown.map(|_| key.to_owned());
    let now = views.iter().map(|view| view.now).max().unwrap_or_default();
    let coloured = output::coloured(context.settings.color);
    // The log does not say why a lock is not granted now.
    let paused = || views.iter().filter_map(describe::pause).collect::<String>();
    let unused = wanted.unused(&views).filter(|_| !flags.json);
    let near = unused.map(|view| context.suggestion(&mut *store, view)).unwrap_or_default();
    let text = match Width::of_stdout() {
        _ if flags.json => json::history(&all)?,
        _ if flags.lines == Some(0) => String::new(),
        _ if all.is_empty() => paused() + &nothing_to_show(context, flags, &wanted, &views, &near),
        Width::Columns(columns) => {
            let lines = picture(shown, &log, &counts, now, columns, coloured);
            paused()
                + &between(lines, &all, |key, refusals| ticks(key_of(key).as_deref(), refusals, now, columns))
        }
        Width::Endless => {
            let lines = table(shown, &log, &counts, coloured);
            between(lines, &all, |key, refusals| {
                let key = key_of(key);
                let each = refusals.iter().map(|one| refused(key.as_deref(), one, None));
                each.collect::<Vec<_>>().join("\n")
            })
        }
    };
    output::print(&if flags.json { text } else { safe_lines(&text) })?;
    if flags.json || !all.is_empty() {
        wanted.say_unmatched(context, &views);
    }
    // The JSON has no entry for a lock without a run.
    if unused.is_none() {
        wanted.say_unknown(context, &mut *store, &views, |_| true);
    }
    Ok(exit)
}

/// The selected ends and refusals, newest first, each with its key. `moment` is what `--since` means
/// on this machine, if that is not a span.
fn chosen(
    views: &[View],
    refusals: Vec<Vec<Refusal>>,
    flags: &History,
    moment: Option<u64>,
) -> Vec<(String, HistoryEntry)> {
    let mut refusals = refusals.into_iter();
    let of_one = |view: &View| {
        let (key, now) = (view.name.key().to_owned(), view.now);
        let ends = view.log.iter().filter(|end| !flags.failed || end.is_failure());
        let ends = ends.map(|end| HistoryEntry::End(end.clone(), view.counts_until(end)));
        let refused = refusals.next().unwrap_or_default().into_iter().map(HistoryEntry::Refusal);
        let since = moment.or_else(|| flags.since?.last(now));
        let is_recent = |entry: &HistoryEntry| since.is_none_or(|since| entry.at() >= since);
        let entries: Vec<HistoryEntry> = ends.chain(refused).filter(is_recent).collect();
        entries.into_iter().map(move |entry| (key.clone(), entry))
    };
    let mut all: Vec<(String, HistoryEntry)> = views.iter().flat_map(of_one).collect();
    // The log of one lock is in order already, even if a clock was set back.
    if views.len() > 1 || flags.refused {
        all.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.at()));
    }
    all.truncate(flags.lines.unwrap_or(usize::MAX));
    all
}

/// The text if there is nothing to show.
fn nothing_to_show(
    context: &Context,
    flags: &History,
    wanted: &KeyOperands,
    views: &[View],
    near: &str,
) -> String {
    let store = &context.settings.store;
    let what = if flags.failed { "failed" } else { "ended" };
    let within = match flags.since {
        None => "in the last 40 days".into(),
        Some(Point::Span(span)) => format!("in the last {}", time::span(span)),
        Some(since) => format!("since {}", time::moment(since.last(time::now()).unwrap_or_default())),
    };
    let names: Vec<Name> = views.iter().map(|view| view.name.clone()).collect();
    if let Some(none) = wanted.unmatched(&names, store) {
        return none + "\n";
    }
    let under = wanted.single().map(|name| format!(" under {}", name.key())).unwrap_or_default();
    match (wanted.single(), views) {
        (Some(name), [view]) if !view.is_used() => format!(
            "no record of {} in {store}: no run in the last 40 days, or the store was restarted, flushed or failed over since{near}\n",
            name.key()
        ),
        _ => format!("no run{under} in {store} has {what} {within}\n"),
    }
}

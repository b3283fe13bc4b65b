//! The output of `dlock status KEY` for people: everything about one lock, with its waiters. On a
//! terminal a long value continues on the next line; nothing is cut. `table` shows several locks.

use super::columns::{Width, broken, padded};
use super::history::why;
use super::owner::{because, cell};
use super::table::{colour, last};
use super::time::{about, local, once_per, span};
use super::{Coloured, describe, escaped};
use crate::lock::{By, Mode, Owner};
use crate::rules::{Holder, LastSuccess, Refusal, State};
use crate::store::View;
use std::time::Duration;

/// The column at which values begin.
const LABEL: usize = 11;

/// The store and prefix that were read.
#[derive(Debug, Clone)]
pub struct Namespace {
    /// The store's name, without its secret.
    pub store: String,
    /// The prefix of all keys there.
    pub prefix: String,
}

impl Namespace {
    fn as_text(&self) -> String {
        match &*self.prefix {
            "" => format!("without a prefix in {}", self.store),
            prefix => format!("under the prefix {prefix} in {}", self.store),
        }
    }

    /// The text if there is no lock to show; `patterns` are those asked for, if any.
    pub fn empty(&self, patterns: &[&str]) -> String {
        let text = match patterns {
            [] => format!("no lock is held, cooling, paused, overdue or waited for, {}", self.as_text()),
            patterns => format!("no key that matches {} is known, {}", patterns.join(" or "), self.as_text()),
        };
        escaped(&text).into_owned() + "\n"
    }
}

/// The record of one lock, with a line end after each line. `refused` is its last refusal. `near`
/// follows the text about an unknown lock.
pub fn record(
    view: &View,
    refused: Option<&Refusal>,
    near: &str,
    place: &Namespace,
    width: Width,
    coloured: Coloured,
) -> String {
    if !view.is_used() {
        let text = format!(
            "no record of {}, {}: never used there, or the store was restarted, flushed or failed over since{near}",
            view.name.key(),
            place.as_text()
        );
        return escaped(&text).into_owned() + "\n";
    }
    let mut lines = Lines { text: String::new(), width };
    lines.add(0, "key", view.name.key());
    state(&mut lines, view, coloured);
    queue(&mut lines, view);
    past(&mut lines, view, refused);
    if let (Some(fence), []) = (view.fence, view.holders.as_slice()) {
        lines.add(0, "fence", &fence.to_string());
    }
    let prefix = if place.prefix.is_empty() { "without a " } else { "" };
    lines.add(0, "store", format!("{}, {prefix}prefix {}", place.store, place.prefix).trim_end());
    lines.text
}

/// What holds or blocks the lock.
fn state(lines: &mut Lines, view: &View, coloured: Coloured) {
    let word = view.state.word();
    let painted = coloured.paint(word, colour(word));
    lines.text.push_str(&format!("{}{painted}\n", padded("state", LABEL)));
    match view.mode {
        Some(Mode::Slots(slots)) => {
            lines.add(0, "mode", &format!("{} of {} held", view.holders.len(), Mode::Slots(slots)));
        }
        Some(Mode::Shared) => lines.add(0, "mode", "shared"),
        Some(Mode::Exclusive) | None => {}
    }
    if let Some(foreign) = &view.foreign {
        lines.add(0, "holder", &format!("a program other than dlock, a value of the type {}", foreign.kind));
    }
    for holder in &view.holders {
        held(lines, view, holder);
    }
    // With holders, each lease shows when the lock is free.
    match (view.state, view.left) {
        (State::Free, _) => {}
        (_, Some(left)) if view.holders.is_empty() => lines.add(0, "free in", &span(left)),
        (_, None) => lines.add(0, "free in", "no end"),
        _ => {}
    }
    if let Some(pause) = &view.paused {
        let (by, until) = (cell(&pause.by), local(pause.until, view.now));
        lines.add(0, "paused", &format!("until {until} by {by}{}{}", because(&pause.by), pause.cause.note()));
    }
}

fn queue(lines: &mut Lines, view: &View) {
    if !view.waiters.is_empty() {
        lines.add(0, "waiting", &view.waiters.len().to_string());
    }
    for ((at, waiter), turn) in view.waiters.iter().enumerate().zip(view.turns()) {
        // The same mode as the lock's is not repeated.
        let is_usual = view.mode.unwrap_or_default() == waiter.mode;
        let mode = if is_usual { String::new() } else { format!(", {}", waiter.mode) };
        let (who, waiting) = (cell(&waiter.owner), span(waiter.waiting));
        let newest = if waiter.replaces { ", replaces the holder" } else { "" };
        let turn = turn.map(|turn| format!(", its turn in about {}", about(turn))).unwrap_or_default();
        let text = format!("{who}, for {waiting}{mode}{newest}{turn}: {}", waiter.owner.command);
        lines.add(2, &format!("{}.", at + 1), &text);
    }
}

/// What counts for `--once-per`, the last run, the last success and the last refusal.
fn past(lines: &mut Lines, view: &View, refused: Option<&Refusal>) {
    if let Some((success, until)) = view.counting() {
        let Owner { user, host, once_per: span, .. } = &success.owner;
        let at = |time| local(time, view.now);
        let until = until
            .zip(*span)
            .map(|(until, span)| format!(", counts until {} ({})", at(until), once_per(span)));
        let until = until.unwrap_or_default();
        lines.add(0, "done", &format!("by {user}@{host}, arrived {}{until}", at(success.arrived())));
    }
    if let Some(end) = view.log.first() {
        lines.add(0, "last run", &format!("{}, run by {}", last(end, view.now), cell(&end.owner)));
        if let Some(by) = &end.by {
            lines.add(2, "ended by", &format!("{}{}", cell(by), because(by)));
        }
    }
    if let Some(expected) = describe::expected(view) {
        lines.add(0, "expected", &expected);
    }
    let ago = |at: u64| span(Duration::from_millis(view.now.saturating_sub(at)));
    match view.last_success() {
        // The last run itself is the success.
        Some(LastSuccess::Known(success))
            if view.log.first().is_some_and(|end| end.fence == success.fence) => {}
        Some(LastSuccess::Known(success)) => {
            let text = format!("by {}, begun {} ago", cell(&success.owner), ago(success.since));
            lines.add(0, "succeeded", &text);
        }
        Some(LastSuccess::EndedAt(ended)) => {
            lines.add(0, "succeeded", &format!("{} ago", ago(ended)));
        }
        None => {}
    }
    if let Some(refusal) = refused {
        let text = format!("{} ago, {}, {}", ago(refusal.at), cell(&refusal.owner), why(refusal));
        lines.add(0, "refused", &text);
    }
}

fn held(lines: &mut Lines, view: &View, holder: &Holder) {
    let slot = holder.slot.map(|slot| format!(", slot {slot}")).unwrap_or_default();
    let how = match holder.owner.by {
        By::Run => "",
        By::Acquire => ", acquired by a script",
        By::Hold => ", by dlock hold",
    };
    lines.add(0, "holder", &format!("{}{slot}{how}", cell(&holder.owner)));
    lines.add(2, "since", &format!("{} ({})", local(holder.since, view.now), span(holder.held)));
    let renewed = match (holder.ttl(), holder.renewed_ago()) {
        (Some(ttl), Some(ago)) => format!(" of {}, renewed {} ago", span(ttl), span(ago)),
        _ => String::new(),
    };
    let stale = if holder.is_stale() { ", stale: its dlock is stopped, or cut off" } else { "" };
    lines.add(2, "lease", &format!("{} left{renewed}{stale}", span(holder.lease)));
    lines.add(2, "command", &holder.owner.command);
    if let Some(rest) = &holder.owner.rest {
        lines.add(2, "kept by", &format!("what the command left behind when it ended: {rest}"));
    }
    if let Some(reason) = &holder.owner.reason {
        lines.add(2, "reason", reason);
    }
    lines.add(2, "fence", &holder.fence.to_string());
    if let Some(by) = &holder.asked {
        let newer = if holder.superseded { ", a newer run (--replace)" } else { "" };
        lines.add(2, "asked", &format!("to stop, by {}{newer}{}", cell(by), because(by)));
    }
}

struct Lines {
    text: String,
    width: Width,
}

impl Lines {
    /// Adds a label and its value.
    fn add(&mut self, indent: usize, label: &str, value: &str) {
        let value = escaped(value);
        let pieces = match self.width {
            Width::Columns(columns) => broken(&value, columns.saturating_sub(LABEL)),
            Width::Endless => vec![value.into_owned()],
        };
        let label = padded("", indent) + label;
        for (at, piece) in pieces.iter().enumerate() {
            let line = padded(if at == 0 { &label } else { "" }, LABEL) + piece;
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::width;
    use super::super::table::tests::views;
    use super::*;

    #[test]
    fn record_is_complete_and_fits() -> Result<(), String> {
        let place = Namespace { store: "redis://h:6379".into(), prefix: "dlock:".into() };
        for view in views()? {
            let whole = record(&view, None, "", &place, Width::Endless, Coloured::No);
            println!("{whole}");
            assert!(!whole.contains(|c: char| c != '\n' && crate::output::escape::acts(c)));
            for part in ["redis://h:6379", "dlock:"] {
                assert!(whole.contains(part), "{whole}");
            }
            for columns in [20, 60, 80, 100] {
                let text = record(&view, None, "", &place, Width::Columns(columns), Coloured::No);
                assert!(text.lines().all(|line| width(line) <= columns) || !view.is_used(), "{text}");
            }
        }
        let views = views()?;
        let whole = record(&views[0], None, "", &place, Width::Endless, Coloured::No);
        for part in [
            "nightly-report-of-the-whole-company",
            "app@web1 4711",
            "26s left",
            "waiting    1",
            "1.",
            "exit 3",
        ] {
            assert!(whole.contains(part), "{part}\n{whole}");
        }
        let unused = record(&views[4], None, "", &place, Width::Endless, Coloured::No);
        assert_eq!(
            unused,
            "no record of free, under the prefix dlock: in redis://h:6379: never used there, or the store was restarted, flushed or \
             failed over since\n"
        );
        assert!(
            place.empty(&["a*", "b?"]).starts_with("no key that matches a* or b? is known, under the prefix")
        );
        Ok(())
    }
}

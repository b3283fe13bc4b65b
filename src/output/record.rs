//! What does `dlock status KEY` show to people? All that there is to say of one lock, top down, with who waits for it. On
//! a terminal what is too long goes on in the next line; nothing is cut. Several locks are in `table`.

use super::columns::{Width, broken, padded};
use super::owner::{as_one_of, because, cell};
use super::table::{colour, last};
use super::time::{about, local, span};
use super::{Coloured, escaped};
use crate::law::{Holder, State};
use crate::lock::{By, Mode};
use crate::store::View;

/// Where a label ends and what it names begins.
const LABEL: usize = 11;

/// Where was looked: the store, and under which prefix.
#[derive(Debug, Clone)]
pub struct Namespace {
    /// The store's name, without its secret.
    pub store: String,
    /// What all keys begin with there.
    pub prefix: String,
}

impl Namespace {
    fn words(&self) -> String {
        match &*self.prefix {
            "" => format!("without a prefix in {}", self.store),
            prefix => format!("under the prefix {prefix} in {}", self.store),
        }
    }

    /// What there is to say where no lock is to be shown; `patterns` are what was asked for, if anything.
    pub fn empty(&self, patterns: &[&str]) -> String {
        let which = match patterns {
            [] => String::new(),
            patterns => format!(" like {}", patterns.join(" or ")),
        };
        let text = format!("no lock{which} is held, cooling or waited for, {}", self.words());
        escaped(&text).into_owned() + "\n"
    }
}

/// The record of one lock, with a line end after each line.
pub fn record(view: &View, place: &Namespace, width: Width, coloured: Coloured) -> String {
    if !view.is_used() {
        let text = format!("{} was never used, {}", view.name.key(), place.words());
        return escaped(&text).into_owned() + "\n";
    }
    let mut lines = Lines { text: String::new(), width };
    lines.add(0, "key", view.name.key());
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
        lines.add(0, "holder", &format!("not dlock, a value of the type {}", foreign.kind));
    }
    for holder in &view.holders {
        held(&mut lines, view, holder);
    }
    // With holders each lease says it.
    match (view.state, view.left) {
        (State::Free, _) => {}
        (_, Some(left)) if view.holders.is_empty() => lines.add(0, "free in", &span(left)),
        (_, None) => lines.add(0, "free in", "no end"),
        _ => {}
    }
    if let Some(pause) = &view.paused {
        let (by, until) = (cell(&pause.by), local(pause.until, view.now));
        let of = as_one_of(pause.pattern.as_ref());
        lines.add(0, "paused", &format!("until {until}{of} by {by}{}", because(&pause.by)));
    }
    if !view.waiters.is_empty() {
        lines.add(0, "waiting", &view.waiters.len().to_string());
    }
    for ((at, waiter), turn) in view.waiters.iter().enumerate().zip(view.turns()) {
        // What goes without saying is not said.
        let is_usual = view.mode.unwrap_or_default() == waiter.mode;
        let mode = if is_usual { String::new() } else { format!(", {}", waiter.mode) };
        let (who, waiting) = (cell(&waiter.owner), span(waiter.waiting));
        let newest = if waiter.replaces { ", replaces who runs" } else { "" };
        let turn = turn.map(|turn| format!(", its turn in about {}", about(turn))).unwrap_or_default();
        let text = format!("{who}, for {waiting}{mode}{newest}{turn}: {}", waiter.owner.command);
        lines.add(2, &format!("{}.", at + 1), &text);
    }
    if let Some(end) = view.log.first() {
        lines.add(0, "last run", &format!("{}, by {}", last(end, view.now), cell(&end.owner)));
    }
    if let Some(success) = view.success.as_ref().filter(|success| {
        // Where it is not the last run itself.
        view.log.first().is_none_or(|end| end.fence != success.fence)
    }) {
        let ago = span(std::time::Duration::from_millis(view.now.saturating_sub(success.since)));
        lines.add(0, "succeeded", &format!("began {ago} ago, by {}", cell(&success.owner)));
    }
    if let (Some(fence), []) = (view.fence, view.holders.as_slice()) {
        lines.add(0, "fence", &fence.to_string());
    }
    let prefix = if place.prefix.is_empty() { "without a " } else { "" };
    lines.add(0, "store", format!("{}, {prefix}prefix {}", place.store, place.prefix).trim_end());
    lines.text
}

fn held(lines: &mut Lines, view: &View, holder: &Holder) {
    let slot = holder.slot.map(|slot| format!(", slot {slot}")).unwrap_or_default();
    let how = match holder.owner.by {
        By::Run => "",
        By::Acquire => ", acquired by a script",
    };
    lines.add(0, "holder", &format!("{}{slot}{how}", cell(&holder.owner)));
    lines.add(2, "since", &format!("{} ({})", local(holder.since, view.now), span(holder.held)));
    lines.add(2, "lease", &format!("{} left", span(holder.lease)));
    lines.add(2, "command", &holder.owner.command);
    if let Some(reason) = &holder.owner.reason {
        lines.add(2, "reason", reason);
    }
    lines.add(2, "fence", &holder.fence.to_string());
    if let Some(by) = &holder.asked {
        let newer = if holder.superseded { ", a newer run (--replace)" } else { "" };
        lines.add(2, "asked", &format!("to stop, by {}{newer}", cell(by)));
    }
}

struct Lines {
    text: String,
    width: Width,
}

impl Lines {
    /// A label, and what it names.
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
    fn a_record_says_all_and_fits() -> Result<(), String> {
        let place = Namespace { store: "redis://h:6379".into(), prefix: "dlock:".into() };
        for view in views()? {
            let whole = record(&view, &place, Width::Endless, Coloured::No);
            println!("{whole}");
            assert!(!whole.contains(|c: char| c != '\n' && crate::output::escape::acts(c)));
            for part in ["redis://h:6379", "dlock:"] {
                assert!(whole.contains(part), "{whole}");
            }
            for columns in [20, 60, 80, 100] {
                let text = record(&view, &place, Width::Columns(columns), Coloured::No);
                assert!(text.lines().all(|line| width(line) <= columns) || !view.is_used(), "{text}");
            }
        }
        let views = views()?;
        let whole = record(&views[0], &place, Width::Endless, Coloured::No);
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
        let unused = record(&views[4], &place, Width::Endless, Coloured::No);
        assert_eq!(unused, "free was never used, under the prefix dlock: in redis://h:6379\n");
        assert!(place.empty(&["a*", "b?"]).contains("no lock like a* or b? is held"));
        Ok(())
    }
}

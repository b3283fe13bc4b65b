//! The output of `dlock status` for several locks: one row for each lock, and one more for each
//! further holder. On a terminal the table fits the width: less important columns are left out. KEY
//! and HOLDER are never cut: if they do not fit side by side, they are above and below the row. A
//! long key is above its row, so that it takes no room of other rows. Rows of one lock show common
//! values once. A pipe gets everything, and each row in full. Text from the store is escaped cell by
//! cell. `record` shows a single lock.

use super::columns::{Width, broken, fitted, padded, spaces, width};
use super::history::how;
use super::owner::{self, because, left_behind};
use super::time::{local, span};
use super::{Coloured, describe, escaped};
use crate::lock::Mode;
use crate::rules::{Holder, LoggedEnd, Pause, State};
use crate::store::View;

const HEAD: [&str; 9] = ["KEY", "STATE", "MODE", "HOLDER", "SINCE", "LEFT", "WAITING", "LAST RUN", "COMMAND"];
const KEY: usize = 0;
const STATE: usize = 1;
/// Not shown if every lock is exclusive, as most are.
const MODE: usize = 2;
const HOLDER: usize = 3;
const SINCE: usize = 4;
const LEFT: usize = 5;
const WAITING: usize = 6;
const LAST_RUN: usize = 7;
/// The last column, and the only one that is ever cut.
const COMMAND: usize = 8;

/// The usual mode. If there is no other, the column is not shown.
const EXCLUSIVE: &str = "exclusive";
/// The text of an empty cell.
const NOTHING: &str = "-";

/// The columns that all rows of a lock share.
const COMMON: [usize; 4] = [KEY, STATE, WAITING, LAST_RUN];

const GAP: usize = 2;
/// Indent of what is below a key.
const INDENT: usize = 2;

/// What a narrow terminal leaves out, in this order.
const OMITTED: [usize; 7] = [LAST_RUN, COMMAND, WAITING, SINCE, MODE, LEFT, STATE];
/// COMMAND is not cut to fewer columns than this.
const COMMAND_LEAST: usize = 12;
/// On a terminal with fewer columns SINCE shows no age.
const AGE_FROM: usize = 100;

type Cells = [String; HEAD.len()];

/// The table, with a line end after each row.
pub fn status(views: &[View], width: Width, coloured: Coloured) -> String {
    table(views, |view| lock(view, width), width, coloured)
}

/// The table with the last success of each lock whose last run did not succeed.
pub fn all(views: &[View], width: Width, coloured: Coloured) -> String {
    let rows = |view: &View| {
        let mut rows = lock(view, width);
        let is_success = view.log.first().is_some_and(LoggedEnd::is_success);
        if let (Some(ended), Some(row), false) = (view.stat.last_success, rows.first_mut(), is_success) {
            let ago = std::time::Duration::from_millis(view.now.saturating_sub(ended));
            row[LAST_RUN].push_str(&format!("; ok {} ago", span(ago)));
        }
        rows
    };
    table(views, rows, width, coloured)
}

/// A line for each lock that is overdue, with its last run.
pub fn overdue(views: &[View]) -> String {
    let line = |view: &View| {
        let run = view.log.first().map_or_else(
            || "no run on record".into(),
            |end| format!("last run {}, by {}", last(end, view.now), owner::who(&end.owner)),
        );
        let (key, what) = (view.name.key(), describe::expected(view).unwrap_or_default());
        escaped(&format!("{key} is {what}; {run}")).into_owned() + "\n"
    };
    views.iter().map(line).collect()
}

/// Lines for the pauses that the table has no room for, with actor and reason.
fn pauses(views: &[View], table: &str, width: Width) -> String {
    let Width::Columns(columns) = width else { return String::new() };
    let lacking = views.iter().filter(|view| paused(view).is_some_and(|paused| !table.contains(&paused)));
    let lines = lacking.filter_map(describe::pause).flat_map(|line| broken(line.trim_end(), columns));
    lines.map(|line| line + "\n").collect()
}

/// A pause as the table shows it, with actor and reason.
fn paused(view: &View) -> Option<String> {
    let Pause { by, .. } = view.paused.as_ref()?;
    Some(escaped(&format!("paused by {}{}", owner::who(by), because(by))).into_owned())
}

/// The table with these rows for each lock, and the pauses that it has no room for.
fn table(views: &[View], rows_of: impl Fn(&View) -> Vec<Cells>, width: Width, coloured: Coloured) -> String {
    let mut rows = vec![HEAD.map(String::from)];
    for view in views {
        rows.extend(rows_of(view));
    }
    let layout = Layout::of(&rows, width);
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        for line in layout.lines(row, if at == 0 { Coloured::No } else { coloured }) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    let pauses = pauses(views, &text, width);
    text + &pauses
}

struct Layout {
    /// The widths of the columns side by side; 0 for the others.
    widths: [usize; HEAD.len()],
    /// KEY is above each row, and HOLDER below it.
    is_apart: bool,
    /// A longer key is on a line above its row.
    longest_key: usize,
    columns: usize,
}

impl Layout {
    fn of(rows: &[Cells], width: Width) -> Self {
        let Width::Columns(columns) = width else {
            let (widths, most) = (natural_widths(rows, usize::MAX), usize::MAX);
            return Self { widths, is_apart: false, longest_key: most, columns: most };
        };
        let longest_key = columns / 2;
        let mut widths = natural_widths(rows, longest_key);
        let is_apart = total(&[widths[KEY], widths[STATE], widths[HOLDER]]) > columns;
        if is_apart {
            (widths[KEY], widths[HOLDER]) = (0, 0);
        }
        let room = columns.saturating_sub(if is_apart { INDENT } else { 0 });
        let whole_command = widths[COMMAND];
        widths[COMMAND] = whole_command.min(COMMAND_LEAST);
        for column in OMITTED {
            if total(&widths) > room {
                widths[column] = 0;
            }
        }
        if widths[COMMAND] > 0 {
            let free = room - total(&widths);
            widths[COMMAND] = whole_command.min(widths[COMMAND] + free);
        }
        Self { widths, is_apart, longest_key: if is_apart { 0 } else { longest_key }, columns }
    }

    fn lines(&self, cells: &Cells, coloured: Coloured) -> Vec<String> {
        let is_key_above = width(&cells[KEY]) > self.longest_key;
        let apart = |column: usize, indent: usize| {
            let pieces = broken(&cells[column], self.columns.saturating_sub(indent));
            pieces.into_iter().map(move |piece| padded("", indent) + &piece)
        };
        let mut lines = Vec::new();
        if is_key_above {
            lines.extend(apart(KEY, 0));
        }
        let mut line = padded("", if self.is_apart { INDENT } else { 0 });
        for (column, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            if width == 0 {
                continue;
            }
            let cell = if column == KEY && is_key_above { String::new() } else { fitted(cell, width) };
            let on = if column == STATE { colour(&cell) } else { None };
            line.push_str(&coloured.paint(&cell, on));
            line.push_str(&spaces(width.saturating_sub(self::width(&cell)) + GAP));
        }
        lines.extend(Some(line).filter(|line| !line.trim().is_empty()));
        if self.is_apart {
            lines.extend(apart(HOLDER, 2 * INDENT));
        }
        lines
    }
}

/// The width of these columns side by side.
fn total(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0).count();
    widths.iter().sum::<usize>() + GAP * shown.saturating_sub(1)
}

/// The width of each column if nothing is cut; 0 if it is not shown.
fn natural_widths(rows: &[Cells], longest_key: usize) -> [usize; HEAD.len()] {
    let mut widths = [0; HEAD.len()];
    for row in rows {
        for (column, (most, cell)) in widths.iter_mut().zip(row).enumerate() {
            if column != KEY || width(cell) <= longest_key {
                *most = width(cell).max(*most);
            }
        }
    }
    // A column of which no row has anything is not shown, in a pipe neither.
    for column in MODE..HEAD.len() {
        let usual = if column == MODE { EXCLUSIVE } else { NOTHING };
        if rows[1..].iter().all(|row| ["", NOTHING, usual].contains(&&*row[column])) {
            widths[column] = 0;
        }
    }
    widths
}

pub(super) fn colour(state: &str) -> Option<&'static str> {
    match state {
        "held" => Some("\x1b[32m"),
        "cooling" => Some("\x1b[33m"),
        "revoked" => Some("\x1b[31m"),
        _ => None,
    }
}

fn lock(view: &View, width: Width) -> Vec<Cells> {
    let mut rows = vec![row(view, view.holders.first(), width)];
    rows.extend(view.holders.iter().skip(1).map(|holder| row(view, Some(holder), width)));
    if width != Width::Endless {
        for row in &mut rows[1..] {
            for column in COMMON {
                row[column].clear();
            }
        }
    }
    rows
}

/// The row of one holder of a lock, or of a lock without a holder.
fn row(view: &View, holder: Option<&Holder>, width: Width) -> Cells {
    let dash = || NOTHING.to_owned();
    let mode = match (view.mode, holder.and_then(|holder| holder.slot)) {
        (Some(Mode::Slots(slots)), Some(slot)) => format!("slot {slot}/{slots}"),
        (Some(mode), _) => mode.to_string(),
        (None, _) => dash(),
    };
    let who = match (holder, &view.foreign) {
        (Some(holder), _) => owner::cell(&holder.owner),
        (None, Some(foreign)) => escaped(&format!("not dlock ({})", foreign.kind)).into_owned(),
        (None, None) if !view.is_used() => "never used".into(),
        (None, None) => dash(),
    };
    let since = holder.map_or_else(dash, |holder| {
        let since = local(holder.since, view.now);
        match width {
            Width::Columns(..AGE_FROM) => since,
            _ => format!("{since} ({})", span(holder.held)),
        }
    });
    // With several holders, each has its own end, and the lock is free when the last one ends.
    let left = match holder {
        Some(holder) if view.holders.len() > 1 => Some(holder.lease),
        _ => view.left,
    };
    let left = match (view.state, left) {
        (State::Free, _) => dash(),
        (_, Some(left)) if holder.is_some_and(Holder::is_stale) => format!("{}, stale", span(left)),
        (_, Some(left)) => span(left),
        (_, None) => "no end".into(),
    };
    let command = match (holder, paused(view)) {
        (Some(Holder { owner, .. }), paused) => {
            let paused = paused.map(|paused| format!("; {paused}")).unwrap_or_default();
            format!("{}{}{}{paused}", owner.command, left_behind(owner), because(owner))
        }
        (None, Some(paused)) => paused,
        (None, None) if view.overdue() == Some(true) => describe::expected(view).unwrap_or_default(),
        (None, None) => dash(),
    };
    [
        escaped(view.name.key()).into_owned(),
        view.state.word().into(),
        mode,
        who,
        since,
        left,
        if view.waiters.is_empty() { dash() } else { view.waiters.len().to_string() },
        view.log.first().map_or_else(dash, |end| last(end, view.now)),
        escaped(&command).into_owned(),
    ]
}

/// The last end: how the run ended, how long ago, and how long it ran.
pub(super) fn last(end: &LoggedEnd, now: u64) -> String {
    let ms = std::time::Duration::from_millis;
    let (ago, ran) = (now.saturating_sub(end.ended), end.ended.saturating_sub(end.since));
    format!("{} {} ago, ran {}", how(end), span(ms(ago)), span(ms(ran)))
}

#[cfg(test)]
pub(super) mod tests;

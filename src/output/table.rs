//! The output of `dlock status` for several locks: one row for each lock, and one more for each
//! further holder. On a terminal the table fits the width: KEY and HOLDER are never cut, less
//! important columns are left out, and if the two do not fit side by side they are on separate
//! lines. A key much longer than the others is on a line above its row, so that it takes no room of
//! other rows. Rows of one lock show common values once. A pipe gets everything, and each row in
//! full. Text from the store is escaped cell by cell. `record` shows a single lock.

use super::columns::{Width, broken, fitted, padded, spaces, width};
use super::history::how;
use super::owner::{self, because};
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
const OMISSIONS: [Omission; 11] = [
    Omission::CommandBeyond(12),
    Omission::Column(LAST_RUN),
    Omission::HowLong,
    Omission::IfIdle(WAITING),
    Omission::CommandBeyond(8),
    Omission::Column(COMMAND),
    Omission::Column(WAITING),
    Omission::Column(SINCE),
    Omission::Column(MODE),
    Omission::Column(LEFT),
    // STATE is left out last. Before that, the layout begins anew with KEY, and then also HOLDER,
    // on separate lines, which makes room for columns that were left out.
    Omission::Column(STATE),
];

enum Omission {
    /// The end of the command, but not its first columns.
    CommandBeyond(usize),
    /// The age in SINCE.
    HowLong,
    /// A column, if all its cells are empty.
    IfIdle(usize),
    Column(usize),
}

/// The cells of a row, and the shorter form of SINCE.
#[derive(Default)]
struct Row {
    cells: [String; HEAD.len()],
    since: String,
}

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
            row.cells[LAST_RUN].push_str(&format!("; ok {} ago", span(ago)));
        }
        rows
    };
    table(views, rows, width, coloured)
}

/// The table with these rows for each lock, and the pauses that it has no room for.
fn table(views: &[View], rows: impl Fn(&View) -> Vec<Row>, width: Width, coloured: Coloured) -> String {
    let text = lay_out(views, rows, width, coloured);
    let pauses = pauses(views, &text, width);
    text + &pauses
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

fn lay_out(views: &[View], rows_of: impl Fn(&View) -> Vec<Row>, width: Width, coloured: Coloured) -> String {
    let head = Row { cells: HEAD.map(String::from), since: HEAD[SINCE].into() };
    let mut rows = vec![head];
    for view in views {
        rows.extend(rows_of(view));
    }
    let layout = Layout::of(&rows, width);
    let mut text = String::new();
    for (at, row) in rows.into_iter().enumerate() {
        for line in layout.lines(row, if at == 0 { Coloured::No } else { coloured }) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

struct Layout {
    /// The widths of the columns side by side; 0 for the others.
    widths: [usize; HEAD.len()],
    is_since_short: bool,
    /// The columns on separate lines: KEY above the others, HOLDER below.
    apart: &'static [usize],
    /// A longer key is on a line above its row.
    longest_key: usize,
    columns: usize,
}

impl Layout {
    fn of(rows: &[Row], width: Width) -> Self {
        let Width::Columns(columns) = width else {
            let widths = natural_widths(rows, false, usize::MAX);
            let (longest_key, columns) = (usize::MAX, usize::MAX);
            return Self { widths, is_since_short: false, apart: &[], longest_key, columns };
        };
        let apart: [&'static [usize]; 3] = [&[], &[KEY], &[KEY, HOLDER]];
        let fits = apart.into_iter().find_map(|apart| Self::fitting(rows, columns, apart));
        fits.unwrap_or(Self {
            widths: [0; HEAD.len()],
            is_since_short: true,
            apart: &[KEY, HOLDER],
            longest_key: 0,
            columns,
        })
    }

    /// The layout with these columns on separate lines, if the required columns fit.
    fn fitting(rows: &[Row], columns: usize, apart: &'static [usize]) -> Option<Self> {
        let room = if apart.is_empty() { columns } else { columns.checked_sub(INDENT)? };
        let mut least_of_command = usize::MAX;
        let longest_key = longest_key(rows, columns);
        let widths = natural_widths(rows, false, longest_key);
        let mut layout = Self { widths, is_since_short: false, apart, longest_key, columns };
        apart.iter().for_each(|column| layout.widths[*column] = 0);
        let mut omissions = OMISSIONS.iter();
        loop {
            let command = layout.widths[COMMAND];
            let shown = layout.widths.iter().filter(|width| **width > 0).count();
            let total = layout.widths.iter().sum::<usize>() + GAP * shown.saturating_sub(1);
            let fixed = total - command;
            if fixed + command.min(least_of_command) <= room {
                layout.widths[COMMAND] = command.min(room - fixed);
                return Some(layout);
            }
            let shows =
                |column: usize| rows[1..].iter().any(|row| !["", NOTHING].contains(&&*row.cells[column]));
            match omissions.next()? {
                Omission::CommandBeyond(least) => least_of_command = *least,
                Omission::HowLong => {
                    layout.is_since_short = true;
                    layout.widths[SINCE] =
                        layout.widths[SINCE].min(natural_widths(rows, true, longest_key)[SINCE]);
                }
                Omission::IfIdle(column) if shows(*column) => {}
                // Before STATE is left out, more columns go to separate lines.
                Omission::Column(STATE) if apart.len() < 2 => return None,
                Omission::IfIdle(column) | Omission::Column(column) => layout.widths[*column] = 0,
            }
        }
    }

    fn lines(&self, row: Row, coloured: Coloured) -> Vec<String> {
        let Row { mut cells, since } = row;
        if self.is_since_short {
            cells[SINCE] = since;
        }
        let is_long = width(&cells[KEY]) > self.longest_key;
        let below = |column: usize, indent: usize| {
            let is_apart = self.apart.contains(&column) || column == KEY && is_long;
            let is_apart = is_apart && !cells[column].is_empty();
            let lines = if is_apart {
                broken(&cells[column], self.columns.saturating_sub(indent))
            } else {
                Vec::new()
            };
            lines.into_iter().map(move |line| padded("", indent) + &line)
        };
        let mut line = if self.apart.is_empty() { String::new() } else { padded("", INDENT) };
        for (column, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            if width == 0 {
                continue;
            }
            let cell = if column == KEY && is_long { String::new() } else { fitted(cell, width) };
            let on = if column == STATE { colour(&cell) } else { None };
            line.push_str(&coloured.paint(&cell, on));
            line.push_str(&spaces(width.saturating_sub(self::width(&cell)) + GAP));
        }
        let beside = Some(line).filter(|line| !line.trim().is_empty());
        below(KEY, 0).chain(beside).chain(below(HOLDER, 2 * INDENT)).collect()
    }
}

/// The longest key that is shown in its column: two fifths of the terminal, or twice the median key
/// if that is more.
fn longest_key(rows: &[Row], columns: usize) -> usize {
    let keys = rows[1..].iter().map(|row| width(&row.cells[KEY]));
    let mut keys: Vec<usize> = keys.filter(|width| *width > 0).collect();
    keys.sort_unstable();
    let median = keys.get(keys.len().saturating_sub(1) / 2).copied().unwrap_or(0);
    (columns * 2 / 5).max(2 * median)
}

/// The width of each column if nothing is cut; 0 if it is not shown.
fn natural_widths(rows: &[Row], is_since_short: bool, longest_key: usize) -> [usize; HEAD.len()] {
    let mut widths = [0; HEAD.len()];
    for row in rows {
        for (column, (most, cell)) in widths.iter_mut().zip(&row.cells).enumerate() {
            let cell = if column == SINCE && is_since_short { &row.since } else { cell };
            if column == KEY && width(cell) > longest_key {
                continue;
            }
            *most = width(cell).max(*most);
        }
    }
    let mut modes = rows[1..].iter().map(|row| row.cells[MODE].as_str());
    if modes.all(|mode| ["", NOTHING, EXCLUSIVE].contains(&mode)) {
        widths[MODE] = 0;
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

fn lock(view: &View, width: Width) -> Vec<Row> {
    let mut rows = vec![row(view, view.holders.first())];
    rows.extend(view.holders.iter().skip(1).map(|holder| row(view, Some(holder))));
    if width != Width::Endless {
        for row in &mut rows[1..] {
            for column in COMMON {
                row.cells[column].clear();
            }
        }
    }
    rows
}

/// The row of one holder of a lock, or of a lock without a holder.
fn row(view: &View, holder: Option<&Holder>) -> Row {
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
    let since = holder.map_or_else(dash, |holder| local(holder.since, view.now));
    let since_ago = holder.map_or_else(dash, |holder| format!("{since} ({})", span(holder.held)));
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
        (Some(Holder { owner, .. }), None) => format!("{}{}", owner.command, because(owner)),
        (Some(Holder { owner, .. }), Some(paused)) => {
            format!("{}{}; {paused}", owner.command, because(owner))
        }
        (None, paused) => paused.unwrap_or_else(dash),
    };
    let cells = [
        escaped(view.name.key()).into_owned(),
        view.state.word().into(),
        mode,
        who,
        since_ago,
        left,
        if view.waiters.is_empty() { dash() } else { view.waiters.len().to_string() },
        view.log.first().map_or_else(dash, |end| last(end, view.now)),
        escaped(&command).into_owned(),
    ];
    Row { cells, since }
}

/// The last end: how the run ended, how long ago, and how long it ran.
pub(super) fn last(end: &LoggedEnd, now: u64) -> String {
    let ms = std::time::Duration::from_millis;
    let (ago, ran) = (now.saturating_sub(end.ended), end.ended.saturating_sub(end.since));
    format!("{} {} ago, ran {}", how(end), span(ms(ago)), span(ms(ran)))
}

#[cfg(test)]
pub(super) mod tests;

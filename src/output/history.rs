//! The output of `dlock history` for people: a plain table in a pipe, never cut; on a terminal one
//! row for each run, with a bar (see [`axis`]). All times are the store's. A time axis ends with
//! the newest end, not now, so that runs of long ago are still told apart. A key or holder too long
//! for its column gets its own line.

use super::columns::{broken, fitted, spaces, width};
use super::owner::{self, because, cell};
use super::time::{self, span};
use super::{Coloured, escaped};
use crate::exit::Ended;
use crate::lock::Owner;
use crate::rules::{LoggedEnd, Outcome, Refusal, Why};
use axis::Axis;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

mod axis;

/// How a hold ended, in a word or two.
pub fn how(end: &LoggedEnd) -> String {
    match (end.outcome, end.job) {
        (Outcome::Released, Some(Ended::Code(0))) => "ok".into(),
        (Outcome::Released, Some(Ended::Code(status))) => format!("exit {status}"),
        (Outcome::Released, Some(Ended::Signal(signal))) => format!("signal {signal}"),
        _ => end.word().into(),
    }
}

pub fn colour(outcome: Outcome, job: Option<Ended>) -> Option<&'static str> {
    match (outcome, job) {
        (Outcome::Released, Some(Ended::Code(0))) => Some("\x1b[32m"),
        (Outcome::Released, Some(_)) => Some("\x1b[31m"),
        (Outcome::Released, None) => None,
        (Outcome::Timeout, _) => Some("\x1b[31m"),
        (Outcome::Crashed | Outcome::Expired | Outcome::Lost, _) => Some("\x1b[35m"),
        (Outcome::Stopped | Outcome::Superseded | Outcome::Forced, _) => Some("\x1b[33m"),
    }
}

/// The text in the colour of an end.
fn painted(text: &str, end: &LoggedEnd, coloured: Coloured) -> String {
    coloured.paint(text, colour(end.outcome, end.job))
}

fn held(end: &LoggedEnd) -> String {
    span(Duration::from_millis(end.ended.saturating_sub(end.since)))
}

fn waited(end: &LoggedEnd) -> String {
    if end.waited == 0 { "-".into() } else { span(Duration::from_millis(end.waited)) }
}

fn command(end: &LoggedEnd) -> String {
    let during = if end.during_pause { "during a pause: " } else { "" };
    escaped(&format!("{during}{}{}", end.owner.command, because(&end.owner))).into_owned()
}

/// Who asked for the end or took the lock away, and why.
fn ended_by(end: &LoggedEnd) -> String {
    end.by.as_ref().map_or_else(|| "-".into(), |by| format!("{}{}", cell(by), escaped(&because(by))))
}

/// The columns that are never cut.
const WHOLE: [&str; 2] = ["KEY", "HOLDER"];

const ENDED_BY: &str = "ENDED BY";

/// One column: head, cells and width. A column of width 0 is not shown.
struct Column {
    head: &'static str,
    cells: Vec<String>,
    width: usize,
}

impl Column {
    /// The key of each end, if there are several keys.
    fn of_keys(keys: Option<&[String]>) -> Option<Self> {
        Some(Self::of_cells("KEY", keys?.iter().map(|key| escaped(key).into_owned()).collect()))
    }

    /// How each run ended, and whether it counts for `--once-per`.
    fn of_ends(log: &[LoggedEnd], counts: &[bool]) -> Self {
        let mark = |at| if counts.get(at) == Some(&true) { ", counts" } else { "" };
        Self::of_cells("END", log.iter().enumerate().map(|(at, end)| how(end) + mark(at)).collect())
    }

    fn new(head: &'static str, log: &[LoggedEnd], text: impl Fn(&LoggedEnd) -> String) -> Self {
        Self::of_cells(head, log.iter().map(text).collect())
    }

    fn of_cells(head: &'static str, cells: Vec<String>) -> Self {
        let width = cells.iter().map(|cell| width(cell)).chain([head.len()]).max().unwrap_or(0);
        Self { head, cells, width }
    }

    /// Sets the width to the widest cell that fits in `room`. Wider cells get their own lines.
    fn within(self, room: usize) -> Self {
        let least = self.head.len();
        let widest =
            self.cells.iter().map(|cell| width(cell).max(least)).filter(|width| *width <= room).max();
        Self { width: widest.unwrap_or(0), ..self }
    }

    /// The cell of a row if it does not fit and must not be cut.
    fn own_line(&self, row: usize) -> Option<&str> {
        let cell = &self.cells[row];
        (WHOLE.contains(&self.head) && width(cell) > self.width).then_some(cell)
    }
}

/// The width of all columns with the gap after each.
fn total_width(shown: &[Column]) -> usize {
    shown.iter().filter(|column| column.width > 0).map(|column| column.width + GAP).sum()
}

/// An entry of a lock's history.
#[derive(Debug, Clone)]
pub enum HistoryEntry {
    /// With the time until which it counts for `--once-per`.
    End(LoggedEnd, Option<u64>),
    Refusal(Refusal),
}

impl HistoryEntry {
    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::End(..) => None,
            Self::Refusal(refusal) => Some(refusal),
        }
    }

    /// When the hold ended or the request was refused, by the store's clock.
    pub fn at(&self) -> u64 {
        match self {
            Self::End(end, _) => end.ended,
            Self::Refusal(refusal) => refusal.at,
        }
    }
}

/// Why a lock was refused, as a clause.
pub fn why(refusal: &Refusal) -> String {
    let by = |what: &str, unknown: &str| match &refusal.by {
        Some(by) => format!("{what} {}{}", owner::who(by), because(by)),
        None => unknown.into(),
    };
    match refusal.why {
        Why::Busy => by("busy: held by", "busy"),
        Why::GaveUp => {
            let waited = span(Duration::from_millis(refusal.waited));
            format!("gave up after {waited}: {}", by("held by", "busy"))
        }
        Why::QueueFull => by("the queue was full: held by", "the queue was full"),
        Why::Interrupted => {
            let waited = span(Duration::from_millis(refusal.waited));
            by(
                &format!("interrupted after {waited} of waiting: held by"),
                &format!("interrupted after {waited} of waiting"),
            )
        }
        Why::Behind => refusal
            .by
            .as_ref()
            .map_or_else(|| "busy".into(), |by| format!("busy: {} already waited", owner::who(by))),
        Why::Done => by("already done by", "already done"),
        Why::Paused => by("paused by", "paused"),
        Why::Superseded => by("superseded by a newer run of", "superseded by a newer run"),
    }
}

/// A refusal as a line between the ends.
pub fn refused(key: Option<&str>, refusal: &Refusal, now: Option<u64>) -> String {
    let at = now.map_or_else(|| time::whole(refusal.at), |now| time::local(refusal.at, now));
    let key = key.map(|key| format!(" {key}:")).unwrap_or_default();
    let Owner { command, .. } = &refusal.owner;
    escaped(&format!("{at}  refused {}{key} {}: {command}", owner::who(&refusal.owner), why(refusal)))
        .into_owned()
}

/// The refusals between two rows as one line, newest first. A single one is shown in full; several
/// as one tick each, with their number, times and owners.
pub fn ticks(key: Option<&str>, refusals: &[&Refusal], now: u64, columns: usize) -> String {
    const NAMED: usize = 3;
    let line = match refusals {
        [one] => refused(key, one, Some(now)),
        all => {
            let [first, last] = [all.last(), all.first()].map(|one| one.map_or(now, |one| one.at));
            let [from, to] = [first, last].map(|at| time::local(at, now));
            let when = if from == to { from } else { format!("{from} to {to}") };
            let mut counts = BTreeMap::<&str, usize>::new();
            let mut people = BTreeSet::new();
            for one in all {
                *counts.entry(one.why.word()).or_default() += 1;
                people.insert(escaped(&format!("{}@{}", one.owner.user, one.owner.host)).into_owned());
            }
            let why =
                counts.iter().map(|(why, count)| format!("{count} {why}")).collect::<Vec<_>>().join(", ");
            let key = key.map(|key| format!(" {key}")).unwrap_or_default();
            let more = people.len().checked_sub(NAMED + 1).map(|more| format!(" and {} more", more + 1));
            let people = people.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            let ticks = "╵".repeat(all.len().min(columns / 8));
            format!("{when}  {ticks} refused{key} {why}: {people}{}", more.unwrap_or_default())
        }
    };
    fitted(&line, columns)
}

/// Puts the lines of refusals between the rows of the ends; the first row is the head. `lines_of`
/// makes these lines from the refusals of one key between two ends.
pub fn between(
    rows: Vec<String>,
    all: &[(String, HistoryEntry)],
    lines_of: impl Fn(&str, &[&Refusal]) -> String,
) -> String {
    let mut rows = rows.into_iter();
    let mut text = rows.next().unwrap_or_default();
    for group in
        all.chunk_by(|(key, one), (other, next)| one.refusal().and(next.refusal()).is_some() && key == other)
    {
        let refusals: Vec<&Refusal> = group.iter().filter_map(|(_, entry)| entry.refusal()).collect();
        match group {
            [(key, HistoryEntry::Refusal(_)), ..] => text.push_str(&(lines_of(key, &refusals) + "\n")),
            _ => text.push_str(&rows.next().unwrap_or_default()),
        }
    }
    text
}

const GAP: usize = 2;
/// The fewest columns on which an axis is useful.
const AXIS_MIN: usize = 12;

/// The ends as a picture, newest first, for a terminal of this many columns: the head, and the
/// lines of each end. `counts` marks those that count for `--once-per`. `now` is the store's clock.
pub fn picture(
    keys: Option<&[String]>,
    log: &[LoggedEnd],
    counts: &[bool],
    now: u64,
    columns: usize,
    coloured: Coloured,
) -> Vec<String> {
    let is_of_today = time::are_of_today(log.iter().map(|end| end.since), now);
    let started = Column::new("STARTED", log, |end| time::short(end.since, is_of_today));
    let mut shown = vec![started, Column::new("HELD", log, held), Column::of_ends(log, counts)];
    // A long key must not take the room of the rest.
    shown.splice(0..0, Column::of_keys(keys).map(|key| key.within((columns / 4).max(12))));
    let room = columns.saturating_sub(total_width(&shown) + GAP + AXIS_MIN);
    shown.push(Column::new("HOLDER", log, |end| cell(&end.owner)).within(room));
    // Two fifths of the width are for the bars. Optional columns are added while there is room.
    let mut room = columns.saturating_sub((columns * 2 / 5).max(AXIS_MIN) + total_width(&shown));
    let mut optional =
        vec![(Column::new("WAITED", log, waited), 6, 6), (Column::new("COMMAND", log, command), 12, 40)];
    if log.iter().any(|end| end.by.is_some()) {
        // Never cut: if it does not fit, it gets its own line.
        optional.insert(0, (Column::new(ENDED_BY, log, ended_by), usize::MAX, 40));
    }
    for (column, least, most) in optional {
        let width = column.width.min(most).min(room.saturating_sub(GAP));
        if width > 0 && width >= least.min(column.width) {
            room -= width + GAP;
            shown.push(Column { width, ..column });
        }
    }
    let axis = Some(columns.saturating_sub(total_width(&shown))).filter(|width| *width >= AXIS_MIN);
    let axis = axis.map(|width| Axis::of(log, width));

    draw(&shown, log, axis.as_ref(), columns, coloured)
}

/// The ends as a plain table, newest first: the head, and the line of each end.
pub fn table(keys: Option<&[String]>, log: &[LoggedEnd], counts: &[bool], coloured: Coloured) -> Vec<String> {
    let mut shown = vec![
        Column::new("STARTED", log, |end| time::whole(end.since)),
        Column::new("ENDED", log, |end| time::whole(end.ended)),
        Column::new("WAITED", log, waited),
        Column::new("HELD", log, held),
        Column::of_ends(log, counts),
        Column::new("HOLDER", log, |end| cell(&end.owner)),
        Column::new(ENDED_BY, log, ended_by),
        Column::new("COMMAND", log, command),
    ];
    shown.splice(0..0, Column::of_keys(keys));
    draw(&shown, log, None, usize::MAX, coloured)
}

fn draw(
    shown: &[Column],
    log: &[LoggedEnd],
    axis: Option<&Axis>,
    columns: usize,
    coloured: Coloured,
) -> Vec<String> {
    let beside: Vec<&Column> = shown.iter().filter(|column| column.width > 0).collect();
    let pad = |cell: &str, shown: &str, width: usize| {
        format!("{shown}{}", spaces(width.saturating_sub(self::width(cell)) + GAP))
    };
    let head: String = beside.iter().map(|column| pad(column.head, column.head, column.width)).collect();
    let mut rows = vec![vec![head + &axis.map(Axis::head).unwrap_or_default()]];
    let own_line = |head: &str, row: usize, indent: usize| -> Vec<String> {
        let cell = shown.iter().find(|column| column.head == head).and_then(|column| column.own_line(row));
        let cell = cell.unwrap_or_default();
        let pieces = if cell.is_empty() { vec![] } else { broken(cell, columns.saturating_sub(indent)) };
        pieces.into_iter().map(|piece| spaces(indent) + &piece).collect()
    };
    let has_ended_by = shown.iter().any(|column| column.head == ENDED_BY);
    let mut key_above = Vec::new();
    for (row, end) in log.iter().enumerate() {
        let key = own_line("KEY", row, 0);
        let mut lines = Vec::new();
        // Consecutive rows of the same key show it once.
        if key != key_above {
            lines.extend(key.iter().cloned());
            key_above = key;
        }
        let cells = beside.iter().map(|column| {
            let has_own_line = column.own_line(row).is_some();
            let cell = if has_own_line { String::new() } else { fitted(&column.cells[row], column.width) };
            let painted = if column.head == "END" { painted(&cell, end, coloured) } else { cell.clone() };
            pad(&cell, &painted, column.width)
        });
        let mut line: String = cells.collect();
        if let Some(bar) = axis.map(|axis| axis.bar(end)) {
            let ink = bar.trim_start_matches(' ');
            line.push_str(&format!("{}{}", spaces(width(&bar) - width(ink)), painted(ink, end, coloured)));
        }
        lines.push(line);
        lines.extend(own_line("HOLDER", row, 2 * GAP));
        if !has_ended_by && end.by.is_some() {
            let by = format!("ended by {}", ended_by(end));
            let pieces = broken(&by, columns.saturating_sub(2 * GAP));
            lines.extend(pieces.into_iter().map(|piece| spaces(2 * GAP) + &piece));
        }
        rows.push(lines);
    }
    let text = |lines: Vec<String>| lines.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    rows.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests;

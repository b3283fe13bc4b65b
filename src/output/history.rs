//! What does `dlock history` show to people? Into a pipe a plain table, never cut; on a terminal a picture: one row a
//! run, with a bar on a time axis that all rows share. All times are the store's own. The axis ends with the newest
//! end, not now, so that runs of long ago are still told apart.

use super::columns::{spaces, width};
use super::locale::Charset;
use super::owner::{because, cell};
use super::time::{self, span};
use super::{Coloured, escaped};
use crate::cli::Color;
use crate::exit::Ended;
use crate::law::{LoggedEnd, Outcome};
use axis::Axis;
use std::time::Duration;

mod axis;

#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub coloured: Coloured,
    pub charset: Charset,
}

impl Style {
    /// What stdout can show.
    pub fn of_stdout(color: Color) -> Self {
        Self { coloured: super::coloured(color), charset: Charset::of_environment() }
    }
}

/// How a hold ended, in a word or two.
pub fn how(end: &LoggedEnd) -> String {
    match (end.outcome, end.job) {
        (Outcome::Released, Some(Ended::Code(0))) => "ok".into(),
        (Outcome::Released, Some(Ended::Code(status))) => format!("exit {status}"),
        (Outcome::Released, Some(Ended::Signal(signal))) => format!("signal {signal}"),
        (Outcome::Released, None) => "ended".into(),
        (outcome, _) => outcome.word().into(),
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
fn painted(text: &str, end: &LoggedEnd, style: Style) -> String {
    style.coloured.paint(text, colour(end.outcome, end.job))
}

fn held(end: &LoggedEnd) -> String {
    span(Duration::from_millis(end.ended.saturating_sub(end.since)))
}

fn waited(end: &LoggedEnd) -> String {
    if end.waited == 0 { "-".into() } else { span(Duration::from_millis(end.waited)) }
}

fn command(end: &LoggedEnd) -> String {
    escaped(&format!("{}{}", end.owner.command, because(&end.owner))).into_owned()
}

/// One column of the picture: what it is called, what stands in it, and how wide it is.
struct Column {
    head: &'static str,
    cells: Vec<String>,
    width: usize,
}

impl Column {
    fn new(head: &'static str, log: &[LoggedEnd], text: impl Fn(&LoggedEnd) -> String) -> Self {
        let cells: Vec<String> = log.iter().map(text).collect();
        let width = cells.iter().map(|cell| width(cell)).chain([head.len()]).max().unwrap_or(0);
        Self { head, cells, width }
    }
}

const GAP: usize = 2;
/// The fewest columns on which an axis says something.
const AXIS_MIN: usize = 12;

/// The picture of these ends, the newest first, on a terminal with so many columns. `now` is the store's clock.
pub fn picture(log: &[LoggedEnd], now: u64, columns: usize, style: Style) -> String {
    let started =
        Column::new("STARTED", log, |end| time::short(end.since, log.iter().map(|end| end.since), now));
    let outcome = Column::new("END", log, how);
    let mut shown = vec![started, Column::new("HELD", log, held), outcome];
    // Two fifths of the width are the picture's own; what can be left out comes in as far as there is room.
    let mut room = columns.saturating_sub((columns * 2 / 5).max(AXIS_MIN));
    room = room.saturating_sub(shown.iter().map(|column| column.width + GAP).sum());
    let optional = [
        (Column::new("HOLDER", log, |end| cell(&end.owner)), 8, 30),
        (Column::new("WAITED", log, waited), 6, 6),
        (Column::new("COMMAND", log, command), 12, 40),
    ];
    for (column, least, most) in optional {
        let width = column.width.min(most).min(room.saturating_sub(GAP));
        if width >= least.min(column.width) {
            room -= width + GAP;
            shown.push(Column { width, ..column });
        }
    }
    let used: usize = shown.iter().map(|column| column.width + GAP).sum();
    let axis = Some(columns.saturating_sub(used)).filter(|width| *width >= AXIS_MIN);
    let axis = axis.map(|width| Axis::over(log, width, style.charset));

    drawn(&shown, log, axis.as_ref(), style)
}

/// The plain table of these ends, the newest first.
pub fn table(log: &[LoggedEnd], style: Style) -> String {
    let by = |end: &LoggedEnd| end.by.as_ref().map_or_else(|| "-".into(), cell);
    let shown = [
        Column::new("STARTED", log, |end| time::whole(end.since)),
        Column::new("ENDED", log, |end| time::whole(end.ended)),
        Column::new("WAITED", log, waited),
        Column::new("HELD", log, held),
        Column::new("END", log, how),
        Column::new("HOLDER", log, |end| cell(&end.owner)),
        Column::new("ENDED BY", log, by),
        Column::new("COMMAND", log, command),
    ];
    // A pipe gets the text as it is.
    drawn(&shown, log, None, Style { charset: Charset::Unicode, ..style })
}

fn drawn(shown: &[Column], log: &[LoggedEnd], axis: Option<&Axis>, style: Style) -> String {
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = String>, bar: Option<String>| {
        let line = cells.chain(bar).collect::<String>();
        text.push_str(line.trim_end());
        text.push('\n');
    };
    let pad = |cell: &str, shown: &str, width: usize| {
        format!("{shown}{}", spaces(width.saturating_sub(self::width(cell)) + GAP))
    };
    line(&mut shown.iter().map(|column| pad(column.head, column.head, column.width)), axis.map(Axis::head));
    for (row, end) in log.iter().enumerate() {
        let mut cells = shown.iter().map(|column| {
            let cell = style.charset.fitted(&column.cells[row], column.width);
            let painted = if column.head == "END" { painted(&cell, end, style) } else { cell.clone() };
            pad(&cell, &painted, column.width)
        });
        let bar = axis.map(|axis| {
            let bar = axis.bar(end);
            let ink = bar.trim_start_matches(' ');
            format!("{}{}", spaces(width(&bar) - width(ink)), painted(ink, end, style))
        });
        line(&mut cells, bar);
    }
    text
}

#[cfg(test)]
mod tests;

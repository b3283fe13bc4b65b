//! Decides when and where a waiting dlock prints. On a terminal it keeps one line that changes in
//! place; elsewhere the first line comes after ten seconds and then one a minute, so that a log
//! does not fill. The caller provides the text (from `busy` and `describe`), and calls
//! [`Line::go_on`] in time.
//!
//! While the line is shown, the cursor is at its start. A terminal that gets narrower may wrap the
//! line, and keeps the cursor at the same place in the text. So everything from the cursor on may
//! be erased, whether the terminal wrapped or cut it.

use super::columns::{Width, fitted, width};
use super::{Event, Kind, Printer, What, escaped, is_in_front, send};
use crate::cli::LogFormat;
use crate::clock::Moment;
use crate::rules::Holder;
use rustix::stdio::stderr;
use rustix::termios::{isatty, tcgetwinsize};
use std::time::Duration;

/// Time before the first line in a log.
const FIRST_AFTER: Duration = Duration::from_secs(10);

/// Time between two lines in a log.
const NEXT_AFTER: Duration = Duration::from_secs(60);

/// Time between two changes of the line on a terminal.
const TICK: Duration = Duration::from_secs(1);

/// The start of every message.
const HEAD: &str = "dlock: ";

/// Columns kept free at the end: some terminals wrap at the last column.
const MARGIN: usize = 1;

/// Assumed width of a terminal that does not report it.
const DEFAULT_COLUMNS: usize = 80;

/// Moves to the first column and erases the line.
const ERASE: &str = "\r\x1b[K";

/// The text of the line about waiting, and its fields for programs.
#[derive(Debug, Default)]
pub struct Said {
    pub text: String,
    pub key: String,
    /// The holder, or one of several holders.
    pub holder: Option<Holder>,
    /// Number of waiters ahead, if there is a queue.
    pub ahead: Option<u64>,
}

/// The line about waiting, and the messages beside it.
pub struct Line {
    printer: Printer,
    place: Medium,
    next: Moment,
    /// Whether the log says that this dlock waits, so that the end of the wait must be logged, too.
    announced: bool,
    text: Option<Box<dyn Fn(Width) -> Said>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// Nowhere: `--quiet`.
    Nowhere,
    /// A terminal without the line.
    Terminal,
    /// A terminal that shows the line, this many columns wide.
    Line(usize),
    /// A file, a pipe or a log.
    Log,
}

impl Line {
    /// For a wait that began at `since`.
    pub fn new(printer: &Printer, since: Moment) -> Self {
        let smart = || std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let (place, next) = if !printer.says(Kind::Note) {
            (Medium::Nowhere, since.after(Duration::MAX))
        } else if printer.format == LogFormat::Text && isatty(stderr()) && smart() {
            (Medium::Terminal, since)
        } else {
            (Medium::Log, since.after(FIRST_AFTER))
        };
        Self { printer: printer.clone(), place, next, announced: false, text: None }
    }

    /// Whether a log says that this dlock waits.
    pub fn has_announced(&self) -> bool {
        self.announced
    }

    /// Prints that dlock waits because of trouble that may pass.
    pub fn announce<'a>(&mut self, event: impl Into<Event<'a>>, text: &str) {
        self.say(Kind::Passing, event, text);
        self.announced |= self.place == Medium::Log;
    }

    /// Prints a message, and removes the line about waiting first.
    pub fn say<'a>(&mut self, kind: Kind, event: impl Into<Event<'a>>, text: &str) {
        self.clear();
        self.printer.say(kind, event, text);
    }

    /// When to print again; `None` before the first text.
    pub fn next(&self) -> Option<Moment> {
        self.text.as_ref().map(|_| self.next)
    }

    /// Called when the terminal's width has changed: redraws the line at once, if it is shown.
    pub fn resized(&mut self) {
        if let Medium::Line(_) = self.place {
            self.next = Moment::now();
        }
        self.go_on();
    }

    /// Sets the text from now on. Prints it when it is time.
    pub fn waits(&mut self, text: impl Fn(Width) -> Said + 'static) {
        self.text = Some(Box::new(text));
        self.go_on();
    }

    /// Prints the text if it is time.
    pub fn go_on(&mut self) {
        let Some(text) = self.text.as_ref().filter(|_| self.next.passed()) else { return };
        match self.place {
            Medium::Nowhere => {}
            Medium::Log => {
                let Said { text, key, holder, ahead } = text(Width::Endless);
                let event = Event { ahead, ..What::Waiting.into() };
                self.printer.say(Kind::Note, event.about(&key).held_by(holder.as_ref()), &text);
                self.announced = true;
                self.next = Moment::now().after(NEXT_AFTER);
            }
            Medium::Terminal | Medium::Line(_) => {
                // In the background the screen is not dlock's, and writing might stop dlock.
                if is_in_front(stderr()) {
                    let columns = columns();
                    let room = Width::Columns(columns.saturating_sub(HEAD.len() + MARGIN));
                    let line = fitting(&text(room).text, columns);
                    send(&format!("{}{line}\r", self.erase(columns)));
                    self.place = Medium::Line(width(&line));
                }
                self.next = Moment::now().after(TICK);
            }
        }
    }

    /// Removes the line from the terminal. Called before every other message, before CMD starts,
    /// and before dlock stops.
    pub fn clear(&mut self) {
        if let Medium::Line(_) = self.place {
            if is_in_front(stderr()) {
                send(&self.erase(columns()));
            }
            self.place = Medium::Terminal;
            self.next = Moment::now();
        }
    }

    /// The escape sequence that erases the shown line.
    fn erase(&self, columns: usize) -> String {
        match self.place {
            Medium::Line(length) if length > columns => erase_rows(length.div_ceil(columns)),
            _ => ERASE.into(),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Erases this row and the rows below that the line may occupy, row by row, and restores the
/// cursor. Erasing the screen from the first row on would make tmux copy it into its history.
fn erase_rows(rows: usize) -> String {
    format!("{ERASE}\x1b7{}\x1b8", "\x1b[B\x1b[K".repeat(rows - 1))
}

fn columns() -> usize {
    match tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col)) {
        0 => DEFAULT_COLUMNS,
        columns => columns,
    }
}

/// The line, short enough not to wrap.
fn fitting(text: &str, columns: usize) -> String {
    let line = format!("{HEAD}{}", escaped(text));
    fitted(&line, columns.saturating_sub(MARGIN).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Verbosity;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn line_is_cut_to_the_terminal() {
        assert_eq!(fitting("a\nb", 80), "dlock: a\\nb");
        for columns in [2, 20, 80] {
            assert_eq!(fitting(&"é".repeat(200), columns).chars().count(), columns - MARGIN);
        }
        assert_eq!(fitting("x", 1), "…");
    }

    #[test]
    fn first_line_in_a_log_is_delayed() {
        let quiet = Printer { format: LogFormat::Json, verbosity: Verbosity::Quiet, key: None, store: None };
        let printer = Printer { verbosity: Verbosity::Normal, ..quiet.clone() };
        let now = Moment::now();
        let mut waiter = Line::new(&printer, now);
        waiter.waits(|_| unreachable!("too early"));
        assert_eq!(waiter.next(), Some(now.after(FIRST_AFTER)));
        let spoken = Rc::new(Cell::new(false));
        let said = spoken.clone();
        let mut waiter = Line::new(&printer, now.before(FIRST_AFTER));
        waiter.waits(move |room| {
            assert_eq!(room, Width::Endless);
            said.set(true);
            Said { text: "waiting".into(), ..Said::default() }
        });
        assert!(spoken.get() && waiter.has_announced());
        assert!(waiter.next() > Some(Moment::now().after(NEXT_AFTER / 2)));
        let mut silent = Line::new(&quiet, now.before(FIRST_AFTER));
        silent.waits(|_| unreachable!("quiet"));
    }
}

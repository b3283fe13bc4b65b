//! When does a waiting dlock speak, and where? On a terminal it keeps one line that changes in place; elsewhere the first
//! line comes after ten seconds and then one a minute, so that a log does not fill. It decides when to speak, not when
//! to look: the caller hands in what it knows whenever it wakes. What is said is in `busy`.
//!
//! While the line stands, the cursor is at its beginning. A terminal that is made narrower may wrap what stands on it, and
//! keeps the cursor where it was in the text: so everything from there on is ours to wipe, whether it was wrapped or cut.

use super::columns::{split, width};
use super::{Kind, Printer, escaped, send};
use crate::cli::LogFormat;
use crate::clock::Moment;
use rustix::stdio::stderr;
use rustix::termios::{isatty, tcgetpgrp, tcgetwinsize};
use std::time::Duration;

/// How long a waiter that nobody watches stays silent.
const FIRST: Duration = Duration::from_secs(10);

/// The time between two lines that nobody watches.
const THEN: Duration = Duration::from_secs(60);

/// The time between two changes of the line on a terminal.
const TICK: Duration = Duration::from_secs(1);

/// What every message begins with.
const HEAD: &str = "dlock: ";

/// What is kept free at the end: in the last column some terminals wrap.
const MARGIN: usize = 1;

/// The width of a terminal that does not tell.
const USUAL: usize = 80;

/// Back to the first column, and nothing right of it.
const WIPE: &str = "\r\x1b[K";

/// How much may be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// As much as there is to say.
    Endless,
    Columns(usize),
}

/// The voice of a waiter.
#[derive(Debug)]
pub struct Waiter {
    printer: Printer,
    place: Medium,
    next: Moment,
    announced: Announced,
}

/// Whether a log says that somebody waits, so that it should also say when that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announced {
    No,
    Yes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// Nowhere: `--quiet`.
    Nowhere,
    /// On a terminal, where a line may stand.
    Terminal,
    /// The same, and a line of so many columns stands.
    Line(usize),
    /// Into a file, a pipe or a log.
    Log,
}

impl Waiter {
    /// A waiter that came to wait at `since`.
    pub fn new(printer: &Printer, since: Moment) -> Self {
        let smart = || std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let (place, next) = if !printer.says(Kind::Note) {
            (Medium::Nowhere, since.after(Duration::MAX))
        } else if printer.format == LogFormat::Text && isatty(stderr()) && smart() {
            (Medium::Terminal, since)
        } else {
            (Medium::Log, since.after(FIRST))
        };
        Self { printer: printer.clone(), place, next, announced: Announced::No }
    }

    /// Whether it has said somewhere, where it stays, that it waits.
    pub fn has_announced(&self) -> bool {
        self.announced == Announced::Yes
    }

    /// Somebody else has said so.
    pub fn announce(&mut self) {
        if self.place == Medium::Log {
            self.announced = Announced::Yes;
        }
    }

    /// When there will be something to say again.
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Has the line said again at once, if it stands.
    pub fn hurry(&mut self) {
        if let Medium::Line(_) = self.place {
            self.next = Moment::now();
        }
    }

    /// Says it, if it is time; `text` is asked for only then.
    pub fn say(&mut self, text: impl FnOnce(Room) -> String) {
        if !self.next.passed() {
            return;
        }
        match self.place {
            Medium::Nowhere => {}
            Medium::Log => {
                self.printer.say(Kind::Note, &text(Room::Endless));
                self.announced = Announced::Yes;
                self.next = Moment::now().after(THEN);
            }
            Medium::Terminal | Medium::Line(_) => {
                // In the background the screen is somebody else's, and writing might stop dlock.
                if in_front() {
                    let columns = columns();
                    let room = Room::Columns(columns.saturating_sub(HEAD.len() + MARGIN));
                    let line = fitting(&text(room), columns);
                    send(&format!("{}{line}\r", self.wipe(columns)));
                    self.place = Medium::Line(width(&line));
                }
                self.next = Moment::now().after(TICK);
            }
        }
    }

    /// Takes the line off the terminal. Before every other message, before CMD starts, and before dlock stops.
    pub fn clear(&mut self) {
        if let Medium::Line(_) = self.place {
            if in_front() {
                send(&self.wipe(columns()));
            }
            self.place = Medium::Terminal;
            self.next = Moment::now();
        }
    }

    /// What takes away the line that stands.
    fn wipe(&self, columns: usize) -> String {
        match self.place {
            Medium::Line(length) if length > columns => wipe_rows(length.div_ceil(columns)),
            _ => WIPE.into(),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whether the terminal is this process group's.
fn in_front() -> bool {
    tcgetpgrp(stderr()) == Ok(rustix::process::getpgrp())
}

/// Wipes this row and those below it that the line may take now. Row by row, and then back to where the cursor was: to
/// erase the screen from here on would, in the first row, have tmux keep all of it in its history.
fn wipe_rows(rows: usize) -> String {
    format!("{WIPE}\x1b7{}\x1b8", "\x1b[B\x1b[K".repeat(rows - 1))
}

/// The width of the terminal.
fn columns() -> usize {
    match tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col)) {
        0 => USUAL,
        columns => columns,
    }
}

/// The line, short enough not to wrap.
fn fitting(text: &str, columns: usize) -> String {
    let line = format!("{HEAD}{}", escaped(text));
    let most = columns.saturating_sub(MARGIN).max(1);
    if width(&line) <= most {
        return line;
    }
    format!("{}…", split(&line, most - 1).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Verbosity;

    #[test]
    fn a_line_fits() {
        assert_eq!(fitting("a\nb", 80), "dlock: a\\nb");
        for columns in [2, 20, 80] {
            assert_eq!(fitting(&"é".repeat(200), columns).chars().count(), columns - MARGIN);
        }
        assert_eq!(fitting("x", 1), "…");
    }

    #[test]
    fn the_first_line_in_a_log_comes_after_a_while() {
        let quiet = Printer { format: LogFormat::Json, verbosity: Verbosity::Quiet, key: None };
        let printer = Printer { verbosity: Verbosity::Normal, ..quiet.clone() };
        let now = Moment::now();
        let mut waiter = Waiter::new(&printer, now);
        waiter.say(|_| unreachable!("too early"));
        assert_eq!(waiter.next(), now.after(FIRST));
        let mut spoken = false;
        let mut waiter = Waiter::new(&printer, now.before(FIRST));
        waiter.say(|room| {
            assert_eq!(room, Room::Endless);
            spoken = true;
            "waiting".into()
        });
        assert!(spoken && waiter.has_announced() && waiter.next() > Moment::now().after(THEN / 2));
        let mut silent = Waiter::new(&quiet, now.before(FIRST));
        silent.say(|_| unreachable!("quiet"));
    }
}

//! When does a waiting dlock speak, and where? On a terminal it keeps one line that changes in place; elsewhere the first
//! line comes after ten seconds and then one a minute, so that a log does not fill. It decides when to speak, not when
//! to look: the caller hands in what there is to say, and wakes it in time. The words are in `busy` and `describe`.
//!
//! While the line stands, the cursor is at its beginning. A terminal that is made narrower may wrap what stands on it, and
//! keeps the cursor where it was in the text: so everything from there on is ours to wipe, whether it was wrapped or cut.

use super::columns::{Width, split, width};
use super::{Event, Kind, Printer, What, escaped, is_in_front, send};
use crate::cli::LogFormat;
use crate::clock::Moment;
use crate::rules::Holder;
use rustix::stdio::stderr;
use rustix::termios::{isatty, tcgetwinsize};
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

/// The text of the line about waiting, and what a program reads in place of it.
#[derive(Debug, Default)]
pub struct Said {
    pub text: String,
    pub key: String,
    /// The holder, or one of several holders.
    pub holder: Option<Holder>,
    /// How many wait before, where there is a queue to stand in.
    pub ahead: Option<u64>,
}

/// The line about waiting, and what is said beside it.
pub struct Line {
    printer: Printer,
    place: Medium,
    next: Moment,
    /// Whether a log says that somebody waits, so that it should also say when that is over.
    announced: bool,
    text: Option<Box<dyn Fn(Width) -> Said>>,
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

impl Line {
    /// That of one who came to wait at `since`.
    pub fn new(printer: &Printer, since: Moment) -> Self {
        let smart = || std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let (place, next) = if !printer.says(Kind::Note) {
            (Medium::Nowhere, since.after(Duration::MAX))
        } else if printer.format == LogFormat::Text && isatty(stderr()) && smart() {
            (Medium::Terminal, since)
        } else {
            (Medium::Log, since.after(FIRST))
        };
        Self { printer: printer.clone(), place, next, announced: false, text: None }
    }

    /// Whether it has said somewhere, where it stays, that it waits.
    pub fn has_announced(&self) -> bool {
        self.announced
    }

    /// Says that it waits, because of trouble that may mend itself.
    pub fn announce<'a>(&mut self, event: impl Into<Event<'a>>, text: &str) {
        self.say(Kind::Passing, event, text);
        self.announced |= self.place == Medium::Log;
    }

    /// Says a line, and takes the one about waiting away before.
    pub fn say<'a>(&mut self, kind: Kind, event: impl Into<Event<'a>>, text: &str) {
        self.clear();
        self.printer.say(kind, event, text);
    }

    /// When there will be something to say again; never before there was anything.
    pub fn next(&self) -> Option<Moment> {
        self.text.as_ref().map(|_| self.next)
    }

    /// The terminal has another width: has the line said again at once, if it stands.
    pub fn resized(&mut self) {
        if let Medium::Line(_) = self.place {
            self.next = Moment::now();
        }
        self.go_on();
    }

    /// What there is to say from now on, whenever it is time.
    pub fn waits(&mut self, text: impl Fn(Width) -> Said + 'static) {
        self.text = Some(Box::new(text));
        self.go_on();
    }

    /// Says what there is to say, if it is time.
    pub fn go_on(&mut self) {
        let Some(text) = self.text.as_ref().filter(|_| self.next.passed()) else { return };
        match self.place {
            Medium::Nowhere => {}
            Medium::Log => {
                let Said { text, key, holder, ahead } = text(Width::Endless);
                let event = Event { ahead, ..What::Waiting.into() };
                self.printer.say(Kind::Note, event.about(&key).held_by(holder.as_ref()), &text);
                self.announced = true;
                self.next = Moment::now().after(THEN);
            }
            Medium::Terminal | Medium::Line(_) => {
                // In the background the screen is somebody else's, and writing might stop dlock.
                if is_in_front(stderr()) {
                    let columns = columns();
                    let room = Width::Columns(columns.saturating_sub(HEAD.len() + MARGIN));
                    let line = fitting(&text(room).text, columns);
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
            if is_in_front(stderr()) {
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

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Wipes this row and those below it that the line may take now. Row by row, and then back to where the cursor was: to
/// erase the screen from here on would, in the first row, have tmux keep all of it in its history.
fn wipe_rows(rows: usize) -> String {
    format!("{WIPE}\x1b7{}\x1b8", "\x1b[B\x1b[K".repeat(rows - 1))
}

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
    use std::cell::Cell;
    use std::rc::Rc;

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
        let quiet = Printer { format: LogFormat::Json, verbosity: Verbosity::Quiet, key: None, store: None };
        let printer = Printer { verbosity: Verbosity::Normal, ..quiet.clone() };
        let now = Moment::now();
        let mut waiter = Line::new(&printer, now);
        waiter.waits(|_| unreachable!("too early"));
        assert_eq!(waiter.next(), Some(now.after(FIRST)));
        let spoken = Rc::new(Cell::new(false));
        let said = spoken.clone();
        let mut waiter = Line::new(&printer, now.before(FIRST));
        waiter.waits(move |room| {
            assert_eq!(room, Width::Endless);
            said.set(true);
            Said { text: "waiting".into(), ..Said::default() }
        });
        assert!(spoken.get() && waiter.has_announced());
        assert!(waiter.next() > Some(Moment::now().after(THEN / 2)));
        let mut silent = Line::new(&quiet, now.before(FIRST));
        silent.waits(|_| unreachable!("quiet"));
    }
}

//! What does a waiting dlock say, and when? On a terminal it keeps one line that changes in place; elsewhere the first
//! line comes after ten seconds and then one a minute, so that a log does not fill. It decides when to speak, not
//! when to look: the caller hands in what it knows whenever it wakes.

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

/// What the terminal may write behind the line: `^C`, and one column to stand on.
const ECHO: usize = 3;

/// Back to the first column, and nothing right of it.
const WIPE: &str = "\r\x1b[K";

/// The voice of a waiter.
#[derive(Debug)]
pub struct Waiter {
    printer: Printer,
    place: Place,
    next: Moment,
}

/// Where it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nowhere: `--quiet`.
    Nowhere,
    /// On a terminal, where a line may stand.
    Terminal,
    /// The same, and a line stands.
    Line,
    /// Into a file, a pipe or a log.
    Log,
}

impl Waiter {
    /// A waiter that came to wait at `since`.
    pub fn new(printer: &Printer, since: Moment) -> Self {
        let smart = || std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let (place, next) = if !printer.says(Kind::Note) {
            (Place::Nowhere, since.after(Duration::MAX))
        } else if printer.format == LogFormat::Text && isatty(stderr()) && smart() {
            (Place::Terminal, since)
        } else {
            (Place::Log, since.after(FIRST))
        };
        Self { printer: printer.clone(), place, next }
    }

    /// When there will be something to say again.
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Says it, if it is time; `text` is asked for only then.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        if !self.next.passed() {
            return;
        }
        match self.place {
            Place::Nowhere => {}
            Place::Log => {
                self.printer.say(Kind::Note, &text());
                self.next = Moment::now().after(THEN);
            }
            Place::Terminal | Place::Line => {
                // In the background the screen is somebody else's, and writing might stop dlock.
                if in_front() {
                    let columns = tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
                    send(&format!("{WIPE}{}", fitting(&text(), columns)));
                    self.place = Place::Line;
                }
                self.next = Moment::now().after(TICK);
            }
        }
    }

    /// Takes the line off the terminal. Before every other message, before CMD starts, and before dlock stops.
    pub fn clear(&mut self) {
        if self.place == Place::Line {
            if in_front() {
                send(WIPE);
            }
            self.place = Place::Terminal;
            self.next = Moment::now();
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

/// The line, short enough not to wrap, also when the terminal echoes a ^C behind it: a line that wraps cannot be wiped.
fn fitting(text: &str, columns: usize) -> String {
    let line = format!("dlock: {}", escaped(text));
    let most = if columns < 20 { 79 } else { columns } - ECHO;
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Verbosity;

    #[test]
    fn a_line_fits() {
        assert_eq!(fitting("a\nb", 80), "dlock: a\\nb");
        for columns in [20, 80] {
            assert_eq!(fitting(&"é".repeat(200), columns).chars().count(), columns - ECHO);
        }
        assert_eq!(fitting(&"x".repeat(200), 0).chars().count(), 79 - ECHO);
    }

    #[test]
    fn the_first_line_in_a_log_comes_after_a_while() {
        let quiet = Printer { format: LogFormat::Json, verbosity: Verbosity::Quiet, key: None };
        let printer = Printer { verbosity: Verbosity::Normal, ..quiet.clone() };
        let now = Moment::now();
        let mut waiter = Waiter::new(&printer, now);
        waiter.say(|| unreachable!("too early"));
        assert_eq!(waiter.next(), now.after(FIRST));
        let mut spoken = false;
        let mut waiter = Waiter::new(&printer, now.before(FIRST));
        waiter.say(|| {
            spoken = true;
            "waiting".into()
        });
        assert!(spoken && waiter.next() > Moment::now().after(THEN / 2));
        let mut silent = Waiter::new(&quiet, now.before(FIRST));
        silent.say(|| unreachable!("quiet"));
    }
}

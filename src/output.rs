//! Writes messages to stderr and results to stdout. A message is one line and one write, and never
//! fails or delays the run. If a result cannot be written, the status is 74. `busy`, `table` and
//! `json` make the text about a lock.

use crate::cli::{Color, LogFormat};
use crate::config::{Settings, Verbosity};
use crate::error::Error;
use crate::lock::{Key, shorten};
use crate::sys;
use json::Object;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio::{stderr, stdout};
use std::os::fd::BorrowedFd;

pub mod acquired;
pub mod busy;
pub mod columns;
pub mod describe;
pub mod doctor;
mod escape;
pub mod event;
pub mod history;
pub mod hold;
pub mod json;
pub mod live;
pub mod metrics;
pub mod missed;
pub mod owner;
pub mod question;
pub mod record;
pub mod report;
pub mod table;
pub mod time;
pub mod watch;

pub use escape::{escaped, safe_lines};
pub use event::{Event, What};

/// The longest message, in bytes: what a writable pipe takes at once (PIPE_BUF).
const LONGEST: usize = 4096;

/// The kind of a message. Decides whether it is printed, and its level in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An error other than busy, which mostly ends the command. Always printed.
    Error,
    /// Something the user should change or check. Always printed.
    Warning,
    /// Trouble that may pass: the store is unreachable and is tried again. Silenced by `--quiet`;
    /// if it does not pass, an error or a warning follows and names the trouble.
    Passing,
    /// Busy, waiting, lost: silenced by `--quiet`.
    Note,
    /// Success, for a person at a terminal: printed if standard output is a terminal, or with
    /// `--verbose`.
    Done,
    /// Normal progress: printed with `--verbose`.
    Detail,
}

/// Writes messages. Plain data, so it may be copied into threads and forked processes.
#[derive(Debug, Clone)]
pub struct Printer {
    format: LogFormat,
    verbosity: Verbosity,
    key: Option<String>,
    store: Option<String>,
}

impl Printer {
    /// A printer for these settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            format: settings.log_format,
            verbosity: settings.verbosity,
            key: None,
            store: Some(settings.store.to_string()),
        }
    }

    /// The printer for errors before there are settings. Knows the flag and the variable for the
    /// format.
    pub fn early(flag: Option<LogFormat>) -> Self {
        let variable = || std::env::var("DLOCK_LOG_FORMAT").ok().filter(|text| text == "json");
        Self {
            format: flag.or_else(|| variable().map(|_| LogFormat::Json)).unwrap_or(LogFormat::Text),
            verbosity: Verbosity::Normal,
            key: None,
            store: None,
        }
    }

    /// The same printer, naming this key, if there is one, in every JSON message.
    pub fn about(self, key: Option<&Key>) -> Self {
        Self { key: key.map(ToString::to_string), ..self }
    }

    /// Whether a message of this kind is printed.
    pub fn says(&self, kind: Kind) -> bool {
        match kind {
            Kind::Error | Kind::Warning => true,
            Kind::Passing | Kind::Note => self.verbosity >= Verbosity::Normal,
            Kind::Done if rustix::termios::isatty(stdout()) => self.verbosity >= Verbosity::Normal,
            Kind::Done => self.verbosity >= Verbosity::Verbose,
            Kind::Detail => self.verbosity >= Verbosity::Verbose,
        }
    }

    /// The same printer, for another store.
    pub fn at(self, settings: &Settings) -> Self {
        Self { store: Some(settings.store.to_string()), ..self }
    }

    /// Prints one line, if its kind is to be printed. `text` reads after `dlock: `; control
    /// characters in it are escaped.
    pub fn say<'a>(&self, kind: Kind, event: impl Into<Event<'a>>, text: &str) {
        if self.says(kind) {
            send(&self.line(kind, text, event.into()));
        }
    }

    /// A message as it is written, with its line end.
    fn line(&self, kind: Kind, text: &str, event: Event<'_>) -> String {
        let level = match kind {
            Kind::Error => "error",
            Kind::Warning | Kind::Passing => "warning",
            Kind::Note | Kind::Done => "info",
            Kind::Detail => "debug",
        };
        match self.format {
            LogFormat::Text => {
                let mut line = format!("dlock: {}", escaped(text));
                if line.len() >= LONGEST {
                    shorten(&mut line, LONGEST - 4);
                    line.push('…');
                }
                line + "\n"
            }
            LogFormat::Json => {
                let object = |text: &str, event: Event<'_>| {
                    let message = Object::default()
                        .set("time", time::utc(time::now()))
                        .set("level", level)
                        .set("message", text)
                        .set("event", event.what)
                        .set("key", event.key.or(self.key.as_deref()))
                        .set("store", self.store.as_deref().filter(|store| store.len() <= LONGEST / 16))
                        .set_object("holder", event.holder.map(json::holder))
                        .set("ahead", event.ahead)
                        .set_object("by", event.by.map(json::actor))
                        .set("missed", event.missed)
                        .set("status", event.status);
                    json::line(&message).unwrap_or_default()
                };
                let line = object(text, event);
                if line.len() <= LONGEST {
                    line
                } else {
                    // Shortened to an eighth, because one byte may become six, and half an object
                    // would not be JSON.
                    let mut short = text.to_owned();
                    shorten(&mut short, LONGEST / 8);
                    object(&(short + "…"), Event { holder: None, by: None, ..event })
                }
            }
        }
    }
}

/// One write, if stderr takes it now. A reader that does not read, a full disk or a closed terminal
/// must not delay a lease, so errors are ignored.
fn send(line: &str) {
    let err = stderr();
    let mut ready = [PollFd::new(&err, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default())) == Ok(1) && ready[0].revents().contains(PollFlags::OUT) {
        let _dropped = rustix::io::write(err, line.as_bytes());
    }
}

/// Whether this process group is the terminal's foreground group.
fn is_in_front(terminal: BorrowedFd<'_>) -> bool {
    rustix::termios::tcgetpgrp(terminal) == Ok(rustix::process::getpgrp())
}

/// Writes a whole result to stdout. A reader that is gone is not an error.
pub fn print(text: &str) -> Result<(), Error> {
    match deliver(text) {
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes a whole result to stdout. A reader that is gone is an error.
pub fn deliver(text: &str) -> Result<(), Error> {
    if sys::closed_at_start().any(|fd| fd == 1) {
        return Err(Error::Output(Errno::BADF.into()));
    }
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(stdout(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut ready = [PollFd::from_borrowed_fd(stdout(), PollFlags::OUT)];
                let _woken = poll(&mut ready, None);
            }
            Err(error) => return Err(Error::Output(error.into())),
        }
    }
    Ok(())
}

pub fn coloured(color: Color) -> Coloured {
    let terminal =
        || rustix::termios::isatty(stdout()) && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    match color {
        Color::Always => Coloured::Yes,
        Color::Auto if terminal() => Coloured::Yes,
        Color::Never | Color::Auto => Coloured::No,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coloured {
    Yes,
    No,
}

impl Coloured {
    /// The text, in the colour of the escape sequence `on` if there is one and colours are wanted.
    pub fn paint(self, text: &str, on: Option<&str>) -> String {
        match on {
            Some(on) if self == Self::Yes && !text.is_empty() => format!("{on}{text}\x1b[0m"),
            _ => text.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(format: LogFormat) -> Printer {
        Printer { format, verbosity: Verbosity::Normal, key: Some("k".into()), store: None }
    }

    #[test]
    fn message_is_one_short_line() {
        let line =
            printer(LogFormat::Text).line(Kind::Note, "a\nb\x1b[31m\u{9b}m\u{202e}c", What::Busy.into());
        assert_eq!(line, "dlock: a\\nb\\x1b[31m\\u{9b}m\\u{202e}c\n");
        for format in [LogFormat::Text, LogFormat::Json] {
            for filler in ["x", "é", "\n", "\u{9b}"] {
                let line = printer(format).line(Kind::Note, &filler.repeat(9000), What::Busy.into());
                assert!(line.len() <= LONGEST, "{} bytes", line.len());
                assert_eq!(line.matches('\n').count(), 1);
            }
        }
    }

    #[test]
    fn message_is_valid_json() -> Result<(), serde_json::Error> {
        let line = printer(LogFormat::Json).line(Kind::Error, "a\nb\u{9b}", What::Busy.into());
        assert!(line.contains("a\\nb\\u009b"), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line)?;
        assert_eq!(value["message"], "a\nb\u{9b}");
        assert_eq!(value["level"], "error");
        assert_eq!(value["key"], "k");
        Ok(())
    }
}

//! How is a page shown again and again in one place? On the terminal's second screen, so that the first one is as it
//! was when dlock ends. While it is shown a key is heard at once and not echoed, if the keyboard is that of the terminal;
//! ^C and ^Z are what they always are. What is on the page, and when it is drawn, is the caller's.

use super::{is_in_front, print};
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::os::fd::BorrowedFd;

/// The second screen, without a cursor, and without wrapping what is too long.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// What undoes it, the last first.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Stdout, as a screen. Left when dropped.
#[derive(Debug, Default)]
pub struct Screen {
    /// Whether the terminal shows the page.
    shown: bool,
    /// How the keyboard was, while it is ours.
    keyboard: Option<Termios>,
}

impl Screen {
    /// Stdout as a screen, not changed yet. The error says why it is none.
    pub fn of_stdout() -> Result<Self, &'static str> {
        if !isatty(stdout()) {
            return Err("standard output is not a terminal");
        }
        match std::env::var_os("TERM") {
            Some(term) if term == "dumb" => Err("the terminal cannot redraw (TERM is dumb)"),
            _ => Ok(Self::default()),
        }
    }

    /// Shows a page: as much of it as the terminal has lines. Does nothing while the terminal is another job's.
    pub fn draw(&mut self, page: &str) -> Result<(), Error> {
        if !is_in_front(stdout()) {
            return Ok(());
        }
        if !self.shown {
            self.listen();
        }
        let rows = tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_row));
        let mut text = if !self.shown { ENTER } else { "" }.to_owned();
        self.shown = true;
        text.push_str(&redrawn(&shown(page, if rows == 0 { 24 } else { rows })));
        print(&text)
    }

    /// Gives the terminal back as it was. The next [`Screen::draw`] takes it again.
    pub fn leave(&mut self) {
        if self.shown {
            self.shown = false;
            // Where it cannot be written to any more, there is nothing to give back.
            print(LEAVE).ok();
            if let Some(modes) = self.keyboard.take()
                && is_in_front(stdin())
            {
                tcsetattr(stdin(), OptionalActions::Drain, &modes).ok();
            }
        }
    }

    /// Where keys are heard, while they are.
    pub fn keyboard(&self) -> Option<BorrowedFd<'static>> {
        // In the background a read would stop dlock.
        self.keyboard.as_ref().map(|_| stdin()).filter(|keys| is_in_front(*keys))
    }

    /// The keys that were pressed. After the keyboard is gone there are none.
    pub fn pressed(&mut self) -> Vec<u8> {
        let mut keys = [0; 64];
        let mut ready = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
        if !is_in_front(stdin()) || poll(&mut ready, Some(&Timespec::default())) != Ok(1) {
            return Vec::new();
        }
        match rustix::io::read(stdin(), &mut keys) {
            Ok(count @ 1..) => keys[..count].to_vec(),
            _ => {
                self.keyboard = None;
                Vec::new()
            }
        }
    }

    /// Has the keyboard hand over each key at once.
    fn listen(&mut self) {
        let Some(modes) = tcgetattr(stdin()).ok().filter(|_| is_in_front(stdin())) else { return };
        let mut changed = modes.clone();
        changed.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        if tcsetattr(stdin(), OptionalActions::Drain, &changed).is_ok() {
            self.keyboard = Some(modes);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// These lines over whatever is on the screen. Erased is before writing: behind a line as wide as the terminal the cursor
/// stays on its last character, which would go.
fn redrawn(lines: &[String]) -> String {
    let mut text = String::from("\x1b[H");
    for (at, line) in lines.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "\r\n" });
        text.push_str(if at + 1 == lines.len() { "\x1b[J" } else { "\x1b[K" });
        text.push_str(line);
    }
    text
}

/// The lines of a page that fit; where some do not, the last one counts them.
fn shown(page: &str, rows: usize) -> Vec<String> {
    let lines: Vec<String> = page.lines().map(str::to_owned).collect();
    if lines.len() <= rows {
        return lines;
    }
    let kept = rows.saturating_sub(1);
    let more = format!("({} more lines)", lines.len() - kept);
    lines.into_iter().take(kept).chain([more]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(shown("a\nb\nc\n", 3), ["a", "b", "c"]);
        assert_eq!(shown("a\nb\nc\n", 2), ["a", "(2 more lines)"]);
        assert_eq!(shown("", 2), [""; 0]);
    }

    #[test]
    fn nothing_is_erased_that_was_written() {
        assert_eq!(redrawn(&shown("a\nb\n", 3)), "\x1b[H\x1b[Ka\r\n\x1b[Jb");
        assert_eq!(redrawn(&shown("a\n", 3)), "\x1b[H\x1b[Ja");
    }
}

//! Redraws a page in place, on the terminal's second screen, so that the first one is unchanged
//! when dlock ends. While it is shown, keys are read at once and not echoed, if stdin is the
//! terminal; ^C and ^Z work as always. The caller decides what the page shows and when to draw it.

use super::{is_in_front, print};
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::os::fd::BorrowedFd;

/// Switches to the second screen, hides the cursor and turns wrapping off.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Undoes `ENTER`, in reverse order.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Stdout as a screen. Dropping it restores the terminal.
#[derive(Debug, Default)]
pub struct Screen {
    /// Whether the terminal shows the page.
    shown: bool,
    /// The terminal modes to restore, while they are changed so that each key is read at once.
    keyboard: Option<Termios>,
}

impl Screen {
    /// Stdout as a screen, not changed yet. The error says why stdout is not one.
    pub fn of_stdout() -> Result<Self, &'static str> {
        if !isatty(stdout()) {
            return Err("standard output is not a terminal");
        }
        match std::env::var_os("TERM") {
            Some(term) if term == "dumb" => Err("the terminal cannot redraw (TERM is dumb)"),
            _ => Ok(Self::default()),
        }
    }

    /// Shows as much of a page as fits. Does nothing while dlock is in the background.
    pub fn draw(&mut self, page: &str) -> Result<(), Error> {
        if !is_in_front(stdout()) {
            return Ok(());
        }
        if !self.shown {
            self.read_keys_at_once();
        }
        let rows = tcgetwinsize(stdout()).map_or(0, |size| usize::from(size.ws_row));
        let mut text = if !self.shown { ENTER } else { "" }.to_owned();
        self.shown = true;
        text.push_str(&redrawn(&shown(page, if rows == 0 { 24 } else { rows })));
        print(&text)
    }

    /// Restores the terminal. The next [`Screen::draw`] takes it again.
    pub fn leave(&mut self) {
        if self.shown {
            self.shown = false;
            // If it cannot be written to any more, there is nothing to restore.
            print(LEAVE).ok();
            if let Some(modes) = self.keyboard.take()
                && is_in_front(stdin())
            {
                tcsetattr(stdin(), OptionalActions::Drain, &modes).ok();
            }
        }
    }

    /// The descriptor to read keys from, if keys are read now.
    pub fn keyboard(&self) -> Option<BorrowedFd<'static>> {
        // In the background a read would stop dlock.
        self.keyboard.as_ref().map(|_| stdin()).filter(|keys| is_in_front(*keys))
    }

    /// The keys that were pressed. No key comes once stdin has ended.
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

    /// Switches the keyboard to deliver each key at once.
    fn read_keys_at_once(&mut self) {
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

/// The escape sequences that draw these lines over the screen. Each line is erased before it is
/// written: after a line as wide as the terminal the cursor stays on its last character, which
/// erasing would remove.
fn redrawn(lines: &[String]) -> String {
    let mut text = String::from("\x1b[H");
    for (at, line) in lines.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "\r\n" });
        text.push_str(if at + 1 == lines.len() { "\x1b[J" } else { "\x1b[K" });
        text.push_str(line);
    }
    text
}

/// The lines of a page that fit; if some do not, the last line counts them.
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
    fn hidden_lines_are_counted() {
        assert_eq!(shown("a\nb\nc\n", 3), ["a", "b", "c"]);
        assert_eq!(shown("a\nb\nc\n", 2), ["a", "(2 more lines)"]);
        assert_eq!(shown("", 2), [""; 0]);
    }

    #[test]
    fn lines_are_erased_before_they_are_written() {
        assert_eq!(redrawn(&shown("a\nb\n", 3)), "\x1b[H\x1b[Ka\r\n\x1b[Jb");
        assert_eq!(redrawn(&shown("a\n", 3)), "\x1b[H\x1b[Ja");
    }
}

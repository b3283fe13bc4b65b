//! A real terminal with an interactive bash in it, and a user who types and reads: all output so
//! far, or the current screen, which an emulator keeps.

use super::dlock::BINARY;
use super::wait::{PATIENCE, wait_until};
use super::world::World;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Ctrl-C, Ctrl-Z and Ctrl-\ as a keyboard sends them.
pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";
pub const CTRL_BACKSLASH: &str = "\x1c";

/// The terminal. Dropping it hangs up.
pub struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<Screen>>,
    read: usize,
    shell: Child,
}

/// The output of the terminal.
struct Screen {
    text: String,
    emulator: vt100::Parser,
}

impl Terminal {
    /// Opens a terminal whose shell has `dlock` in its PATH and the world's store in its environment.
    pub fn open(world: &World) -> Self {
        // Wide, so that nothing is wrapped.
        Self::with_size(world, "dumb", 50, 1000)
    }

    /// The same with a type (TERM) and a size. dlock keeps a status line on every type but `dumb`.
    pub fn with_size(world: &World, kind: &str, rows: u16, columns: u16) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("a terminal");
        unlockpt(&master).expect("a terminal");
        tcsetwinsize(&master, size(rows, columns)).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("the terminal's name");
        let end = || -> Stdio {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            open(name.as_c_str(), flags, Mode::empty()).expect("the terminal's other end").into()
        };
        let mut shell = world.command("setsid");
        let directory = std::path::Path::new(BINARY).parent().expect("the binary has a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", directory.display())).env("DLOCK_STORE", world.url());
        shell.env("TERM", kind).env("PS1", "READY> ").env_remove("PROMPT_COMMAND");
        shell.args(["-c", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        let shell = shell.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid and bash");
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("a second descriptor");
        let screen = Arc::new(Mutex::new(Screen {
            text: String::new(),
            emulator: vt100::Parser::new(rows, columns, 0),
        }));
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let mut shown = shown.lock().expect("no panic here");
                shown.text.push_str(&String::from_utf8_lossy(&buffer[..count]));
                shown.emulator.process(&buffer[..count]);
            }
        });
        let mut terminal = Self { keyboard, screen, read: 0, shell };
        terminal.expect("READY> ");
        terminal
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Types a line and waits for its echo, so that the next expected text cannot be the echo.
    #[track_caller]
    pub fn type_line(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
        self.expect(line);
    }

    /// Waits for a text after the previously expected one, and returns the output up to its end.
    #[track_caller]
    pub fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let last = Instant::now() >= deadline;
            let screen = self.screen();
            if let Some(at) = screen[self.read..].find(text) {
                let end = self.read + at + text.len();
                let shown = screen[self.read..end].to_owned();
                self.read = end;
                return shown;
            }
            assert!(!last, "{text:?} never came; the whole screen:\n{screen}");
            sleep(Duration::from_millis(3));
        }
    }

    /// All output so far.
    pub fn screen(&self) -> String {
        self.screen.lock().expect("no panic here").text.clone()
    }

    /// The current rows of the screen, down to the last that is not empty.
    pub fn rows(&self) -> Vec<String> {
        let shown = self.screen.lock().expect("no panic here");
        let screen = shown.emulator.screen();
        let rows = screen.rows(0, screen.size().1).map(|row| row.trim_end().to_owned());
        let mut rows = rows.collect::<Vec<_>>();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    /// The same with colours: each line as it was before the terminal wrapped it, as characters
    /// with their colours.
    pub fn coloured_lines(&self) -> Vec<Vec<(String, vt100::Color)>> {
        let shown = self.screen.lock().expect("no panic here");
        let screen = shown.emulator.screen();
        let mut lines: Vec<Vec<_>> = Vec::new();
        let mut goes_on = false;
        for row in 0..screen.size().0 {
            let cells = (0..screen.size().1).filter_map(|column| screen.cell(row, column));
            let mut cells =
                cells.map(|cell| (cell.contents().to_owned(), cell.fgcolor())).collect::<Vec<_>>();
            if !screen.row_wrapped(row) {
                let end = cells.iter().rposition(|(text, _)| !matches!(text.as_str(), "" | " "));
                cells.truncate(end.map_or(0, |at| at + 1));
            }
            for (text, _) in &mut cells {
                if text.is_empty() {
                    text.push(' ');
                }
            }
            match lines.last_mut() {
                Some(line) if goes_on => line.extend(cells),
                _ => lines.push(cells),
            }
            goes_on = screen.row_wrapped(row);
        }
        while lines.last().is_some_and(Vec::is_empty) {
            lines.pop();
        }
        lines
    }

    /// Changes the size of the terminal. Its content is cut; some terminals would wrap it.
    pub fn resize(&self, rows: u16, columns: u16) {
        let mut shown = self.screen.lock().expect("no panic here");
        shown.emulator.screen_mut().set_size(rows, columns);
        tcsetwinsize(&self.keyboard, size(rows, columns)).expect("a size");
    }

    /// Ends the shell and waits for it.
    pub fn close(mut self) {
        self.press("exit\n");
        wait_until("the shell ends", || self.shell.try_wait().expect("our child").is_some());
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.shell.kill());
        drop(self.shell.wait());
    }
}

//! A real terminal with an interactive bash in it, and a user who types and reads.

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
    screen: Arc<Mutex<String>>,
    read: usize,
    shell: Child,
}

impl Terminal {
    /// Opens a terminal whose shell has `dlock` in its PATH and the world's store in its environment.
    pub fn open(world: &World) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("a terminal");
        unlockpt(&master).expect("a terminal");
        // Wide, so that nothing is wrapped.
        tcsetwinsize(&master, Winsize { ws_row: 50, ws_col: 1000, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("a size");
        let name = ptsname(&master, Vec::new()).expect("the terminal's name");
        let end = || -> Stdio {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            open(name.as_c_str(), flags, Mode::empty()).expect("the terminal's other end").into()
        };
        let mut shell = world.command("setsid");
        let directory = std::path::Path::new(BINARY).parent().expect("the binary has a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", directory.display())).env("DLOCK_STORE", world.url());
        shell.env("TERM", "dumb").env("PS1", "READY> ").env_remove("PROMPT_COMMAND");
        shell.args(["-c", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        let shell = shell.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid and bash");
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("a second descriptor");
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                shown.lock().expect("no panic here").push_str(&String::from_utf8_lossy(&buffer[..count]));
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

    /// Types a line, and waits until it is echoed, so that what is expected next cannot be the echo.
    #[track_caller]
    pub fn type_line(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
        self.expect(line);
    }

    /// Waits until the text shows up behind what was expected before; returns what came up to its end.
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

    /// All that was ever shown.
    pub fn screen(&self) -> String {
        self.screen.lock().expect("no panic here").clone()
    }

    /// Ends the shell and waits for it.
    pub fn close(mut self) {
        self.press("exit\n");
        wait_until("the shell ends", || self.shell.try_wait().expect("our child").is_some());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.shell.kill());
        drop(self.shell.wait());
    }
}

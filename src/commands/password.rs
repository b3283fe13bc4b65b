//! Reads a store's password before each connection: from a file, or from the first line that a
//! command prints.
//!
//! A command may take longer than one attempt to renew. It then goes on, and the next attempt uses
//! its output. It is killed, with its process group, after the connect timeout, and when this
//! process ends. It has its own session, so no signal of the terminal reaches it, and it inherits
//! none of this process's descriptors. Its output is never shown.

use crate::clock::Moment;
use crate::config::url::Secret;
use crate::config::{Credentials, Password as Setting};
use crate::store::Error;
use crate::store::net::password::{Password, Source};
use crate::store::net::{budget, interrupt};
use crate::sys;
use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest first line. An RDS token has about 1.5 KiB, an Azure JSON web token about 3 KiB.
const LINE_MOST: usize = 16 * 1024;
/// Shortest time between a failure of the command, or of the login with its output, and the next
/// run.
const RERUN_AFTER: Duration = Duration::from_secs(1);
/// How often to check on a running command.
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// The password of a login. A command has `limit` to print one.
pub fn of(login: &Credentials, limit: Duration) -> Option<Password> {
    Some(match login.password.as_ref()? {
        Setting::Text(secret) => secret.expose().into(),
        Setting::File(path) => Password::read_from(File(path.clone())),
        Setting::Command(text) => {
            Password::read_from(Shell { text: text.clone(), limit, state: Mutex::default() })
        }
    })
}

struct File(PathBuf);

impl Source for File {
    fn read(&self, deadline: Moment) -> Result<String, Error> {
        let secret = Secret::of_file(&self.0, deadline.left()).map_err(Error::Password)?;
        Ok(secret.expose().into())
    }
}

/// A command for /bin/sh.
struct Shell {
    text: Secret,
    limit: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many runs have begun.
    count: u64,
    run: Option<Run>,
    /// The last run that ended: its number, when it ended, and its result.
    last: Option<(u64, Moment, Result<String, Error>)>,
    /// Whether that result was sent to a server.
    is_used: bool,
}

struct Run {
    began: Moment,
    child: Child,
    stdout: Option<ChildStdout>,
    /// The first line so far, at most [`LINE_MOST`] and one byte.
    line: Vec<u8>,
    is_line_whole: bool,
}

impl Source for Shell {
    fn read(&self, deadline: Moment) -> Result<String, Error> {
        let number = loop {
            let mut state = self.state();
            match &state.last {
                // The attempt to connect that asked for this password was over before it came.
                Some((_, ended, Ok(text))) if !state.is_used && !ended.after(self.limit).passed() => {
                    return Ok(text.clone());
                }
                _ => {}
            }
            // An old run that no attempt waited for may print an old password.
            if state.run.as_ref().is_some_and(|run| run.began.after(self.limit * 2).passed())
                && let Some(mut run) = state.run.take()
            {
                sys::kill_separate(&mut run.child);
            }
            let may_run_at = budget::password_failed_at().after(RERUN_AFTER);
            if state.run.is_some() || may_run_at.passed() {
                if state.run.is_none() {
                    state.run = Some(Run::begin(&self.text, self.limit)?);
                    state.count += 1;
                }
                break state.count;
            }
            drop(state);
            if may_run_at > deadline || interrupt::pause(may_run_at.left()).is_err() {
                return Err(Error::Overloaded("the password command has just failed".into()));
            }
        };
        loop {
            if let Some(answer) = self.state().answer(number, self.limit) {
                return answer;
            }
            if deadline.passed() || interrupt::pause(CHECK_EVERY).is_err() {
                return Err(Error::Unreachable("the password command has not ended yet".into()));
            }
        }
    }

    fn used(&self) {
        self.state().is_used = true;
    }

    fn refused(&self) {
        budget::note_failed_password();
    }
}

impl Shell {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The result of the run with that number, or of a later one, if it has ended.
    fn answer(&mut self, number: u64, limit: Duration) -> Option<Result<String, Error>> {
        if let Some(answer) = self.run.as_mut().and_then(|run| run.step(limit)) {
            self.run = None;
            if answer.is_err() {
                budget::note_failed_password();
            }
            self.last = Some((self.count, Moment::now(), answer));
            self.is_used = false;
        }
        let (ended, _, answer) = self.last.as_ref()?;
        (*ended >= number).then(|| answer.clone())
    }
}

impl Run {
    fn begin(text: &Secret, limit: Duration) -> Result<Self, Error> {
        let failed = |what: &str| Error::Password(format!("the password command cannot be run: {what}"));
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(text.expose())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = sys::spawn_separate(&mut command, limit).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied => failed(&error.to_string()),
            // The system is short of processes, memory or descriptors, which passes.
            _ => Error::Unavailable(format!("the password command cannot be run now: {error}")),
        })?;
        let stdout = child.stdout.take().ok_or_else(|| failed("it has no output"))?;
        let set = rustix::fs::fcntl_setfl(&stdout, rustix::fs::OFlags::NONBLOCK);
        set.map_err(|errno| failed(&errno.to_string()))?;
        let (line, is_line_whole) = Default::default();
        Ok(Self { began: Moment::now(), child, stdout: Some(stdout), line, is_line_whole })
    }

    /// Reads what it has printed. Returns the result if it has ended or reached its limit.
    fn step(&mut self, limit: Duration) -> Option<Result<String, Error>> {
        self.take();
        let ended = sys::ended_separate(&mut self.child);
        if ended.is_none() {
            let is_over = self.began.after(limit).passed();
            return is_over.then(|| {
                sys::kill_separate(&mut self.child);
                let limit = humantime::format_duration(limit);
                Err(Error::Password(format!(
                    "the password command has not ended within the connect timeout, {limit}, and was killed"
                )))
            });
        }
        // What it printed before it ended.
        self.take();
        let how = match ended.flatten() {
            Some(status) if status.success() => return Some(self.password()),
            Some(status) => status.to_string(),
            None => "its exit status is not known".into(),
        };
        Some(Err(Error::Password(format!("the password command has failed ({how})"))))
    }

    /// Reads what there is, up to a few buffers at a time: some commands never stop printing.
    fn take(&mut self) {
        let mut buffer = [0; LINE_MOST];
        for _ in 0..8 {
            let Some(stdout) = &mut self.stdout else { return };
            match stdout.read(&mut buffer) {
                Ok(0) => self.stdout = None,
                Ok(count) => self.keep(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.stdout = None,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.is_line_whole {
            return;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        self.line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
        self.line.truncate(LINE_MOST + 1);
        self.is_line_whole = end.is_some() || self.line.len() > LINE_MOST;
    }

    fn password(&self) -> Result<String, Error> {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let why = match std::str::from_utf8(line) {
            Ok("") => "has printed nothing",
            _ if line.len() > LINE_MOST => "has printed a first line that is too long for a password",
            Ok(text) => return Ok(text.into()),
            Err(_) => "has printed text that is not valid UTF-8",
        };
        Err(Error::Password(format!("the password command {why}")))
    }
}

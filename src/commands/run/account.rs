//! What became of the run? Collects what `--report` tells, and writes it when all is over, however it ended. The one place
//! that knows the outcome of a run. The report is not written when dlock is killed with -9.

use crate::cli;
use crate::clock::Moment;
use crate::error::{self, Error};
use crate::exit::Exit;
use crate::law::JobEnd;
use crate::lease::Loss;
use crate::lock::{Fence, Token};
use crate::output::report::{self, HowLost, Outcome, Report};
use crate::output::time::millis;
use crate::output::{Kind, Printer};
use rustix::fs::{Access, access};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What is known of a run; nothing to begin with.
#[derive(Debug, Default)]
pub struct Account {
    /// The store, without its secret.
    pub store: Option<String>,
    /// When the lock was first asked for.
    pub asked: Option<Moment>,
    /// When it was granted.
    pub granted: Option<(Moment, Fence)>,
    /// Its slot.
    pub slot: Option<u32>,
    /// Whether a hold of the job around served.
    pub nested: bool,
    /// Whether the command was started.
    pub started: bool,
    /// How the command ended.
    pub job: Option<JobEnd>,
    /// How the lock was lost.
    pub lost: Option<Loss>,
}

impl Account {
    /// The report of a run that ends now, and so.
    fn report<'a>(&'a self, flags: &'a cli::Run, result: &anyhow::Result<Exit>) -> Report<'a> {
        let now = Moment::now();
        let exit = result.as_ref().copied().unwrap_or_else(error::exit_of);
        let outcome = self.outcome(exit);
        let (exit_status, signal) = match (self.job, exit) {
            (Some(JobEnd::Status(status)), _) => (Some(status), None),
            (Some(JobEnd::Signal(signal)), _) => (None, Some(signal)),
            (None, Exit::Signal(signal)) => (None, Some(signal)),
            (None, _) => (None, None),
        };
        let lost = self.lost.filter(|_| outcome == Outcome::Lost).map(|how| match how {
            Loss::Deadline => HowLost::Expired,
            Loss::NotHeld => HowLost::Vanished,
            Loss::Revoked => HowLost::Forced,
            Loss::Asked => HowLost::Asked,
        });
        let waited_until = self.granted.map_or(now, |(at, _)| at);
        Report {
            outcome,
            status: exit.code(),
            started: self.started,
            exit_status,
            signal,
            lost,
            key: flags.key.first().map(ToString::to_string),
            keys: flags.keys().iter().map(ToString::to_string).collect(),
            store: self.store.as_deref(),
            waited_ms: self.asked.map(|asked| millis(waited_until.since(asked))),
            held_ms: self.granted.map(|(at, _)| millis(now.since(at))),
            fence: self.granted.map(|(_, fence)| fence),
            slot: self.slot,
            nested: self.nested,
            error: result.as_ref().err().map(error::line),
        }
    }

    fn outcome(&self, exit: Exit) -> Outcome {
        match exit {
            Exit::Signal(_) if !self.started => Outcome::Interrupted,
            Exit::Ok | Exit::Job(_) | Exit::Signal(_) => Outcome::Ran,
            Exit::Busy(_) => Outcome::Busy,
            Exit::Lost => Outcome::Lost,
            Exit::Unavailable => Outcome::Unreachable,
            Exit::TimedOut => Outcome::Timeout,
            Exit::CannotExecute | Exit::NotFound => Outcome::NotStarted,
            Exit::Denied => Outcome::Denied,
            Exit::Usage | Exit::Config => Outcome::Invalid,
            Exit::No | Exit::Internal | Exit::Output => Outcome::Fault,
        }
    }
}

/// Where the report goes.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    file: PathBuf,
}

impl Place {
    /// Resolves the path, and makes sure that a report can be written there: nobody should wait for a lock first, to hear
    /// then that it cannot.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let refuse =
            |why: &str| Error::Config(format!("no report can be written to {}: {why}", path.display()));
        let file = match fs::canonicalize(path) {
            // A rename would put a file in place of a device or pipe, and so break it for everybody.
            Ok(file) if !file.is_file() => return Err(refuse("that is not a regular file")),
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => beside(path, &refuse)?,
            Err(error) => return Err(refuse(&error.to_string())),
        };
        let directory = file.parent().unwrap_or(Path::new("/")).to_path_buf();
        access(&directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| refuse(&format!("{}: {}", directory.display(), io::Error::from(errno))))?;
        Ok(Self { directory, file })
    }

    /// Writes the report of a run that is over. If that fails the run is what it was.
    pub fn write(
        &self,
        account: &Account,
        flags: &cli::Run,
        result: &anyhow::Result<Exit>,
        printer: &Printer,
    ) {
        let text = report::text(&account.report(flags, result)).map_err(io::Error::other);
        if let Err(error) = text.and_then(|text| self.replace(&text)) {
            let text = format!("the report could not be written to {}: {error}", self.file.display());
            printer.say(Kind::Warning, &text);
        }
    }

    /// Not synced to the disk: a dlock that was interrupted must be gone at once, and nothing relies on a report.
    fn replace(&self, text: &str) -> io::Result<()> {
        let random = Token::random().map_err(io::Error::other)?;
        let temporary = self.directory.join(format!(".dlock-report-{}", &random.secret()[..16]));
        let mut file = File::create_new(&temporary)?;
        let done = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, &self.file));
        if done.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        done
    }
}

/// The full path of a file that does not exist, in a directory that does.
fn beside(path: &Path, refuse: &dyn Fn(&str) -> Error) -> Result<PathBuf, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refuse("that is not the name of a file"));
    };
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(refuse("there is no such directory, and no name of a file"));
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let directory = fs::canonicalize(parent).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refuse("there is no such directory; make it first"),
        _ => refuse(&error.to_string()),
    })?;
    Ok(directory.join(name))
}

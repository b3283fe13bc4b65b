//! Where does the report of `--report` go? Whether it can be written there is known before the lock is asked for. It is
//! written when all is over, however the run ended; not when dlock is killed with -9.
//!
//! dlock may have rights that others on this machine lack, and the path may lead through a directory that they can write.
//! So a link is followed only if it belongs to root or to the caller, whatever the kernel is set to.

use super::report::RunReport;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::Token;
use crate::output::{Kind, Printer, What, json};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, accessat, fstat, openat, readlinkat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// The kernel follows no more links than this, either.
const LINKS_MAX: usize = 40;

#[derive(Debug)]
pub struct ReportFile(PathBuf);

impl ReportFile {
    /// Makes sure that a report can be written there: nobody should wait for a lock first, to hear then that it cannot.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let can_be_written = Spot::reach(path).and_then(|spot| {
            let rights = Access::WRITE_OK | Access::EXEC_OK;
            accessat(&spot.directory, ".", rights, AtFlags::empty()).map_err(said)
        });
        match can_be_written {
            Ok(()) => Ok(Self(path.into())),
            Err(why) => Err(Error::Config(format!("no report can be written to {}: {why}", path.display()))),
        }
    }

    /// Writes the report of a run that is over. If that fails the run is what it was.
    pub fn write(
        &self,
        report: &RunReport,
        flags: &cli::Run,
        result: &anyhow::Result<Exit>,
        printer: &Printer,
    ) {
        let text = json::line(&report.finished(flags, result)).map_err(|error| error.to_string());
        let written = text.and_then(|text| {
            let spot = Spot::reach(&self.0)?;
            spot.replace(&text).map_err(|error| error.to_string())
        });
        if let Err(why) = written {
            let text = format!("the report could not be written to {}: {why}", self.0.display());
            printer.say(Kind::Warning, What::Unwritten, &text);
        }
    }
}

/// A name in a directory that has been reached; nobody can put another directory in its place.
struct Spot {
    directory: OwnedFd,
    name: OsString,
}

impl Spot {
    /// Goes there, step by step. The name is none of a link, and need not exist.
    fn reach(path: &Path) -> Result<Self, String> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err("that is no name of a file".into());
        }
        let mut way = Way { directory: enter(".")?, rest: Vec::new(), links: 0 };
        way.turn_to(path)?;
        way.arrive()
    }

    /// Not synced to the disk: a dlock that was interrupted must be gone at once, and nothing relies on a report.
    fn replace(&self, text: &str) -> io::Result<()> {
        let random = Token::random().map_err(io::Error::other)?;
        let temporary = format!(".dlock-report-{}", &random.secret()[..16]);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, &temporary, flags, Mode::from_raw_mode(0o666))?;
        let done = File::from(file)
            .write_all(text.as_bytes())
            .and_then(|()| Ok(renameat(&self.directory, &temporary, &self.directory, &self.name)?));
        if done.is_err() {
            let _ = unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        done
    }
}

struct Way {
    /// Where it has come to.
    directory: OwnedFd,
    /// The steps that are still to be taken, the next last.
    rest: Vec<OsString>,
    links: usize,
}

impl Way {
    fn arrive(mut self) -> Result<Spot, String> {
        let no_file = || "that is no name of a file".to_owned();
        loop {
            let step = self.rest.pop().ok_or_else(no_file)?;
            let is_last = self.rest.is_empty();
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match openat(&self.directory, &step, flags, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT) if is_last => return Ok(Spot { directory: self.directory, name: step }),
                Err(Errno::NOENT) => return Err("there is no such directory; make it first".into()),
                Err(errno) => return Err(said(errno)),
            };
            let stat = fstat(&found).map_err(said)?;
            match kind(&stat) {
                FileType::Symlink => self.follow(&found, &stat, &step)?,
                FileType::Directory if !is_last || step == ".." => self.directory = found,
                FileType::RegularFile if is_last => {
                    return Ok(Spot { directory: self.directory, name: step });
                }
                // A rename would put a file in place of a device or pipe, and so break it for everybody.
                _ if is_last => return Err("that is not a regular file".into()),
                _ => return Err(said(Errno::NOTDIR)),
            }
        }
    }

    fn follow(&mut self, link: &OwnedFd, stat: &Stat, step: &OsStr) -> Result<(), String> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(said(Errno::LOOP));
        }
        if ![0, geteuid().as_raw()].contains(&stat.st_uid) {
            return Err(format!(
                "'{}' is a link that belongs to somebody else (user {}), and is not followed",
                step.display(),
                stat.st_uid
            ));
        }
        // A link of /proc leads to what has no name.
        let target = statat(&self.directory, step, AtFlags::empty()).map(|target| kind(&target));
        if !matches!(target, Ok(FileType::RegularFile | FileType::Directory) | Err(_)) {
            return Err("that is not a regular file".into());
        }
        let target = readlinkat(link, "", Vec::new()).map_err(said)?;
        self.turn_to(Path::new(&OsString::from_vec(target.into_bytes())))
    }

    /// Goes on by this path, and then by what was to go before.
    fn turn_to(&mut self, path: &Path) -> Result<(), String> {
        if path.is_absolute() {
            self.directory = enter("/")?;
        }
        let steps = path.components().rev().filter_map(|step| match step {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.rest.extend(steps);
        Ok(())
    }
}

fn enter(directory: &str) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, directory, flags, Mode::empty()).map_err(said)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn said(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}

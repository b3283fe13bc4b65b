//! Writes the file of `--report`. Whether it can be written is checked before the lock is asked
//! for. It is written at the end, however the run ended, but not if dlock is killed with KILL.
//!
//! dlock may have rights that other users of this machine lack, and the path may lead through a
//! directory that they can write. So a link is followed only if it belongs to root or to the
//! caller, whatever the kernel's settings are.

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

/// The kernel's own limit for links in a path.
const LINKS_MAX: usize = 40;

#[derive(Debug)]
pub struct ReportFile(PathBuf);

impl ReportFile {
    /// Checks that a report can be written there, before the run waits for a lock.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let can_be_written = Destination::find_destination(path).and_then(|destination| {
            let rights = Access::WRITE_OK | Access::EXEC_OK;
            accessat(&destination.directory, ".", rights, AtFlags::empty()).map_err(errno_text)
        });
        match can_be_written {
            Ok(()) => Ok(Self(path.into())),
            Err(why) => Err(Error::Config(format!("no report can be written to {}: {why}", path.display()))),
        }
    }

    /// Writes the report of a finished run. If that fails, the run's status does not change.
    pub fn write(
        &self,
        report: &RunReport,
        flags: &cli::Run,
        result: &anyhow::Result<Exit>,
        printer: &Printer,
    ) {
        let text = json::line(&report.finished(flags, result)).map_err(|error| error.to_string());
        let written = text.and_then(|text| {
            let destination = Destination::find_destination(&self.0)?;
            destination.replace(&text).map_err(|error| error.to_string())
        });
        if let Err(why) = written {
            let text = format!("the report could not be written to {}: {why}", self.0.display());
            printer.say(Kind::Warning, What::Unwritten, &text);
        }
    }
}

/// A name in a directory that is open, so that no other directory can be put in its place.
struct Destination {
    directory: OwnedFd,
    name: OsString,
}

impl Destination {
    /// Opens the directory step by step. The name is not a link, and need not exist.
    fn find_destination(path: &Path) -> Result<Self, String> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err("that is not a file name".into());
        }
        let mut walk = PathWalk { directory: enter(".")?, rest: Vec::new(), links: 0 };
        walk.push_path(path)?;
        walk.finish()
    }

    /// Replaces the file by one with this text, in one step. The file is not synced, because an
    /// interrupted dlock must end at once, and nothing depends on a report.
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

struct PathWalk {
    /// The directory reached so far.
    directory: OwnedFd,
    /// The remaining path components, the next one last.
    rest: Vec<OsString>,
    links: usize,
}

impl PathWalk {
    fn finish(mut self) -> Result<Destination, String> {
        let no_file = || "that is not a file name".to_owned();
        loop {
            let step = self.rest.pop().ok_or_else(no_file)?;
            let is_last = self.rest.is_empty();
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match openat(&self.directory, &step, flags, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT) if is_last => {
                    return Ok(Destination { directory: self.directory, name: step });
                }
                Err(Errno::NOENT) => return Err("there is no such directory; make it first".into()),
                Err(errno) => return Err(errno_text(errno)),
            };
            let stat = fstat(&found).map_err(errno_text)?;
            match kind(&stat) {
                FileType::Symlink => self.follow(&found, &stat, &step)?,
                FileType::Directory if !is_last || step == ".." => self.directory = found,
                FileType::RegularFile if is_last => {
                    return Ok(Destination { directory: self.directory, name: step });
                }
                // A rename would replace a device or pipe by a file, and break it for everybody.
                _ if is_last => return Err("that is not a regular file".into()),
                _ => return Err(errno_text(Errno::NOTDIR)),
            }
        }
    }

    fn follow(&mut self, link: &OwnedFd, stat: &Stat, step: &OsStr) -> Result<(), String> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(errno_text(Errno::LOOP));
        }
        if ![0, geteuid().as_raw()].contains(&stat.st_uid) {
            return Err(format!(
                "'{}' is a link that belongs to another user ({}), and is not followed",
                step.display(),
                stat.st_uid
            ));
        }
        // A link in /proc may lead to something that has no path, such as a pipe.
        let target = statat(&self.directory, step, AtFlags::empty()).map(|target| kind(&target));
        if !matches!(target, Ok(FileType::RegularFile | FileType::Directory) | Err(_)) {
            return Err("that is not a regular file".into());
        }
        let target = readlinkat(link, "", Vec::new()).map_err(errno_text)?;
        self.push_path(Path::new(&OsString::from_vec(target.into_bytes())))
    }

    /// Puts this path before the remaining components.
    fn push_path(&mut self, path: &Path) -> Result<(), String> {
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
    openat(CWD, directory, flags, Mode::empty()).map_err(errno_text)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn errno_text(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}

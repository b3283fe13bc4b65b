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
    Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, accessat, fstat, openat, openat2,
    readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

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
    /// Follows the links of the path and opens the directory. The name is not a link, and need not
    /// exist.
    fn find_destination(path: &Path) -> Result<Self, String> {
        let no_file = || "that is not a file name".to_owned();
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(no_file());
        }
        let mut path = path.to_owned();
        for _ in 0..=LINKS_MAX {
            if let Some(without) = without_first_link(&path)? {
                path = without;
                continue;
            }
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(no_file()) };
            let directory = open(parent).map_err(|errno| match errno {
                Errno::NOENT => "there is no such directory; make it first".into(),
                errno => errno_text(errno),
            })?;
            // A rename would replace a device or pipe by a file, and break it for everybody.
            return match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| kind(&stat)) {
                Ok(FileType::RegularFile) | Err(Errno::NOENT) => Ok(Self { directory, name: name.into() }),
                Ok(_) => Err("that is not a regular file".into()),
                Err(errno) => Err(errno_text(errno)),
            };
        }
        Err(errno_text(Errno::LOOP))
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

/// The path with its first link replaced by what that names; None if there is no link.
fn without_first_link(path: &Path) -> Result<Option<PathBuf>, String> {
    let steps: Vec<&Path> = path.ancestors().collect();
    for step in steps.into_iter().rev().filter(|step| !step.as_os_str().is_empty()) {
        let link = match open(step) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno_text(errno)),
        };
        let stat = fstat(&link).map_err(errno_text)?;
        if kind(&stat) != FileType::Symlink {
            continue;
        }
        if ![0, geteuid().as_raw()].contains(&stat.st_uid) {
            return Err(format!(
                "'{}' is a link that belongs to another user ({}), and is not followed",
                step.display(),
                stat.st_uid
            ));
        }
        // A link in /proc may lead to something that has no path, such as a pipe.
        let target = statat(CWD, step, AtFlags::empty()).map(|target| kind(&target));
        if !matches!(target, Ok(FileType::RegularFile | FileType::Directory) | Err(_)) {
            return Err("that is not a regular file".into());
        }
        let target = readlinkat(&link, "", Vec::new()).map_err(errno_text)?;
        let (Some(parent), Ok(rest)) = (step.parent(), path.strip_prefix(step)) else { return Ok(None) };
        let target = parent.join(OsString::from_vec(target.into_bytes()));
        return Ok(Some(if rest.as_os_str().is_empty() { target } else { target.join(rest) }));
    }
    Ok(None)
}

/// Opens a file, directory or link to look at it, and follows no link on the way. Before Linux 5.6,
/// and where a sandbox forbids openat2, it follows a link that another process has put there since
/// the caller looked.
fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(Errno::NOSYS | Errno::PERM) => openat(CWD, path, flags, Mode::empty()),
        opened => opened,
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn errno_text(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}

//! Checks whether this directory can hold locks, for `dlock doctor`: tests what the store relies
//! on, with temporary files that it removes. Does not create the directory.

use super::directory::{Directory, FileName, FileRole};
use super::liveness::{LifeFile, look_for};
use super::mutex::Mutex;
use crate::clock::{Moment, Namespace};
use crate::lock::Token;
use crate::store::Error;
use crate::store::engine::coordinator::Watching;
use crate::store::probe::{self, Disk};
use rustix::fs::{fstat, fstatfs};
use std::path::Path;
use std::sync::Arc;

/// The names of file system types, from linux/magic.h and the drivers' sources.
const FILE_SYSTEMS: [(u64, &str); 11] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "XFS"),
    (0x9123_683E, "Btrfs"),
    (0x2FC1_2FC1, "ZFS"),
    (0xF2F5_2010, "F2FS"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlayfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x4D44, "FAT"),
    (0x3153_464A, "JFS"),
];

/// Checks a directory. `shown` names the store in messages.
pub fn probe(path: &Path, shown: &str) -> probe::Directory {
    let found = path.exists().then(|| disk(path, shown));
    probe::Directory { path: path.into(), found }
}

fn disk(path: &Path, shown: &str) -> Result<Disk, Error> {
    let directory = Arc::new(Directory::open(path, shown)?);
    let fs = fstatfs(&*directory).map_err(|errno| directory.error("use the directory", errno))?;
    let mode =
        fstat(&*directory).map_err(|errno| directory.error("use the directory", errno))?.st_mode & 0o7777;
    let token = Token::random().map_err(|error| Error::Unavailable(format!("{shown}: {error}")))?;
    Ok(Disk {
        file_system: file_system(fs.f_type),
        mode,
        locks: locks(&directory, &token),
        fifos: fifos(&directory, &token),
        clock: Namespace::of_process().map(|_| ()).map_err(|error| error.to_string()),
    })
}

/// Locks a file by two descriptors: the second lock must be refused.
fn locks(directory: &Arc<Directory>, token: &Token) -> Result<(), String> {
    let now = Moment::now();
    let mut held = Mutex::lock(directory, token.secret(), now).map_err(|error| error.to_string())?;
    held.has_record = false;
    let second = Mutex::lock(directory, token.secret(), now);
    match second {
        Err(Error::Unreachable(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("a locked file can be locked a second time".into()),
    }
}

/// Checks that a life file shows life while it is open and death after, and that its deadline can
/// be read.
fn fifos(directory: &Directory, token: &Token) -> Result<(), String> {
    let life = LifeFile::begin(directory, token).map_err(|error| error.to_string())?;
    let during = look_for(directory, token);
    let is_heard = life.publish(Moment::now().since_boot());
    drop(life);
    let after = look_for(directory, token);
    directory.remove(&FileName::of(token.secret(), FileRole::Life)).map_err(|errno| errno.to_string())?;
    match (during, after) {
        (Watching::Watched(_), Watching::Ended) if is_heard => Ok(()),
        (Watching::Watched(_), Watching::Ended) => {
            Err("the file system does not keep the time set on a FIFO".into())
        }
        _ => Err("a FIFO does not show whether it has a reader".into()),
    }
}

/// The kernel's type is signed and its width varies; only 32 bits count.
fn file_system(f_type: impl TryInto<i64>) -> String {
    let magic = f_type.try_into().unwrap_or(0).cast_unsigned() & 0xFFFF_FFFF;
    let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == magic);
    known.map_or_else(|| format!("a file system of type {magic:#x}"), |(_, name)| (*name).into())
}

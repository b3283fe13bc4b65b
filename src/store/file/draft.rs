//! Writes the record file of one lock, and the file with its last ends. The caller has the mutex.
//!
//! A record that fits in one page of memory, as most do, is written over the old one. The kernel
//! copies a page without looking at signals, so a kill cannot cut such a write. It needs no room on
//! the disk, and leaves the file's owner and mode. A longer record, or the first one, is written to
//! a second file, which then exchanges names with the record: a kill leaves the old record or the
//! new one. The second file stays for the next such write, because making and removing files is
//! slow. It belongs to the user who made it, with the group and the mode that the directory asks
//! for.
//!
//! A [`Draft`] is prepared first and placed later, so that an operation on several locks can do all
//! that may fail, above all on a full disk, before the first lock changes.
//!
//! The ends are not part of the record, because each operation would have to read them. They are
//! appended before the record changes, so that a reader of the record, and then of its ends, misses
//! none; it leaves out ends that are newer than its record. Nothing depends on them: on a full disk
//! they are not written.
//!
//! There is no fsync. It would make every operation many times slower, and helps only after a crash
//! of the machine, which ends every hold anyway; a fence starts from the clock if its record is
//! lost.

use crate::rules::LOG_KEPT;
use crate::store::Error;
use crate::store::engine::stored_lock::EndPart;
use crate::store::file::directory::{Directory, FileName, FileRole, errno};
use rustix::fs::{OFlags, RenameFlags, Stat, renameat, renameat_with};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

/// Largest record, in bytes.
pub(super) const RECORD_MOST: u64 = 32 << 20;
/// Largest record that is written over the old one, in bytes: a page of memory, on any machine.
const PAGE: usize = 4096;
const WRITING: &str = "write the record of the lock";
/// Most bytes of the ends that are read: some times as many as dlock writes.
const ENDS_MOST: u64 = 1 << 20;

/// A record file that is there.
#[derive(Debug)]
pub(super) struct OldFile {
    file: File,
    size: usize,
}

impl OldFile {
    pub(super) fn new(fd: OwnedFd, stat: &Stat) -> Self {
        Self { file: File::from(fd), size: usize::try_from(stat.st_size).unwrap_or(0) }
    }

    /// The content; more than was there when the file was opened, if it has grown since.
    pub(super) fn read(&self) -> Result<Vec<u8>, Errno> {
        let mut content = Vec::with_capacity(self.size.max(PAGE) + 1);
        (&self.file).take(RECORD_MOST).read_to_end(&mut content).map_err(|error| errno(&error))?;
        Ok(content)
    }
}

/// A change of a record that is prepared but not yet valid.
#[derive(Debug)]
pub(super) struct Draft<'d> {
    directory: &'d Directory,
    record: FileName,
    how: How,
    ends: Vec<EndPart>,
}

#[derive(Debug)]
enum How {
    /// Written over the old record, which has this file.
    Over(File, Vec<u8>),
    /// Written to a second file, which is removed afterwards if the record is not longer than a page.
    Beside { is_long: bool },
    /// There is nothing to keep.
    Remove,
}

impl<'d> Draft<'d> {
    /// Prepares to write a record with this content.
    pub(super) fn write(
        directory: &'d Directory,
        record: FileName,
        old: Option<OldFile>,
        mut content: Vec<u8>,
        ends: Vec<EndPart>,
    ) -> Result<Self, Error> {
        if content.len() as u64 > RECORD_MOST {
            return Err(Error::Unavailable(format!(
                "{}: the lock has too many holders and waiters; try again when some have left",
                directory.shown(),
            )));
        }
        // Whole pages, so that there is room to write the next record over this one.
        content.resize(content.len().next_multiple_of(PAGE), b' ');
        let how = match old {
            Some(OldFile { file, size: PAGE }) if content.len() == PAGE && may_write_page() => {
                How::Over(file, content)
            }
            _ => {
                write_second(directory, &record, &content)
                    .map_err(|errno| directory.error(WRITING, errno))?;
                How::Beside { is_long: content.len() > PAGE }
            }
        };
        Ok(Self { directory, record, how, ends })
    }

    /// Prepares to remove the record.
    pub(super) fn removal(directory: &'d Directory, record: FileName) -> Self {
        Self { directory, record, how: How::Remove, ends: Vec::new() }
    }

    /// Makes the change valid, whole or not at all. Returns whether there is a record now.
    pub(super) fn place(self) -> Result<bool, Error> {
        let Self { directory, record, how, .. } = &self;
        self.add_ends().ok();
        let placed = match how {
            How::Over(file, content) => file.write_all_at(content, 0).map_err(|error| errno(&error)),
            How::Beside { .. } => exchange(directory, record, record),
            How::Remove => remove(directory, record),
        };
        placed.map_err(|errno| directory.error(WRITING, errno))?;
        if let How::Beside { is_long: false } = how {
            directory.remove(&record.with(FileRole::Draft)).ok();
        }
        self.drop_old_ends().ok();
        Ok(!matches!(how, How::Remove))
    }

    /// Appends the ends. Each line begins with its newline, so that one that was cut off spoils no
    /// other.
    fn add_ends(&self) -> Result<(), Errno> {
        let Self { directory, record, ends, .. } = self;
        if ends.is_empty() {
            return Ok(());
        }
        let file = record.with(FileRole::Ends);
        let (mut opened, _) = open_own(directory, &file, OFlags::WRONLY | OFlags::APPEND)?;
        let lines: Vec<&[u8]> = ends.iter().flat_map(|end| [&b"\n"[..], &end.value]).collect();
        opened.write_all(&lines.concat()).map_err(|error| errno(&error))
    }

    /// Drops all but the last [`LOG_KEPT`] ends, once in as many. It uses the record's second file,
    /// so the record has its place before.
    fn drop_old_ends(&self) -> Result<(), Errno> {
        let Self { directory, record, ends, .. } = self;
        let Some(last) = ends.last() else { return Ok(()) };
        let file = record.with(FileRole::Ends);
        if last.number % (LOG_KEPT as u64) < ends.len() as u64 {
            let all = last_ends(directory, record);
            let kept = all.iter().skip(all.len().saturating_sub(LOG_KEPT));
            let lines: Vec<&[u8]> = kept.flat_map(|end| [&b"\n"[..], end]).collect();
            write_second(directory, record, &lines.concat())?;
            exchange(directory, record, &file)?;
            directory.remove(&record.with(FileRole::Draft))?;
        }
        Ok(())
    }
}

/// Whether no limit on the size of files (ulimit -f) cuts the write of a page.
fn may_write_page() -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= PAGE as u64)
}

/// Writes the second file of a record. A new one is removed if that fails.
fn write_second(directory: &Directory, record: &FileName, content: &[u8]) -> Result<(), Errno> {
    let draft = record.with(FileRole::Draft);
    let (file, size) = open_own(directory, &draft, OFlags::WRONLY)?;
    let written = file.write_all_at(content, 0).and_then(|()| match content.len() as u64 {
        length if size > length => file.set_len(length),
        _ => Ok(()),
    });
    if written.is_err() && size == 0 {
        directory.remove(&draft).ok();
    }
    written.map_err(|error| errno(&error))
}

/// Opens a file that dlock made, or makes it, and returns its size. What else has the name is
/// removed.
fn open_own(directory: &Directory, file: &FileName, flags: OFlags) -> Result<(File, u64), Errno> {
    if let Ok(Some((fd, stat))) = directory.open_file(file.as_str(), flags, WRITING)
        && directory.has_rights(&stat)
    {
        return Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0)));
    }
    directory.remove(file)?;
    Ok((File::from(directory.create_file(file.as_str(), flags)?), 0))
}

/// Gives the second file of a record the name of a file, and that file its name. A rename would
/// wait for the disk on ext4 (mount option auto_da_alloc).
fn exchange(directory: &Directory, record: &FileName, file: &FileName) -> Result<(), Errno> {
    let (from, to) = (record.with(FileRole::Draft), file.as_str());
    match renameat_with(directory, from.as_str(), directory, to, RenameFlags::EXCHANGE) {
        // There is no such file, or the file system cannot exchange names.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            renameat(directory, from.as_str(), directory, to)
        }
        exchanged => exchanged,
    }
}

/// Removes a record with what belongs to it, except the mutex. The record goes last: as long as it
/// is there, a clean-up finds the rest.
pub(super) fn remove(directory: &Directory, record: &FileName) -> Result<(), Errno> {
    directory.remove(&record.with(FileRole::Draft))?;
    directory.remove(&record.with(FileRole::Ends))?;
    directory.remove(record)
}

/// The lines with the last ends of a lock, oldest first; none if they cannot be read.
pub(super) fn last_ends(directory: &Directory, record: &FileName) -> Vec<Vec<u8>> {
    let file = record.with(FileRole::Ends);
    let Ok(Some((fd, stat))) = directory.open_file(file.as_str(), OFlags::RDONLY, "read the history") else {
        return Vec::new();
    };
    let (mut file, mut bytes) = (File::from(fd), Vec::new());
    let from = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(ENDS_MOST);
    // What was read before an error is shown.
    file.seek(SeekFrom::Start(from)).and_then(|_| file.take(ENDS_MOST).read_to_end(&mut bytes)).ok();
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

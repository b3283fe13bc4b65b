//! Changes a record file in one act. The file begins with a [`Header`] of fixed length, which says
//! where in the file the rest is: the record itself (the body), the log of the queue, the notes
//! about waiters, and the last ends. A change writes the new body to unused space, appends to the
//! other parts behind their valid length, and then writes the header. The header is so short that a
//! kill cannot cut it: if dlock is killed while it writes, the old record stays. So the file keeps
//! its owner and mode, whichever user changes it, and mostly needs no more space on the disk. A draft and
//! its header are written separately, so that an operation on several locks can do all that may
//! fail before the first lock changes.
//!
//! A reader without the mutex reads the header again afterwards. The parts that a header names are
//! not overwritten before there is another header.
//!
//! There is no fsync. It would make every operation many times slower, and helps only after a crash
//! of the machine, which ends every hold anyway; a fence starts from the clock if its record is
//! lost. A file that a crash has cut off differs from a damaged one by its date, before this boot.

use crate::store::Error;
use crate::store::file::boot::Boot;
use crate::store::file::directory::{Directory, FileName, FileRole};
use crate::store::file::queue::{Change, How, Part, Room};
use rustix::fs::{OFlags, fstat, ftruncate, renameat};
use rustix::io::{Errno, pread, pwrite};
use serde::Deserialize;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(super) const FORMAT: u32 = 1;
/// Largest part of a record, in bytes.
pub(super) const RECORD_MOST: u64 = 32 << 20;
/// Largest record file, unused space included, in bytes.
pub(super) const FILE_MOST: u64 = 8 * RECORD_MOST;
/// A file is truncated if it is this many times larger than its content, and larger than this size.
const SLACK: (u64, u64) = (4, 64 * 1024);

/// Where the parts are in the file: one line of JSON of fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Header {
    format: u32,
    /// Number of changes of the record.
    turn: u64,
    body: Extent,
    queue: Extent,
    notes: Extent,
    ends: Extent,
}

/// The place of a part in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Extent {
    at: u64,
    /// Number of valid bytes.
    length: u64,
    /// Number of bytes that it may grow to.
    room: u64,
}

impl Extent {
    const NONE: Self = Self { at: Header::LENGTH as u64, length: 0, room: 0 };
    /// Room is a multiple of this, in bytes.
    const PIECE: u64 = 2048;

    fn end(self) -> u64 {
        self.at + self.room
    }

    /// The first place with this much free room.
    fn free(taken: &[Self], length: u64, room: u64) -> Self {
        let fits = |at: u64| taken.iter().all(|other| at + room <= other.at || other.end() <= at);
        let ends = taken.iter().map(|other| other.end());
        let at = ends.chain([Self::NONE.at]).filter(|at| fits(*at)).min();
        Self { at: at.unwrap_or(Self::NONE.at), length, room }
    }

    /// An extent with twice the room that it needs now.
    fn growing(taken: &[Self], length: u64) -> Self {
        if length == 0 {
            return Self::NONE;
        }
        Self::free(taken, length, (2 * length).next_multiple_of(Self::PIECE))
    }

    fn longer(self, by: usize) -> Self {
        Self { length: self.length + by as u64, ..self }
    }

    fn fits(self) -> bool {
        let has_room = self.length <= self.room && self.room <= 3 * RECORD_MOST;
        self.at >= Self::NONE.at && self.at <= FILE_MOST - 3 * RECORD_MOST && has_room
    }
}

impl Header {
    /// In bytes. Less than a page, so it is written whole or not at all.
    pub(super) const LENGTH: usize = 256;
    const FIRST: Self = Self {
        format: FORMAT,
        turn: 0,
        body: Extent::NONE,
        queue: Extent::NONE,
        notes: Extent::NONE,
        ends: Extent::NONE,
    };

    fn parse(bytes: &[u8]) -> Option<Self> {
        let line = bytes.get(..Self::LENGTH)?.strip_suffix(b"\n")?;
        let header: Self = serde_json::from_slice(line).ok()?;
        let fits = header.parts().into_iter().all(Extent::fits);
        (header.format == FORMAT && fits).then_some(header)
    }

    const fn parts(self) -> [Extent; 4] {
        [self.body, self.queue, self.notes, self.ends]
    }

    fn bytes(self) -> Vec<u8> {
        let part = |Extent { at, length, room }: Extent| format!("[{at:10},{length:10},{room:10}]");
        let Self { format, turn, .. } = self;
        let [body, queue, notes, ends] = self.parts().map(part);
        let line = format!(
            "{{\"format\":{format},\"turn\":{turn:20},\"body\":{body},\"queue\":{queue},\"notes\":{notes},\"ends\":{ends}}}"
        );
        format!("{line:width$}\n", width = Self::LENGTH - 1).into_bytes()
    }

    /// The header after this change, for a body of `length` bytes. Reuses nothing that the present
    /// header names.
    fn next(self, length: u64, change: &Change) -> Self {
        let mut taken = self.parts().to_vec();
        let mut next = |now: Extent, Part { how, bytes }: &Part| match how {
            How::Append => now.longer(bytes.len()),
            How::Anew => {
                let anew = Extent::growing(&taken, bytes.len() as u64);
                taken.push(anew);
                anew
            }
        };
        let queue = next(self.queue, &change.log);
        let notes = next(self.notes, &change.notes);
        let ends = next(self.ends, &change.ends);
        let body = Extent::free(&taken, length, length);
        Self { format: FORMAT, turn: self.turn.wrapping_add(1), body, queue, notes, ends }
    }
}

/// The content of a record file.
#[derive(Debug)]
pub(super) struct Content {
    /// The body; the whole file if it is not dlock's.
    pub(super) bytes: Vec<u8>,
    /// The log of the queue.
    pub(super) queue: Vec<u8>,
    /// The last ends, one per line, oldest first, if they were asked for.
    pub(super) ends: Vec<u8>,
    pub(super) slot: Option<Arc<Slot>>,
}

/// An open record file with a valid header.
#[derive(Debug)]
pub(super) struct Slot {
    file: OwnedFd,
    header: Header,
    size: u64,
}

impl Slot {
    /// Bytes that may be appended to each part.
    pub(super) fn room(&self) -> Room {
        let Header { queue, notes, ends, .. } = self.header;
        let left = |part: Extent| part.room - part.length;
        Room { log: left(queue), notes: left(notes), noted: notes.length, ends: left(ends) }
    }

    /// Whether the file has any ends.
    pub(super) fn has_ends(&self) -> bool {
        self.header.ends.length > 0
    }

    /// All ends in the file.
    pub(super) fn ends(&self) -> Result<Vec<u8>, Errno> {
        read_at(&self.file, self.header.ends.at, self.header.ends.length)
    }

    /// Number of changes of the record.
    pub(super) fn turn(&self) -> u64 {
        self.header.turn
    }

    /// Reads a range of the notes, cut at their end.
    pub(super) fn notes(&self, (at, length): (u64, u64)) -> Result<Vec<u8>, Errno> {
        let notes = self.header.notes;
        let (at, end) = (at.min(notes.length), at.saturating_add(length).min(notes.length));
        read_at(&self.file, notes.at + at, end - at)
    }

    /// Reads all notes.
    pub(super) fn all_notes(&self) -> Result<Vec<u8>, Errno> {
        self.notes((0, u64::MAX))
    }
}

/// A record that is written but not yet valid.
#[derive(Debug)]
pub(super) enum Draft {
    /// In space that the file's header does not name.
    Spare {
        /// The file, with its present header.
        slot: Arc<Slot>,
        /// The header that names the new record.
        next: Header,
    },
    /// In a file of its own, if there is no record file yet.
    File {
        /// The draft.
        at: FileName,
        /// The record file that it becomes.
        record: FileName,
    },
}

impl Draft {
    pub(super) fn write(
        directory: &Directory,
        record: FileName,
        slot: Option<Arc<Slot>>,
        body: &[u8],
        mut change: Change,
    ) -> Result<Self, Errno> {
        let Some(slot) = slot else { return Self::new(directory, record, body, &change) };
        loop {
            let next = slot.header.next(body.len() as u64, &change);
            match write_parts(directory, &record, &slot.file, next, body, &change) {
                // Without the ends the lock can still be released, and nothing depends on them.
                Err(Errno::NOSPC | Errno::DQUOT) if !change.ends.bytes.is_empty() => {
                    change.ends = Part::default();
                }
                written => return written.map(|()| Self::Spare { slot, next }),
            }
        }
    }

    fn new(directory: &Directory, record: FileName, body: &[u8], change: &Change) -> Result<Self, Errno> {
        let draft = record.with(FileRole::Draft);
        let file = match directory.create_file(draft.as_str(), OFlags::WRONLY) {
            Err(Errno::EXIST) => {
                // Left by a dlock that was killed; it may belong to another user.
                directory.remove(&draft)?;
                directory.create_file(draft.as_str(), OFlags::WRONLY)?
            }
            created => created?,
        };
        let next = Header::FIRST.next(body.len() as u64, change);
        let written = write_parts(directory, &record, &file, next, body, change)
            .and_then(|()| write_at(directory, &record, &file, &next.bytes(), 0));
        let this = Self::File { at: draft, record };
        if written.is_err() {
            this.discard(directory);
        }
        written.map(|()| this)
    }

    /// Makes the draft valid, whole or not at all.
    pub(super) fn place(&self, directory: &Directory) -> Result<(), Error> {
        let placed = match self {
            Self::Spare { slot, next } => {
                let placed = write_all(&slot.file, &next.bytes(), 0);
                let end = next.parts().map(Extent::end).into_iter().max().unwrap_or(0);
                if placed.is_ok() && slot.size > SLACK.1 && slot.size > end * SLACK.0 {
                    // Failing to truncate does no harm.
                    ftruncate(&slot.file, end).ok();
                }
                placed
            }
            Self::File { at, record } => renameat(directory, at.as_str(), directory, record.as_str()),
        };
        placed.map_err(|errno| unwritten(directory, errno))
    }

    /// Removes the draft.
    pub(super) fn discard(&self, directory: &Directory) {
        if let Self::File { at, .. } = self {
            directory.remove(at).ok();
        }
    }
}

/// Writes all but the header.
fn write_parts(
    directory: &Directory,
    record: &FileName,
    file: &OwnedFd,
    next: Header,
    body: &[u8],
    change: &Change,
) -> Result<(), Errno> {
    let tail = |part: Extent, added: &Part| part.at + part.length - added.bytes.len() as u64;
    for (part, added) in [(next.notes, &change.notes), (next.queue, &change.log), (next.ends, &change.ends)] {
        write_at(directory, record, file, &added.bytes, tail(part, added))?;
    }
    write_at(directory, record, file, body, next.body.at)
}

pub(super) fn unwritten(directory: &Directory, errno: Errno) -> Error {
    directory.error("write the record of the lock", errno)
}

/// What a record is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// To read it, while others may change it.
    Look,
    /// To read it with the last ends.
    LookAtAll,
    /// To change it: the caller has the mutex.
    Change,
}

/// Reads a record file. None if there is none, or if a crash of the machine has cut it.
pub(super) fn load(directory: &Directory, name: &FileName, access: Access) -> Result<Option<Content>, Error> {
    /// Most attempts to read it while it changes.
    const LOOKS: u32 = 1000;
    let doing = "read the record of the lock";
    let failed = |errno| directory.error(doing, errno);
    let flags = match access {
        Access::Look | Access::LookAtAll => OFlags::RDONLY,
        Access::Change => OFlags::RDWR,
    };
    let Some((file, stat)) = directory.open_file(name.as_str(), flags, doing)? else { return Ok(None) };
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > FILE_MOST {
        return Err(directory.strange(name.as_str(), &format!("has {size} bytes, more than a record")));
    }
    // Mostly all of the content.
    let start = read_at(&file, 0, size.min(4 * 1024)).map_err(failed)?;
    let head = || read_at(&file, 0, Header::LENGTH as u64).map_err(failed);
    let part = |part: Extent| {
        let known = start.get(usize_of(part.at)..usize_of(part.at + part.length));
        match known.filter(|_| access == Access::Change) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => read_at(&file, part.at, part.length).map_err(failed),
        }
    };
    for _ in 0..LOOKS {
        let seen = match access {
            Access::Change => start.get(..Header::LENGTH).unwrap_or_default().to_vec(),
            Access::Look | Access::LookAtAll => head()?,
        };
        let is_same = || Ok::<_, Error>(access == Access::Change || head()? == seen);
        let Some(header) = Header::parse(&seen) else {
            // A header that is being written may have been read in part.
            if is_same()? {
                break;
            }
            continue;
        };
        let (bytes, queue) = (part(header.body)?, part(header.queue)?);
        let ends = if access == Access::LookAtAll { part(header.ends)? } else { Vec::new() };
        if is_same()? {
            let is_whole =
                bytes.len() == usize_of(header.body.length) && queue.len() == usize_of(header.queue.length);
            if !is_whole && is_older_than_this_boot(&file) {
                return Ok(None);
            }
            let slot = Some(Arc::new(Slot { file, header, size }));
            return Ok(Some(Content { bytes, queue, ends, slot }));
        }
    }
    let bytes = read_at(&file, 0, FILE_MOST).map_err(failed)?;
    if bytes.iter().all(|byte| *byte == 0) && is_older_than_this_boot(&file) {
        return Ok(None);
    }
    Ok(Some(Content { bytes, queue: Vec::new(), ends: Vec::new(), slot: None }))
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Reads at most this many bytes; fewer at the end of the file.
fn read_at(file: &OwnedFd, at: u64, most: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; usize_of(most.min(64 * 1024))];
    let mut length = 0;
    loop {
        match pread(file, &mut bytes[length..], at + length as u64) {
            Err(Errno::INTR) => continue,
            Ok(0) => break,
            count => length += count?,
        }
        if length as u64 == most {
            break;
        }
        if length == bytes.len() {
            bytes.resize(usize_of(most.min(4 * length as u64)), 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn is_older_than_this_boot(file: &OwnedFd) -> bool {
    let boot = i64::try_from(Boot::new("").offset() / 1_000_000).unwrap_or(i64::MAX);
    fstat(file).is_ok_and(|stat| stat.st_ctime < boot)
}

#[cfg_attr(not(test), expect(unused_variables, reason = "tests fill the disk for one record"))]
fn write_at(
    directory: &Directory,
    record: &FileName,
    file: &OwnedFd,
    bytes: &[u8],
    at: u64,
) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    #[cfg(test)]
    if directory.is_full_for(record) {
        return Err(Errno::NOSPC);
    }
    write_all(file, bytes, at)
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(file, &bytes[done..], at + done as u64) {
            Err(Errno::INTR) => {}
            written => done += written?,
        }
    }
    Ok(())
}

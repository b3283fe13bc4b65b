//! The record file of one lock: a line with what the record means on this machine (which boot its
//! times belong to, and their offset), and then the record, in the one format that
//! [`crate::store::engine::stored_lock`] has. Reads and checks it, and adds what holders and waiters have
//! published in their life files. [`super::draft`] writes it.
//!
//! Time is the machine's CLOCK_BOOTTIME plus an offset that is fixed when the record begins. It
//! never steps, and reads like microseconds since 1970. Records have different offsets if the wall
//! clock was set between their beginnings. An operation on several such records shifts them to
//! one time: see [`RecordFile::lift`]. After another boot no holder or waiter can be alive: both
//! are dropped, and fence and log stay.
//!
//! A reader without the mutex may see a record half written; its sum shows that, and the
//! reader reads again. A file that a crash of the machine has cut off differs from a damaged one by
//! its date, before this boot.
//!
//! Any user with write access may have put anything into the file: every value has bounds.

use crate::lock::Token;
use crate::rules::{
    ABSENCE, Absence, Due, LOG_KEPT, Lock, Phase, Record, SILENCE, TICKET_KEPT, Time, Waiter, millis,
};
use crate::store::Error;
use crate::store::engine::bounds::{Number, check_number, each_number};
use crate::store::engine::coordinator::{Purpose, Reading};
use crate::store::engine::stored_lock::StoredLock;
use crate::store::file::boot::{Boot, due};
use crate::store::file::directory::{Directory, FileName, FileRole};
use crate::store::file::draft::{OldFile, RECORD_MOST, last_ends};
use crate::store::file::liveness::{Published, published};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::thread::sleep;
use std::time::Duration;

/// Most attempts to read a record without the mutex, and the pause between two of them. Writing a
/// page takes less than a microsecond, unless the kernel lets the writer wait.
const LOOKS: (u32, Duration) = (20, Duration::from_millis(1));

/// The first line of a record file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// Checksum of the other values and the body. Zero is not checked: an operator who edits the
    /// record by hand may set it.
    sum: u64,
    /// Greater after every change.
    version: u64,
    /// The offset of the times, in microseconds since 1970.
    offset: u64,
    boot: String,
}

/// The record of one lock.
#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) stored: StoredLock,
    /// The offset of its times.
    pub(super) offset: u64,
    /// None if there is no file.
    pub(super) file: Option<OldFile>,
}

/// Why a file could not be parsed.
enum Bad {
    /// It is dlock's, but not whole.
    Cut,
    Damaged(String),
}

impl Header {
    pub(super) fn new(version: u64, offset: u64, boot: &Boot) -> Self {
        Self { sum: 0, version, offset, boot: boot.id.clone() }
    }

    /// The content of the file with this body.
    pub(super) fn content(mut self, body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        self.sum = self.sum_with(body);
        let mut content = serde_json::to_vec(&self)?;
        content.push(b'\n');
        content.extend_from_slice(body);
        content.push(b'\n');
        Ok(content)
    }

    /// Detects writes that were cut off, not forgeries.
    fn sum_with(&self, body: &[u8]) -> u64 {
        let header = [self.version.to_le_bytes(), self.offset.to_le_bytes()].concat();
        let words = header.chunks(8).chain(self.boot.as_bytes().chunks(8)).chain(body.chunks(8));
        words.fold(0, |sum: u64, word| {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        })
    }

    /// Splits and checks the content of a file. Returns the header, and the body.
    fn parse(content: &[u8]) -> Result<(Self, &[u8]), Bad> {
        let end = content.iter().position(|byte| *byte == b'\n').unwrap_or(content.len());
        // A shorter record is padded.
        let (line, body) = (&content[..end], content[end..].trim_ascii());
        let header: Self = match serde_json::from_slice(line) {
            Ok(header) => header,
            Err(_) if content.iter().all(|byte| *byte == 0) => return Err(Bad::Cut),
            Err(_) => return Err(Bad::Damaged("it has no valid header".into())),
        };
        if header.sum != 0 && header.sum != header.sum_with(body) {
            return Err(Bad::Cut);
        }
        check_number(header.version.max(header.offset)).map_err(|why| Bad::Damaged(why.into()))?;
        Ok((header, body))
    }
}

impl RecordFile {
    /// Reads the record in this file, as it is now in this boot. `name` is the lock's name, if it is
    /// known.
    pub(super) fn read(
        directory: &Directory,
        file: &FileName,
        name: Option<&str>,
        purpose: Purpose,
        boot: &Boot,
    ) -> Result<Self, Error> {
        let is_locked = purpose.is_change();
        let flags = if is_locked { OFlags::RDWR } else { OFlags::RDONLY };
        let doing = "read the record of the lock";
        let absent =
            || Self { stored: StoredLock::absent(name.unwrap_or_default()), offset: boot.offset, file: None };
        let (looks, pause) = LOOKS;
        let mut look = 0;
        loop {
            let Some((fd, stat)) = directory.open_file(file.as_str(), flags, doing)? else {
                return Ok(absent());
            };
            let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
            if size > RECORD_MOST {
                return Err(
                    directory.strange(file.as_str(), &format!("has {size} bytes, more than a record"))
                );
            }
            let old = OldFile::new(fd, &stat);
            let content = old.read().map_err(|errno| directory.error(doing, errno))?;
            look += 1;
            match Self::parse(&content, directory, file, name, boot) {
                Ok(record) => return Ok(record.complete(directory, file, old, purpose)),
                Err(Bad::Cut) if boot.is_after(stat.st_ctime) => {
                    return Ok(Self { file: Some(old), ..absent() });
                }
                // Another process may be writing it.
                Err(_) if !is_locked && look < looks => sleep(pause),
                Err(bad) => return Err(not_understood(directory, file, &bad)),
            }
        }
    }

    fn parse(
        content: &[u8],
        directory: &Directory,
        file: &FileName,
        name: Option<&str>,
        boot: &Boot,
    ) -> Result<Self, Bad> {
        let (header, body) = Header::parse(content)?;
        let (stored, used) = StoredLock::parse(body, header.version).map_err(Bad::Damaged)?;
        let is_its = FileName::of(&stored.name, FileRole::Record) == *file;
        if !is_its || name.is_some_and(|name| name != stored.name) {
            return Err(Bad::Damaged("it belongs to another lock".into()));
        }
        let mut record = Self { stored, offset: header.offset, file: None };
        if header.boot != boot.id {
            record.begin_boot(directory, boot);
        }
        record.stored.forget_history(used, boot.time(record.offset));
        Ok(record)
    }

    /// Adds what is not in the file.
    fn complete(mut self, directory: &Directory, file: &FileName, old: OldFile, purpose: Purpose) -> Self {
        self.file = Some(old);
        if purpose == Purpose::LookAtAll {
            let most = usize::try_from(self.stored.ends).unwrap_or(usize::MAX).min(LOG_KEPT);
            for end in last_ends(directory, file).iter().rev() {
                if self.stored.log.len() == most {
                    break;
                }
                self.stored.add_end(end);
            }
        }
        self
    }

    /// Drops the processes of an earlier boot.
    fn begin_boot(&mut self, directory: &Directory, boot: &Boot) {
        let old_offset = std::mem::replace(&mut self.offset, boot.offset);
        let now = boot.time(self.offset);
        let since_old_boot = Duration::from_micros(now.0.saturating_sub(old_offset));
        let StoredLock { record, tracked, .. } = &mut self.stored;
        // A pause counts from the end of the lease, and only the life file has that, until an operation
        // writes the pause: the clean-up keeps the files of tracked tokens.
        tracked.retain(|token, _| record.holds.get(token).is_some_and(|hold| hold.renewed));
        for token in tracked.keys() {
            if let Published::Until(at) = published(directory, token, since_old_boot) {
                record.lasts(token, due(at, old_offset));
            }
        }
        record.waiters.clear();
        record.queue.clear();
        record.absence = Absence::default();
        record.tombstones.clear();
        record.watchers.clear();
        record.lock = Lock::Free;
        for hold in record.holds.values_mut() {
            // The lease is over, whatever the old clock said, so the rules log the end as expired.
            hold.until = hold.until.min(Due(now.millis()));
            hold.cool = Due(0);
        }
        for token in record.holds.keys().cloned().collect::<Vec<_>>() {
            record.reap(now, &token);
        }
    }

    /// Takes over the deadlines that holders and waiters have published in their life files, if
    /// their time has come by the record. `now` must have been read before: see [`super::liveness`].
    pub(super) fn catch_up(&mut self, directory: &Directory, now: Time, reading: &Reading<'_>) {
        let (offset, since_boot) = (self.offset, Duration::from_micros(now.0.saturating_sub(self.offset)));
        let said = |token: &Token| published(directory, token, since_boot);
        let StoredLock { record, tracked, .. } = &mut self.stored;
        tracked.retain(|token, alive| {
            if let Some(hold) = record.holds.get(token) {
                let is_over = hold.until.passed(now);
                let is_asked = is_over || reading.purpose == Purpose::LookAtAll;
                if !is_asked || !hold.confirmed || hold.phase == Phase::Cooling {
                    return true;
                }
                match said(token) {
                    Published::Until(at) => record.lasts(token, due(at, offset)),
                    // Somebody removed the file. The holder may have renewed its lease in it just
                    // before; it notices at the next renewal, and then renews in the record.
                    Published::Missing if is_over => {
                        record.lasts(token, Due::after(now, Duration::from_millis(alive.ttl)));
                        return false;
                    }
                    Published::Missing | Published::Nothing => {}
                }
                return true;
            }
            // A suspended waiter that is heard again asks for the lock.
            let is_late = |waiter: &&mut Waiter| {
                waiter.stale_at.passed(now) && record.queue.contains(&(waiter.ticket, token.clone()))
            };
            if let Some(waiter) = record.waiters.get_mut(token).filter(is_late) {
                let Published::Until(at) = said(token) else { return true };
                let (stale_at, heard) = (due(at, offset), due(at.saturating_sub(SILENCE), offset));
                waiter.stale_at = waiter.stale_at.max(stale_at);
                waiter.forget = waiter.forget.max(Due(heard.0.saturating_add(millis(TICKET_KEPT))));
            }
            true
        });
        // A heartbeat in a life file counts as one.
        let Record { absence, waiters, holds, .. } = record;
        let waits = |token: &&Token| tracked.contains_key(*token) && !holds.contains_key(*token);
        for token in waiters.keys().filter(waits) {
            if absence.heard.0 == 0 || now.millis().saturating_sub(absence.heard.0) <= millis(ABSENCE) {
                break;
            }
            if let Published::Until(at) = said(token) {
                absence.heard = absence.heard.max(due(at.saturating_sub(SILENCE), offset));
            }
        }
    }

    /// Shifts all times to a later `offset`. The rest of each lease and the order of waiters stay
    /// the same; only the reading of the clock changes. That is exact and can be repeated, so a
    /// shifted record need not be written: two records that share a waiter agree on its ticket in
    /// any case.
    pub(super) fn lift(&mut self, offset: u64) {
        let shift = offset.saturating_sub(self.offset);
        self.offset = self.offset.max(offset);
        if shift == 0 {
            return;
        }
        let record = &mut self.stored.record;
        each_number(record, |number, what| match what {
            Number::Micros => *number = number.saturating_add(shift),
            Number::Millis if *number > 0 => *number = number.saturating_add(shift / 1000),
            Number::Millis | Number::Other => {}
        });
        record.queue = std::mem::take(&mut record.queue)
            .into_iter()
            .map(|(ticket, token)| (ticket.saturating_add(shift), token))
            .collect();
    }
}

fn not_understood(directory: &Directory, file: &FileName, bad: &Bad) -> Error {
    let why = match bad {
        Bad::Cut => "it is cut off",
        Bad::Damaged(why) => why,
    };
    Error::Garbled(format!(
        "{}: {file} is not a record of dlock's, or damaged ({why}); it was not changed: move it away when nothing runs under its lock",
        directory.shown()
    ))
}

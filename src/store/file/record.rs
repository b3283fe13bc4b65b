//! What is kept of one lock between two steps? One JSON file: the law's record, and what the law needs to be told by
//! this machine: which boot its times belong to, and whose life can be felt. Reading, checking and replacing it.
//!
//! Time is CLOCK_BOOTTIME plus an offset that is fixed when the record begins: it never steps, and reads like
//! microseconds since 1970. (Containers share it, unless they are given a time namespace of their own: those must not
//! share a directory.) Records whose offsets differ, because the wall clock was set between their beginnings, are
//! brought to one time when a step needs them together: see [`Kept::lift`]. After another boot nothing of a hold or a
//! waiter can be alive: both are dropped, and fence and log stay.
//!
//! A record is replaced by rename, never changed in place: a dlock that is killed while it writes leaves the old one.
//! Writing the new one and putting it in its place are two acts here, so that a step on several locks can do all that
//! may fail before the first of them changes.
//! There is no fsync. It would make every step many times dearer, and guards only against a crash of the machine,
//! which ends every hold anyway; a fence starts from the clock if its record is lost. What a crash may leave, an empty
//! file or one of zeros, is told from damage by its date, before this boot.

use crate::clock::Moment;
use crate::law::LoggedEnd;
use crate::law::{Absence, Due, HISTORY_KEPT, LOG_KEPT, Lock, Phase, Record, Time};
use crate::lock::Token;
use crate::store::Error;
use crate::store::file::directory::{Directory, Kind, remove};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fchmod, fstat, openat, renameat, renameat_with};
use rustix::io::{Errno, read, write};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FORMAT: u32 = 2;
const FORMER_FORMAT: u32 = 1;

/// This boot of the machine.
#[derive(Debug, Clone)]
pub(super) struct Boot {
    id: String,
    /// For tests: how far the clock runs ahead.
    #[cfg(test)]
    pub(super) ahead: Duration,
}

impl Boot {
    /// The boot that runs now.
    pub(super) fn current() -> Result<Self, std::io::Error> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self::new(id.trim()))
    }

    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.into(),
            #[cfg(test)]
            ahead: Duration::ZERO,
        }
    }

    fn now(&self) -> Duration {
        let now = Moment::now().since_boot();
        #[cfg(test)]
        let now = now + self.ahead;
        now
    }

    /// The wall clock's time of the start of CLOCK_BOOTTIME, in microseconds since 1970; whole milliseconds, because
    /// what ends is counted in these and must be shifted without loss.
    fn offset(&self) -> u64 {
        let wall = clock_gettime(ClockId::Realtime);
        let wall = Duration::new(wall.tv_sec.try_into().unwrap_or(0), wall.tv_nsec.try_into().unwrap_or(0));
        micros(wall.saturating_sub(Moment::now().since_boot())) / 1000 * 1000
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// All that is kept of one lock.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    format: u32,
    /// The full name of the lock, for `list`, and as a check.
    pub(super) name: String,
    boot: String,
    /// What its times count from, in microseconds since 1970.
    pub(super) offset: u64,
    /// When it was last written.
    used: Time,
    /// The tokens that have a life file. Others are believed to live.
    pub(super) lives: BTreeSet<Token>,
    /// What the law keeps; its log only while a step runs.
    pub(super) record: Record,
    /// The ends, newest first. Only `inspect` needs to understand them; they are most of the file.
    log: VecDeque<Box<RawValue>>,
}

/// What can be read of any format.
#[derive(Deserialize)]
struct Any {
    format: u32,
}

/// What is read of the format before this one, which knew one exclusive holder.
#[derive(Deserialize)]
struct Former {
    format: u32,
    name: String,
    record: FormerRecord,
    log: VecDeque<Box<RawValue>>,
}

#[derive(Deserialize)]
struct FormerRecord {
    lock: Value,
    hold: Option<Value>,
    waiters: BTreeMap<String, Value>,
    fence: u64,
}

impl Former {
    fn is_idle(&self) -> bool {
        let record = &self.record;
        record.lock == "Free" && record.hold.is_none() && record.waiters.is_empty()
    }
}

impl Kept {
    fn new(name: &str, boot: &Boot) -> Self {
        let offset = boot.offset();
        Self {
            format: FORMAT,
            name: name.into(),
            boot: boot.id.clone(),
            offset,
            used: Time(0),
            lives: BTreeSet::new(),
            record: Record::default(),
            log: VecDeque::new(),
        }
    }

    /// The time of this lock.
    pub(super) fn now(&self, boot: &Boot) -> Time {
        Time(self.offset.saturating_add(micros(boot.now())))
    }

    /// What `bytes`, the content of a record file, say at this time in this boot; without any, a new record. `name`
    /// must be its lock's, where it is known.
    pub(super) fn parse(
        directory: &Directory,
        path: &Path,
        bytes: Option<&[u8]>,
        name: Option<&str>,
        boot: &Boot,
    ) -> Result<Self, Error> {
        let Some(bytes) = bytes else { return Ok(Self::new(name.unwrap_or_default(), boot)) };
        let mut kept = match Self::of_former(bytes, boot).map_or_else(|| serde_json::from_slice(bytes), Ok) {
            Ok(kept) => kept,
            Err(error) => return Err(not_understood(directory, path, bytes, &error.to_string())),
        };
        if kept.format != FORMAT {
            return Err(not_understood(directory, path, bytes, "its format is another"));
        }
        if name.is_some_and(|name| name != kept.name) || directory.file(&kept.name, Kind::Record) != path {
            return Err(not_understood(directory, path, bytes, "it is that of another lock"));
        }
        if kept.boot != boot.id {
            kept.begin_boot(boot);
        }
        if kept.is_history(boot) {
            return Ok(Self::new(&kept.name, boot));
        }
        Ok(kept)
    }

    /// What a record of the former format keeps, where nobody holds its lock or waits for it: fence and log. A busy one
    /// is left to the dlock that wrote it.
    fn of_former(bytes: &[u8], boot: &Boot) -> Option<Self> {
        let former: Former = serde_json::from_slice(bytes).ok()?;
        if former.format != FORMER_FORMAT || !former.is_idle() {
            return None;
        }
        let mut kept = Self { log: former.log, ..Self::new(&former.name, boot) };
        kept.record.fence = former.record.fence;
        kept.used = kept.now(boot);
        Some(kept)
    }

    /// Nothing that ran before this boot is alive.
    fn begin_boot(&mut self, boot: &Boot) {
        self.boot.clone_from(&boot.id);
        self.offset = boot.offset();
        self.lives.clear();
        let now = self.now(boot);
        let record = &mut self.record;
        record.queue.clear();
        record.waiters.clear();
        record.absence = Absence::default();
        record.spent.clear();
        record.watchers.clear();
        record.lock = Lock::Free;
        for hold in record.holds.values_mut() {
            // An end that has come, whatever the old clock said: the law logs it as expired.
            hold.until = hold.until.min(Due(now.millis()));
            hold.cool = Due(0);
        }
        for token in record.holds.keys().cloned().collect::<Vec<_>>() {
            record.bury(now, &token);
        }
    }

    /// Counts all its times from a later `offset`. What is left of a lease or a silence stays as it is, and so does who
    /// came first; only the reading of the clock becomes another. That is exact and can be done again, so a lifted record
    /// need not be written: two that share a waiter agree on its ticket whichever of them was.
    pub(super) fn lift(&mut self, offset: u64) {
        let shift = offset.saturating_sub(self.offset);
        if shift == 0 {
            return;
        }
        self.offset = offset;
        let time = |time: &mut Time| time.0 = time.0.saturating_add(shift);
        let due = |due: &mut Due| {
            // Zero is no time but says that there is none.
            if due.0 > 0 {
                due.0 = due.0.saturating_add(shift / 1000);
            }
        };
        time(&mut self.used);
        let record = &mut self.record;
        match &mut record.lock {
            Lock::Free | Lock::Foreign { until: None } => {}
            Lock::Exclusive { until, .. }
            | Lock::Shared { until }
            | Lock::Slots { until, .. }
            | Lock::Cooling { until }
            | Lock::Revoked { until }
            | Lock::Foreign { until: Some(until) } => due(until),
        }
        for hold in record.holds.values_mut() {
            time(&mut hold.since);
            due(&mut hold.until);
            due(&mut hold.cool);
        }
        for waiter in record.waiters.values_mut() {
            waiter.ticket = waiter.ticket.saturating_add(shift);
            time(&mut waiter.since);
            due(&mut waiter.silent);
            due(&mut waiter.forget);
        }
        let Absence { heard, from, back } = &mut record.absence;
        [heard, from, back].into_iter().for_each(due);
        for spent in record.spent.values_mut() {
            due(&mut spent.until);
        }
        record.watchers.values_mut().for_each(due);
        let queue = std::mem::take(&mut record.queue);
        record.queue =
            queue.into_iter().map(|(ticket, token)| (ticket.saturating_add(shift), token)).collect();
    }

    /// Whether nothing is left of it but a history that is too old to keep.
    fn is_history(&self, boot: &Boot) -> bool {
        let record = &self.record;
        let idle = record.lock == Lock::Free && record.holds.is_empty() && record.waiters.is_empty();
        idle && self.now(boot).0.saturating_sub(self.used.0) > micros(HISTORY_KEPT)
    }

    /// Whether there is nothing to keep.
    pub(super) fn is_empty(&self) -> bool {
        self.record == Record::default() && self.log.is_empty()
    }

    /// The log, newest first.
    pub(super) fn log(&self) -> Vec<LoggedEnd> {
        self.log.iter().filter_map(|end| serde_json::from_str(end.get()).ok()).collect()
    }

    /// Writes the record beside its place. The caller has the mutex.
    pub(super) fn write(&mut self, directory: &Directory, now: Time) -> Result<Draft, Error> {
        self.used = now;
        let Record { holds, waiters, spent, watchers, .. } = &self.record;
        self.lives.retain(|token| {
            waiters.contains_key(token)
                || spent.contains_key(token)
                || watchers.contains_key(token)
                || holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling)
        });
        let garbled = |error: serde_json::Error| {
            Error::Garbled(format!("{}: a record cannot be written as JSON: {error}", directory.shown()))
        };
        for end in std::mem::take(&mut self.record.log).iter().rev() {
            self.log.push_front(serde_json::value::to_raw_value(end).map_err(garbled)?);
        }
        self.log.truncate(LOG_KEPT);
        let bytes = serde_json::to_vec(self).map_err(garbled)?;
        let draft = Draft {
            at: directory.file(&self.name, Kind::Draft),
            record: directory.file(&self.name, Kind::Record),
        };
        match write_new(directory, &draft.at, &bytes) {
            Ok(()) => Ok(draft),
            Err(errno) => {
                draft.discard();
                Err(unwritten(directory, errno))
            }
        }
    }
}

/// A record that is written and not yet in its place.
#[derive(Debug)]
pub(super) struct Draft {
    at: PathBuf,
    record: PathBuf,
}

impl Draft {
    /// Puts it in its place, whole or not at all.
    pub(super) fn place(&self, directory: &Directory) -> Result<(), Error> {
        replace(&self.at, &self.record).map_err(|errno| unwritten(directory, errno))
    }

    /// Removes it.
    pub(super) fn discard(&self) {
        remove(&self.at).ok();
    }
}

fn unwritten(directory: &Directory, errno: Errno) -> Error {
    directory.error("write the record of the lock", errno)
}

/// The content of a record file; nothing if there is none, or if a crash of the machine took it.
pub(super) fn load(directory: &Directory, path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let failed = |errno| directory.error("read the record of the lock", errno);
    let file = match openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = vec![0; 16 * 1024];
    let mut length = 0;
    loop {
        let room = bytes.len() - length;
        let count = match read(&file, &mut bytes[length..]) {
            Err(Errno::INTR) => continue,
            count => count.map_err(failed)?,
        };
        length += count;
        // A regular file on a disk of this machine is read short only at its end.
        if count < room {
            break;
        }
        bytes.resize(bytes.len() * 4, 0);
    }
    bytes.truncate(length);
    if bytes.iter().all(|byte| *byte == 0) && is_older_than_this_boot(&file) {
        return Ok(None);
    }
    Ok(Some(bytes))
}

fn is_older_than_this_boot(file: &OwnedFd) -> bool {
    let boot = i64::try_from(Boot::new("").offset() / 1_000_000).unwrap_or(i64::MAX);
    fstat(file).is_ok_and(|stat| stat.st_ctime < boot)
}

fn write_new(directory: &Directory, draft: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match openat(CWD, draft, flags, directory.mode()) {
        Err(Errno::EXIST) => {
            // Left by a dlock that was killed; perhaps another user's.
            remove(draft)?;
            openat(CWD, draft, flags, directory.mode())?
        }
        opened => opened?,
    };
    if directory.is_shared() {
        fchmod(&file, directory.mode())?;
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        match write(&file, rest) {
            Err(Errno::INTR) => {}
            written => rest = &rest[written?..],
        }
    }
    Ok(())
}

fn replace(draft: &Path, record: &Path) -> Result<(), Errno> {
    // ext4 starts to write a file to the disk that is renamed over another (auto_da_alloc): ten times the rest of a
    // step, and for what a crash may cost here too much. It does not when two change places.
    match renameat_with(CWD, draft, CWD, record, RenameFlags::EXCHANGE) {
        // What was replaced; the step is done, whether it can be removed or not.
        Ok(()) => {
            remove(draft).ok();
            Ok(())
        }
        // There is no record yet, or the file system cannot exchange.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => renameat(CWD, draft, CWD, record),
        Err(errno) => Err(errno),
    }
}

fn not_understood(directory: &Directory, path: &Path, bytes: &[u8], why: &str) -> Error {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    match serde_json::from_slice::<Any>(bytes) {
        Ok(any) if any.format != FORMAT => Error::Unfit(format!(
            "{}: {file} was written by another version of dlock (format {}, this one knows {FORMAT}); use that version",
            directory.shown(),
            any.format,
        )),
        _ => Error::Garbled(format!(
            "{}: {file} is not a record of dlock's, or damaged ({why}); it was left as it is: move it away when nothing \
             runs under its lock",
            directory.shown(),
        )),
    }
}

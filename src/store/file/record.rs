//! What is kept of one lock between two steps? One file: the law's record, and what the law needs to be told by
//! this machine: which boot its times belong to, and whose life can be felt. Reading, checking and changing it.
//!
//! Time is CLOCK_BOOTTIME plus an offset that is fixed when the record begins: it never steps, and reads like
//! microseconds since 1970. (Containers share it, unless they are given a time namespace of their own: those must not
//! share a directory.) Records whose offsets differ, because the wall clock was set between their beginnings, are
//! brought to one time when a step needs them together: see [`Kept::lift`]. After another boot nothing of a hold or a
//! waiter can be alive: both are dropped, and fence and log stay.
//!
//! The file is a [`Header`] of fixed length, and a body somewhere behind it. A change writes the new body where the old
//! one is not, then the header, which is so short that a kill cannot cut it: a dlock that is killed while it writes leaves
//! the old record. So the file keeps its owner and its rights, whoever changes it, and mostly needs no more space on the
//! disk. Writing the body and the header are two acts here, so that a step on several locks can do all that may fail
//! before the first of them changes. Who reads without the mutex looks at the header again afterwards; the body that it
//! named is not written over before there is another one.
//!
//! There is no fsync. It would make every step many times dearer, and guards only against a crash of the machine,
//! which ends every hold anyway; a fence starts from the clock if its record is lost. What a crash may leave is told from
//! damage by its date, before this boot.
//!
//! What is read may have been put there by somebody else who may write the directory: all of it has bounds, see
//! [`Kept::check`].

use crate::clock::Moment;
use crate::law::LoggedEnd;
use crate::law::{
    ABSENCE, Absence, Due, HISTORY_KEPT, LOG_KEPT, Lock, Phase, Record, SILENCE, TICKET_KEPT, Time,
};
use crate::law::{millis, stat::Stat};
use crate::lock::{Mode, SLOTS_MAX, Token};
use crate::store::Error;
use crate::store::file::directory::{Directory, FileName, Kind};
use crate::store::file::life::{Told, told};
use rustix::fs::{OFlags, fstat, ftruncate, renameat};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

const FORMAT: u32 = 3;
/// One exclusive holder; one that is replaced by each change.
const FORMER_FORMATS: [u32; 2] = [1, 2];
/// More than a record ever has: some fifty thousand waiters.
const RECORD_MOST: u64 = 32 << 20;
/// And its file, with what is not used of it.
pub(super) const FILE_MOST: u64 = 4 * RECORD_MOST;
/// No time and no fence is greater: what is added to them does not overflow.
const NUMBER_MOST: u64 = 1 << 60;
/// A file that is this many times larger than what is in it is cut, if it is larger than that, too.
const SLACK: (u64, u64) = (4, 64 * 1024);

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

    /// The time since it began.
    pub(super) fn now(&self) -> Duration {
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
    /// The full name of the lock, for `list`, and as a check.
    pub(super) name: String,
    boot: String,
    /// What its times count from, in microseconds since 1970.
    pub(super) offset: u64,
    /// When it was last written.
    used: Time,
    /// The tokens that have a life file. Others are believed to live.
    pub(super) lives: BTreeMap<Token, Alive>,
    /// What the law keeps; its log only while a step runs.
    pub(super) record: Record,
    /// The ends, newest first. Only `inspect` needs to understand them; they are most of the file.
    log: VecDeque<Box<RawValue>>,
}

/// What is known of a token that has a life file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Alive {
    /// How many locks it asked for together: where it is buried in all of them, its file can go.
    pub(super) locks: u32,
    /// How long a lease it takes, in milliseconds: so long it may believe in one whose end can no longer be read.
    pub(super) ttl: u64,
}

/// What can be read of any format.
#[derive(Deserialize)]
struct Any {
    format: u32,
}

/// What is read of the formats before this one.
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
    #[serde(default)]
    holds: BTreeMap<String, Value>,
    waiters: BTreeMap<String, Value>,
    fence: u64,
    #[serde(default)]
    stat: Stat,
}

impl Former {
    fn is_idle(&self) -> bool {
        let record = &self.record;
        let nobody = record.hold.is_none() && record.holds.is_empty() && record.waiters.is_empty();
        record.lock == "Free" && nobody
    }
}

/// Where in the file the record is: one line of JSON of a fixed length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Header {
    format: u32,
    /// The first byte of the body.
    at: u64,
    /// How many bytes it has.
    length: u64,
    /// How often the record was changed.
    turn: u64,
}

impl Header {
    /// In bytes; less than a page, so that it is written at once or not at all.
    const LENGTH: usize = 96;
    const FIRST: Self = Self { format: FORMAT, at: Self::LENGTH as u64, length: 0, turn: 0 };

    fn parse(bytes: &[u8]) -> Option<Self> {
        let line = bytes.get(..Self::LENGTH)?.strip_suffix(b"\n")?;
        let header: Self = serde_json::from_slice(line).ok()?;
        let fits = header.at >= Self::LENGTH as u64 && header.at <= FILE_MOST - RECORD_MOST;
        (header.format == FORMAT && fits && header.length <= RECORD_MOST).then_some(header)
    }

    fn bytes(self) -> Vec<u8> {
        let Self { format, at, length, turn } = self;
        let line =
            format!("{{\"format\":{format},\"at\":{at:10},\"length\":{length:10},\"turn\":{turn:20}}}");
        format!("{line:width$}\n", width = Self::LENGTH - 1).into_bytes()
    }

    /// That of a body of `length` bytes, which leaves the present one alone.
    fn next(self, length: u64) -> Self {
        let first = Self::FIRST.at;
        let at = if first + length <= self.at { first } else { self.at + self.length };
        Self { format: FORMAT, at, length, turn: self.turn.wrapping_add(1) }
    }
}

/// What a record file has in it.
#[derive(Debug)]
pub(super) struct Content {
    /// The record; of a former format, or of none of dlock's, the whole file.
    pub(super) bytes: Vec<u8>,
    slot: Option<Slot>,
}

/// An open record file of this format.
#[derive(Debug)]
pub(super) struct Slot {
    file: OwnedFd,
    header: Header,
    size: u64,
}

impl PartialEq for Content {
    /// Whether they say the same.
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Content {
    /// Where to write the next one, if it can be written in place.
    pub(super) fn into_slot(self) -> Option<Slot> {
        self.slot
    }
}

impl Kept {
    fn new(name: &str, boot: &Boot) -> Self {
        let offset = boot.offset();
        Self {
            name: name.into(),
            boot: boot.id.clone(),
            offset,
            used: Time(0),
            lives: BTreeMap::new(),
            record: Record::default(),
            log: VecDeque::new(),
        }
    }

    /// The time of this lock.
    pub(super) fn now(&self, boot: &Boot) -> Time {
        Time(self.offset.saturating_add(micros(boot.now())))
    }

    /// What a record file says at this time in this boot; without one, a new record. `name` must be its lock's, where it
    /// is known.
    pub(super) fn parse(
        directory: &Directory,
        file: &FileName,
        content: Option<&Content>,
        name: Option<&str>,
        boot: &Boot,
    ) -> Result<Self, Error> {
        let Some(content) = content else { return Ok(Self::new(name.unwrap_or_default(), boot)) };
        let bad = |why: &str| Err(not_understood(directory, file, &content.bytes, why));
        let mut kept = match Self::read(content, boot) {
            Ok(Some(kept)) => kept,
            Ok(None) => return bad("its format is another"),
            Err(error) => return bad(&shortened(&error.to_string())),
        };
        if name.is_some_and(|name| name != kept.name) || FileName::of(&kept.name, Kind::Record) != *file {
            return bad("it is that of another lock");
        }
        if let Err(why) = kept.check() {
            return bad(why);
        }
        if kept.boot != boot.id {
            kept.begin_boot(boot);
        }
        if kept.is_history(boot) {
            return Ok(Self::new(&kept.name, boot));
        }
        Ok(kept)
    }

    fn read(content: &Content, boot: &Boot) -> Result<Option<Self>, serde_json::Error> {
        if content.slot.is_some() {
            return serde_json::from_slice(&content.bytes).map(Some);
        }
        let any: Any = serde_json::from_slice(&content.bytes)?;
        Ok(FORMER_FORMATS.contains(&any.format).then(|| Self::of_former(&content.bytes, boot)).flatten())
    }

    /// What a record of a former format keeps, where nobody holds its lock or waits for it: fence, log and totals. A busy
    /// one is left to the dlock that wrote it.
    fn of_former(bytes: &[u8], boot: &Boot) -> Option<Self> {
        let former: Former = serde_json::from_slice(bytes).ok()?;
        if !FORMER_FORMATS.contains(&former.format) || !former.is_idle() {
            return None;
        }
        let mut kept = Self { log: former.log, ..Self::new(&former.name, boot) };
        kept.record.fence = former.record.fence;
        kept.record.stat = former.record.stat;
        kept.used = kept.now(boot);
        Some(kept)
    }

    /// Whether it is what a dlock would write. (Texts are bounded by their types.)
    fn check(&self) -> Result<(), &'static str> {
        let most = |number: u64| if number > NUMBER_MOST { Err("a number is too great") } else { Ok(()) };
        let token = |token: &Token| Token::parse(token.secret()).map(drop).map_err(|_| "a token is none");
        most(self.offset)?;
        most(self.used.0)?;
        let record = &self.record;
        most(record.fence)?;
        match &record.lock {
            Lock::Free | Lock::Foreign { until: None } => {}
            Lock::Exclusive { until, .. }
            | Lock::Shared { until }
            | Lock::Slots { until, .. }
            | Lock::Cooling { until }
            | Lock::Revoked { until }
            | Lock::Foreign { until: Some(until) } => most(until.0)?,
        }
        if matches!(record.lock, Lock::Slots { slots, .. } if slots > SLOTS_MAX) {
            return Err("it has too many slots");
        }
        for (of, hold) in &record.holds {
            token(of)?;
            for number in [hold.fence, hold.since.0, hold.until.0, hold.cool.0, hold.waited] {
                most(number)?;
            }
        }
        for (of, waiter) in &record.waiters {
            token(of)?;
            for number in [waiter.ticket, waiter.since.0, waiter.silent.0, waiter.forget.0] {
                most(number)?;
            }
            if matches!(waiter.mode, Mode::Slots(slots) if slots > SLOTS_MAX) {
                return Err("a waiter wants too many slots");
            }
            if !waiter.names.contains(&self.name) {
                return Err("a waiter waits for other locks");
            }
        }
        for (ticket, of) in &record.queue {
            most(*ticket)?;
            token(of)?;
        }
        for until in record.watchers.values().chain(record.spent.values().map(|spent| &spent.until)) {
            most(until.0)?;
        }
        Ok(())
    }

    /// What holders and waiters have said since in their own files: how long they are to be believed. Looked at are those
    /// whose time has come by the record; with `All` every holder. `now` must have been read before this is called: see
    /// [`super::life`].
    pub(super) fn catch_up(&mut self, directory: &Directory, boot: &Boot, now: Time, whom: CatchUp) {
        let due = |at: Duration, offset: u64| Due(offset.saturating_add(micros(at)) / 1000);
        let record = &mut self.record;
        let mut longer: Vec<(Token, Due)> = Vec::new();
        let mut missing: Vec<Token> = Vec::new();
        for (token, hold) in &record.holds {
            let asks = hold.confirmed && hold.phase != Phase::Cooling;
            let Some(alive) = self.lives.get(token).filter(|_| asks) else { continue };
            if whom == CatchUp::Due && !hold.until.passed(now) {
                continue;
            }
            match told(directory, token, boot.now()) {
                Told::Until(at) => longer.push((token.clone(), due(at, self.offset))),
                // Somebody removed it. The holder finds that out by its next renewal, and says the rest in the record; it
                // may have said more in the file just before.
                Told::Missing if hold.until.passed(now) => {
                    longer.push((token.clone(), Due::after(now, Duration::from_millis(alive.ttl))));
                    missing.push(token.clone());
                }
                Told::Missing | Told::Nothing => {}
            }
        }
        for (token, until) in longer {
            record.lasts(&token, until);
        }
        for token in missing {
            self.lives.remove(&token);
        }
        // Who was heard of in his own file was heard of.
        let mut heard = record.absence.heard;
        if heard.0 > 0 {
            for token in record.waiters.keys().filter(|token| self.lives.contains_key(*token)) {
                if now.millis().saturating_sub(heard.0) <= millis(ABSENCE) {
                    break;
                }
                if let Told::Until(at) = told(directory, token, boot.now()) {
                    heard = heard.max(due(at.saturating_sub(SILENCE), self.offset));
                }
            }
            record.absence.heard = heard;
        }
        for (token, waiter) in &mut record.waiters {
            if !waiter.silent.passed(now) || !self.lives.contains_key(token) {
                continue;
            }
            if let Told::Until(at) = told(directory, token, boot.now()) {
                waiter.silent = waiter.silent.max(due(at, self.offset));
                let forget = due(at.saturating_sub(SILENCE) + TICKET_KEPT, self.offset);
                waiter.forget = waiter.forget.max(forget);
            }
        }
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

    /// Writes the record where it is not read yet; `slot` is that of the present one. The caller has the mutex.
    pub(super) fn write(
        &mut self,
        directory: &Directory,
        now: Time,
        slot: Option<Slot>,
    ) -> Result<Draft, Error> {
        self.used = now;
        let Record { holds, waiters, spent, watchers, .. } = &self.record;
        self.lives.retain(|token, _| {
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
        if bytes.len() as u64 > RECORD_MOST {
            return Err(Error::Unavailable(format!(
                "{}: too many hold or wait for {:?}; try again when some have left",
                directory.shown(),
                self.name,
            )));
        }
        let record = FileName::of(&self.name, Kind::Record);
        let draft = match slot {
            Some(slot) => Draft::spare(directory, &record, slot, &bytes),
            None => Draft::new(directory, record, &bytes),
        };
        draft.map_err(|errno| unwritten(directory, errno))
    }
}

/// Which files of holders [`Kept::catch_up`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CatchUp {
    /// Of those whose lease is over by the record.
    Due,
    /// Of all.
    All,
}

/// A record that is written and not yet in its place.
#[derive(Debug)]
pub(super) enum Draft {
    /// In a part of the file that the header does not name.
    Spare {
        /// The file, with its present header.
        slot: Slot,
        /// The header that names the new record.
        next: Header,
    },
    /// In a file of its own: there is none yet, or one of a former format.
    File {
        /// That file.
        at: FileName,
        /// What it becomes.
        record: FileName,
    },
}

impl Draft {
    fn spare(directory: &Directory, record: &FileName, slot: Slot, bytes: &[u8]) -> Result<Self, Errno> {
        let next = slot.header.next(bytes.len() as u64);
        write_at(directory, record, &slot.file, bytes, next.at)?;
        Ok(Self::Spare { slot, next })
    }

    fn new(directory: &Directory, record: FileName, bytes: &[u8]) -> Result<Self, Errno> {
        let draft = record.with(Kind::Draft);
        let file = match directory.create_file(draft.as_str(), OFlags::WRONLY) {
            Err(Errno::EXIST) => {
                // Left by a dlock that was killed; perhaps another user's.
                directory.remove(&draft)?;
                directory.create_file(draft.as_str(), OFlags::WRONLY)?
            }
            created => created?,
        };
        let next = Header::FIRST.next(bytes.len() as u64);
        let all = [&*next.bytes(), bytes].concat();
        let this = Self::File { at: draft, record };
        let Self::File { record, .. } = &this else { return Ok(this) };
        match write_at(directory, record, &file, &all, 0) {
            Ok(()) => Ok(this),
            Err(errno) => {
                this.discard(directory);
                Err(errno)
            }
        }
    }

    /// Puts it in its place, whole or not at all.
    pub(super) fn place(&self, directory: &Directory) -> Result<(), Error> {
        let placed = match self {
            Self::Spare { slot, next } => {
                let placed = write_all(&slot.file, &next.bytes(), 0);
                let end = next.at + next.length;
                if placed.is_ok() && slot.size > SLACK.1 && slot.size > end * SLACK.0 {
                    // A pity, no more, if it cannot be.
                    ftruncate(&slot.file, end).ok();
                }
                placed
            }
            Self::File { at, record } => renameat(directory, at.as_str(), directory, record.as_str()),
        };
        placed.map_err(|errno| unwritten(directory, errno))
    }

    /// Forgets it.
    pub(super) fn discard(&self, directory: &Directory) {
        if let Self::File { at, .. } = self {
            directory.remove(at).ok();
        }
    }
}

fn unwritten(directory: &Directory, errno: Errno) -> Error {
    directory.error("write the record of the lock", errno)
}

/// What a record is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// To be looked at, while others change it.
    Look,
    /// To be changed: the caller has the mutex.
    Change,
}

/// The content of a record file; nothing if there is none, or if a crash of the machine took it.
pub(super) fn load(directory: &Directory, name: &FileName, access: Access) -> Result<Option<Content>, Error> {
    /// More often it is not changed while one looks.
    const LOOKS: u32 = 1000;
    let doing = "read the record of the lock";
    let failed = |errno| directory.error(doing, errno);
    let flags = match access {
        Access::Look => OFlags::RDONLY,
        Access::Change => OFlags::RDWR,
    };
    let Some((file, stat)) = directory.open_file(name.as_str(), flags, doing)? else { return Ok(None) };
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > FILE_MOST {
        return Err(directory.strange(name.as_str(), &format!("has {size} bytes, more than a record")));
    }
    // Mostly all there is.
    let start = read_at(&file, 0, 16 * 1024).map_err(failed)?;
    for _ in 0..LOOKS {
        let head = match access {
            Access::Change => start.get(..Header::LENGTH).unwrap_or_default().to_vec(),
            Access::Look => read_at(&file, 0, Header::LENGTH as u64).map_err(failed)?,
        };
        let Some(header) = Header::parse(&head) else { break };
        let end = header.at + header.length;
        let bytes = match (access, start.get(usize_of(header.at)..usize_of(end))) {
            (Access::Change, Some(bytes)) => bytes.to_vec(),
            _ => read_at(&file, header.at, header.length).map_err(failed)?,
        };
        let again = || read_at(&file, 0, Header::LENGTH as u64).map_err(failed);
        if access == Access::Change || again()? == head {
            if bytes.len() < usize_of(header.length) && is_older_than_this_boot(&file) {
                return Ok(None);
            }
            return Ok(Some(Content { bytes, slot: Some(Slot { file, header, size }) }));
        }
    }
    let bytes = read_at(&file, 0, FILE_MOST).map_err(failed)?;
    if bytes.iter().all(|byte| *byte == 0) && is_older_than_this_boot(&file) {
        return Ok(None);
    }
    Ok(Some(Content { bytes, slot: None }))
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// At most so many bytes; fewer at the end of the file.
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
    #[cfg(test)]
    if directory.is_full_for(record) {
        return Err(Errno::NOSPC);
    }
    // Else the kernel would end us by SIGXFSZ, whose disposition is the job's affair.
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| at + bytes.len() as u64 > limit) {
        return Err(Errno::FBIG);
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

/// What a parser says may quote what it found.
fn shortened(why: &str) -> String {
    why.chars().filter(|c| !c.is_control()).take(120).collect()
}

fn not_understood(directory: &Directory, file: &FileName, bytes: &[u8], why: &str) -> Error {
    let head = bytes.get(..Header::LENGTH).unwrap_or(bytes);
    let any = serde_json::from_slice::<Any>(bytes).or_else(|_| serde_json::from_slice(head));
    match any {
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

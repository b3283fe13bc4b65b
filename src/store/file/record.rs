//! The record file of one lock: the record of the lock rules, and what the rules must be told on
//! this machine: which boot the times belong to, and whose liveness can be checked. Reads, checks
//! and changes it.
//!
//! Time is CLOCK_BOOTTIME plus an offset that is fixed when the record begins. It never steps, and
//! reads like microseconds since 1970. (Containers share this clock unless they have a time
//! namespace of their own; those must not share a directory.) Records have different offsets if the
//! wall clock was set between their beginnings. An operation on several such records shifts them to
//! one time: see [`RecordFile::lift`]. After another boot no holder or waiter can be alive: both
//! are dropped, and fence and log stay.
//!
//! [`super::slot`] has the layout of the file, and [`super::queue`] the part with the waiters.
//!
//! Any user with write access may have put anything into the file: every value has
//! bounds, see [`RecordFile::check`].

use crate::lock::Token;
use crate::rules::LoggedEnd;
use crate::rules::millis;
use crate::rules::{
    ABSENCE, Absence, Due, HISTORY_KEPT, LOG_KEPT, Lock, Phase, Record, SILENCE, TICKET_KEPT, Time,
};
use crate::store::Error;
use crate::store::engine::bounds::{self, check_number};
use crate::store::engine::queue::{Queue, Waiting};
use crate::store::engine::{CatchUp, Tracked};
use crate::store::file::boot::{Boot, micros};
use crate::store::file::directory::{Directory, FileName, FileRole};
use crate::store::file::liveness::{Published, published};
use crate::store::file::queue::{self, How, Part, Room, Times};
use crate::store::file::slot::{Content, Draft, FORMAT, RECORD_MOST, Slot, unwritten};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The body of a record file, with the other parts in memory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RecordFile {
    /// The full name of the lock, for listing, and as a check.
    pub(super) name: String,
    boot: String,
    /// The offset of its times, in microseconds since 1970.
    pub(super) offset: u64,
    /// When it was last written.
    used: Time,
    /// The tokens that have a life file; others count as alive. (The tokens of waiters are in the
    /// queue.)
    #[serde(rename = "lives")]
    pub(super) tracked: BTreeMap<Token, Tracked>,
    /// The record of the lock rules. Its log has only the ends that this operation adds, and its
    /// waiters are only those that the rules were shown.
    pub(super) record: Record,
    #[serde(skip)]
    pub(super) queue: Queue,
    #[serde(skip)]
    times: Times,
    #[serde(skip)]
    slot: Option<Arc<Slot>>,
    /// The last ends, one per line, oldest first, if they were read or are not in the file yet.
    #[serde(skip)]
    ends: Vec<u8>,
    /// Whether the file has them already.
    #[serde(skip)]
    ends_in: How,
}

/// The part that every format has.
#[derive(Deserialize)]
struct Any {
    format: u32,
}

impl RecordFile {
    fn new(name: &str, boot: &Boot) -> Self {
        let offset = boot.offset();
        Self {
            name: name.into(),
            boot: boot.id.clone(),
            offset,
            used: Time(0),
            tracked: BTreeMap::new(),
            record: Record::default(),
            queue: Queue::default(),
            times: Times::Same,
            slot: None,
            ends: Vec::new(),
            ends_in: How::Anew,
        }
    }

    /// Now, by the clock of this record.
    pub(super) fn now(&self, boot: &Boot) -> Time {
        Time(self.offset.saturating_add(micros(boot.now())))
    }

    /// Parses a record file, as it is now in this boot; without content, returns a new record.
    /// `name` must be the lock's name, if it is known.
    pub(super) fn parse(
        directory: &Directory,
        file: &FileName,
        content: Option<&Content>,
        name: Option<&str>,
        boot: &Boot,
    ) -> Result<Self, Error> {
        let Some(content) = content else { return Ok(Self::new(name.unwrap_or_default(), boot)) };
        let bad = |why: &str| Err(not_understood(directory, file, &content.bytes, why));
        let Some(slot) = &content.slot else { return bad("it has no valid header") };
        let mut kept: Self = match serde_json::from_slice(&content.bytes) {
            Ok(kept) => kept,
            Err(error) => return bad(&shortened(&error.to_string())),
        };
        kept.queue = match queue::parse(&content.queue) {
            Ok(queue) => queue,
            Err(why) => return bad(why),
        };
        kept.slot = Some(Arc::clone(slot));
        (kept.ends, kept.ends_in) = (content.ends.clone(), How::Append);
        if name.is_some_and(|name| name != kept.name) || FileName::of(&kept.name, FileRole::Record) != *file {
            return bad("it belongs to another lock");
        }
        if let Err(why) = kept.check() {
            return bad(why);
        }
        if kept.boot != boot.id {
            kept.begin_boot(boot);
        }
        if kept.is_history(boot) {
            return Ok(Self { slot: kept.slot, ..Self::new(&kept.name, boot) });
        }
        Ok(kept)
    }

    /// Checks that dlock could have written it.
    fn check(&self) -> Result<(), &'static str> {
        check_number(self.offset)?;
        check_number(self.used.0)?;
        bounds::check(&self.record)
    }

    /// Takes over the deadlines that holders and waiters have published in their life files: of
    /// holders whose time has come by the record, or of all with `All`. `now` must have been read
    /// before: see [`super::liveness`].
    pub(super) fn catch_up(&mut self, directory: &Directory, boot: &Boot, now: Time, whom: CatchUp) {
        let record = &mut self.record;
        let mut longer: Vec<(Token, Due)> = Vec::new();
        let mut missing: Vec<Token> = Vec::new();
        for (token, hold) in &record.holds {
            let asks = hold.confirmed && hold.phase != Phase::Cooling;
            let Some(alive) = self.tracked.get(token).filter(|_| asks) else { continue };
            if whom == CatchUp::Due && !hold.until.passed(now) {
                continue;
            }
            match published(directory, token, boot.now()) {
                Published::Until(at) => longer.push((token.clone(), due(at, self.offset))),
                // Somebody removed the file. The holder may have renewed its lease in it just
                // before; it notices at the next renewal, and then renews in the record.
                Published::Missing if hold.until.passed(now) => {
                    longer.push((token.clone(), Due::after(now, Duration::from_millis(alive.ttl))));
                    missing.push(token.clone());
                }
                Published::Missing | Published::Nothing => {}
            }
        }
        for (token, until) in longer {
            record.lasts(&token, until);
        }
        for token in missing {
            self.tracked.remove(&token);
        }
        // A heartbeat in a life file counts as one.
        let mut heard = record.absence.heard;
        if heard.0 > 0 {
            for waiting in self.queue.waiting.iter().filter(|waiting| waiting.is_tracked) {
                if now.millis().saturating_sub(heard.0) <= millis(ABSENCE) {
                    break;
                }
                // A holder's life file has the end of its lease.
                let token = waiting.token().filter(|token| !record.holds.contains_key(token));
                if let Some(Published::Until(at)) =
                    token.map(|token| published(directory, &token, boot.now()))
                {
                    heard = heard.max(due(at.saturating_sub(SILENCE), self.offset));
                }
            }
            record.absence.heard = heard;
        }
    }

    /// Adds the waiter at this place of the queue to `record`, for the lock rules, with the
    /// deadline that it has published in its life file. Returns the locks that it waits for.
    pub(super) fn show(
        &mut self,
        at: usize,
        record: &mut Record,
        directory: &Directory,
        boot: &Boot,
        now: Time,
    ) -> Result<Vec<String>, Error> {
        let file = || FileName::of(&self.name, FileRole::Record);
        let (Some(slot), Some(waiting)) = (&self.slot, self.queue.waiting.get(at)) else {
            return Ok(Vec::new());
        };
        let note = slot
            .notes((waiting.note.0.into(), waiting.note.1.into()))
            .map_err(|errno| directory.error("read the record of the lock", errno))?;
        let note = queue::note(&note).map_err(|why| damaged(directory, &file(), why))?;
        let offset = self.offset;
        let holds = waiting.token().is_some_and(|token| record.holds.contains_key(&token));
        let shown = self.queue.show(at, note, &self.name, record, &mut self.tracked, |token, waiter| {
            if holds || !waiter.silent.passed(now) {
                return;
            }
            if let Published::Until(until) = published(directory, token, boot.now()) {
                waiter.silent = waiter.silent.max(due(until, offset));
                let forget = due(until.saturating_sub(SILENCE) + TICKET_KEPT, offset);
                waiter.forget = waiter.forget.max(forget);
            }
        });
        shown.map_err(|why| damaged(directory, &FileName::of(&self.name, FileRole::Record), why))
    }

    /// Drops the processes of an earlier boot.
    fn begin_boot(&mut self, boot: &Boot) {
        self.boot.clone_from(&boot.id);
        self.offset = boot.offset();
        self.tracked.clear();
        let now = self.now(boot);
        let record = &mut self.record;
        (self.queue, self.times) = (Queue::default(), Times::Lifted);
        record.absence = Absence::default();
        record.spent.clear();
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

    /// Shifts all times to a later `offset`. The rest of each lease and the order of waiters stay
    /// the same; only the reading of the clock changes. That is exact and can be repeated, so a
    /// shifted record need not be written: two records that share a waiter agree on its ticket in
    /// any case.
    pub(super) fn lift(&mut self, offset: u64) {
        let shift = offset.saturating_sub(self.offset);
        if shift == 0 {
            return;
        }
        self.offset = offset;
        let time = |time: &mut Time| time.0 = time.0.saturating_add(shift);
        let due = |due: &mut Due| {
            // Zero stands for no time.
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
        let Absence { heard, from, back, back_before } = &mut record.absence;
        [heard, from, back, back_before].into_iter().for_each(due);
        for spent in record.spent.values_mut() {
            due(&mut spent.until);
        }
        record.newest.iter_mut().for_each(|newest| time(&mut newest.came));
        let pause = record.paused.iter_mut().flat_map(|pause| [&mut pause.since, &mut pause.until]);
        for since in record.success.iter_mut().map(|success| &mut success.since).chain(pause) {
            *since = since.saturating_add(shift / 1000);
        }
        record.watchers.values_mut().for_each(due);
        queue::lift(&mut self.queue, shift);
        self.times = Times::Lifted;
    }

    /// Whether nothing is left but a history that is too old to keep.
    fn is_history(&self, boot: &Boot) -> bool {
        let record = &self.record;
        let idle = record.lock == Lock::Free && record.holds.is_empty() && self.queue.is_empty();
        idle && self.now(boot).0.saturating_sub(self.used.0) > micros(HISTORY_KEPT)
    }

    /// Whether there is nothing to keep.
    pub(super) fn is_empty(&self) -> bool {
        let has_ends = match self.ends_in {
            How::Append => self.slot.as_ref().is_some_and(|slot| slot.has_ends()),
            How::Anew => !self.ends.is_empty(),
        };
        let is_idle = self.record == Record::default() && !has_ends;
        is_idle && self.queue.waiting.iter().all(Waiting::is_shown)
    }

    /// A number that differs after every change.
    pub(super) fn turn(&self) -> u64 {
        self.slot.as_ref().map_or(0, |slot| slot.turn())
    }

    /// The last ends, newest first, if they were read.
    pub(super) fn log(&self) -> Vec<LoggedEnd> {
        let lines = self.ends.rsplit(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(LOG_KEPT);
        lines.filter_map(|end| serde_json::from_slice(end).ok()).collect()
    }

    /// The ends to write, with those of this operation.
    fn added_ends(&mut self, room: u64) -> Result<Part, serde_json::Error> {
        let mut news = Vec::new();
        for end in std::mem::take(&mut self.record.log).iter().rev() {
            serde_json::to_writer(&mut news, end)?;
            news.push(b'\n');
        }
        if self.ends_in == How::Append && news.len() as u64 <= room {
            return Ok(Part { how: How::Append, bytes: news });
        }
        if let (How::Append, Some(slot)) = (self.ends_in, &self.slot) {
            // Ends that cannot be read are lost; nothing depends on them.
            self.ends = slot.ends().unwrap_or_default();
        }
        let all = [std::mem::take(&mut self.ends), news].concat();
        let lines = all.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let from = lines.map(|(at, _)| at + 1).nth(LOG_KEPT).unwrap_or(0);
        Ok(Part { how: How::Anew, bytes: all[from..].to_vec() })
    }

    /// Writes the record as a draft. The caller has the mutex.
    pub(super) fn write(&mut self, directory: &Directory, now: Time) -> Result<Draft, Error> {
        self.used = now;
        let file = FileName::of(&self.name, FileRole::Record);
        let none = Room { log: 0, notes: 0, noted: 0, ends: 0 };
        let old_notes = || match &self.slot {
            Some(slot) => slot.all_notes().map_err(|_| "its notes cannot be read"),
            None => Ok(Vec::new()),
        };
        let room = self.slot.as_ref().map_or(none, |slot| slot.room());
        let mut change =
            queue::change(&self.queue, self.times, &self.record, &self.tracked, now, room, old_notes)
                .map_err(|why| damaged(directory, &file, why))?;
        (self.record.waiters, self.record.queue) = Default::default();
        let Record { holds, spent, watchers, .. } = &self.record;
        self.tracked.retain(|token, _| {
            spent.contains_key(token)
                || watchers.contains_key(token)
                || holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling)
        });
        let garbled = |error: serde_json::Error| {
            Error::Garbled(format!("{}: a record cannot be written as JSON: {error}", directory.shown()))
        };
        change.ends = self.added_ends(room.ends).map_err(garbled)?;
        let body = serde_json::to_vec(self).map_err(garbled)?;
        let parts = [&body, &change.log.bytes, &change.notes.bytes, &change.ends.bytes].map(Vec::len);
        if parts.iter().any(|length| *length as u64 > RECORD_MOST) {
            return Err(Error::Unavailable(format!(
                "{}: {:?} has too many holders and waiters; try again when some have left",
                directory.shown(),
                self.name,
            )));
        }
        Draft::write(directory, file, self.slot.take(), &body, change)
            .map_err(|errno| unwritten(directory, errno))
    }
}

/// A deadline of a life file, by the clock of a record.
fn due(at: Duration, offset: u64) -> Due {
    Due(offset.saturating_add(micros(at)) / 1000)
}

/// Shortens a parser's message, which may quote what it read.
fn shortened(why: &str) -> String {
    why.chars().filter(|c| !c.is_control()).take(120).collect()
}

fn not_understood(directory: &Directory, file: &FileName, bytes: &[u8], why: &str) -> Error {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let any = serde_json::from_slice::<Any>(bytes).or_else(|_| serde_json::from_slice(first));
    match any {
        Ok(any) if any.format != FORMAT => Error::Unfit(format!(
            "{}: {file} was written by another version of dlock (format {}, this one knows {FORMAT}); use that version",
            directory.shown(),
            any.format,
        )),
        _ => damaged(directory, file, why),
    }
}

fn damaged(directory: &Directory, file: &FileName, why: &str) -> Error {
    Error::Garbled(format!(
        "{}: {file} is not a record of dlock's, or damaged ({why}); it was not changed: move it away when nothing runs under its lock",
        directory.shown(),
    ))
}

//! Stores a queue in a record's file so that a change costs only the bytes of the waiters that it
//! concerns. The queue is a log of lines of 80 bytes. A line has all that can change of a waiter,
//! or says that it has left; the last line of each waiter counts. What does not change, its owner
//! and its locks, is in a note beside the log that the line points to. Both grow at their ends. The
//! file's header has their valid lengths, so that the queue changes in one act with the record
//! ([`super::slot`]). When the room is used up, the current lines and notes are written anew
//! elsewhere in the file.

use crate::lock::{Mode, SLOTS_MAX, Token};
use crate::rules::{Record, Time};
use crate::store::engine::Tracked;
use crate::store::engine::bounds::NUMBER_MOST;
use crate::store::engine::queue::{Changes, Note, Place, Queue, TOKEN, Waiting};
use std::collections::BTreeMap;

/// Length of a line in bytes.
const LINE: usize = 80;
/// Offset of the ticket in a line.
const TICKET: usize = 32;

/// The parts to write, besides the body.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) log: Part,
    pub(super) notes: Part,
    pub(super) ends: Part,
}

/// The bytes to write for one part.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) how: How,
    pub(super) bytes: Vec<u8>,
}

/// Where to write them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum How {
    /// After the present content, which stays if there is nothing to add.
    #[default]
    Append,
    /// In place of the present content.
    Anew,
}

/// Bytes that may be appended to each part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) log: u64,
    pub(super) notes: u64,
    /// Present length of the notes.
    pub(super) noted: u64,
    pub(super) ends: u64,
}

/// Whether the times of the queue in memory are those in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Times {
    #[default]
    Same,
    Lifted,
}

/// Parses a log.
pub(super) fn parse(log: &[u8]) -> Result<Queue, &'static str> {
    let (lines, rest) = log.as_chunks::<LINE>();
    if !rest.is_empty() {
        return Err("its queue is cut off");
    }
    // Only the last line of each waiter is parsed, because there may be many times as many lines.
    // The sort moves only the ticket and a reference to each line. It is stable, so of the lines of
    // one waiter the last one stays first.
    let mut order: Vec<(u64, &[u8; LINE])> = Vec::with_capacity(lines.len());
    order.extend(lines.iter().rev().map(|line| (number(line, TICKET), line)));
    order.sort_by(|(one, a), (other, b)| one.cmp(other).then_with(|| a[..TOKEN].cmp(&b[..TOKEN])));
    order.dedup_by(|(one, a), (other, b)| one == other && a[..TOKEN] == b[..TOKEN]);
    let mut waiting = Vec::with_capacity(order.len());
    for (_, line) in order {
        waiting.extend(parse_line(line)?);
    }
    Ok(Queue { waiting })
}

fn number(line: &[u8; LINE], at: usize) -> u64 {
    line[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Parses a waiter; None if it has left.
fn parse_line(line: &[u8; LINE]) -> Result<Option<Waiting>, &'static str> {
    let half = |at: usize| line[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let token: [u8; TOKEN] = *line.first_chunk().ok_or("a token is invalid")?;
    if !token.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte)) {
        return Err("a token is invalid");
    }
    let [ticket, since, silent, forget] = [TICKET, 40, 48, 56].map(|at| number(line, at));
    if [ticket, since, silent, forget].into_iter().any(|number| number > NUMBER_MOST) {
        return Err("a number is too great");
    }
    let mode = match (line[76], half(72)) {
        (0, _) => Mode::Exclusive,
        (1, _) => Mode::Shared,
        (2, slots) if slots <= SLOTS_MAX => Mode::Slots(slots),
        (2, _) => return Err("a waiter wants too many slots"),
        _ => return Err("a waiter wants something unknown"),
    };
    let (place, waits) = match line[77] {
        0 => (Place::Queued, true),
        1 => (Place::Suspended, true),
        2 => (Place::Suspended, false),
        _ => return Err("a waiter has no place in the queue"),
    };
    let (note, is_tracked) = ((half(64), half(68)), line[78] != 0);
    let mut waiting = Waiting::new(token, ticket, mode, place);
    (waiting.since, waiting.silent, waiting.forget) = (since, silent, forget);
    (waiting.note, waiting.is_tracked) = (note, is_tracked);
    Ok(waits.then_some(waiting))
}

fn line(waiting: &Waiting, waits: bool) -> [u8; LINE] {
    let mut line = [0; LINE];
    let (mode, slots) = match waiting.mode {
        Mode::Exclusive => (0, 0),
        Mode::Shared => (1, 0),
        Mode::Slots(slots) => (2, slots),
    };
    line[..TOKEN].copy_from_slice(&waiting.token);
    let Waiting { ticket, since, silent, forget, note, .. } = waiting;
    for (at, number) in [(TICKET, ticket), (40, since), (48, silent), (56, forget)] {
        line[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    for (at, number) in [(64, note.0), (68, note.1), (72, slots)] {
        line[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    line[76] = mode;
    line[77] = match (waits, waiting.place) {
        (true, Place::Queued) => 0,
        (true, Place::Suspended) => 1,
        (false, _) => 2,
    };
    line[78] = u8::from(waiting.is_tracked);
    line
}

/// Shifts all times by `shift` microseconds.
pub(super) fn lift(queue: &mut Queue, shift: u64) {
    for waiting in &mut queue.waiting {
        waiting.ticket = waiting.ticket.saturating_add(shift);
        waiting.since = waiting.since.saturating_add(shift);
        for due in [&mut waiting.silent, &mut waiting.forget] {
            // Zero stands for no time.
            if *due > 0 {
                *due = due.saturating_add(shift / 1000);
            }
        }
    }
}

/// The parts to write after the rules have changed the queue.
pub(super) fn change(
    queue: &Queue,
    times: Times,
    record: &Record,
    tracked: &BTreeMap<Token, Tracked>,
    now: Time,
    room: Room,
    old_notes: impl FnOnce() -> Result<Vec<u8>, &'static str>,
) -> Result<Change, &'static str> {
    let Changes { news, gone } = queue.changes(record, tracked);
    let is_same = times == Times::Same;
    if news.is_empty() && gone.is_empty() && is_same {
        return Ok(Change::default());
    }
    if news.is_empty() && gone.len() == queue.len() {
        return Ok(Change::anew());
    }
    let mut written = Vec::with_capacity(news.len());
    for (waiting, note) in news {
        let note = note.map(|note| serde_json::to_vec(&note)).transpose();
        written.push((waiting, note.map_err(|_| "a waiter cannot be written")?));
    }
    let mut change = Change::default();
    let appended = (written.len() + gone.len()) * LINE;
    let noted: usize = written.iter().filter_map(|(_, note)| note.as_ref().map(Vec::len)).sum();
    if is_same && appended as u64 <= room.log && noted as u64 <= room.notes {
        for waiting in gone {
            change.log.bytes.extend(line(waiting, false));
        }
        for (waiting, note) in written {
            change.add(waiting, note.as_deref(), room.noted)?;
        }
        return Ok(change);
    }
    change = Change::anew();
    let old = if queue.is_empty() { Vec::new() } else { old_notes()? };
    let is_over = |waiting: &Waiting| {
        let is_new = written.iter().any(|(new, _)| new.key() == waiting.key());
        is_new || waiting.is_forgotten(now) || gone.iter().any(|gone| gone.key() == waiting.key())
    };
    let kept = queue.waiting.iter().filter(|waiting| !is_over(waiting));
    let mut all: Vec<(Waiting, Option<Vec<u8>>)> = kept.map(|waiting| (waiting.clone(), None)).collect();
    all.extend(written);
    all.sort_by_key(|(waiting, _)| waiting.key());
    for (waiting, note) in all {
        let (at, length) = (waiting.note.0 as usize, waiting.note.1 as usize);
        let note = note.as_deref().or_else(|| old.get(at..at.saturating_add(length)));
        change.add(waiting, Some(note.ok_or("a waiter's note is missing")?), 0)?;
    }
    Ok(change)
}

/// Parses a note.
pub(super) fn note(bytes: &[u8]) -> Result<Note, &'static str> {
    serde_json::from_slice(bytes).map_err(|_| "a waiter's note is damaged")
}

impl Change {
    /// A change that replaces the whole queue.
    fn anew() -> Self {
        let part = || Part { how: How::Anew, bytes: Vec::new() };
        Self { log: part(), notes: part(), ends: Part::default() }
    }

    /// Adds a line, and its note if that is new. `noted` is the length of the notes before these.
    fn add(&mut self, mut waiting: Waiting, note: Option<&[u8]>, noted: u64) -> Result<(), &'static str> {
        if let Some(note) = note {
            let at = noted + self.notes.bytes.len() as u64;
            let place = u32::try_from(at).ok().zip(u32::try_from(note.len()).ok());
            waiting.note = place.ok_or("too many waiters")?;
            self.notes.bytes.extend_from_slice(note);
        }
        self.log.bytes.extend(line(&waiting, true));
        Ok(())
    }
}

//! Who waits for one lock, in order? However many there are, a step writes only about those whom it concerned, and shows the
//! law only those whom it may turn to: the first ones, who asks, and the one before that. The rest costs a step 80 bytes
//! each that are read over.
//!
//! A queue is a log of [`Entry`]s of fixed length, each of which says all that changes of a waiter or that it is gone; the
//! last one about it counts. What does not change, whose it is and which locks it waits for together, is a [`Note`] beside
//! the log that the entry points to. Both stand in the record's file and grow at their ends; how far they are valid says the
//! file's header, so that a queue changes in one act with the record ([`super::slot`]). When the room is used up, what is
//! still true is written anew elsewhere.

use crate::law::{Due, Record, Time, Waiter};
use crate::lock::{Mode, Owner, SLOTS_MAX, Token};
use crate::store::file::record::{Alive, NUMBER_MOST};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The length of a token.
const TOKEN: usize = 32;

/// All who wait, parked ones included, in order of their tickets.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) entries: Vec<Entry>,
    /// The times in it are no longer those in the file.
    is_lifted: bool,
}

/// A waiter, as the log tells of it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    token: [u8; TOKEN],
    pub(super) ticket: u64,
    since: u64,
    silent: u64,
    forget: u64,
    /// Where its note begins, and how long it is.
    note: (u32, u32),
    mode: Mode,
    place: Place,
    pub(super) has_life: bool,
    /// What the law was shown of it, if it was.
    shown: Option<Box<Shown>>,
}

/// Where a waiter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Queued,
    Parked,
    /// It waits no more.
    Gone,
}

#[derive(Debug, Clone)]
struct Shown {
    waiter: Waiter,
    alive: Option<Alive>,
}

/// What does not change about a waiter.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    token: Token,
    names: Vec<String>,
    owner: Owner,
    alive: Option<Alive>,
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) how: How,
    pub(super) entries: Vec<u8>,
    pub(super) notes: Vec<u8>,
}

/// Where it is to be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum How {
    /// Behind what is there, which stays as it is if there is nothing to add.
    #[default]
    Append,
    /// Instead of it.
    Anew,
}

/// How much may be appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) entries: u64,
    pub(super) notes: u64,
    /// How long the notes are now.
    pub(super) noted: u64,
}

impl Entry {
    const LENGTH: usize = 80;

    fn parse(bytes: &[u8; Self::LENGTH]) -> Result<Self, &'static str> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let half = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(number)
        };
        let mut token = [0; TOKEN];
        token.copy_from_slice(&bytes[..TOKEN]);
        if !token.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte)) {
            return Err("a token is none");
        }
        let (ticket, since, silent, forget) = (number(32), number(40), number(48), number(56));
        if [ticket, since, silent, forget].into_iter().any(|number| number > NUMBER_MOST) {
            return Err("a number is too great");
        }
        let mode = match (bytes[76], half(72)) {
            (0, _) => Mode::Exclusive,
            (1, _) => Mode::Shared,
            (2, slots) if slots <= SLOTS_MAX => Mode::Slots(slots),
            (2, _) => return Err("a waiter wants too many slots"),
            _ => return Err("a waiter wants something unknown"),
        };
        let place = match bytes[77] {
            0 => Place::Queued,
            1 => Place::Parked,
            2 => Place::Gone,
            _ => return Err("a waiter stands nowhere"),
        };
        let (note, has_life) = ((half(64), half(68)), bytes[78] != 0);
        Ok(Self { token, ticket, since, silent, forget, note, mode, place, has_life, shown: None })
    }

    fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let (mode, slots) = match self.mode {
            Mode::Exclusive => (0, 0),
            Mode::Shared => (1, 0),
            Mode::Slots(slots) => (2, slots),
        };
        bytes[..TOKEN].copy_from_slice(&self.token);
        for (at, number) in [(32, self.ticket), (40, self.since), (48, self.silent), (56, self.forget)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        for (at, number) in [(64, self.note.0), (68, self.note.1), (72, slots)] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[76] = mode;
        bytes[77] = match self.place {
            Place::Queued => 0,
            Place::Parked => 1,
            Place::Gone => 2,
        };
        bytes[78] = u8::from(self.has_life);
        bytes
    }

    fn of(waiter: &Waiter, token: &Token, place: Place, alive: Option<Alive>) -> Option<Self> {
        Some(Self {
            token: token.secret().as_bytes().try_into().ok()?,
            ticket: waiter.ticket,
            since: waiter.since.0,
            silent: waiter.silent.0,
            forget: waiter.forget.0,
            note: (0, 0),
            mode: waiter.mode,
            place,
            has_life: alive.is_some(),
            shown: None,
        })
    }

    fn key(&self) -> (u64, [u8; TOKEN]) {
        (self.ticket, self.token)
    }

    /// Whose it is; checked when it was parsed.
    pub(super) fn token(&self) -> Option<Token> {
        std::str::from_utf8(&self.token).ok().and_then(|text| Token::parse(text).ok())
    }

    fn is(&self, token: &Token) -> bool {
        self.token == *token.secret().as_bytes()
    }

    pub(super) fn is_queued(&self) -> bool {
        self.place == Place::Queued
    }

    pub(super) fn is_shown(&self) -> bool {
        self.shown.is_some()
    }

    /// Where its note stands among the notes.
    pub(super) fn note(&self) -> (u64, u64) {
        (self.note.0.into(), self.note.1.into())
    }
}

impl Queue {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (entries, rest) = bytes.as_chunks::<{ Entry::LENGTH }>();
        if !rest.is_empty() {
            return Err("its queue is cut off");
        }
        let mut entries = entries.iter().map(Entry::parse).collect::<Result<Vec<_>, _>>()?;
        // The last one about a waiter comes first, and counts. (What is nearly in order is sorted in one go.)
        entries.reverse();
        entries.sort_by_key(Entry::key);
        entries.dedup_by_key(|entry| entry.key());
        entries.retain(|entry| entry.place != Place::Gone);
        Ok(Self { entries, is_lifted: false })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Nobody waits any more.
    pub(super) fn clear(&mut self) {
        *self = Self { entries: Vec::new(), is_lifted: true };
    }

    pub(super) fn find(&self, token: &Token) -> Option<usize> {
        self.entries.iter().position(|entry| entry.is(token))
    }

    /// All its times are counted from so much earlier.
    pub(super) fn lift(&mut self, shift: u64) {
        let due = |due: &mut u64| {
            if *due > 0 {
                *due = due.saturating_add(shift / 1000);
            }
        };
        for entry in &mut self.entries {
            entry.ticket = entry.ticket.saturating_add(shift);
            entry.since = entry.since.saturating_add(shift);
            due(&mut entry.silent);
            due(&mut entry.forget);
        }
        self.is_lifted = true;
    }

    /// Shows a waiter to the law: `note` is what is written about it. Answers the locks that it waits for.
    pub(super) fn show(
        &mut self,
        at: usize,
        note: &[u8],
        name: &str,
        record: &mut Record,
        lives: &mut BTreeMap<Token, Alive>,
        heard: impl FnOnce(&Token, &mut Waiter),
    ) -> Result<Vec<String>, &'static str> {
        let Some(entry) = self.entries.get_mut(at).filter(|entry| !entry.is_shown()) else {
            return Ok(Vec::new());
        };
        let note: Note = serde_json::from_slice(note).map_err(|_| "a waiter's note is damaged")?;
        if !entry.is(&note.token) {
            return Err("a waiter has the note of another");
        }
        if !note.names.iter().any(|of| of == name) {
            return Err("a waiter waits for other locks");
        }
        let mut waiter = Waiter {
            ticket: entry.ticket,
            since: Time(entry.since),
            silent: Due(entry.silent),
            forget: Due(entry.forget),
            mode: entry.mode,
            names: note.names,
            owner: note.owner,
        };
        #[cfg(test)]
        SHOWN.set(SHOWN.get() + 1);
        if let Some(alive) = note.alive {
            lives.insert(note.token.clone(), alive);
            heard(&note.token, &mut waiter);
        }
        if entry.is_queued() {
            record.queue.insert((waiter.ticket, note.token.clone()));
        }
        let names = waiter.names.clone();
        record.waiters.insert(note.token, waiter.clone());
        entry.shown = Some(Box::new(Shown { waiter, alive: note.alive }));
        Ok(names)
    }

    /// The waiter whom the law has to be shown yet: at the front of the queue, among the first `front`, or directly before
    /// `me`; whoever comes last where `me` is about to join them.
    pub(super) fn exposed(
        &self,
        record: &Record,
        front: usize,
        me: Option<(&Token, Joins)>,
    ) -> Option<usize> {
        let is_left = |entry: &Entry| match entry.token() {
            Some(token) if entry.is_shown() => record.queue.contains(&(entry.ticket, token)),
            _ => true,
        };
        let queued = || self.entries.iter().enumerate().filter(|(_, entry)| entry.is_queued());
        let first = queued().filter(|(_, entry)| is_left(entry)).take(front);
        if let Some((at, _)) = first.into_iter().find(|(_, entry)| !entry.is_shown()) {
            return Some(at);
        }
        let (me, joins) = me?;
        let mine = self.find(me);
        if let Some(at) = mine.filter(|at| !self.entries[*at].is_shown()) {
            return Some(at);
        }
        let ticket = record.waiters.get(me).map(|waiter| waiter.ticket);
        let mut before = queued().rev().filter(|(_, entry)| match ticket {
            Some(ticket) => (entry.ticket, entry.token.as_slice()) < (ticket, me.secret().as_bytes()),
            None => joins == Joins::Yes,
        });
        before.find(|(_, entry)| is_left(entry)).filter(|(_, entry)| !entry.is_shown()).map(|(at, _)| at)
    }

    /// How many stand before `me` that the law was not shown.
    pub(super) fn unseen_before(&self, record: &Record, me: &Token) -> u64 {
        let Some(ticket) = record.waiters.get(me).map(|waiter| waiter.ticket) else { return 0 };
        let before = self.entries.iter().take_while(|entry| entry.ticket < ticket);
        before.filter(|entry| entry.is_queued() && !entry.is_shown()).count() as u64
    }

    /// What the law made of those that it was shown, and of those that came.
    pub(super) fn change(
        &self,
        record: &Record,
        lives: &BTreeMap<Token, Alive>,
        now: Time,
        room: Room,
        old_notes: impl FnOnce() -> Result<Vec<u8>, &'static str>,
    ) -> Result<Change, &'static str> {
        let mut news: Vec<(Entry, Option<Vec<u8>>)> = Vec::new();
        let mut gone: Vec<&Entry> = Vec::new();
        let place = |token: &Token, waiter: &Waiter| {
            let is_queued = record.queue.contains(&(waiter.ticket, token.clone()));
            if is_queued { Place::Queued } else { Place::Parked }
        };
        for (token, waiter) in &record.waiters {
            let alive = lives.get(token).copied();
            let known = self.entries.iter().find(|entry| entry.is(token));
            let shown = known.and_then(|entry| Some((entry, entry.shown.as_deref()?)));
            let Some(mut entry) = Entry::of(waiter, token, place(token, waiter), alive) else { continue };
            if let Some((old, shown)) = shown {
                let same_note = shown.waiter.names == waiter.names
                    && shown.waiter.owner == waiter.owner
                    && shown.alive == alive;
                if same_note && shown.waiter == *waiter && old.place == entry.place {
                    continue;
                }
                if old.key() != entry.key() {
                    gone.push(old);
                }
                if same_note {
                    entry.note = old.note;
                    news.push((entry, None));
                    continue;
                }
            }
            let note = Note {
                token: token.clone(),
                names: waiter.names.clone(),
                owner: waiter.owner.clone(),
                alive,
            };
            news.push((entry, Some(serde_json::to_vec(&note).map_err(|_| "a waiter cannot be written")?)));
        }
        let shown = self.entries.iter().filter(|entry| entry.is_shown());
        gone.extend(
            shown.filter(|entry| entry.token().is_none_or(|token| !record.waiters.contains_key(&token))),
        );
        let is_gone = |entry: &Entry| gone.iter().any(|gone| gone.key() == entry.key());
        if news.is_empty() && gone.is_empty() && !self.is_lifted {
            return Ok(Change::default());
        }
        if news.is_empty() && gone.len() == self.entries.len() {
            return Ok(Change { how: How::Anew, ..Change::default() });
        }
        let appended = ((news.len() + gone.len()) * Entry::LENGTH) as u64;
        let noted: usize = news.iter().filter_map(|(_, note)| note.as_ref().map(Vec::len)).sum();
        let mut change = Change::default();
        if !self.is_lifted && appended <= room.entries && noted as u64 <= room.notes {
            for entry in gone {
                change.entries.extend(Entry { place: Place::Gone, shown: None, ..entry.clone() }.bytes());
            }
            for (entry, note) in news {
                change.add(entry, note.as_deref(), room.noted)?;
            }
            return Ok(change);
        }
        change.how = How::Anew;
        let old = if self.entries.is_empty() { Vec::new() } else { old_notes()? };
        let old_note = |entry: &Entry| {
            let (at, length) = (entry.note.0 as usize, entry.note.1 as usize);
            old.get(at..at.saturating_add(length)).ok_or("a waiter's note is missing")
        };
        let mut all: Vec<(Entry, Option<Vec<u8>>)> = Vec::with_capacity(self.entries.len() + news.len());
        for entry in &self.entries {
            let is_new = news.iter().any(|(new, _)| new.key() == entry.key());
            let is_over = !entry.is_queued() && !entry.is_shown() && Due(entry.forget).is_past(now);
            if !is_gone(entry) && !is_new && !is_over {
                all.push((entry.clone(), None));
            }
        }
        all.extend(news);
        all.sort_by_key(|(entry, _)| entry.key());
        for (entry, note) in all {
            match note {
                Some(note) => change.add(entry, Some(&note), 0)?,
                None => {
                    let note = old_note(&entry)?.to_vec();
                    change.add(entry, Some(&note), 0)?;
                }
            }
        }
        Ok(change)
    }
}

impl Change {
    /// Adds an entry, and its note if it is new; the notes before these have that length.
    fn add(&mut self, mut entry: Entry, note: Option<&[u8]>, noted: u64) -> Result<(), &'static str> {
        if let Some(note) = note {
            let at = noted + self.notes.len() as u64;
            let place = u32::try_from(at).ok().zip(u32::try_from(note.len()).ok());
            entry.note = place.ok_or("too many wait for it")?;
            self.notes.extend_from_slice(note);
        }
        self.entries.extend(entry.bytes());
        Ok(())
    }
}

#[cfg(test)]
thread_local! {
    /// How many waiters the law was shown by this thread.
    pub(super) static SHOWN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Whether somebody may be about to stand at the end of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joins {
    Yes,
    No,
}

//! Selects the waiters that a decision can depend on: the first ones, the caller, and the caller's
//! predecessor; if the caller joins, also the last one, and the one that `--replace` may supersede.
//! So the cost of an operation does not grow with the number of waiters, except for a pass over the
//! few bytes that an adapter keeps in memory for each. What the rules changed about the selected
//! waiters is returned as [`Changes`].

use super::Tracked;
use crate::lock::{Mode, Owner, Token};
use crate::rules::{Due, Record, Terms, Time, Waiter};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Length of a token in bytes.
pub const TOKEN: usize = 32;
/// Placeholder in place of a token. It stands for all waiters behind those that were read.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd"))]
const UNREAD: [u8; TOKEN] = [0xff; TOKEN];

/// All waiters of a lock in order of their tickets, suspended ones included; or the first ones and
/// a placeholder for the others.
#[derive(Debug, Default)]
pub struct Queue {
    pub waiting: Vec<Waiting>,
}

/// One waiter, without the data that only a grant needs. The numbers are those of [`Waiter`].
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The token, as text.
    pub token: [u8; TOKEN],
    pub ticket: u64,
    pub since: u64,
    pub silent: u64,
    pub forget: u64,
    pub mode: Mode,
    pub place: Place,
    /// Whether the owner's liveness can be checked.
    pub is_tracked: bool,
    /// In the file store only: where the waiter's note is, start and length.
    pub note: (u32, u32),
    /// What the rules were shown of the waiter, if they were.
    shown: Option<Box<Shown>>,
}

/// Where a waiter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the queue.
    Queued,
    /// Out of the queue, with the ticket kept.
    Suspended,
}

#[derive(Debug, Clone)]
struct Shown {
    waiter: Waiter,
    tracked: Option<Tracked>,
}

/// The data of a waiter that seldom changes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Note {
    token: Token,
    names: Vec<String>,
    owner: Owner,
    #[serde(default, skip_serializing_if = "Terms::is_plain")]
    terms: Terms,
    #[serde(rename = "alive")]
    tracked: Option<Tracked>,
}

/// What the rules have changed in a queue.
#[derive(Debug)]
pub struct Changes<'q> {
    /// New or changed waiters, with their notes if these are new.
    pub news: Vec<(Waiting, Option<Note>)>,
    /// Waiters that have left, or have another ticket now.
    pub gone: Vec<&'q Waiting>,
}

/// Whether the caller may join the end of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    Yes,
    No,
}

impl Waiting {
    /// A waiter that the rules have not been shown.
    pub fn new(token: [u8; TOKEN], ticket: u64, mode: Mode, place: Place) -> Self {
        let (since, silent, forget, note) = (0, 0, 0, (0, 0));
        Self { token, ticket, since, silent, forget, mode, place, is_tracked: false, note, shown: None }
    }

    /// The placeholder for all waiters behind those that were read. `ticket` is the highest ticket
    /// that was read.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd"))]
    pub fn unread(ticket: u64) -> Self {
        Self::new(UNREAD, ticket, Mode::Exclusive, Place::Queued)
    }

    fn of(waiter: &Waiter, token: &Token, place: Place, tracked: Option<Tracked>) -> Option<Self> {
        Some(Self {
            since: waiter.since.0,
            silent: waiter.silent.0,
            forget: waiter.forget.0,
            is_tracked: tracked.is_some(),
            ..Self::new(token.secret().as_bytes().try_into().ok()?, waiter.ticket, waiter.mode, place)
        })
    }

    /// The sort key of the queue.
    pub fn key(&self) -> (u64, [u8; TOKEN]) {
        (self.ticket, self.token)
    }

    /// The waiter's token; None for the placeholder.
    pub fn token(&self) -> Option<Token> {
        std::str::from_utf8(&self.token).ok().and_then(|text| Token::parse(text).ok())
    }

    fn is(&self, token: &Token) -> bool {
        self.token == *token.secret().as_bytes()
    }

    fn is_queued(&self) -> bool {
        self.place == Place::Queued
    }

    /// Whether the rules were shown this waiter.
    pub fn is_shown(&self) -> bool {
        self.shown.is_some()
    }

    /// Whether the waiter is suspended and its ticket has lapsed. Only for waiters that the rules
    /// were not shown: the rules decide for the others.
    pub fn is_forgotten(&self, now: Time) -> bool {
        !self.is_queued() && !self.is_shown() && Due(self.forget).is_past(now)
    }
}

impl Queue {
    /// Whether there are waiters that the rules were not shown.
    pub fn has_unshown(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_shown())
    }

    /// Number of waiters, suspended ones included.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The token of the waiter at this place.
    pub fn token(&self, at: usize) -> Option<Token> {
        self.waiting.get(at)?.token()
    }

    /// Removes the placeholder, once all waiters are read.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd"))]
    pub fn drop_unread(&mut self) {
        self.waiting.retain(|waiting| waiting.token != UNREAD);
    }

    /// The place of this token's waiter.
    pub fn find(&self, token: &Token) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.is(token))
    }

    /// Whether the head of the queue wants the exclusive lock, or there is no head.
    pub fn is_for_one(&self) -> bool {
        let mut queued = self.waiting.iter().filter(|waiting| waiting.is_queued());
        queued.next().is_none_or(|head| head.mode == Mode::Exclusive)
    }

    /// Whether the token was in the queue when the record was read.
    pub fn is_queued(&self, token: &Token) -> bool {
        self.find(token).is_some_and(|at| self.waiting[at].is_queued())
    }

    /// Adds the waiter at this place to `record`, for the lock rules. `heard` applies the deadline
    /// that the waiter has published since. Returns the locks that the waiter waits for.
    pub fn show(
        &mut self,
        at: usize,
        note: Note,
        name: &str,
        record: &mut Record,
        all_tracked: &mut BTreeMap<Token, Tracked>,
        heard: impl FnOnce(&Token, &mut Waiter),
    ) -> Result<Vec<String>, &'static str> {
        let Some(waiting) = self.waiting.get_mut(at).filter(|waiting| !waiting.is_shown()) else {
            return Ok(Vec::new());
        };
        let Note { token, names, owner, terms, tracked } = note;
        if !waiting.is(&token) {
            return Err("a waiter has the note of another");
        }
        if !names.iter().any(|of| of == name) {
            return Err("a waiter waits for other locks");
        }
        let mut waiter = Waiter {
            ticket: waiting.ticket,
            since: Time(waiting.since),
            silent: Due(waiting.silent),
            forget: Due(waiting.forget),
            mode: waiting.mode,
            names,
            owner,
            terms,
        };
        #[cfg(test)]
        SHOWN.set(SHOWN.get() + 1);
        if let Some(tracked) = tracked {
            all_tracked.insert(token.clone(), tracked);
            heard(&token, &mut waiter);
        }
        if waiting.is_queued() {
            record.queue.insert((waiter.ticket, token.clone()));
        }
        let names = waiter.names.clone();
        record.waiters.insert(token, waiter.clone());
        waiting.shown = Some(Box::new(Shown { waiter, tracked }));
        Ok(names)
    }

    /// The next waiter that the rules must be shown, in this order:
    /// - the first `front` in the queue, not counting `me`;
    /// - `me`;
    /// - if `me` joins, the waiter that `me` may supersede;
    /// - the predecessor of `me`;
    /// - instead of that, if `me` joins and does not wait yet, the last in the queue.
    pub fn exposed(&self, record: &Record, front: usize, me: Option<(&Token, Joins)>) -> Option<usize> {
        let is_left = |waiting: &Waiting| match waiting.token() {
            Some(token) if waiting.is_shown() => record.queue.contains(&(waiting.ticket, token)),
            _ => true,
        };
        let queued = || self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.is_queued());
        let is_other = |waiting: &Waiting| me.is_none_or(|(me, _)| !waiting.is(me));
        let mut first = queued().filter(|(_, waiting)| is_left(waiting) && is_other(waiting)).take(front);
        if let Some((at, _)) = first.find(|(_, waiting)| !waiting.is_shown()) {
            return Some(at);
        }
        let (me, joins) = me?;
        if let Some(at) = self.find(me).filter(|at| !self.waiting[*at].is_shown()) {
            return Some(at);
        }
        let newest = record.newest.as_ref().filter(|_| joins == Joins::Yes);
        if let Some(at) =
            newest.and_then(|newest| self.find(&newest.token)).filter(|at| !self.waiting[*at].is_shown())
        {
            return Some(at);
        }
        let ticket = record.waiters.get(me).map(|waiter| waiter.ticket);
        let mut before = queued().rev().filter(|(_, waiting)| match ticket {
            Some(ticket) => (waiting.ticket, waiting.token.as_slice()) < (ticket, me.secret().as_bytes()),
            None => joins == Joins::Yes,
        });
        let nearest = before.find(|(_, waiting)| is_left(waiting));
        nearest.filter(|(_, waiting)| !waiting.is_shown()).map(|(at, _)| at)
    }

    /// Whether the rules granted the lock past a waiter that they were not shown: to one behind it,
    /// or to a token that was not in the queue. `had` tells who held the lock before.
    pub fn skipped_unshown(&self, record: &Record, had: impl Fn(&Token) -> bool) -> bool {
        let is_unshown = self.waiting.iter().any(|waiting| waiting.is_queued() && !waiting.is_shown());
        if is_unshown && record.holds.keys().any(|token| !had(token) && !self.is_queued(token)) {
            return true;
        }
        let queued = self.waiting.iter().filter(|waiting| waiting.is_queued());
        let behind = queued.skip_while(|waiting| waiting.is_shown());
        let holds = |token: Token| record.holds.contains_key(&token);
        behind.filter(|waiting| waiting.is_shown()).filter_map(Waiting::token).any(holds)
    }

    /// How many waiters before `me` the rules were not shown.
    pub fn unseen_before(&self, record: &Record, me: &Token) -> u64 {
        let Some(ticket) = record.waiters.get(me).map(|waiter| waiter.ticket) else { return 0 };
        let before = self.waiting.iter().take_while(|waiting| waiting.ticket < ticket);
        before.filter(|waiting| waiting.is_queued() && !waiting.is_shown()).count() as u64
    }

    /// What the rules have changed: the waiters that they were shown, and new ones.
    pub fn changes(&self, record: &Record, all_tracked: &BTreeMap<Token, Tracked>) -> Changes<'_> {
        let mut changes = Changes { news: Vec::new(), gone: Vec::new() };
        for (token, waiter) in &record.waiters {
            let is_queued = record.queue.contains(&(waiter.ticket, token.clone()));
            let place = if is_queued { Place::Queued } else { Place::Suspended };
            let tracked = all_tracked.get(token).copied();
            let Some(mut new) = Waiting::of(waiter, token, place, tracked) else { continue };
            let known = self.find(token).map(|at| &self.waiting[at]);
            if let Some((old, shown)) = known.and_then(|old| Some((old, old.shown.as_deref()?))) {
                let has_same_note = shown.waiter.names == waiter.names
                    && shown.waiter.owner == waiter.owner
                    && shown.waiter.terms == waiter.terms
                    && shown.tracked == tracked;
                if has_same_note && shown.waiter == *waiter && old.place == place {
                    continue;
                }
                if old.key() != new.key() {
                    changes.gone.push(old);
                }
                if has_same_note {
                    new.note = old.note;
                    changes.news.push((new, None));
                    continue;
                }
            }
            let Waiter { names, owner, terms, .. } = waiter.clone();
            changes.news.push((new, Some(Note { token: token.clone(), names, owner, terms, tracked })));
        }
        let shown = self.waiting.iter().filter(|waiting| waiting.is_shown());
        let waits = |token: Token| record.waiters.contains_key(&token);
        changes.gone.extend(shown.filter(|waiting| !waiting.token().is_some_and(waits)));
        changes
    }
}

#[cfg(test)]
thread_local! {
    /// How many waiters this thread has shown to the rules.
    pub static SHOWN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

//! What about a record decides who is woken by its change, and who stands in whose way? Looked at, never changed.

use crate::lock::{Mode, Token};
use crate::rules::{Absence, Hold, Lock, Phase, Record};
use std::collections::BTreeMap;
use std::mem::Discriminant;

/// A record before an operation, as far as it decides whom that has to wake.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The holds, and who was asked to end.
    pub holds: BTreeMap<Token, (Phase, Asked)>,
    pub absence: Absence,
    head: Option<Token>,
    lock: Option<Discriminant<Lock>>,
    /// Only where somebody watches.
    all: Option<(Vec<Token>, [u64; 5])>,
}

/// Whether an operator asked a holder to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Yes,
    No,
}

impl Snapshot {
    pub fn at(record: &Record) -> Self {
        Self {
            holds: record
                .holds
                .iter()
                .map(|(token, hold)| (token.clone(), (hold.phase, asked(hold))))
                .collect(),
            absence: record.absence,
            head: record.queue.first().map(|(_, token)| token.clone()),
            lock: Some(std::mem::discriminant(&record.lock)),
            all: (!record.watchers.is_empty()).then(|| everything(record)),
        }
    }

    /// Whether there is anything new for those who look on: a grant, an end, a refusal, a waiter that comes or goes.
    pub fn is_seen(&self, record: &Record) -> bool {
        let now = Self::at(record);
        now.holds != self.holds || now.lock != self.lock || now.all != self.all
    }

    /// Whether the head is another, or has to look again at what it waits for. One holder less of several is no news for
    /// it: if the lock were to be had now, it would have been granted it.
    pub fn is_news(&self, record: &Record) -> bool {
        self.head.as_ref() != record.queue.first().map(|(_, token)| token)
            || self.lock != Some(std::mem::discriminant(&record.lock))
            || self
                .holds
                .iter()
                .any(|(token, (phase, _))| record.holds.get(token).is_some_and(|hold| hold.phase != *phase))
    }
}

pub fn asked(hold: &Hold) -> Asked {
    if hold.asked.is_some() { Asked::Yes } else { Asked::No }
}

/// The queue, who was refused, found it done or was sent home, the grants that were heard of, and the pause.
fn everything(record: &Record) -> (Vec<Token>, [u64; 5]) {
    let queue = record.queue.iter().map(|(_, token)| token.clone()).collect();
    let paused = record.paused.as_ref().map_or(0, |pause| pause.until);
    (queue, [record.stat.busy, record.stat.done, record.stat.superseded, record.stat.waited.count(), paused])
}

/// Those who hold it or lost it to an operator. What a min-hold keeps has no life.
pub fn holders(record: &Record) -> impl Iterator<Item = &Token> {
    record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling).map(|(token, _)| token)
}

/// The waiter directly before `me` in the queue.
pub fn predecessor<'r>(record: &'r Record, me: &Token) -> Option<&'r Token> {
    let ticket = record.waiters.get(me)?.ticket;
    record.queue.range(..(ticket, me.clone())).next_back().map(|(_, token)| token)
}

/// Whether the holders are in nobody's way who wants the lock so.
pub fn admits(record: &Record, mode: Mode) -> bool {
    match (&record.lock, mode) {
        (Lock::Free, _) | (Lock::Shared { .. }, Mode::Shared) => true,
        (Lock::Slots { slots, .. }, Mode::Slots(wanted)) => {
            *slots == wanted && record.holds.len() < *slots as usize
        }
        _ => false,
    }
}

/// The fence of a lock that was granted to `me` alone, which has not confirmed it yet.
pub fn granted_alone(record: &Record, me: &Token) -> Option<u64> {
    let is_alone = matches!(&record.lock, Lock::Exclusive { token, .. } if token == me);
    let hold = record.holds.get(me).filter(|hold| is_alone && hold.phase == Phase::Held && !hold.confirmed);
    hold.map(|hold| hold.fence)
}

//! Compares a record before and after an operation, to decide which waiters to wake. Also tells
//! which tokens a waiter watches.

use crate::lock::{Mode, Token};
use crate::rules::{Hold, Lock, Phase, Record};
use std::collections::BTreeMap;
use std::mem::Discriminant;

/// The parts of a record before an operation that decide which waiters the operation must wake.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The phase of each hold, and whether its holder was asked to end.
    pub holds: BTreeMap<Token, (Phase, Asked)>,
    head: Option<Token>,
    lock: Option<Discriminant<Lock>>,
    /// The parts whose changes wake only watchers; None without watchers.
    all: Option<(Vec<Token>, [u64; 5])>,
}

/// Whether a holder was asked to end its job.
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
            head: record.queue.first().map(|(_, token)| token.clone()),
            lock: Some(std::mem::discriminant(&record.lock)),
            all: (!record.watchers.is_empty()).then(|| everything(record)),
        }
    }

    /// Whether watchers must be woken: after a grant, an end, a refusal, a pause, a request to end,
    /// or when a waiter comes or leaves.
    pub fn concerns_watchers(&self, record: &Record) -> bool {
        let now = Self::at(record);
        now.holds != self.holds || now.lock != self.lock || now.all != self.all
    }

    /// Whether the head of the queue must be woken, because it is new, or because the kind of lock
    /// or the phase of a hold has changed. The end of one of several holds does not count: if that
    /// had freed the lock, the rules would have granted it to the head.
    pub fn concerns_head(&self, record: &Record) -> bool {
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

/// The queue, the pause, and the counts of refusals and of confirmed grants.
fn everything(record: &Record) -> (Vec<Token>, [u64; 5]) {
    let queue = record.queue.iter().map(|(_, token)| token.clone()).collect();
    let paused = record.paused.as_ref().map_or(0, |pause| pause.until);
    (queue, [record.stat.busy, record.stat.done, record.stat.superseded, record.stat.waited.count(), paused])
}

/// The holders, revoked ones included. A cooling hold is left out: it has no liveness.
pub fn holders(record: &Record) -> impl Iterator<Item = &Token> {
    record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling).map(|(token, _)| token)
}

/// The waiter directly before `me` in the queue.
pub fn predecessor<'r>(record: &'r Record, me: &Token) -> Option<&'r Token> {
    let ticket = record.waiters.get(me)?.ticket;
    record.queue.range(..(ticket, me.clone())).next_back().map(|(_, token)| token)
}

/// Whether the present holders leave room for another in this mode. Unlike `Record::admits`, this
/// ignores a pause and lost holds.
pub fn admits(record: &Record, mode: Mode) -> bool {
    match (&record.lock, mode) {
        (Lock::Free, _) | (Lock::Shared { .. }, Mode::Shared) => true,
        (Lock::Slots { slots, .. }, Mode::Slots(wanted)) => {
            *slots == wanted && record.holds.len() < *slots as usize
        }
        _ => false,
    }
}

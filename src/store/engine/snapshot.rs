//! Compares a record before and after an operation, to decide which waiters to wake. Also tells
//! which tokens a waiter watches.

use crate::lock::{Mode, Token};
use crate::rules::{Hold, Lock, Phase, Record};
use std::mem::discriminant;

/// What watchers see of a record: its holds, the kind of lock, the queue, the pause, and the counts
/// of refusals and of confirmed grants.
fn shown(record: &Record) -> impl PartialEq {
    let holds: Vec<_> =
        record.holds.iter().map(|(token, hold)| (token, hold.phase, hold.asked.is_some())).collect();
    let queue: Vec<_> = record.queue.iter().map(|(_, token)| token).collect();
    let paused = record.paused.as_ref().map(|pause| pause.until);
    let stat = &record.stat;
    let counts = (stat.busy, stat.done, stat.superseded, stat.grants);
    (holds, discriminant(&record.lock), queue, paused, counts)
}

/// Whether watchers must be woken: after a grant, an end, a refusal, a pause, a request to end, or
/// when a waiter comes or leaves.
pub fn concerns_watchers(before: &Record, now: &Record) -> bool {
    !now.watchers.is_empty() && shown(before) != shown(now)
}

/// Whether the head of the queue must be woken, because it is new, or because the kind of lock or
/// the phase of a hold has changed. The end of one of several holds does not count: if that had
/// freed the lock, the rules would have granted it to the head.
pub fn concerns_head(before: &Record, now: &Record) -> bool {
    let head = |record: &Record| record.queue.first().map(|(_, token)| token.clone());
    let has_new_phase = |(token, hold): (&Token, &Hold)| {
        before.holds.get(token).is_some_and(|before| before.phase != hold.phase)
    };
    head(before) != head(now)
        || discriminant(&before.lock) != discriminant(&now.lock)
        || now.holds.iter().any(has_new_phase)
}

/// The holders, revoked ones included. A cooling hold is left out: it has no liveness.
pub fn holders(record: &Record) -> impl Iterator<Item = &Token> {
    record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling).map(|(token, _)| token)
}

/// The waiter right before `me` in the queue.
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

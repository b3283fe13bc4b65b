//! Decides which tokens an operation wakes, and which tokens a waiter watches until then, in case
//! that nothing is left to wake it.

use crate::lock::{Mode, Token};
use crate::rules::{Hold, Lock, Phase, Record};
use std::collections::BTreeSet;
use std::mem::discriminant;

/// The tokens to wake after an operation: new holders that have not confirmed, holders that were asked
/// to end or whose lock was taken away, watchers, and waiters that have left the queue because their
/// `--once-per` run is done or they were superseded. Also the head of a queue, if it is new or what
/// blocks it has changed. After an exclusive grant the head is not woken: it watches the new holder,
/// its predecessor until now, or reads often.
#[derive(Default)]
pub struct Woken {
    /// New holders and heads, which are woken first.
    first: Vec<Token>,
    others: Vec<Token>,
}

impl Woken {
    /// Adds the tokens that the change of this record concerns.
    pub fn add(&mut self, before: &Record, now: &Record) {
        let is_granted =
            |(token, hold): &(&Token, &Hold)| !hold.confirmed && !before.holds.contains_key(*token);
        let known = self.first.len();
        self.first.extend(now.holds.iter().filter(is_granted).map(|(token, _)| token.clone()));
        let is_handover = self.first.len() > known && matches!(now.lock, Lock::Exclusive { .. });
        if !is_handover
            && let Some((_, head)) = now.queue.first()
            && concerns_head(before, now)
        {
            self.first.push(head.clone());
        }
        let must_end = |(token, hold): &(&Token, &Hold)| match now.holds.get(*token) {
            Some(now) => now.phase != hold.phase || now.asked.is_some() != hold.asked.is_some(),
            None => hold.phase == Phase::Held && now.tombstones.contains_key(*token),
        };
        let holders = before.holds.iter().filter(must_end).map(|(token, _)| token);
        // A waiter that became stale left the queue, too. It asks by itself, if it lives.
        let has_answer =
            |token: &&Token| now.waiters.get(*token).is_none_or(|waiter| waiter.terms.once_per.is_some());
        let waiters = before.queue.difference(&now.queue).map(|(_, token)| token).filter(has_answer);
        self.others.extend(holders.chain(waiters).cloned());
        if concerns_watchers(before, now) {
            self.others.extend(now.watchers.keys().cloned());
        }
    }

    /// The tokens in this order, each once, without `me`.
    pub fn tokens(self, me: Option<&Token>) -> Vec<Token> {
        let mut seen: BTreeSet<_> = me.into_iter().cloned().collect();
        self.first.into_iter().chain(self.others).filter(|token| seen.insert(token.clone())).collect()
    }
}

/// The tokens that a waiter must watch: in each queue its predecessor, and if it is the head, the
/// holders that block it. At most `limit`, those whose leases end first; for the others the waiter
/// relies on the `next` of the rules' answer.
pub fn watch_targets<'r>(
    records: impl Iterator<Item = &'r Record>,
    me: &Token,
    limit: usize,
) -> BTreeSet<Token> {
    let mut whom = Vec::new();
    for record in records {
        let Some(waiter) = record.waiters.get(me) else { continue };
        if let Some(before) = predecessor(record, me) {
            whom.push((None, before));
        } else if !admits(record, waiter.mode) {
            whom.extend(holders(record).map(|token| (record.holds.get(token).map(|hold| hold.until), token)));
        }
    }
    whom.retain(|(_, token)| *token != me);
    whom.sort_unstable();
    whom.into_iter().take(limit).map(|(_, token)| token.clone()).collect()
}

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
fn concerns_watchers(before: &Record, now: &Record) -> bool {
    !now.watchers.is_empty() && shown(before) != shown(now)
}

/// Whether the head of the queue must be woken, because it is new, or because the kind of lock or
/// the phase of a hold has changed. The end of one of several holds does not count: if that had
/// freed the lock, the rules would have granted it to the head.
fn concerns_head(before: &Record, now: &Record) -> bool {
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
fn admits(record: &Record, mode: Mode) -> bool {
    match (&record.lock, mode) {
        (Lock::Free, _) | (Lock::Shared { .. }, Mode::Shared) => true,
        (Lock::Slots { slots, .. }, Mode::Slots(wanted)) => {
            *slots == wanted && record.holds.len() < *slots as usize
        }
        _ => false,
    }
}

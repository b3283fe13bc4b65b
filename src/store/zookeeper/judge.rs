//! Applies to the records what sessions and heartbeats say: which leases are over (those whose
//! session node is gone and whose end by the record has passed), and when each waiter was heard.

use super::Znodes;
use super::node::{self, LockNode};
use super::read::Seen;
use crate::lock::Token;
use crate::rules::{Due, Record, SILENCE, TICKET_KEPT, Time};
use crate::store::engine::coordinator::{Purpose, Reading};
use crate::store::engine::stored_lock::StoredLock;
use std::time::Duration;

/// A lease whose session lives is good for at least this time.
const LIVE_LEASE: Duration = Duration::from_millis(500);

impl Znodes {
    /// Judges each hold, as the store's header says. The caller's own hold is judged by the record
    /// alone if its session has ended.
    pub(super) fn judge(&mut self, locks: &mut [StoredLock], seen: &mut Seen, reading: &Reading<'_>) {
        let (me, now) = (reading.me, seen.now);
        for lock in locks.iter_mut() {
            let holders: Vec<(Token, Due)> =
                node::believed(&lock.record).map(|(token, until)| (token.clone(), until)).collect();
            for (token, _) in &holders {
                if Some(token) == me && self.proves_no_hold(token) {
                    continue;
                }
                let Some(tracked) = lock.tracked.get(token) else { continue };
                match seen.lives.get(token) {
                    Some(true) => lock.record.lasts(token, Due::after(now, LIVE_LEASE)),
                    // A new leader's clock may be behind. Nobody waits longer than one ttl for
                    // that.
                    Some(false) => {
                        cap(&mut lock.record, token, Due::after(now, Duration::from_millis(tracked.ttl)));
                    }
                    None => {}
                }
            }
            seen.believed.extend(holders);
        }
        let mut holds = locks.iter().flat_map(|lock| node::believed(&lock.record));
        let is_over = holds.any(|(token, until)| Some(token) == me && until.passed(now));
        // A transaction that finds that the caller's hold is over records it. A read cannot, so it ends
        // the caller's new session: others would take its node for that of a holder.
        if reading.purpose == Purpose::LookAtAll && is_over && me.is_some_and(|me| self.proves_no_hold(me)) {
            self.session.end();
            self.life = None;
        }
    }
}

impl Seen {
    /// Whether the token's lease is not over yet by the record.
    pub(super) fn is_believed(&self, token: &Token) -> bool {
        self.believed.get(token).is_some_and(|until| !until.passed(self.now))
    }

    /// Applies the heartbeats that were looked up. A waiter that was not looked up counts as heard
    /// now if it has a heartbeat node, because then its session lives. Without such a node, the
    /// record says when it was heard.
    pub(super) fn apply_heartbeats(&self, lock: &mut StoredLock, node: &LockNode) {
        let Record { queue, waiters, absence, .. } = &mut lock.record;
        for (_, token) in queue.iter() {
            let Some(waiter) = waiters.get_mut(token) else { continue };
            // The heartbeats of a waiter whose session has ended no longer count.
            if node.beat(token).is_none() || self.lives.get(token) == Some(&false) {
                continue;
            }
            let heartbeat = self.heartbeats.get(token).map_or(self.now, |at| Time(at.saturating_mul(1000)));
            (waiter.stale_at, waiter.forget) =
                (Due::after(heartbeat, SILENCE), Due::after(heartbeat, TICKET_KEPT));
        }
        if absence.heard.0 > 0 {
            let last = waiters.keys().filter_map(|token| self.heartbeats.get(token).copied()).max();
            absence.heard = absence.heard.max(Due(last.unwrap_or_default()));
        }
    }

    /// Whether one of the first waiters is not stale.
    pub(super) fn is_one_heard(&self, lock: &StoredLock, first: usize) -> bool {
        let mut first = lock.record.queue.iter().take(first);
        first.any(|(_, token)| {
            lock.record.waiters.get(token).is_some_and(|waiter| !waiter.stale_at.passed(self.now))
        })
    }
}

/// Ends a hold at `latest`, if it would end later.
fn cap(record: &mut Record, token: &Token, latest: Due) {
    if let Some(hold) = record.holds.get_mut(token).filter(|hold| hold.until > latest) {
        hold.until = latest;
        // Recomputes the end of the lock from its holds.
        record.lasts(token, Due(0));
    }
}

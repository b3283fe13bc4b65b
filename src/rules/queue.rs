//! Decides which waiter is next: waiters join the queue and send heartbeats, stale waiters are
//! passed over, and the head of each queue is granted the lock.

use super::record::Granted;
use super::{
    ARRIVAL_SLACK, Ask, Due, FOREIGN_LOOK, GRANTED_AT_ONCE, HEARTBEAT, Lock, LockTable, PREFERENCE, SILENCE,
    TICKET_KEPT, Terms, Time, Waiter, millis,
};
use crate::lock::{Name, Names, Token};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The ticket of a waiter that goes before those without `--during-pause`.
pub(super) const fn preferred(ticket: u64) -> u64 {
    ticket.saturating_sub(PREFERENCE)
}

/// Whether a run that says that it arrived then arrived before the recorded time.
pub(super) fn is_much_earlier(came: Time, recorded_ms: u64) -> bool {
    came.millis().saturating_add(millis(ARRIVAL_SLACK)) < recorded_ms
}

impl LockTable {
    /// The first of these locks whose queue is full, if the caller would join it. Stale waiters at
    /// the end of a full queue are suspended here, because no waiter behind them would do it.
    pub(super) fn full_queue(
        &mut self,
        now: Time,
        names: &Names,
        token: &Token,
        work: &mut VecDeque<String>,
    ) -> Option<usize> {
        if names.iter().any(|name| self.record(name.as_str()).waiters.contains_key(token)) {
            return None;
        }
        names.iter().position(|name| {
            while self.record(name.as_str()).queue.len() >= self.queue_max {
                let record = self.record(name.as_str());
                record.notice_absence(now);
                match record.queue.last().cloned() {
                    Some(last) if !record.is_waiting(now, &last.1) => {
                        self.suspend(name.as_str(), &last, work)
                    }
                    _ => return true,
                }
            }
            false
        })
    }

    /// When the caller arrived, according to its place in a queue, because its own clock may stand
    /// still. As long ago as it says that it has waited, if it has no place; or if it does not know of
    /// its place, and that is much earlier: the request that got the place has waited for the store.
    pub(super) fn came(&mut self, now: Time, names: &Names, ask: &Ask) -> Time {
        let waiting = |name: &Name| Some(self.record(name.as_str()).waiters.get(&ask.token)?.since);
        let came = ask.came(now);
        let since = names.iter().find_map(waiting);
        since.filter(|since| ask.has_waited || !is_much_earlier(came, since.millis())).unwrap_or(came)
    }

    /// Records a waiter's heartbeat: gives it a ticket, or returns it to its old place.
    pub(super) fn record_heartbeat(&mut self, now: Time, names: &Names, ask: &Ask, came: Time) {
        let known = names
            .iter()
            .find_map(|name| self.record(name.as_str()).waiters.get(&ask.token).map(|waiter| waiter.ticket));
        let ticket = known.unwrap_or_else(|| {
            let last = names
                .iter()
                .filter_map(|name| self.record(name.as_str()).queue.last().map(|(ticket, _)| *ticket));
            let after_the_last = last.max().map_or(0, |ticket| ticket.saturating_add(1));
            now.0.max(after_the_last)
        });
        let is_preferred = self.is_preferred(&ask.terms, names.iter().map(Name::as_str));
        let ticket = if is_preferred && ticket >= came.0 { preferred(ticket) } else { ticket };
        for name in names {
            let waiter = Waiter {
                ticket,
                since: came,
                stale_at: Due::after(now, SILENCE),
                forget: Due::after(now, TICKET_KEPT),
                mode: ask.mode,
                names: names.iter().map(|name| name.as_str().to_owned()).collect(),
                owner: ask.owner.clone(),
                terms: ask.terms.clone(),
            };
            let record = self.record(name.as_str());
            record.notice_absence(now);
            record.absence.heard = Due::after(now, Duration::ZERO);
            match record.waiters.insert(ask.token.clone(), waiter) {
                Some(old) if old.ticket == ticket => {}
                Some(old) => drop(record.queue.remove(&(old.ticket, ask.token.clone()))),
                // Its place may still be there, with a ticket that was forgotten.
                None => record.queue.retain(|(_, token)| *token != ask.token),
            }
            record.queue.insert((ticket, ask.token.clone()));
        }
    }

    /// Whether a caller goes before those without `--during-pause`: all its locks are paused.
    pub(super) fn is_preferred<'n>(
        &mut self,
        terms: &Terms,
        mut names: impl Iterator<Item = &'n str>,
    ) -> bool {
        terms.during_pause && names.all(|name| self.record(name).paused.is_some())
    }

    /// Suspends the stale waiters directly before this one. Otherwise they would be noticed only at
    /// the head of the queue.
    pub(super) fn suspend_stale_before(
        &mut self,
        now: Time,
        names: &Names,
        token: &Token,
        work: &mut VecDeque<String>,
    ) {
        for name in names {
            loop {
                let record = self.record(name.as_str());
                let Some(ticket) = record.waiters.get(token).map(|waiter| waiter.ticket) else { break };
                let Some(before) = record.queue.range(..(ticket, token.clone())).next_back().cloned() else {
                    break;
                };
                record.notice_absence(now);
                if record.is_waiting(now, &before.1) {
                    break;
                }
                self.suspend(name.as_str(), &before, work);
            }
        }
    }

    /// Takes a waiter out of all its queues, and retains its ticket. Its other locks go on the
    /// worklist.
    pub(super) fn suspend(&mut self, at: &str, (ticket, token): &(u64, Token), work: &mut VecDeque<String>) {
        let place = (*ticket, token.clone());
        self.record(at).queue.remove(&place);
        let names = self.record(at).waiters.get(token).map(|waiter| waiter.names.clone()).unwrap_or_default();
        for name in names.into_iter().filter(|name| name != at) {
            self.record(&name).queue.remove(&place);
            work.push_back(name);
        }
    }

    /// Ends what has run out, suspends stale waiters at the head, and grants the locks to the
    /// waiters that are next.
    pub(super) fn grant_next(&mut self, now: Time, mut work: VecDeque<String>) {
        let most = GRANTED_AT_ONCE.checked_shr(3 * self.too_large).unwrap_or(0);
        let mut granted_here = BTreeMap::<String, usize>::new();
        while let Some(name) = work.pop_front() {
            self.record(&name).expire(now);
            while self.record(&name).has_room_for_some() {
                let Some(head) = self.head(now, &name, &mut work) else { break };
                let Some(waiter) = self.record(&name).waiters.get(&head.1).cloned() else { break };
                let is_enough = |name: &String| granted_here.get(name).copied().unwrap_or(0) >= most;
                if waiter.names.iter().any(is_enough)
                    || !self.grant_head(now, &name, &head, &waiter, &mut work)
                {
                    break;
                }
                waiter.names.into_iter().for_each(|name| *granted_here.entry(name).or_default() += 1);
            }
        }
    }

    /// The first waiter in the queue that is not stale. Suspends the stale ones before it.
    pub(super) fn head(
        &mut self,
        now: Time,
        name: &str,
        work: &mut VecDeque<String>,
    ) -> Option<(u64, Token)> {
        loop {
            let record = self.record(name);
            let head = record.queue.first()?.clone();
            record.notice_absence(now);
            if record.is_waiting(now, &head.1) {
                return Some(head);
            }
            self.suspend(name, &head, work);
        }
    }

    /// Grants the head of one queue its locks, if it is the head of all its queues and all its
    /// locks admit it. Returns whether it left the queue.
    pub(super) fn grant_head(
        &mut self,
        now: Time,
        at: &str,
        head: &(u64, Token),
        waiter: &Waiter,
        work: &mut VecDeque<String>,
    ) -> bool {
        // The job is done already; the waiter learns that when it asks. Until then it keeps its
        // ticket, because the success may be forgotten before.
        let has_room_for_some = self.record(at).has_room_for_some();
        if has_room_for_some
            && self.done(now, waiter.since, waiter.names.iter().map(String::as_str), &waiter.terms).is_some()
        {
            self.suspend(at, head, work);
            return true;
        }
        for name in &waiter.names {
            if name != at {
                self.record(name).expire(now);
                let first = self.head(now, name, work);
                if first.as_ref() != Some(head) {
                    // Put only a queue with an earlier ticket on the worklist, so that this ends. A
                    // waiter that has lost its place in one of its queues is never first there, and
                    // two such waiters would put each other's queues on the worklist for ever.
                    if first.is_some_and(|first| first < *head) {
                        work.push_back(name.clone());
                    }
                    return false;
                }
            }
            if !self.record(name).admits(waiter.mode, &waiter.terms) {
                return false;
            }
        }
        let Some(slot) = self.slot(&waiter.names, waiter.mode) else { return false };
        for name in &waiter.names {
            self.record(name).queue.remove(head);
            if name != at {
                work.push_back(name.clone());
            }
        }
        let (token, mode, came) = (head.1.clone(), waiter.mode, waiter.since);
        let (terms, owner) = (waiter.terms.clone(), waiter.owner.clone());
        self.grant(now, &waiter.names, Granted { token, mode, slot, fence: 0, came, terms, owner });
        true
    }

    /// How many waiters stand before this one (the most in any of its queues), and when it should
    /// ask again. At the head: when what blocks it may be over. Elsewhere: when the waiter before
    /// it becomes stale.
    pub(super) fn place(&mut self, now: Time, names: &Names, ask: &Ask) -> (u64, Duration) {
        let (mut most, mut next) = (0, HEARTBEAT);
        for name in names {
            let record = self.record(name.as_str());
            let Some(ticket) = record.waiters.get(&ask.token).map(|waiter| waiter.ticket) else { continue };
            let mine = (ticket, ask.token.clone());
            let ahead = record.queue.range(..&mine).count();
            let before =
                record.queue.range(..&mine).next_back().and_then(|(_, token)| record.waiters.get(token));
            let event = match (before, &record.lock) {
                (Some(before), _) => record.stale_at(before).left(now),
                (None, Lock::Foreign { .. }) => FOREIGN_LOOK,
                // A lock that admits the waiter may lack a slot in common with its other locks.
                (None, Lock::Slots { .. }) => record.blocker(now, ask.mode).left.unwrap_or(HEARTBEAT),
                (None, _) if record.admits(ask.mode, &ask.terms) => HEARTBEAT,
                (None, _) => record.blocker(now, ask.mode).left.unwrap_or(HEARTBEAT),
            };
            most = most.max(u64::try_from(ahead).unwrap_or(u64::MAX));
            next = next.min(event);
        }
        (most, next)
    }
}

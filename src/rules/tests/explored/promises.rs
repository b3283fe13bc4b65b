//! What must be true after each step: the invariants, by what the callers believe.

use super::*;
use crate::rules::record::Lock;

impl State {
    /// Checks the grants of this step: I5 and I13.
    pub(super) fn look_at_grants(&mut self, wishes: &[Wish], before: &LockTable) -> Result<(), String> {
        for (full, record) in &self.table.records {
            let lock = full.chars().next().unwrap_or_default();
            let old = before.records.get(full);
            let mut new: Vec<(&Token, &Hold)> = record.holds.iter().collect();
            new.sort_by_key(|(_, hold)| hold.fence);
            for (holder, hold) in new {
                let was = old.and_then(|old| old.holds.get(holder));
                if was.is_none() {
                    let last = self.fences.insert(lock, hold.fence).unwrap_or(0);
                    if hold.fence <= last {
                        return Err(format!("fence {} of {lock} after {last}", hold.fence));
                    }
                    if self.kept.get(&lock).is_some_and(|kept| *kept > self.now / 1000) {
                        return Err(format!("granted although a min-hold keeps {lock}"));
                    }
                }
                let asker = (0..wishes.len()).find(|at| token(self.askers[*at].token) == *holder);
                if let Some(asker) = asker.filter(|_| hold.confirmed && was.is_none_or(|was| !was.confirmed))
                {
                    let kept = hold.since.millis() + wishes[asker].min_hold;
                    let other = self.kept.get(&lock).copied().unwrap_or(0);
                    self.kept.insert(lock, kept.max(other));
                }
            }
        }
        Ok(())
    }

    /// Checks what must be true in every state.
    pub(super) fn look(&self, wishes: &[Wish], step: Step, before: &LockTable) -> Result<(), String> {
        let now = self.now;
        // I1, by what the holders believe: their jobs run until their deadlines.
        let held: Vec<_> = self
            .askers
            .iter()
            .zip(wishes)
            .filter_map(|(asker, wish)| asker.hold.filter(|hold| hold.2 > now).map(|hold| (wish, hold)))
            .collect();
        for (at, (one, mine)) in held.iter().enumerate() {
            for (other, theirs) in &held[..at] {
                let meet = one.locks.chars().any(|lock| other.locks.contains(lock));
                let together = match (one.mode, other.mode) {
                    (Mode::Shared, Mode::Shared) => true,
                    (Mode::Slots(n), Mode::Slots(m)) => n == m && mine.1 != theirs.1,
                    _ => false,
                };
                if meet && !together {
                    return Err(format!("two at a time: {one:?} {mine:?} and {other:?} {theirs:?}"));
                }
            }
        }
        self.check_no_overtaking(wishes, before)?;
        self.check_no_lock_is_idle(wishes, step)
    }

    /// I9: a caller that was granted a lock in this step came before all live waiters for one of
    /// its locks.
    fn check_no_overtaking(&self, wishes: &[Wish], before: &LockTable) -> Result<(), String> {
        for (asker, wish) in self.askers.iter().zip(wishes) {
            let has = |table: &LockTable, lock: char| {
                let record = table.records.get(name(&lock.to_string()).as_str());
                record.is_some_and(|record| record.holds.contains_key(&token(asker.token)))
            };
            if !wish.locks.chars().all(|lock| has(&self.table, lock) && !has(before, lock)) {
                continue;
            }
            let came = asker.waits.map_or(self.now, |(since, _)| since);
            for (other, theirs) in self.askers.iter().zip(wishes) {
                let Some((since, heard)) = other.waits.filter(|_| other.hold.is_none()) else { continue };
                let meet = wish.locks.chars().any(|lock| theirs.locks.contains(lock));
                let is_granted = theirs.locks.chars().any(|lock| {
                    let record = self.table.records.get(name(&lock.to_string()).as_str());
                    record.is_some_and(|record| record.holds.contains_key(&token(other.token)))
                });
                let is_heard = self.now < heard + micros(SILENCE) - 1000;
                // A newer run with `--replace` may have superseded it.
                let is_superseded = self
                    .table
                    .records
                    .values()
                    .any(|record| record.tombstones.contains_key(&token(other.token)));
                let stands = other.token != asker.token && !is_granted && !is_superseded && is_heard;
                if stands && meet && since < came {
                    return Err(format!("{asker:?} overtook {other:?}"));
                }
            }
        }
        Ok(())
    }

    /// After a request or a release, no lock is free that its first waiter could have.
    fn check_no_lock_is_idle(&self, wishes: &[Wish], step: Step) -> Result<(), String> {
        let (Step::Queue(who) | Step::QueueUnheard(who) | Step::Leave(who) | Step::Renew(who)) = step else {
            return Ok(());
        };
        for lock in wishes[who].locks.chars() {
            let record = self.table.records.get(name(&lock.to_string()).as_str());
            let Some(record) = record.filter(|record| record.lock == Lock::Free) else { continue };
            let Some((_, head)) = record.queue.first() else { continue };
            let Some(waiter) = record.waiters.get(head) else { continue };
            // A waiter for several locks may have to wait for another one.
            if record.is_waiting(Time(self.now), head) && waiter.names.len() == 1 {
                return Err(format!("{lock} is free, and {head:?} waits"));
            }
        }
        Ok(())
    }
}

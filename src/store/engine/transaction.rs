//! Applies one operation to the records of several locks as if they were one. It reads the records
//! into a [`LockTable`], removes the dead, applies the operation, writes the records, and wakes
//! waiters and holders. The engine decides which operation.
//!
//! *Which locks.* The transaction covers the locks that the caller named, and those that the rules
//! ask for: whether a waiter may be granted a lock depends on all locks that it waits for. Which
//! locks those are shows only while the rules run. If the rules ask for a lock that was not read,
//! the transaction is dropped and starts again with that lock too. (A directory takes its mutexes
//! in order of name, so no two processes wait for each other.) A caller that only joins a queue
//! behind others, or leaves the middle of one, needs only its own locks.
//!
//! *Without writing.* A transaction may first be tried on records that were read for
//! [`Purpose::Look`](super::Purpose::Look) only. If it would change nothing but what the caller
//! publishes outside the record, as with most heartbeats and renewals, nothing more is needed.
//!
//! *A kill between two records.* A store writes all or nothing, unless its process is killed in
//! between. Then the first records in order of name are changed and the others are not. That never
//! makes two holders, and would be safe in any order: each record was true before and is true
//! after, it names the holders of its lock, and a token counts on its hold only after an operation
//! that succeeded for all its locks. Later operations repair the half-done write:
//! - A token that was granted some of its locks still waits for the others with its old ticket.
//!   When it asks, it loses those grants (`may_start_anew`) and is granted all its locks together.
//!   If it does not ask, the unconfirmed grants lapse.
//! - A token that was released in only some of its locks: the process that released it is dead. If
//!   only one of dlock and its guard is dead, the other one releases the rest. If both are dead,
//!   the rest is reaped. The first record in order of name is written first, and it records the
//!   token as released, so a late request cannot take the locks again.
//! - A waiter that stands in only some of its queues, or was suspended in some, is in all of them
//!   when it asks again. Until then it is stale and passed over, or dead and reaped.
//!
//! There is deliberately no journal: each operation would cost one more write.

use super::contention::Contender;
use super::coordinator::{Batch, Coordinator, Reading, Written};
use super::stored_lock::{Change, StoredLock, Tracked};
use super::wake::{Woken, holders, predecessor, watch_targets};
use crate::clock::Moment;
use crate::lock::{Mode, Names, Token};
use crate::rules::{Lock, LockTable, Phase, Record, Time, millis};
use crate::store::Error;
use std::collections::BTreeSet;
use std::time::Duration;

/// The records of one operation.
pub struct Transaction<'a, C: Coordinator> {
    pub coordinator: &'a mut C,
    seen: C::Seen,
    /// Full names of the locks that the operation is about.
    requested: BTreeSet<String>,
    /// The locks that were read, in order of name.
    locks: Vec<Opened>,
    /// The records as the lock rules see and change them.
    pub table: LockTable,
    /// The time of the operation, for all records.
    pub now: Time,
    deadline: Moment,
    is_reaped: bool,
    /// Whether other processes have changed the records so often that a refusal need not be counted.
    pub is_crowded: bool,
    /// Whether nothing need be written: the only change is a count or a refusal that may be left
    /// out.
    pub may_abort: bool,
}

/// One lock. Its record is in `table` during the operation.
struct Opened {
    stored: StoredLock,
    /// The record as it was read.
    before: Record,
}

impl<'a, C: Coordinator> Transaction<'a, C> {
    /// Reads the records of these locks, and of the related ones that `reading` names.
    pub fn open(coordinator: &'a mut C, names: &Names, reading: Reading<'_>) -> Result<Self, Error> {
        let requested = full(names);
        let all = requested.union(reading.names).cloned().collect();
        let snapshot = coordinator.read(&Reading { names: &all, ..reading })?;
        let (mut table, mut locks) = (LockTable::default(), Vec::with_capacity(snapshot.locks.len()));
        for mut stored in snapshot.locks {
            let record = std::mem::take(&mut stored.record);
            table.records.insert(stored.name.clone(), record.clone());
            locks.push(Opened { stored, before: record });
        }
        Ok(Self {
            coordinator,
            seen: snapshot.seen,
            requested,
            locks,
            table,
            now: snapshot.now,
            deadline: reading.deadline,
            is_reaped: false,
            is_crowded: false,
            may_abort: false,
        })
    }

    /// The locks that the rules asked for but that were not read.
    pub fn missing(&self) -> Vec<String> {
        let is_read = |name: &String| self.locks.iter().any(|lock| lock.stored.name == *name);
        self.table.records.keys().filter(|name| !is_read(name)).cloned().collect()
    }

    /// Whether nothing has changed except the deadlines of the waiter `me` and the time of the last
    /// heartbeat.
    pub fn is_idle(&mut self, me: &Token) -> bool {
        let Self { table, locks, .. } = self;
        !self.is_reaped
            && table.records.len() == locks.len()
            && locks.iter().all(|lock| {
                table.records.get_mut(&lock.stored.name).is_some_and(|now| {
                    now.absence.heard = lock.before.absence.heard;
                    if let (Some(waiter), Some(before)) =
                        (now.waiters.get_mut(me), lock.before.waiters.get(me))
                    {
                        (waiter.stale_at, waiter.forget) = (before.stale_at, before.forget);
                    }
                    *now == lock.before
                })
            })
    }

    /// Records that the token has liveness, so that others can check it from now on.
    pub fn track(&mut self, token: &Token, ttl: Duration) {
        for lock in self.locks.iter_mut().filter(|lock| self.requested.contains(&lock.stored.name)) {
            lock.stored.tracked.insert(token.clone(), Tracked { ttl: millis(ttl) });
        }
    }

    /// Records that the token's liveness has ended and can no longer be checked.
    pub fn untrack(&mut self, token: &Token) {
        for lock in &mut self.locks {
            lock.stored.tracked.remove(token);
        }
    }

    /// Which kind of contender the caller is.
    pub fn contender(&self, me: Option<&Token>, wants: Option<Mode>) -> Contender {
        let mut holders = self.table.records.values().flat_map(|record| record.holds.keys());
        let is_granted = me.is_some_and(|me| holders.clone().any(|token| token == me));
        if is_granted && holders.all(|token| Some(token) == me) {
            Contender::Alone
        } else if wants.is_none() || is_granted {
            Contender::Other
        } else if me.is_some_and(|me| self.is_named(me)) {
            Contender::Waiter
        } else {
            Contender::Newcomer
        }
    }

    /// Whether a record names the token, as a waiter or as a hold whose job may still run.
    pub fn is_named(&self, token: &Token) -> bool {
        self.table.records.values().any(|record| {
            let holds = record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling);
            holds || record.waiters.contains_key(token)
        })
    }

    /// Reaps dead tokens that would hold up others or be granted a lock: the heads of the queues,
    /// the predecessor of `me` in each queue (or the last waiter, if `me` may join), and the holders
    /// that block a caller that `wants` a lock in this mode. Each check costs a system call, and a
    /// thousand holders may share a lock, so a caller that holds a lock, or shares it with them,
    /// checks none.
    pub fn reap(&mut self, me: Option<&Token>, wants: Option<Mode>) {
        let mut checked: BTreeSet<Token> = BTreeSet::new();
        loop {
            // Repeated, because the waiter behind a dead head becomes the head.
            let found: Vec<Token> = self
                .suspects(me, wants)
                .filter(|token| Some(*token) != me && !checked.contains(token))
                .cloned()
                .collect();
            if found.is_empty() {
                return;
            }
            for token in found {
                if !checked.contains(&token) && self.is_dead(&token) {
                    self.table.reap(self.now, &token);
                    self.untrack(&token);
                    self.is_reaped = true;
                }
                checked.insert(token);
            }
        }
    }

    fn suspects<'s>(&'s self, me: Option<&'s Token>, wants: Option<Mode>) -> impl Iterator<Item = &'s Token> {
        let heads =
            self.table.records.values().filter_map(|record| record.queue.first()).map(|(_, token)| token);
        // Dead waiters at the end must not keep a newcomer out of a full queue.
        let last = |record: &'s Record| record.queue.last().map(|(_, token)| token);
        let before = self.requested().filter_map(move |record| match wants {
            Some(_) if !record.waiters.contains_key(me?) => last(record),
            _ => predecessor(record, me?),
        });
        let is_checked = move |record: &&Record| {
            let shares = wants == Some(Mode::Shared) && matches!(record.lock, Lock::Shared { .. });
            !shares && !me.is_some_and(|me| record.holds.contains_key(me))
        };
        heads.chain(before).chain(self.requested().filter(is_checked).flat_map(holders))
    }

    fn requested(&self) -> impl Iterator<Item = &Record> {
        self.requested.iter().filter_map(|name| self.table.records.get(name))
    }

    /// The tokens that the waiter `me` must watch, at most `limit`.
    pub fn watch_targets(&self, me: &Token, limit: usize) -> BTreeSet<Token> {
        watch_targets(self.requested(), me, limit)
    }

    fn is_dead(&mut self, token: &Token) -> bool {
        let is_tracked = self.locks.iter().any(|lock| lock.stored.tracked.contains_key(token));
        is_tracked && self.coordinator.is_dead(&self.seen, token)
    }

    /// Writes what has changed, and wakes tokens. A lock that the caller named is always written:
    /// only a successful write proves that what was read was not outdated.
    pub fn commit(mut self, me: Option<&Token>) -> Result<Written, Error> {
        let mut woken = Woken::default();
        for Opened { stored, before } in &self.locks {
            if let Some(now) = self.table.records.get(&stored.name) {
                woken.add(before, now);
            }
        }
        let woken = woken.tokens(me);
        let mut changes = Vec::with_capacity(self.locks.len());
        for Opened { stored: mut after, before } in self.locks {
            after.record = self.table.records.remove(&after.name).unwrap_or_default();
            let is_changed = self.requested.contains(&after.name) || after.record != before;
            changes.push(Change { before, after, is_changed });
        }
        // The store wakes tokens last, because a woken token asks at once. If a dead waiter was
        // granted the lock, the waiter behind it watches it or reads often, and so asks by itself.
        let (now, deadline) = (self.now, self.deadline);
        let batch = Batch { changes, me, now, woken: &woken, deadline };
        self.coordinator.commit(self.seen, batch)
    }
}

fn full(names: &Names) -> BTreeSet<String> {
    names.iter().map(|name| name.as_str().to_owned()).collect()
}

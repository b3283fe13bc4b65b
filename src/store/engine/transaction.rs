//! Applies one operation to the records of several locks as if they were one. It locks the records
//! and reads them into a [`LockTable`], removes the dead, applies the operation, writes the
//! records, releases them, and wakes waiters and holders. The engine decides which operation.
//!
//! *Which locks.* The locks that the caller named, and the locks that the rules asked for: whether
//! a waiter may be granted a lock depends on all locks that it waits for. Which those are shows
//! only while the rules run. A lock that was not read looks empty to them. Then the transaction is
//! thrown away, all records are released, and it starts again with those locks too. An adapter
//! locks in order of name, so no two processes wait for each other. A caller that only joins a
//! queue behind others, or leaves its middle, needs its own locks only.
//!
//! *Which waiters.* Those that the rules may decide about: see [`super::queue`]. If the rules
//! reached others, the transaction starts again with more.
//!
//! *Without locking.* A transaction may first be tried on the records as they are
//! ([`Transaction::look`]). If it would change nothing but what the caller publishes outside the
//! record, as with most heartbeats and renewals, nothing more is needed.
//!
//! *A kill between two records.* An adapter writes all or nothing, unless its process is killed in
//! between. Then the first records in order of name are changed and the others are not. That never
//! makes two holders, and would be safe in any order: each record was true before and is true
//! after, it names the holders of its lock, and a token counts on its hold only after an operation
//! that succeeded for all its locks. The next operation mends what was written half:
//! - A token that was granted some of its locks still waits for the others with its old ticket.
//!   When it asks, it loses those grants (`may_start_anew`) and is granted all anew. If it does not
//!   ask, the unconfirmed grant lapses.
//! - A token that gave some of its locks back: the process that did so is dead. If it was dlock and
//!   the guard lives, or the other way round, the survivor gives back the rest. If both are dead,
//!   the rest is reaped. The first record in order of name is written first and remembers the token
//!   as released, so a late request cannot take the locks again.
//! - A waiter that stands in only some of its queues, or was suspended in some, is in all of them
//!   when it asks again. Until then it is stale and passed over, or dead and reaped.
//!
//! There is deliberately no journal: each operation would cost one more write.

use super::queue::Joins;
use super::snapshot::{Asked, Snapshot, admits, asked, granted_alone, holders, predecessor};
use super::{Adapter, CatchUp, Changed, Entry, Liveness, Tracked, Written};
use crate::clock::Moment;
use crate::lock::{Mode, Names, Token};
use crate::rules::{Absence, Hold, Lock, LockTable, Phase, Record, Time, Tombstone, Waiter, millis};
use crate::store::Error;
use std::collections::BTreeSet;
use std::time::Duration;

/// Number of released tokens without liveness that a record remembers.
const RELEASED_MAX: usize = 16;

/// The records of one operation.
pub struct Transaction<'a, A: Adapter> {
    adapter: &'a A,
    /// The caller's token, and whether the caller may join a queue.
    me: Option<(Token, Joins)>,
    /// Full names of the locks that the operation is about.
    asked: BTreeSet<String>,
    /// The records that were read, in order of name.
    opened: Vec<Opened<A::Entry>>,
    is_locked: bool,
    /// The records as the lock rules see and change them.
    pub table: LockTable,
    /// The time of the operation, for all records.
    pub now: Time,
    /// Tokens that were reaped in all their locks, so that their liveness can be removed.
    dead: Vec<Token>,
    is_reaped: bool,
    /// The fence of the grant, if the operation only confirms it. Then the rules are shown the
    /// caller's own waiter and its predecessor, but not the first waiters.
    confirms: Option<u64>,
    /// Whether a refusal need not be counted, because other processes have changed the records too
    /// often.
    pub may_go_uncounted: bool,
    /// Whether nothing need be written: the only change is a count or a refusal that may be left
    /// out.
    pub may_abort: bool,
}

/// One record. Its content is in `table` during the operation.
struct Opened<E> {
    entry: E,
    /// The record as it was read, to see whether it has changed. None if it is always written: one
    /// of the `asked` locks, under [`Transaction::open`].
    was: Option<Box<Record>>,
    before: Snapshot,
}

/// Which holders an operation checks for death. It always checks the heads of the queues, which may
/// be granted the lock, and the caller's predecessor. Each check costs a system call, and a
/// thousand holders may share a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// None. The waiters watch the holders.
    Heads,
    /// The holders that block a caller that wants the locks in this mode.
    Wants(Mode),
    /// All holders.
    Holders,
}

impl Look {
    /// Whether the caller may join a queue.
    pub fn joins(self) -> Joins {
        if matches!(self, Self::Wants(_)) { Joins::Yes } else { Joins::No }
    }
}

impl<'a, A: Adapter> Transaction<'a, A> {
    /// Locks and reads the records of these locks and of the `related` ones.
    pub fn open(
        adapter: &'a A,
        names: &Names,
        related: &BTreeSet<String>,
        me: Option<&Token>,
        deadline: Moment,
    ) -> Result<Self, Error> {
        let asked = full(names);
        let (entries, now) = adapter.lock(&asked.union(related).cloned().collect(), me, deadline)?;
        Ok(Self { is_locked: true, ..Self::with(adapter, asked, entries, now) })
    }

    /// Reads the records of these locks without locking, to see what an operation would do.
    pub fn look(adapter: &'a A, names: &Names, me: Option<&Token>) -> Result<Self, Error> {
        let asked = full(names);
        let (entries, now) = adapter.look(&asked, me, CatchUp::Due)?;
        Ok(Self::with(adapter, asked, entries, now))
    }

    fn with(adapter: &'a A, asked: BTreeSet<String>, entries: Vec<A::Entry>, now: Time) -> Self {
        let (mut table, mut opened) = (LockTable::default(), Vec::with_capacity(entries.len()));
        for mut entry in entries {
            table.records.insert(entry.name().to_owned(), std::mem::take(entry.record()));
            opened.push(Opened { entry, was: None, before: Snapshot::default() });
        }
        Self {
            adapter,
            me: None,
            asked,
            opened,
            is_locked: false,
            table,
            now,
            dead: Vec::new(),
            is_reaped: false,
            confirms: None,
            may_go_uncounted: false,
            may_abort: false,
        }
    }

    /// Adds the waiters that the rules may decide about: the first `front` of each queue, `me`, the
    /// predecessor of `me`, and the last waiter if `me` joins the queue.
    pub fn reveal(&mut self, front: usize, me: Option<&Token>, look: Look) -> Result<(), Error> {
        self.me = me.map(|me| (me.clone(), look.joins()));
        self.confirms = me.filter(|_| front == 0).and_then(|me| self.to_confirm(me));
        self.show(front)?;
        for opened in &mut self.opened {
            let Some(record) = self.table.records.get(opened.entry.name()) else { continue };
            opened.before = Snapshot::at(record);
            if !self.is_locked || !self.asked.contains(opened.entry.name()) {
                opened.was = Some(Box::new(record.clone()));
            }
        }
        Ok(())
    }

    fn show(&mut self, front: usize) -> Result<(), Error> {
        for at in 0..self.opened.len() {
            while let Some(waiter) = self.exposed(at, front, self.joins()) {
                self.show_one(at, waiter)?;
            }
        }
        Ok(())
    }

    fn joins(&self) -> Joins {
        self.me.as_ref().map_or(Joins::No, |(_, joins)| *joins)
    }

    fn exposed(&self, at: usize, front: usize, joins: Joins) -> Option<usize> {
        let entry = &self.opened[at].entry;
        let me = self.me.as_ref().filter(|_| self.asked.contains(entry.name()));
        let me = me.map(|(me, _)| (me, joins));
        entry.queue().exposed(self.table.records.get(entry.name())?, front, me)
    }

    /// Adds one waiter, in all its queues: the rules remove it from all at once.
    fn show_one(&mut self, at: usize, waiter: usize) -> Result<(), Error> {
        let Self { adapter, opened, table, now, .. } = self;
        let mut show = |entry: &mut A::Entry, waiter: usize| match table.records.get_mut(entry.name()) {
            Some(record) => adapter.show(entry, waiter, record, *now),
            None => Ok(Vec::new()),
        };
        let token = opened[at].entry.queue().token(waiter);
        let names = show(&mut opened[at].entry, waiter)?;
        for Opened { entry, .. } in opened.iter_mut().filter(|_| names.len() > 1) {
            let place = token.as_ref().filter(|_| names.iter().any(|name| name == entry.name()));
            if let Some(waiter) = place.and_then(|token| entry.queue().find(token)) {
                show(entry, waiter)?;
            }
        }
        Ok(())
    }

    /// How many waiters of each queue the rules see at first. One: it is granted the lock when a
    /// hold ends. Two, if both could hold the lock together, or with several locks. 0 if the caller
    /// only confirms a grant, so that its job starts at once.
    pub fn front(&self, me: Option<&Token>, look: Look) -> usize {
        if matches!(look, Look::Wants(_)) && me.is_some_and(|me| self.to_confirm(me).is_some()) {
            return 0;
        }
        let is_for_one = self.opened.iter().all(|opened| opened.entry.queue().is_for_one());
        if self.opened.len() == 1 && is_for_one { 1 } else { 2 }
    }

    fn to_confirm(&self, me: &Token) -> Option<u64> {
        let [Opened { entry, .. }] = self.opened.as_slice() else { return None };
        granted_alone(self.table.records.get(entry.name())?, me)
    }

    /// Whether the grant was confirmed. Otherwise the lock may have been granted anew, to a waiter
    /// that was read.
    fn has_confirmed(&self, fence: u64) -> bool {
        let mut records = self.table.records.values();
        records.any(|record| {
            let mine = self.me.as_ref().and_then(|(me, _)| record.holds.get(me));
            mine.is_some_and(|mine| mine.confirmed && mine.fence == fence)
        })
    }

    /// Whether the rules reached waiters that they were not shown. With one lock, once it is full,
    /// the rules look at nobody behind; with several locks, they may look further.
    pub fn has_come_too_far(&self) -> bool {
        if let Some(fence) = self.confirms {
            return !self.has_confirmed(fence);
        }
        (0..self.opened.len()).any(|at| {
            let Opened { entry, before, .. } = &self.opened[at];
            let had = |token: &Token| before.holds.contains_key(token);
            let is_fair = |record: &Record| !entry.queue().skipped_unshown(record, had);
            let record = self.table.records.get(entry.name());
            let is_done =
                self.opened.len() == 1 && record.is_some_and(|record| !record.is_open() && is_fair(record));
            self.exposed(at, usize::from(!is_done), Joins::No).is_some()
        })
    }

    /// The waiter's position: the largest number of waiters before it in any of its queues.
    pub fn ahead(&self, me: &Token) -> u64 {
        let ahead = self.opened.iter().filter_map(|opened| {
            let record = self
                .table
                .records
                .get(opened.entry.name())
                .filter(|_| self.asked.contains(opened.entry.name()))?;
            let ticket = record.waiters.get(me)?.ticket;
            let shown = record.queue.range(..(ticket, me.clone())).count() as u64;
            Some(shown + opened.entry.queue().unseen_before(record, me))
        });
        ahead.max().unwrap_or_default()
    }

    /// The locks that the rules asked for and that were not read.
    pub fn missing(&self) -> Vec<String> {
        let is_read = |name: &String| self.opened.iter().any(|opened| opened.entry.name() == *name);
        self.table.records.keys().filter(|name| !is_read(name)).cloned().collect()
    }

    /// Releases all records without a change.
    pub fn abort(self) {
        self.adapter.release(self.opened.into_iter().map(|opened| opened.entry).collect());
    }

    /// Whether nothing has changed except the deadlines of the waiter `me` and the time of the last
    /// heartbeat.
    pub fn is_idle(&mut self, me: &Token) -> bool {
        let Self { table, opened, .. } = self;
        !self.is_reaped
            && table.records.len() == opened.len()
            && opened.iter().all(|opened| {
                let now = table.records.get_mut(opened.entry.name());
                now.zip(opened.was.as_deref()).is_some_and(|(now, was)| {
                    now.absence.heard = was.absence.heard;
                    if let (Some(waiter), Some(before)) = (now.waiters.get_mut(me), was.waiters.get(me)) {
                        (waiter.silent, waiter.forget) = (before.silent, before.forget);
                    }
                    *now == *was
                })
            })
    }

    /// Records that the token has liveness, so that others can check it from now on.
    pub fn track(&mut self, token: &Token, ttl: Duration) {
        let locks = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
        for opened in self.opened.iter_mut().filter(|opened| self.asked.contains(opened.entry.name())) {
            opened.entry.tracked_mut().insert(token.clone(), Tracked { locks, ttl: millis(ttl) });
        }
    }

    /// Records that the token's liveness has ended and can no longer be checked.
    pub fn untrack(&mut self, token: &Token) {
        for opened in &mut self.opened {
            opened.entry.tracked_mut().remove(token);
        }
    }

    /// Whether the token holds one of the locks, confirmed or not.
    pub fn is_held_by(&self, token: &Token) -> bool {
        self.table.records.values().any(|record| record.holds.contains_key(token))
    }

    /// Whether another token holds one of the locks. With several holders a short back-off only
    /// makes more conflicts.
    pub fn is_held_by_others(&self, me: Option<&Token>) -> bool {
        self.table.records.values().flat_map(|record| record.holds.keys()).any(|token| Some(token) != me)
    }

    /// Whether a record names the token, as a waiter or as a hold whose job may still run.
    pub fn is_named(&self, token: &Token) -> bool {
        self.table.records.values().any(|record| {
            let holds = record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling);
            holds || record.waiters.contains_key(token)
        })
    }

    /// Reaps dead tokens that would hold up others or be granted a lock: the heads of the queues,
    /// the predecessor of `me` in each queue, and holders as `look` says.
    pub fn reap(&mut self, me: Option<&Token>, look: Look) -> Result<(), Error> {
        let mut felt: BTreeSet<Token> = BTreeSet::new();
        if self.confirms.is_some() {
            return Ok(());
        }
        loop {
            // Repeated, because the waiter behind a dead head becomes the head.
            self.show(1)?;
            let found: Vec<Token> = self
                .suspects(me, look)
                .filter(|token| Some(*token) != me && !felt.contains(token))
                .cloned()
                .collect();
            if found.is_empty() {
                return Ok(());
            }
            for token in found {
                if !felt.contains(&token) && self.is_dead(&token) {
                    // The rules must not take the dead waiter for the last in the queue.
                    self.show(2)?;
                    self.table.reap(self.now, &token);
                    self.is_reaped = true;
                    let entries = self.opened.iter_mut();
                    let known: Vec<Tracked> =
                        entries.filter_map(|opened| opened.entry.tracked_mut().remove(&token)).collect();
                    // While another record names the token, its liveness stays: only that shows
                    // that the token is dead.
                    if known.iter().all(|tracked| tracked.locks as usize <= known.len()) {
                        self.dead.push(token.clone());
                    }
                }
                felt.insert(token);
            }
        }
    }

    fn suspects<'s>(&'s self, me: Option<&'s Token>, look: Look) -> impl Iterator<Item = &'s Token> {
        let heads =
            self.table.records.values().filter_map(|record| record.queue.first()).map(|(_, token)| token);
        let before = self.asked().filter_map(move |record| predecessor(record, me?));
        let holders = self
            .asked()
            .filter(move |record| match look {
                Look::Heads => false,
                Look::Holders => true,
                Look::Wants(mode) => {
                    let shares = mode == Mode::Shared && matches!(record.lock, Lock::Shared { .. });
                    !shares && !me.is_some_and(|me| record.holds.contains_key(me))
                }
            })
            .flat_map(holders);
        heads.chain(before).chain(holders)
    }

    fn asked(&self) -> impl Iterator<Item = &Record> {
        self.asked.iter().filter_map(|name| self.table.records.get(name))
    }

    fn is_tracked(&self, token: &Token) -> bool {
        self.opened.iter().any(|opened| opened.entry.tracked().contains_key(token))
    }

    fn is_dead(&self, token: &Token) -> bool {
        self.is_tracked(token) && matches!(self.adapter.liveness(token), Liveness::Dead)
    }

    /// Drops released tokens that need not be remembered. A record remembers them because a request
    /// may arrive late. A dead process sends no more requests; without dropping its tokens, a busy
    /// lock would keep a long list. Of the tokens without liveness, which a script released, the
    /// newest are enough: nothing acquires with them after the hand-over.
    pub fn drop_tombstones(&mut self, me: Option<&Token>) {
        if self.confirms.is_some() {
            return;
        }
        let is_done = |token: &Token| {
            self.is_tracked(token)
                && matches!(self.adapter.liveness(token), Liveness::Dead | Liveness::Missing)
        };
        let mut done: BTreeSet<Token> = BTreeSet::new();
        for record in self.asked() {
            let (gone, kept): (Vec<_>, Vec<_>) = record
                .spent
                .iter()
                .filter(|(token, _)| Some(*token) != me)
                .partition(|(token, _)| is_done(token));
            let mut kept: Vec<_> = kept.iter().filter(|(token, _)| !self.is_tracked(token)).collect();
            kept.sort_unstable_by_key(|(_, spent)| std::cmp::Reverse(spent.until));
            let oldest = kept.into_iter().skip(RELEASED_MAX);
            done.extend(gone.iter().chain(oldest).map(|(token, _)| (*token).clone()));
        }
        for token in done {
            for record in self.table.records.values_mut() {
                record.spent.remove(&token);
            }
        }
    }

    /// The tokens that a waiter must watch, of those that the adapter can watch: its predecessor in
    /// each queue, and if it is the head, the holders that block it. At most `limit`, those whose
    /// leases end first; for the others the waiter relies on the `next` of the rules' answer.
    pub fn watch_targets(&self, me: &Token, limit: usize) -> BTreeSet<Token> {
        let mut whom = Vec::new();
        for record in self.asked() {
            let Some(waiter) = record.waiters.get(me) else { continue };
            if let Some(before) = predecessor(record, me) {
                whom.push((None, before));
            } else if !admits(record, waiter.mode) {
                whom.extend(
                    holders(record).map(|token| (record.holds.get(token).map(|hold| hold.until), token)),
                );
            }
        }
        whom.retain(|(_, token)| *token != me && (self.is_tracked(token) || self.adapter.has_watch_target()));
        whom.sort_unstable();
        whom.into_iter().take(limit).map(|(_, token)| token.clone()).collect()
    }

    /// Writes what has changed, releases the records, and wakes.
    pub fn commit(mut self, me: Option<&Token>) -> Result<Written, Error> {
        let woken = self.tokens_to_wake(me);
        let mut entries = Vec::with_capacity(self.opened.len());
        for Opened { mut entry, was, before } in self.opened {
            let mut record = self.table.records.remove(entry.name()).unwrap_or_default();
            // The rules saw only some of the waiters, took them for all, and so may have cleared
            // `absence`. It is put back.
            if record.absence == Absence::default()
                && (self.confirms.is_some() || entry.queue().has_unshown())
            {
                record.absence = before.absence;
            }
            let changed = if was.is_some_and(|was| *was == record) { Changed::No } else { Changed::Yes };
            *entry.record() = record;
            entries.push((entry, changed));
        }
        // The adapter wakes last: a woken token asks at once. If a dead waiter was granted the
        // lock, the waiter behind it watches it and asks by itself.
        let written = self.adapter.write(entries, self.now, &woken)?;
        if written == Written::Yes {
            self.dead.iter().for_each(|token| self.adapter.forget(token));
        }
        Ok(written)
    }

    /// The tokens to wake: new holders that have not confirmed, holders that were asked to end,
    /// watchers, waiters whose `--once-per` run is done, and superseded waiters. Also the head of a
    /// queue, if it is new or what blocks it has changed. After an exclusive grant the head is not
    /// woken: it watches the new holder, its predecessor until now.
    fn tokens_to_wake(&self, me: Option<&Token>) -> Vec<Token> {
        let (mut woken, mut others) = (Vec::new(), Vec::new());
        for opened in &self.opened {
            let Some(record) = self.table.records.get(opened.entry.name()) else { continue };
            let granted = record
                .holds
                .iter()
                .filter(|(token, hold)| !hold.confirmed && !opened.before.holds.contains_key(*token));
            let is_newly_asked = |(token, hold): &(&Token, &Hold)| {
                let before = opened.before.holds.get(*token);
                asked(hold) == Asked::Yes && before.is_some_and(|(_, asked)| *asked == Asked::No)
            };
            let to_end = record.holds.iter().filter(is_newly_asked).map(|(token, _)| token.clone());
            let is_seen = !record.watchers.is_empty() && opened.before.is_seen(record);
            let watchers = is_seen.then_some(&record.watchers).into_iter().flatten();
            others.extend(to_end.chain(watchers.map(|(token, _)| token.clone())));
            // A waiter whose --once-per run is done has left the queue. It is woken, and gets the
            // answer when it asks.
            let is_done = |(token, waiter): &(&Token, &Waiter)| {
                let is_queued_now = record.queue.contains(&(waiter.ticket, (*token).clone()));
                waiter.terms.once_per.is_some()
                    && !is_queued_now
                    && !record.holds.contains_key(*token)
                    && opened.entry.queue().is_queued(token)
            };
            others.extend(record.waiters.iter().filter(is_done).map(|(token, _)| token.clone()));
            let superseded = |(token, spent): &(&Token, &Tombstone)| {
                spent.superseded && opened.entry.queue().find(token).is_some()
            };
            others.extend(record.spent.iter().filter(superseded).map(|(token, _)| token.clone()));
            let before = woken.len();
            woken.extend(granted.map(|(token, _)| token.clone()));
            let is_handover = woken.len() > before && matches!(record.lock, Lock::Exclusive { .. });
            if !is_handover
                && let Some((_, head)) = record.queue.first()
                && opened.before.is_news(record)
            {
                woken.push(head.clone());
            }
        }
        woken.append(&mut others);
        woken.retain(|token| Some(token) != me);
        // A token that was granted several locks is woken once.
        let mut seen = BTreeSet::new();
        woken.retain(|token| seen.insert(token.clone()));
        woken
    }
}

fn full(names: &Names) -> BTreeSet<String> {
    names.iter().map(|name| name.as_str().to_owned()).collect()
}

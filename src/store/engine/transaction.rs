//! How does one operation change the records of several locks as if they were one? Records locked and read into a
//! [`LockTable`], the dead reaped, the law applied, records written, let go, whoever it concerns woken. What the operation
//! is, is the engine's affair.
//!
//! *Which locks.* Those asked for, and those that the law turned to: whether a waiter is served depends on all its locks.
//! Which these are shows when it is applied. What it wanted and had not been read, it found empty; then all that it did is
//! forgotten, everything is let go and taken again with those too, for an adapter locks in order of name: nobody waits in a
//! circle. Who only comes to stand behind others, or leaves their middle, has its own locks only.
//!
//! *Which waiters.* Those to whom the law may turn: see [`super::queue`]. If it came to others, it begins again with more.
//!
//! *Only looking* a transaction may be tried on what the records say ([`Transaction::look`]): if it turns out that it would
//! change nothing but what its owner says in its own place, as with most heartbeats and renewals, that is all there is to
//! it.
//!
//! *A kill between two records.* An adapter writes all or none, but where it is killed in between: then the first of them,
//! in order of name, are changed and the rest as they were. That never makes two holders, whatever the order: each record
//! was true before and is true after, it names whom the law admitted to its lock, and a token believes in its hold only
//! after an operation that was done for all of its locks. What is left half is healed by the law:
//! - A token granted some of its locks still waits for the others with its old ticket. When it asks, it loses those
//!   (`may_start_anew`) and is served anew; if it does not ask, nobody confirmed the grant, which ends by itself.
//! - A token that gave some of its locks back: whoever did that is dead. If it was the guard or the guard lives, the
//!   other of the two gives back the rest; else nobody has its life open and the rest is reaped. The first record in
//!   order of name remembers the token as spent and is written first, so that no request that is still on its way
//!   takes up again what is half gone.
//! - A waiter that stands in some of its queues, or was parked in some: it is in all of them when it asks again, and as
//!   long as it does not it is silent, then passed over, or dead and reaped.
//!
//! Deliberately without a journal: it would cost every operation a write more.

use super::queue::Joins;
use super::snapshot::{Asked, Snapshot, admits, asked, granted_alone, holders, predecessor};
use super::{Adapter, CatchUp, Changed, Entry, Liveness, Tracked, Written};
use crate::clock::Moment;
use crate::lock::{Mode, Names, Token};
use crate::rules::{Absence, Hold, Lock, LockTable, Phase, Record, Spent, Time, Waiter, millis};
use crate::store::Error;
use std::collections::BTreeSet;
use std::time::Duration;

/// So many tokens without a life are remembered once they were given back.
const SPENT_MOST: usize = 16;

/// The records of one operation.
pub struct Transaction<'a, A: Adapter> {
    adapter: &'a A,
    /// Who asks, and whether it may be about to join a queue.
    me: Option<(Token, Joins)>,
    /// The full names of the locks that the operation is about.
    asked: BTreeSet<String>,
    /// In order of name.
    opened: Vec<Opened<A::Entry>>,
    is_locked: bool,
    /// What the law works on.
    pub table: LockTable,
    /// The time of all of them.
    pub now: Time,
    /// Those who were reaped, and have a life that tells of it.
    dead: Vec<Token>,
    is_reaped: bool,
    /// Where nobody in the queue is looked at: the fence of what is only to be confirmed.
    confirms: Option<u64>,
    /// Whether a refusal need not be counted: others have changed the records too often.
    pub may_go_uncounted: bool,
    /// Whether there is nothing to write but such a count.
    pub is_only_count: bool,
}

/// One record; what the law keeps is in the table meanwhile.
struct Opened<E> {
    entry: E,
    /// The record as it was; most of those that the operation is not about stay so.
    was: Option<Box<Record>>,
    before: Snapshot,
}

/// Whose deaths an operation has to know of, besides those of the heads, who may be granted the locks by it. Each costs
/// a system call, and a lock may be shared by a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nobody's. Whoever waits for a holder watches it.
    Heads,
    /// Of the holders where they are in the way of one who wants the locks so.
    Wants(Mode),
    /// Of all holders.
    Holders,
}

impl Look {
    /// Whether who asks may be about to join a queue.
    pub fn joins(self) -> Joins {
        if matches!(self, Self::Wants(_)) { Joins::Yes } else { Joins::No }
    }
}

impl<'a, A: Adapter> Transaction<'a, A> {
    /// Locks and reads the records of these locks, and of those that it turned out to need as well.
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

    /// Reads the records of these locks, as they are now, to see what an operation would do.
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
            is_only_count: false,
        }
    }

    /// Shows the law those waiters to whom it may turn: the first so many of each queue, `me`, who is before that one, and
    /// whoever is the last where it joins.
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

    /// Shows one waiter, in all its queues: the law takes it out of all at once.
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

    /// How many of each queue the law is to be shown at first: whom an end of a hold grants the lock, and if somebody else
    /// could hold it beside that, who is behind it. Nobody where a lock is only to be confirmed: its job waits for that.
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

    /// Whether what was to be confirmed is: else it may have been granted anew, to whoever was shown.
    fn has_confirmed(&self, fence: u64) -> bool {
        let mut records = self.table.records.values();
        records.any(|record| {
            let mine = self.me.as_ref().and_then(|(me, _)| record.holds.get(me));
            mine.is_some_and(|mine| mine.confirmed && mine.fence == fence)
        })
    }

    /// Whether the law came to waiters that it was not shown. It looks at nobody behind the one whom it granted a lock that
    /// nobody else may have beside that; of several locks it may.
    pub fn has_come_too_far(&self) -> bool {
        if let Some(fence) = self.confirms {
            return !self.has_confirmed(fence);
        }
        (0..self.opened.len()).any(|at| {
            let Opened { entry, before, .. } = &self.opened[at];
            let had = |token: &Token| before.holds.contains_key(token);
            let is_fair = |record: &Record| !entry.queue().was_passed_over(record, had);
            let record = self.table.records.get(entry.name());
            let is_done =
                self.opened.len() == 1 && record.is_some_and(|record| !record.is_open() && is_fair(record));
            self.exposed(at, usize::from(!is_done), Joins::No).is_some()
        })
    }

    /// How many stand before a waiter, at most in any of its queues.
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

    /// The locks that the law turned to and that were not read.
    pub fn missing(&self) -> Vec<String> {
        let is_read = |name: &String| self.opened.iter().any(|opened| opened.entry.name() == *name);
        self.table.records.keys().filter(|name| !is_read(name)).cloned().collect()
    }

    /// Lets go of everything as it was.
    pub fn abort(self) {
        self.adapter.release(self.opened.into_iter().map(|opened| opened.entry).collect());
    }

    /// Whether nothing has changed, but how long a waiter with that token is not silent yet.
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

    /// The token has a life, which can be felt from now on.
    pub fn track(&mut self, token: &Token, ttl: Duration) {
        let locks = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
        for opened in self.opened.iter_mut().filter(|opened| self.asked.contains(opened.entry.name())) {
            opened.entry.tracked_mut().insert(token.clone(), Tracked { locks, ttl: millis(ttl) });
        }
    }

    /// The token has no life any more, and whether it lives can no longer be told.
    pub fn untrack(&mut self, token: &Token) {
        for opened in &mut self.opened {
            opened.entry.tracked_mut().remove(token);
        }
    }

    /// Whether one of the locks was granted to the token.
    pub fn is_held_by(&self, token: &Token) -> bool {
        self.table.records.values().any(|record| record.holds.contains_key(token))
    }

    /// Whether one of the locks was granted to anybody else. Among several the more haste is the less speed.
    pub fn is_held_by_others(&self, me: Option<&Token>) -> bool {
        self.table.records.values().flat_map(|record| record.holds.keys()).any(|token| Some(token) != me)
    }

    /// Whether a record names the token: as that of a hold whose job may live, or of a waiter.
    pub fn is_named(&self, token: &Token) -> bool {
        self.table.records.values().any(|record| {
            let holds = record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling);
            holds || record.waiters.contains_key(token)
        })
    }

    /// Reaps whoever is dead and stands where it would hold up others or be granted a lock: the heads, the one directly
    /// before `me` in each of its queues, and holders as `look` says.
    pub fn reap(&mut self, me: Option<&Token>, look: Look) -> Result<(), Error> {
        let mut felt: BTreeSet<Token> = BTreeSet::new();
        if self.confirms.is_some() {
            return Ok(());
        }
        loop {
            // Again and again: behind a dead head stands another one.
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
                    // The law must not take it for the last one.
                    self.show(2)?;
                    self.table.reap(self.now, &token);
                    self.is_reaped = true;
                    let entries = self.opened.iter_mut();
                    let known: Vec<Tracked> =
                        entries.filter_map(|opened| opened.entry.tracked_mut().remove(&token)).collect();
                    // Where another lock has to reap it as well, its life is what shows that it is dead.
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

    /// A token that was given back is remembered for the sake of requests that arrive late. None can come from a
    /// process that is no more; without this, a lock that is taken all the time would keep a long list. Of those without
    /// a life, which a script gave back, the last are enough: nobody asks with them once they were handed over.
    pub fn drop_spent(&mut self, me: Option<&Token>) {
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
            let oldest = kept.into_iter().skip(SPENT_MOST);
            done.extend(gone.iter().chain(oldest).map(|(token, _)| (*token).clone()));
        }
        for token in done {
            for record in self.table.records.values_mut() {
                record.spent.remove(&token);
            }
        }
    }

    /// Whom a waiter has to watch, of those whom the adapter can watch: the one directly before it in each of its queues,
    /// and where it is the head itself, the holders that are in its way. At most `limit`, the first to end by themselves:
    /// what becomes of the rest is met by the law's `next`.
    pub fn whom_to_watch(&self, me: &Token, limit: usize) -> BTreeSet<Token> {
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
        whom.retain(|(_, token)| *token != me && (self.is_tracked(token) || self.adapter.watches_anybody()));
        whom.sort_unstable();
        whom.into_iter().take(limit).map(|(_, token)| token.clone()).collect()
    }

    /// Writes what changed, lets go, and wakes.
    pub fn commit(mut self, me: Option<&Token>) -> Result<Written, Error> {
        let woken = self.whom_to_wake(me);
        let mut entries = Vec::with_capacity(self.opened.len());
        for Opened { mut entry, was, before } in self.opened {
            let mut record = self.table.records.remove(entry.name()).unwrap_or_default();
            // The law took those whom it was shown for all.
            if record.absence == Absence::default()
                && (self.confirms.is_some() || entry.queue().has_unshown())
            {
                record.absence = before.absence;
            }
            let changed = if was.is_some_and(|was| *was == record) { Changed::No } else { Changed::Yes };
            *entry.record() = record;
            entries.push((entry, changed));
        }
        // Who is woken asks for it at once. If the lock went to a dead one behind those looked at, whoever is behind that
        // watches it and asks by itself.
        let written = self.adapter.write(entries, self.now, &woken)?;
        if written == Written::Yes {
            self.dead.iter().for_each(|token| self.adapter.forget(token));
        }
        Ok(written)
    }

    /// Whoever was granted a lock and does not know it yet, was asked to end, or looks on. And each head that is another
    /// or for which what it waits for is, unless what happened is one grant: whoever is behind that watches it already.
    fn whom_to_wake(&self, me: Option<&Token>) -> Vec<Token> {
        let (mut woken, mut others) = (Vec::new(), Vec::new());
        for opened in &self.opened {
            let Some(record) = self.table.records.get(opened.entry.name()) else { continue };
            let granted = record
                .holds
                .iter()
                .filter(|(token, hold)| !hold.confirmed && !opened.before.holds.contains_key(*token));
            let news = |(token, hold): &(&Token, &Hold)| {
                let before = opened.before.holds.get(*token);
                asked(hold) == Asked::Yes && before.is_some_and(|(_, asked)| *asked == Asked::No)
            };
            let told = record.holds.iter().filter(news).map(|(token, _)| token.clone());
            let is_seen = !record.watchers.is_empty() && opened.before.is_seen(record);
            let watchers = is_seen.then_some(&record.watchers).into_iter().flatten();
            others.extend(told.chain(watchers.map(|(token, _)| token.clone())));
            // Those for whom it is done stand in the queue no more, and are told when they ask.
            let went = |(token, waiter): &(&Token, &Waiter)| {
                let stands = record.queue.contains(&(waiter.ticket, (*token).clone()));
                waiter.terms.once_per.is_some()
                    && !stands
                    && !record.holds.contains_key(*token)
                    && opened.entry.queue().is_queued(token)
            };
            others.extend(record.waiters.iter().filter(went).map(|(token, _)| token.clone()));
            let sent_home = |(token, spent): &(&Token, &Spent)| {
                spent.superseded && opened.entry.queue().find(token).is_some()
            };
            others.extend(record.spent.iter().filter(sent_home).map(|(token, _)| token.clone()));
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
        // One that was granted several locks is woken once.
        let mut seen = BTreeSet::new();
        woken.retain(|token| seen.insert(token.clone()));
        woken
    }
}

fn full(names: &Names) -> BTreeSet<String> {
    names.iter().map(|name| name.as_str().to_owned()).collect()
}

//! How does one operation change the records of several locks as if they were one? Mutexes taken, records read into a
//! [`Book`], the dead buried, the law applied, records replaced, mutexes let go, whoever it concerns woken. What the
//! operation is, is the store's affair.
//!
//! *Which locks.* Those asked for, and those that the law turned to: whether a waiter is served depends on all its locks.
//! Which these are shows when it is applied. What it wanted and had not been read, it found empty; then all that it did is
//! forgotten, everything is let go and taken again with those too, for mutexes are always taken in order of name: nobody
//! waits in a circle. Who only comes to stand behind others, or leaves their middle, has one mutex a lock of its own, and
//! reads and writes no other record.
//!
//! *Which time.* One for all: that of the record that is ahead; the others are lifted to it ([`Kept::lift`]). The clock is
//! read after the mutexes were taken and before what holders and waiters say in their own files: see [`super::life`].
//!
//! *Without the mutexes* a step may be tried on what the records say ([`Step::look`]): if it turns out that it would
//! change nothing but what its owner says in its own file, as with most heartbeats and renewals, that is all there is to
//! it.
//!
//! *A kill between two records.* All are written before the first is put in its place, so that what may fail, a full
//! disk above all, fails before anything has changed; then they are put in place in order of name. A kill (SIGKILL, not
//! a crash of the machine: that ends every hold) in the middle leaves the first of them changed and the rest as they
//! were. That never makes two holders, whatever the order: each record was true before and is true after, it names
//! whom the law admitted to its lock, and a token believes in its hold only after a step that was done for all of its
//! locks. What is left half is healed by the law:
//! - A token granted some of its locks still waits for the others with its old ticket. When it asks, it loses those
//!   (`may_start_anew`) and is served anew; if it does not ask, nobody confirmed the grant, which ends by itself.
//! - A token that gave some of its locks back: whoever did that is dead. If it was the guard or the guard lives, the
//!   other of the two gives back the rest; else nobody has its life open and the rest is buried. The first record in
//!   order of name remembers the token as spent and is replaced first, so that no request that is still on its way
//!   takes up again what is half gone.
//! - A waiter that stands in some of its queues, or was parked in some: it is in all of them when it asks again, and as
//!   long as it does not it is silent, then passed over, or dead and buried.
//!
//! Deliberately without a journal: it would cost every step a file more.

use crate::clock::Moment;
use crate::law::{Book, Hold, Lock, Phase, Record, Time, millis};
use crate::lock::{Mode, Names, Token};
use crate::store::Error;
use crate::store::file::boot::Boot;
use crate::store::file::directory::{Directory, FileName, Kind};
use crate::store::file::life::{Pulse, pulse};
use crate::store::file::mutex::Mutex;
use crate::store::file::queue::Joins;
use crate::store::file::record::{Alive, CatchUp, Kept};
use crate::store::file::slot::{Access, Draft, load};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::Discriminant;
use std::time::Duration;

/// So many tokens without a life are remembered once they were given back.
const SPENT_MOST: usize = 16;

/// The records of one operation.
#[derive(Debug)]
pub(super) struct Step<'a> {
    directory: &'a Directory,
    boot: &'a Boot,
    /// Who asks, and whether it may be about to join a queue.
    me: Option<(Token, Joins)>,
    /// The full names of the locks that the operation is about.
    asked: BTreeSet<String>,
    /// In order of name.
    pages: Vec<Page>,
    /// What the law works on.
    pub(super) book: Book,
    /// The time of all of them.
    pub(super) now: Time,
    /// The files of the buried.
    dead: Vec<Dead>,
    /// For tests: before which record the process is killed.
    #[cfg(test)]
    pub(super) killed_before: Option<usize>,
}

/// One record; what the law keeps is in the book meanwhile.
#[derive(Debug)]
struct Page {
    /// None where one only looks.
    mutex: Option<Mutex>,
    kept: Kept,
    file: File,
    /// The record as it was; most of those that the operation is not about stay so.
    was: Option<Box<Record>>,
    before: Glance,
}

/// Somebody who was buried.
#[derive(Debug)]
struct Dead {
    file: FileName,
    /// In the last record that named it.
    is_last: bool,
}

/// Whether the record has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Exists,
    Absent,
}

/// Whose deaths an operation has to know of, besides those of the heads, who may be granted the locks by it. Each costs
/// a system call, and a lock may be shared by a thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Nobody's. Whoever waits for a holder watches it.
    Heads,
    /// Of the holders where they are in the way of one who wants the locks so.
    Wants(Mode),
    /// Of all holders.
    Holders,
}

impl<'a> Step<'a> {
    /// Takes the mutexes, and reads the records of these locks and of those that it turned out to need as well.
    pub(super) fn open(
        directory: &'a Directory,
        boot: &'a Boot,
        names: &Names,
        needed: &BTreeSet<String>,
        by: Moment,
    ) -> Result<Self, Error> {
        let asked: BTreeSet<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let mut pages = Vec::with_capacity(asked.len());
        for name in asked.union(needed) {
            let mutex = Mutex::lock(directory, name, by)?;
            pages.push(Page::read(directory, boot, name, Some(mutex), Access::Change)?);
        }
        Ok(Self::with(directory, boot, asked, pages))
    }

    /// Reads the records of these locks, as they are now, to see what an operation would do.
    pub(super) fn look(directory: &'a Directory, boot: &'a Boot, names: &Names) -> Result<Self, Error> {
        let asked: BTreeSet<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let read = |name: &String| Page::read(directory, boot, name, None, Access::Look);
        let pages = asked.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self::with(directory, boot, asked, pages))
    }

    fn with(directory: &'a Directory, boot: &'a Boot, asked: BTreeSet<String>, mut pages: Vec<Page>) -> Self {
        let offset = pages.iter().map(|page| page.kept.offset).max().unwrap_or_default();
        pages.iter_mut().for_each(|page| page.kept.lift(offset));
        let now = pages.first().map_or(Time(0), |page| page.kept.now(boot));
        let mut book = Book::default();
        for page in &mut pages {
            page.kept.catch_up(directory, boot, now, CatchUp::Due);
            book.records.insert(page.kept.name.clone(), std::mem::take(&mut page.kept.record));
        }
        Self {
            directory,
            boot,
            me: None,
            asked,
            pages,
            book,
            now,
            dead: Vec::new(),
            #[cfg(test)]
            killed_before: None,
        }
    }

    /// Shows the law those waiters to whom it may turn: the first so many of each queue, `me`, who is before that one, and
    /// whoever is the last where it joins.
    pub(super) fn reveal(&mut self, front: usize, me: Option<&Token>, look: Look) -> Result<(), Error> {
        let joins = if matches!(look, Look::Wants(_)) { Joins::Yes } else { Joins::No };
        self.me = me.map(|me| (me.clone(), joins));
        self.show(front)?;
        for page in &mut self.pages {
            let Some(record) = self.book.records.get(&page.kept.name) else { continue };
            page.before = Glance::at(record);
            if page.mutex.is_none() || !self.asked.contains(&page.kept.name) {
                page.was = Some(Box::new(record.clone()));
            }
        }
        Ok(())
    }

    fn show(&mut self, front: usize) -> Result<(), Error> {
        for at in 0..self.pages.len() {
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
        let kept = &self.pages[at].kept;
        let me = self.me.as_ref().filter(|_| self.asked.contains(&kept.name));
        let me = me.map(|(me, _)| (me, joins));
        kept.queue.exposed(self.book.records.get(&kept.name)?, front, me)
    }

    /// Shows one waiter, in all its queues: the law takes it out of all at once.
    fn show_one(&mut self, at: usize, waiter: usize) -> Result<(), Error> {
        let Self { pages, book, directory, boot, now, .. } = self;
        let mut show = |page: &mut Page, waiter: usize| match book.records.get_mut(&page.kept.name) {
            Some(record) => page.kept.show(waiter, record, directory, boot, *now),
            None => Ok(Vec::new()),
        };
        let token = pages[at].kept.queue.entries[waiter].token();
        let names = show(&mut pages[at], waiter)?;
        for page in pages.iter_mut().filter(|page| names.len() > 1 && names.contains(&page.kept.name)) {
            if let Some(waiter) = token.as_ref().and_then(|token| page.kept.queue.find(token)) {
                show(page, waiter)?;
            }
        }
        Ok(())
    }

    /// Whether the law came to waiters that it was not shown.
    pub(super) fn has_come_too_far(&self) -> bool {
        (0..self.pages.len()).any(|at| self.exposed(at, 1, Joins::No).is_some())
    }

    /// How many stand before a waiter, at most in any of its queues.
    pub(super) fn ahead(&self, me: &Token) -> u64 {
        let ahead = self.pages.iter().filter_map(|page| {
            let record =
                self.book.records.get(&page.kept.name).filter(|_| self.asked.contains(&page.kept.name))?;
            let ticket = record.waiters.get(me)?.ticket;
            let shown = record.queue.range(..(ticket, me.clone())).count() as u64;
            Some(shown + page.kept.queue.unseen_before(record, me))
        });
        ahead.max().unwrap_or_default()
    }

    /// The locks that the law turned to and that were not read.
    pub(super) fn missing(&self) -> Vec<String> {
        let is_read = |name: &String| self.pages.iter().any(|page| page.kept.name == *name);
        self.book.records.keys().filter(|name| !is_read(name)).cloned().collect()
    }

    /// Lets go of everything as it was.
    pub(super) fn forget(self) {
        for page in self.pages {
            let file = page.file;
            page.let_go(self.directory, file);
        }
    }

    /// Whether nothing has changed, but how long a waiter with that token is not silent yet.
    pub(super) fn is_idle(&mut self, me: &Token) -> bool {
        let Self { book, pages, .. } = self;
        self.dead.is_empty()
            && book.records.len() == pages.len()
            && pages.iter().all(|page| {
                let now = book.records.get_mut(&page.kept.name);
                now.zip(page.was.as_deref()).is_some_and(|(now, was)| {
                    now.absence.heard = was.absence.heard;
                    if let (Some(waiter), Some(before)) = (now.waiters.get_mut(me), was.waiters.get(me)) {
                        (waiter.silent, waiter.forget) = (before.silent, before.forget);
                    }
                    *now == *was
                })
            })
    }

    /// The token has a life, which can be felt from now on.
    pub(super) fn believe_in(&mut self, token: &Token, ttl: Duration) {
        let locks = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
        for page in self.pages.iter_mut().filter(|page| self.asked.contains(&page.kept.name)) {
            page.kept.lives.insert(token.clone(), Alive { locks, ttl: millis(ttl) });
        }
    }

    /// The token has no life any more, and whether it lives can no longer be told.
    pub(super) fn doubt_in(&mut self, token: &Token) {
        for page in &mut self.pages {
            page.kept.lives.remove(token);
        }
    }

    /// Whether a record names the token: as that of a hold whose job may live, or of a waiter.
    pub(super) fn is_named(&self, token: &Token) -> bool {
        self.book.records.values().any(|record| {
            let holds = record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling);
            holds || record.waiters.contains_key(token)
        })
    }

    /// Buries whoever is dead and stands where it would hold up others or be granted a lock: the heads, the one directly
    /// before `me` in each of its queues, and holders as `look` says.
    pub(super) fn bury(&mut self, me: Option<&Token>, look: Look) -> Result<(), Error> {
        let mut felt: BTreeSet<Token> = BTreeSet::new();
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
                    self.book.bury(self.now, &token);
                    let pages = self.pages.iter_mut();
                    let known: Vec<Alive> = pages.filter_map(|page| page.kept.lives.remove(&token)).collect();
                    // Where another lock has to bury it as well, the file is what shows that it is dead.
                    let is_last = known.iter().all(|alive| alive.locks as usize <= known.len());
                    let file = FileName::of(token.secret(), Kind::Life);
                    self.dead.push(Dead { file, is_last });
                }
                felt.insert(token);
            }
        }
    }

    fn suspects<'s>(&'s self, me: Option<&'s Token>, look: Look) -> impl Iterator<Item = &'s Token> {
        let heads =
            self.book.records.values().filter_map(|record| record.queue.first()).map(|(_, token)| token);
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
        self.asked.iter().filter_map(|name| self.book.records.get(name))
    }

    fn has_life(&self, token: &Token) -> bool {
        self.pages.iter().any(|page| page.kept.lives.contains_key(token))
    }

    fn is_dead(&self, token: &Token) -> bool {
        self.has_life(token) && matches!(pulse(self.directory, token), Pulse::Stopped)
    }

    /// A token that was given back is remembered for the sake of requests that arrive late. None can come from a
    /// process that is no more; without this, a lock that is taken all the time would keep a long list. Of those without
    /// a life, which a script gave back, the last are enough: nobody asks with them once they were handed over.
    pub(super) fn drop_spent(&mut self, me: Option<&Token>) {
        let is_done = |token: &Token| {
            self.has_life(token) && matches!(pulse(self.directory, token), Pulse::Stopped | Pulse::Missing)
        };
        let mut done: BTreeSet<Token> = BTreeSet::new();
        for record in self.asked() {
            let (gone, kept): (Vec<_>, Vec<_>) = record
                .spent
                .iter()
                .filter(|(token, _)| Some(*token) != me)
                .partition(|(token, _)| is_done(token));
            let mut kept: Vec<_> = kept.iter().filter(|(token, _)| !self.has_life(token)).collect();
            kept.sort_unstable_by_key(|(_, spent)| std::cmp::Reverse(spent.until));
            let oldest = kept.into_iter().skip(SPENT_MOST);
            done.extend(gone.iter().chain(oldest).map(|(token, _)| (*token).clone()));
        }
        for token in done {
            for record in self.book.records.values_mut() {
                record.spent.remove(&token);
            }
        }
    }

    /// Whom a waiter has to watch, of those who have a life: the one directly before it in each of its queues, and where
    /// it is the head itself, the holders that are in its way. At most `limit`, the first to end by themselves: what
    /// becomes of the rest is met by the law's `next`.
    pub(super) fn whom_to_watch(&self, me: &Token, limit: usize) -> BTreeSet<Token> {
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
        whom.retain(|(_, token)| *token != me && self.has_life(token));
        whom.sort_unstable();
        whom.into_iter().take(limit).map(|(_, token)| token.clone()).collect()
    }

    /// Writes what changed, lets go, and wakes.
    pub(super) fn finish(mut self, me: Option<&Token>) -> Result<(), Error> {
        let woken = self.whom_to_wake(me);
        let mut files: Vec<File> = self.pages.iter().map(|page| page.file).collect();
        let saved = self.save(&mut files);
        for (page, file) in self.pages.into_iter().zip(files) {
            page.let_go(self.directory, file);
        }
        saved?;
        // After the mutexes were let go: whoever is woken takes one at once. If the lock went to a dead one behind those
        // looked at, whoever is behind that watches it and asks by itself.
        for token in woken {
            if let Pulse::Beats(watch) = pulse(self.directory, &token) {
                watch.wake(self.directory);
            }
        }
        for dead in self.dead.iter().filter(|dead| dead.is_last) {
            self.directory.remove(&dead.file).ok();
        }
        Ok(())
    }

    fn save(&mut self, files: &mut [File]) -> Result<(), Error> {
        let mut changes: Vec<(usize, Change)> = Vec::with_capacity(1);
        for (at, page) in self.pages.iter_mut().enumerate() {
            let record = self.book.records.remove(&page.kept.name).unwrap_or_default();
            let is_same = page.was.as_deref().is_some_and(|before| *before == record);
            page.kept.record = record;
            match (page.kept.is_empty(), page.file) {
                _ if is_same => {}
                (true, File::Absent) => {}
                (is_empty, _) => match page.kept.write(self.directory, self.now) {
                    Ok(draft) => {
                        let emptied = is_empty.then(|| FileName::of(&page.kept.name, Kind::Record));
                        changes.push((at, Change { draft, emptied }));
                    }
                    Err(error) => {
                        changes.iter().for_each(|(_, change)| change.draft.discard(self.directory));
                        return Err(error);
                    }
                },
            }
        }
        #[cfg(test)]
        let mut killed_before = self.killed_before;
        let mut changes = changes.into_iter();
        while let Some((at, change)) = changes.next() {
            #[cfg(test)]
            match &mut killed_before {
                Some(0) => return Err(Error::Unreachable("killed".into())),
                Some(more) => *more -= 1,
                None => {}
            }
            match change.make(self.directory) {
                Ok(file) => files[at] = file,
                Err(error) => {
                    change.draft.discard(self.directory);
                    changes.for_each(|(_, change)| change.draft.discard(self.directory));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Whoever was granted a lock and does not know it yet, was asked to end, or looks on. And each head that is another
    /// or for which what it waits for is, unless what happened is one grant: whoever is behind that watches it already.
    fn whom_to_wake(&self, me: Option<&Token>) -> Vec<Token> {
        let (mut woken, mut others) = (Vec::new(), Vec::new());
        for page in &self.pages {
            let Some(record) = self.book.records.get(&page.kept.name) else { continue };
            let granted = record
                .holds
                .iter()
                .filter(|(token, hold)| !hold.confirmed && !page.before.holds.contains_key(*token));
            let news = |(token, hold): &(&Token, &Hold)| {
                let before = page.before.holds.get(*token);
                asked(hold) == Asked::Yes && before.is_some_and(|(_, asked)| *asked == Asked::No)
            };
            let told = record.holds.iter().filter(news).map(|(token, _)| token.clone());
            let is_seen = !record.watchers.is_empty() && page.before.is_seen(record);
            let watchers = is_seen.then_some(&record.watchers).into_iter().flatten();
            others.extend(told.chain(watchers.map(|(token, _)| token.clone())));
            let before = woken.len();
            woken.extend(granted.map(|(token, _)| token.clone()));
            let is_handover = woken.len() > before && matches!(record.lock, Lock::Exclusive { .. });
            if !is_handover
                && let Some((_, head)) = record.queue.first()
                && page.before.is_news(record)
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

impl Page {
    fn read(
        directory: &Directory,
        boot: &Boot,
        name: &str,
        mutex: Option<Mutex>,
        access: Access,
    ) -> Result<Self, Error> {
        let record = FileName::of(name, Kind::Record);
        let content = load(directory, &record, access)?;
        let kept = Kept::parse(directory, &record, content.as_ref(), Some(name), boot)?;
        let file = if content.is_some() { File::Exists } else { File::Absent };
        Ok(Self { mutex, kept, file, was: None, before: Glance::default() })
    }

    /// A mutex goes with its record, and so does that of a lock of which nothing was kept. If it cannot be removed, a
    /// sweep finds it.
    fn let_go(self, directory: &Directory, file: File) {
        if let (File::Absent, Some(mutex)) = (file, self.mutex) {
            mutex.remove(directory).ok();
        }
    }
}

/// What becomes of a record's file.
#[derive(Debug)]
struct Change {
    draft: Draft,
    /// Nothing is left to keep: it goes, if it may be removed.
    emptied: Option<FileName>,
}

impl Change {
    fn make(&self, directory: &Directory) -> Result<File, Error> {
        self.draft.place(directory)?;
        let is_removed = self.emptied.as_ref().is_some_and(|record| directory.remove(record).is_ok());
        Ok(if is_removed { File::Absent } else { File::Exists })
    }
}

/// What decides whom a step has to wake.
#[derive(Debug, Default)]
struct Glance {
    holds: BTreeMap<Token, (Phase, Asked)>,
    head: Option<Token>,
    lock: Option<Discriminant<Lock>>,
    /// Only where somebody watches.
    all: Option<(Vec<Token>, u64, u64)>,
}

/// Whether an operator asked a holder to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Yes,
    No,
}

impl Glance {
    fn at(record: &Record) -> Self {
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

    /// Whether there is anything new for those who look on: a grant, an end, a refusal, a waiter that comes or goes.
    fn is_seen(&self, record: &Record) -> bool {
        let now = Self::at(record);
        now.holds != self.holds || now.lock != self.lock || now.all != self.all
    }

    /// Whether the head is another, or has to look again at what it waits for. One holder less of several is no news for
    /// it: if the lock were to be had now, it would have been granted it.
    fn is_news(&self, record: &Record) -> bool {
        self.head.as_ref() != record.queue.first().map(|(_, token)| token)
            || self.lock != Some(std::mem::discriminant(&record.lock))
            || self
                .holds
                .iter()
                .any(|(token, (phase, _))| record.holds.get(token).is_some_and(|hold| hold.phase != *phase))
    }
}

fn asked(hold: &Hold) -> Asked {
    if hold.asked.is_some() { Asked::Yes } else { Asked::No }
}

/// The queue, the refusals, and the grants that were heard of.
fn everything(record: &Record) -> (Vec<Token>, u64, u64) {
    let queue = record.queue.iter().map(|(_, token)| token.clone()).collect();
    (queue, record.stat.busy, record.stat.waited.count())
}

/// Those who hold it or lost it to an operator. What a min-hold keeps has no life.
fn holders(record: &Record) -> impl Iterator<Item = &Token> {
    record.holds.iter().filter(|(_, hold)| hold.phase != Phase::Cooling).map(|(token, _)| token)
}

/// The waiter directly before `me` in the queue.
fn predecessor<'r>(record: &'r Record, me: &Token) -> Option<&'r Token> {
    let ticket = record.waiters.get(me)?.ticket;
    record.queue.range(..(ticket, me.clone())).next_back().map(|(_, token)| token)
}

/// Whether the holders are in nobody's way who wants the lock so.
fn admits(record: &Record, mode: Mode) -> bool {
    match (&record.lock, mode) {
        (Lock::Free, _) | (Lock::Shared { .. }, Mode::Shared) => true,
        (Lock::Slots { slots, .. }, Mode::Slots(wanted)) => {
            *slots == wanted && record.holds.len() < *slots as usize
        }
        _ => false,
    }
}

//! How does one operation change the records of several locks as if they were one? Mutexes taken, records read into a
//! [`Book`], the dead buried, the law applied, records replaced, mutexes let go, whoever it concerns woken. What the
//! operation is, is the store's affair.
//!
//! *Which locks.* Those asked for, and those that their waiters wait for as well, and so on ([`Book::reach`]): whether a
//! waiter is served depends on all its locks. Which these are is known only when the records are read; then everything
//! is let go and taken again, for mutexes are always taken in order of name: nobody waits in a circle. Where each
//! waiter wants one lock, there is one mutex, one record read and one written.
//!
//! *Which time.* One for all: that of the record that is ahead; the others are lifted to it ([`Kept::lift`]).
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
use crate::law::{Book, Hold, Lock, Phase, Record, Time};
use crate::lock::{Mode, Names, Token};
use crate::store::Error;
use crate::store::file::directory::{Directory, Kind, remove};
use crate::store::file::life::{Pulse, pulse};
use crate::store::file::mutex::Mutex;
use crate::store::file::record::{Boot, Draft, Kept, load};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::Discriminant;
use std::path::PathBuf;

/// The records of one operation, with their mutexes taken.
#[derive(Debug)]
pub(super) struct Step<'a> {
    directory: &'a Directory,
    /// In order of name.
    pages: Vec<Page>,
    /// What the law works on.
    pub(super) book: Book,
    /// The time of all of them.
    pub(super) now: Time,
    /// The files of the buried.
    dead: Vec<PathBuf>,
    /// For tests: before which record the process is killed.
    #[cfg(test)]
    pub(super) killed_before: Option<usize>,
}

/// One record; what the law keeps is in the book meanwhile.
#[derive(Debug)]
struct Page {
    mutex: Mutex,
    kept: Kept,
    file: File,
    part: Part,
    before: Glance,
}

/// Whether the record has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Exists,
    Absent,
}

/// How a record came into the book.
#[derive(Debug)]
enum Part {
    /// The operation names its lock.
    Asked,
    /// A waiter of another one's waits for it too. As it was, for most often it stays so.
    Reached(Box<Record>),
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
    /// Takes the mutexes and reads the records.
    pub(super) fn open(
        directory: &'a Directory,
        boot: &Boot,
        names: &Names,
        by: Moment,
    ) -> Result<Self, Error> {
        let asked: BTreeSet<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let mut wanted = asked.clone();
        loop {
            let step = Self::take(directory, boot, &asked, &wanted, by)?;
            let missing = step.book.reach();
            if missing.is_empty() {
                return Ok(step);
            }
            for page in step.pages {
                let file = page.file;
                page.let_go(file);
            }
            wanted.extend(missing);
        }
    }

    fn take(
        directory: &'a Directory,
        boot: &Boot,
        asked: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
        by: Moment,
    ) -> Result<Self, Error> {
        let mut pages = Vec::with_capacity(wanted.len());
        for name in wanted {
            let mutex = Mutex::lock(directory, name, by)?;
            let path = directory.file(name, Kind::Record);
            let bytes = load(directory, &path)?;
            let kept = Kept::parse(directory, &path, bytes.as_deref(), Some(name), boot)?;
            let file = if bytes.is_some() { File::Exists } else { File::Absent };
            pages.push(Page { mutex, kept, file, part: Part::Asked, before: Glance::default() });
        }
        let offset = pages.iter().map(|page| page.kept.offset).max().unwrap_or_default();
        let mut book = Book::default();
        for page in &mut pages {
            page.kept.lift(offset);
            let record = std::mem::take(&mut page.kept.record);
            page.before = Glance::at(&record);
            if !asked.contains(&page.kept.name) {
                page.part = Part::Reached(Box::new(record.clone()));
            }
            book.records.insert(page.kept.name.clone(), record);
        }
        let now = pages.first().map_or(Time(0), |page| page.kept.now(boot));
        Ok(Self {
            directory,
            pages,
            book,
            now,
            dead: Vec::new(),
            #[cfg(test)]
            killed_before: None,
        })
    }

    /// The token has a life, which can be felt from now on.
    pub(super) fn believe_in(&mut self, token: &Token) {
        for page in &mut self.pages {
            if matches!(page.part, Part::Asked) {
                page.kept.lives.insert(token.clone());
            }
        }
    }

    /// The token has no life any more, and whether it lives can no longer be told.
    pub(super) fn doubt_in(&mut self, token: &Token) {
        for page in &mut self.pages {
            page.kept.lives.remove(token);
        }
    }

    /// Whether a hold names the token, of one whose job may live.
    pub(super) fn is_named(&self, token: &Token) -> bool {
        self.book
            .records
            .values()
            .any(|record| record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling))
    }

    /// Buries whoever is dead and stands where it would hold up others or be granted a lock: the heads, the one directly
    /// before `me` in each of its queues, and holders as `look` says.
    pub(super) fn bury(&mut self, me: Option<&Token>, look: Look) {
        let mut felt: BTreeSet<Token> = BTreeSet::new();
        loop {
            // Again and again: behind a dead head stands another one.
            let found: Vec<Token> = self
                .suspects(me, look)
                .filter(|token| Some(*token) != me && !felt.contains(token))
                .cloned()
                .collect();
            if found.is_empty() {
                return;
            }
            for token in found {
                if !felt.contains(&token) && self.is_dead(&token) {
                    self.book.bury(self.now, &token);
                    for page in &mut self.pages {
                        page.kept.lives.remove(&token);
                    }
                    self.dead.push(self.directory.file(token.secret(), Kind::Life));
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
        let names =
            self.pages.iter().filter(|page| matches!(page.part, Part::Asked)).map(|page| &page.kept.name);
        names.filter_map(|name| self.book.records.get(name))
    }

    fn is_dead(&self, token: &Token) -> bool {
        self.pages.iter().any(|page| page.kept.lives.contains(token))
            && matches!(pulse(self.directory, token), Pulse::Stopped)
    }

    /// A token that was given back is remembered for the sake of requests that arrive late. None can come from a
    /// process that is no more; without this, a lock that is taken all the time would keep a long list.
    pub(super) fn drop_spent(&mut self, me: Option<&Token>) {
        let spent = self.asked().flat_map(|record| record.spent.keys());
        let done: Vec<Token> =
            spent.filter(|token| Some(*token) != me && self.is_dead(token)).cloned().collect();
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
        whom.retain(|(_, token)| {
            *token != me && self.pages.iter().any(|page| page.kept.lives.contains(*token))
        });
        whom.sort_unstable();
        whom.into_iter().take(limit).map(|(_, token)| token.clone()).collect()
    }

    /// Replaces what changed, lets go, and wakes.
    pub(super) fn finish(mut self, me: Option<&Token>) -> Result<(), Error> {
        let woken = self.whom_to_wake(me);
        let mut files: Vec<File> = self.pages.iter().map(|page| page.file).collect();
        let saved = self.save(&mut files);
        for (page, file) in self.pages.into_iter().zip(files) {
            page.let_go(file);
        }
        saved?;
        // After the mutexes were let go: whoever is woken takes one at once. If the lock went to a dead one behind those
        // looked at, whoever is behind that watches it and asks by itself.
        for token in woken {
            if let Pulse::Beats(watch) = pulse(self.directory, &token) {
                watch.wake();
            }
        }
        for path in self.dead {
            remove(&path).ok();
        }
        Ok(())
    }

    fn save(&mut self, files: &mut [File]) -> Result<(), Error> {
        let mut changes: Vec<(usize, Change)> = Vec::with_capacity(1);
        for (at, page) in self.pages.iter_mut().enumerate() {
            let record = self.book.records.remove(&page.kept.name).unwrap_or_default();
            let is_same = matches!(&page.part, Part::Reached(before) if **before == record);
            page.kept.record = record;
            match (page.kept.is_empty(), page.file) {
                _ if is_same => {}
                (true, File::Absent) => {}
                (true, File::Exists) => {
                    changes.push((at, Change::Removed(self.directory.file(&page.kept.name, Kind::Record))));
                }
                (false, _) => match page.kept.write(self.directory, self.now) {
                    Ok(draft) => changes.push((at, Change::Written(draft))),
                    Err(error) => {
                        changes.iter().for_each(|(_, change)| change.discard());
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
            if let Err(error) = change.make(self.directory) {
                change.discard();
                changes.for_each(|(_, change)| change.discard());
                return Err(error);
            }
            files[at] = change.leaves();
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
    /// A mutex goes with its record, and so does that of a lock of which nothing was kept. If it cannot be removed, a
    /// sweep finds it.
    fn let_go(self, file: File) {
        if file == File::Absent {
            self.mutex.remove().ok();
        }
    }
}

/// What becomes of a record's file.
#[derive(Debug)]
enum Change {
    Written(Draft),
    /// Nothing is left to keep.
    Removed(PathBuf),
}

impl Change {
    fn make(&self, directory: &Directory) -> Result<(), Error> {
        match self {
            Self::Written(draft) => draft.place(directory),
            Self::Removed(path) => {
                remove(path).map_err(|errno| directory.error("remove the record of the lock", errno))
            }
        }
    }

    fn discard(&self) {
        if let Self::Written(draft) = self {
            draft.discard();
        }
    }

    fn leaves(&self) -> File {
        match self {
            Self::Written(_) => File::Exists,
            Self::Removed(_) => File::Absent,
        }
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

//! Keeps the locks of one machine without a server, for `file:/DIR`: records in a directory, each
//! changed under a file lock, and FIFOs by which the kernel reports the death of a process. The
//! records decide; a FIFO only carries news. The engine decides what the records say; this module
//! is its adapter.
//!
//! To change a lock, it takes the mutex, reads the record ([`slot`], [`record`]) and writes it in
//! place. The clock is read after the mutexes are taken and before the deadlines that holders and
//! waiters publish in their own files: see [`liveness`].
//!
//! It does not lock out other machines that mount the directory too; see [`directory`].

mod boot;
mod cleanup;
mod directory;
mod liveness;
mod mutex;
pub mod probe;
mod queue;
mod record;
mod slot;
#[cfg(test)]
mod tests;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{LoggedEnd, Record, Time};
use crate::store::engine::queue::Queue;
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Entry, Liveness, Tracked, Written};
use crate::store::{Error, Listener, Subscription};
use boot::Boot;
use directory::{Directory, FileName, FileRole};
use liveness::{LifeFile, Watch, liveness};
use mutex::Mutex;
use record::RecordFile;
use slot::{Access, Draft, FILE_MOST, load};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A store in a directory.
pub type FileStore = Engine<Files>;

impl FileStore {
    /// Opens the store in `directory`, an absolute path; creates the directory if there is none.
    /// `shown` is the store's URL, for messages.
    pub fn open(directory: &Path, shown: &str) -> Result<Self, Error> {
        let directory = Directory::open(directory, shown)?;
        let boot = Boot::current().map_err(|error| {
            Error::Unfit(format!("{shown}: cannot read which boot this is ({error}); is /proc mounted?"))
        })?;
        Ok(Self::new(Files {
            directory: Arc::new(directory),
            boot,
            life: None,
            #[cfg(test)]
            killed_before: None,
        }))
    }
}

/// The engine's adapter for a directory.
#[derive(Debug, Clone)]
pub struct Files {
    directory: Arc<Directory>,
    boot: Boot,
    life: Option<Arc<LifeFile>>,
    /// For tests: the index of the record before which the process counts as killed, in the next
    /// operation.
    #[cfg(test)]
    killed_before: Option<usize>,
}

/// The record of one lock during an operation.
#[derive(Debug)]
pub struct FileEntry {
    /// None if the record is only read.
    mutex: Option<Mutex>,
    record: RecordFile,
    file: File,
    /// Whether the record has nothing left to keep.
    is_empty: bool,
}

/// Whether a record has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Exists,
    Absent,
}

impl Entry for FileEntry {
    fn name(&self) -> &str {
        &self.record.name
    }

    fn record(&mut self) -> &mut Record {
        &mut self.record.record
    }

    fn tracked(&self) -> &BTreeMap<Token, Tracked> {
        &self.record.tracked
    }

    fn tracked_mut(&mut self) -> &mut BTreeMap<Token, Tracked> {
        &mut self.record.tracked
    }

    fn queue(&self) -> &Queue {
        &self.record.queue
    }

    fn version(&self) -> u64 {
        self.record.turn()
    }

    fn log(&self) -> Vec<LoggedEnd> {
        self.record.log()
    }
}

impl Files {
    fn read(&self, name: &str, mutex: Option<Mutex>, access: Access) -> Result<FileEntry, Error> {
        let file = FileName::of(name, FileRole::Record);
        let content = load(&self.directory, &file, access)?;
        let record = RecordFile::parse(&self.directory, &file, content.as_ref(), Some(name), &self.boot)?;
        let file = if content.is_some() { File::Exists } else { File::Absent };
        Ok(FileEntry { mutex, record, file, is_empty: false })
    }

    /// Shifts all records to one time: that of the record with the latest offset.
    fn align_times(&self, mut entries: Vec<FileEntry>, whom: CatchUp) -> (Vec<FileEntry>, Time) {
        let offset = entries.iter().map(|entry| entry.record.offset).max().unwrap_or_default();
        entries.iter_mut().for_each(|entry| entry.record.lift(offset));
        let now = entries.first().map_or(Time(0), |entry| entry.record.now(&self.boot));
        entries.iter_mut().for_each(|entry| entry.record.catch_up(&self.directory, &self.boot, now, whom));
        (entries, now)
    }

    /// The life file of `token`, if this process has it.
    fn life_of(&self, token: &Token) -> Option<&Arc<LifeFile>> {
        self.life.as_ref().filter(|life| life.token() == token)
    }

    /// All records in the directory. A file that has the name of a record and is none is skipped or
    /// returned as an error for that lock alone.
    fn records(&self) -> Result<Vec<Result<RecordFile, Error>>, Error> {
        let failed = |errno| self.directory.error("list the records", errno);
        let mut records = Vec::new();
        for (file, kind) in self.directory.names().map_err(failed)? {
            if kind != FileRole::Record || !self.directory.has_file(&file, FILE_MOST) {
                continue;
            }
            if let Some(content) = load(&self.directory, &file, Access::Look)? {
                records.push(RecordFile::parse(&self.directory, &file, Some(&content), None, &self.boot));
            }
        }
        Ok(records)
    }

    /// Writes all drafts first, so that what can fail, above all on a full disk, fails before
    /// anything has changed. Then puts one after the other in place.
    fn place(&self, entries: &mut [(FileEntry, Changed)], now: Time) -> Result<(), Error> {
        let directory = &*self.directory;
        let mut drafts: Vec<(usize, Draft)> = Vec::with_capacity(1);
        let discard =
            |drafts: &[(usize, Draft)]| drafts.iter().for_each(|(_, draft)| draft.discard(directory));
        for (at, (entry, changed)) in entries.iter_mut().enumerate() {
            entry.is_empty = entry.record.is_empty();
            if *changed == Changed::No || (entry.is_empty && entry.file == File::Absent) {
                continue;
            }
            match entry.record.write(directory, now) {
                Ok(draft) => drafts.push((at, draft)),
                Err(error) => {
                    discard(&drafts);
                    return Err(error);
                }
            }
        }
        for (number, (at, draft)) in drafts.iter().enumerate() {
            #[cfg(test)]
            if self.killed_before == Some(number) {
                return Err(Error::Unreachable("killed".into()));
            }
            if let Err(error) = draft.place(directory) {
                discard(&drafts[number..]);
                return Err(error);
            }
            let entry = &mut entries[*at].0;
            // An empty record is removed, if that is allowed.
            let file = FileName::of(entry.name(), FileRole::Record);
            let is_removed = entry.is_empty && directory.remove(&file).is_ok();
            entry.file = if is_removed { File::Absent } else { File::Exists };
        }
        Ok(())
    }
}

impl Adapter for Files {
    type Entry = FileEntry;
    type Watch = Watch;

    /// If the path leads to another directory now, moves there, because the other processes do.
    fn refresh(&mut self, _: Moment) -> Result<(), Error> {
        if let Some(directory) = self.directory.successor()? {
            self.directory = Arc::new(directory);
        }
        Ok(())
    }

    fn lock(
        &self,
        names: &BTreeSet<String>,
        _: Option<&Token>,
        deadline: Moment,
    ) -> Result<(Vec<FileEntry>, Time), Error> {
        let lock = |name: &String| {
            self.read(name, Some(Mutex::lock(&self.directory, name, deadline)?), Access::Change)
        };
        let entries = names.iter().map(lock).collect::<Result<_, Error>>()?;
        Ok(self.align_times(entries, CatchUp::Due))
    }

    fn look(
        &self,
        names: &BTreeSet<String>,
        _: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<FileEntry>, Time), Error> {
        // A reader of all holders also wants the past ones.
        let access = if whom == CatchUp::All { Access::LookAtAll } else { Access::Look };
        let entries = names.iter().map(|name| self.read(name, None, access)).collect::<Result<_, _>>()?;
        Ok(self.align_times(entries, whom))
    }

    fn show(
        &self,
        entry: &mut FileEntry,
        waiter: usize,
        record: &mut Record,
        now: Time,
    ) -> Result<Vec<String>, Error> {
        entry.record.show(waiter, record, &self.directory, &self.boot, now)
    }

    /// Wakes after all mutexes are released, because a token that is woken asks for the lock at
    /// once.
    fn write(
        &self,
        mut entries: Vec<(FileEntry, Changed)>,
        now: Time,
        woken: &[Token],
    ) -> Result<Written, Error> {
        let written = self.place(&mut entries, now);
        self.release(entries.into_iter().map(|(entry, _)| entry).collect());
        written?;
        for token in woken {
            if let Liveness::Alive(watch) = self.liveness(token) {
                watch.wake();
            }
        }
        Ok(Written::Yes)
    }

    /// Removes the mutex of a lock without a record. If it cannot be removed, a later clean-up
    /// finds it.
    fn release(&self, entries: Vec<FileEntry>) {
        for entry in entries {
            if let (File::Absent, Some(mutex)) = (entry.file, entry.mutex) {
                mutex.remove(&self.directory).ok();
            }
        }
    }

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
        self.sweep();
        let is_kept =
            |record: &Result<RecordFile, Error>| record.as_ref().map_or(true, |record| !record.is_empty());
        let records = self.records()?.into_iter().filter(is_kept);
        Ok(records.map(|record| record.map(|record| record.name)).collect())
    }

    fn clean_up(&self) {
        self.clean_up_now_and_then();
    }

    fn now(&self) -> Duration {
        self.boot.now()
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let life = LifeFile::begin(&self.directory, token)?;
        let fds = vec![life.fd(), self.directory.raw_fd()];
        self.life = Some(Arc::new(life));
        Ok(fds)
    }

    fn end(&mut self, token: &Token) {
        if let Some(life) = self.life_of(token) {
            life.end(&self.directory);
            self.life = None;
        }
    }

    fn is_mine(&self, token: &Token) -> bool {
        self.life_of(token).is_some_and(|life| !life.has_ended())
    }

    fn give_up(&self, token: &Token) {
        if let Some(life) = self.life_of(token) {
            life.give_up();
        }
    }

    fn is_given_up(&self, token: &Token) -> bool {
        self.life_of(token).is_some_and(|life| life.is_given_up())
    }

    fn was_ended(&self, token: &Token) -> bool {
        self.life_of(token).is_some_and(|life| !life.has_name())
    }

    fn publish_lease(&self, token: &Token, until: Duration) -> bool {
        self.life_of(token).is_some_and(|life| life.say(until))
    }

    fn publish_heartbeat(&self, _: &Names, token: &Token, until: Duration) -> bool {
        self.publish_lease(token, until)
    }

    fn liveness(&self, token: &Token) -> Liveness<Watch> {
        liveness(&self.directory, token)
    }

    fn forget(&self, token: &Token) {
        self.directory.remove(&FileName::of(token.secret(), FileRole::Life)).ok();
    }

    fn sleep<'a>(
        &self,
        _: &Names,
        token: &Token,
        _: u64,
        others: impl Iterator<Item = &'a Watch>,
        limit: Duration,
    ) -> Result<bool, Error> {
        let mine = self.life_of(token).map(AsRef::as_ref);
        liveness::sleep(mine, others, limit).map_err(|errno| self.directory.error("wait for the lock", errno))
    }

    fn subscribe(&self, _: &[Name], token: &Token, _: Listener) -> Box<dyn Subscription> {
        Box::new(RequestSubscription {
            life: self.life_of(token).cloned(),
            directory: Arc::clone(&self.directory),
        })
    }
}

/// A subscription to what wakes the owner of a life file.
struct RequestSubscription {
    life: Option<Arc<LifeFile>>,
    directory: Arc<Directory>,
}

impl Subscription for RequestSubscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        liveness::sleep(self.life.as_deref(), std::iter::empty(), until.left())
            .map_err(|errno| self.directory.error("listen for news of the lock", errno))?;
        Ok(!until.passed())
    }
}

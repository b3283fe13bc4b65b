//! Keeps the locks of one machine without a server, for `file:/DIR`: records in a directory, each
//! changed under a file lock, and FIFOs by which the kernel reports the death of a process. The
//! records decide; a FIFO only carries news. The engine decides what the records say; this module
//! is its coordinator.
//!
//! To change a lock, it takes the mutex, reads the record ([`record`]) and writes it ([`draft`]).
//! The clock is read after the mutexes are taken and before the deadlines that holders and waiters
//! publish in their own files: see [`liveness`].
//!
//! A full disk ends no job: renewals and heartbeats need no room, and a record is written where an
//! earlier one was. If a release needs more room than that, it fails; the waiters see that the
//! holder is dead, and the first of them takes the lock when there is room.
//!
//! It does not lock out other machines that mount the directory too; see [`directory`].

mod boot;
mod cleanup;
mod directory;
mod draft;
mod liveness;
mod mutex;
pub mod probe;
mod record;
#[cfg(test)]
mod tests;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::store::engine::Engine;
use crate::store::engine::coordinator::{
    Batch, Coordinator, KeepAlive, Leases, OwnLiveness, Purpose, Reading, Snapshot, Watching, Written,
};
use crate::store::engine::stored_lock::{Change, StoredLock};
use crate::store::{Error, Listener, Subscription};
use boot::Boot;
use directory::{Directory, FileName, FileRole};
use draft::{Draft, OldFile};
use liveness::{LifeFile, Watch, look_for};
use mutex::Mutex;
use record::{Header, RecordFile};
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
            Error::Unfit(format!(
                "{shown}: a directory needs /proc/sys/kernel/random/boot_id to see a restart ({error}): mount /proc, with systemd by ProcSubset=all"
            ))
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

/// The engine's coordinator for a directory.
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

/// The files of the records that an operation has read.
#[derive(Debug)]
pub struct Seen {
    /// The offset of all times.
    offset: u64,
    /// In order of name.
    files: Vec<SeenFile>,
}

#[derive(Debug)]
struct SeenFile {
    /// None if the record is only read.
    mutex: Option<Mutex>,
    /// None if there is no record.
    file: Option<OldFile>,
}

impl Files {
    /// If the path leads to another directory now, moves there, because the other processes do.
    fn follow(&mut self) -> Result<(), Error> {
        if let Some(directory) = self.directory.successor()? {
            self.directory = Arc::new(directory);
        }
        Ok(())
    }

    /// The life file of `token`, if this process has it.
    fn life_of(&self, token: &Token) -> Option<&Arc<LifeFile>> {
        self.life.as_ref().filter(|life| life.token() == token)
    }

    /// All records in the directory. A file that has the name of a record and is none is skipped or
    /// returned as an error for that lock alone.
    fn records(&self) -> Result<Vec<Result<RecordFile, Error>>, Error> {
        let names =
            self.directory.names().map_err(|errno| self.directory.error("list the records", errno))?;
        let is_record = |(file, role): &(FileName, FileRole)| {
            *role == FileRole::Record && self.directory.has_file(file, draft::RECORD_MOST)
        };
        let read = |(file, _)| RecordFile::read(&self.directory, &file, None, Purpose::Look, &self.boot);
        Ok(names.into_iter().filter(is_record).map(read).collect())
    }

    /// Prepares the write of a changed record; None if there is and was nothing to keep.
    fn draft<'d>(
        &self,
        directory: &'d Directory,
        old: Option<OldFile>,
        change: Change,
        offset: u64,
    ) -> Result<Option<Draft<'d>>, Error> {
        let mut stored = change.after;
        let now = self.boot.time(offset);
        let garbled = |error: serde_json::Error| {
            Error::Garbled(format!("{}: a record cannot be written as JSON: {error}", directory.shown()))
        };
        let (body, ends) = stored.to_value(now).map_err(garbled)?;
        let file = FileName::of(&stored.name, FileRole::Record);
        if stored.is_empty() {
            return Ok(old.map(|_| Draft::removal(directory, file)));
        }
        let version = stored.version.saturating_add(1).max(now.0);
        let content = Header::new(version, offset, &self.boot).content(&body).map_err(garbled)?;
        Draft::write(directory, file, old, content, ends).map(Some)
    }

    /// Prepares all writes first, so that what can fail, above all on a full disk, fails before
    /// anything has changed. Then puts one after the other in place.
    fn write(&self, seen: &mut Seen, changes: Vec<Change>) -> Result<(), Error> {
        let mut drafts = Vec::with_capacity(1);
        for (seen_file, change) in seen.files.iter_mut().zip(changes).filter(|(_, change)| change.is_changed)
        {
            let draft = self.draft(&self.directory, seen_file.file.take(), change, seen.offset)?;
            drafts.extend(draft.map(|draft| (seen_file, draft)));
        }
        #[cfg_attr(not(test), expect(unused_variables, reason = "tests count the records"))]
        for (number, (seen_file, draft)) in drafts.into_iter().enumerate() {
            #[cfg(test)]
            if self.killed_before == Some(number) {
                return Err(Error::Unreachable("killed".into()));
            }
            let exists = draft.place()?;
            if let Some(mutex) = &mut seen_file.mutex {
                mutex.has_record = exists;
            }
        }
        Ok(())
    }
}

impl Coordinator for Files {
    type Seen = Seen;
    type Watch = Watch;

    const LEASES: Leases = Leases::Published;
    const CROWD: (u64, u32) = (50, 8);
    /// The directory remembers when it was last cleaned up.
    const CLEANS_UP_ONE_IN: u32 = 1;

    fn request_time(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.follow()?;
        let life = LifeFile::begin(&self.directory, token)?;
        let fds = vec![life.fd(), self.directory.raw_fd()];
        self.life = Some(Arc::new(life));
        Ok(fds)
    }

    fn own(&self, token: &Token) -> OwnLiveness {
        match self.life_of(token) {
            None => OwnLiveness::Unseen,
            Some(life) if life.has_name() => OwnLiveness::Seen,
            Some(_) => OwnLiveness::Ended,
        }
    }

    fn end(&mut self, token: &Token, _: Moment) {
        if let Some(life) = self.life_of(token) {
            life.end(&self.directory);
            self.life = None;
        }
    }

    /// Locks in order of name, so that no two processes wait for each other. All records are
    /// shifted to one time: that of the record with the latest offset.
    fn read(&mut self, reading: &Reading<'_>) -> Result<Snapshot<Seen>, Error> {
        self.follow()?;
        let is_locked = reading.purpose.is_change();
        let (mut files, mut records) = (Vec::new(), Vec::new());
        for name in reading.names {
            let lock = || Mutex::lock(&self.directory, name, reading.deadline);
            let mut mutex = is_locked.then(lock).transpose()?;
            let file = FileName::of(name, FileRole::Record);
            let mut record =
                RecordFile::read(&self.directory, &file, Some(name), reading.purpose, &self.boot)?;
            if let Some(mutex) = &mut mutex {
                mutex.has_record = record.file.is_some();
            }
            files.push(SeenFile { mutex, file: record.file.take() });
            records.push(record);
        }
        let offset = records.iter().map(|record| record.offset).max().unwrap_or(self.boot.offset);
        records.iter_mut().for_each(|record| record.lift(offset));
        let now = self.boot.time(offset);
        records.iter_mut().for_each(|record| record.catch_up(&self.directory, now, reading));
        let locks = records.into_iter().map(|record| record.stored).collect();
        Ok(Snapshot { locks, now, seen: Seen { offset, files } })
    }

    fn is_dead(&mut self, _: &Seen, token: &Token) -> bool {
        matches!(look_for(&self.directory, token), Watching::Ended)
    }

    /// Wakes after all mutexes are released, because a token that is woken asks for the lock at
    /// once.
    fn commit(&mut self, mut seen: Seen, batch: Batch<'_>) -> Result<Written, Error> {
        self.write(&mut seen, batch.changes)?;
        drop(seen);
        for token in batch.woken {
            if let Watching::Watched(watch) = look_for(&self.directory, token) {
                watch.wake();
            }
        }
        Ok(Written::Yes)
    }

    fn keep_alive(&mut self, sign: &KeepAlive<'_>, _: Moment) -> Result<bool, Error> {
        Ok(self.life_of(sign.token).is_some_and(|life| life.publish(self.boot.machine_time(sign.until))))
    }

    fn watch(&mut self, token: &Token, _: Moment) -> Watching<Watch> {
        look_for(&self.directory, token)
    }

    fn wait(
        &mut self,
        _: &Names,
        token: &Token,
        _: u64,
        watches: &mut dyn Iterator<Item = &Watch>,
        until: Moment,
    ) -> Result<bool, Error> {
        let mine = self.life_of(token).map(AsRef::as_ref);
        liveness::sleep(mine, watches, until)
            .map_err(|errno| self.directory.error("wait for the lock", errno))
    }

    fn subscribe(&self, _: &[Name], token: &Token, _: Listener) -> Box<dyn Subscription> {
        Box::new(RequestSubscription {
            life: self.life_of(token).cloned(),
            directory: Arc::clone(&self.directory),
        })
    }

    fn list(&mut self, _: Moment) -> Result<Vec<Result<String, Error>>, Error> {
        self.follow()?;
        self.clean();
        let records = self.records()?.into_iter().map(|record| record.map(|record| record.stored));
        let is_kept = |stored: &Result<StoredLock, Error>| !stored.as_ref().is_ok_and(StoredLock::is_empty);
        Ok(records.filter(is_kept).map(|stored| stored.map(|stored| stored.name)).collect())
    }

    fn clean_up(&mut self, _: Moment) {
        self.clean_up_now_and_then();
    }
}

/// A subscription to what wakes the owner of a life file.
struct RequestSubscription {
    life: Option<Arc<LifeFile>>,
    directory: Arc<Directory>,
}

impl Subscription for RequestSubscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        liveness::sleep(self.life.as_deref(), &mut std::iter::empty(), until)
            .map_err(|errno| self.directory.error("listen for news of the lock", errno))?;
        Ok(!until.passed())
    }
}

//! Tests that the file store keeps the lock rules among several processes. Each `FileStore` stands
//! for one process: dropping it closes its life file, as the kernel does for a dead process, and a
//! clone stands for its guard.

use super::*;
use crate::clock::simulated::{self, Clock};
use crate::exit::Ended;
use crate::lock::{Fence, Key, Mode, Name, Names, Owner};
use crate::rules::{
    Acquired, Ask, End, Left, Outcome, Patience, Ran, Renew, Renewal, Revoke, Revoked, State, Terms, When,
};
use crate::store::{Store as _, View, Which};
use anyhow::{Context as _, Result, ensure};
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

mod crashes;
mod exclusion;
mod histories;
mod holders;
mod leftovers;
mod lives;
mod places;
mod records;
mod rules;
mod several;
mod strangers;
mod turns;

const TTL: Duration = Duration::from_secs(30);
/// Longer than any wake-up in a test takes, shorter than any lease.
const SOON: Duration = Duration::from_secs(10);

thread_local! {
    static CLOCK: Cell<Reads> = const { Cell::new(Reads::Ahead(Duration::ZERO)) };
}

/// The clock of the thread of a test.
#[derive(Debug, Clone, Copy)]
enum Reads {
    /// Ahead of the machine's.
    Ahead(Duration),
    /// Stands still at this time since boot.
    Fixed(Duration),
}

struct TestClock;

impl Clock for TestClock {
    fn now(&self) -> Moment {
        match CLOCK.get() {
            Reads::Ahead(ahead) => {
                let now = clock_gettime(ClockId::Boottime);
                let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.try_into().unwrap_or(0));
                Moment::from_boot(now + ahead)
            }
            Reads::Fixed(now) => Moment::from_boot(now),
        }
    }

    fn sleep_until(&self, at: Moment) {
        thread::sleep(at.since(self.now()));
    }
}

/// Makes this thread's clock go ahead of the machine's.
fn set_ahead(span: Duration) {
    CLOCK.set(Reads::Ahead(span));
    simulated::set(Rc::new(TestClock));
}

/// Makes this thread's clock stand still.
fn set_fixed(now: Duration) {
    CLOCK.set(Reads::Fixed(now));
    simulated::set(Rc::new(TestClock));
}

impl FileStore {
    /// The locks under a prefix, if no record is damaged.
    fn all(&mut self, prefix: &str) -> Result<Vec<Name>, Error> {
        let found = self.find(prefix, Which::Known)?;
        found.missing.into_iter().next().map_or(Ok(found.names), Err)
    }
}

fn names_of(keys: &[&str]) -> Result<Names> {
    let names = keys.iter().map(|key| named(key)).collect::<Result<Vec<_>>>()?;
    let mut names = names.into_iter();
    Ok(Names::new(names.next().context("no key")?, names))
}

struct Place {
    directory: tempfile::TempDir,
}

/// A process with its token and the locks that it asks for.
struct Process {
    store: FileStore,
    token: Token,
    names: Names,
    mode: Mode,
}

impl Place {
    fn new() -> Result<Self> {
        set_ahead(Duration::ZERO);
        Ok(Self { directory: tempfile::tempdir()? })
    }

    fn store(&self) -> Result<FileStore> {
        Ok(FileStore::open(self.directory.path(), "file:/locks")?)
    }

    fn process(&self) -> Result<Process> {
        let (mut store, token) = (self.store()?, Token::random()?);
        store.prepare(&token)?;
        Process::of(store, token)
    }

    /// A process that holds the lock.
    fn holder(&self) -> Result<Process> {
        let mut holder = self.process()?;
        holder.granted()?;
        Ok(holder)
    }

    /// A holder of the lock and a waiter for it.
    fn holder_and_waiter(&self) -> Result<(Process, Process)> {
        let (holder, mut waiter) = (self.holder()?, self.process()?);
        waiter.waits()?;
        Ok((holder, waiter))
    }

    /// Processes that will ask for the lock.
    fn many(&self, count: usize, mode: Mode) -> Result<Vec<Process>> {
        (0..count).map(|_| self.wants(&["nightly"], mode)).collect()
    }

    /// A process that will ask for these locks.
    fn wants(&self, keys: &[&str], mode: Mode) -> Result<Process> {
        Ok(Process { names: names_of(keys)?, mode, ..self.process()? })
    }

    fn path(&self, kind: FileRole) -> Result<PathBuf> {
        self.path_of("nightly", kind)
    }

    fn path_of(&self, key: &str, kind: FileRole) -> Result<PathBuf> {
        Ok(self.directory.path().join(FileName::of(named(key)?.as_str(), kind).as_str()))
    }

    /// The path of the process's life file.
    fn life_of(&self, process: &Process) -> PathBuf {
        self.directory.path().join(FileName::of(process.token.secret(), FileRole::Life).as_str())
    }

    /// So many waiters for this key that its record is longer than a page.
    fn crowd(&self, key: &str) -> Result<Vec<Process>> {
        let mut crowd = (0..20).map(|_| self.wants(&[key], Mode::Exclusive)).collect::<Result<Vec<_>>>()?;
        crowd.iter_mut().try_for_each(|waiter| waiter.waits().map(drop))?;
        ensure!(self.record(key)?.len() > 4096);
        Ok(crowd)
    }

    /// Lets no long record be written for this key.
    fn block(&self, key: &str) -> Result<()> {
        let draft = self.path_of(key, FileRole::Draft)?;
        std::fs::remove_file(&draft)?;
        Ok(std::fs::create_dir(draft)?)
    }

    /// The record of this key, without padding.
    fn record(&self, key: &str) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.path_of(key, FileRole::Record)?)?.trim_ascii_end().to_vec())
    }

    /// Changes the record of this key by hand.
    fn forge(&self, key: &str, change: impl FnOnce(&mut RecordFile)) -> Result<()> {
        let files = self.store()?.coordinator;
        let file = FileName::of(named(key)?.as_str(), FileRole::Record);
        let mut record = RecordFile::read(&files.directory, &file, None, Purpose::Change, &files.boot)?;
        change(&mut record);
        let (body, _) = record.stored.to_value(files.boot.time(record.offset))?;
        let content = Header::new(record.stored.version, record.offset, &files.boot).content(&body)?;
        Ok(std::fs::write(self.path_of(key, FileRole::Record)?, content)?)
    }

    fn view(&self, key: &str) -> Result<View> {
        Ok(self.store()?.inspect(&named(key)?, by())?)
    }

    /// The suffixes of all files in the directory.
    fn files(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.directory.path())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            files.push(name.rsplit('.').next().unwrap_or_default().to_owned());
        }
        files.sort();
        Ok(files)
    }
}

fn name() -> Result<Name> {
    named("nightly")
}

fn named(key: &str) -> Result<Name> {
    Key::new(key).and_then(|key| Name::new("dlock:", &key)).map_err(anyhow::Error::msg)
}

fn by() -> Moment {
    Moment::now().after(SOON)
}

fn ended() -> End {
    End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false, fence: None, pause: None }
}

impl Process {
    fn of(store: FileStore, token: Token) -> Result<Self> {
        Ok(Self { store, token, names: name()?.into(), mode: Mode::Exclusive })
    }

    fn ask(&self, patience: Patience) -> Ask {
        let owner = Owner { host: "h".into(), ..Owner::default() };
        Ask {
            token: self.token.clone(),
            mode: self.mode,
            ttl: TTL,
            min_hold: Duration::ZERO,
            owner,
            patience,
            terms: Terms::default(),
            waited: Duration::ZERO,
            has_waited: false,
        }
    }

    fn acquire(&mut self, patience: Patience) -> Result<Acquired> {
        Ok(self.store.acquire(&self.names, &self.ask(patience), by())?)
    }

    /// Waits for the lock. If another test has just forked a child, the child has this process's
    /// files open until its exec, so a dead process may seem alive for a moment.
    fn granted_soon(&mut self) -> Result<u64> {
        let deadline = Moment::now().after(SOON);
        while !deadline.passed() && !matches!(self.acquire(Patience::Queue)?, Acquired::Granted(_)) {
            self.store.sleep(&self.names, &self.token, Moment::now().after(Duration::from_millis(10)))?;
        }
        self.granted()
    }

    fn granted(&mut self) -> Result<u64> {
        match self.acquire(Patience::Queue)? {
            Acquired::Granted(grant) => Ok(grant.fence.0),
            other => anyhow::bail!("not granted: {other:?}"),
        }
    }

    fn waits(&mut self) -> Result<u64> {
        match self.acquire(Patience::Queue)? {
            Acquired::Waiting(waiting) => Ok(waiting.ahead),
            other => anyhow::bail!("does not wait: {other:?}"),
        }
    }

    /// Sleeps, and fails if nothing woke it.
    fn woken(&mut self) -> Result<()> {
        let until = Moment::now().after(SOON);
        self.store.sleep(&self.names, &self.token, until)?;
        ensure!(!until.passed(), "slept until the end");
        Ok(())
    }

    /// Is woken, and granted the lock.
    fn served(&mut self) -> Result<u64> {
        self.woken()?;
        self.granted()
    }

    /// Whether a sleep ends early.
    fn is_awake(&mut self) -> Result<bool> {
        let until = Moment::now().after(Duration::from_millis(30));
        self.store.sleep(&self.names, &self.token, until)?;
        Ok(!until.passed())
    }

    fn renew(&mut self) -> Result<Renewal> {
        Ok(self.store.renew(
            &self.names,
            &Renew { token: &self.token, fence: None, ttl: TTL, rest: None },
            by(),
        )?)
    }

    fn leave(&mut self) -> Result<Left> {
        Ok(self.store.leave(&self.names, &self.token, &ended(), by())?)
    }

    fn die(self) {}
}

/// Runs `work` in this many threads, each with its number.
fn all_at_once(count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    results.into_iter().try_for_each(|result| result.map_err(|_| anyhow::anyhow!("a thread panicked"))?)
}

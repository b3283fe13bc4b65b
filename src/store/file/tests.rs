//! Tests that the file store keeps the lock rules among several processes. Each `FileStore` stands
//! for one process: dropping it closes its life file, as the kernel does for a dead process, and a
//! clone stands for its guard.

use super::cleanup::CLEANS_UP_EVERY;
use super::*;
use crate::clock::simulated::{self, Clock};
use crate::exit::Ended;
use crate::lock::{Fence, Key, Mode, Name, Names, Owner};
use crate::rules::{
    Acquired, Ask, End, HEARTBEAT, HISTORY_KEPT, Left, Outcome, Patience, Ran, Renewal, Revoke, Revoked,
    SILENCE, State, TICKET_KEPT, Terms, When,
};
use crate::store::file::mutex::Mutex;
use crate::store::{Store as _, View, Which};
use anyhow::{Context as _, Result, ensure};
use proptest::prelude::*;
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Mutex as Shared;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::SystemTime;

mod crashes;
mod lives;
mod rules;
mod several;
mod strangers;

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
        let (body, _) = record.kept.to_value(time(record.offset))?;
        let content = Header::new(record.kept.version, record.offset, &files.boot).content(&body)?;
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
    End { ran: Ran::Yes, job: Some(Ended::Code(0)), once_per: false }
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
        Ok(self.store.renew(&self.names, &self.token, TTL, by())?)
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

#[test]
fn one_holds_and_the_others_are_busy() -> Result<()> {
    let place = Place::new()?;
    let (mut one, mut other) = (place.process()?, place.process()?);
    let first = one.granted()?;
    assert_eq!(one.granted()?, first, "asking again is the same grant");
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)));
    assert_eq!(one.renew()?, Renewal::Renewed);
    assert_eq!(one.leave()?, Left::Released { cooling: Duration::ZERO });
    let mut third = place.process()?;
    assert!(third.granted()? > first);
    assert_eq!(one.renew()?, Renewal::NotHeld);
    Ok(())
}

#[test]
fn waiters_are_woken_one_by_one_in_the_order_they_came() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.process()?;
    let mut fence = holder.granted()?;
    let mut waiters = Vec::new();
    for ahead in 0..4 {
        let mut waiter = place.process()?;
        assert_eq!(waiter.waits()?, ahead);
        waiters.push(waiter);
    }
    for mut next in waiters {
        assert!(!next.is_awake()?);
        assert!(matches!(holder.leave()?, Left::Released { .. }));
        next.woken()?;
        let new = next.granted()?;
        assert!(new > fence);
        (holder, fence) = (next, new);
    }
    Ok(())
}

#[test]
fn a_release_wakes_the_head_while_the_guard_of_the_holder_lives() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = place.holder_and_waiter()?;
    let _guard = holder.store.clone();
    holder.leave()?;
    waiter.served()?;
    Ok(())
}

#[test]
fn the_guard_releases_what_its_dlock_held() -> Result<()> {
    let place = Place::new()?;
    let (holder, mut waiter) = place.holder_and_waiter()?;
    let mut guard = holder.store.clone();
    let token = holder.token.clone();
    holder.die();
    assert!(!waiter.is_awake()?, "as long as the guard lives, the job may");
    assert!(matches!(guard.leave(&name()?.into(), &token, &ended(), by())?, Left::Released { .. }));
    waiter.served()?;
    Ok(())
}

#[test]
fn a_death_is_seen_when_the_last_process_is_gone() -> Result<()> {
    let place = Place::new()?;
    let (mut store, token) = (place.store()?, Token::random()?);
    let fd = store.prepare(&token)?[0];
    let life = File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"))?;
    let mut holder = Process::of(store, token)?;
    let mut waiter = place.process()?;
    holder.granted()?;
    waiter.waits()?;
    let mut child = std::process::Command::new("sleep").arg("60").stdin(life).spawn()?;
    holder.die();
    assert!(!waiter.is_awake()?);
    waiter.waits()?;
    child.kill()?;
    child.wait()?;
    waiter.served()?;
    let view = waiter.store.inspect(&name()?, by())?;
    assert_eq!(view.log.iter().map(|end| end.outcome).collect::<Vec<_>>(), [Outcome::Expired]);
    assert_eq!(place.files()?.iter().filter(|file| *file == "life").count(), 1, "the waiter's own");
    Ok(())
}

#[test]
fn dead_waiters_cost_no_time() -> Result<()> {
    let place = Place::new()?;
    let holder = place.holder()?;
    let mut crowd = Vec::new();
    for _ in 0..20 {
        let mut waiter = place.process()?;
        waiter.waits()?;
        crowd.push(waiter);
    }
    let mut last = place.process()?;
    assert_eq!(last.waits()?, 20);
    crowd.into_iter().for_each(Process::die);
    last.woken()?;
    assert_eq!(last.waits()?, 0, "the dead before it are reaped one after the other");
    holder.die();
    last.served()?;
    Ok(())
}

#[test]
fn a_dead_waiter_is_skipped_by_a_grant() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut dead, mut next) = (place.process()?, place.process()?, place.process()?);
    holder.granted()?;
    dead.waits()?;
    next.waits()?;
    dead.die();
    holder.leave()?;
    next.served()?;
    Ok(())
}

/// The head is stale and the holder's lease is over, and a newcomer is the first to ask. The waiter
/// behind the head must be granted the lock all the same.
#[test]
fn the_waiter_behind_a_stale_head_keeps_its_turn() -> Result<()> {
    let (place, start) = (Place::new()?, Moment::now().since_boot());
    let mut holder = place.process()?;
    holder.granted()?;
    let mut queue = (0..4).map(|_| place.process()).collect::<Result<Vec<_>>>()?;
    let beat = |who: usize, process: &mut Process, seconds: u64| -> Result<Acquired> {
        set_fixed(start + Duration::from_secs(seconds));
        let terms = Terms { replaces: who == 2, ..Terms::default() };
        let ask = Ask { terms, ..process.ask(Patience::Queue) };
        Ok(process.store.acquire(&process.names, &ask, by())?)
    };
    for seconds in [0, 4, 8, 12, 16, 20, 24, 26, 29] {
        for (who, waiter) in queue.iter_mut().enumerate().filter(|(who, _)| *who > 0 || seconds < 29) {
            let answer = beat(who, waiter, seconds)?;
            ensure!(matches!(answer, Acquired::Waiting(_)), "{who} at {seconds} s: {answer:?}");
        }
    }
    let late = TTL.as_secs() + 2;
    let mut newcomer = place.process()?;
    beat(4, &mut newcomer, late)?;
    for (who, waiter) in queue.iter_mut().enumerate().skip(1).rev() {
        let answer = beat(who, waiter, late)?;
        assert_eq!(matches!(answer, Acquired::Granted(_)), who == 1, "{who}: {answer:?}");
    }
    Ok(())
}

/// The same if only one of several waiters is not stale.
#[test]
fn a_newcomer_overtakes_no_waiter_that_is_heard() -> Result<()> {
    let (place, start) = (Place::new()?, Moment::now().since_boot());
    let mut holder = place.process()?;
    holder.granted()?;
    let mut queue = (0..3).map(|_| place.process()).collect::<Result<Vec<_>>>()?;
    let beat = |process: &mut Process, seconds: u64| -> Result<Acquired> {
        set_fixed(start + Duration::from_secs(seconds));
        Ok(process.store.acquire(&process.names, &process.ask(Patience::Queue), by())?)
    };
    for seconds in [0, 4, 8, 12, 16, 20, 24, 26, 29] {
        for waiter in queue.iter_mut().skip(usize::from(seconds > 26)).take(if seconds > 26 { 1 } else { 3 })
        {
            let answer = beat(waiter, seconds)?;
            ensure!(matches!(answer, Acquired::Waiting(_)), "at {seconds} s: {answer:?}");
        }
    }
    let late = TTL.as_secs() + 2;
    let newcomer = beat(&mut place.process()?, late)?;
    ensure!(matches!(newcomer, Acquired::Waiting(_)), "{newcomer:?}");
    let next = beat(&mut queue[1], late)?;
    ensure!(matches!(next, Acquired::Granted(_)), "{next:?}");
    Ok(())
}

#[test]
fn a_dead_waiter_behind_a_stale_head_is_not_granted_the_lock() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut silent) = (place.process()?, place.process()?);
    let (mut dead, mut next) = (place.process()?, place.process()?);
    holder.granted()?;
    silent.waits()?;
    for ahead in [2, 4] {
        set_ahead(Duration::from_secs(ahead));
        for process in [&mut dead, &mut next] {
            process.waits()?;
        }
    }
    dead.die();
    set_ahead(Duration::from_secs(6));
    holder.leave()?;
    next.served()?;
    Ok(())
}

#[test]
fn a_waiter_that_leaves_frees_its_place() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut middle, mut last) = (place.process()?, place.process()?, place.process()?);
    holder.granted()?;
    middle.waits()?;
    last.waits()?;
    let _guard = middle.store.clone();
    assert_eq!(middle.leave()?, Left::Dequeued);
    last.woken()?;
    assert_eq!(last.waits()?, 0);
    holder.die();
    last.served()?;
    Ok(())
}

#[test]
fn the_lease_of_a_live_holder_ends_too() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut other) = (place.process()?, place.process()?);
    holder.granted()?;
    set_ahead(TTL + Duration::from_secs(1));
    other.granted()?;
    assert_eq!(holder.renew()?, Renewal::NotHeld);
    Ok(())
}

#[test]
fn a_revoked_hold_wakes_the_head() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = place.holder_and_waiter()?;
    let revoke = Revoke { when: When::Now, by: Owner::default() };
    assert!(matches!(place.store()?.revoke(&name()?, &revoke, by())?, Revoked::Holds { .. }));
    waiter.served()?;
    assert_ne!(holder.renew()?, Renewal::Renewed);
    assert_eq!(holder.acquire(Patience::Queue)?, Acquired::TokenEnded);
    Ok(())
}

#[test]
fn the_rest_of_a_min_hold_remains_and_the_head_is_told() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = (place.process()?, place.process()?);
    let ask = Ask { min_hold: Duration::from_secs(5), ..holder.ask(Patience::None) };
    ensure!(matches!(holder.store.acquire(&name()?.into(), &ask, by())?, Acquired::Granted(_)));
    waiter.waits()?;
    ensure!(matches!(holder.leave()?, Left::Released { cooling } if !cooling.is_zero()));
    waiter.woken()?;
    waiter.waits()?;
    assert_eq!(waiter.store.inspect(&name()?, by())?.state, State::Cooling);
    set_ahead(Duration::from_secs(5));
    waiter.granted()?;
    Ok(())
}

#[test]
fn another_boot_ends_the_hold_and_keeps_the_history() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, mut waiter) = (place.process()?, place.process()?);
    let fence = holder.granted()?;
    waiter.waits()?;
    let mut after = place.process()?;
    after.store.coordinator.boot.id = "another".into();
    let view = after.store.inspect(&name()?, by())?;
    assert_eq!((view.state, view.fence.map(|fence| fence.0)), (State::Free, Some(fence)));
    assert!(view.waiters.is_empty());
    assert_eq!(view.log.iter().map(|end| end.outcome).collect::<Vec<_>>(), [Outcome::Expired]);
    assert!(after.granted()? > fence);
    Ok(())
}

#[test]
fn inspect_leaves_out_the_dead_and_writes_nothing() -> Result<()> {
    let place = Place::new()?;
    assert_eq!(place.store()?.inspect(&name()?, by())?.state, State::Free);
    assert!(place.files()?.is_empty());
    let holder = place.holder()?;
    assert_eq!(place.store()?.inspect(&name()?, by())?.state, State::Held);
    holder.die();
    let before = std::fs::read(place.path(FileRole::Record)?)?;
    let view = place.store()?.inspect(&name()?, by())?;
    assert_eq!((view.state, view.log.len()), (State::Free, 1));
    assert_eq!(std::fs::read(place.path(FileRole::Record)?)?, before);
    Ok(())
}

#[test]
fn a_file_that_is_no_record_is_left_alone() -> Result<()> {
    let place = Place::new()?;
    place.holder()?.leave()?;
    let record = place.record("nightly")?;
    let cut = &record[..record.len() - 1];
    let other: &[u8] = b"{\"format\":2,\"anything\":[]}";
    for bytes in [&b"{\"format\":2,"[..], b"", b"\0\0\0\0", b"hello", other, cut] {
        let place = Place::new()?;
        std::fs::write(place.path(FileRole::Record)?, bytes)?;
        let mut process = place.process()?;
        let Err(error) = process.store.acquire(&name()?.into(), &process.ask(Patience::None), by()) else {
            anyhow::bail!("{bytes:?} was taken for a record")
        };
        assert!(matches!(error, Error::Garbled(_)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("file:/locks: ") && !text.contains('\n'), "{text}");
        assert_eq!(std::fs::read(place.path(FileRole::Record)?)?, bytes);
        assert!(process.store.inspect(&name()?, by()).is_err());
        assert!(process.store.all("dlock:").is_err());
    }
    Ok(())
}

/// As if the machine had crashed before all of the file was on the disk.
#[test]
fn a_record_that_was_cut_off_before_this_boot_counts_as_none() -> Result<()> {
    let place = Place::new()?;
    place.holder()?.leave()?;
    let record = place.record("nightly")?;
    for (bytes, is_none) in [(&b""[..], true), (b"\0\0", true), (&record[..200], true), (b"hello", false)] {
        std::fs::write(place.path(FileRole::Record)?, bytes)?;
        let mut process = place.process()?;
        process.store.coordinator.boot.offset += 1_000_000_000_000;
        assert_eq!(process.acquire(Patience::None).is_ok(), is_none, "{bytes:?}");
    }
    Ok(())
}

#[test]
fn the_record_of_another_lock_is_refused() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    process.granted()?;
    let other = place.path_of("other", FileRole::Record)?;
    std::fs::copy(place.path(FileRole::Record)?, other)?;
    let error = process.store.inspect(&named("other")?, by()).err().context("taken")?;
    assert!(matches!(error, Error::Garbled(_)), "{error}");
    Ok(())
}

#[test]
fn a_record_that_cannot_be_written_stays_as_it_was() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    let _crowd = place.crowd("nightly")?;
    let (before, mut other) = (place.record("nightly")?, place.process()?);
    place.block("nightly")?;
    assert!(holder.leave().is_err());
    assert_eq!(place.record("nightly")?, before);
    std::fs::remove_dir(place.path(FileRole::Draft)?)?;
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)));
    assert!(matches!(holder.leave()?, Left::Released { .. }));
    Ok(())
}

/// In both ways of writing: over the old record, and beside it.
#[test]
fn a_reader_without_the_mutex_never_sees_half_a_record() -> Result<()> {
    let place = Place::new()?;
    let mut holder = place.holder()?;
    for is_long in [false, true] {
        let crowd = if is_long { place.crowd("nightly")? } else { Vec::new() };
        let done = AtomicU32::new(0);
        let mut writer = || -> Result<()> {
            for _ in 0..300 {
                let busy = place.process()?.acquire(Patience::None)?;
                ensure!(matches!(busy, Acquired::Busy(_)));
                ensure!(holder.store.renew(&holder.names, &holder.token, TTL, by())? == Renewal::Renewed);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<()> {
                let mut store = place.store()?;
                while done.load(Ordering::SeqCst) == 0 {
                    let view = store.inspect(&name()?, by())?;
                    ensure!((view.state, view.waiters.len()) == (State::Held, crowd.len()));
                }
                Ok(())
            });
            let written = writer();
            done.store(1, Ordering::SeqCst);
            reader.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            written
        })?;
    }
    Ok(())
}

#[test]
fn the_draft_of_a_killed_writer_blocks_nobody() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    std::fs::write(place.path(FileRole::Draft)?, "{\"form")?;
    let fence = process.granted()?;
    std::fs::write(place.path(FileRole::Draft)?, "{\"form")?;
    assert_eq!(process.granted()?, fence);
    let long_ago = SystemTime::now() - CLEANS_UP_EVERY * 2;
    File::options().write(true).open(place.path(FileRole::Draft)?)?.set_modified(long_ago)?;
    place.store()?.all("dlock:")?;
    assert!(place.path(FileRole::Draft)?.exists(), "a writer may be about to exchange it with the record");
    std::fs::remove_file(place.path(FileRole::Record)?)?;
    place.store()?.all("dlock:")?;
    assert!(!place.path(FileRole::Draft)?.exists());
    Ok(())
}

/// Needs the right to mount; without it the test is skipped.
#[test]
fn a_full_disk_is_reported_as_such() -> Result<()> {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            std::process::Command::new("umount").arg(self.0.path()).status().ok();
        }
    }
    let directory = tempfile::tempdir()?;
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "dlock-test"]).arg(directory.path());
    if !mount.output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let mounted = Mounted(directory);
    let (mut store, token) = (FileStore::open(mounted.0.path(), "file:/locks")?, Token::random()?);
    store.prepare(&token)?;
    let mut process = Process::of(store, token)?;
    let fence = process.granted()?;
    let filler = mounted.0.path().join("filler");
    std::fs::write(&filler, vec![b'x'; 1 << 20]).err().context("the disk did not fill up")?;
    assert_eq!(process.renew()?, Renewal::Renewed);
    let mut other = Process::of(FileStore::open(mounted.0.path(), "file:/locks")?, Token::random()?)?;
    other.names = named("other")?.into();
    let error = other.acquire(Patience::None).err().context("no error")?.to_string();
    assert!(error.contains("make room"), "{error}");
    assert!(matches!(process.leave()?, Left::Released { .. }), "the record is written over the old one");
    std::fs::remove_file(filler)?;
    other.names = name()?.into();
    assert!(other.granted()? > fence);
    Ok(())
}

#[test]
fn a_stopped_process_with_the_mutex_blocks_only_until_the_deadline() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    process.granted()?;
    let mutex = File::open(place.path(FileRole::Mutex)?)?;
    flock(&mutex, FlockOperation::LockExclusive)?;
    assert_eq!(process.renew()?, Renewal::Renewed);
    let mut other = place.process()?;
    let by = Moment::now().after(Duration::from_millis(200));
    let error = other.store.acquire(&other.names, &other.ask(Patience::None), by).err().context("taken")?;
    assert!(by.passed() && by.after(Duration::from_secs(5)) > Moment::now());
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(process.store.inspect(&name()?, by).is_ok(), "reading needs no mutex");
    drop(mutex);
    assert!(matches!(other.acquire(Patience::None)?, Acquired::Busy(_)));
    Ok(())
}

#[test]
fn a_mutex_that_is_removed_and_recreated_still_excludes() -> Result<()> {
    let place = Place::new()?;
    let store = place.store()?;
    let inside = AtomicU32::new(0);
    let rounds = || -> Result<()> {
        for _ in 0..300 {
            let mut mutex = Mutex::lock(&store.coordinator.directory, name()?.as_str(), by())?;
            ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two at once");
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            mutex.has_record = false;
        }
        Ok(())
    };
    all_at_once(4, |_| rounds())
}

#[test]
fn nothing_leaks() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    assert_eq!(process.renew()?, Renewal::NotHeld);
    let revoke = Revoke { when: When::Safe, by: Owner::default() };
    assert_eq!(process.store.revoke(&name()?, &revoke, by())?, Revoked::Free);
    assert_eq!(place.files()?, ["life"]);
    process.granted()?;
    let mut busy = place.process()?;
    busy.acquire(Patience::None)?;
    let mut waiter = place.process()?;
    waiter.waits()?;
    waiter.leave()?;
    process.leave()?;
    assert_eq!(place.files()?, ["ends", "json", "mutex", "swept"]);

    // A process that was killed before it asked.
    place.process()?.die();
    assert_eq!(place.store()?.all("dlock:")?, [name()?]);
    assert_eq!(place.files()?, ["ends", "json", "mutex", "swept"]);

    let past = SystemTime::now() - HISTORY_KEPT - CLEANS_UP_EVERY;
    File::options().write(true).open(place.path(FileRole::Record)?)?.set_modified(past)?;
    let mut later = place.store()?;
    set_ahead(HISTORY_KEPT + CLEANS_UP_EVERY);
    assert!(later.all("dlock:")?.is_empty());
    assert_eq!(place.files()?, ["swept"]);
    Ok(())
}

/// A waiter became stale, lost its place and kept its ticket, and then died. The record keeps it
/// until more waiters come.
#[test]
fn the_life_of_one_whose_ticket_is_void_is_removed() -> Result<()> {
    let place = Place::new()?;
    let (mut holder, waiter) = place.holder_and_waiter()?;
    let mut next = place.process()?;
    let mut passed = Duration::ZERO;
    while passed <= SILENCE {
        set_ahead(passed);
        next.waits()?;
        passed += HEARTBEAT;
    }
    set_ahead(passed);
    holder.leave()?;
    set_ahead(passed);
    next.granted()?;
    next.leave()?;
    waiter.die();
    let mut later = place.store()?;
    for (ahead, files) in [
        (passed, &["ends", "json", "life", "mutex", "swept"][..]),
        (passed + TICKET_KEPT, &["ends", "json", "mutex", "swept"]),
    ] {
        set_ahead(ahead);
        later.all("dlock:")?;
        assert_eq!(place.files()?, files);
    }
    Ok(())
}

#[test]
fn released_tokens_are_not_kept_for_ever() -> Result<()> {
    let place = Place::new()?;
    let mut sizes = Vec::new();
    for _ in 0..100 {
        let mut process = place.process()?;
        process.granted()?;
        process.leave()?;
        sizes.push(place.record("nightly")?.len());
    }
    assert!(sizes[99] < sizes[70] + 100, "{sizes:?}");
    let view = place.store()?.inspect(&name()?, by())?;
    assert_eq!(view.log.len(), 64);
    let ends = std::fs::read(place.path(FileRole::Ends)?)?;
    assert_eq!(ends.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(), 64 + 36);
    assert!(view.log.is_sorted_by_key(|end| std::cmp::Reverse(end.fence)));
    Ok(())
}

/// The guard of a waiter that was asked to end releases the token, and another process writes the
/// record, while a request of the waiter is still on its way. The guard is another process, so the
/// waiter's `LifeFile` does not know of it.
#[test]
fn a_token_that_the_guard_released_is_refused_by_its_dlock() -> Result<()> {
    let place = Place::new()?;
    let (_holder, mut waiter) = place.holder_and_waiter()?;
    Process::of(place.store()?, waiter.token.clone())?.leave()?;
    std::fs::remove_file(place.life_of(&waiter))?;
    place.process()?.waits()?;
    assert_eq!(waiter.acquire(Patience::Queue)?, Acquired::TokenEnded);
    Ok(())
}

#[test]
fn a_token_that_one_thread_released_is_refused_in_another() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    let mut thread = Process::of(process.store.clone(), process.token.clone())?;
    process.leave()?;
    // The life file is gone, so the record forgets the token. This process must not.
    place.process()?.granted()?;
    assert_eq!(thread.acquire(Patience::Queue)?, Acquired::TokenEnded);
    Ok(())
}

#[test]
fn find_lists_the_locks_of_a_prefix() -> Result<()> {
    let place = Place::new()?;
    let mut process = place.process()?;
    for key in ["b", "a", "ä/c"] {
        let ask = process.ask(Patience::None);
        process.store.acquire(&named(key)?.into(), &ask, by())?;
    }
    let key = Key::new("x").map_err(anyhow::Error::msg)?;
    let elsewhere = Name::new("other:", &key).map_err(anyhow::Error::msg)?;
    let ask = process.ask(Patience::None);
    process.store.acquire(&elsewhere.clone().into(), &ask, by())?;
    assert_eq!(process.store.all("dlock:")?, [named("a")?, named("b")?, named("ä/c")?]);
    assert_eq!(process.store.all("other:")?, [elsewhere]);
    assert_eq!(process.store.all("")?.len(), 4);
    Ok(())
}

#[test]
fn a_place_that_cannot_hold_locks_is_refused() -> Result<()> {
    let place = Place::new()?;
    let file = place.directory.path().join("file");
    std::fs::write(&file, "")?;
    for path in [Path::new("relative"), &file, &file.join("below")] {
        let error = FileStore::open(path, "file:/there").err().context("it was taken")?;
        assert!(matches!(error, Error::Unfit(_)), "{error}");
        assert!(error.to_string().starts_with("file:/there"), "{error}");
    }
    let new = place.directory.path().join("new/store");
    FileStore::open(&new, "file:/there")?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&new)?.permissions());
    assert_eq!(mode & 0o777, 0o700);
    Ok(())
}

#[test]
fn a_crowd_never_holds_together() -> Result<()> {
    const CROWD: usize = 30;
    let place = Place::new()?;
    let inside = AtomicU32::new(0);
    let fences = Shared::new(Vec::new());
    let turn = || -> Result<()> {
        let mut process = place.process()?;
        let end = Moment::now().after(Duration::from_secs(60));
        let fence = loop {
            ensure!(!end.passed(), "never granted");
            match process.acquire(Patience::Queue)? {
                Acquired::Granted(grant) => break grant.fence,
                Acquired::Waiting(waiting) => {
                    let until = Moment::now().after(waiting.next);
                    process.store.sleep(&name()?.into(), &process.token, until)?;
                }
                other => anyhow::bail!("{other:?}"),
            }
        };
        ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two at once");
        fences.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(fence);
        inside.fetch_sub(1, Ordering::SeqCst);
        // Every third process dies instead of releasing the lock.
        if fence.0 % 3 != 0 {
            process.leave()?;
        }
        Ok(())
    };
    all_at_once(CROWD, |_| turn())?;
    let fences = fences.into_inner()?;
    assert_eq!(fences.len(), CROWD);
    assert!(fences.is_sorted_by(|a, b| a < b));
    Ok(())
}

#[derive(Debug, Clone)]
enum Event {
    Acquire(usize, Patience),
    Renew(usize),
    Leave(usize, Ran),
    Die(usize),
    Revoke(When),
    Inspect,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..4usize;
    let patience = prop_oneof![Just(Patience::None), Just(Patience::Queue)];
    let ran = prop_oneof![Just(Ran::Yes), Just(Ran::No)];
    let when = prop_oneof![Just(When::Safe), Just(When::Now)];
    prop_oneof![
        8 => (who.clone(), patience).prop_map(|(who, patience)| Event::Acquire(who, patience)),
        3 => who.clone().prop_map(Event::Renew),
        3 => (who.clone(), ran).prop_map(|(who, ran)| Event::Leave(who, ran)),
        2 => who.prop_map(Event::Die),
        1 => when.prop_map(Event::Revoke),
        1 => Just(Event::Inspect),
        2 => (0..40_000u64).prop_map(Event::Pass),
    ]
}

/// Plays a history. Fails if two processes hold at once, or if a fence is not greater than all
/// before it.
fn play(events: &[Event]) -> Result<()> {
    let place = Place::new()?;
    let mut processes = (0..4).map(|_| place.process()).collect::<Result<Vec<_>>>()?;
    let mut fences = [0u64; 4];
    let mut last = 0;
    // The holder, and the end of its lease by the clock that is ahead.
    let mut holder: Option<(usize, Duration)> = None;
    let mut ahead = Duration::ZERO;
    let clock = || Moment::now().since_boot();
    for event in events {
        match event {
            Event::Acquire(who, patience) => {
                let before = clock();
                match processes[*who].acquire(*patience)? {
                    Acquired::Granted(grant) => {
                        if let Some((other, until)) = holder {
                            ensure!(other == *who || until <= clock(), "{who} and {other} hold");
                        }
                        let fence = grant.fence.0;
                        ensure!(fence == fences[*who] || fence > last, "fence {fence} after {last}");
                        last = last.max(fence);
                        fences[*who] = fence;
                        holder = Some((*who, before + TTL - Duration::from_millis(1)));
                    }
                    // The process ends, and with it what it held: a revoked holder may get Busy.
                    Acquired::TokenEnded
                    | Acquired::Busy(_)
                    | Acquired::Done(_)
                    | Acquired::Superseded(_) => {
                        processes[*who] = place.process()?;
                        holder = holder.filter(|(holder, _)| holder != who);
                    }
                    // Dead waiters stay in the queue until another waiter comes behind them.
                    Acquired::Waiting(waiting) => ensure!(usize::try_from(waiting.ahead)? < events.len()),
                }
            }
            Event::Renew(who) => {
                let before = clock();
                let process = &mut processes[*who];
                if process.renew()? == Renewal::Renewed {
                    if let Some((other, until)) = holder {
                        ensure!(other == *who || until <= clock(), "{who} and {other} hold");
                    }
                    holder = Some((*who, before + TTL - Duration::from_millis(1)));
                }
            }
            Event::Leave(who, ran) => {
                let process = &mut processes[*who];
                process.store.leave(
                    &name()?.into(),
                    &process.token,
                    &End { ran: *ran, job: None, once_per: false },
                    by(),
                )?;
                holder = holder.filter(|(holder, _)| holder != who);
                processes[*who] = place.process()?;
            }
            Event::Die(who) => {
                processes[*who] = place.process()?;
                holder = holder.filter(|(holder, _)| holder != who);
            }
            Event::Revoke(when) => {
                let revoke = Revoke { when: *when, by: Owner::default() };
                let mut store = place.store()?;
                store.revoke(&name()?, &revoke, by())?;
                if *when == When::Now {
                    holder = None;
                }
            }
            Event::Inspect => {
                let mut store = place.store()?;
                let before = std::fs::read(place.path(FileRole::Record)?).ok();
                let view = store.inspect(&name()?, by())?;
                ensure!(view.waiters.len() <= 4);
                ensure!(std::fs::read(place.path(FileRole::Record)?).ok() == before);
            }
            Event::Pass(millis) => {
                ahead += Duration::from_millis(*millis);
                set_ahead(ahead);
            }
        }
    }
    drop(processes);
    // After any history, once all processes are dead, a new one must get the lock.
    let mut survivor = place.process()?;
    ensure!(survivor.granted_soon()? > last, "the dead keep the lock");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]
    #[test]
    fn random_histories_keep_the_rules(events in prop::collection::vec(event(), 1..60)) {
        play(&events).map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
    }
}

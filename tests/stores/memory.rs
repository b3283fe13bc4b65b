//! A store in the memory of one process: the whole of what docs/adding-a-store.md asks for, with the simplest answer
//! where there is one. The conformance suite runs on it. Nobody but its clients can read or write it, and it dies with
//! them, so it has no sessions and no secrets.

use dlock::clock::Moment;
use dlock::lock::{Fence, Key, Name, Names, Owner, Token};
use dlock::rules::{LOG_KEPT, Missed, Notice, Refusal, Subject, Time};
use dlock::store::engine::Engine;
use dlock::store::engine::coordinator::{
    Batch, Coordinator, Leases, Purpose, Reading, Snapshot, Watching, Written,
};
use dlock::store::engine::stored_lock::{EndPart, StoredLock};
use dlock::store::net::interrupt;
use dlock::store::{Error, Listener, Store as _, Subscription};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub type MemoryStore = Engine<Memory>;

/// A client. Its clones share the locks.
#[derive(Clone)]
pub struct Memory {
    shelf: Arc<Mutex<Shelf>>,
    /// Keeps the bells of its tokens.
    bells: BTreeMap<Token, Bell>,
}

/// What the clients share.
struct Shelf {
    locks: BTreeMap<String, Lock>,
    /// Number of writes so far. A version is the number of its write, so none comes twice.
    writes: u64,
    bells: BTreeMap<Token, Weak<OwnedFd>>,
    /// Whether another client is faster at each write.
    is_contended: bool,
    /// When the machine booted, since 1970. The time counts from it, so a step of the wall clock ends no lease.
    booted: Duration,
}

struct Lock {
    version: u64,
    value: Vec<u8>,
    ends: BTreeMap<u64, Vec<u8>>,
}

/// Wakes the owner of a token: an eventfd. It counts, so it may ring before anybody listens.
type Bell = Arc<OwnedFd>;

impl Memory {
    pub fn new() -> Self {
        let today = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        let booted = today.saturating_sub(Moment::now().since_boot());
        let shelf =
            Shelf { locks: BTreeMap::new(), writes: 0, bells: BTreeMap::new(), is_contended: false, booted };
        Self { shelf: Arc::new(Mutex::new(shelf)), bells: BTreeMap::new() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().expect("no client panics while it has the shelf")
    }

    /// The token's bell. It rings at once if it is new and something may have happened before.
    fn bell(&mut self, token: &Token, rings: bool) -> Result<Bell, Error> {
        let mut shelf = self.shelf();
        let bell = match shelf.bells.get(token).and_then(Weak::upgrade) {
            Some(bell) => bell,
            None => {
                let bell = eventfd(u32::from(rings), EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|error| Error::Unavailable(format!("memory: no bell: {error}")))?;
                let bell = Arc::new(bell);
                shelf.bells.insert(token.clone(), Arc::downgrade(&bell));
                bell
            }
        };
        drop(shelf);
        self.bells.insert(token.clone(), Arc::clone(&bell));
        Ok(bell)
    }

    /// Sleeps until the token's bell has rung (true), or until the time or an interrupt (false).
    fn listen(&mut self, token: &Token, until: Moment) -> Result<bool, Error> {
        let bell = self.bell(token, true)?;
        loop {
            match interrupt::wait(&*bell, PollFlags::IN, until.left()) {
                // Two may listen. If the other one has reset the bell, this one wakes all the same.
                Ok(()) => {
                    let _ = rustix::io::read(&*bell, &mut [0; 8]);
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(false),
                Err(error) => return Err(Error::Unavailable(format!("memory: {error}"))),
            }
        }
    }
}

impl Shelf {
    fn now(&self) -> Time {
        let now = self.booted + Moment::now().since_boot();
        Time(u64::try_from(now.as_micros()).expect("a time that fits"))
    }

    fn version(&self, name: &str) -> u64 {
        self.locks.get(name).map_or(0, |lock| lock.version)
    }

    fn kept(&self, name: &str, purpose: Purpose, now: Time) -> Result<StoredLock, Error> {
        let Some(lock) = self.locks.get(name) else { return Ok(StoredLock::absent(name)) };
        let (mut kept, used) = StoredLock::parse(&lock.value, lock.version)
            .map_err(|why| Error::Garbled(format!("memory: {name}: {why}; delete its record")))?;
        if purpose == Purpose::LookAtAll {
            lock.ends.values().rev().for_each(|end| kept.add_end(end));
        }
        kept.forget_history(used, now);
        Ok(kept)
    }

    fn write(&mut self, kept: &StoredLock, value: Vec<u8>, ends: Vec<EndPart>) {
        let old = self.locks.remove(&kept.name);
        if kept.is_empty() {
            return;
        }
        self.writes += 1;
        let mut lock =
            Lock { version: self.writes, value, ends: old.map_or_else(BTreeMap::new, |old| old.ends) };
        lock.ends.extend(ends.into_iter().map(|end| (end.number, end.value)));
        // Once the history is forgotten, the numbers begin again, and the old ends have greater ones.
        lock.ends.retain(|number, _| *number <= kept.ends && number + LOG_KEPT as u64 > kept.ends);
        self.locks.insert(kept.name.clone(), lock);
    }

    fn ring(&self, token: &Token) {
        if let Some(bell) = self.bells.get(token).and_then(Weak::upgrade) {
            // It can only fail because it has been rung 2⁶⁴ times.
            let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Coordinator for Memory {
    type Seen = ();
    type Watch = Infallible;

    const LEASES: Leases = Leases::Recorded;
    const CROWD: (u64, u32) = (50, 8);
    const CLEANS_UP_ONE_IN: u32 = 1;

    fn request_time(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.bell(token, false)?;
        Ok(Vec::new())
    }

    fn end(&mut self, token: &Token, _: Moment) {
        self.bells.remove(token);
    }

    fn read(&mut self, reading: &Reading<'_>) -> Result<Snapshot<()>, Error> {
        let shelf = self.shelf();
        let now = shelf.now();
        let locks = reading.names.iter().map(|name| shelf.kept(name, reading.purpose, now));
        Ok(Snapshot { locks: locks.collect::<Result<_, _>>()?, now, seen: () })
    }

    fn commit(&mut self, (): (), batch: Batch<'_>) -> Result<Written, Error> {
        let mut shelf = self.shelf();
        if shelf.is_contended
            || batch.changes.iter().any(|change| shelf.version(&change.after.name) != change.after.version)
        {
            return Ok(Written::Conflict);
        }
        let mut writes = Vec::new();
        for mut change in batch.changes.into_iter().filter(|change| change.is_changed) {
            let (value, ends) = change
                .after
                .to_value(batch.now)
                .map_err(|error| Error::Garbled(format!("memory: {}: {error}", change.after.name)))?;
            writes.push((change.after, value, ends));
        }
        writes.into_iter().for_each(|(kept, value, ends)| shelf.write(&kept, value, ends));
        batch.woken.iter().for_each(|token| shelf.ring(token));
        Ok(Written::Yes)
    }

    fn watch(&mut self, _: &Token, _: Moment) -> Watching<Infallible> {
        Watching::Unknown
    }

    fn wait(
        &mut self,
        _: &Names,
        token: &Token,
        _: u64,
        _: &mut dyn Iterator<Item = &Infallible>,
        until: Moment,
    ) -> Result<bool, Error> {
        self.listen(token, until)
    }

    fn subscribe(&self, _: &[Name], token: &Token, _: Listener) -> Box<dyn Subscription> {
        Box::new(Subscribed { memory: self.clone(), token: token.clone() })
    }

    fn list(&mut self, _: Moment) -> Result<Vec<Result<String, Error>>, Error> {
        Ok(self.shelf().locks.keys().cloned().map(Ok).collect())
    }

    fn clean_up(&mut self, _: Moment) {
        self.shelf().bells.retain(|_, bell| bell.strong_count() > 0);
    }
}

struct Subscribed {
    memory: Memory,
    token: Token,
}

impl Subscription for Subscribed {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        self.memory.listen(&self.token, until).inspect_err(|_| {
            interrupt::sleep_until(until.min(Moment::now().after(Duration::from_secs(1))));
        })
    }
}

/// Others write in its place at each attempt, and may announce nothing.
#[test]
fn a_refusal_that_is_not_recorded_is_announced_unless_another_one_was() {
    let memory = Memory::new();
    let mut store = MemoryStore::new(memory.clone());
    let name = Name::new("", &Key::new("k").expect("a key")).expect("a name");
    let mut announces = |by: &str, is_contended| {
        memory.shelf().is_contended = is_contended;
        let subject = Some(Subject::Fence(Fence(7)));
        let notice = Notice { kind: Missed::GaveUp, subject, by: by.into() };
        let refusal = Refusal::interrupted(&Owner::default(), None, Duration::ZERO).with(Some(notice));
        store.refuse(&name, &refusal, Moment::now().after(Duration::from_millis(100))).expect("an answer")
    };
    assert!(announces("one", true));
    assert!(announces("two", false));
    assert!(!announces("three", true));
}

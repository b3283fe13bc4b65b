//! How can an ensemble of ZooKeeper keep locks? The store `zookeeper://…`: a node for each lock, one below it for each of those
//! who wait, and one for each process that holds or waits, which goes with its session. What is done with them is the
//! engine's affair; here is what ZooKeeper does for it.
//!
//! *A step takes two round trips.* The first reads the nodes. The second writes all of them, or none if one of them has
//! changed since; then the engine begins again. Any server may answer the first, also one that lags behind: what it says is
//! believed only if the second, which all agree on, finds the same versions.
//!
//! *The lease is the session.* A session is as long as the ttl, and whoever asks for a lock has a node that lives as long as
//! it: its life. As long as a life is there, the lock is held, whatever a clock says. A life that is gone is a hold that is
//! over as soon as its end in the record has come as well: a server that fails takes with it what it has not told the leader
//! of, among that the last sign of life of a session, so a session may end sooner than its client believes. That is also why
//! a renewal writes the record. The own hold is judged so, too, as long as the session is the one under which it was granted or
//! renewed last; after that by the record alone.
//!
//! *The clock* is that of the leader, which stamps what it writes. Between two of one's own writes one counts on, for a
//! short time: never ahead of that clock where others are judged, never behind it where one's own lease is written.
//!
//! *Who wakes whom.* A life is written to with the lock, and its owner watches it; who stands before one is watched for its
//! end. Watches are lost with a connection, and set again. A waiter says that it is there by writing to its place in the
//! queue, which nobody watches: one request, whoever else waits.

mod ask;
mod hearing;
mod judge;
mod jute;
mod life;
mod node;
mod paths;
mod probe;
mod read;
mod session;
mod stamp;
mod sweep;
mod wait;
mod wire;
mod write;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{Due, Record, Time};
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, listed_by};
use crate::store::{Endurance, Error, Listener, Subscription};
use ask::Again;
use hearing::Hearing;
use jute::{Answer, Ask, Code};
use life::{Life, Mine};
use node::LockNode;
use session::{Length, Session};
use stamp::Stamp;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use sweep::TIDIES_EVERY;
use wait::Watch;
use write::Place;

pub use session::Target;

/// Whoever has more than so many before it looks at the records more rarely: it is woken by whoever is before it.
const NEAR: u64 = 4;
/// Where a connection failed while one waited.
const PAUSE: Duration = Duration::from_millis(25);

/// An ensemble with locks in it.
pub type ZooKeeperStore = Engine<Znodes>;

impl ZooKeeperStore {
    /// It connects when it is first used.
    pub fn open(target: Target) -> Self {
        Self::new(Znodes::over(Arc::new(target)))
    }
}

/// What an ensemble does for the engine.
pub struct Znodes {
    target: Arc<Target>,
    session: RefCell<Session>,
    mine: Option<Arc<Mine>>,
    /// How long the lease of this process is, once it has asked for one.
    ttl: Option<Duration>,
    life: Cell<Option<Life>>,
    /// When the operation under way is to end.
    by: Cell<Moment>,
    stamp: Cell<Option<Stamp>>,
    /// By how much the end of the own lease may be written too early, as the last step counted.
    uncertain: Cell<Duration>,
    /// Who asked for the last step.
    asker: RefCell<Option<Token>>,
    /// The lives that were looked at in this step, and whether they are there.
    lives: RefCell<BTreeMap<Token, bool>>,
    /// When those who wait were last heard of, in milliseconds since 1970, as far as this step has read it.
    heard: RefCell<BTreeMap<Token, u64>>,
    /// Until when holders are believed by the record, as the last step read it.
    believed: RefCell<BTreeMap<Token, Due>>,
    /// Where this process waits, by lock.
    places: RefCell<BTreeMap<String, Place>>,
    /// A server may lag behind what was done.
    must_sync: Cell<bool>,
    /// This user may write to locks, but not to the lives of all.
    wakes_apart: Cell<bool>,
}

impl Clone for Znodes {
    /// Sessions belong to the process that began them.
    fn clone(&self) -> Self {
        Self { mine: self.mine.clone(), ..Self::over(Arc::clone(&self.target)) }
    }
}

impl Znodes {
    fn over(target: Arc<Target>) -> Self {
        Self {
            session: RefCell::new(Session::new(Arc::clone(&target))),
            target,
            mine: None,
            ttl: None,
            life: Cell::new(None),
            by: Cell::new(Moment::now()),
            stamp: Cell::new(None),
            uncertain: Cell::new(Duration::ZERO),
            asker: RefCell::default(),
            lives: RefCell::default(),
            heard: RefCell::default(),
            believed: RefCell::default(),
            places: RefCell::default(),
            must_sync: Cell::new(false),
            wakes_apart: Cell::new(false),
        }
    }
}

impl Adapter for Znodes {
    type Entry = LockNode;
    type Watch = Watch;

    fn refresh(&mut self, by: Moment) -> Result<(), Error> {
        self.by.set(by);
        Ok(())
    }

    fn reset(&mut self) {
        self.session.borrow_mut().hang_up();
        self.must_sync.set(true);
    }

    /// A session has one connection: a second attempt beside the first one would end that.
    fn endurance(&self) -> Endurance {
        Endurance::Long
    }

    /// The session is the lease, so it is as long.
    fn attend(&mut self, token: &Token, ttl: Duration) {
        if self.is_own(token) {
            self.ttl = Some(ttl);
            self.session.borrow_mut().set_length(Length::Lease(ttl));
        }
    }

    fn lock(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        _: Moment,
    ) -> Result<(Vec<LockNode>, Time), Error> {
        self.read(names, me, CatchUp::Due)
    }

    fn look(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<LockNode>, Time), Error> {
        self.read(names, me, whom)
    }

    fn show(
        &self,
        entry: &mut LockNode,
        waiter: usize,
        record: &mut Record,
        _: Time,
    ) -> Result<Vec<String>, Error> {
        self.show_waiter(entry, waiter, record)
    }

    fn write(&self, entries: Vec<(LockNode, Changed)>, now: Time, woken: &[Token]) -> Result<Written, Error> {
        self.write_step(entries, now, woken)
    }

    fn release(&self, _: Vec<LockNode>) {
        self.forget_seen();
    }

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
        let each = self.target.connect_timeout + self.target.op_timeout;
        self.by.set(listed_by(self.by.get(), each));
        let asks = [Ask::Sync { path: self.base() }, Ask::List { path: self.locks() }];
        let names = match self.ask(&asks, Again::Yes)?.pop() {
            Some(Ok(Answer::Names(names, _))) => names,
            Some(Err(Code::NO_NODE)) => Vec::new(),
            Some(Err(code)) => return Err(self.refused(code)),
            _ => return Err(self.refused(Code(0))),
        };
        let bad = |node: &str| {
            node::garbled(self.shown(), node, &format!("{}/{node}", self.locks()), "its name is none")
        };
        Ok(names.iter().map(|node| node::name_of(node).ok_or_else(|| bad(node))).collect())
    }

    fn tidy(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % TIDIES_EVERY == 0) {
            self.sweep().ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn crowd(&self) -> u64 {
        NEAR
    }

    /// The session of one that was granted the lock and died may last for long: whoever is behind it sees within a
    /// [`SILENCE`](crate::rules::SILENCE) that it did not confirm.
    fn rarely(&self) -> u32 {
        3
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(Arc::new(Mine { token: token.clone(), is_given_up: AtomicBool::new(false) }));
        Ok(Vec::new())
    }

    /// A guard ends the life of the one whom it guards, from its own session.
    fn end(&mut self, token: &Token) {
        if !self.is_own(token) {
            return;
        }
        if self.life.take().is_none() {
            self.ask(&[Ask::Delete { path: self.life_path(token) }], Again::Yes).ok();
        }
        self.ttl = None;
        self.places.borrow_mut().clear();
        let mut session = self.session.borrow_mut();
        session.end();
        session.set_length(Length::Brief);
    }

    fn is_mine(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.get().is_some_and(|life| !life.was_ended)
    }

    fn give_up(&self, token: &Token) {
        if let Some(mine) = self.mine.as_ref().filter(|mine| mine.token == *token) {
            mine.is_given_up.store(true, Ordering::SeqCst);
        }
    }

    fn is_given_up(&self, token: &Token) -> bool {
        self.is_own(token) && self.mine.as_ref().is_some_and(|mine| mine.is_given_up.load(Ordering::SeqCst))
    }

    fn was_ended(&self, token: &Token) -> bool {
        self.is_own(token) && self.life.get().is_some_and(|life| life.was_ended)
    }

    /// It is in the record, too.
    fn say_lease(&self, _: &Token, _: Duration) -> bool {
        false
    }

    fn say_heard(&self, names: &Names, token: &Token, _: Duration) -> bool {
        self.allow();
        self.forget_seen();
        self.is_own(token) && self.beat(names).unwrap_or(false)
    }

    /// What was looked at in this step is known. Otherwise it is watched as well.
    fn liveness(&self, token: &Token) -> Liveness<Watch> {
        let path = self.life_path(token);
        let known = self.lives.borrow().get(token).copied();
        let (is_there, dial) = match known {
            Some(is_there) => (is_there, 0),
            None => {
                self.allow();
                let answer = self.ask(&[Ask::WatchEnd { path: path.clone() }], Again::Yes);
                match answer.ok().and_then(|mut answers| answers.pop()) {
                    Some(Ok(_)) => (true, self.session.borrow().dial()),
                    Some(Err(Code::NO_NODE)) => (false, 0),
                    _ => return Liveness::Unknown,
                }
            }
        };
        match is_there {
            true => Liveness::Alive(Watch { path, dial: Cell::new(dial) }),
            false if self.is_believed(token) => Liveness::Unknown,
            false => Liveness::Dead,
        }
    }

    fn forget(&self, _: &Token) {}

    fn sleep<'a>(
        &self,
        _: &Names,
        token: &Token,
        _: u64,
        others: impl Iterator<Item = &'a Watch>,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.allow();
        match self.wait(token, others, Moment::now().after(limit)) {
            Ok(heard) => Ok(heard),
            // A place in the queue does not end with a connection. Whether the ensemble is there shows when it is asked.
            Err(_) => {
                self.session.borrow_mut().hang_up();
                thread::sleep(PAUSE);
                Ok(true)
            }
        }
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        let names: BTreeSet<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let watched = match listener {
            Listener::Holder => vec![self.life_path(token)],
            Listener::Watcher => names.iter().map(|name| self.lock_path(name)).collect(),
        };
        Box::new(Hearing {
            nodes: Self::over(Arc::clone(&self.target)),
            watched,
            seen: Vec::new(),
            backoff_until: Moment::now(),
        })
    }
}

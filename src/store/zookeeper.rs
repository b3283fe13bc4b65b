//! The store `zookeeper://…`. It keeps a node for each lock, below it a node for each waiter, and a
//! session node for each process that holds or waits. The session node is ephemeral: it goes with
//! its session. The engine applies the lock rules; this module sends the requests to ZooKeeper.
//!
//! *A transaction takes two round trips.* The first reads the nodes. The second writes all of them,
//! or none if one has changed since; then the engine starts again. Any server may answer the first,
//! even one that lags behind: the second, which all servers agree on, checks the versions that were
//! read.
//!
//! *The lease is the session.* A session has the length of the ttl. While the session node exists,
//! the lock is held, whatever a clock says. When the node is gone, the hold is over as soon as its
//! end by the record has passed, too. The second condition is needed because a server that fails
//! loses the signs of life that it has not yet passed on to the leader, so a session may end
//! earlier than its client believes. For the same reason, a renewal writes the record. A process
//! judges its own hold in the same way while it still has the session of the last grant or renewal;
//! after that by the record alone.
//!
//! *The clock* is the leader's, which stamps each write. Between two writes of its own, a process
//! counts on from the last stamp for a short time: never ahead of the leader's clock to judge
//! others, never behind it to write the end of its own lease.
//!
//! *Wake-ups.* A transaction writes to the session node of each process that it wakes, and that
//! process watches its own node. A waiter also watches for the end of the session node of its
//! predecessor. Watches are lost with a connection, and set again. A waiter's heartbeat is a write
//! to its own node in the queue, which nobody watches: one request, however many wait.

mod ask;
mod cleanup;
mod judge;
mod jute;
mod life;
mod node;
mod paths;
mod probe;
mod read;
mod session;
mod stamp;
mod subscription;
mod wait;
mod wire;
mod write;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{Due, Record, Time};
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, listed_by};
use crate::store::{Endurance, Error, Listener, Subscription};
use ask::Again;
use cleanup::CLEANS_UP_EVERY;
use jute::{Answer, Ask, Code};
use life::{Life, OwnState};
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
use subscription::RequestSubscription;
use wait::Watch;
use write::Place;

pub use session::Target;

/// A waiter with more waiters than this before it polls the records less often: its predecessor's
/// end wakes it.
const NEAR: u64 = 4;
/// Pause after the connection has failed during a wait.
const PAUSE: Duration = Duration::from_millis(25);

/// A store in an ensemble of ZooKeeper.
pub type ZooKeeperStore = Engine<Znodes>;

impl ZooKeeperStore {
    /// Creates the store. It connects at its first use.
    pub fn open(target: Target) -> Self {
        Self::new(Znodes::over(Arc::new(target)))
    }
}

/// The engine's adapter for ZooKeeper.
pub struct Znodes {
    target: Arc<Target>,
    session: RefCell<Session>,
    mine: Option<Arc<OwnState>>,
    /// The ttl of this process's lease, once it has asked for one.
    ttl: Option<Duration>,
    life: Cell<Option<Life>>,
    /// Deadline of the current operation.
    by: Cell<Moment>,
    stamp: Cell<Option<Stamp>>,
    /// How much too early the last operation may write the end of this process's lease.
    uncertain: Cell<Duration>,
    /// The caller's token in the last operation.
    asker: RefCell<Option<Token>>,
    /// Session nodes that this operation has looked up, and whether they exist.
    lives: RefCell<BTreeMap<Token, bool>>,
    /// The waiters' last heartbeats that this operation has read, in milliseconds since 1970.
    heard: RefCell<BTreeMap<Token, u64>>,
    /// End of each lease by the record, as the last operation read it.
    believed: RefCell<BTreeMap<Token, Due>>,
    /// This process's nodes in the queues, by lock.
    places: RefCell<BTreeMap<String, Place>>,
    /// Whether the next read must wait until the server has caught up.
    must_sync: Cell<bool>,
    /// Whether wake-ups need requests of their own: this user may write to locks, but not to all
    /// session nodes.
    wakes_apart: Cell<bool>,
}

impl Clone for Znodes {
    /// A clone begins its own session, because a session belongs to the process that began it.
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

    /// A session has one connection, which a second attempt beside the first one would end.
    fn endurance(&self) -> Endurance {
        Endurance::Long
    }

    /// Sets the session's length to the ttl.
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
            node::garbled(self.shown(), node, &format!("{}/{node}", self.locks()), "its name is invalid")
        };
        Ok(names.iter().map(|node| node::name_of(node).ok_or_else(|| bad(node))).collect())
    }

    fn clean_up(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % CLEANS_UP_EVERY == 0) {
            self.sweep().ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn crowd(&self) -> u64 {
        NEAR
    }

    /// Less rarely than elsewhere. A waiter may die right after a grant, and its session may last
    /// long; the waiters behind it must see within a [`SILENCE`](crate::rules::SILENCE) that it did
    /// not confirm.
    fn rarely(&self) -> u32 {
        3
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(Arc::new(OwnState { token: token.clone(), is_given_up: AtomicBool::new(false) }));
        Ok(Vec::new())
    }

    /// A guard, which has no session node, deletes that of the process that it guards.
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

    /// Always false: the record has to be written, too.
    fn publish_lease(&self, _: &Token, _: Duration) -> bool {
        false
    }

    fn publish_heartbeat(&self, names: &Names, token: &Token, _: Duration) -> bool {
        self.allow();
        self.forget_seen();
        self.is_own(token) && self.beat(names).unwrap_or(false)
    }

    /// Answers from what this operation has looked up. Otherwise looks the node up and watches it.
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
            // A broken connection does not end the place in the queue. The next request shows
            // whether servers answer.
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
        Box::new(RequestSubscription {
            nodes: Self::over(Arc::clone(&self.target)),
            watched,
            seen: Vec::new(),
            backoff_until: Moment::now(),
        })
    }
}

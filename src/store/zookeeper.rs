//! The store `zookeeper://…`. It keeps a node for each lock, which has the whole record, and a
//! session node for each process that holds or waits. The session node is ephemeral: it goes with
//! its session. The engine applies the lock rules; this module sends the requests to ZooKeeper.
//!
//! *A transaction takes two round trips.* The first reads the locks. The second writes all of them,
//! or none if one has changed since; then the engine starts again. Where a decision depends on
//! other processes, a round trip in between looks up their session nodes. Any server may answer a
//! read, even one that lags behind: the write, which all servers agree on, checks the versions that
//! were read.
//!
//! *The lease is the session.* A session has the length of the ttl. While the session node exists,
//! the lock is held, whatever a clock says. When the node is gone, the hold lasts until its end
//! by the record, and no longer. The second condition is needed because a server that fails
//! loses the signs of life that it has not yet passed on to the leader, so a session may end
//! earlier than its client believes. For the same reason, a renewal writes the record. A process
//! that has lost the session of its last grant or renewal judges its own hold by the record alone.
//!
//! *The clock* is the leader's, which stamps each write. Between two writes of its own, a process
//! counts on from the last stamp for a short time: never ahead of the leader's clock to judge
//! others, never behind it to write the end of its own lease.
//!
//! *Heartbeats.* A waiter has an ephemeral node below each of its locks, which nobody watches. It
//! writes there as its heartbeat, so that heartbeats conflict with nothing. The names of these
//! nodes come with the record and tell which waiters have a session. The time of the last heartbeat
//! is looked up only for the waiters that a decision can depend on.
//!
//! *Wake-ups.* A transaction writes to the session node of each process that it wakes, and that
//! process watches its own node. A waiter also watches for the end of the session node of its
//! predecessor. Watches are lost with a connection, and set again.

mod ask;
mod cleanup;
mod judge;
mod jute;
mod life;
mod node;
mod paths;
mod probe;
mod read;
mod remembered;
mod session;
mod stamp;
mod subscription;
mod trust;
mod wait;
mod wire;
mod write;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::store::engine::Engine;
use crate::store::engine::coordinator::{
    Batch, Coordinator, KeepAlive, Leases, OwnLiveness, Reading, Snapshot, Watching, Written,
};
use crate::store::engine::subscription::Resumed;
use crate::store::net::failure::silent;
use crate::store::net::interrupt;
use crate::store::net::target::Target;
use crate::store::{Endurance, Error, Listener, Subscription};
use jute::{Ask, Code};
use life::Life;
use read::Seen;
use remembered::Left;
use session::Session;
use stamp::Stamp;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use subscription::WatcherSubscription;
use wait::Watch;

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

/// The engine's coordinator for ZooKeeper.
pub struct Znodes {
    session: Session,
    /// This process's token.
    mine: Option<Token>,
    life: Option<Life>,
    stamp: Option<Stamp>,
    /// Whether the next read must wait until the server has caught up.
    must_sync: bool,
    /// What the last write left of locks that this process holds alone and that nobody waits for.
    remembered: Option<Left>,
    /// Whether the access lists of the nodes have been tested.
    is_tested: bool,
}

impl Clone for Znodes {
    /// A clone begins its own session, because a session belongs to the process that began it.
    fn clone(&self) -> Self {
        let (mine, is_tested) = (self.mine.clone(), self.is_tested);
        Self { mine, is_tested, ..Self::over(Arc::clone(&self.session.target)) }
    }
}

impl Znodes {
    fn over(target: Arc<Target>) -> Self {
        Self {
            session: Session::new(target),
            mine: None,
            life: None,
            stamp: None,
            must_sync: false,
            remembered: None,
            is_tested: false,
        }
    }

    fn is_own(&self, token: &Token) -> bool {
        self.mine.as_ref() == Some(token)
    }

    /// Deadline of a request that begins now and has no deadline of its own.
    fn soon(&self) -> Moment {
        Moment::now().after(self.request_time())
    }
}

impl Coordinator for Znodes {
    type Seen = Seen;
    type Watch = Watch;

    const LEASES: Leases = Leases::Recorded;

    /// The intervals are shorter than elsewhere. A waiter may die right after a grant, and its
    /// session may last long; the waiters behind it must see within a
    /// [`SILENCE`](crate::rules::SILENCE) that it did not confirm.
    const CROWD: (u64, u32) = (4, 3);

    fn request_time(&self) -> Duration {
        self.session.target.request_time()
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(token.clone());
        Ok(Vec::new())
    }

    fn own(&self, token: &Token) -> OwnLiveness {
        match self.life.filter(|_| self.is_own(token)) {
            None => OwnLiveness::Unseen,
            Some(life) if life.was_ended => OwnLiveness::Ended,
            Some(_) => OwnLiveness::Seen,
        }
    }

    /// A guard, which has no session node, deletes that of the process that it guards.
    fn end(&mut self, token: &Token, deadline: Moment) {
        if !self.is_own(token) {
            return;
        }
        if self.life.take().is_none() {
            self.ask(&[Ask::Delete(self.life_path(token))], deadline).ok();
        }
        self.session.end();
        self.session.set_lease(None);
    }

    fn read(&mut self, reading: &Reading<'_>) -> Result<Snapshot<Seen>, Error> {
        let is_own = reading.me.is_some_and(|me| self.is_own(me));
        if let Some(ttl) = reading.lease.filter(|_| is_own) {
            self.session.set_lease(Some(ttl));
        }
        loop {
            if !is_own || self.ensure(reading.deadline)? {
                if is_own && let Some(remembered) = self.recall(reading)? {
                    return Ok(remembered);
                }
                if let Some(snapshot) = self.try_to_read(reading)? {
                    self.must_sync = false;
                    return Ok(snapshot);
                }
            }
            if reading.deadline.passed() {
                let why = "other processes change its nodes all the time";
                return Err(Error::Unavailable(format!("{}: {why}", self.shown())));
            }
        }
    }

    /// Answers from what the operation has looked up.
    fn is_dead(&mut self, seen: &Seen, token: &Token) -> bool {
        seen.lives.get(token) == Some(&false) && !seen.is_believed(token)
    }

    fn commit(&mut self, seen: Seen, batch: Batch<'_>) -> Result<Written, Error> {
        self.write(seen, batch)
    }

    /// A lease is not extended here: the record has to be written, too.
    fn keep_alive(&mut self, sign: &KeepAlive<'_>, deadline: Moment) -> Result<bool, Error> {
        Ok(sign.ttl.is_none() && self.is_own(sign.token) && self.beat(sign.names, sign.token, deadline)?)
    }

    /// Without a session node, the lease of `token` may still last by the record. So the caller asks
    /// again once, and not until the node is there.
    fn watch(&mut self, token: &Token, deadline: Moment) -> Watching<Watch> {
        let path = self.life_path(token);
        let answers = self.ask(&[Ask::WatchEnd(path.clone())], deadline);
        match answers.ok().and_then(|mut answers| answers.pop()) {
            Some(Ok(_)) => Watching::Watched(Watch { path, connection: Cell::new(self.session.connections) }),
            Some(Err(Code::NO_NODE)) => Watching::Missing,
            _ => Watching::Unknown,
        }
    }

    fn wait(
        &mut self,
        _: &Names,
        token: &Token,
        _: u64,
        watches: &mut dyn Iterator<Item = &Watch>,
        until: Moment,
    ) -> Result<bool, Error> {
        // A broken connection does not end the place in the queue. The next request shows whether
        // servers answer.
        let heard = self.listen(token, &watches.collect::<Vec<_>>(), until);
        Ok(heard.unwrap_or_else(|_| {
            self.session.hang_up();
            interrupt::sleep_until(Moment::now().after(PAUSE));
            true
        }))
    }

    fn listen_as_holder(&mut self, _: &Names, token: &Token, until: Moment) -> Option<bool> {
        Some(self.listen_for_request(token, until))
    }

    /// Only for a watcher, because a holder listens on the connection that it renews on.
    fn subscribe(&self, names: &[Name], _: &Token, _: Listener) -> Box<dyn Subscription> {
        let nodes = Self::over(Arc::clone(&self.session.target));
        let watched = names.iter().map(|name| self.lock_path(name.as_str())).collect();
        Box::new(Resumed::new(WatcherSubscription { nodes, watched }))
    }

    fn list(&mut self, deadline: Moment) -> Result<Vec<Result<String, Error>>, Error> {
        let untested = self.untested(&BTreeSet::new());
        let asks = [Ask::Sync(self.base()), Ask::List(self.locks())];
        let asks: Vec<Ask> = asks.into_iter().chain(untested.iter().cloned().map(Ask::Acl)).collect();
        let mut answers = self.ask(&asks, deadline)?;
        let lists = answers.split_off(answers.len().min(2));
        self.test(&untested, &lists)?;
        let names = match answers.pop() {
            Some(Err(code)) if code != Code::NO_NODE => return Err(self.refused(code)),
            answer => answer.and_then(Result::ok).unwrap_or_default().names,
        };
        let bad = |node: &str| {
            node::garbled(self.shown(), node, &format!("{}/{node}", self.locks()), "its name is invalid")
        };
        Ok(names.iter().map(|node| node::name_of(node).ok_or_else(|| bad(node))).collect())
    }

    fn clean_up(&mut self, deadline: Moment) {
        self.sweep(deadline).ok();
    }

    fn reset(&mut self) {
        self.session.hang_up();
        self.must_sync = true;
    }

    /// There is no second store, because a server serves a session on one connection only. The
    /// session itself opens a second connection beside a silent one.
    fn endurance(&self) -> Endurance {
        Endurance::Beside { second: None, timeout_error: silent(self.shown()) }
    }
}

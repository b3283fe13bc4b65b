//! The store `etcd://…`. It keeps a record for each lock, a key for each waiter, and a session for
//! each holder. Holder and waiter have a `life/` key that others watch. The engine applies the lock
//! rules; this module sends the requests to etcd.
//!
//! *A transaction takes two requests.* The first reads the records and the sessions. The second
//! writes, if no record has changed since. If one has, nothing is written, and the engine starts
//! again with a linearizable read. So a request that arrives twice, or after another write, writes
//! nothing.
//!
//! *The lease is a session.* A holder has an etcd lease, and beside the record a key on that lease.
//! When the lease ends, etcd deletes the key, and the hold is over; no time in a record is compared
//! for that. A waiter has a short lease, so its place in the queue goes when the waiter is stale.
//! Its heartbeat keeps that lease alive and writes nothing. Lease ids are derived from the token,
//! so a repeated grant creates no second lease, and any process with the token can keep the lease
//! alive.
//!
//! *A keep-alive counts only when it is proved.* An old leader that has not noticed the new one may
//! renew a lease without the new leader's knowledge. So the member that answered the keep-alive
//! must then answer a linearizable request in the same raft term. That proves that the leader of
//! that term was still the leader when it renewed the lease. A later leader gives every lease its
//! whole ttl again (docs/protocol.md#etcd).
//!
//! *The time* is this machine's, moved into the second that the answering member names; if it names
//! none, as it is. Neither a lease nor exclusion (I1) depends on it.

mod cleanup;
mod client;
mod draft;
mod entry;
mod http;
mod lease;
mod own_state;
mod probe;
mod read;
mod subscription;
mod words;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{HEARTBEAT, Record, Time};
use crate::store::engine::kept::Kept;
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, listed_by};
use crate::store::net::failure::silent;
use crate::store::net::interrupt;
use crate::store::{Endurance, Error, Listener, Subscription};
use client::Client;
use draft::Draft;
use entry::{Layout, Node};
use lease::{LeaseOf, seconds};
use own_state::OwnState;
use read::{Depth, Question, Source, garbled};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use subscription::{RequestSubscription, Watches};
use words::{Act, Header, Pair, Range, Span, Txn};

pub use client::Target;

/// First pause after a failed watch. It doubles with each further failure, up to [`HEARTBEAT`].
const WATCH_RETRY: Duration = Duration::from_millis(25);
/// A waiter polls less often if more than this many stand before it: each poll reads all waiters'
/// names.
const NEAR: u64 = 4;
/// One in this many first requests cleans up old records.
const CLEANS_UP_EVERY: u32 = 512;

/// A store in an etcd cluster.
pub type EtcdStore = Engine<Keys>;

impl EtcdStore {
    /// Creates the store. It connects at its first use.
    pub fn etcd(target: Target) -> Self {
        Self::new(Keys::over(Client::new(target)))
    }
}

/// The engine's adapter for etcd.
pub struct Keys {
    client: Client,
    mine: Option<Arc<OwnState>>,
    /// The caller's token in the current operation.
    asker: RefCell<Option<Token>>,
    /// Leases that the caller is known to have.
    leases: RefCell<BTreeSet<u64>>,
    /// Whether the caller probably holds the lock: it did at its last operation, or it was just
    /// woken.
    is_holder: Cell<bool>,
    /// Whether the last read of the current operation turned out to be outdated.
    is_outrun: Cell<bool>,
    /// A lease that was kept alive and the header of that answer, until a read proves it.
    kept: Cell<Option<(u64, Header)>>,
    /// Whether the hold is on another lease than the one that was kept alive.
    is_moved: Cell<bool>,
    /// Revision of the last read.
    read: Cell<u64>,
    /// Revision of the last read with the caller's token. The caller's watch starts after it. Only
    /// a read of the caller's own place moves the start of its watch; another would skip events.
    seen: Cell<u64>,
    /// Revision of this process's last write, which the caller's watch ignores.
    wrote: Cell<u64>,
    watches: RefCell<Option<Watches>>,
    /// Watches that have failed in a row.
    failed_watches: Cell<u32>,
}

impl Clone for Keys {
    /// A clone opens its own connections, because a connection belongs to the process that made it.
    fn clone(&self) -> Self {
        Self { mine: self.mine.clone(), ..Self::over(self.client.clone()) }
    }
}

impl Keys {
    fn over(client: Client) -> Self {
        Self {
            client,
            mine: None,
            asker: RefCell::default(),
            leases: RefCell::default(),
            is_holder: Cell::default(),
            is_outrun: Cell::default(),
            kept: Cell::default(),
            is_moved: Cell::default(),
            read: Cell::default(),
            seen: Cell::default(),
            wrote: Cell::default(),
            watches: RefCell::default(),
            failed_watches: Cell::default(),
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout(&self.client.target.prefix)
    }
}

impl Adapter for Keys {
    type Entry = Node;
    type Watch = Token;

    /// The hash of the token, because before 3.4.26 and 3.5.9 any user of etcd could read key names
    /// by asking which keys are on a lease (CVE-2023-32082).
    fn stored(&self, token: &Token) -> Token {
        token.hashed()
    }

    fn refresh(&mut self, by: Moment) -> Result<(), Error> {
        self.client.by.set(by);
        self.kept.take();
        self.is_outrun.take();
        Ok(())
    }

    fn reset(&mut self) {
        self.client.turn_away();
        self.watches.take();
    }

    fn endurance(&self) -> Endurance {
        let late = silent(self.client.shown());
        Endurance::Beside { second: Box::new(Engine::new(self.clone())), late }
    }

    fn lock(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        _: Moment,
    ) -> Result<(Vec<Node>, Time), Error> {
        // A serializable read may be outdated; then the write that follows fails.
        let is_outrun = self.is_outrun.take() || self.kept.get().is_some();
        let source = if is_outrun { Source::Majority } else { Source::Member };
        if let Some(me) = me.filter(|_| self.is_holder.get()) {
            let (nodes, now) =
                self.nodes(&Question { names, me: Some(me), depth: Depth::Front, source }, false)?;
            if nodes.iter().all(|node| node.is_enough_for(me)) {
                return Ok((nodes, now));
            }
            self.is_holder.set(false);
        }
        self.nodes(&Question { names, me, depth: Depth::Places, source }, false)
    }

    fn look(
        &self,
        names: &BTreeSet<String>,
        me: Option<&Token>,
        whom: CatchUp,
    ) -> Result<(Vec<Node>, Time), Error> {
        let is_all = whom == CatchUp::All;
        // A read of everything is not one of the caller's own place (see `seen`).
        let me = me.filter(|_| !is_all);
        let depth = if is_all { Depth::All } else { Depth::Places };
        self.nodes(&Question { names, me, depth, source: Source::Majority }, is_all)
    }

    fn show(
        &self,
        node: &mut Node,
        waiter: usize,
        record: &mut Record,
        now: Time,
    ) -> Result<Vec<String>, Error> {
        let (shown, prefix) = (self.client.shown(), &self.client.target.prefix);
        let Some(token) = node.queue.token(waiter) else {
            self.read_rest(node, now)?;
            return Ok(Vec::new());
        };
        if !node.notes.contains_key(&token) {
            let key = self.layout().waiter(&node.name, &node.queue.waiting[waiter]);
            let place = node.queue.waiting[waiter].place;
            let range = Range { span: Span { key, range_end: None }, ..Range::default() };
            let (answer, _) =
                self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(range)] })?;
            // The waiter has left, or its lease has ended.
            let Some(pair) = answer.ranges().next().and_then(|mut range| range.kvs.pop()) else {
                node.queue.waiting.remove(waiter);
                return Ok(Vec::new());
            };
            node.add_waiter(&pair, place, now).map_err(|why| garbled(shown, prefix, &node.name, why))?;
        }
        let note = node.notes.get(&token).map(Vec::as_slice).unwrap_or_default();
        let note = serde_json::from_slice(note)
            .map_err(|_| garbled(shown, prefix, &node.name, "a waiter cannot be read"))?;
        let Kept { queue, name, tracked, .. } = &mut **node;
        queue
            .show(waiter, note, name, record, tracked, |_, _| {})
            .map_err(|why| garbled(shown, prefix, name, why))
    }

    fn write(&self, entries: Vec<(Node, Changed)>, now: Time, woken: &[Token]) -> Result<Written, Error> {
        if entries.iter().all(|(_, changed)| *changed == Changed::No) {
            return Ok(Written::Yes);
        }
        let mut draft = Draft::new(self, &entries);
        for (node, _) in entries.into_iter().filter(|(_, changed)| *changed == Changed::Yes) {
            draft
                .add(node, now)
                .map_err(|error| Error::Garbled(format!("{}: {error}", self.client.shown())))?;
        }
        draft.write(woken)
    }

    fn release(&self, _: Vec<Node>) {}

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
        let (target, by) = (&self.client.target, &self.client.by);
        by.set(listed_by(by.get(), target.connect_timeout + target.op_timeout));
        let layout = self.layout();
        let range = Range { keys_only: true, ..layout.locks().whole() };
        let (answer, _) = self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(range)] })?;
        let name = |pair: Pair| {
            let (shown, prefix) = (self.client.shown(), &self.client.target.prefix);
            layout.name_of(&pair.key).ok_or_else(|| garbled(shown, prefix, "?", "its name is invalid"))
        };
        Ok(answer.ranges().flat_map(|range| range.kvs).map(name).collect())
    }

    fn clean_up(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % CLEANS_UP_EVERY == 0) {
            self.remove_old().ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn crowd(&self) -> u64 {
        NEAR
    }

    /// Polls rarely: a watch reports the end of the waiter before it, and a grant.
    fn rarely(&self) -> u32 {
        16
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let mine =
            OwnState { token: token.clone(), is_given_up: AtomicBool::new(false), place: Mutex::new(None) };
        self.mine = Some(Arc::new(mine));
        Ok(Vec::new())
    }

    /// Revokes the leases. If etcd cannot be reached, they expire.
    fn end(&mut self, token: &Token) {
        self.watches.take();
        self.stand(token, |place| *place = None);
        self.is_holder.set(false);
        let leases: Vec<u64> = std::mem::take(&mut *self.leases.borrow_mut()).into_iter().collect();
        // Another process may use these leases, too: end only those without keys.
        if self.mine(token).is_none() {
            self.let_go(&leases).ok();
        } else if !leases.is_empty() {
            self.client.revoke(&leases).ok();
        }
    }

    fn is_mine(&self, token: &Token) -> bool {
        self.mine(token).is_some()
    }

    fn give_up(&self, token: &Token) {
        if let Some(mine) = self.mine(token) {
            mine.is_given_up.store(true, Ordering::SeqCst);
        }
    }

    fn is_given_up(&self, token: &Token) -> bool {
        self.mine(token).is_some_and(|mine| mine.is_given_up.load(Ordering::SeqCst))
    }

    fn was_ended(&self, _: &Token) -> bool {
        false
    }

    /// False: no end is published outside the record, for only etcd ends a lease.
    fn publish_lease(&self, _: &Token, _: Duration) -> bool {
        false
    }

    fn has_sessions(&self) -> bool {
        true
    }

    fn extend(&self, names: &Names, token: &Token, ttl: Duration) -> Result<bool, Error> {
        let lease = LeaseOf::Holder(seconds(ttl)).id(token);
        if !self.is_moved.take()
            && let Some((kept, _)) = self.client.keep(lease)?
        {
            self.kept.set(Some((lease, kept)));
            return Ok(true);
        }
        self.move_to(names, token, ttl)
    }

    fn publish_heartbeat(&self, _: &Names, token: &Token, _: Duration) -> bool {
        self.client.allow();
        let lease = LeaseOf::Waiter.id(token);
        match self.client.keep(lease) {
            Ok(Some(_)) => {
                let heard = Moment::now();
                self.stand(token, |place| place.iter_mut().for_each(|place| place.heard = heard));
                true
            }
            Ok(None) => {
                self.leases.borrow_mut().remove(&lease);
                false
            }
            Err(_) => false,
        }
    }

    /// A token that is still in a record is alive: when a record is read, a hold without a session
    /// ends. A watch reports when a session ends later.
    fn liveness(&self, token: &Token) -> Liveness<Token> {
        Liveness::Alive(token.clone())
    }

    fn forget(&self, _: &Token) {}

    fn sleep<'a>(
        &self,
        _: &Names,
        token: &Token,
        _: u64,
        mut others: impl Iterator<Item = &'a Token>,
        limit: Duration,
    ) -> Result<bool, Error> {
        self.client.allow();
        let heard = self.listen(token, &mut others, Moment::now().after(limit));
        self.is_holder.set(matches!(heard, Ok(true)));
        // A broken watch does not end the place in the queue. The next request shows whether
        // members answer.
        let failed = if heard.is_ok() { 0 } else { self.failed_watches.get().saturating_add(1) };
        let failed_watches = self.failed_watches.replace(failed);
        Ok(heard.unwrap_or_else(|_| {
            self.client.turn_away();
            let pause = (WATCH_RETRY * 2u32.pow(failed_watches.min(6))).min(HEARTBEAT).min(limit);
            interrupt::sleep_until(Moment::now().after(pause));
            true
        }))
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        Box::new(RequestSubscription {
            keys: self.clone(),
            names: names.iter().map(|name| name.as_str().to_owned()).collect(),
            token: token.clone(),
            listener,
            watches: None,
            backoff_until: Moment::now(),
        })
    }
}

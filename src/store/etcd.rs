//! How can etcd keep locks? The store `etcd://…`: a record for each lock, a key for each of those who wait for it, and sessions.
//! What is done with them is the engine's affair; here is what a cluster of etcd does for it.
//!
//! *A step takes two requests*: a read of the records and of who lives, and one transaction that writes, if no record has been
//! changed since; if one has, nothing is written and the engine begins again, with a linearizable read. So a request that
//! arrives late or twice changes nothing.
//!
//! *The lease is a session.* A holder has a lease of etcd, and a key on it beside the record; the key goes with the lease, and
//! with the key the hold. No time of a record is compared for that. A waiter has a short one, so that its place goes when it
//! is silent; its heartbeat keeps that lease and writes nothing. The ids of the leases follow from the token, so that asking
//! for one twice is asking once, and whoever has the token can keep it.
//!
//! *A lease is kept only as far as that is proved.* An old leader that does not know yet that there is a new one may say that it
//! has kept a lease, and the new one does not know of it. So after that the same member has to answer a linearizable request
//! of the same term: then the leader that kept the lease still was the leader, and one that comes later begins with the whole
//! lease ([`Keys::extend`]).
//!
//! *The time* is that of the member that answers, which tells it in whole seconds. Neither a lease nor who may have the lock
//! depends on it.

mod client;
mod draft;
mod entry;
mod hearing;
mod http;
mod lease;
mod mine;
mod probe;
mod read;
mod sweep;
mod words;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{HEARTBEAT, Record, Time};
use crate::store::engine::kept::Kept;
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written, listed_by};
use crate::store::net::alarm;
use crate::store::net::failure::silent;
use crate::store::{Endurance, Error, Listener, Subscription};
use client::Client;
use draft::Draft;
use entry::{Layout, Node};
use hearing::{Ears, Hearing};
use lease::{LeaseOf, seconds};
use mine::Mine;
use read::{Depth, Question, Source, garbled};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use words::{Act, Header, Pair, Range, Span, Txn};

pub use client::Target;

/// How long a waiter waits after its watch has failed; twice as long after each further failure, up to a heartbeat.
const DEAF: Duration = Duration::from_millis(25);
/// Whoever has more than so many before it looks at the records more rarely: to look it reads the names of all who wait.
const NEAR: u64 = 4;
/// Of so many first requests one removes what is too old to keep.
const TIDIES_EVERY: u32 = 512;

/// A cluster of etcd with locks in it.
pub type EtcdStore = Engine<Keys>;

impl EtcdStore {
    /// A cluster. It connects when it is first used.
    pub fn etcd(target: Target) -> Self {
        Self::new(Keys::over(Client::new(target)))
    }
}

/// What etcd does for the engine.
pub struct Keys {
    client: Client,
    mine: Option<Arc<Mine>>,
    /// Who asks, in the operation under way.
    asker: RefCell<Option<Token>>,
    /// The leases that the asker is known to have.
    leases: RefCell<BTreeSet<u64>>,
    /// Whether the asker is likely to find that it holds: it does, or was just woken.
    is_holder: Cell<bool>,
    /// Whether what was read last in the operation under way was not the newest.
    is_outrun: Cell<bool>,
    /// A lease that was kept, and who said so: it has to be proved.
    kept: Cell<Option<(u64, Header)>>,
    /// That the lease is not what it was taken for.
    is_moved: Cell<bool>,
    /// The revision of what was read last, of what was read last for whoever asks, and of what was written last.
    read: Cell<u64>,
    seen: Cell<u64>,
    wrote: Cell<u64>,
    ears: RefCell<Option<Ears>>,
    /// How many watches in a row failed.
    deaf: Cell<u32>,
}

impl Clone for Keys {
    /// Connections belong to the process that made them.
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
            ears: RefCell::default(),
            deaf: Cell::default(),
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout(&self.client.target.prefix)
    }
}

impl Adapter for Keys {
    type Entry = Node;
    type Watch = Token;

    /// Any user that can log in may be shown the names of keys, by asking what is on a lease.
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
        self.ears.take();
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
        // A write follows, and fails if this was not the newest.
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
        // Who waits and reads the last ends has not heard by that what happened before.
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
            // It has left since; the engine will see that when it writes.
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
            layout.name_of(&pair.key).ok_or_else(|| garbled(shown, prefix, "?", "its name is none"))
        };
        Ok(answer.ranges().flat_map(|range| range.kvs).map(name).collect())
    }

    fn tidy(&self) {
        if getrandom::u32().is_ok_and(|chance| chance % TIDIES_EVERY == 0) {
            self.remove_old().ok();
        }
    }

    fn now(&self) -> Duration {
        Moment::now().since_boot()
    }

    fn crowd(&self) -> u64 {
        NEAR
    }

    /// The end of whoever is before one is told by a watch, as a grant is.
    fn rarely(&self) -> u32 {
        16
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        let mine =
            Mine { token: token.clone(), is_given_up: AtomicBool::new(false), place: Mutex::new(None) };
        self.mine = Some(Arc::new(mine));
        Ok(Vec::new())
    }

    /// What is not given back here ends by itself.
    fn end(&mut self, token: &Token) {
        self.ears.take();
        self.stand(token, |place| *place = None);
        self.is_holder.set(false);
        let leases: Vec<u64> = std::mem::take(&mut *self.leases.borrow_mut()).into_iter().collect();
        // Whoever has begun them knows what is on them.
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

    /// Only etcd says how long a lease lasts.
    fn say_lease(&self, _: &Token, _: Duration) -> bool {
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

    fn say_heard(&self, _: &Names, token: &Token, _: Duration) -> bool {
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

    /// Those of whom a record tells live, and a watch tells when they do not.
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
        // A place in the queue does not end with a connection. Whether the members are there shows when they are asked.
        let failed = if heard.is_ok() { 0 } else { self.deaf.get().saturating_add(1) };
        let deaf = self.deaf.replace(failed);
        Ok(heard.unwrap_or_else(|_| {
            self.client.turn_away();
            let pause = (DEAF * 2u32.pow(deaf.min(6))).min(HEARTBEAT).min(limit);
            alarm::sleep_until(Moment::now().after(pause));
            true
        }))
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        Box::new(Hearing {
            keys: self.clone(),
            names: names.iter().map(|name| name.as_str().to_owned()).collect(),
            token: token.clone(),
            listener,
            ears: None,
            backoff_until: Moment::now(),
        })
    }
}

//! How can etcd keep locks? The store `etcd://…`: a record for each lock, a key for each of those who wait for it, and sessions.
//! What is done with them is the engine's affair; here is what a cluster of etcd does for it.
//!
//! *A step takes two requests*: a read of the records and of who lives, and one transaction that writes, if no record has been
//! changed since; if one has, nothing is written and the engine begins again, with a linearizable read. So a request that
//! arrives late or twice changes nothing. Who is woken because it was granted a lock alone is told the record by that, and
//! does not read it ([`Adapter::seen`]).
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
mod entry;
mod hearing;
mod http;
mod probe;
mod words;

use crate::clock::Moment;
use crate::law::{Due, HISTORY_KEPT, LOG_KEPT, Lock, Phase, Record, SILENCE, TICKET_KEPT, Time, millis};
use crate::lock::{Mode, Name, Names, Token};
use crate::store::engine::kept::Kept;
use crate::store::engine::queue::{Changes, Place, TOKEN, Waiting};
use crate::store::engine::{Adapter, CatchUp, Changed, Engine, Liveness, Written};
use crate::store::{Error, Listener, Subscription};
use client::{Client, Leased, grant, keep};
use entry::{Layout, Node, Row};
use hearing::{Ears, Hearing, News};
use http::{Failure, Request};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use words::{
    Act, Bytes, Compare, Header, LeaseAnswer, Number, Pair, Put, Range, RangeAnswer, Span, Txn, TxnAnswer,
    bundled,
};

pub use client::Target;

/// So many of a queue are read at once with all that is known of them.
const FRONT: u64 = 4;
/// In place of a token: that of all who wait behind those that were read.
const UNREAD: [u8; TOKEN] = [0xff; TOKEN];
/// So many locks one run may have: with more, giving them back to those who wait might not fit into a transaction.
const LOCKS_MOST: usize = 100;
/// Of so many holders at most it is asked how long their leases last.
const LEASES_ASKED: usize = 16;
/// How long one does who listens and whose watch ended.
const DEAF: Duration = Duration::from_millis(25);
/// Two watches tell of one step within this time of each other.
const TOUCHED_WITHIN: Duration = Duration::from_millis(5);
/// Whoever gives a lock to the next one waits up to this time before it ends its lease.
const LETS_PASS: Duration = Duration::from_millis(50);
/// A lease to hold with is asked for ahead of time if it is not shorter than that of a waiter, which keeps both, nor longer
/// than this, for that of a waiter that is killed lasts to its end.
const AHEAD_MOST: Duration = Duration::from_secs(300);
/// Of so many first requests one removes what is too old to keep.
const TIDIES_EVERY: u32 = 512;
/// So many records at most are looked at for that.
const TIDIED: u64 = 64;

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
    /// The lease that its hold is to have.
    wanted: Option<LeaseOf>,
    /// Whether the asker is likely to find that it holds: it does, or was just woken.
    is_holder: Cell<bool>,
    /// Whether what was read last in the operation under way was not the newest.
    is_outrun: Cell<bool>,
    /// How long the last write took, if a holder woke somebody by it.
    woke: Cell<Option<Duration>>,
    /// A lease that was kept, and who said so: it has to be proved.
    kept: Cell<Option<(u64, Header)>>,
    /// That the lease is not what it was taken for.
    is_moved: Cell<bool>,
    /// The revision of what was read last, of what was read last for whoever asks, and of what was written last.
    read: Cell<u64>,
    seen: Cell<u64>,
    wrote: Cell<u64>,
    /// What this process was told when it was woken last.
    told: RefCell<Option<Pair>>,
    ears: RefCell<Option<Ears>>,
}

/// The token of this process.
struct Mine {
    token: Token,
    is_given_up: AtomicBool,
    /// Its place in the queue, as it was heard of last.
    place: Mutex<Option<Standing>>,
}

/// A place in the queue: etcd forgets it when its owner is silent, and the owner does not.
#[derive(Clone)]
struct Standing {
    ticket: u64,
    since: u64,
    mode: Mode,
    note: Vec<u8>,
    heard: Moment,
}

/// Which locks to read.
struct Question<'q> {
    names: &'q BTreeSet<String>,
    me: Option<&'q Token>,
    depth: Depth,
    source: Source,
}

/// How much of a lock to read besides its record, its holders and the first who wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Nothing.
    Front,
    /// Who else waits, the last one, whoever asks, and who is directly before it.
    Places,
    /// All who wait, and the ends.
    All,
}

/// Who is to say what is so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A majority: it is the newest.
    Majority,
    /// The member that is asked, which may lag behind. A write that follows fails if it does.
    Member,
}

impl Clone for Keys {
    /// Connections belong to the process that made them.
    fn clone(&self) -> Self {
        Self { mine: self.mine.clone(), ..Self::over(self.client.clone()) }
    }
}

/// What is on a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeaseOf {
    /// One who waits.
    Waiter,
    /// One who holds, for so many seconds.
    Holder(u64),
}

impl LeaseOf {
    fn id(self, token: &Token) -> u64 {
        let text = match self {
            Self::Waiter => format!("dlock wait {}", token.secret()),
            Self::Holder(seconds) => format!("dlock hold {} {seconds}", token.secret()),
        };
        let digest = sha1_smol::Sha1::from(text).digest().bytes();
        let id = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        // They are signed, and zero is none.
        (id >> 1).max(1)
    }

    fn seconds(self) -> u64 {
        match self {
            Self::Waiter => SILENCE.as_secs(),
            Self::Holder(seconds) => seconds,
        }
    }
}

/// etcd counts whole seconds.
fn seconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl Keys {
    fn over(client: Client) -> Self {
        Self {
            client,
            mine: None,
            asker: RefCell::default(),
            leases: RefCell::default(),
            wanted: None,
            is_holder: Cell::default(),
            is_outrun: Cell::default(),
            woke: Cell::default(),
            kept: Cell::default(),
            is_moved: Cell::default(),
            read: Cell::default(),
            seen: Cell::default(),
            wrote: Cell::default(),
            told: RefCell::default(),
            ears: RefCell::default(),
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout(&self.client.target.prefix)
    }

    fn mine(&self, token: &Token) -> Option<&Mine> {
        self.mine.as_deref().filter(|mine| mine.token == *token)
    }

    /// The place that this process remembers, for as long as places are kept.
    fn standing(&self, token: &Token) -> Option<Standing> {
        let place = self.mine(token)?.place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        place.filter(|place| !place.heard.after(TICKET_KEPT).passed())
    }

    fn stand(&self, token: &Token, change: impl FnOnce(&mut Option<Standing>)) {
        if let Some(mine) = self.mine(token) {
            change(&mut mine.place.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Reads locks, and who lives, in one step.
    fn read(&self, question: &Question<'_>) -> Result<(Vec<Node>, Time), Error> {
        let (layout, standing) = (self.layout(), question.me.and_then(|me| self.standing(me)));
        let mut acts = Vec::new();
        let serializable = question.source == Source::Member;
        let mut ask = |range: Range| acts.push(Act::Range(Range { serializable, ..range }));
        for name in question.names {
            ask(Range { span: Span { key: layout.lock(name), range_end: None }, ..Range::default() });
            ask(layout.holds(name).whole());
            ask(layout.waiters(name, Place::Parked).whole());
            let queue = layout.waiters(name, Place::Queued);
            if question.depth == Depth::All {
                ask(queue.whole());
                ask(Range {
                    limit: Some(Number(LOG_KEPT as u64)),
                    sort_order: Some("DESCEND"),
                    ..layout.ends(name).whole()
                });
                continue;
            }
            ask(Range { limit: Some(Number(FRONT)), ..queue.clone().whole() });
            if question.depth == Depth::Front {
                continue;
            }
            ask(Range { keys_only: true, ..queue.clone().whole() });
            ask(Range { limit: Some(Number(1)), sort_order: Some("DESCEND"), ..queue.clone().whole() });
            if let (Some(me), Some(standing)) = (question.me, &standing) {
                // And who is before it.
                let mut end = layout.waiter(name, &standing.waiting(me)).0;
                end.push(0);
                let span = Span { range_end: Some(Bytes(end)), ..queue };
                ask(Range { limit: Some(Number(2)), sort_order: Some("DESCEND"), ..span.whole() });
            }
        }
        let (answer, now) = self.client.txn(&Txn { compare: Vec::new(), success: bundled(acts, 0) })?;
        self.check_kept(&answer.header)?;
        self.read.set(answer.header.revision.0);
        let mut ranges = answer.ranges();
        let shown = self.client.shown();
        let mut nodes = Vec::with_capacity(question.names.len());
        for name in question.names {
            let mut node = Node::absent(name);
            let mut next = || ranges.next().unwrap_or_default();
            let (record, sessions, parked, first) = (next().kvs, next().kvs, next().kvs, next());
            let rest = match question.depth {
                Depth::Front => Vec::new(),
                Depth::All => {
                    next().kvs.iter().for_each(|pair| node.add_end(pair));
                    Vec::new()
                }
                Depth::Places if standing.is_some() => [next().kvs, next().kvs, next().kvs].concat(),
                Depth::Places => [next().kvs, next().kvs].concat(),
            };
            let mut add = || {
                node.add_record(record.first(), now)?;
                sessions.iter().try_for_each(|pair| node.add_session(pair))?;
                parked.iter().try_for_each(|pair| node.add_waiter(pair, Place::Parked, now))?;
                let mut queued = first.kvs.iter().chain(&rest);
                queued.try_for_each(|pair| node.add_waiter(pair, Place::Queued, now))?;
                Ok::<_, String>(())
            };
            add().map_err(|why| garbled(shown, &self.client.target.prefix, name, &why))?;
            let queued = node.queue.waiting.iter().filter(|waiting| waiting.place == Place::Queued);
            let last = queued.map(|waiting| waiting.ticket).max();
            if question.depth == Depth::Front && first.count.0 > first.kvs.len() as u64 {
                let unread = |ticket| Waiting::new(UNREAD, ticket, Mode::Exclusive, Place::Queued);
                node.queue.waiting.extend(last.map(unread));
            } else if let (Some(me), Some(standing)) = (question.me, &standing) {
                node.remember(me, standing.waiting(me), &standing.note, now);
            }
            nodes.push(node);
        }
        self.check_sessions(question.me, &nodes)?;
        Ok((nodes, now))
    }

    /// Whoever has kept a lease had the right to: what was read now was read of the same member, in the same term.
    fn check_kept(&self, header: &Header) -> Result<(), Error> {
        match self.kept.get() {
            Some((_, kept)) if !is_same_term(&kept, header) => {
                self.kept.take();
                Err(self.unproved())
            }
            _ => Ok(()),
        }
    }

    /// And it is the lease that the hold is on.
    fn check_sessions(&self, me: Option<&Token>, nodes: &[Node]) -> Result<(), Error> {
        let Some((lease, _)) = self.kept.take() else { return Ok(()) };
        let mut sessions = nodes.iter().filter_map(|node| node.sessions.get(me?));
        if sessions.all(|(on, _)| *on == lease) {
            return Ok(());
        }
        self.is_moved.set(true);
        Err(self.unproved())
    }

    fn unproved(&self) -> Error {
        Error::Unavailable(format!(
            "{}: its leader, or the lease, changed while that was kept",
            self.client.shown()
        ))
    }

    /// Names all who wait for a lock, of whom only the first were read.
    fn read_rest(&self, node: &mut Node, now: Time) -> Result<(), Error> {
        let queue = self.layout().waiters(&node.name, Place::Queued);
        let range = Range { keys_only: true, ..queue.whole() };
        let (answer, _) = self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(range)] })?;
        node.queue.waiting.retain(|waiting| waiting.token != UNREAD);
        let mut pairs = answer.ranges().flat_map(|range| range.kvs);
        let added = pairs.try_for_each(|pair| node.add_waiter(&pair, Place::Queued, now));
        let (shown, prefix) = (self.client.shown(), &self.client.target.prefix);
        added.map_err(|why| garbled(shown, prefix, &node.name, why))?;
        node.queue.waiting.sort_by_key(Waiting::key);
        Ok(())
    }

    /// The leases, with what is left of those that are asked about.
    fn left(&self, nodes: &[Node]) -> Result<BTreeMap<u64, Duration>, Error> {
        let leases = nodes.iter().flat_map(|node| node.sessions.values().map(|(lease, _)| *lease));
        let leases: Vec<u64> = leases.collect::<BTreeSet<_>>().into_iter().take(LEASES_ASKED).collect();
        let mut left = BTreeMap::new();
        for (lease, looked) in leases.iter().zip(self.look_at(&leases)?) {
            // In its last second, and until it is gone, it is told as nothing.
            let shortest = Duration::from_millis(1);
            left.extend(looked.map(|looked| (*lease, Duration::from_secs(looked.ttl.0).max(shortest))));
        }
        Ok(left)
    }

    fn nodes(&self, question: &Question<'_>, with_left: bool) -> Result<(Vec<Node>, Time), Error> {
        self.asker.replace(question.me.cloned());
        let (mut nodes, now) = self.read(question)?;
        // Who waits and looks how a lock stands, as anybody may, has not heard by that what happened before.
        if question.me.is_some() {
            self.seen.set(self.read.get());
        }
        let left = if with_left { self.left(&nodes)? } else { BTreeMap::new() };
        for node in &mut nodes {
            node.judge(now, &left);
            if let Some(me) = question.me {
                let session = node.sessions.get(me).map(|(lease, _)| *lease);
                self.leases.borrow_mut().extend(session.into_iter().chain(node.leases.get(me).copied()));
            }
        }
        Ok((nodes, now))
    }
}

fn is_same_term(one: &Header, other: &Header) -> bool {
    (one.member_id, one.raft_term) == (other.member_id, other.raft_term)
}

/// To whom alone a lock was granted that has not confirmed it yet, where nobody else has anything of the lock.
fn granted_alone(record: &Record) -> Option<&Token> {
    let mut holds = record.holds.iter();
    let (Some((token, hold)), None) = (holds.next(), holds.next()) else { return None };
    let is_alone = matches!(&record.lock, Lock::Exclusive { token: owner, .. } if owner == token);
    (is_alone && hold.phase == Phase::Held && !hold.confirmed).then_some(token)
}

fn garbled(shown: &str, prefix: &str, name: &str, why: &str) -> Error {
    let key = |kind| Layout(prefix).key(kind, name);
    Error::Garbled(format!(
        "{shown}: what is kept of the lock {name:?} is not dlock's, or damaged ({why}); it was left as it is: when \
         nothing runs under it, delete the key {} and all keys that begin with {}/, {}/, {}/ or {}/",
        key("lock"),
        key("hold"),
        key("wait"),
        key("call"),
        key("end")
    ))
}

impl Standing {
    /// As it stands in the queue.
    fn waiting(&self, token: &Token) -> Waiting {
        let bytes = token.secret().as_bytes().try_into().unwrap_or_default();
        let mut waiting = Waiting::new(bytes, self.ticket, self.mode, Place::Queued);
        waiting.since = self.since;
        waiting
    }
}

/// What a step writes.
struct Draft<'a> {
    keys: &'a Keys,
    layout: Layout<'a>,
    me: Option<Token>,
    compare: Vec<Compare>,
    acts: Vec<Act>,
    /// The lease that whoever asks needs, and whether it has it.
    need: Option<(LeaseOf, Has)>,
    /// Its place in the queue.
    place: Option<Standing>,
    /// Whether it had something.
    was: bool,
    /// How many locks it has or waits for now.
    locks: usize,
    /// Those who were granted a lock alone, and the record of that.
    alone: Vec<(Token, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Yes(u64),
    No,
}

impl Draft<'_> {
    fn put(&mut self, key: Bytes, value: Vec<u8>, lease: Option<u64>) {
        let put = Put { key, value: Some(Bytes(value)), lease: lease.map(Number), ..Put::default() };
        self.acts.push(Act::Put(put));
    }

    fn delete(&mut self, key: Bytes) {
        self.acts.push(Act::Delete(Span { key, range_end: None }));
    }

    fn add(&mut self, mut node: Node, now: Time) -> Result<(), serde_json::Error> {
        let name = node.name.clone();
        let Changes { news, gone } = node.queue.changes(&node.record, &node.tracked);
        let mut gone: BTreeSet<Bytes> =
            gone.into_iter().map(|waiting| self.layout.waiter(&name, waiting)).collect();
        let mut come = Vec::new();
        for (waiting, note) in news {
            let Some(token) = waiting.token() else { continue };
            let note = match note {
                Some(note) => serde_json::to_vec(&note)?,
                None => node.notes.get(&token).cloned().unwrap_or_default(),
            };
            let before = node.queue.find(&token).map(|at| &node.queue.waiting[at]);
            gone.extend(before.map(|before| self.layout.waiter(&name, before)));
            let key = self.layout.waiter(&name, &waiting);
            gone.remove(&key);
            let lease = node.leases.get(&token).copied().filter(|_| self.me.as_ref() != Some(&token));
            let lease = lease.unwrap_or_else(|| LeaseOf::Waiter.id(&token));
            come.push((key, Row::of(&waiting, &note)?, lease));
            node.notes.insert(token, note);
        }
        gone.into_iter().for_each(|key| self.delete(key));
        come.into_iter().for_each(|(key, row, lease)| self.put(key, row, Some(lease)));
        let has_session = |record: &Record, token: &Token| {
            record.holds.get(token).is_some_and(|hold| hold.phase != Phase::Cooling)
        };
        for token in node.sessions.keys().filter(|token| !has_session(&node.record, token)) {
            let key = self.layout.hold(&name, token);
            self.delete(key);
        }
        self.add_mine(&node, now);
        let mut record = std::mem::take(&mut node.record);
        (record.waiters, record.queue) = Default::default();
        let mut ends = node.ends;
        for end in std::mem::take(&mut record.log).iter().rev() {
            ends += 1;
            let key = self.layout.end(&name, ends);
            self.put(key, serde_json::to_vec(end)?, None);
        }
        if ends > node.ends && ends > LOG_KEPT as u64 {
            let old = Some(self.layout.end(&name, ends - LOG_KEPT as u64 + 1));
            self.acts.push(Act::Delete(Span { range_end: old, ..self.layout.ends(&name) }));
        }
        let body = entry::body(ends, now.millis(), &record)?;
        if let Some(token) = granted_alone(&record) {
            self.alone.push((token.clone(), entry::tell(&name, &body)?));
        }
        let key = self.layout.lock(&name);
        self.put(key, body, None);
        Ok(())
    }

    /// What whoever asks has of this lock now.
    fn add_mine(&mut self, node: &Node, now: Time) {
        let Some(me) = self.me.clone() else { return };
        self.was |= node.sessions.contains_key(&me) || node.leases.contains_key(&me);
        let hold = node.record.holds.get(&me).filter(|hold| hold.phase == Phase::Held && hold.confirmed);
        self.locks += usize::from(hold.is_some() || node.record.waiters.contains_key(&me));
        if let Some(hold) = hold {
            let ttl = hold.until.left(now);
            match node.sessions.get(&me) {
                Some((lease, ttl)) => self.need = Some((LeaseOf::Holder(seconds(*ttl)), Has::Yes(*lease))),
                None => {
                    let of = LeaseOf::Holder(seconds(ttl));
                    self.need = Some((of, Has::No));
                    let key = self.layout.hold(&node.name, &me);
                    self.put(key, millis(ttl).to_string().into(), Some(of.id(&me)));
                }
            }
        } else if let Some(waiter) = node.record.waiters.get(&me) {
            let has = node.leases.get(&me).map_or(Has::No, |lease| Has::Yes(*lease));
            if !matches!(self.need, Some((LeaseOf::Holder(_), _)) | Some((_, Has::No))) {
                self.need = Some((LeaseOf::Waiter, has));
            }
            let note = node.notes.get(&me).cloned().unwrap_or_default();
            let heard = Moment::now();
            self.place = Some(Standing {
                ticket: waiter.ticket,
                since: waiter.since.0,
                mode: waiter.mode,
                note,
                heard,
            });
        }
    }

    /// Writes it.
    fn write(mut self, woken: &[Token]) -> Result<Written, Error> {
        let client = &self.keys.client;
        if self.locks > LOCKS_MOST {
            let shown = client.shown();
            return Err(Error::Unfit(format!(
                "{shown} takes no run of more than {LOCKS_MOST} locks at once"
            )));
        }
        if let Some(me) = self.me.clone() {
            let life = self.layout.life(&me);
            match self.need {
                Some((of, Has::No)) => self.put(life, Vec::new(), Some(of.id(&me))),
                None if self.was => self.delete(life),
                _ => {}
            }
        }
        for token in woken {
            let key = self.layout.life(token);
            // Who was granted one lock is told how that stands now. Others are told nothing, nor again what they were told before.
            let mut told = self.alone.iter().filter(|(of, _)| of == token).map(|(_, told)| told.clone());
            let value = told.next().filter(|_| told.next().is_none()).unwrap_or_default();
            let touch =
                Put { key: key.clone(), value: Some(Bytes(value)), ignore_lease: true, ..Put::default() };
            let touch = Txn { compare: vec![Compare::exists(key)], success: vec![Act::Put(touch)] };
            self.acts.push(Act::Txn(touch));
        }
        let (compare, acts) = (std::mem::take(&mut self.compare), std::mem::take(&mut self.acts));
        let success = bundled(acts, compare.len());
        let txn = Txn { compare, success };
        let need = self.me.as_ref().zip(self.need).map(|(me, (of, has))| match has {
            Has::Yes(lease) => (lease, of, has),
            Has::No => {
                let id = of.id(me);
                let is_there = self.keys.leases.borrow().contains(&id);
                (id, of, if is_there { Has::Yes(id) } else { Has::No })
            }
        });
        let mut requests = Vec::with_capacity(2);
        requests.extend(need.map(|(lease, of, has)| match has {
            Has::Yes(_) => keep(lease),
            Has::No => grant(lease, of.seconds()),
        }));
        requests.push(txn.request(client)?);
        let sent = Moment::now();
        let mut replies = client.ask(&requests)?;
        let (reply, leased) = (replies.pop(), replies.pop());
        // Somebody's lease has ended since this was read, perhaps the own one.
        if matches!(&reply, Some(Err(said)) if said.message.contains("lease not found")) {
            if let Some((lease, ..)) = need {
                self.keys.leases.borrow_mut().remove(&lease);
            }
            self.keys.is_outrun.set(true);
            return Ok(Written::Conflict);
        }
        if matches!(&reply, Some(Err(said)) if said.is_too_large()) {
            return Ok(Written::too_large(client.shown()));
        }
        let (answer, _) = client.txn_answer(reply)?;
        if !answer.succeeded {
            if let Some((lease, of, Has::No)) = need
                && client.leased(leased).is_ok_and(|leased| leased == Leased::New(of.seconds()))
            {
                self.keys.leases.borrow_mut().insert(lease);
            }
            self.keys.is_outrun.set(true);
            return Ok(Written::Conflict);
        }
        self.keys.wrote.set(answer.header.revision.0);
        let woke = self.keys.is_holder.get() && !woken.is_empty();
        self.keys.woke.set(woke.then(|| Moment::now().since(sent)));
        self.keys.is_holder.set(matches!(need, Some((_, LeaseOf::Holder(_), _))));
        if let (Some(me), Some((lease, of, has))) = (&self.me, need) {
            self.keys.check_lease(lease, of, has, leased, &answer.header)?;
            let mut leases = self.keys.leases.borrow_mut();
            leases.insert(lease);
            if of != LeaseOf::Waiter {
                leases.remove(&LeaseOf::Waiter.id(me));
            }
        }
        if let Some(me) = &self.me {
            self.keys.stand(me, |place| *place = self.place.take());
        }
        Ok(Written::Yes)
    }
}

impl Keys {
    /// Whether whoever asked has the lease that it needs, by what asking for it was answered, and the transaction behind that.
    fn check_lease(
        &self,
        id: u64,
        of: LeaseOf,
        has: Has,
        reply: Option<client::Reply>,
        answer: &Header,
    ) -> Result<(), Error> {
        if has != Has::No {
            let kept = self.client.kept(reply)?;
            return if kept.is_some_and(|(kept, _)| is_same_term(&kept, answer)) {
                Ok(())
            } else {
                Err(self.unproved())
            };
        }
        match (self.client.leased(reply)?, of) {
            (Leased::New(granted), LeaseOf::Holder(seconds)) if granted != seconds => {
                // With it goes what is on it.
                self.client.revoke(&[id])?;
                Err(self.too_short(granted))
            }
            (Leased::New(_), _) => Ok(()),
            // It may have been granted long before. What was written stands; it is kept, and proved.
            (Leased::Old, _) => {
                let kept = self.client.keep(id)?;
                let proof =
                    Range { span: Span { key: self.layout().lock(""), range_end: None }, ..Range::default() };
                let txn = Txn { compare: Vec::new(), success: vec![Act::Range(proof)] };
                let (answer, _) = self.client.txn(&txn)?;
                let is_proved = kept.is_some_and(|(kept, _)| is_same_term(&kept, &answer.header));
                if is_proved { Ok(()) } else { Err(self.unproved()) }
            }
        }
    }

    /// Asks how long leases last, and what is on them.
    fn look_at(&self, leases: &[u64]) -> Result<Vec<Option<LeaseAnswer>>, Error> {
        let request = |lease: &u64| Request {
            path: "kv/lease/timetolive",
            body: json!({ "ID": Number(*lease), "keys": true }).to_string(),
        };
        let requests: Vec<Request> = leases.iter().map(request).collect();
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let replies = self.client.ask(&requests)?;
        let parsed =
            replies.into_iter().map(|reply| reply.ok().map(|good| self.client.parse(&good.body)).transpose());
        Ok(parsed.collect::<Result<_, _>>()?)
    }

    /// Asks for the lease of a hold to come, so that a grant need not wait for it.
    fn lease_ahead(&self, token: &Token) -> Result<(), Error> {
        let Some(of @ LeaseOf::Holder(seconds)) = self.wanted else { return Ok(()) };
        let lease = of.id(token);
        let is_worth_it = (SILENCE.as_secs()..=AHEAD_MOST.as_secs()).contains(&seconds);
        if !is_worth_it || self.leases.borrow().contains(&lease) {
            return Ok(());
        }
        let mut replies = self.client.ask(&[grant(lease, seconds)])?;
        if let Leased::New(granted) = self.client.leased(replies.pop())?
            && granted != seconds
        {
            self.client.revoke(&[lease])?;
            return Err(self.too_short(granted));
        }
        self.leases.borrow_mut().insert(lease);
        Ok(())
    }

    fn too_short(&self, granted: u64) -> Error {
        Error::Unfit(format!(
            "{} grants no lease shorter than {granted} s, by its election timeout; use --ttl {granted}s or longer",
            self.client.shown()
        ))
    }

    /// Ends leases that nothing is on any more. One that this does not reach ends by itself.
    fn let_go(&self, leases: &[u64]) -> Result<(), Error> {
        let looked = leases.iter().zip(self.look_at(leases)?);
        let is_empty =
            |looked: &Option<LeaseAnswer>| looked.as_ref().is_some_and(|looked| looked.keys.is_empty());
        let empty: Vec<u64> =
            looked.filter(|(_, looked)| is_empty(looked)).map(|(lease, _)| *lease).collect();
        if !empty.is_empty() {
            self.client.revoke(&empty)?;
        }
        Ok(())
    }

    /// Puts a hold on a lease of another length, if it is one.
    fn move_to(&self, names: &Names, token: &Token, ttl: Duration) -> Result<bool, Error> {
        let (layout, of) = (self.layout(), LeaseOf::Holder(seconds(ttl)));
        let keys: Vec<Bytes> = names.iter().map(|name| layout.hold(name.as_str(), token)).collect();
        let range = |key: &Bytes| {
            Act::Range(Range { span: Span { key: key.clone(), range_end: None }, ..Range::default() })
        };
        let acts = keys.iter().map(range).collect();
        let (answer, _) = self.client.txn(&Txn { compare: Vec::new(), success: bundled(acts, 0) })?;
        let found: Vec<Pair> = answer.ranges().flat_map(|range| range.kvs).collect();
        if found.len() < keys.len() {
            return Ok(false);
        }
        let old: Vec<u64> =
            found.iter().map(|pair| pair.lease.0).filter(|lease| *lease != of.id(token)).collect();
        let compare: Vec<_> = keys.iter().cloned().map(Compare::exists).collect();
        let mut acts = Vec::new();
        for key in keys.into_iter().chain([layout.life(token)]) {
            let value = if key == layout.life(token) { Vec::new() } else { millis(ttl).to_string().into() };
            let (value, lease) = (Some(Bytes(value)), Some(Number(of.id(token))));
            acts.push(Act::Put(Put { key, value, lease, ..Put::default() }));
        }
        let success = bundled(acts, compare.len());
        let txn = Txn { compare, success };
        let mut replies =
            self.client.ask(&[grant(of.id(token), of.seconds()), txn.request(&self.client)?])?;
        let (answer, _) = self.client.txn_answer(replies.pop())?;
        if !answer.succeeded {
            return Ok(false);
        }
        self.check_lease(of.id(token), of, Has::No, replies.pop(), &answer.header)?;
        self.leases.borrow_mut().insert(of.id(token));
        self.let_go(&old).ok();
        Ok(true)
    }

    fn listen(
        &self,
        token: &Token,
        others: &mut dyn Iterator<Item = &Token>,
        until: Moment,
    ) -> Result<bool, Failure> {
        let layout = self.layout();
        let mut keys = BTreeSet::from([(layout.life(token), News::All)]);
        keys.extend(others.map(|other| (layout.life(other), News::End)));
        let (client, seen, wrote) = (&self.client, self.seen.get(), self.wrote.get());
        let mut ears = match self.ears.take() {
            Some(ears) if ears.is_for(client, &keys) => ears,
            _ => Ears::open(client, keys, seen, client.by.get())?,
        };
        let new = |revision| revision > seen && revision != wrote;
        let mut heard = ears.hear(client, new, until)?;
        let life = layout.life(token);
        // Whoever hears first that the one before it went hears in a moment what it was granted by that.
        if !heard.is_empty() && heard.iter().all(|pair| pair.key != life) {
            heard.extend(ears.hear(client, new, Moment::now().after(TOUCHED_WITHIN))?);
        }
        self.ears.replace(Some(ears));
        let is_heard = !heard.is_empty();
        let touch = heard.into_iter().rfind(|pair| pair.key == life);
        self.told.replace(touch.filter(|touch| !touch.value.0.is_empty()));
        Ok(is_heard)
    }

    /// Removes what nobody has used for twice as long as it is kept, of what was not written for longest.
    fn remove_old(&self) -> Result<(), Error> {
        let layout = self.layout();
        let oldest = Range {
            limit: Some(Number(TIDIED)),
            sort_order: Some("ASCEND"),
            sort_target: Some("MOD"),
            ..layout.locks().whole()
        };
        let (answer, now) =
            self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(oldest)] })?;
        for pair in answer.ranges().flat_map(|range| range.kvs) {
            let used = entry::free_since(&pair.value.0, now).unwrap_or(u64::MAX);
            let Some(name) = layout.name_of(&pair.key) else { continue };
            if now.millis().saturating_sub(used) > 2 * millis(HISTORY_KEPT) {
                let compare = vec![Compare::unchanged(pair.key.clone(), pair.mod_revision.0)];
                let record = Act::Delete(Span { key: pair.key, range_end: None });
                let success = vec![record, Act::Delete(layout.ends(&name))];
                self.client.txn(&Txn { compare, success })?;
            }
        }
        Ok(())
    }
}

impl TxnAnswer {
    /// What the ranges were answered, in order.
    fn ranges(self) -> impl Iterator<Item = RangeAnswer> {
        let ranges = |response: words::Response| -> Vec<RangeAnswer> {
            let within = response.response_txn.into_iter().flat_map(|txn| txn.responses);
            let within = within.map(|response| response.response_range);
            std::iter::once(response.response_range).chain(within).flatten().collect()
        };
        self.responses.into_iter().flat_map(ranges)
    }
}

impl Adapter for Keys {
    type Entry = Node;
    type Watch = Token;

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
            let (mut nodes, now) =
                self.nodes(&Question { names, me: Some(me), depth: Depth::Front, source }, false)?;
            let is_enough =
                |node: &mut Node| node.record.holds.contains_key(me) && node.record.newest.is_none();
            if nodes.iter_mut().all(is_enough) {
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

    /// Whoever granted the lock has told, in the step that did, what it wrote. What is written by that is written only if
    /// the record is still that one.
    fn seen(&self, names: &BTreeSet<String>, me: &Token) -> Option<(Vec<Node>, Time)> {
        let (told, standing) = (self.told.take()?, self.standing(me)?);
        let (name, body) = entry::told(&told.value)?;
        let now = self.client.now()?;
        let mut node = Node::absent(&name);
        let revision = told.mod_revision.0;
        node.add_record(Some(&Pair { value: body, ..told }), now).ok()?;
        let is_enough = names.iter().eq([&name])
            && granted_alone(&node.record) == Some(me)
            && node.record.newest.is_none();
        if !is_enough {
            return None;
        }
        let mut waiting = standing.waiting(me);
        (waiting.place, waiting.silent) = (Place::Parked, Due::after(now, SILENCE).0);
        waiting.forget = Due::after(now, TICKET_KEPT).0;
        node.queue.waiting.push(waiting);
        node.notes.insert(me.clone(), standing.note);
        node.leases.insert(me.clone(), LeaseOf::Waiter.id(me));
        node.judge(now, &BTreeMap::new());
        self.asker.replace(Some(me.clone()));
        self.seen.set(revision);
        Some((vec![node], now))
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
        let layout = self.layout();
        let unchanged =
            |(node, _): &(Node, Changed)| Compare::unchanged(layout.lock(&node.name), node.version);
        let mut draft = Draft {
            keys: self,
            layout: self.layout(),
            me: self.asker.borrow().clone(),
            compare: entries.iter().map(unchanged).collect(),
            acts: Vec::new(),
            need: None,
            place: None,
            was: false,
            locks: 0,
            alone: Vec::new(),
        };
        for (node, _) in entries.into_iter().filter(|(_, changed)| *changed == Changed::Yes) {
            draft
                .add(node, now)
                .map_err(|error| Error::Garbled(format!("{}: {error}", self.client.shown())))?;
        }
        draft.write(woken)
    }

    fn release(&self, _: Vec<Node>) {}

    fn names(&self) -> Result<Vec<Result<String, Error>>, Error> {
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

    fn attend(&mut self, _: &Token, ttl: Duration) {
        self.wanted = Some(LeaseOf::Holder(seconds(ttl)));
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
        // Whoever was woken writes now, and etcd writes one thing after the other.
        if let Some(took) = self.woke.take() {
            thread::sleep((2 * took).min(LETS_PASS));
        }
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
        let waits = LeaseOf::Waiter.id(token);
        let mut leases = vec![waits];
        let ahead = self.wanted.map(|of| of.id(token));
        leases.extend(ahead.filter(|lease| self.leases.borrow().contains(lease)));
        let requests: Vec<Request> = leases.iter().map(|lease| keep(*lease)).collect();
        let Ok(replies) = self.client.ask(&requests) else { return false };
        let mut is_kept = false;
        for (lease, reply) in leases.into_iter().zip(replies) {
            let is_there = matches!(self.client.kept(Some(reply)), Ok(Some(_)));
            is_kept |= is_there && lease == waits;
            if !is_there {
                self.leases.borrow_mut().remove(&lease);
            }
        }
        if is_kept {
            let heard = Moment::now();
            self.stand(token, |place| place.iter_mut().for_each(|place| place.heard = heard));
        }
        is_kept
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
        _: Option<BorrowedFd<'_>>,
    ) -> Result<bool, Error> {
        self.client.allow();
        self.lease_ahead(token).or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) })?;
        let heard = self.listen(token, &mut others, Moment::now().after(limit));
        self.is_holder.set(matches!(heard, Ok(true)));
        // A place in the queue does not end with a connection. Whether the members are there shows when they are asked.
        Ok(heard.unwrap_or_else(|_| {
            self.client.turn_away();
            thread::sleep(DEAF.min(limit));
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

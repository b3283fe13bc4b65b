//! Reads locks in one etcd transaction: the records, the holders' sessions, and as many of the
//! waiters as the operation needs.

use super::Keys;
use super::entry::{Layout, Node};
use super::own_state::Standing;
use super::words::{Act, Bytes, Number, Range, Span, Txn, TxnAnswer, bundled};
use crate::lock::Token;
use crate::rules::{LOG_KEPT, Time};
use crate::store::Error;
use crate::store::engine::queue::{Place, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Number of waiters at the head of a queue that are read with their values.
const FRONT: u64 = 4;
/// Most leases whose remaining time is looked up.
const LEASES_ASKED: usize = 16;

/// Which locks to read.
pub struct Question<'q> {
    pub names: &'q BTreeSet<String>,
    pub me: Option<&'q Token>,
    pub depth: Depth,
    pub source: Source,
}

/// How much of a lock to read besides its record, its holders, all suspended waiters and the head
/// of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Nothing.
    Front,
    /// The names of all waiters and the value of the last one. If this process remembers the
    /// caller's place, also the values of the caller and its predecessor.
    Places,
    /// All waiters and the ends.
    All,
}

/// How current the answer has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Linearizable: a majority confirms that the answer is current.
    Majority,
    /// Serializable: the asked member's own state, which may lag behind. A write that follows then
    /// fails.
    Member,
}

impl Keys {
    pub(super) fn nodes(&self, question: &Question<'_>, with_left: bool) -> Result<(Vec<Node>, Time), Error> {
        self.asker.replace(question.me.cloned());
        let (mut nodes, now) = self.read(question)?;
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

    /// Reads the locks and the sessions in one transaction.
    pub(super) fn read(&self, question: &Question<'_>) -> Result<(Vec<Node>, Time), Error> {
        let standing = question.me.and_then(|me| self.standing(me));
        let acts = self.asked(question, standing.as_ref());
        let (answer, now) = self.client.txn(&Txn { compare: Vec::new(), success: bundled(acts, 0) })?;
        self.check_kept(&answer.header)?;
        self.read.set(answer.header.revision.0);
        let nodes = self.answered(question, standing.as_ref(), answer, now)?;
        self.check_sessions(question.me, &nodes)?;
        Ok((nodes, now))
    }

    /// The ranges to read, in the order that [`Keys::answered`] expects.
    pub(super) fn asked(&self, question: &Question<'_>, standing: Option<&Standing>) -> Vec<Act> {
        let layout = self.layout();
        let mut acts = Vec::new();
        let serializable = question.source == Source::Member;
        let mut ask = |range: Range| acts.push(Act::Range(Range { serializable, ..range }));
        for name in question.names {
            ask(Range { span: Span { key: layout.lock(name), range_end: None }, ..Range::default() });
            ask(layout.holds(name).whole());
            ask(layout.waiters(name, Place::Suspended).whole());
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
            if let (Some(me), Some(standing)) = (question.me, standing) {
                // The caller and its predecessor.
                let mut end = layout.waiter(name, &standing.waiting(me)).0;
                end.push(0);
                let span = Span { range_end: Some(Bytes(end)), ..queue };
                ask(Range { limit: Some(Number(2)), sort_order: Some("DESCEND"), ..span.whole() });
            }
        }
        acts
    }

    /// Builds the locks from the answer.
    pub(super) fn answered(
        &self,
        question: &Question<'_>,
        standing: Option<&Standing>,
        answer: TxnAnswer,
        now: Time,
    ) -> Result<Vec<Node>, Error> {
        let mut ranges = answer.ranges();
        let shown = self.client.shown();
        let mut nodes = Vec::with_capacity(question.names.len());
        for name in question.names {
            let mut node = Node::absent(name);
            let mut next = || ranges.next().unwrap_or_default();
            let (record, sessions, suspended, first) = (next().kvs, next().kvs, next().kvs, next());
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
                suspended.iter().try_for_each(|pair| node.add_waiter(pair, Place::Suspended, now))?;
                let mut queued = first.kvs.iter().chain(&rest);
                queued.try_for_each(|pair| node.add_waiter(pair, Place::Queued, now))?;
                Ok::<_, String>(())
            };
            add().map_err(|why| garbled(shown, &self.client.target.prefix, name, &why))?;
            let queued = node.queue.waiting.iter().filter(|waiting| waiting.place == Place::Queued);
            let last = queued.map(|waiting| waiting.ticket).max();
            if question.depth == Depth::Front && first.count.0 > first.kvs.len() as u64 {
                node.queue.waiting.extend(last.map(Waiting::unread));
            } else if let (Some(me), Some(standing)) = (question.me, standing) {
                node.remember(me, standing.waiting(me), &standing.note, now);
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// Reads the names of all waiters, where only the head of the queue was read.
    pub(super) fn read_rest(&self, node: &mut Node, now: Time) -> Result<(), Error> {
        let queue = self.layout().waiters(&node.name, Place::Queued);
        let range = Range { keys_only: true, ..queue.whole() };
        let (answer, _) = self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(range)] })?;
        node.queue.drop_unread();
        let mut pairs = answer.ranges().flat_map(|range| range.kvs);
        let added = pairs.try_for_each(|pair| node.add_waiter(&pair, Place::Queued, now));
        let (shown, prefix) = (self.client.shown(), &self.client.target.prefix);
        added.map_err(|why| garbled(shown, prefix, &node.name, why))?;
        node.queue.waiting.sort_by_key(Waiting::key);
        Ok(())
    }

    /// Looks up the remaining time of the holders' leases.
    fn left(&self, nodes: &[Node]) -> Result<BTreeMap<u64, Duration>, Error> {
        let leases = nodes.iter().flat_map(|node| node.sessions.values().map(|(lease, _)| *lease));
        let leases: Vec<u64> = leases.collect::<BTreeSet<_>>().into_iter().take(LEASES_ASKED).collect();
        let mut left = BTreeMap::new();
        for (lease, looked) in leases.iter().zip(self.look_at(&leases)?) {
            // etcd reports 0 in a lease's last second, and until it has removed an expired one.
            let shortest = Duration::from_millis(1);
            left.extend(looked.map(|looked| (*lease, Duration::from_secs(looked.ttl.0).max(shortest))));
        }
        Ok(left)
    }
}

pub fn garbled(shown: &str, prefix: &str, name: &str, why: &str) -> Error {
    let key = |kind| Layout(prefix).key(kind, name);
    Error::Garbled(format!(
        "{shown}: the record of the lock {name:?} is not dlock's, or damaged ({why}); it was not changed: when \
         nothing runs under it, delete the key {} and all keys that begin with {}/, {}/, {}/ or {}/",
        key("lock"),
        key("hold"),
        key("wait"),
        key("call"),
        key("end")
    ))
}

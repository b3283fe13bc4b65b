//! The write of an operation: a request for the lease that the caller needs, and in the same batch
//! one transaction: records, sessions, waiters, ends, and a touch of each woken token's `life/`.

use super::Keys;
use super::client::{Leased, grant, keep};
use super::entry::{self, Layout, Node, Row};
use super::lease::{Has, LeaseOf, seconds};
use super::own_state::Standing;
use super::words::{Act, Bytes, Compare, Number, Put, Span, Txn, bundled};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{LOG_KEPT, Phase, Record, Time, millis};
use crate::store::Error;
use crate::store::engine::queue::Changes;
use crate::store::engine::{Changed, Written};
use std::collections::BTreeSet;

/// Most locks of one run. With more, the transaction that releases them to their waiters might be
/// too large for etcd.
const LOCKS_MOST: usize = 100;

/// The transaction as it is built.
pub struct Draft<'a> {
    keys: &'a Keys,
    layout: Layout<'a>,
    me: Option<Token>,
    compare: Vec<Compare>,
    acts: Vec<Act>,
    /// The lease that the caller needs, and whether the caller has it.
    need: Option<(LeaseOf, Has)>,
    /// The caller's place in the queue.
    place: Option<Standing>,
    /// Whether the caller held or waited for one of the locks.
    was: bool,
    /// How many locks the caller now holds or waits for.
    locks: usize,
}

impl<'a> Draft<'a> {
    /// A draft that writes only if none of these records has changed since it was read.
    pub fn new(keys: &'a Keys, entries: &[(Node, Changed)]) -> Self {
        let layout = keys.layout();
        let unchanged =
            |(node, _): &(Node, Changed)| Compare::unchanged(layout.lock(&node.name), node.version);
        let compare: Vec<Compare> = entries.iter().map(unchanged).collect();
        let me = keys.asker.borrow().clone();
        Self { keys, layout, compare, me, acts: Vec::new(), need: None, place: None, was: false, locks: 0 }
    }

    fn put(&mut self, key: Bytes, value: Vec<u8>, lease: Option<u64>) {
        let put = Put { key, value: Some(Bytes(value)), lease: lease.map(Number), ..Put::default() };
        self.acts.push(Act::Put(put));
    }

    fn delete(&mut self, key: Bytes) {
        self.acts.push(Act::Delete(Span { key, range_end: None }));
    }

    /// Adds the changes of one lock: to its waiters, its sessions, its record and its ends.
    pub fn add(&mut self, mut node: Node, now: Time) -> Result<(), serde_json::Error> {
        let name = node.name.clone();
        let Changes { news, gone } = node.queue.changes(&node.record, &node.tracked);
        let mut gone: BTreeSet<Bytes> =
            gone.into_iter().map(|waiting| self.layout.waiter(&name, waiting)).collect();
        let mut added = Vec::new();
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
            added.push((key, Row::of(&waiting, &note)?, lease));
            node.notes.insert(token, note);
        }
        gone.into_iter().for_each(|key| self.delete(key));
        added.into_iter().for_each(|(key, row, lease)| self.put(key, row, Some(lease)));
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
        let key = self.layout.lock(&name);
        self.put(key, body, None);
        Ok(())
    }

    /// Adds the caller's hold or place in the queue, and notes the lease for it.
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

    /// Sends the transaction.
    pub fn write(mut self, woken: &[Token]) -> Result<Written, Error> {
        let client = &self.keys.client;
        if self.locks > LOCKS_MOST {
            let shown = client.shown();
            return Err(Error::Unfit(format!("{shown} cannot take more than {LOCKS_MOST} locks at once")));
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
            let touch =
                Put { key: key.clone(), value: Some(Bytes::default()), ignore_lease: true, ..Put::default() };
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
        let mut replies = client.ask(&requests)?;
        let (reply, leased) = (replies.pop(), replies.pop());
        // A lease that the transaction refers to has ended since the read, perhaps the caller's
        // own.
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
        let header = answer.header;
        self.keys.wrote.set(header.revision.0);
        self.keys.is_holder.set(matches!(need, Some((_, LeaseOf::Holder(_), _))));
        if let (Some(me), Some((lease, of, has))) = (&self.me, need) {
            self.keys.check_lease(lease, of, has, leased, &header)?;
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

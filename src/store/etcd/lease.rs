//! Who has a session, and how is that proved? The leases of those who hold and wait: asked for, kept, looked at, exchanged
//! for others, ended.

use super::Keys;
use super::client::{self, Leased, grant};
use super::entry::Node;
use super::http::Request;
use super::words::{Act, Bytes, Compare, Header, LeaseAnswer, Number, Pair, Put, Range, Span, Txn, bundled};
use crate::lock::{Names, Token};
use crate::rules::{SILENCE, millis};
use crate::store::Error;
use serde_json::json;
use std::time::Duration;

/// What is on a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LeaseOf {
    /// One who waits.
    Waiter,
    /// One who holds, for so many seconds.
    Holder(u64),
}

impl LeaseOf {
    pub fn id(self, token: &Token) -> u64 {
        let text = match self {
            Self::Waiter => format!("dlock wait {}", token.secret()),
            Self::Holder(seconds) => format!("dlock hold {} {seconds}", token.secret()),
        };
        let digest = sha1_smol::Sha1::from(text).digest().bytes();
        let id = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        // They are signed, and zero is none.
        (id >> 1).max(1)
    }

    pub fn seconds(self) -> u64 {
        match self {
            Self::Waiter => SILENCE.as_secs(),
            Self::Holder(seconds) => seconds,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Has {
    Yes(u64),
    No,
}

/// etcd counts whole seconds.
pub fn seconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl Keys {
    /// Whether whoever asked has the lease that it needs, by what asking for it was answered, and the transaction behind that.
    pub(super) fn check_lease(
        &self,
        id: u64,
        of: LeaseOf,
        has: Has,
        reply: Option<client::Reply>,
        answer: &Header,
    ) -> Result<(), Error> {
        if has != Has::No {
            let kept = self.client.kept(reply)?;
            return self.check_proved(id, of, kept, answer);
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
                self.check_proved(id, of, kept, &answer.header)
            }
        }
    }

    /// Whether the lease was kept by a member that had the right to, and is as long as was asked for. Any user of etcd may have
    /// asked for a lease with this id before, of another length.
    fn check_proved(
        &self,
        id: u64,
        of: LeaseOf,
        kept: Option<(Header, u64)>,
        answer: &Header,
    ) -> Result<(), Error> {
        match kept {
            Some((_, length)) if length < of.seconds() => {
                self.leases.borrow_mut().remove(&id);
                self.client.revoke(&[id])?;
                Err(self.unproved())
            }
            Some((kept, _)) if is_same_term(&kept, answer) => Ok(()),
            _ => Err(self.unproved()),
        }
    }

    /// Whoever has kept a lease had the right to: what was read now was read of the same member, in the same term.
    pub(super) fn check_kept(&self, header: &Header) -> Result<(), Error> {
        match self.kept.get() {
            Some((_, kept)) if !is_same_term(&kept, header) => {
                self.kept.take();
                Err(self.unproved())
            }
            _ => Ok(()),
        }
    }

    /// And it is the lease that the hold is on.
    pub(super) fn check_sessions(&self, me: Option<&Token>, nodes: &[Node]) -> Result<(), Error> {
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

    /// Asks how long leases last, and what is on them.
    pub(super) fn look_at(&self, leases: &[u64]) -> Result<Vec<Option<LeaseAnswer>>, Error> {
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

    fn too_short(&self, granted: u64) -> Error {
        Error::Unfit(format!(
            "{} grants no lease shorter than {granted} s, by its election timeout; use --ttl {granted}s or longer",
            self.client.shown()
        ))
    }

    /// Ends leases that nothing is on any more. One that this does not reach ends by itself.
    pub(super) fn let_go(&self, leases: &[u64]) -> Result<(), Error> {
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
    pub(super) fn move_to(&self, names: &Names, token: &Token, ttl: Duration) -> Result<bool, Error> {
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
}

fn is_same_term(one: &Header, other: &Header) -> bool {
    (one.member_id, one.raft_term) == (other.member_id, other.raft_term)
}

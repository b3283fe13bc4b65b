//! The etcd leases of holders and waiters: granted, kept alive and proved, looked up, revoked. A
//! hold whose ttl changes moves to another lease.

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

/// The use of a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LeaseOf {
    /// A waiter.
    Waiter,
    /// A holder, for this many seconds.
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
        // etcd's lease ids are signed, and 0 means no lease.
        (id >> 1).max(1)
    }

    pub fn seconds(self) -> u64 {
        match self {
            Self::Waiter => SILENCE.as_secs(),
            Self::Holder(seconds) => seconds,
        }
    }
}

/// Whether the caller has the lease that it needs already, and its id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Has {
    Yes(u64),
    No,
}

/// A ttl in etcd's whole seconds, rounded up.
pub fn seconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl Keys {
    /// Checks that the caller has the lease that it needs. `reply` is the answer to the grant or
    /// keep-alive, `answer` the header of the transaction sent after it.
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
                // This also deletes the keys that were just put on it.
                self.client.revoke(&[id])?;
                Err(self.too_short(granted))
            }
            (Leased::New(_), _) => Ok(()),
            // The lease may be old and about to end. The transaction has been applied, so renew and
            // prove the lease.
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

    /// Checks that the leader of that term was still the leader when it renewed the lease, and that
    /// the lease is as long as asked for: any user of etcd may have created a shorter one with this
    /// id.
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

    /// Checks that this read proves the last keep-alive: the same member answered, in the same
    /// term.
    pub(super) fn check_kept(&self, header: &Header) -> Result<(), Error> {
        match self.kept.get() {
            Some((_, kept)) if !is_same_term(&kept, header) => {
                self.kept.take();
                Err(self.unproved())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the lease that was kept alive is the one that the hold is on.
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
            "{}: its leader or the lease changed while etcd confirmed the lease",
            self.client.shown()
        ))
    }

    /// Looks up the remaining time of leases, and the keys on them.
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
            "{} grants no lease shorter than {granted} s (its election timeout); use --ttl {granted}s or longer",
            self.client.shown()
        ))
    }

    /// Revokes those leases that have no keys left. A lease that is left behind expires.
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

    /// Moves a hold to a lease of this length. Returns false if the token does not hold all the
    /// locks.
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

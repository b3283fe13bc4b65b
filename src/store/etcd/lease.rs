//! The etcd leases of holders and waiters: their ids, the checks that a grant or a keep-alive
//! counts, lookup and revocation.

use super::Keys;
use super::client::Reply;
use super::http::Request;
use super::messages::{Header, LeaseAnswer, Number, Span};
use super::read::Sessions;
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{HEARTBEAT, SILENCE};
use crate::store::Error;
use serde_json::json;
use std::time::Duration;

/// Length of a waiter's lease: three times the silence that other stores allow, because a
/// heartbeat, a request to the JSON gateway, costs etcd more than a millisecond.
const WAITER: Duration = SILENCE.saturating_mul(3);
/// Longest time between two heartbeats of a waiter. Two of them fit into [`WAITER`].
pub const WAITER_HEARTBEAT: Duration = HEARTBEAT.saturating_mul(4);

/// Whose lease it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LeaseOf {
    /// A waiter.
    Waiter,
    /// A holder, for this many seconds.
    Holder(u64),
}

impl LeaseOf {
    /// The lease of a session with this ttl.
    pub fn session(ttl: Duration) -> Self {
        if ttl.is_zero() { Self::Waiter } else { Self::Holder(seconds(ttl)) }
    }

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
            Self::Waiter => WAITER.as_secs(),
            Self::Holder(seconds) => seconds,
        }
    }
}

/// A ttl in etcd's whole seconds, rounded up.
pub fn seconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

impl Keys {
    /// Checks that the caller has the lease that it asked for. `reply` is the answer to that
    /// request, after which a transaction has put keys on the lease.
    pub(super) fn check_granted(
        &mut self,
        id: u64,
        of: LeaseOf,
        reply: Option<Reply>,
        deadline: Moment,
    ) -> Result<(), Error> {
        match (self.client.granted(reply)?, of) {
            (Some(granted), LeaseOf::Holder(seconds)) if granted != seconds => {
                // This also deletes the keys that were just put on it.
                self.client.revoke(&[id], deadline)?;
                Err(self.too_short(granted))
            }
            (Some(_), _) => Ok(()),
            // The lease may be old and about to end. The transaction has been applied, so renew and
            // prove the lease.
            (None, _) => {
                let kept_alive = self.client.keep(id, deadline)?;
                let proof = Span::one(self.layout().lock("")).whole();
                let (read, _) = self.client.read(vec![proof], deadline)?;
                self.check_proved(id, of, kept_alive, &read.header, deadline)
            }
        }
    }

    /// Checks that the leader that renewed the lease was still the leader then, and that the lease
    /// is as long as asked for: any user of etcd may have created a shorter one with this id.
    pub(super) fn check_proved(
        &mut self,
        id: u64,
        of: LeaseOf,
        kept_alive: Option<(Header, u64)>,
        answer: &Header,
        deadline: Moment,
    ) -> Result<(), Error> {
        match kept_alive {
            Some((_, length)) if length < of.seconds() => {
                self.leases.remove(&id);
                self.client.revoke(&[id], deadline)?;
                Err(self.unproved())
            }
            Some((kept_alive, _)) if is_same_member_and_term(&kept_alive, answer) => Ok(()),
            _ => Err(self.unproved()),
        }
    }

    /// Checks that a read proves the keep-alive before it: the same member answered, in the same
    /// term, and the caller's sessions are on the lease that was kept alive.
    pub(super) fn check_kept(
        &mut self,
        (lease, kept_alive): (u64, Header),
        read: &Header,
        me: Option<&Token>,
        seen: &[Sessions],
    ) -> Result<(), Error> {
        if !is_same_member_and_term(&kept_alive, read) {
            return Err(self.unproved());
        }
        let mut mine = seen.iter().filter_map(|sessions| sessions.get(me?));
        if mine.all(|session| session.lease == lease) {
            return Ok(());
        }
        // The next renewal then moves them.
        self.leases.remove(&lease);
        Err(self.unproved())
    }

    fn unproved(&self) -> Error {
        Error::Unavailable(format!(
            "{}: its leader or the lease changed while etcd confirmed the lease",
            self.client.shown()
        ))
    }

    /// Looks up the remaining time of leases, and the keys on them.
    pub(super) fn look_at(
        &mut self,
        leases: &[u64],
        deadline: Moment,
    ) -> Result<Vec<Option<LeaseAnswer>>, Error> {
        let request = |lease: &u64| Request {
            path: "kv/lease/timetolive",
            body: json!({ "ID": Number(*lease), "keys": true }).to_string(),
        };
        let requests: Vec<Request> = leases.iter().map(request).collect();
        let replies = self.client.ask(&requests, deadline)?;
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

    /// Revokes the leases that have no keys left. The others are in use, or expire.
    pub(super) fn let_go(&mut self, leases: &[u64], deadline: Moment) -> Result<(), Error> {
        let mut empty = Vec::new();
        for (lease, looked) in leases.iter().zip(self.look_at(leases, deadline)?) {
            empty.extend(looked.filter(|looked| looked.keys.is_empty()).map(|_| *lease));
        }
        Ok(self.client.revoke(&empty, deadline)?)
    }
}

fn is_same_member_and_term(one: &Header, other: &Header) -> bool {
    (one.member_id, one.raft_term) == (other.member_id, other.raft_term)
}

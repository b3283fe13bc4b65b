//! The store `etcd://…`. It keeps a record for each lock, a key for each waiter, and a session for
//! each holder and waiter. Each also has a `life/` key that others watch. The engine applies the
//! lock rules; this module sends the requests to etcd.
//!
//! *An operation takes two requests.* The first reads the records, all waiters and the sessions.
//! The second writes, if no record has changed since. If one has, nothing is written, and the
//! engine starts again with a linearizable read. So a request that arrives twice, or after another
//! write, writes nothing. Waiters have keys of their own, because etcd keeps every earlier value of
//! a key until it compacts: with a whole queue in one value, each change would cost that much.
//!
//! *The session is an etcd lease.* A holder or waiter has a lease, and beside the record a key on
//! that lease. When the lease ends, etcd deletes the key, and the hold is over, or the waiter
//! stale; no time in a record is compared for that. The waiter's own key is on no lease, so its
//! ticket outlives its session. A waiter's lease is short. Its heartbeat keeps that lease alive and
//! writes nothing. Lease ids are derived from the token, so a repeated grant creates no second
//! lease, and any process with the token can keep the lease alive.
//!
//! *A keep-alive counts only when it is proved.* An old leader that has not noticed the new one may
//! renew a lease without the new leader's knowledge. So the member that answered the keep-alive
//! must then answer a linearizable request in the same raft term. That proves that the leader of
//! that term was still the leader when it renewed the lease. A later leader gives every lease its
//! whole ttl again (docs/protocol.md#etcd).
//!
//! *A session can end without a change of the record.* Then a write may rest on a read that still
//! saw the session. Such a write takes a dead token for alive, which only delays the next grant. A
//! session never begins without a change of the record.
//!
//! *The time* comes from this machine's clock. If the answering member names a second, the time is
//! moved into that second. Neither a lease nor exclusion (I1) depends on it.

mod cleanup;
mod client;
mod commit;
mod http;
mod layout;
mod lease;
mod messages;
mod probe;
mod read;
mod subscription;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::HEARTBEAT;
use crate::store::engine::Engine;
use crate::store::engine::coordinator::{
    Batch, Coordinator, KeepAlive, Leases, Purpose, Reading, Snapshot, Watching, Written,
};
use crate::store::engine::subscription::Resumed;
use crate::store::net::failure::silent;
use crate::store::net::interrupt;
use crate::store::net::target::Target;
use crate::store::{Endurance, Error, Listener, Subscription};
use client::Client;
use layout::Layout;
use lease::{LeaseOf, WAITER_HEARTBEAT, seconds};
use messages::{Bytes, Header, Range};
use read::Sessions;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use subscription::{RequestSubscription, Watches};

/// First pause after a failed watch. It doubles with each further failure, up to [`HEARTBEAT`].
const WATCH_RETRY: Duration = Duration::from_millis(25);

/// A store in an etcd cluster.
pub type EtcdStore = Engine<Keys>;

impl EtcdStore {
    /// Creates the store. It connects at its first use.
    pub fn etcd(target: Target) -> Self {
        Self::new(Keys::over(Client::new(target)))
    }
}

/// The engine's coordinator for etcd.
pub struct Keys {
    client: Client,
    /// The token of this process.
    mine: Option<Token>,
    /// Leases that the caller is known to have.
    leases: BTreeSet<u64>,
    /// Whether the last write found that its read was outdated.
    read_was_stale: bool,
    /// A lease that was kept alive and the header of that answer, until a read proves it.
    kept_alive: Option<(u64, Header)>,
    /// Revision of the last read with the caller's token. The caller's watch starts after it. Only
    /// a read of the caller's own place moves the start of its watch; another would skip events.
    seen: u64,
    /// Revision of this process's last write, which the caller's watch ignores.
    wrote: u64,
    watches: Option<Watches>,
    /// Watches that have failed in a row.
    failed_watches: u32,
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
            leases: BTreeSet::new(),
            read_was_stale: false,
            kept_alive: None,
            seen: 0,
            wrote: 0,
            watches: None,
            failed_watches: 0,
        }
    }

    fn layout(&self) -> Layout {
        Layout(Arc::clone(&self.client.target))
    }

    /// The keys of all records.
    fn all_records(&mut self, deadline: Moment) -> Result<Vec<Bytes>, Error> {
        let range = Range { keys_only: true, ..self.layout().locks().whole() };
        let (read, _) = self.client.read(vec![range], deadline)?;
        Ok(read.ranges().flatten().map(|pair| pair.key).collect())
    }
}

/// A session belongs to the token and not to the process, so nothing is known of processes. A token
/// that is in a record after a read lives.
impl Coordinator for Keys {
    /// The sessions of each lock that was read.
    type Seen = Vec<Sessions>;
    type Watch = Token;

    const LEASES: Leases = Leases::Sessions;

    /// A waiter reads very rarely, because a watch reports a grant and the end of the waiter before
    /// it. Each read of a long queue costs etcd as much as ten heartbeats.
    const CROWD: (u64, u32) = (1, 16);
    const HEARTBEAT: Duration = WAITER_HEARTBEAT;

    fn request_time(&self) -> Duration {
        self.client.request_time()
    }

    /// The hash of the token, because before 3.4.26 and 3.5.9 any user of etcd could read key names
    /// by asking which keys are on a lease (CVE-2023-32082).
    fn stored(&self, token: &Token) -> Token {
        token.hashed()
    }

    fn begin(&mut self, token: &Token) -> Result<Vec<RawFd>, Error> {
        self.mine = Some(token.clone());
        Ok(Vec::new())
    }

    /// Revokes the leases. If etcd cannot be reached, they expire.
    fn end(&mut self, token: &Token, deadline: Moment) {
        self.watches = None;
        let leases: Vec<u64> = std::mem::take(&mut self.leases).into_iter().collect();
        // Another process may use these leases, too: end only those without keys.
        if self.mine.as_ref() != Some(token) {
            self.let_go(&leases, deadline).ok();
        } else {
            self.client.revoke(&leases, deadline).ok();
        }
    }

    fn read(&mut self, reading: &Reading<'_>) -> Result<Snapshot<Vec<Sessions>>, Error> {
        let (snapshot, revision) = self.snapshot(reading)?;
        // A read of everything is not one of the caller's own place (see `seen`).
        if let Some(me) = reading.me.filter(|_| reading.purpose != Purpose::LookAtAll) {
            self.seen = revision;
            let mine = snapshot.seen.iter().filter_map(|sessions| sessions.get(me));
            self.leases.extend(mine.map(|session| session.lease));
        }
        Ok(snapshot)
    }

    fn commit(&mut self, seen: Vec<Sessions>, batch: Batch<'_>) -> Result<Written, Error> {
        self.write(&seen, batch)
    }

    /// A keep-alive of a holder's lease counts only if the read that follows proves it. If the hold
    /// is on a lease of another length, a write must move it to this one.
    fn keep_alive(&mut self, sign: &KeepAlive<'_>, deadline: Moment) -> Result<bool, Error> {
        let is_holder = sign.ttl.is_some();
        let of = sign.ttl.map_or(LeaseOf::Waiter, |ttl| LeaseOf::Holder(seconds(ttl)));
        let lease = of.id(sign.token);
        if is_holder && !self.leases.contains(&lease) {
            return Ok(false);
        }
        let kept_alive = self.client.keep(lease, deadline)?;
        if kept_alive.is_none() {
            self.leases.remove(&lease);
        }
        self.kept_alive = kept_alive.filter(|_| is_holder).map(|(header, _)| (lease, header));
        Ok(kept_alive.is_some())
    }

    fn watch(&mut self, token: &Token, _: Moment) -> Watching<Token> {
        Watching::Watched(token.clone())
    }

    fn wait(
        &mut self,
        _: &Names,
        token: &Token,
        _: u64,
        watches: &mut dyn Iterator<Item = &Token>,
        until: Moment,
    ) -> Result<bool, Error> {
        let heard = self.listen(token, watches, until);
        // A broken watch does not end the place in the queue. The next request shows whether
        // members answer.
        let failed = if heard.is_ok() { 0 } else { self.failed_watches.saturating_add(1) };
        let failed_watches = std::mem::replace(&mut self.failed_watches, failed);
        Ok(heard.unwrap_or_else(|_| {
            self.client.next_member();
            let pause = (WATCH_RETRY * 2u32.pow(failed_watches.min(6))).min(HEARTBEAT);
            interrupt::sleep_until(Moment::now().after(pause).min(until));
            true
        }))
    }

    fn subscribe(&self, names: &[Name], token: &Token, listener: Listener) -> Box<dyn Subscription> {
        Box::new(Resumed::new(RequestSubscription {
            keys: self.clone(),
            names: names.iter().map(|name| name.as_str().to_owned()).collect(),
            token: token.clone(),
            listener,
            watches: None,
        }))
    }

    fn list(&mut self, deadline: Moment) -> Result<Vec<Result<String, Error>>, Error> {
        let (layout, keys) = (self.layout(), self.all_records(deadline)?);
        let shown = self.client.shown();
        let invalid = |key: &Bytes| {
            let key = key.0.escape_ascii();
            Error::Garbled(format!("{shown}: the key {key} is not that of a lock's record: delete it"))
        };
        let name = |key| layout.name_of(&key).ok_or_else(|| invalid(&key));
        Ok(keys.into_iter().map(name).collect())
    }

    fn clean_up(&mut self, deadline: Moment) {
        self.remove_old(deadline).ok();
    }

    fn reset(&mut self) {
        self.client.next_member();
        self.watches = None;
    }

    fn endurance(&self) -> Endurance {
        let timeout_error = silent(self.client.shown());
        Endurance::Beside { second: Some(Box::new(Engine::new(self.clone()))), timeout_error }
    }
}

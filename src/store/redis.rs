//! Locks on a Redis server: the scripts, the acknowledgements of replicas, and the two connections
//! of a waiter. The route finds the server.
//!
//! `redis/scripts/record.lua` describes the layout of the records. The scripts decide, as the Lua
//! port of the lock rules. The code here adds only time limits and what an answer means.
//!
//! | where | what |
//! |---|---|
//! | here | which scripts an operation runs, and how many locks are read |
//! | [`keyspace`] | which locks there are ([`RedisStore::find_at`]) |
//! | [`subscription`] | how a waiter, a holder or a watcher learns that something happened |
//! | [`call`] | how a script is run: by hash or with its text, acknowledged by replicas ([`acknowledge`]) |
//! | [`script`], [`argument`], [`reply`] | what is sent, and how the answer is read |
//! | [`route`] | which server a request goes to: one, the master that sentinels name ([`sentinel`]), or a node of a cluster ([`cluster`]) |
//! | [`connection`], [`failure`] | requests in bounded time, and what an error reply means |
//! | [`probe`] | what `doctor` asks |

use super::net::failure::silent;
use super::net::{Address, interrupt};
use super::{Endurance, Error, Found, Listener, Slept, Store, View, Which};
use crate::clock::Moment;
use crate::lock::{Fence, Name, Names, Owner, Replicas, Token};
use crate::rules;
use crate::rules::{
    Acquired, Ask, End, Forget, Left, LoggedEnd, NewPause, Proof, Refusal, Renewal, Requested, Revoke,
    Revoked,
};
use crate::store;
use call::Caller;
use cluster::Nodes;
use reply::{History, Noted, Refusals, Reply, Seen, garbled};
use route::{Limit, Server, Topology};
use script::Code;
use sentinel::Sentinels;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use subscription::Subscription;

pub use cluster::apart;
pub use target::Target;

mod acknowledge;
pub(super) mod argument;
pub(super) mod call;
mod cluster;
pub(super) mod connection;
pub(super) mod failure;
mod keyspace;
pub mod probe;
pub(super) mod reply;
mod route;
pub(super) mod script;
mod sentinel;
mod subscription;
mod target;

/// A waiter with more than this many before it sends heartbeats more rarely, because those of a
/// thousand waiters add up.
const CROWD: u64 = 100;
/// Limit for a whole SCAN: a server that returns wrong cursors would never end it. Some hundred
/// million keys take this long.
const SCAN_WITHIN: Duration = Duration::from_secs(60);
/// Most locks that one script reads. Other clients of the server wait meanwhile.
const SEEN_AT_ONCE: usize = 64;

/// The argument of `inspect`.
#[derive(Serialize)]
struct Look {
    ends: usize,
}

/// Locks on a Redis server.
pub struct RedisStore {
    caller: Caller,
    target: Target,
    /// What a waiter sleeps on.
    wake: Option<Subscription>,
    /// The wake list of the current connection has this number. A server may still have the blocked
    /// client of an earlier, broken connection, which must not take the wake meant for this one.
    wake_number: u64,
    /// Whether the server has answered a request for the lock.
    has_asked: bool,
    queue_max: usize,
}

impl RedisStore {
    /// One server. All stores connect when they are first used.
    pub fn new(target: Target) -> Self {
        Self::over(Box::new(Server(target.clone())), target)
    }

    /// The master that sentinels name `service`. `master` has its credentials and options; its
    /// address is ignored.
    pub fn sentinel(sentinels: Vec<Target>, service: String, master: Target) -> Self {
        Self::over(Box::new(Sentinels::new(sentinels, service, master.clone())), master)
    }

    /// A cluster of which `seeds` are known. `node` has the credentials and options of each node;
    /// its address is ignored.
    pub fn cluster(seeds: Vec<Address>, node: Target) -> Self {
        Self::over(Box::new(Nodes::new(seeds, node.clone())), node)
    }

    fn over(topology: Box<dyn Topology>, target: Target) -> Self {
        Self {
            caller: Caller::new(topology, &target),
            target,
            wake: None,
            wake_number: 0,
            has_asked: false,
            queue_max: rules::QUEUE_MAX,
        }
    }

    /// For tests: with another bound than [`rules::QUEUE_MAX`].
    pub fn with_queue_max(mut self, queue_max: usize) -> Self {
        self.queue_max = queue_max;
        self
    }

    /// Makes replicas acknowledge every grant, renewal and release.
    pub fn acknowledged_by(mut self, replicas: Replicas) -> Self {
        self.caller.acknowledged_by(replicas);
        self
    }

    /// Every server that holds locks, now: one, or each master of a cluster.
    pub fn masters(&mut self, deadline: Moment) -> Result<Vec<Target>, Error> {
        self.caller.route.topology.masters(deadline)
    }
}

impl RedisStore {
    /// Runs a script for one lock.
    fn run(
        &mut self,
        code: &Code,
        name: &Name,
        argument: &impl Serialize,
        deadline: Moment,
    ) -> Result<Reply, Error> {
        self.caller.run(code, std::slice::from_ref(name), argument, deadline)
    }
}

impl Store for RedisStore {
    fn acquire(&mut self, names: &Names, ask: &Ask, deadline: Moment) -> Result<Acquired, Error> {
        if let Some(why) = self.caller.route.topology.part(names.as_slice()) {
            return Err(Error::Unfit(format!("{}: {why}", self.target.shown)));
        }
        let (connection, again, queue_max) = (self.wake_number, self.has_asked, self.queue_max);
        let argument = argument::Acquire { ask, connection, again, queue_max };
        let reply =
            self.caller.run_replicated(&script::ACQUIRE, names, &argument, Limit::OpTimeout, deadline);
        // A refused newcomer has no record on the server. If it asks again and the server is out of
        // memory, it must still count as a newcomer.
        self.has_asked |= !matches!(reply, Err(Error::Unavailable(_)));
        let mut acquired = reply?.read()?;
        match &mut acquired {
            // The wait is over, and servers limit the number of clients.
            Acquired::Granted(_) => self.wake = None,
            Acquired::Waiting(waiting) if waiting.ahead > CROWD && waiting.next == rules::HEARTBEAT => {
                waiting.next = rules::RARER_HEARTBEAT;
            }
            _ => {}
        }
        Ok(acquired)
    }

    fn renew(&mut self, names: &Names, renew: &rules::Renew<'_>, deadline: Moment) -> Result<Renewal, Error> {
        self.caller.run_replicated(&script::RENEW, names, renew, Limit::Deadline, deadline)?.read()
    }

    /// With `--replicas` a late answer does not tell whether the replicas have the renewal, so
    /// attempts are short.
    fn endurance(&self) -> Endurance {
        if self.caller.has_replicas() {
            return Endurance::Short;
        }
        let mut second = Self::over(self.caller.route.topology.anew(), self.target.clone());
        // A subscription follows the master that either of the two has found.
        second.caller.route.last_master = self.caller.route.last_master.clone();
        Endurance::Beside { second: Some(Box::new(second)), timeout_error: silent(&self.target.shown) }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, deadline: Moment) -> Result<Left, Error> {
        self.caller.leave(&script::LEAVE, names, &argument::Leave::new(token, end), deadline)?.read()
    }

    fn prove(
        &mut self,
        names: &Names,
        token: &Token,
        fence: Option<Fence>,
        deadline: Moment,
    ) -> Result<Option<Proof>, Error> {
        let argument = argument::Prove { token, fence };
        let reply = self.caller.run(&script::PROVE, names.as_slice(), &argument, deadline)?;
        if reply.is("not-held")? { Ok(None) } else { reply.read().map(Some) }
    }

    fn request(
        &mut self,
        name: &Name,
        fence: Fence,
        who: &Owner,
        deadline: Moment,
    ) -> Result<Requested, Error> {
        self.run(&script::REQUEST, name, &argument::Request { fence, by: who }, deadline)?.read()
    }

    fn watch(&mut self, name: &Name, token: &Token, deadline: Moment) -> Result<(), Error> {
        self.run(&script::WATCH, name, &argument::OfToken { token }, deadline).map(drop)
    }

    fn subscribe(
        &mut self,
        names: &[Name],
        token: &Token,
        listener: Listener,
    ) -> Box<dyn store::Subscription> {
        let (whose, beyond) = match listener {
            Listener::Holder => ("holder", Duration::ZERO),
            Listener::Watcher => ("watch", self.target.request_time()),
        };
        // One BLPOP takes lists of one slot only.
        let lists = match self.caller.route.topology.part(names) {
            None => names.iter().map(|name| (wake_key(name, token, whose), name.clone())).collect(),
            Some(_) => Vec::new(),
        };
        Box::new(Subscription::new(self.caller.route.last_master.clone(), beyond, lists))
    }

    fn forget(&mut self, name: &Name, what: Forget, deadline: Moment) -> Result<bool, Error> {
        self.run(&script::FORGET, name, &argument::Forget { what }, deadline)?.is("forgotten")
    }

    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, deadline: Moment) -> Result<bool, Error> {
        self.run(&script::PAUSE, name, &argument::Pause { pause }, deadline)?.is("paused")
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, deadline: Moment) -> Result<Revoked, Error> {
        self.run(&script::REVOKE, name, revoke, deadline)?.read()
    }

    /// Without the waiters: if many waiters called this, each answer would list all of them.
    fn ends(&mut self, name: &Name, _: &Token, deadline: Moment) -> Result<Vec<LoggedEnd>, Error> {
        Ok(self.run(&script::ENDS, name, &argument::Nothing {}, deadline)?.read::<History>()?.log())
    }

    fn refuse(&mut self, name: &Name, refusal: &Refusal, deadline: Moment) -> Result<bool, Error> {
        let reply = self.run(&script::REFUSE, name, &argument::Refuse::new(refusal), deadline)?;
        Ok(reply.read::<Noted>()?.announces)
    }

    fn refusals(&mut self, name: &Name, deadline: Moment) -> Result<Vec<Refusal>, Error> {
        let reply = self.run(&script::REFUSED, name, &argument::Nothing {}, deadline)?;
        Ok(reply.read::<Refusals>()?.read())
    }

    fn inspect(&mut self, name: &Name, deadline: Moment) -> Result<View, Error> {
        let mut views = self.inspect_some(std::slice::from_ref(name), rules::LOG_KEPT, deadline)?;
        views.pop().ok_or_else(|| garbled(&self.target.shown, "a reply without the lock"))
    }

    fn inspect_some(&mut self, names: &[Name], ends: usize, deadline: Moment) -> Result<Vec<View>, Error> {
        let mut some = names.get(..SEEN_AT_ONCE).unwrap_or(names);
        // One script takes locks of one slot only.
        if self.caller.route.topology.part(some).is_some() {
            some = &some[..1];
        }
        let (now, locks) = loop {
            let reply = self.caller.run(&script::INSPECT, some, &Look { ends }, deadline);
            match reply.and_then(Reply::locks) {
                // The error may be about another lock than the first one.
                Err(error) if some.len() > 1 && !error.is_transient() => some = &some[..some.len() / 2],
                read => break read?,
            }
        };
        let mut views = Vec::new();
        for (name, lock) in some.iter().zip(&locks) {
            match lock.read::<Seen>() {
                Ok(seen) => views.push(seen.view(name, now)),
                Err(error) if views.is_empty() => return Err(error),
                // The next call begins with this lock, and returns its error.
                Err(_) => break,
            }
        }
        Ok(views)
    }

    fn find(&mut self, prefix: &str, which: Which) -> Result<Found, Error> {
        let deadline = Moment::now().after(self.target.request_time());
        let masters = self.masters(deadline)?;
        let (mut names, mut missing) = (BTreeSet::new(), Vec::new());
        for server in &masters {
            match self.find_at(&server.address, prefix, which) {
                Ok(found) => names.extend(found),
                Err(error) if masters.len() > 1 && error.is_transient() => missing.push(error),
                Err(error) => return Err(error),
            }
        }
        if missing.len() == masters.len()
            && let Some(error) = missing.pop()
        {
            return Err(error);
        }
        Ok(Found { names: names.into_iter().collect(), missing })
    }

    fn glimpse(&mut self, prefix: &str) -> Result<Vec<Name>, Error> {
        let masters = self.masters(Moment::now().after(self.target.request_time()))?;
        use keyspace::GLIMPSE_SCANS;
        let each = (GLIMPSE_SCANS / masters.len().max(1)).max(1);
        let mut names = BTreeSet::new();
        for server in masters.iter().take(GLIMPSE_SCANS) {
            names.extend(self.glimpse_at(&server.address, prefix, each)?);
        }
        Ok(names.into_iter().collect())
    }

    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        let name = names.first();
        let beyond = self.target.request_time();
        let wake = self.wake.get_or_insert_with(|| {
            let list = wake_key(name, token, &self.wake_number.to_string());
            Subscription::new(self.caller.route.last_master.clone(), beyond, vec![(list, name.clone())])
        });
        let heard = wake.listen(until);
        if !wake.is_good() {
            // The next heartbeat tells the server the next list.
            self.wake = None;
            self.wake_number += 1;
            if heard.is_ok() {
                // Another client floods the list. An interrupt ends the pause.
                interrupt::pause(store::BACKOFF.min(until.left())).ok();
            }
        }
        Ok(if heard? { Slept::Woken } else { Slept::Through })
    }

    fn reset(&mut self) {
        self.caller.route.reset();
    }
}

fn wake_key(name: &Name, token: &Token, number: &str) -> String {
    format!("dlock.wake:{{{}}}:{}:{}:{number}", name.tag(), name.as_str(), token.secret())
}

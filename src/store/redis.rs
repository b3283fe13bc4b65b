//! Locks on a Redis server: the scripts, the acknowledgements of replicas, and the two connections
//! of a waiter. The route finds the server.
//!
//! `redis/scripts/record.lua` describes the layout of the records. The scripts decide, as the Lua
//! port of the lock rules. The code here adds only time limits and what an answer means.
//!
//! | where | what |
//! |---|---|
//! | here | what a waiter sleeps on ([`RedisStore::await_wake`]), and which locks there are ([`RedisStore::find_at`]) |
//! | [`ahead`] | how many locks are read |
//! | [`subscription`] | how a holder or a watcher learns that something happened |
//! | [`call`] | how a script is run: by hash or with its text, acknowledged by replicas ([`acknowledge`]) |
//! | [`script`], [`argument`], [`reply`] | what is sent, and how the answer is read |
//! | [`route`] | which server a request goes to: one, the master that sentinels name ([`sentinel`]), or a node of a cluster ([`cluster`]) |
//! | [`connection`], [`failure`] | requests in bounded time, and what an error reply means |
//! | [`probe`] | what `doctor` asks |

use super::net::failure::silent;
use super::net::{Address, interrupt};
use super::{Endurance, Error, Found, Listener, Slept, Store, View, Which};
use crate::clock::Moment;
use crate::lock::{Fence, Key, Name, Names, Owner, Replicas, Token};
use crate::rules;
use crate::rules::{
    Acquired, Ask, End, Left, LoggedEnd, NewPause, Proof, Refusal, Renewal, Requested, Revoke, Revoked,
};
use crate::store;
use call::Caller;
use cluster::Nodes;
use connection::Connection;
use prefetch::Prefetch;
use redis::{Value, cmd};
use reply::{History, Refusals, garbled};
use route::{Limit, Server, Topology, Whom};
use sentinel::Sentinels;
use std::collections::BTreeSet;
use std::time::Duration;

pub use cluster::apart;
pub use target::Target;

mod acknowledge;
pub(super) mod argument;
pub(super) mod call;
mod cluster;
pub(super) mod connection;
pub(super) mod failure;
mod prefetch;
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
/// The longer heartbeat; two of them still fit into [`rules::SILENCE`].
const FAR_HEARTBEAT: Duration = Duration::from_millis(2200);
/// Keys that one SCAN request looks at.
const SCAN_STEP: u64 = 1000;
/// EXISTS requests in one write.
const EXIST_STEP: usize = 500;
/// Limit for a whole SCAN: a server that returns wrong cursors would never end it. Some hundred
/// million keys take this long.
const SCAN_WITHIN: Duration = Duration::from_secs(60);
/// Most bytes of names taken from a server: some hundred thousand locks.
const NAMES_MAX: usize = 32 * 1024 * 1024;

/// Locks on a Redis server.
pub struct RedisStore {
    caller: Caller,
    target: Target,
    wake: Option<WakeConnection>,
    /// The wake list of the current connection has this number. A server may still have the blocked
    /// client of an earlier, broken connection, which must not take the wake meant for this one.
    wake_number: u64,
    asked: bool,
    queue_max: usize,
    ahead: Option<Prefetch>,
}

/// The connection on which a waiter sleeps.
struct WakeConnection {
    connection: Connection,
    /// Whether a blocking pop is under way on it.
    listening: bool,
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
            asked: false,
            queue_max: rules::QUEUE_MAX,
            ahead: None,
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
    pub fn masters(&mut self, by: Moment) -> Result<Vec<Target>, Error> {
        self.caller.route.topology.masters(by)
    }

    /// The locks on one server. A lock that is held or waited for has a record, and one that is
    /// cooling has a lock key. Under an empty prefix any key could be a lock key, so there it
    /// counts only if the lock has a fence.
    fn find_at(&mut self, server: &Address, prefix: &str, which: Which) -> Result<BTreeSet<Name>, Error> {
        let escaped = escape_glob(prefix);
        // A lock that was never granted may be waited for, or be paused.
        let mut kinds = match which {
            Which::Known => vec!["fence", "queue", "quorum", "pause"],
            Which::Live => vec!["hold", "queue", "quorum", "pause"],
            Which::Recent => vec!["hold", "queue", "quorum", "pause", "spent"],
        };
        if prefix.is_empty() && which != Which::Known {
            kinds.push("fence");
        }
        let (mut names, mut idle) = (BTreeSet::new(), Vec::new());
        for key in self.scan(server, &format!("dlock.{}:{{*}}:{escaped}*", glob_of(&kinds)), false)? {
            let rest = key.strip_prefix("dlock.").and_then(|rest| rest.split_once(":{"));
            let Some((kind, rest)) = rest.filter(|(kind, _)| kinds.contains(kind)) else { continue };
            let Some((tag, full)) = rest.split_once("}:") else { continue };
            // The name of a `spent` key ends with the token.
            let full =
                if kind == "spent" { full.rsplit_once(':').map_or(full, |(full, _)| full) } else { full };
            let Some(name) = name_under(prefix, full).filter(|name| name.tag() == tag) else { continue };
            if kind == "fence" && which != Which::Known {
                idle.push(name);
            } else {
                names.insert(name);
            }
        }
        idle.retain(|name| !names.contains(name));
        for some in idle.chunks(EXIST_STEP) {
            names.extend(self.existing(server, some)?);
        }
        if !prefix.is_empty() {
            let strings = self.scan(server, &format!("{escaped}*"), true)?;
            names.extend(strings.iter().filter_map(|full| name_under(prefix, full)));
        }
        Ok(names)
    }

    /// Those of the locks that have a lock key. Each has a request of its own, because they may lie
    /// in different slots.
    fn existing(&mut self, server: &Address, names: &[Name]) -> Result<Vec<Name>, Error> {
        let by = Moment::now().after(self.target.connect_timeout + self.target.op_timeout);
        let ask = |connection: &mut Connection, by| {
            let exists = |name: &Name| {
                let mut exists = cmd("EXISTS");
                exists.arg(name.as_str());
                exists
            };
            connection.send(names.iter().map(exists).collect(), by)?;
            let mut found = Vec::new();
            for name in names {
                // A redirection counts as existing: the server no longer has the slot and cannot
                // tell.
                if connection.answer(by)? != Value::Int(0) {
                    found.push(name.clone());
                }
            }
            Ok((Value::Nil, found))
        };
        self.caller.route.exchange(Whom::Server(server), by, ask).map(|(_, found)| found)
    }

    /// All keys that match. Each SCAN request has a time limit of its own, because a server with
    /// many other keys needs many.
    fn scan(&mut self, server: &Address, pattern: &str, only_strings: bool) -> Result<Vec<String>, Error> {
        let (mut found, mut size, mut cursor) = (Vec::new(), 0, "0".to_owned());
        let until = Moment::now().after(SCAN_WITHIN);
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_STEP);
            if only_strings {
                scan.arg("TYPE").arg("string");
            }
            let by = Moment::now().after(self.target.connect_timeout + self.target.op_timeout);
            let ask = |connection: &mut Connection, by| Ok((connection.ask(scan.clone(), by)?, ()));
            let (value, ()) = self.caller.route.exchange(Whom::Server(server), by, ask)?;
            let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(value)
                .map_err(|_| garbled(&self.target.shown, "a reply to SCAN that is not understood"))?;
            found.extend(
                keys.into_iter()
                    .filter_map(|key| String::from_utf8(key).ok())
                    .inspect(|key| size += key.len()),
            );
            if next == "0" {
                return Ok(found);
            }
            if until.passed() || size > NAMES_MAX {
                let (names, shown) = (found.len(), &self.target.shown);
                return Err(Error::Garbled(format!(
                    "{shown} has too many keys to list in time ({names} so far); name keys instead"
                )));
            }
            cursor = next;
        }
    }
}

impl Store for RedisStore {
    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        if let Some(why) = self.caller.route.topology.part(names.as_slice()) {
            return Err(Error::Unfit(format!("{}: {why}", self.target.shown)));
        }
        let argument = argument::Acquire {
            ask,
            connection: self.wake_number,
            again: self.asked,
            queue_max: self.queue_max,
        };
        let said =
            self.caller.run_replicated(&script::ACQUIRE, names.as_slice(), &argument, Limit::OpTimeout, by);
        // A refused newcomer has no record on the server. If it asks again and the server is out of
        // memory, it must still count as a newcomer.
        self.asked |= !matches!(said, Err(Error::Unavailable(_)));
        let mut acquired = said?.read()?;
        match &mut acquired {
            // The wait is over, and servers limit the number of clients.
            Acquired::Granted(_) => self.wake = None,
            Acquired::Waiting(waiting) if waiting.ahead > CROWD && waiting.next == rules::HEARTBEAT => {
                waiting.next = FAR_HEARTBEAT;
            }
            _ => {}
        }
        Ok(acquired)
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        let argument = argument::Renew { token, ttl, fence: None };
        self.caller.run_replicated(&script::RENEW, names.as_slice(), &argument, Limit::Deadline, by)?.read()
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
        Endurance::Beside { second: Box::new(second), late: silent(&self.target.shown) }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        self.caller.leave(&script::LEAVE, names.as_slice(), &argument::Leave::new(token, end), by)?.read()
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        let reply = self.caller.run(&script::PROVE, names.as_slice(), &argument::OfToken { token }, by)?;
        if reply.is("not-held")? { Ok(None) } else { reply.read().map(Some) }
    }

    fn request(&mut self, name: &Name, fence: Fence, who: &Owner, by: Moment) -> Result<Requested, Error> {
        let argument = argument::Request { fence: fence.to_string(), by: who };
        self.caller.run(&script::REQUEST, std::slice::from_ref(name), &argument, by)?.read()
    }

    fn watch(&mut self, name: &Name, token: &Token, by: Moment) -> Result<(), Error> {
        self.caller
            .run(&script::WATCH, std::slice::from_ref(name), &argument::OfToken { token }, by)
            .map(drop)
    }

    fn subscribe(
        &mut self,
        names: &[Name],
        token: &Token,
        listener: Listener,
    ) -> Result<Box<dyn store::Subscription>, Error> {
        let whose = match listener {
            Listener::Holder => "holder",
            Listener::Watcher => "watch",
        };
        // One BLPOP takes lists of one slot only.
        let lists = match self.caller.route.topology.part(names) {
            None => names.iter().map(|name| (wake_key(name, token, whose), name.clone())).collect(),
            Some(_) => Vec::new(),
        };
        Ok(Box::new(subscription::Subscription::new(self.caller.route.last_master.clone(), lists)))
    }

    fn forget(&mut self, name: &Name, by: Moment) -> Result<bool, Error> {
        self.caller
            .run(&script::FORGET, std::slice::from_ref(name), &argument::Nothing {}, by)?
            .is("forgotten")
    }

    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, by: Moment) -> Result<bool, Error> {
        let argument = argument::Pause { pause };
        self.caller.run(&script::PAUSE, std::slice::from_ref(name), &argument, by)?.is("paused")
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        self.caller.run(&script::REVOKE, std::slice::from_ref(name), revoke, by)?.read()
    }

    /// Without the waiters: if many waiters called this, each answer would list all of them.
    fn ends(&mut self, name: &Name, _: &Token, by: Moment) -> Result<Vec<LoggedEnd>, Error> {
        let reply = self.caller.run(&script::ENDS, std::slice::from_ref(name), &argument::Nothing {}, by)?;
        Ok(reply.read::<History>()?.log())
    }

    fn refuse(&mut self, name: &Name, refusal: &Refusal, by: Moment) -> Result<(), Error> {
        self.caller
            .run(&script::REFUSE, std::slice::from_ref(name), &argument::Refuse { refusal }, by)
            .map(drop)
    }

    fn refusals(&mut self, name: &Name, by: Moment) -> Result<Vec<Refusal>, Error> {
        let reply =
            self.caller.run(&script::REFUSED, std::slice::from_ref(name), &argument::Nothing {}, by)?;
        Ok(reply.read::<Refusals>()?.read())
    }

    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let mut views = self.inspect_some(std::slice::from_ref(name), rules::LOG_KEPT, by)?;
        views.pop().ok_or_else(|| garbled(&self.target.shown, "a reply without the lock"))
    }

    fn inspect_some(&mut self, names: &[Name], ends: usize, by: Moment) -> Result<Vec<View>, Error> {
        self.look(names, ends, by)
    }

    fn find(&mut self, prefix: &str, which: Which) -> Result<Found, Error> {
        let by = Moment::now().after(self.target.connect_timeout + self.target.op_timeout);
        let masters = self.masters(by)?;
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

    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<Slept, Error> {
        let heard = self.await_wake(names.first(), token, until);
        if heard.is_err() {
            self.drop_wake();
        }
        heard
    }

    fn reset(&mut self) {
        self.ahead = None;
        self.caller.route.reset();
    }
}

impl RedisStore {
    /// Waits for the wake. A BLPOP that is under way at `until` stays under way, and the next
    /// heartbeat uses the other connection: the server may be up to 100 ms late in ending it.
    fn await_wake(&mut self, name: &Name, token: &Token, until: Moment) -> Result<Slept, Error> {
        let whom = Whom::Lock(name);
        let op_timeout = self.target.op_timeout;
        let by = || Moment::now().after(op_timeout);
        if self.wake.as_ref().is_some_and(|wake| !self.caller.route.leads_to(&wake.connection, whom)) {
            // The next heartbeat comes at once, and tells the server the new wake list.
            self.drop_wake();
            return Ok(Slept::Woken);
        }
        let mut wake = match self.wake.take() {
            Some(wake) => wake,
            None => {
                let connection = self.caller.route.give(whom, by().after(self.target.connect_timeout))?;
                WakeConnection { connection, listening: false }
            }
        };
        if !wake.listening {
            let mut pop = cmd("BLPOP");
            pop.arg(wake_key(name, token, &self.wake_number.to_string())).arg(subscription::POP_SECONDS);
            wake.connection.send(vec![pop], by())?;
            wake.listening = true;
        }
        if !wake.connection.listen(until)? {
            self.wake = Some(wake);
            return Ok(Slept::Through);
        }
        let reply = match wake.connection.reply(by()) {
            // Another client floods the list. Heartbeats keep the place, and tell the server the
            // next wake list.
            Err(Error::Garbled(_)) => {
                self.drop_wake();
                // An interrupt ends the pause.
                interrupt::pause(subscription::BACKOFF.min(until.left())).ok();
                return Ok(Slept::Woken);
            }
            reply => reply?,
        };
        match wake.connection.checked(reply)? {
            // The slot has moved, or the server is no longer master: Redis unblocks the clients
            // that wait there.
            value @ Value::ServerError(_) => {
                self.caller.route.learn(&mut wake.connection, &value);
                self.drop_wake();
                let error = wake.connection.refused(value);
                if matches!(error, Error::Unavailable(_)) { Err(error) } else { Ok(Slept::Woken) }
            }
            _ => {
                wake.listening = false;
                self.wake = self
                    .caller
                    .route
                    .take_back(wake.connection)
                    .map(|connection| WakeConnection { connection, listening: false });
                Ok(Slept::Woken)
            }
        }
    }

    /// Closes the wake connection. The next one gets a list of its own.
    fn drop_wake(&mut self) {
        self.wake = None;
        self.wake_number += 1;
    }
}

fn wake_key(name: &Name, token: &Token, number: &str) -> String {
    format!("dlock.wake:{{{}}}:{}:{}:{number}", name.tag(), name.as_str(), token.secret())
}

fn name_under(prefix: &str, full: &str) -> Option<Name> {
    Name::new(prefix, &Key::new(full.strip_prefix(prefix)?).ok()?).ok()
}

/// A SCAN pattern that matches all of these words, and perhaps others, so that one SCAN is enough.
fn glob_of(words: &[&str]) -> String {
    let letters = |at: usize| words.iter().filter_map(|word| word.chars().nth(at)).collect::<String>();
    format!("[{}][{}]*", letters(0), letters(1))
}

/// A prefix as a SCAN pattern that matches only itself.
fn escape_glob(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

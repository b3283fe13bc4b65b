//! How does a Redis server hold locks? Its scripts, what is asked of its replicas, and the two connections of a waiter.
//! Which server that is, is asked of the route.
//!
//! The layout of the records is told in `redis/scripts/record.lua`; the decisions are taken there, as the twin of the
//! law. Here is only what surrounds them: in what time, and what the answer means.
//!
//! | where | what it answers |
//! |---|---|
//! | here | what a waiter sleeps on ([`RedisStore::await_wake`]), and which locks there are ([`RedisStore::find_at`]) |
//! | [`ahead`] | how it tells of many locks |
//! | [`subscription`] | how a holder, or who looks on, hears that something happened |
//! | [`call`] | how a script is run: by hash or with its text, acknowledged by replicas ([`acknowledge`]) |
//! | [`script`], [`reply`] | what is sent, and how the answer is read |
//! | [`route`] | which server that goes to: one, or the master that sentinels name ([`sentinel`]), or the node of a cluster ([`cluster`]) |
//! | [`connection`], [`failure`] | how one speaks to a server in bounded time, and what its refusals mean |
//! | [`probe`] | what `doctor` wants to know |

use super::net::failure::silent;
use super::net::{Address, alarm};
use super::{Endurance, Error, Found, Listener, Slept, Store, View, Which, json};
use crate::clock::Moment;
use crate::lock::{Fence, Key, Mode, Name, Names, Owner, Replicas, Token};
use crate::rules;
use crate::rules::{
    Acquired, Ask, End, Foreign, Grant, Left, LoggedEnd, NewPause, Outcome, Patience, Proof, Refusal,
    Renewal, Requested, Revoke, Revoked, Superseded, Terms, Waiting, When,
};
use crate::store;
use ahead::Ahead;
use call::Caller;
use cluster::Nodes;
use connection::Connection;
use redis::{Value, cmd};
use reply::garbled;
use route::{Limit, Server, Topology, Whom};
use sentinel::Sentinels;
use std::collections::BTreeSet;
use std::time::Duration;

pub use cluster::apart;
pub use target::Target;

mod acknowledge;
mod ahead;
pub(super) mod call;
mod cluster;
pub(super) mod connection;
pub(super) mod failure;
pub mod probe;
pub(super) mod reply;
mod route;
pub(super) mod script;
mod sentinel;
mod subscription;
mod target;

/// Whoever has more than this many before it is heard less often: what a thousand say by the second adds up.
const CROWD: u64 = 100;
/// Two of them still fit into [`rules::SILENCE`].
const FAR_HEARTBEAT: Duration = Duration::from_millis(2200);
/// The number of keys that one step of SCAN looks at.
const SCAN_STEP: u64 = 1000;
/// And how many are asked for in one write.
const EXIST_STEP: usize = 500;
/// How long the steps of one SCAN may go on: a server that lies about its cursor would never end it. Some hundred
/// million keys take as long.
const SCAN_WITHIN: Duration = Duration::from_secs(60);
/// How many bytes of names are taken from a server: some hundred thousand locks.
const NAMES_MAX: usize = 32 * 1024 * 1024;

/// Locks on a Redis server.
pub struct RedisStore {
    caller: Caller,
    target: Target,
    wake: Option<WakeConnection>,
    /// Names the wake list of the current connection. A server may still have the blocked client of one that broke, and that
    /// must not swallow the wake meant for its successor.
    wake_number: u64,
    asked: bool,
    ahead: Option<Ahead>,
}

/// The connection on which a waiter sleeps.
struct WakeConnection {
    connection: Connection,
    /// Whether a blocking pop is under way on it.
    listening: bool,
}

impl RedisStore {
    /// One server. It connects when it is first used, as do the others.
    pub fn new(target: Target) -> Self {
        Self::over(Box::new(Server(target.clone())), target)
    }

    /// The master that sentinels name `service`. How to get into it says `master`, whose address does not count.
    pub fn sentinel(sentinels: Vec<Target>, service: String, master: Target) -> Self {
        Self::over(Box::new(Sentinels::new(sentinels, service, master.clone())), master)
    }

    /// A cluster of which `seeds` are known. How to get into each of its nodes says `node`, whose address does not
    /// count.
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
            ahead: None,
        }
    }

    /// Has replicas acknowledge every grant and every renewal.
    pub fn acknowledged_by(mut self, replicas: Replicas) -> Self {
        self.caller.acknowledged_by(replicas);
        self
    }

    /// Every server that holds locks, now: one, or each master of a cluster.
    pub fn masters(&mut self, by: Moment) -> Result<Vec<Target>, Error> {
        self.caller.route.topology.masters(by)
    }

    /// The locks on one server. While a lock is held or waited for there is a record of that, and while it is kept, the
    /// lock key; under an empty prefix that could be anybody's, so there it counts if the lock has a fence.
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
            // A token ends the name of what is spent.
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

    /// Those of the locks that have a lock key. Each is asked for by itself: they may lie in different slots.
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
                // A server that has given the slot away does not say.
                if connection.answer(by)? != Value::Int(0) {
                    found.push(name.clone());
                }
            }
            Ok((Value::Nil, found))
        };
        self.caller.route.exchange(Whom::Server(server), by, ask).map(|(_, found)| found)
    }

    /// All keys that match. A server with many other keys takes many steps; each has its own time.
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
                    "{shown} lists its keys without coming to an end ({names} so far); name keys instead"
                )));
            }
            cursor = next;
        }
    }
}

impl Store for RedisStore {
    /// The server hears of a death only by the lease, so there is nothing to share.
    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        if let Some(why) = self.caller.route.topology.part(names.as_slice()) {
            return Err(Error::Unfit(format!("{}: {why}", self.target.shown)));
        }
        let (ttl, min_hold) = (rules::millis(ask.ttl).to_string(), rules::millis(ask.min_hold).to_string());
        let patience = if ask.patience == Patience::Queue { "queue" } else { "none" };
        let number = self.wake_number.to_string();
        let turn = if self.asked { "again" } else { "first" };
        let (mode, owner) = (mode_to(ask.mode), json(&ask.owner)?);
        let once_per = rules::millis(ask.terms.once_per.unwrap_or_default()).to_string();
        let waited = rules::millis(ask.waited).to_string();
        let terms = terms_to(&ask.terms);
        let token = ask.token.secret();
        let args =
            [token, &ttl, &min_hold, patience, &number, turn, &mode, &owner, &once_per, terms, &waited];
        let said =
            self.caller.run_replicated(&script::ACQUIRE, names.as_slice(), &args, Limit::OpTimeout, by);
        // One that was refused has nothing there: asked again by a server that is out of memory, it is still a newcomer.
        self.asked |= !matches!(said, Err(Error::Unavailable(_)));
        let (what, mut reply) = said?;
        match what.as_str() {
            "granted" => {
                // Nobody waits any more, and a server counts its clients.
                self.wake = None;
                let (fence, waited, slot) = (Fence(reply.number()?), reply.span()?, reply.slot()?);
                Ok(Acquired::Granted(Grant { fence, waited, slot }))
            }
            "waiting" => {
                let (ahead, mut next) = (reply.number()?, reply.span()?);
                if ahead > CROWD && next == rules::HEARTBEAT {
                    next = FAR_HEARTBEAT;
                }
                Ok(Acquired::Waiting(Waiting {
                    ahead,
                    next,
                    blocker: reply.blocker(names.as_slice().len())?,
                    turn: None,
                }))
            }
            "busy" => Ok(Acquired::Busy(reply.blocker(names.as_slice().len())?)),
            "done" => {
                let at = reply.lock(names.as_slice().len())?;
                Ok(Acquired::Done(reply.done(at)?))
            }
            "superseded" => {
                let at = reply.lock(names.as_slice().len())?;
                Ok(Acquired::Superseded(Superseded { at, by: reply.owner()? }))
            }
            "spent" => Ok(Acquired::Spent),
            _ => Err(reply.unknown()),
        }
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        let span = rules::millis(ttl).to_string();
        let args = [token.secret(), &span];
        let (what, reply) =
            self.caller.run_replicated(&script::RENEW, names.as_slice(), &args, Limit::Deadline, by)?;
        match what.as_str() {
            "renewed" => Ok(Renewal::Renewed),
            "asked" => Ok(Renewal::Asked),
            "superseded" => Ok(Renewal::Superseded),
            "revoked" => Ok(Renewal::Revoked),
            "not-held" => Ok(Renewal::NotHeld),
            _ => Err(reply.unknown()),
        }
    }

    /// Whether replicas have what a late answer tells of is not known.
    fn endurance(&self) -> Endurance {
        if self.caller.has_replicas() {
            return Endurance::Short;
        }
        let mut second = Self::over(self.caller.route.topology.anew(), self.target.clone());
        // Whoever listens follows the master that either of them has found.
        second.caller.route.last_master = self.caller.route.last_master.clone();
        Endurance::Beside { second: Box::new(second), late: silent(&self.target.shown) }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        let ran = end.ran.outcome().map_or("not-run", Outcome::word);
        let job = end.job.as_ref().map(json).transpose()?.unwrap_or_default();
        let once_per = if end.once_per { "1" } else { "" };
        let (what, mut reply) = self.caller.leave(
            &script::LEAVE,
            names.as_slice(),
            &[token.secret(), ran, &job, once_per],
            by,
        )?;
        match what.as_str() {
            "released" => Ok(Left::Released { cooling: reply.span()? }),
            "dequeued" => Ok(Left::Dequeued),
            "already" => Ok(Left::Already),
            "not-held" => Ok(Left::NotHeld),
            _ => Err(reply.unknown()),
        }
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        let (what, mut reply) = self.caller.run(&script::PROVE, names.as_slice(), &[token.secret()], by)?;
        match what.as_str() {
            "held" => {
                let mode = reply.mode()?.ok_or_else(|| reply.unknown())?;
                let (slot, fence, lease) = (reply.slot()?, Fence(reply.number()?), reply.span()?);
                Ok(Some(Proof { mode, slot, fence, lease }))
            }
            "not-held" => Ok(None),
            _ => Err(reply.unknown()),
        }
    }

    fn request(&mut self, name: &Name, fence: Fence, who: &Owner, by: Moment) -> Result<Requested, Error> {
        let args = [&*fence.to_string(), &json(who)?];
        let (what, reply) = self.caller.run(&script::REQUEST, std::slice::from_ref(name), &args, by)?;
        match what.as_str() {
            "asked" => Ok(Requested::Asked),
            "gone" => Ok(Requested::Gone),
            _ => Err(reply.unknown()),
        }
    }

    fn watch(&mut self, name: &Name, token: &Token, by: Moment) -> Result<(), Error> {
        self.caller.run(&script::WATCH, std::slice::from_ref(name), &[token.secret()], by).map(drop)
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
        // One pop is for lists of one slot.
        let lists = match self.caller.route.topology.part(names) {
            None => names.iter().map(|name| (wake_key(name, token, whose), name.clone())).collect(),
            Some(_) => Vec::new(),
        };
        Ok(Box::new(subscription::Subscription::new(self.caller.route.last_master.clone(), lists)))
    }

    fn forget(&mut self, name: &Name, by: Moment) -> Result<bool, Error> {
        let (what, reply) = self.caller.run(&script::FORGET, std::slice::from_ref(name), &[], by)?;
        match what.as_str() {
            "forgotten" => Ok(true),
            "nothing" => Ok(false),
            _ => Err(reply.unknown()),
        }
    }

    fn pause(&mut self, name: &Name, pause: Option<NewPause<'_>>, by: Moment) -> Result<bool, Error> {
        let args = pause_to(pause)?;
        let args = args.each_ref().map(String::as_str);
        let (what, reply) = self.caller.run(&script::PAUSE, std::slice::from_ref(name), &args, by)?;
        match what.as_str() {
            "paused" => Ok(true),
            "open" => Ok(false),
            _ => Err(reply.unknown()),
        }
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        let when = if revoke.when == When::Now { "now" } else { "safe" };
        let args = [when, &json(&revoke.by)?];
        let (what, mut reply) = self.caller.run(&script::REVOKE, std::slice::from_ref(name), &args, by)?;
        match what.as_str() {
            "free" => Ok(Revoked::Free),
            "cooling" => Ok(Revoked::Cooling),
            "holds" => Ok(Revoked::Holds { left: reply.span()?, holders: reply.holders()? }),
            "revoked" => Ok(Revoked::AlreadyRevoked { left: reply.span()?, holders: reply.holders()? }),
            "foreign" => {
                let left = reply.span_if_any()?;
                Ok(Revoked::Foreign(Foreign { kind: reply.text()?, left }))
            }
            "foreign-deleted" => Ok(Revoked::ForeignDeleted),
            _ => Err(reply.unknown()),
        }
    }

    /// Whoever else waits is not asked for: many would each be told of all.
    fn ends(&mut self, name: &Name, _: &Token, by: Moment) -> Result<Vec<LoggedEnd>, Error> {
        let (_, mut reply) = self.caller.run(&script::ENDS, std::slice::from_ref(name), &[], by)?;
        reply.log()
    }

    fn refuse(&mut self, name: &Name, refusal: &Refusal, by: Moment) -> Result<(), Error> {
        self.caller.run(&script::REFUSE, std::slice::from_ref(name), &[&json(refusal)?], by).map(drop)
    }

    fn refusals(&mut self, name: &Name, by: Moment) -> Result<Vec<Refusal>, Error> {
        let (_, mut reply) = self.caller.run(&script::REFUSED, std::slice::from_ref(name), &[], by)?;
        reply.refusals()
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
    /// Waits for the wake. A blocking pop that is under way is left under way when `until` comes: the next heartbeat
    /// goes over the other connection, since the server may be up to 100 ms late in ending the pop by itself.
    fn await_wake(&mut self, name: &Name, token: &Token, until: Moment) -> Result<Slept, Error> {
        let whom = Whom::Lock(name);
        let op_timeout = self.target.op_timeout;
        let by = || Moment::now().after(op_timeout);
        if self.wake.as_ref().is_some_and(|wake| !self.caller.route.leads_to(&wake.connection, whom)) {
            // The next heartbeat, at once, says where it will listen from now on.
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
            // Somebody floods the list. The heartbeats keep the place, and say where it will listen from then on.
            Err(Error::Garbled(_)) => {
                self.drop_wake();
                // An alarm ends it.
                alarm::pause(subscription::BACKOFF.min(until.left())).ok();
                return Ok(Slept::Woken);
            }
            reply => reply?,
        };
        match wake.connection.checked(reply)? {
            // The slot has moved, or the server is no master any more: whoever was asleep there is told.
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

    /// The next connection gets a name of its own.
    fn drop_wake(&mut self) {
        self.wake = None;
        self.wake_number += 1;
    }
}

/// A pause as the scripts read it: who, for how long.
pub(super) fn pause_to(pause: Option<NewPause<'_>>) -> Result<[String; 2], Error> {
    let Some(NewPause { by, lasts }) = pause else {
        return Ok([String::new(), "0".into()]);
    };
    Ok([json(by)?, rules::millis(lasts).to_string()])
}

/// The terms of one who asks, but for once in a while, as the scripts read them.
pub(super) const fn terms_to(terms: &Terms) -> &'static str {
    match (terms.replaces, terms.stays) {
        (false, false) => "",
        (true, false) => "replaces",
        (false, true) => "stays",
        (true, true) => "replaces stays",
    }
}

fn mode_to(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".into(),
        Mode::Shared => "shared".into(),
        Mode::Slots(slots) => format!("slots/{slots}"),
    }
}

fn wake_key(name: &Name, token: &Token, number: &str) -> String {
    format!("dlock.wake:{{{}}}:{}:{}:{number}", name.tag(), name.as_str(), token.secret())
}

fn name_under(prefix: &str, full: &str) -> Option<Name> {
    Name::new(prefix, &Key::new(full.strip_prefix(prefix)?).ok()?).ok()
}

/// A SCAN pattern for words that begin as one of these; it may match others, too. One pass over the keys is all that a server is
/// asked for.
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

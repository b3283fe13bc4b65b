//! How does a single Redis server hold locks? One server, its scripts, and the two connections of a waiter.
//!
//! The layout of the records is told in `redis/scripts/lock.lua`; the decisions are taken there, as the twin of the
//! law. Here is only what surrounds them: which connection, in what time, and what the answer means.

use super::{Error, Listener, Store, View, Waiter};
use crate::clock::Moment;
use crate::law;
use crate::law::{
    Acquired, Ask, End, Foreign, Grant, Left, Patience, Proof, Ran, Renewal, Requested, Revoke, Revoked,
    Waiting, When,
};
use crate::lock::{Fence, Key, Mode, Name, Names, Owner, Token};
use crate::store;
use connect::Link;
use redis::{Cmd, ServerError, Value, cmd};
use reply::{Reply, garbled, owner_from};
use script::Code;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

pub use connect::Address;
pub use tls::{Files, Tls};

mod connect;
mod ear;
pub mod probe;
mod reply;
mod script;
mod tls;

/// How long a blocking pop lasts at most, in seconds: a server that never hears of its client's end drops it then.
const EAR_BOUND: u64 = 30;
/// The number of keys that one step of SCAN looks at.
const SCAN_STEP: u64 = 1000;

/// A server and how to get in.
#[derive(Clone)]
pub struct Target {
    /// Where it listens.
    pub address: Address,
    /// The database; 0 needs no SELECT.
    pub database: u32,
    /// For AUTH.
    pub username: Option<String>,
    /// For AUTH. Never shown.
    pub password: Option<String>,
    /// Set where it is spoken to over TLS; over TCP only.
    pub tls: Option<Tls>,
    /// How messages name it: the URL without its secret.
    pub shown: String,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one operation may take.
    pub op_timeout: Duration,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Target {
    fn greeting(&self) -> Vec<Cmd> {
        let mut greeting = Vec::new();
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(username) = &self.username {
                auth.arg(username);
            }
            auth.arg(password);
            greeting.push(auth);
        }
        if self.database != 0 {
            let mut select = cmd("SELECT");
            select.arg(self.database);
            greeting.push(select);
        }
        greeting
    }
}

/// Locks on one Redis server.
pub struct RedisStore {
    target: Target,
    control: Option<Link>,
    ear: Option<Ear>,
    /// Names the wake list of the current ear. A server may still have the blocked client of an ear that broke, and
    /// that one must not swallow the wake meant for its successor.
    ear_number: u64,
    asked: bool,
    /// The last request may still be on its way, so the next one brings its script along: if the answer comes too late
    /// for us, there is nobody to send the text after a NOSCRIPT. So a server that was stopped finds, behind the
    /// acquire that nobody waits for any more, a leave that it can execute.
    doubt: bool,
}

/// The connection on which a waiter sleeps.
struct Ear {
    link: Link,
    /// Whether a blocking pop is under way on it.
    listening: bool,
}

impl RedisStore {
    /// A store that connects when it is first used.
    pub const fn new(target: Target) -> Self {
        Self { target, control: None, ear: None, ear_number: 0, asked: false, doubt: false }
    }

    fn run(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        let keys: Vec<String> = names.iter().flat_map(keys).collect();
        let target = &self.target;
        let doubt = std::mem::replace(&mut self.doubt, true);
        let value = with_link(&mut self.control, target, by, |link, by| {
            let first = if doubt { code.by_text(&keys, args) } else { code.by_hash(&keys, args) };
            let value = link.ask(target, &first, by)?;
            match value {
                Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                    link.ask(target, &code.by_text(&keys, args), by)
                }
                value => Ok(value),
            }
        })?;
        self.doubt = false;
        if let Value::ServerError(error) = &value {
            return Err(self.lacking(code, error));
        }
        Reply::open(value, &self.target.shown)
    }

    /// The error for a right that was missing inside of a script.
    fn lacking(&self, code: &Code, error: &ServerError) -> Error {
        let store = &self.target.shown;
        let command = code.command_at_fault(error).unwrap_or("one of its scripts' commands");
        let on = if error.details().is_some_and(|text| text.contains("access")) {
            " on the keys ~dlock.*"
        } else {
            ""
        };
        Error::Denied(format!(
            "{store} denies this user a right that dlock needs: {command}{on}, in a script; docs/stores.md has the \
             whole ACL line"
        ))
    }

    /// All keys that match. A server with many other keys takes many steps; each has its own time.
    fn scan(&mut self, pattern: &str, only_strings: bool) -> Result<Vec<String>, Error> {
        let (mut found, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_STEP);
            if only_strings {
                scan.arg("TYPE").arg("string");
            }
            let target = &self.target;
            let by = Moment::now().after(target.connect_timeout + target.op_timeout);
            let value = with_link(&mut self.control, target, by, |link, by| link.ask(target, &scan, by))?;
            let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(value)
                .map_err(|_| garbled(&self.target.shown, "a reply to SCAN that is not understood"))?;
            found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            if next == "0" {
                return Ok(found);
            }
            cursor = next;
        }
    }
}

impl Store for RedisStore {
    /// The server hears of a death only by the lease, so there is nothing to share.
    fn prepare(&mut self, _: &Token) -> Result<Vec<RawFd>, Error> {
        Ok(Vec::new())
    }

    fn acquire(&mut self, names: &Names, ask: &Ask, by: Moment) -> Result<Acquired, Error> {
        let (ttl, min_hold) = (law::millis(ask.ttl).to_string(), law::millis(ask.min_hold).to_string());
        let patience = if ask.patience == Patience::Queue { "queue" } else { "none" };
        let ear = self.ear_number.to_string();
        let turn = if self.asked { "again" } else { "first" };
        let (mode, owner) = (mode_to(ask.mode), owner_to(&ask.owner)?);
        self.asked = true;
        let args = [ask.token.secret(), &ttl, &min_hold, patience, &ear, turn, &mode, &owner];
        let (what, mut reply) = self.run(&script::ACQUIRE, names.as_slice(), &args, by)?;
        match what.as_str() {
            "granted" => {
                // Nobody waits any more, and a server counts its clients.
                self.ear = None;
                let (fence, waited, slot) = (Fence(reply.number()?), reply.span()?, reply.slot()?);
                Ok(Acquired::Granted(Grant { fence, waited, slot }))
            }
            "waiting" => Ok(Acquired::Waiting(Waiting {
                ahead: reply.number()?,
                next: reply.span()?,
                blocker: reply.blocker(names.as_slice().len())?,
            })),
            "busy" => Ok(Acquired::Busy(reply.blocker(names.as_slice().len())?)),
            "spent" => Ok(Acquired::Spent),
            _ => Err(reply.unknown()),
        }
    }

    fn renew(&mut self, names: &Names, token: &Token, ttl: Duration, by: Moment) -> Result<Renewal, Error> {
        let ttl = law::millis(ttl).to_string();
        let (what, reply) = self.run(&script::RENEW, names.as_slice(), &[token.secret(), &ttl], by)?;
        match what.as_str() {
            "renewed" => Ok(Renewal::Renewed),
            "asked" => Ok(Renewal::Asked),
            "revoked" => Ok(Renewal::Revoked),
            "not-held" => Ok(Renewal::NotHeld),
            _ => Err(reply.unknown()),
        }
    }

    fn leave(&mut self, names: &Names, token: &Token, end: &End, by: Moment) -> Result<Left, Error> {
        let ran = if end.ran == Ran::Yes { "ran" } else { "not-run" };
        let job = match end.job {
            Some(job) => serde_json::to_string(&job).map_err(|e| Error::Garbled(e.to_string()))?,
            None => String::new(),
        };
        let (what, mut reply) =
            self.run(&script::LEAVE, names.as_slice(), &[token.secret(), ran, &job], by)?;
        match what.as_str() {
            "released" => Ok(Left::Released { cooling: reply.span()? }),
            "dequeued" => Ok(Left::Dequeued),
            "already" => Ok(Left::Already),
            "not-held" => Ok(Left::NotHeld),
            _ => Err(reply.unknown()),
        }
    }

    fn prove(&mut self, names: &Names, token: &Token, by: Moment) -> Result<Option<Proof>, Error> {
        let (what, mut reply) = self.run(&script::PROVE, names.as_slice(), &[token.secret()], by)?;
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
        let args = [&*fence.to_string(), &owner_to(who)?];
        let (what, reply) = self.run(&script::REQUEST, std::slice::from_ref(name), &args, by)?;
        match what.as_str() {
            "asked" => Ok(Requested::Asked),
            "gone" => Ok(Requested::Gone),
            _ => Err(reply.unknown()),
        }
    }

    fn watch(&mut self, name: &Name, token: &Token, by: Moment) -> Result<(), Error> {
        self.run(&script::WATCH, std::slice::from_ref(name), &[token.secret()], by).map(drop)
    }

    fn ear(
        &mut self,
        names: &[Name],
        token: &Token,
        listener: Listener,
    ) -> Result<Box<dyn store::Ear>, Error> {
        let whose = match listener {
            Listener::Holder => "holder",
            Listener::Watcher => "watch",
        };
        let lists = names.iter().map(|name| wake_key(name, token, whose)).collect();
        Ok(Box::new(ear::Ear::new(self.target.clone(), lists)))
    }

    fn revoke(&mut self, name: &Name, revoke: &Revoke, by: Moment) -> Result<Revoked, Error> {
        let when = if revoke.when == When::Now { "now" } else { "safe" };
        let args = [when, &owner_to(&revoke.by)?];
        let (what, mut reply) = self.run(&script::REVOKE, std::slice::from_ref(name), &args, by)?;
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

    fn inspect(&mut self, name: &Name, by: Moment) -> Result<View, Error> {
        let (_, mut reply) = self.run(&script::INSPECT, std::slice::from_ref(name), &[], by)?;
        let now = reply.now();
        let (state, is_foreign) = reply.state()?;
        let (mode, left, kind) = (reply.mode()?, reply.span_if_any()?, reply.text()?);
        let foreign = is_foreign.then_some(Foreign { kind, left });
        let fence = reply.text()?.parse().ok().map(Fence);
        let holders = reply.holders()?;
        let mut queue = reply.nested()?;
        let mut waiters = Vec::new();
        while !queue.is_empty() {
            let owner = owner_from(&queue.text()?);
            let mode = queue.mode()?.unwrap_or_default();
            let waiting = Duration::from_millis(now.saturating_sub(queue.number()? / 1000));
            waiters.push(Waiter { owner, mode, waiting });
        }
        let mut ends = reply.nested()?;
        let mut log = Vec::new();
        while !ends.is_empty() {
            log.extend(ends.logged_end()?);
        }
        log.truncate(law::LOG_KEPT);
        let stat = reply.stat()?;
        Ok(View { name: name.clone(), now, state, mode, foreign, holders, left, fence, waiters, log, stat })
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<Name>, Error> {
        let mut names = BTreeSet::new();
        let escaped = escape_glob(prefix);
        for key in self.scan(&format!("dlock.fence:{{*}}:{escaped}*"), false)? {
            let name = key.strip_prefix("dlock.fence:{").and_then(|rest| rest.split_once("}:"));
            names.extend(name.and_then(|(_, full)| name_under(prefix, full)));
        }
        if !prefix.is_empty() {
            let strings = self.scan(&format!("{escaped}*"), true)?;
            names.extend(strings.iter().filter_map(|full| name_under(prefix, full)));
        }
        Ok(names.into_iter().collect())
    }

    fn sleep(&mut self, names: &Names, token: &Token, until: Moment) -> Result<(), Error> {
        let heard = self.hear(names.first(), token, until);
        if heard.is_err() {
            self.ear = None;
            self.ear_number += 1;
        }
        heard
    }

    fn reset(&mut self) {
        self.control = None;
    }
}

impl RedisStore {
    /// Waits for the wake. A blocking pop that is under way is left under way when `until` comes: the next heartbeat
    /// goes over the other connection, since the server may be up to 100 ms late in ending the pop by itself.
    fn hear(&mut self, name: &Name, token: &Token, until: Moment) -> Result<(), Error> {
        let target = &self.target;
        let by = || Moment::now().after(target.op_timeout);
        let mut ear = match self.ear.take() {
            Some(ear) => ear,
            None => {
                let link = match self.control.take() {
                    Some(link) => link,
                    None => Link::dial(target, Moment::now().after(target.connect_timeout))?,
                };
                Ear { link, listening: false }
            }
        };
        if !ear.listening {
            let mut pop = cmd("BLPOP");
            pop.arg(wake_key(name, token, &self.ear_number.to_string())).arg(EAR_BOUND);
            ear.link.send(target, &pop, by())?;
            ear.listening = true;
        }
        if ear.link.listen(target, until)? {
            ear.link.answer(target, by())?;
            ear.listening = false;
            if self.control.is_none() {
                self.control = Some(ear.link);
                return Ok(());
            }
        }
        self.ear = Some(ear);
        Ok(())
    }
}

/// Uses the connection there is, or a new one; one that failed is dropped.
fn with_link<T>(
    slot: &mut Option<Link>,
    target: &Target,
    by: Moment,
    exchange: impl FnOnce(&mut Link, Moment) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut link = match slot.take().and_then(Link::if_good) {
        Some(link) => link,
        None => Link::dial(target, by.min(Moment::now().after(target.connect_timeout)))?,
    };
    let result = exchange(&mut link, by.min(Moment::now().after(target.op_timeout)));
    if result.is_ok() {
        *slot = Some(link);
    }
    result
}

fn owner_to(owner: &Owner) -> Result<String, Error> {
    serde_json::to_string(owner).map_err(|e| Error::Garbled(e.to_string()))
}

fn mode_to(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".into(),
        Mode::Shared => "shared".into(),
        Mode::Slots(slots) => format!("slots/{slots}"),
    }
}

fn keys(name: &Name) -> [String; 9] {
    let derived = |kind: &str| format!("dlock.{kind}:{{{}}}:{}", name.tag(), name.as_str());
    let [hold, due, kept, queue, fence, log, stat, watch] =
        ["hold", "due", "kept", "queue", "fence", "log", "stat", "watch"].map(derived);
    [name.as_str().into(), hold, due, kept, queue, fence, log, stat, watch]
}

fn wake_key(name: &Name, token: &Token, ear: &str) -> String {
    format!("dlock.wake:{{{}}}:{}:{}:{ear}", name.tag(), name.as_str(), token.secret())
}

fn name_under(prefix: &str, full: &str) -> Option<Name> {
    Name::new(prefix, &Key::new(full.strip_prefix(prefix)?).ok()?).ok()
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

//! Which server do the sentinels name as the master? Asks them in bounded time although some are dead or silent, checks
//! that the server named says of itself that it is a master, and asks again beside every renewal, so that the holder on
//! a master that was cut off and replaced hears of it. It trusts a single sentinel's word: they agree among themselves
//! before they name another master, and asking them in turn gets round one that was cut off with the old one.
//!
//! Connecting can hang for as long as the kernel likes, so a sentinel that there is no connection to is dialled and
//! asked on a thread that may be left behind; at most one for each sentinel. With the connection there, it is asked
//! directly. The connections are kept, since a holder asks for as long as it holds.

use super::connection::{Asking, Connection};
use super::failure::refusal;
use super::route::{Hop, Next, ReplicaCount, Topology, Whom};
use super::target::Target;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::alarm;
use redis::{Cmd, Value, cmd};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long one sentinel is waited for before the next is asked, too.
const SLICE: Duration = Duration::from_millis(100);

/// The sentinels, and the server that they name.
pub struct Sentinels {
    /// The name of the group of servers.
    service: String,
    /// How to get into the master; its address is what is asked for.
    master: Target,
    sentinels: Vec<Sentinel>,
    /// Whose turn it is to be asked.
    turn: usize,
    replies: (Sender<Reply>, Receiver<Reply>),
    found: Option<Found>,
    asks: Asks,
    /// When all of them were asked the last time.
    round: Moment,
    /// How many sentinels may still be asked in this call.
    left_to_ask: usize,
    /// Servers that were of no use in this call, and the last reason.
    tried: Vec<Address>,
    last: Option<Error>,
}

/// The master.
struct Found {
    address: Address,
    /// What else the sentinel knows of it, where it was asked.
    group: Option<Group>,
    /// When the sentinel was asked; of the one that is believed in, since when.
    since: Moment,
}

/// What a sentinel knows of a master and its replicas.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// How many replicas there are, also such as are down.
    replicas: u32,
    /// Grows with each failover.
    epoch: u64,
    /// Whether this sentinel is about to put another server in the place of the master.
    fails_over: bool,
}

/// What is wanted of the sentinels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// The address of the master, of one of them.
    Address,
    /// All about its group, of all of them: only the one that leads a failover knows of it before it has happened.
    Group,
}

struct Sentinel {
    target: Target,
    state: Contact,
}

enum Contact {
    Idle(Option<Connection>),
    /// Asked on its connection, at this moment.
    Asked(Connection, Moment),
    /// A thread dials it and asks, from this moment on.
    Away(Moment),
}

/// What a thread brings back.
struct Reply {
    sentinel: usize,
    said: Result<(Connection, Found), Error>,
}

impl Sentinels {
    /// Sentinels that are dialled when they are first asked. `master` says how to get into the master; its address
    /// does not count.
    pub fn new(sentinels: Vec<Target>, service: String, master: Target) -> Self {
        let sentinels: Vec<Sentinel> =
            sentinels.into_iter().map(|target| Sentinel { target, state: Contact::Idle(None) }).collect();
        // Many clients begin at the same time, and the first sentinel of the list is not to bear all of them.
        let turn = std::process::id() as usize % sentinels.len().max(1);
        let (left_to_ask, tried) = (sentinels.len(), Vec::new());
        Self {
            service,
            master,
            sentinels,
            turn,
            replies: channel(),
            found: None,
            asks: Asks::Address,
            round: Moment::now(),
            left_to_ask,
            tried,
            last: None,
        }
    }

    /// Asks one sentinel. A failure to do so is told by [`Sentinels::hear`].
    fn ask(&mut self, index: usize, asked: Moment) {
        let sentinel = &mut self.sentinels[index];
        let by = asked.after(sentinel.target.connect_timeout + sentinel.target.op_timeout);
        let state = std::mem::replace(&mut sentinel.state, Contact::Away(asked));
        let connection = match state {
            Contact::Idle(connection) => connection.and_then(Connection::if_good),
            // It was asked before and has not answered yet; or a thread is at it.
            busy => {
                sentinel.state = busy;
                return;
            }
        };
        if let Some(mut connection) = connection
            && connection.send(questions(&self.service, self.asks), by).is_ok()
        {
            sentinel.state = Contact::Asked(connection, asked);
            return;
        }
        let (target, service, replies) =
            (sentinel.target.clone(), self.service.clone(), self.replies.0.clone());
        let asks = self.asks;
        let dial = move || {
            let said = Connection::dial(&target, by).and_then(|mut connection| {
                connection.send(questions(&service, asks), by)?;
                let found = answer(&mut connection, &service, asks, asked, by)?;
                Ok((connection, found))
            });
            // Nobody reads it any more when the process is about to end.
            let _ = replies.send(Reply { sentinel: index, said });
        };
        if let Err(error) = thread::Builder::new().name("dlock-sentinel".into()).spawn(dial) {
            let said = Err(Error::Unreachable(format!("cannot start a thread to ask a sentinel: {error}")));
            let _ = self.replies.0.send(Reply { sentinel: index, said });
        }
    }

    /// What one sentinel that was asked says, if it says something by `until`. Sooner, if a thread brings the answer of
    /// another one.
    fn hear(&mut self, index: usize, until: Moment) -> Option<Result<Found, Error>> {
        let sentinel = &mut self.sentinels[index];
        match std::mem::replace(&mut sentinel.state, Contact::Idle(None)) {
            Contact::Asked(mut connection, asked) => {
                let said = match connection.listen(until) {
                    Ok(false) => {
                        sentinel.state = Contact::Asked(connection, asked);
                        return None;
                    }
                    Ok(true) => {
                        let by = until.max(Moment::now().after(SLICE));
                        answer(&mut connection, &self.service, self.asks, asked, by)
                    }
                    Err(error) => Err(error),
                };
                if said.is_ok() {
                    sentinel.state = Contact::Idle(Some(connection));
                }
                Some(said)
            }
            away @ Contact::Away(_) => {
                sentinel.state = away;
                loop {
                    // The channel's own timeout stands still while the machine is suspended, which is an attempt lost.
                    match alarm::receive(&self.replies.1, until) {
                        Some(reply) => {
                            let whose = reply.sentinel;
                            let said = self.open(reply);
                            if said.is_ok() || whose == index {
                                return Some(said);
                            }
                        }
                        None => return None,
                    }
                }
            }
            idle @ Contact::Idle(_) => {
                sentinel.state = idle;
                None
            }
        }
    }

    fn open(&mut self, Reply { sentinel, said }: Reply) -> Result<Found, Error> {
        let (connection, said) =
            said.map_or_else(|error| (None, Err(error)), |(connection, found)| (Some(connection), Ok(found)));
        self.sentinels[sentinel].state = Contact::Idle(connection);
        said
    }

    /// Asks the sentinels in turn until one names a master. A silent one costs a slice of the time, because the next is
    /// asked while its answer may still come.
    fn discover(&mut self, by: Moment) -> Result<Found, Error> {
        let count = self.sentinels.len();
        let mut worst: Option<Error> = None;
        for asked in 0..count {
            let index = self.turn;
            self.turn = (self.turn + 1) % count;
            self.forget_silent(index);
            self.ask(index, Moment::now());
            let untried = u32::try_from(count - asked).unwrap_or(u32::MAX);
            let slice = if untried == 1 { by.left() } else { SLICE.min(by.left() / untried) };
            match self.hear(index, Moment::now().after(slice)) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => worst = Some(worse(worst, error)),
                None => self.forget_silent(index),
            }
        }
        // Whoever is still being asked may answer yet.
        while let Some(index) =
            self.sentinels.iter().position(|sentinel| matches!(sentinel.state, Contact::Away(_)))
        {
            match self.hear(index, by) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => worst = Some(worse(worst, error)),
                None => break,
            }
        }
        let shown = &self.master.shown;
        Err(match worst {
            Some(error @ (Error::Unreachable(_) | Error::Misnamed(_))) => {
                error.map(|text| format!("{shown}: no sentinel answers; {text}"))
            }
            Some(error) => error.map(|text| format!("{shown}: {text}")),
            None => Error::Unreachable(format!("cannot reach {shown}: no sentinel answers in time")),
        })
    }

    /// A connection on which no answer came is of no use any more: it would come late, for another question.
    fn forget_silent(&mut self, index: usize) {
        let state = &mut self.sentinels[index].state;
        if matches!(state, Contact::Asked(..)) {
            *state = Contact::Idle(None);
        }
    }

    fn group(&self) -> Option<Group> {
        self.found.as_ref()?.group
    }

    fn target(&self, address: &Address) -> Target {
        let shown = format!("{} (master {address})", self.master.shown);
        Target { address: address.clone(), shown, ..self.master.clone() }
    }

    /// Takes note of what a sentinel says; true if it names another master than the one that is used.
    fn note(&mut self, said: Result<Found, Error>) -> bool {
        let (Ok(named), Some(found)) = (said, &mut self.found) else { return false };
        if named.address == found.address {
            if let (Some(known), Some(new)) = (&mut found.group, named.group) {
                // That it fails over is the word of one of them.
                *known = Group { fails_over: known.fails_over || new.fails_over, ..new };
            }
            return false;
        }
        let epochs = (named.group.map(|group| group.epoch), found.group.map(|group| group.epoch));
        let is_newer = match epochs {
            (Some(new), Some(known)) if new != known => new > known,
            // An answer that is older than what is known may be about the master before.
            _ => named.since >= found.since,
        };
        if is_newer {
            self.found = Some(Found { since: Moment::now(), ..named });
        }
        is_newer
    }
}

impl Topology for Sentinels {
    fn begin(&mut self) {
        self.left_to_ask = self.sentinels.len();
        self.tried.clear();
        self.last = None;
    }

    fn next_server(&mut self, _: Whom<'_>, by: Moment) -> Result<Hop, Error> {
        while self.found.is_none() {
            if self.left_to_ask == 0 {
                return Err(self.last.take().unwrap_or_else(|| {
                    Error::Unreachable(format!("cannot reach {}: no sentinel answers", self.master.shown))
                }));
            }
            self.left_to_ask -= 1;
            let found = match self.discover(by) {
                Ok(found) => found,
                // Why the master that was named is of no use says more.
                Err(error) => return Err(self.last.take().unwrap_or(error)),
            };
            if !self.tried.contains(&found.address) {
                self.found = Some(found);
            }
        }
        let address = self.found.as_ref().map_or(&self.master.address, |found| &found.address);
        Ok(Hop { target: self.target(address), until: by, asking: Asking::No })
    }

    /// A sentinel may be late, and a server may have come back as what it was before: it is asked itself.
    fn greet(&mut self, connection: &mut Connection, by: Moment) -> Result<(), Error> {
        let shown = connection.target().shown.clone();
        match connection.ask(cmd("ROLE"), by)? {
            Value::Array(role) => match role.first() {
                Some(Value::BulkString(role)) if role == b"master" => Ok(()),
                _ => Err(Error::Unavailable(format!("{shown} says that it is not the master; a failover?"))),
            },
            _ => Err(Error::Garbled(format!("{shown} does not say what its ROLE is"))),
        }
    }

    fn known(&self, _: Whom<'_>) -> Option<Address> {
        self.found.as_ref().map(|found| found.address.clone())
    }

    fn failed(&mut self, address: &Address, error: &Error) -> Next {
        self.found = None;
        self.tried.push(address.clone());
        self.last = Some(error.clone());
        if error.is_transient() { Next::Elsewhere } else { Next::Done }
    }

    fn reset(&mut self) {
        self.found = None;
    }

    fn ask_beside(&mut self) {
        if self.asks == Asks::Group {
            if let Some(group) = self.found.as_mut().and_then(|found| found.group.as_mut()) {
                group.fails_over = false;
            }
            self.round = Moment::now();
            for index in 0..self.sentinels.len() {
                self.forget_silent(index);
                self.ask(index, self.round);
            }
            return;
        }
        let count = self.sentinels.len();
        let index = self.turn;
        let linked = |sentinel: &Sentinel| matches!(sentinel.state, Contact::Idle(Some(_)));
        let order = || (0..count).map(move |step| (index + step) % count);
        for index in order() {
            self.forget_silent(index);
        }
        // One that is sure to answer; and one that there is no connection to (any more), for another time.
        let sure = order().find(|index| linked(&self.sentinels[*index]));
        let other = order().find(|index| matches!(self.sentinels[*index].state, Contact::Idle(None)));
        self.turn = (sure.or(other).unwrap_or(index) + 1) % count.max(1);
        for index in sure.into_iter().chain(other) {
            self.ask(index, Moment::now());
        }
    }

    fn is_superseded(&mut self, until: Moment) -> bool {
        let mut superseded = false;
        for index in 0..self.sentinels.len() {
            if matches!(self.sentinels[index].state, Contact::Asked(..))
                && let Some(said) = self.hear(index, until)
            {
                superseded |= self.note(said);
            }
        }
        loop {
            // One that hangs is not waited for again and again.
            let is_expected =
                |sentinel: &Sentinel| matches!(sentinel.state, Contact::Away(asked) if asked >= self.round);
            let waits = self.asks == Asks::Group && self.sentinels.iter().any(is_expected);
            let until = if waits { until } else { Moment::now() };
            let Some(reply) = alarm::receive(&self.replies.1, until) else { break };
            let said = self.open(reply);
            superseded |= self.note(said);
        }
        superseded
    }

    fn look_at_replicas(&mut self) {
        self.asks = Asks::Group;
    }

    fn fails_over(&self) -> bool {
        self.group().is_some_and(|group| group.fails_over)
    }

    fn replica_count(&self) -> ReplicaCount {
        self.group().map_or(ReplicaCount::Connected, |group| ReplicaCount::Known(group.replicas))
    }

    fn anew(&self) -> Box<dyn Topology> {
        let sentinels = self.sentinels.iter().map(|sentinel| sentinel.target.clone()).collect();
        Box::new(Self::new(sentinels, self.service.clone(), self.master.clone()))
    }

    fn masters(&mut self, by: Moment) -> Result<Vec<Target>, Error> {
        let address = match &self.found {
            Some(found) => found.address.clone(),
            None => self.discover(by)?.address,
        };
        Ok(vec![self.target(&address)])
    }
}

fn questions(service: &str, asks: Asks) -> Vec<Cmd> {
    let asked: &[&str] = match asks {
        Asks::Address => &["GET-MASTER-ADDR-BY-NAME"],
        Asks::Group => &["GET-MASTER-ADDR-BY-NAME", "MASTER"],
    };
    asked.iter().map(|what| cmd("SENTINEL").arg(*what).arg(service).take()).collect()
}

/// The sentinel's answer to [`questions`].
fn answer(
    connection: &mut Connection,
    service: &str,
    asks: Asks,
    asked: Moment,
    by: Moment,
) -> Result<Found, Error> {
    let shown = &connection.target().shown.clone();
    let address = match connection.reply(by)? {
        Value::ServerError(error) if error.code() == "NOAUTH" => {
            return Err(Error::Denied(format!(
                "{shown} wants a password of its own: ?sentinel-password-file=FILE in the URL, and perhaps \
                 sentinel-username=U"
            )));
        }
        Value::ServerError(error) => return Err(refusal(shown, &error)),
        Value::Nil => {
            return Err(Error::Unfit(format!(
                "{shown} knows no master named '{service}'; see 'sentinel monitor' in its configuration"
            )));
        }
        value => match redis::from_redis_value::<(String, u16)>(value) {
            Ok((host, port)) if !host.is_empty() => Address::Tcp { host, port },
            _ => return Err(Error::Garbled(format!("{shown} names no address that is understood"))),
        },
    };
    let group =
        match asks {
            Asks::Address => None,
            Asks::Group => match connection.reply(by)? {
                Value::ServerError(error) => return Err(refusal(shown, &error)),
                value => Some(group(value, &address).ok_or_else(|| {
                    Error::Garbled(format!("{shown} does not say which replicas there are"))
                })?),
            },
        };
    Ok(Found { address, group, since: asked })
}

/// The answer to SENTINEL MASTER. As soon as the other server is the master the failover is over for dlock: then `named`
/// is that one already, and what is said here is still about the one before.
fn group(said: Value, named: &Address) -> Option<Group> {
    let fields: HashMap<String, String> = redis::from_redis_value(said).ok()?;
    let field = |name| fields.get(name).map(String::as_str);
    let old = Address::Tcp { host: field("ip")?.into(), port: field("port")?.parse().ok()? };
    let fails_over = field("flags")?.split(',').any(|flag| flag == "failover_in_progress");
    let (replicas, epoch) = (field("num-slaves")?.parse().ok()?, field("config-epoch")?.parse().ok()?);
    Some(Group { replicas, epoch, fails_over: fails_over && old == *named })
}

/// Of two failures the one that the user has to hear of: a refusal before a silence.
fn worse(known: Option<Error>, new: Error) -> Error {
    match known {
        Some(known) if !known.is_transient() && new.is_transient() => known,
        _ => new,
    }
}

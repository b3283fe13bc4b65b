//! Finds the master that the sentinels name. Time is bounded even if some sentinels are dead or do
//! not answer. The named server must itself say that it is a master. The sentinels are asked again
//! beside every renewal, so that the holder on a master that was cut off and replaced learns of it.
//! A single sentinel is believed: sentinels agree before they name another master, and asking them
//! in turn gets past one that was cut off together with the old master.
//!
//! The kernel may let a connect hang for long. So a sentinel without a connection is dialled and
//! asked on a thread that may be left behind, at most one for each sentinel. A connected sentinel
//! is asked directly. The connections stay open, since a holder asks for as long as it holds.

use super::connection::{Asking, Connection};
use super::failure::refusal;
use super::route::{Hop, Next, ReplicaCount, Topology, Whom};
use super::target::Target;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::{Address, budget, interrupt};
use redis::{Cmd, Value, cmd};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long to wait for one sentinel before the next one is asked as well.
const SLICE: Duration = Duration::from_millis(100);

/// The sentinels, and the server that they name.
pub struct Sentinels {
    /// The name of the master in the sentinels' configuration.
    service: String,
    /// Credentials and options of the master; its address is ignored.
    master: Target,
    sentinels: Vec<Sentinel>,
    /// Index of the sentinel to ask next.
    turn: usize,
    replies: (Sender<Reply>, Receiver<Reply>),
    found: Option<Found>,
    asks: Asks,
    /// When all of them were last asked.
    round: Moment,
    /// How many sentinels may still be asked in this call.
    left_to_ask: usize,
    /// Servers that failed in this call, and the last reason.
    tried: Vec<Address>,
    last: Option<Error>,
}

/// The master.
struct Found {
    address: Address,
    /// What else the sentinel knows of it, if asked.
    group: Option<Group>,
    /// When the sentinel was asked; for the current master, since when it is believed.
    since: Moment,
}

/// What a sentinel knows of a master and its replicas.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Number of replicas, including those that are down.
    replicas: u32,
    /// Grows with each failover.
    epoch: u64,
    /// Whether this sentinel is about to replace the master.
    fails_over: bool,
}

/// What to ask of the sentinels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// The address of the master, from one of them.
    Address,
    /// Everything about its group, from all of them: only the one that leads a failover knows of it
    /// before it has happened.
    Group,
}

struct Sentinel {
    target: Target,
    state: Contact,
}

enum Contact {
    Idle(Option<Connection>),
    /// Asked on its connection, at this time.
    Asked(Connection, Moment),
    /// A thread has dialled it and asked since this time.
    Away(Moment),
}

/// The result of a thread.
struct Reply {
    sentinel: usize,
    result: Result<(Connection, Found), Error>,
}

impl Sentinels {
    /// Sentinels, dialled when they are first asked. `master` has the credentials and options of
    /// the master; its address is ignored.
    pub fn new(sentinels: Vec<Target>, service: String, master: Target) -> Self {
        let sentinels: Vec<Sentinel> =
            sentinels.into_iter().map(|target| Sentinel { target, state: Contact::Idle(None) }).collect();
        // Many clients start at the same time; they should not all ask the first sentinel.
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

    /// Asks one sentinel. A failure is returned by the function that reads the answer.
    fn ask(&mut self, index: usize, asked_at: Moment) {
        let sentinel = &mut self.sentinels[index];
        let deadline = asked_at.after(sentinel.target.request_time());
        let state = std::mem::replace(&mut sentinel.state, Contact::Away(asked_at));
        let connection = match state {
            Contact::Idle(connection) => connection.and_then(Connection::if_good),
            // It was asked before and has not answered yet, or a thread is asking it.
            busy => {
                sentinel.state = busy;
                return;
            }
        };
        if let Some(mut connection) = connection
            && connection.send(questions(&self.service, self.asks), deadline).is_ok()
        {
            sentinel.state = Contact::Asked(connection, asked_at);
            return;
        }
        let (target, service, replies) =
            (sentinel.target.clone(), self.service.clone(), self.replies.0.clone());
        let (asks, purpose) = (self.asks, budget::purpose());
        let dial = move || {
            let result = budget::with(purpose, || {
                let mut connection = Connection::dial(&target, deadline)?;
                connection.send(questions(&service, asks), deadline)?;
                let found = answer(&mut connection, &service, asks, asked_at, deadline)?;
                Ok((connection, found))
            });
            let result = result.map_err(|error| match error {
                Error::Password(text) => Error::Denied(format!("{text}; see sentinel-password-file=")),
                error => error,
            });
            // The receiver is gone when the process is about to end.
            let _ = replies.send(Reply { sentinel: index, result });
        };
        if let Err(error) = thread::Builder::new().name("dlock-sentinel".into()).spawn(dial) {
            let result = Err(Error::Unreachable(format!("cannot start a thread to ask a sentinel: {error}")));
            let _ = self.replies.0.send(Reply { sentinel: index, result });
        }
    }

    /// The answer of this sentinel, if it comes by `until`. Returns earlier if a thread brings the
    /// answer of another one.
    fn read_answer(&mut self, index: usize, until: Moment) -> Option<Result<Found, Error>> {
        let sentinel = &mut self.sentinels[index];
        match std::mem::replace(&mut sentinel.state, Contact::Idle(None)) {
            Contact::Asked(mut connection, asked_at) => {
                let result = match connection.listen(until) {
                    Ok(false) => {
                        sentinel.state = Contact::Asked(connection, asked_at);
                        return None;
                    }
                    Ok(true) => {
                        let deadline = until.max(Moment::now().after(SLICE));
                        answer(&mut connection, &self.service, self.asks, asked_at, deadline)
                    }
                    Err(error) => Err(error),
                };
                if result.is_ok() {
                    sentinel.state = Contact::Idle(Some(connection));
                }
                Some(result)
            }
            away @ Contact::Away(_) => {
                sentinel.state = away;
                loop {
                    // The channel's own timeout does not count while the machine is suspended,
                    // which would lose an attempt.
                    match interrupt::receive(&self.replies.1, until) {
                        Some(reply) => {
                            let whose = reply.sentinel;
                            let result = self.open(reply);
                            if result.is_ok() || whose == index {
                                return Some(result);
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

    fn open(&mut self, Reply { sentinel, result }: Reply) -> Result<Found, Error> {
        let (connection, found) = result.map_or_else(|e| (None, Err(e)), |(it, found)| (Some(it), Ok(found)));
        self.sentinels[sentinel].state = Contact::Idle(connection);
        found
    }

    /// Asks the sentinels in turn until one names a master. A sentinel that does not answer costs
    /// one slice of the time; its answer may still come while the next one is asked.
    fn discover(&mut self, deadline: Moment) -> Result<Found, Error> {
        let count = self.sentinels.len();
        let mut worst: Option<Error> = None;
        for tried in 0..count {
            let index = self.turn;
            self.turn = (self.turn + 1) % count;
            self.drop_unanswered(index);
            self.ask(index, Moment::now());
            let untried = u32::try_from(count - tried).unwrap_or(u32::MAX);
            let slice = if untried == 1 { deadline.left() } else { SLICE.min(deadline.left() / untried) };
            match self.read_answer(index, Moment::now().after(slice)) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => worst = Some(worse(worst, error)),
                None => self.drop_unanswered(index),
            }
        }
        // Sentinels that threads are asking may still answer.
        while let Some(index) =
            self.sentinels.iter().position(|sentinel| matches!(sentinel.state, Contact::Away(_)))
        {
            match self.read_answer(index, deadline) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => worst = Some(worse(worst, error)),
                None => break,
            }
        }
        let shown = &self.master.shown;
        Err(match worst {
            Some(error @ (Error::Unreachable(_) | Error::Overloaded(_) | Error::Misnamed(_))) => {
                error.map(|text| format!("{shown}: no sentinel answers; {text}"))
            }
            Some(error) => error.map(|text| format!("{shown}: {text}")),
            None => Error::Overloaded(format!("cannot reach {shown}: no sentinel answers in time")),
        })
    }

    /// Drops a connection without an answer: the answer would come late, to another question.
    fn drop_unanswered(&mut self, index: usize) {
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

    /// Handles a sentinel's answer. Returns whether it names another master than the current one.
    fn note(&mut self, result: Result<Found, Error>) -> bool {
        let (Ok(named), Some(found)) = (result, &mut self.found) else { return false };
        if named.address == found.address {
            if let (Some(known), Some(new)) = (&mut found.group, named.group) {
                // Only one sentinel knows of the failover.
                *known = Group { fails_over: known.fails_over || new.fails_over, ..new };
            }
            return false;
        }
        let epochs = (named.group.map(|group| group.epoch), found.group.map(|group| group.epoch));
        let is_newer = match epochs {
            (Some(new), Some(known)) if new != known => new > known,
            // An older answer may be about the master before.
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

    fn next_server(&mut self, _: Whom<'_>, deadline: Moment) -> Result<Hop, Error> {
        while self.found.is_none() {
            if self.left_to_ask == 0 {
                return Err(self.last.take().unwrap_or_else(|| {
                    Error::Unreachable(format!("cannot reach {}: no sentinel answers", self.master.shown))
                }));
            }
            self.left_to_ask -= 1;
            let found = match self.discover(deadline) {
                Ok(found) => found,
                // Why the named master failed says more.
                Err(error) => return Err(self.last.take().unwrap_or(error)),
            };
            if !self.tried.contains(&found.address) {
                self.found = Some(found);
            }
        }
        let address = self.found.as_ref().map_or(&self.master.address, |found| &found.address);
        Ok(Hop { target: self.target(address), until: deadline, asking: Asking::No })
    }

    /// Checks the server's own ROLE: a sentinel may be late, and a server may have come back in its
    /// old role.
    fn greet(&mut self, connection: &mut Connection, deadline: Moment) -> Result<(), Error> {
        let shown = connection.target().shown.clone();
        match connection.ask(cmd("ROLE"), deadline)? {
            Value::Array(role) => match role.first() {
                Some(Value::BulkString(role)) if role == b"master" => Ok(()),
                _ => Err(Error::Unavailable(format!(
                    "{shown} is not the master; perhaps a failover is going on"
                ))),
            },
            _ => Err(Error::Garbled(format!("{shown} does not say what its ROLE is"))),
        }
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
                self.drop_unanswered(index);
                self.ask(index, self.round);
            }
            return;
        }
        let count = self.sentinels.len();
        let index = self.turn;
        let linked = |sentinel: &Sentinel| matches!(sentinel.state, Contact::Idle(Some(_)));
        let order = || (0..count).map(move |step| (index + step) % count);
        for index in order() {
            self.drop_unanswered(index);
        }
        // Ask one that is connected and so will answer, and one without a connection, for the next
        // time.
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
                && let Some(result) = self.read_answer(index, until)
            {
                superseded |= self.note(result);
            }
        }
        loop {
            // A sentinel that hangs since an earlier round is not waited for again.
            let is_expected =
                |sentinel: &Sentinel| matches!(sentinel.state, Contact::Away(at) if at >= self.round);
            let waits = self.asks == Asks::Group && self.sentinels.iter().any(is_expected);
            let until = if waits { until } else { Moment::now() };
            let Some(reply) = interrupt::receive(&self.replies.1, until) else { break };
            let result = self.open(reply);
            superseded |= self.note(result);
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

    fn masters(&mut self, deadline: Moment) -> Result<Vec<Target>, Error> {
        let address = match &self.found {
            Some(found) => found.address.clone(),
            None => self.discover(deadline)?.address,
        };
        Ok(vec![self.target(&address)])
    }
}

fn questions(service: &str, asks: Asks) -> Vec<Cmd> {
    let questions: &[&str] = match asks {
        Asks::Address => &["GET-MASTER-ADDR-BY-NAME"],
        Asks::Group => &["GET-MASTER-ADDR-BY-NAME", "MASTER"],
    };
    questions.iter().map(|what| cmd("SENTINEL").arg(*what).arg(service).take()).collect()
}

/// Reads a sentinel's answer to [`questions`].
fn answer(
    connection: &mut Connection,
    service: &str,
    asks: Asks,
    asked_at: Moment,
    deadline: Moment,
) -> Result<Found, Error> {
    let shown = &connection.target().shown.clone();
    let address = match connection.reply(deadline)? {
        Value::ServerError(error) if error.code() == "NOAUTH" => {
            return Err(Error::Denied(format!(
                "{shown} wants a password of its own: ?sentinel-password-file=FILE in the URL, and perhaps \
                 sentinel-username=U"
            )));
        }
        Value::ServerError(error) => return Err(refusal(shown, &error)),
        Value::Nil => {
            return Err(Error::Unfit(format!(
                "{shown} has no master named '{service}'; see 'sentinel monitor' in its configuration"
            )));
        }
        value => match redis::from_redis_value::<(String, u16)>(value) {
            Ok((host, port)) if !host.is_empty() => Address::Tcp { host, port },
            _ => {
                return Err(Error::Garbled(format!("{shown} names no address that dlock understands")));
            }
        },
    };
    let group =
        match asks {
            Asks::Address => None,
            Asks::Group => match connection.reply(deadline)? {
                Value::ServerError(error) => return Err(refusal(shown, &error)),
                value => Some(group(value, &address).ok_or_else(|| {
                    Error::Garbled(format!("{shown} does not say which replicas there are"))
                })?),
            },
        };
    Ok(Found { address, group, since: asked_at })
}

/// Parses the answer to SENTINEL MASTER. Once the other server is the master, the failover is over
/// for dlock: `named` is then the new master, while this answer may still be about the old one.
fn group(answer: Value, named: &Address) -> Option<Group> {
    let fields: HashMap<String, String> = redis::from_redis_value(answer).ok()?;
    let field = |name| fields.get(name).map(String::as_str);
    let old = Address::Tcp { host: field("ip")?.into(), port: field("port")?.parse().ok()? };
    let fails_over = field("flags")?.split(',').any(|flag| flag == "failover_in_progress");
    let (replicas, epoch) = (field("num-slaves")?.parse().ok()?, field("config-epoch")?.parse().ok()?);
    Some(Group { replicas, epoch, fails_over: fails_over && old == *named })
}

/// The more important of two failures: a refusal before a silence.
fn worse(known: Option<Error>, new: Error) -> Error {
    match known {
        Some(known) if !known.is_transient() && new.is_transient() => known,
        _ => new,
    }
}

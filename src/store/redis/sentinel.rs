//! Finds the master that the sentinels name. Time is bounded even if some sentinels are dead or do
//! not answer. The named server must itself say that it is a master. The sentinels are asked again
//! beside every renewal, so that the holder on a master that was cut off and replaced learns of it.
//! A single sentinel is believed: sentinels agree before they name another master, and asking them
//! in turn gets past one that was cut off together with the old master.
//!
//! The kernel may let a connect hang for long. So each sentinel is dialled and asked on a thread of
//! its own, which may be left behind. The connections stay open, since a holder asks for as long as
//! it holds.

use super::connection::{Asking, Connection};
use super::failure::refusal;
use super::route::{Hop, Next, ReplicaCount, Topology, Whom};
use super::target::Target;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::interrupt;
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
    /// Questions to its thread, each with the time when it was asked; None before the first one.
    questions: Option<Sender<(Asks, Moment)>>,
    /// When it was asked, as long as it has not answered.
    asked: Option<Moment>,
    /// Whether it has answered the last question, so that it is connected.
    is_linked: bool,
}

/// The result of a thread.
struct Reply {
    sentinel: usize,
    said: Result<Found, Error>,
}

impl Sentinels {
    /// Sentinels, dialled when they are first asked. `master` has the credentials and options of
    /// the master; its address is ignored.
    pub fn new(sentinels: Vec<Target>, service: String, master: Target) -> Self {
        let new = |target| Sentinel { target, questions: None, asked: None, is_linked: false };
        let sentinels: Vec<Sentinel> = sentinels.into_iter().map(new).collect();
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

    /// Asks one sentinel, unless it has not answered the question before. A failure comes as a
    /// reply.
    fn ask(&mut self, index: usize, asked: Moment) {
        let sentinel = &mut self.sentinels[index];
        if sentinel.asked.is_some() {
            return;
        }
        sentinel.asked = Some(asked);
        let question = (self.asks, asked);
        if sentinel.questions.as_ref().is_some_and(|thread| thread.send(question).is_ok()) {
            return;
        }
        let (sender, questions) = channel();
        // The thread has the other end.
        let _ = sender.send(question);
        sentinel.questions = Some(sender);
        let (target, service) = (sentinel.target.clone(), self.service.clone());
        let replies = self.replies.0.clone();
        let work = move || answer_all(index, &target, &service, &questions, &replies);
        if let Err(error) = thread::Builder::new().name("dlock-sentinel".into()).spawn(work) {
            let said = Err(Error::Unreachable(format!("cannot start a thread to ask a sentinel: {error}")));
            let _ = self.replies.0.send(Reply { sentinel: index, said });
        }
    }

    /// The next reply of any sentinel, if it comes by `until`. The channel's own timeout does not
    /// count while the machine is suspended, which would lose an attempt.
    fn next_reply(&mut self, until: Moment) -> Option<Result<Found, Error>> {
        let Reply { sentinel, said } = interrupt::receive(&self.replies.1, until)?;
        let sentinel = &mut self.sentinels[sentinel];
        (sentinel.asked, sentinel.is_linked) = (None, said.is_ok());
        Some(said)
    }

    /// Asks the sentinels in turn until one names a master. A sentinel that does not answer costs
    /// one slice of the time; its answer may still come while the next one is asked.
    fn discover(&mut self, deadline: Moment) -> Result<Found, Error> {
        let count = self.sentinels.len();
        let mut worst: Option<Error> = None;
        // Earlier answers may be about the master before.
        while self.next_reply(Moment::now()).is_some() {}
        for asked in 1..=count {
            let index = self.turn;
            self.turn = (self.turn + 1) % count;
            self.ask(index, Moment::now());
            let is_last = asked == count;
            let untried = u32::try_from(1 + count - asked).unwrap_or(u32::MAX);
            let slice = if is_last { deadline.left() } else { SLICE.min(deadline.left() / untried) };
            let until = Moment::now().after(slice);
            let is_awaited = |sentinels: &[Sentinel]| match is_last {
                true => sentinels.iter().any(|sentinel| sentinel.asked.is_some()),
                false => sentinels[index].asked.is_some(),
            };
            while is_awaited(&self.sentinels)
                && let Some(said) = self.next_reply(until)
            {
                match said {
                    Ok(found) => return Ok(found),
                    Err(error) => worst = Some(worse(worst, error)),
                }
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

    fn group(&self) -> Option<Group> {
        self.found.as_ref()?.group
    }

    fn target(&self, address: &Address) -> Target {
        let shown = format!("{} (master {address})", self.master.shown);
        Target { address: address.clone(), shown, ..self.master.clone() }
    }

    /// Handles a sentinel's answer. Returns whether it names another master than the current one.
    fn note(&mut self, said: Result<Found, Error>) -> bool {
        let (Ok(named), Some(found)) = (said, &mut self.found) else { return false };
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
        self.round = Moment::now();
        let count = self.sentinels.len();
        if self.asks == Asks::Group {
            if let Some(group) = self.found.as_mut().and_then(|found| found.group.as_mut()) {
                group.fails_over = false;
            }
            (0..count).for_each(|index| self.ask(index, self.round));
            return;
        }
        // Ask one that is connected and so will answer, and one without a connection, for the next
        // time.
        let turn = self.turn;
        let find = |sentinels: &[Sentinel], is_linked| {
            (0..count)
                .map(|step| (turn + step) % count)
                .find(|index| sentinels[*index].asked.is_none() && sentinels[*index].is_linked == is_linked)
        };
        let (sure, other) = (find(&self.sentinels, true), find(&self.sentinels, false));
        self.turn = (sure.or(other).unwrap_or(turn) + 1) % count.max(1);
        for index in sure.into_iter().chain(other) {
            self.ask(index, self.round);
        }
    }

    fn is_superseded(&mut self, until: Moment) -> bool {
        let mut superseded = false;
        loop {
            // A sentinel that hangs since an earlier round is not waited for again.
            let is_expected = |sentinel: &Sentinel| {
                let is_sure = self.asks == Asks::Group || sentinel.is_linked;
                is_sure && sentinel.asked.is_some_and(|asked| asked >= self.round)
            };
            let waits = self.sentinels.iter().any(is_expected);
            let Some(said) = self.next_reply(if waits { until } else { Moment::now() }) else { break };
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

    fn masters(&mut self, deadline: Moment) -> Result<Vec<Target>, Error> {
        let address = match &self.found {
            Some(found) => found.address.clone(),
            None => self.discover(deadline)?.address,
        };
        Ok(vec![self.target(&address)])
    }
}

fn questions_of(service: &str, asks: Asks) -> Vec<Cmd> {
    let asked: &[&str] = match asks {
        Asks::Address => &["GET-MASTER-ADDR-BY-NAME"],
        Asks::Group => &["GET-MASTER-ADDR-BY-NAME", "MASTER"],
    };
    asked.iter().map(|what| cmd("SENTINEL").arg(*what).arg(service).take()).collect()
}

/// Asks a sentinel each of these questions, on a connection that is kept while it is good.
fn answer_all(
    sentinel: usize,
    target: &Target,
    service: &str,
    questions: &Receiver<(Asks, Moment)>,
    replies: &Sender<Reply>,
) {
    let mut kept: Option<Connection> = None;
    for (asks, asked) in questions {
        let deadline = asked.after(target.connect_timeout + target.op_timeout);
        let connection = match kept.take().and_then(Connection::if_good) {
            Some(connection) => Ok(connection),
            None => Connection::dial(target, deadline),
        };
        let said = connection.and_then(|mut connection| {
            connection.send(questions_of(service, asks), deadline)?;
            let found = answer(&mut connection, service, asks, asked, deadline)?;
            kept = Some(connection);
            Ok(found)
        });
        // The receiver is gone when the process is about to end.
        let _ = replies.send(Reply { sentinel, said });
    }
}

/// Reads a sentinel's answer to these questions.
fn answer(
    connection: &mut Connection,
    service: &str,
    asks: Asks,
    asked: Moment,
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
    Ok(Found { address, group, since: asked })
}

/// Parses the answer to SENTINEL MASTER. Once the other server is the master, the failover is over
/// for dlock: `named` is then the new master, while this answer may still be about the old one.
fn group(said: Value, named: &Address) -> Option<Group> {
    let fields: HashMap<String, String> = redis::from_redis_value(said).ok()?;
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

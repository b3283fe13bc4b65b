//! Runs scripts on the master: by hash, or with the text if the server may not know it; and with
//! acknowledgements of replicas where a hold depends on the answer. The meaning of the answer is
//! not known here.

use super::acknowledge::{Acknowledge, Answer};
use super::connection::Connection;
use super::failure::KEYS;
use super::reply::{Head, Reply};
use super::route::{Limit, ReplicaCount, Route, Topology, Whom};
use super::script::{self, Code};
use super::target::Target;
use crate::clock::Moment;
use crate::lock::{Name, Names, Replicas};
use crate::store::net::interrupt;
use crate::store::{Error, json};
use redis::{ServerError, Value};
use serde::Serialize;
use std::time::Duration;

/// Shortest time to wait for a sentinel's answer after the master's.
const SENTINEL_WAIT: Duration = Duration::from_millis(1);
/// The same with `--replicas`, where any single sentinel may know that the acknowledgements are
/// worth nothing.
const ALL_SENTINELS_WAIT: Duration = Duration::from_millis(100);

/// Shortest time between the decision for a failover and the moment when the new master leaves the
/// old one: a sentinel takes two steps of 50 ms or more in between (`sentinelFailoverStateMachine`). Half
/// of that is counted on.
const FAILOVER_LEAD: Duration = Duration::from_millis(50);

/// If an answer took longer than this, the sentinels are asked once more which server is the
/// master.
const SLOW_ANSWER: Duration = Duration::from_secs(1);

pub struct Caller {
    /// The way to the master.
    pub route: Route,
    /// How messages name the store.
    shown: String,
    acknowledge: Acknowledge,
    /// Whether a script is sent by its hash first. Without replicas always: a server that lacks it says
    /// so. With replicas once a server has answered: a WAIT behind a script that fails with NOSCRIPT
    /// would wait too long and in vain.
    by_hash: bool,
    /// Whether the server may lack `leave`: it has lacked a script, so it was started or flushed
    /// meanwhile, or a request got no answer.
    in_doubt: bool,
}

/// A script call.
struct Request<'a> {
    code: &'a Code,
    /// The first lock, which says which server is asked.
    first: &'a Name,
    keys: Vec<String>,
    argument: String,
    /// Whether the script's text is sent with the first request, for one whose answer nobody may be
    /// there to read. The others send it after a NOSCRIPT only: unanswered requests may pile up at the
    /// server, so they are small.
    by_text: bool,
    replicas: Replicas,
    limit: Limit,
}

impl Caller {
    /// A caller for servers of this topology.
    pub fn new(topology: Box<dyn Topology>, target: &Target) -> Self {
        Self {
            route: Route::new(topology, target.op_timeout),
            shown: target.shown.clone(),
            acknowledge: Acknowledge::new(Replicas::None),
            by_hash: true,
            in_doubt: false,
        }
    }

    /// Makes replicas acknowledge what a hold depends on.
    pub fn acknowledged_by(&mut self, replicas: Replicas) {
        self.acknowledge = Acknowledge::new(replicas);
        self.by_hash = replicas == Replicas::None;
        if replicas != Replicas::None {
            self.route.look_at_replicas();
        }
    }

    /// Whether replicas have to acknowledge.
    pub fn has_replicas(&self) -> bool {
        self.acknowledge.replicas != Replicas::None
    }

    /// Runs a script for locks.
    pub fn run(
        &mut self,
        code: &Code,
        names: &[Name],
        argument: &impl Serialize,
        deadline: Moment,
    ) -> Result<Reply, Error> {
        self.run_once(&Request::new(code, names, argument)?, deadline)
    }

    fn run_once(&mut self, request: &Request<'_>, deadline: Moment) -> Result<Reply, Error> {
        let (value, _) = self.call(request, deadline)?;
        Ok(Reply::new(value, &self.shown))
    }

    /// Runs a script whose answer a hold depends on: sentinels are asked beside it which server is
    /// the master, and replicas must acknowledge. The answer of a server that is no longer master
    /// does not count.
    pub fn run_replicated(
        &mut self,
        code: &Code,
        names: &Names,
        argument: &impl Serialize,
        limit: Limit,
        deadline: Moment,
    ) -> Result<Reply, Error> {
        let replicas = self.acknowledge.replicas;
        let request = Request { replicas, limit, ..Request::new(code, names.as_slice(), argument)? };
        self.run_acknowledged(&request, deadline)
    }

    /// Runs `leave`. If replicas must acknowledge a grant, they must acknowledge its end.
    pub fn leave(
        &mut self,
        code: &Code,
        names: &Names,
        argument: &impl Serialize,
        deadline: Moment,
    ) -> Result<Reply, Error> {
        let (names, replicas) = (names.as_slice(), self.acknowledge.replicas);
        let request = Request { by_text: self.in_doubt, replicas, ..Request::new(code, names, argument)? };
        if replicas == Replicas::None {
            return self.run_once(&request, deadline);
        }
        self.run_acknowledged(&request, deadline)
    }

    /// Runs the script on the server that the sentinels say is the master. If it did what was asked,
    /// replicas must have acknowledged it, and none of them may be about to take over.
    fn run_acknowledged(&mut self, request: &Request<'_>, deadline: Moment) -> Result<Reply, Error> {
        let began = Moment::now();
        let ((value, acknowledged), answered) = self.call_master(request, deadline)?;
        let reply = Reply::new(value, &self.shown);
        if request.replicas != Replicas::None && DONE.contains(&reply.read::<Head>()?.outcome.as_str()) {
            acknowledged?;
            let is_failing_over = self.is_failing_over(began, answered, deadline);
            // A signal also ends the wait for the sentinels, so a failover may be unnoticed.
            if interrupt::is_raised() {
                // The caller asks again.
                return Err(Error::Unreachable(format!("{}: interrupted by a signal", self.shown)));
            }
            if is_failing_over {
                let text =
                    "the sentinels are making another server the master, and that may not have this change";
                return Err(Error::Unacknowledged(format!("{}: {text}", self.shown)));
            }
        }
        Ok(reply)
    }

    /// Runs the script, and again if the sentinels, which are asked meanwhile, name another master.
    /// Returns the answer, and the moment of the first one.
    fn call_master(&mut self, request: &Request<'_>, deadline: Moment) -> Result<(Answer, Moment), Error> {
        let began = Moment::now();
        self.route.ask_beside();
        let mut answer = self.call(request, deadline)?;
        // The sentinels were asked before the script was sent. Those that have not answered within
        // as long again are read the next time.
        let answered = Moment::now();
        let least = if request.replicas == Replicas::None { SENTINEL_WAIT } else { ALL_SENTINELS_WAIT };
        let until = answered.after(answered.since(began).max(least)).min(deadline);
        let is_late = request.replicas == Replicas::None && answered.since(began) > SLOW_ANSWER;
        if self.route.is_superseded(until) || is_late && self.is_superseded_meanwhile(deadline) {
            answer = self.call(request, deadline)?;
        }
        Ok((answer, answered))
    }

    /// Whether the server that answered is about to be replaced by one that may not have the write.
    /// In a failover a replica that has left already does not get it, while another one
    /// acknowledges. The leading sentinel knows of the failover [`FAILOVER_LEAD`] before that
    /// replica leaves, so it must be asked shortly before the answer, or after it.
    fn is_failing_over(&mut self, began: Moment, answered: Moment, deadline: Moment) -> bool {
        let asked_too_early = answered.since(began) > FAILOVER_LEAD;
        self.route.topology.fails_over()
            || asked_too_early && self.is_superseded_meanwhile(deadline)
            || self.route.topology.fails_over()
    }

    /// Asks the sentinels once more after a slow answer: the server may have been replaced since
    /// they were asked first.
    fn is_superseded_meanwhile(&mut self, deadline: Moment) -> bool {
        let until = Moment::now().after(ALL_SENTINELS_WAIT).min(deadline);
        self.route.ask_beside();
        self.route.is_superseded(until)
    }

    fn call(&mut self, request: &Request<'_>, deadline: Moment) -> Result<Answer, Error> {
        let Self { route, acknowledge, by_hash, in_doubt, .. } = self;
        let ask = |connection: &mut Connection, deadline, replica_count| {
            let by_text = request.by_text || !*by_hash;
            let mut answer = request.send(acknowledge, connection, replica_count, by_text, deadline)?;
            if script::is_unknown(&answer.0) {
                *in_doubt = true;
                answer = request.send(acknowledge, connection, replica_count, true, deadline)?;
            }
            match &answer.0 {
                Value::ServerError(error) if script::lacks_right(error) => {
                    Err(lacking(&connection.target().shown, request.code, error))
                }
                _ => Ok(answer),
            }
        };
        let exchanged = route.exchange(Whom::Lock(request.first), deadline, request.limit, ask);
        self.in_doubt |= exchanged.is_err();
        self.by_hash |= exchanged.is_ok();
        exchanged
    }
}

/// The answers that mean success.
const DONE: [&str; 7] = ["granted", "renewed", "asked", "superseded", "released", "already", "dequeued"];

/// The argument of a script, with the prefix of the locks' names.
#[derive(Serialize)]
struct Prefixed<'a, A> {
    prefix: &'a str,
    #[serde(flatten)]
    argument: &'a A,
}

impl<'a> Request<'a> {
    fn new(code: &'a Code, names: &'a [Name], argument: &impl Serialize) -> Result<Self, Error> {
        let first = names.first().ok_or_else(|| Error::Unfit("there is no lock to ask for".into()))?;
        Ok(Self {
            code,
            first,
            keys: code.keys(names),
            argument: json(&Prefixed { prefix: first.prefix(), argument })?,
            by_text: false,
            replicas: Replicas::None,
            limit: Limit::OpTimeout,
        })
    }

    /// Sends the script, by hash or with its text.
    fn send(
        &self,
        acknowledge: &mut Acknowledge,
        connection: &mut Connection,
        replica_count: ReplicaCount,
        by_text: bool,
        deadline: Moment,
    ) -> Result<Answer, Error> {
        let call = match by_text {
            true => self.code.by_text(&self.keys, &self.argument),
            false => self.code.by_hash(&self.keys, &self.argument),
        };
        acknowledge.ask(connection, call, self.replicas, replica_count, deadline)
    }
}

/// The error for a permission that was missing inside a script.
pub fn lacking(store: &str, code: &Code, error: &ServerError) -> Error {
    let command = code.command_at_fault(error).unwrap_or("one of its scripts' commands");
    let is_about_keys = error.details().is_some_and(|text| text.contains("access"));
    let on = if is_about_keys { format!(" on its keys ({KEYS})") } else { String::new() };
    Error::Denied(format!(
        "{store} denies this user a right that dlock needs: {command}{on}, in a script; docs/stores.md has the whole \
         ACL line"
    ))
}

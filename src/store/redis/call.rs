//! How is a script run for locks? By hash, or with its text where the server may not know it; on the master, wherever
//! that is; and where a hold is relied on, so that replicas have what it wrote. What the answer means is not asked here.

use super::acknowledge::Acknowledge;
use super::connection::Connection;
use super::reply::Reply;
use super::route::{Limit, ReplicaCount, Route, Topology, Whom};
use super::script::{self, Code};
use super::target::Target;
use crate::clock::Moment;
use crate::lock::{Name, Replicas};
use crate::store::Error;
use redis::{ServerError, Value};
use std::time::Duration;

/// How long at least a sentinel's answer is waited for after the master's.
const HEARD_OUT: Duration = Duration::from_millis(1);
/// The same where each sentinel may be the one that knows that the replicas' word is worth nothing.
const ALL_HEARD_OUT: Duration = Duration::from_millis(100);

/// A replica that is to be the master leaves no sooner after this was decided: a sentinel takes two steps of 50 ms or more
/// in between (`sentinelFailoverStateMachine`).
const LEAVES_AFTER: Duration = Duration::from_millis(50);

pub struct Caller {
    /// The way to the master.
    pub route: Route,
    /// How messages name the store.
    shown: String,
    acknowledge: Acknowledge,
    /// Whether the server is known to know the scripts. A WAIT behind one that it turns out not to know would wait in
    /// vain, and too long.
    knows_scripts: bool,
    /// The last request may still be on its way, so that nobody may be left to send the source after a NOSCRIPT.
    send_source_next: bool,
    /// The server turned out not to know a script. It was started a moment ago, or flushed, and will not know the one
    /// that gives back either.
    lacked_script: bool,
}

/// What is to be run.
struct Request<'a> {
    code: &'a Code,
    keys: Vec<String>,
    args: Vec<&'a str>,
    text: Text,
    replicas: Replicas,
    limit: Limit,
}

/// Whether the script's text goes out with the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    /// Only where the server asks for it. Requests that nobody answers may pile up there, so they are small.
    IfWanted,
    /// At once. If the answer comes too late for us, there is nobody to send the text after a NOSCRIPT: so a server that
    /// was stopped finds, behind the acquire that nobody waits for any more, a leave that it can execute.
    AtOnce,
}

/// What a server said.
struct Said {
    value: Value,
    acknowledged: Result<(), Error>,
}

impl Caller {
    /// Scripts run on servers that belong together in this way.
    pub fn new(topology: Box<dyn Topology>, target: &Target) -> Self {
        Self {
            route: Route::new(topology, target.op_timeout),
            shown: target.shown.clone(),
            acknowledge: Acknowledge::new(Replicas::None),
            knows_scripts: true,
            send_source_next: false,
            lacked_script: false,
        }
    }

    /// Has replicas acknowledge what is relied on.
    pub fn acknowledged_by(&mut self, replicas: Replicas) {
        self.acknowledge = Acknowledge::new(replicas);
        self.knows_scripts = replicas == Replicas::None;
        if replicas != Replicas::None {
            self.route.look_at_replicas();
        }
    }

    /// Whether replicas have to acknowledge what is relied on.
    pub fn has_replicas(&self) -> bool {
        self.acknowledge.replicas != Replicas::None
    }

    /// Runs a script for locks.
    pub fn run(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        self.run_once(&Request::new(code, names, args), names, by)
    }

    /// Sends by hash what [`Caller::run`] would, and waits for nothing.
    pub fn post(
        &self,
        connection: &mut Connection,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(), Error> {
        let Request { keys, args, .. } = Request::new(code, names, args);
        connection.post(vec![code.by_hash(&keys, &args)], by)
    }

    fn run_once(
        &mut self,
        request: &Request<'_>,
        names: &[Name],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        let said = self.call(request, names, by)?;
        Reply::open(said.value, &self.shown)
    }

    /// Runs a script on whose answer a hold rests: besides, it is asked who the master is, and the replicas acknowledge. A
    /// server that is not the master any more has not answered, whatever it said.
    pub fn run_replicated(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        limit: Limit,
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        let replicas = self.acknowledge.replicas;
        self.run_acknowledged(&Request { replicas, limit, ..Request::new(code, names, args) }, names, by)
    }

    /// Runs the script that gives back. Where replicas have to acknowledge a grant, they have to acknowledge its end.
    pub fn leave(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        let in_doubt = self.send_source_next || self.lacked_script;
        let text = if in_doubt { Text::AtOnce } else { Text::IfWanted };
        let replicas = self.acknowledge.replicas;
        let request = Request { text, replicas, ..Request::new(code, names, args) };
        if replicas == Replicas::None {
            return self.run_once(&request, names, by);
        }
        self.run_acknowledged(&request, names, by)
    }

    fn run_acknowledged(
        &mut self,
        request: &Request<'_>,
        names: &[Name],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        let began = Moment::now();
        self.route.ask_beside();
        let mut said = self.call(request, names, by)?;
        // The question was sent first: who has not answered it by as long again, is heard the next time.
        let answered = Moment::now();
        let least = if request.replicas == Replicas::None { HEARD_OUT } else { ALL_HEARD_OUT };
        let until = answered.after(answered.since(began).max(least)).min(by);
        if self.route.is_superseded(until) {
            said = self.call(request, names, by)?;
        }
        let is_about_to_go = request.replicas != Replicas::None && self.is_about_to_go(began, answered, by);
        let (what, reply) = Reply::open(said.value, &self.shown)?;
        if DONE.contains(&what.as_str()) {
            said.acknowledged?;
            if is_about_to_go {
                let text = "the sentinels are putting another server in the master's place, which may not have heard of it";
                return Err(Error::Unacknowledged(format!("{}: {text}", self.shown)));
            }
        }
        Ok((what, reply))
    }

    /// Whether the server that answered is about to be replaced by one that may not have what was written: in a failover a
    /// replica that has left already does not hear of it, and another one acknowledges. The sentinel that leads it knows a
    /// tenth of a second before that replica leaves, so it must have been asked shortly before the answer, or after it.
    fn is_about_to_go(&mut self, asked: Moment, answered: Moment, by: Moment) -> bool {
        if answered.since(asked) > LEAVES_AFTER && !self.route.topology.fails_over() {
            let began = Moment::now();
            self.route.ask_beside();
            return self.route.is_superseded(began.after(ALL_HEARD_OUT).min(by))
                || self.route.topology.fails_over();
        }
        self.route.topology.fails_over()
    }

    fn call(&mut self, request: &Request<'_>, names: &[Name], by: Moment) -> Result<Said, Error> {
        let Some(first) = names.first() else {
            return Err(Error::Unfit("there is no lock to ask for".into()));
        };
        let replica_count = match request.replicas {
            Replicas::All => self.route.replica_count(Whom::Lock(first), by)?,
            Replicas::None | Replicas::AtLeast(_) => ReplicaCount::Connected,
        };
        self.send_source_next = true;
        let Self { route, acknowledge, knows_scripts, lacked_script, .. } = self;
        let exchanged = route.exchange_within(Whom::Lock(first), by, request.limit, |connection, by| {
            let by_text = request.text == Text::AtOnce || !*knows_scripts;
            let mut said = request.send(acknowledge, connection, replica_count, by_text, by)?;
            if script::is_unknown(&said.0) {
                *lacked_script = true;
                said = request.send(acknowledge, connection, replica_count, true, by)?;
            }
            let (value, acknowledged) = said;
            match &value {
                Value::ServerError(error) if script::lacks_right(error) => {
                    Err(lacking(&connection.target().shown, request.code, error))
                }
                _ => Ok((value, acknowledged)),
            }
        });
        let (value, acknowledged) = exchanged?;
        (self.send_source_next, self.knows_scripts) = (false, true);
        Ok(Said { value, acknowledged })
    }
}

/// What a script answers that did what it was asked.
const DONE: [&str; 6] = ["granted", "renewed", "asked", "released", "already", "dequeued"];

impl<'a> Request<'a> {
    /// The last argument of each script is what the names of the locks begin with.
    fn new(code: &'a Code, names: &'a [Name], args: &[&'a str]) -> Self {
        let prefix = names.first().map_or("", Name::prefix);
        Self {
            code,
            keys: code.keys(names),
            args: args.iter().copied().chain([prefix]).collect(),
            text: Text::IfWanted,
            replicas: Replicas::None,
            limit: Limit::OpTimeout,
        }
    }

    /// Sends it, by hash or with its text.
    fn send(
        &self,
        acknowledge: &mut Acknowledge,
        connection: &mut Connection,
        replica_count: ReplicaCount,
        by_text: bool,
        by: Moment,
    ) -> Result<(Value, Result<(), Error>), Error> {
        let call = match by_text {
            true => self.code.by_text(&self.keys, &self.args),
            false => self.code.by_hash(&self.keys, &self.args),
        };
        acknowledge.ask(connection, call, self.replicas, replica_count, by)
    }
}

/// The error for a right that was missing inside of a script.
pub fn lacking(store: &str, code: &Code, error: &ServerError) -> Error {
    let command = code.command_at_fault(error).unwrap_or("one of its scripts' commands");
    let on = if error.details().is_some_and(|text| text.contains("access")) {
        " on the keys ~dlock.*"
    } else {
        ""
    };
    Error::Denied(format!(
        "{store} denies this user a right that dlock needs: {command}{on}, in a script; docs/stores.md has the whole \
         ACL line"
    ))
}

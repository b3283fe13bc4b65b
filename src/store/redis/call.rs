//! How is a script run for locks? By hash, or with its text where the server may not know it; on the master, wherever
//! that is; and where a hold is relied on, so that replicas have what it wrote. What the answer means is not asked here.

use super::acknowledge::Acknowledge;
use super::connection::Connection;
use super::overdue::{First, Overdue};
use super::reply::Reply;
use super::route::{ReplicaCount, Route, Topology, Whom};
use super::script::{self, Code};
use super::target::Target;
use crate::clock::Moment;
use crate::lock::{Name, Replicas};
use crate::store::Error;
use crate::store::net::failure::silent;
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
    overdue: Option<Overdue>,
}

/// What is to be run.
struct Request<'a> {
    code: &'a Code,
    keys: Vec<String>,
    args: Vec<&'a str>,
    text: Text,
    replicas: Replicas,
    /// The lease, of a renewal whose answer is good for something also when it comes late.
    lease: Option<Duration>,
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
    /// Read before the request was sent.
    sent: Moment,
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
            overdue: None,
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
    /// server that is not the master any more has not answered, whatever it said. A renewal has its `lease`: its answer
    /// may be that to one which was sent before. Also says when that was.
    pub fn run_replicated(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        lease: Option<Duration>,
        by: Moment,
    ) -> Result<(String, Reply, Moment), Error> {
        let replicas = self.acknowledge.replicas;
        // Whether replicas have what a late answer tells of is not known.
        let lease = lease.filter(|_| replicas == Replicas::None);
        self.run_acknowledged(&Request { replicas, lease, ..Request::new(code, names, args) }, names, by)
    }

    /// Runs the script that gives back. Where replicas have to acknowledge a grant, they have to acknowledge its end.
    pub fn leave(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        self.overdue = None;
        let in_doubt = self.send_source_next || self.lacked_script;
        let text = if in_doubt { Text::AtOnce } else { Text::IfWanted };
        let replicas = self.acknowledge.replicas;
        let request = Request { text, replicas, ..Request::new(code, names, args) };
        if replicas == Replicas::None {
            return self.run_once(&request, names, by);
        }
        self.run_acknowledged(&request, names, by).map(|(what, reply, _)| (what, reply))
    }

    fn run_acknowledged(
        &mut self,
        request: &Request<'_>,
        names: &[Name],
        by: Moment,
    ) -> Result<(String, Reply, Moment), Error> {
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
        Ok((what, reply, said.sent))
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
        let sent = Moment::now();
        // The answer to a renewal answers nothing else.
        if request.lease.is_none() {
            self.overdue = None;
        } else if let Some(said) = self.late_answer(by)? {
            return Ok(said);
        }
        let replica_count = match request.replicas {
            Replicas::All => self.route.replica_count(Whom::Lock(first), by)?,
            Replicas::None | Replicas::AtLeast(_) => ReplicaCount::Connected,
        };
        self.send_source_next = true;
        let Self { route, acknowledge, overdue, knows_scripts, lacked_script, .. } = self;
        let exchanged = route.exchange(Whom::Lock(first), by, |connection, by| {
            // A node that is only asked where the lock is does not touch the renewal that waits for its answer.
            if let Some(mut kept) = overdue.take_if(|kept| kept.is_at(connection)) {
                match kept.race(connection, by) {
                    Ok(First::Kept(value)) => {
                        kept.take_the_place_of(connection);
                        return Ok((value, (Ok(()), kept.sent)));
                    }
                    Ok(First::Other) => {}
                    Err(error) => {
                        *overdue = Some(kept);
                        return Err(error);
                    }
                }
            }
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
                _ => Ok((value, (acknowledged, sent))),
            }
        });
        match (self.route.unanswered.take(), request.lease, &mut self.overdue) {
            (Some(connection), Some(_), Some(kept)) if connection.is_owed() => kept.keep_other(connection),
            // The renewal went to another node, which may only have known the way.
            (Some(_), Some(_), Some(_)) => {}
            (Some(connection), Some(ttl), none) => *none = Some(Overdue::new(connection, sent, ttl)),
            _ => {}
        }
        let (value, (acknowledged, sent)) = exchanged?;
        (self.send_source_next, self.knows_scripts, self.overdue) = (false, true, None);
        Ok(Said { value, acknowledged, sent })
    }

    /// The answer to the renewal before, if that has come; an error where it is still to be waited for.
    fn late_answer(&mut self, by: Moment) -> Result<Option<Said>, Error> {
        let Some(mut kept) = self.overdue.take() else { return Ok(None) };
        loop {
            match kept.wait(by) {
                Ok(Some(value)) => {
                    let sent = kept.sent;
                    // What to do next is for who asks now.
                    if matches!(value, Value::ServerError(_)) {
                        return Ok(None);
                    }
                    self.send_source_next = false;
                    self.route.take_back(kept.into_connection());
                    return Ok(Some(Said { value, acknowledged: Ok(()), sent }));
                }
                Ok(None) if kept.is_to_try() => {
                    kept.take_other().map(|other| self.route.take_back(other));
                    self.overdue = Some(kept);
                    return Ok(None);
                }
                Ok(None) if by.passed() => {
                    let error = kept.silence();
                    self.overdue = Some(kept);
                    return Err(error);
                }
                Ok(None) => {}
                // The connection broke.
                Err(_) => return Ok(None),
            }
        }
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
            lease: None,
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
        if self.lease.is_none() || by_text {
            return acknowledge.ask(connection, call, self.replicas, replica_count, by);
        }
        connection.post(vec![call], by)?;
        if !connection.listen(by)? {
            connection.keep_for_the_answer();
            return Err(silent(&connection.target().shown));
        }
        Ok((connection.answer(by)?, Ok(())))
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

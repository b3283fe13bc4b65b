//! How is a script run for locks? By hash, or with its text where the server may not know it; on the master, wherever
//! that is; and where a hold is relied on, so that replicas have what it wrote. What the answer means is not asked here.

use super::Target;
use super::acknowledge::Acknowledge;
use super::reply::Reply;
use super::route::{Arrangement, Route, Whom};
use super::script::{self, Code, SERVER};
use crate::clock::Moment;
use crate::lock::{Name, Replicas};
use crate::store::Error;
use redis::{ServerError, Value};
use std::time::Duration;

/// How long at least a sentinel's answer is waited for after the master's.
const HEARD_OUT: Duration = Duration::from_millis(1);

/// Who runs scripts.
pub struct Caller {
    /// The way to the master.
    pub route: Route,
    /// How messages name the store.
    shown: String,
    acknowledge: Acknowledge,
    /// The last grant or renewal was not acknowledged as it has to be.
    unacknowledged: bool,
    /// The last request may still be on its way, so the next one brings its script along: if the answer comes too late
    /// for us, there is nobody to send the text after a NOSCRIPT. So a server that was stopped finds, behind the
    /// acquire that nobody waits for any more, a leave that it can execute.
    doubt: bool,
}

impl Caller {
    /// Scripts run on servers that belong together in this way.
    pub fn new(arrangement: Box<dyn Arrangement>, target: &Target) -> Self {
        Self {
            route: Route::new(arrangement, target.connect_timeout, target.op_timeout),
            shown: target.shown.clone(),
            acknowledge: Acknowledge::new(Replicas::None),
            unacknowledged: false,
            doubt: false,
        }
    }

    /// Has replicas acknowledge what is relied on.
    pub fn acknowledged_by(&mut self, replicas: Replicas) {
        self.acknowledge = Acknowledge::new(replicas);
        // A WAIT behind a script that the server turns out not to know would wait in vain, and too long.
        self.doubt = replicas != Replicas::None;
    }

    /// Whether the last request by which a hold is relied on did what was asked, and failed only in that too few
    /// replicas acknowledged it.
    pub const fn is_unacknowledged(&self) -> bool {
        self.unacknowledged
    }

    /// Runs a script for a lock.
    pub fn run(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        self.call(code, names, args, by, Replicas::None).map(|(what, reply, _)| (what, reply))
    }

    /// Runs a script that grants or renews: besides, it is asked who the master is, and the replicas acknowledge. A
    /// server that is not the master any more has not answered, whatever it said.
    pub fn rely(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
    ) -> Result<(String, Reply), Error> {
        self.unacknowledged = false;
        let began = Moment::now();
        let replicas = self.acknowledge.replicas();
        self.route.ask_beside();
        let mut said = self.call(code, names, args, by, replicas)?;
        // The question was sent first: who has not answered it by as long again, is heard the next time.
        let answered = Moment::now();
        let until = answered.after(answered.since(began).max(HEARD_OUT)).min(by);
        if self.route.is_superseded(until) {
            said = self.call(code, names, args, by, replicas)?;
        }
        let (what, reply, acknowledged) = said;
        if ["granted", "renewed", "asked"].contains(&what.as_str()) {
            self.unacknowledged = acknowledged.is_err();
            acknowledged?;
        }
        Ok((what, reply))
    }

    fn call(
        &mut self,
        code: &Code,
        names: &[Name],
        args: &[&str],
        by: Moment,
        replicas: Replicas,
    ) -> Result<(String, Reply, Result<(), Error>), Error> {
        let Some(first) = names.first() else {
            return Err(Error::Unfit("there is no lock to ask for".into()));
        };
        let keys: Vec<String> = names.iter().flat_map(|name| SERVER.keys(name)).collect();
        let doubt = std::mem::replace(&mut self.doubt, true);
        let acknowledge = &mut self.acknowledge;
        let (value, acknowledged) = self.route.exchange(Whom::Lock(first), by, |line, by| {
            let first = if doubt { code.by_text(&keys, args) } else { code.by_hash(&keys, args) };
            let mut said = acknowledge.ask(line, first, replicas, by)?;
            if matches!(&said.0, Value::ServerError(error) if error.code() == "NOSCRIPT") {
                said = acknowledge.ask(line, code.by_text(&keys, args), replicas, by)?;
            }
            match &said.0 {
                Value::ServerError(error) if script::lacks_right(error) => {
                    Err(lacking(&line.target().shown, code, error))
                }
                _ => Ok(said),
            }
        })?;
        self.doubt = false;
        let (what, reply) = Reply::open(value, &self.shown)?;
        Ok((what, reply, acknowledged))
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

//! One connection to a Redis server, dialled, authenticated and used under deadlines that cover the
//! whole exchange, not each read. The `redis` crate packs the commands. Its client is not used: it
//! cannot be given a deadline (its timeouts are per read, and name resolution has none), needs a
//! round trip of its own to set up, and hides the descriptor that a waiter polls.
//!
//! After any failure the caller drops the connection, because a late reply would answer the wrong
//! request.

use super::failure::refusal;
use super::script;
use super::target::Target;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::Failure;
use crate::store::net::password::{Password, log_in};
use crate::store::net::pipe::Pipe;
use crate::store::net::tls::speaks_no_tls;
use crate::store::net::{Address, budget, dial};
use redis::{Cmd, Value, cmd};
use std::collections::VecDeque;

mod resp;

/// Error replies that tell the caller what to do next; they are returned as values.
const DIRECTIONS: [&str; 6] = ["NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "LOADING", "UNBLOCKED"];

/// Whether the server has the slot, or is only about to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    No,
    /// The slot is being moved there: commands are preceded by ASKING.
    Yes,
}

/// A reply that comes before the one to the next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The reply to a setup command. It must not be an error.
    Greeting,
    /// The reply to a further command, or to ASKING.
    Aside,
}

/// One connection, and the server at its other end.
pub struct Connection {
    target: Target,
    pipe: Pipe,
    /// Sent once, before the next command, in the same write.
    preface: Vec<(Before, Cmd)>,
    /// Replies to the preface that are still to come.
    owed: VecDeque<Before>,
    aside: Vec<Value>,
    /// Whether the next command needs ASKING.
    pub asking: Asking,
    /// Whether a reply may still come that nobody waits for.
    is_spoiled: bool,
    /// Whether the server has ever sent a reply.
    has_replied: bool,
}

impl Connection {
    /// Connects by `deadline`, within the connect timeout once the password is known. AUTH and SELECT go
    /// out with the first command, in the same write. If the password may have changed, the answer
    /// to AUTH is awaited, so that a refused password is read again.
    pub fn dial(target: &Target, deadline: Moment) -> Result<Self, Error> {
        let settles = target.password.as_ref().is_some_and(Password::may_change);
        let dialed = log_in(&target.shown, target.password.as_ref(), deadline, |password| {
            let deadline = deadline.min(Moment::now().after(target.connect_timeout));
            let mut connection = Self::open(target, password, deadline)?;
            if settles {
                connection.send(Vec::new(), deadline)?;
            }
            Ok(connection)
        });
        Ok(dialed?)
    }

    fn open(target: &Target, password: Option<&str>, deadline: Moment) -> Result<Self, Error> {
        let store = &target.shown;
        let mut pipe = Pipe::dial(store.clone(), &target.address, target.tls.as_ref(), deadline)?;
        if let (Some(tls), Address::Tcp { host, port }) = (&target.tls, &target.address) {
            // The rest of the time is for finding out what kind of server does not answer.
            let most = Moment::now().after(deadline.left() * 7 / 8);
            pipe.secure(tls, host, most).map_err(|error| match error {
                Error::Unreachable(_) | Error::Overloaded(_) if dial::speaks_redis(host, *port, deadline) => {
                    speaks_no_tls(store)
                }
                error => error,
            })?;
        }
        Ok(Self {
            target: target.clone(),
            pipe,
            preface: target
                .greeting(password)
                .into_iter()
                .map(|command| (Before::Greeting, command))
                .collect(),
            owed: VecDeque::new(),
            aside: Vec::new(),
            asking: Asking::No,
            is_spoiled: false,
            has_replied: false,
        })
    }

    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// Adds a command that is sent before the next one, in the same write. Its reply is in
    /// [`Connection::aside`] afterwards.
    pub fn preface(&mut self, command: Cmd) {
        self.preface.push((Before::Aside, command));
    }

    /// Takes the replies to prefaces.
    pub fn aside(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.aside)
    }

    /// Marks the connection as not usable.
    pub const fn spoil(&mut self) {
        self.is_spoiled = true;
    }

    /// Whether another command may be sent on it.
    pub fn is_usable(&self) -> bool {
        !self.is_spoiled && self.asking == Asking::No && self.owed.is_empty()
    }

    /// The error for an error reply that was returned as a value.
    pub fn refused(&self, value: Value) -> Error {
        match value {
            Value::ServerError(error) => refusal(&self.target.shown, &error),
            _ => Error::Garbled(format!(
                "{} sent an answer that does not belong to the request",
                self.target.shown
            )),
        }
    }

    /// The connection, if it is idle and still open: if the server closed it (its own `timeout`, a
    /// restart), that has arrived by now.
    pub fn if_good(mut self) -> Option<Self> {
        matches!(self.listen(Moment::now()), Ok(false)).then_some(self)
    }

    /// Sends commands in one write; before the first ones it sends the setup commands, and waits
    /// for their replies. Only the first command may need the slot.
    pub fn send(&mut self, commands: Vec<Cmd>, deadline: Moment) -> Result<(), Error> {
        let asking = (self.asking == Asking::Yes).then(|| (Before::Aside, cmd("ASKING")));
        let mut bytes = Vec::new();
        for (before, command) in std::mem::take(&mut self.preface).into_iter().chain(asking) {
            command.write_packed_command(&mut bytes);
            self.owed.push_back(before);
        }
        if !commands.is_empty() {
            budget::note_sent();
        }
        for command in commands {
            command.write_packed_command(&mut bytes);
        }
        self.pipe.send(&bytes, deadline).map_err(|failure| self.failure(failure, deadline))?;
        while self.owed.front() == Some(&Before::Greeting) {
            self.settle_next(deadline)?;
        }
        Ok(())
    }

    /// Reads the next of the replies that precede the one to a command.
    fn settle_next(&mut self, deadline: Moment) -> Result<(), Error> {
        let value = self.parse(deadline)?;
        match (self.owed.pop_front(), value) {
            (Some(Before::Greeting), value @ Value::ServerError(_)) => return Err(self.refused(value)),
            (Some(Before::Aside), value) => self.aside.push(value),
            _ => {}
        }
        Ok(())
    }

    /// Waits for the next reply until `deadline`, whatever it says.
    pub fn reply(&mut self, deadline: Moment) -> Result<Value, Error> {
        while !self.owed.is_empty() {
            self.settle_next(deadline)?;
        }
        let reply = self.parse(deadline)?;
        let is_served = match &reply {
            Value::ServerError(error) => {
                let refusal = refusal(&self.target.shown, error);
                !matches!(refusal, Error::Overloaded(_) | Error::Password(_) | Error::Denied(_))
            }
            _ => true,
        };
        if is_served {
            self.pipe.has_answered();
        }
        Ok(reply)
    }

    /// Waits for the next reply until `deadline`. An error reply is an `Err`, except if it tells what to
    /// do next, and if a permission is missing inside a script: only the caller knows what that
    /// means.
    pub fn answer(&mut self, deadline: Moment) -> Result<Value, Error> {
        let reply = self.reply(deadline)?;
        self.checked(reply)
    }

    /// The reply, or the `Err` for it: see [`Connection::answer`].
    pub fn checked(&self, reply: Value) -> Result<Value, Error> {
        match reply {
            Value::ServerError(error)
                if !DIRECTIONS.contains(&error.code()) && !script::lacks_right(&error) =>
            {
                Err(refusal(&self.target.shown, &error))
            }
            value => Ok(value),
        }
    }

    /// Sends a command and waits for its answer until `deadline`.
    pub fn ask(&mut self, command: Cmd, deadline: Moment) -> Result<Value, Error> {
        self.send(vec![command], deadline)?;
        self.answer(deadline)
    }

    /// Sleeps until the server sends something (true) or until `until` (false). CLOCK_BOOTTIME: the
    /// sleep of a suspended machine is over when it wakes.
    pub fn listen(&mut self, until: Moment) -> Result<bool, Error> {
        if !self.pipe.rest().is_empty() {
            return Ok(true);
        }
        self.pipe.listen(until).map_err(|failure| self.failure(failure, until))
    }

    fn parse(&mut self, deadline: Moment) -> Result<Value, Error> {
        let store = &self.target.shown;
        match resp::read(&mut self.pipe, deadline) {
            Ok(value) => {
                self.has_replied = true;
                Ok(value)
            }
            Err(resp::Failure::Net(failure)) => Err(self.failure(failure, deadline)),
            Err(resp::Failure::TooLong) => {
                Err(Error::Garbled(format!("{store} sent an answer that is too long; is it a Redis server?")))
            }
            Err(resp::Failure::NotRedis) => {
                Err(Error::Garbled(format!("{store}: the server there does not speak the Redis protocol")))
            }
        }
    }

    /// The failure as a store error. If the server hung up before it sent anything, it may want TLS.
    /// That is checked until `deadline`, because it is no outage, and waiting does not help.
    fn failure(&self, failure: Failure, deadline: Moment) -> Error {
        match (&failure, &self.target.address) {
            (Failure::Broken(_), Address::Tcp { host, port })
                if self.target.tls.is_none()
                    && !self.has_replied
                    && dial::speaks_tls(host, *port, deadline) =>
            {
                let store = &self.target.shown;
                Error::Misnamed(format!(
                    "cannot reach {store}: the server there wants TLS; with TLS the URL begins with rediss"
                ))
            }
            _ => failure.into(),
        }
    }
}

#[cfg(test)]
mod tests;

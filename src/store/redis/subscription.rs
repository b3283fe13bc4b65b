//! How a holder or a watcher learns that something happened: by a BLPOP on lists of its own, on a
//! connection that does nothing else. A renewal never waits for it. It connects to the server where
//! the store last found the lock, and does not look for another one. (A waiter listens through its
//! store, which has two connections for that.)

use super::connection::Connection;
use super::route::LastMaster;
use crate::clock::Moment;
use crate::lock::Name;
use crate::store::net::interrupt;
use crate::store::{self, Error, Listener};
use redis::{Cmd, Value, cmd};
use std::time::Duration;

/// Longest BLPOP, in seconds: a server that does not learn of its client's end drops it then.
pub const POP_SECONDS: u64 = 30;
/// Pause after a failure, so that the connection is not dialled repeatedly. Without a list to
/// listen on, a wake is reported this often.
pub const BACKOFF: Duration = Duration::from_secs(1);

pub struct Subscription {
    place: LastMaster,
    listener: Listener,
    /// In the order of the BLPOP, each with its lock.
    lists: Vec<(String, Name)>,
    about: Option<Name>,
    connection: Option<Connection>,
    backoff_until: Moment,
}

impl Subscription {
    /// Connects when it is first used. Without lists it does not listen, and reports from time to
    /// time that something may have happened.
    pub fn new(place: LastMaster, listener: Listener, lists: Vec<(String, Name)>) -> Self {
        Self { place, listener, lists, about: None, connection: None, backoff_until: Moment::now() }
    }

    fn listen(&mut self, until: Moment) -> Result<bool, Error> {
        let target =
            self.place.get().ok_or_else(|| Error::Unavailable("nothing was asked for yet".into()))?;
        let within = |limit| match self.listener {
            // A renewal must not wait for what the server does with these commands.
            Listener::Holder => Moment::now().after(limit).min(until),
            Listener::Watcher => Moment::now().after(limit),
        };
        let deadline = || within(target.op_timeout);
        let mut connection =
            match self.connection.take().filter(|connection| connection.target().address == target.address) {
                Some(connection) => connection,
                None => {
                    let mut connection =
                        Connection::dial(&target, within(target.connect_timeout + target.op_timeout))?;
                    connection.send(vec![self.pop()], deadline())?;
                    connection
                }
            };
        let heard = connection.listen(until)?;
        if heard {
            let reply = match connection.reply(deadline()) {
                // Another client floods the list, so it does not tell which lock changed.
                Err(Error::Garbled(_)) => {
                    self.about = None;
                    self.backoff_until = Moment::now().after(BACKOFF);
                    return Ok(true);
                }
                reply => reply?,
            };
            match connection.checked(reply)? {
                value @ Value::ServerError(_) => return Err(connection.refused(value)),
                value => self.about = self.of(value),
            }
            connection.send(vec![self.pop()], deadline())?;
        }
        self.connection = Some(connection);
        Ok(heard)
    }

    fn pop(&self) -> Cmd {
        let mut pop = cmd("BLPOP");
        let lists: Vec<&str> = self.lists.iter().map(|(list, _)| list.as_str()).collect();
        pop.arg(lists).arg(POP_SECONDS);
        pop
    }

    /// The lock whose list was popped; None if the BLPOP ended by its time limit.
    fn of(&self, answer: Value) -> Option<Name> {
        let (list, _): (String, String) = redis::from_redis_value(answer).ok()?;
        self.lists.iter().find(|(known, _)| *known == list).map(|(_, name)| name.clone())
    }
}

impl store::Subscription for Subscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        if self.lists.is_empty() {
            interrupt::sleep_until(until.min(Moment::now().after(BACKOFF)));
            return Ok(!until.passed());
        }
        interrupt::sleep_until(until.min(self.backoff_until));
        if until.passed() {
            return Ok(false);
        }
        let heard = self.listen(until);
        if heard.is_err() {
            self.backoff_until = Moment::now().after(BACKOFF);
        }
        heard
    }

    fn about(&self) -> Option<&Name> {
        self.about.as_ref()
    }
}

//! How a waiter, a holder or a watcher learns that something happened: by a BLPOP on lists of its
//! own, on a connection that does nothing else. No other request ever waits for it. It connects to
//! the server where the store last found the lock, and does not look for another one.

use super::connection::Connection;
use super::route::LastMaster;
use crate::clock::Moment;
use crate::lock::Name;
use crate::store::net::interrupt;
use crate::store::{self, BACKOFF, Error};
use redis::{ServerError, Value, cmd};
use std::time::Duration;

/// Longest BLPOP, in seconds: a server that does not learn of its client's end drops it then.
const POP_SECONDS: u64 = 30;

pub struct Subscription {
    place: LastMaster,
    /// How long after the end of a sleep a new connection, or the rest of an answer, may take. A
    /// renewal must not wait for the setup commands.
    beyond: Duration,
    /// In the order of the BLPOP, each with its lock. Empty if the server has no BLPOP.
    lists: Vec<(String, Name)>,
    about: Option<Name>,
    connection: Option<Connection>,
    /// Whether a BLPOP is under way on the connection.
    is_popping: bool,
    backoff_until: Moment,
}

impl Subscription {
    /// Connects when it is first used. Without lists it does not listen, and reports from time to
    /// time that something may have happened.
    pub fn new(place: LastMaster, beyond: Duration, lists: Vec<(String, Name)>) -> Self {
        let (about, connection, backoff_until) = (None, None, Moment::now());
        Self { place, beyond, lists, about, connection, is_popping: false, backoff_until }
    }

    /// Whether the connection is still good, if one is needed. After a failure it is not.
    pub const fn is_good(&self) -> bool {
        self.connection.is_some() || self.lists.is_empty()
    }

    /// Listens until something may have happened (true) or until `until` (false). A BLPOP that is
    /// under way then stays under way: the server may be up to 100 ms late in ending it.
    pub fn listen(&mut self, until: Moment) -> Result<bool, Error> {
        if self.lists.is_empty() {
            interrupt::sleep_until(until.min(Moment::now().after(BACKOFF)));
            return Ok(!until.passed());
        }
        let latest = until.after(self.beyond);
        let target =
            self.place.get().ok_or_else(|| Error::Unavailable("nothing was asked for yet".into()))?;
        let deadline = || Moment::now().after(target.op_timeout).min(latest);
        let mut connection =
            match self.connection.take().filter(|connection| connection.target().address == target.address) {
                Some(connection) => connection,
                None => {
                    self.is_popping = false;
                    Connection::dial(&target, latest)?
                }
            };
        if !self.is_popping {
            let mut pop = cmd("BLPOP");
            let lists: Vec<&str> = self.lists.iter().map(|(list, _)| list.as_str()).collect();
            connection.send(vec![pop.arg(lists).arg(POP_SECONDS).take()], deadline())?;
            self.is_popping = true;
        }
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
            // An administrator has renamed BLPOP away.
            if matches!(&reply, Value::ServerError(error) if is_unknown(error)) {
                self.lists.clear();
                return Ok(true);
            }
            self.about = match connection.checked(reply)? {
                // The slot has moved, or the server is no longer master: Redis unblocks the clients
                // that wait there.
                Value::ServerError(_) => {
                    return Err(Error::Unavailable(format!("{} has given the lock away", target.shown)));
                }
                value => self.of(value),
            };
            self.is_popping = false;
        }
        self.connection = Some(connection);
        Ok(heard)
    }

    /// The lock whose list was popped; None if the BLPOP ended by its time limit.
    fn of(&self, answer: Value) -> Option<Name> {
        let (list, _): (String, String) = redis::from_redis_value(answer).ok()?;
        self.lists.iter().find(|(known, _)| *known == list).map(|(_, name)| name.clone())
    }
}

fn is_unknown(error: &ServerError) -> bool {
    error.details().is_some_and(|text| text.starts_with("unknown command"))
}

impl store::Subscription for Subscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
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

//! How does a holder, or somebody who looks on, hear that something happened? By a blocking pop on lists of its own, on a
//! connection that does nothing else; a renewal never waits for it. (A waiter listens through its store, which has two
//! connections for that.) It listens where the store last found the lock, and does not look for it itself.

use super::EAR_BOUND;
use super::connection::Connection;
use super::route::Whereabouts;
use crate::clock::{Moment, sleep_until};
use crate::lock::Name;
use crate::store::{self, Error};
use redis::{Cmd, Value, cmd};
use std::time::Duration;

/// After a failure nothing is heard for this long: the connection is not dialled again and again. Where there is no list
/// to listen on, something may have happened as often.
pub const DEAF: Duration = Duration::from_secs(1);

/// A connection that listens.
pub struct Ear {
    place: Whereabouts,
    /// In the order in which they are popped from, each with its lock.
    lists: Vec<(String, Name)>,
    about: Option<Name>,
    line: Option<Connection>,
    deaf_until: Moment,
}

impl Ear {
    /// An ear that connects when it is first used. Without lists it does not listen, and says again and again that
    /// something may have happened.
    pub fn new(place: Whereabouts, lists: Vec<(String, Name)>) -> Self {
        Self { place, lists, about: None, line: None, deaf_until: Moment::now() }
    }

    fn listen(&mut self, until: Moment) -> Result<bool, Error> {
        let target =
            self.place.get().ok_or_else(|| Error::Unavailable("nothing was asked for yet".into()))?;
        // What sets the connection up may wait for the server, and a renewal must not.
        let by = || Moment::now().after(target.op_timeout).min(until);
        let mut line = match self.line.take().filter(|line| line.target().address == target.address) {
            Some(line) => line,
            None => {
                let mut line =
                    Connection::dial(&target, Moment::now().after(target.connect_timeout).min(until))?;
                line.send(vec![self.pop()], by())?;
                line
            }
        };
        let heard = line.listen(until)?;
        if heard {
            match line.answer(by())? {
                value @ Value::ServerError(_) => return Err(line.refused(value)),
                value => self.about = self.of(value),
            }
            line.send(vec![self.pop()], by())?;
        }
        self.line = Some(line);
        Ok(heard)
    }

    fn pop(&self) -> Cmd {
        let mut pop = cmd("BLPOP");
        let lists: Vec<&str> = self.lists.iter().map(|(list, _)| list.as_str()).collect();
        pop.arg(lists).arg(EAR_BOUND);
        pop
    }

    /// Whose list was popped from; none where the pop ended by its bound.
    fn of(&self, answer: Value) -> Option<Name> {
        let (list, _): (String, String) = redis::from_redis_value(answer).ok()?;
        self.lists.iter().find(|(known, _)| *known == list).map(|(_, name)| name.clone())
    }
}

impl store::Ear for Ear {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        if self.lists.is_empty() {
            sleep_until(until.min(Moment::now().after(DEAF)));
            return Ok(!until.passed());
        }
        sleep_until(until.min(self.deaf_until));
        if until.passed() {
            return Ok(false);
        }
        let heard = self.listen(until);
        if heard.is_err() {
            self.deaf_until = Moment::now().after(DEAF);
        }
        match heard {
            // Somebody floods the list: whatever happened, it is not told there.
            Err(Error::Garbled(_)) => {
                self.about = None;
                Ok(true)
            }
            heard => heard,
        }
    }

    fn about(&self) -> Option<&Name> {
        self.about.as_ref()
    }
}

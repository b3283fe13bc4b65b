//! How does a holder, or somebody who looks on, hear that something happened? By a blocking pop on lists of its own, on a
//! connection that does nothing else; a renewal never waits for it. (A waiter listens through its store, which has two
//! connections for that.)

use super::connect::Link;
use super::{EAR_BOUND, Target};
use crate::clock::Moment;
use crate::lock::Name;
use crate::store::{self, Error};
use redis::{Cmd, Value, cmd};
use std::time::Duration;

/// After a failure nothing is heard for this long: the connection is not dialled again and again.
const DEAF: Duration = Duration::from_secs(1);

/// A connection that listens.
pub struct Ear {
    target: Target,
    /// In the order in which they are popped from, each with its lock.
    lists: Vec<(String, Name)>,
    about: Option<Name>,
    link: Option<Link>,
    deaf_until: Moment,
}

impl Ear {
    /// An ear that connects when it is first used.
    pub fn new(target: Target, lists: Vec<(String, Name)>) -> Self {
        Self { target, lists, about: None, link: None, deaf_until: Moment::now() }
    }

    fn listen(&mut self, until: Moment) -> Result<bool, Error> {
        let target = &self.target;
        let by = || Moment::now().after(target.op_timeout);
        let mut link = match self.link.take() {
            Some(link) => link,
            None => {
                let mut link = Link::dial(target, Moment::now().after(target.connect_timeout).min(until))?;
                link.send(target, &self.pop(), by())?;
                link
            }
        };
        let heard = link.listen(target, until)?;
        if heard {
            let answer = link.answer(target, by())?;
            self.about = self.of(answer);
            link.send(target, &self.pop(), by())?;
        }
        self.link = Some(link);
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
        crate::clock::sleep_until(until.min(self.deaf_until));
        if until.passed() {
            return Ok(false);
        }
        let heard = self.listen(until);
        if heard.is_err() {
            self.deaf_until = Moment::now().after(DEAF);
        }
        heard
    }

    fn about(&self) -> Option<&Name> {
        self.about.as_ref()
    }
}

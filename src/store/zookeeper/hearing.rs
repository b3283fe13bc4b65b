//! How is news heard by those who hold or look on? Whoever writes to a lock or to a life is heard: both are watched, in a
//! session of their own.

use super::jute::{Answer, Ask, Code};
use super::wire::Failure;
use super::{Again, Znodes};
use crate::clock::Moment;
use crate::store::{Error, Subscription};
use std::time::Duration;

/// How long nothing is heard after a subscription failed.
const BACKOFF: Duration = Duration::from_secs(1);

/// A subscription, in a session of its own.
pub(super) struct Hearing {
    pub(super) nodes: Znodes,
    /// What is written to where there is news.
    pub(super) watched: Vec<String>,
    /// How often each was written to when it was looked at last; none if it was not there.
    pub(super) seen: Vec<Option<i32>>,
    pub(super) backoff_until: Moment,
}

impl Hearing {
    fn hear(&mut self, until: Moment) -> Result<bool, Failure> {
        let target = &self.nodes.target;
        self.nodes.by.set(Moment::now().after(target.connect_timeout + target.op_timeout));
        let asks: Vec<Ask> =
            self.watched.iter().map(|path| Ask::Look { path: path.clone(), watch: true }).collect();
        drop(self.nodes.session.borrow_mut().events());
        let answers = self.nodes.ask(&asks, Again::Yes)?;
        let version = |answer: Result<Answer, Code>| match answer {
            Ok(Answer::Stat(stat)) => Some(stat.version),
            _ => None,
        };
        let seen: Vec<Option<i32>> = answers.into_iter().map(version).collect();
        let before = std::mem::replace(&mut self.seen, seen);
        // The first time nobody knows what was before.
        if before != self.seen {
            return Ok(true);
        }
        self.nodes.session.borrow_mut().listen(until)
    }
}

impl Subscription for Hearing {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        crate::clock::sleep_until(until.min(self.backoff_until));
        if until.passed() {
            return Ok(false);
        }
        self.hear(until).map_err(|failure| {
            self.nodes.session.borrow_mut().hang_up();
            self.backoff_until = Moment::now().after(BACKOFF);
            failure.into()
        })
    }
}

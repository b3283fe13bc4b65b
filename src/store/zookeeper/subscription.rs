//! The subscription of a holder or a watcher: it watches session nodes or locks, in a session of
//! its own.

use super::jute::{Answer, Ask, Code};
use super::wire::Failure;
use super::{Again, Znodes};
use crate::clock::Moment;
use crate::store::{Error, Subscription};
use crate::store::net::interrupt;
use std::time::Duration;

/// Pause after a subscription has failed.
const BACKOFF: Duration = Duration::from_secs(1);

/// A subscription, in a session of its own.
pub(super) struct RequestSubscription {
    pub(super) nodes: Znodes,
    /// The nodes that a write announces news at.
    pub(super) watched: Vec<String>,
    /// Version of each node at the last look. None if the node was missing.
    pub(super) seen: Vec<Option<i32>>,
    pub(super) backoff_until: Moment,
}

impl RequestSubscription {
    fn hear(&mut self, until: Moment) -> Result<bool, Failure> {
        let asks: Vec<Ask> =
            self.watched.iter().map(|path| Ask::Look { path: path.clone(), watch: true }).collect();
        drop(self.nodes.session.events());
        let by = self.nodes.soon();
        let answers = self.nodes.ask(&asks, Again::Yes, by)?;
        let version = |answer: Result<Answer, Code>| match answer {
            Ok(Answer::Stat(stat)) => Some(stat.version),
            _ => None,
        };
        let seen: Vec<Option<i32>> = answers.into_iter().map(version).collect();
        let before = std::mem::replace(&mut self.seen, seen);
        // The first look has nothing to compare with, and counts as news.
        if before != self.seen {
            return Ok(true);
        }
        self.nodes.session.listen(until)
    }
}

impl Subscription for RequestSubscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        interrupt::sleep_until(until.min(self.backoff_until));
        if until.passed() || interrupt::is_raised() {
            return Ok(false);
        }
        self.hear(until).map_err(|failure| {
            self.nodes.session.hang_up();
            self.backoff_until = Moment::now().after(BACKOFF);
            failure.into()
        })
    }
}

//! The subscription of a watcher: it watches locks, in a session of its own.

use super::Znodes;
use super::jute::{Answer, Ask, Code};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::engine::subscription::Source;
use crate::store::net::failure::Failure;

/// A subscription, in a session of its own.
pub(super) struct WatcherSubscription {
    pub(super) nodes: Znodes,
    /// The nodes of the locks.
    pub(super) watched: Vec<String>,
    /// Version of each node at the last look. None if the node was missing.
    pub(super) seen: Vec<Option<i32>>,
    /// Whether the watches are set, unless the connection has broken since.
    pub(super) is_watched: bool,
}

impl WatcherSubscription {
    /// Watches the nodes, and returns whether one has changed since the last look.
    fn look(&mut self) -> Result<bool, Failure> {
        let asks: Vec<Ask> = self.watched.iter().map(|path| Ask::Watch(path.clone())).collect();
        drop(self.nodes.session.events());
        let deadline = self.nodes.soon();
        let answers = self.nodes.ask(&asks, deadline)?;
        let version = |answer: Result<Answer, Code>| answer.ok().map(|answer| answer.stat.version);
        let seen: Vec<Option<i32>> = answers.into_iter().map(version).collect();
        self.is_watched = true;
        let before = std::mem::replace(&mut self.seen, seen);
        // The first look has nothing to compare with, and counts as news.
        Ok(before != self.seen)
    }
}

impl Source for WatcherSubscription {
    /// Looks at the nodes only if a watch may be missing. While all are set, the pings of the
    /// session show whether the connection lives.
    fn hear(&mut self, until: Moment) -> Result<bool, Error> {
        let is_watched = self.is_watched && self.nodes.session.is_connected();
        if !is_watched && self.look()? {
            return Ok(true);
        }
        let is_news = self.nodes.session.listen(until)?;
        self.is_watched = !is_news;
        Ok(is_news)
    }

    fn reset(&mut self) {
        self.nodes.session.hang_up();
    }
}

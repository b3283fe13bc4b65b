//! The subscription of a watcher: it watches locks, in a session of its own.

use super::Znodes;
use super::jute::Ask;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::engine::subscription::Source;

/// A subscription, in a session of its own.
pub(super) struct WatcherSubscription {
    pub(super) nodes: Znodes,
    /// The nodes of the locks.
    pub(super) watched: Vec<String>,
}

impl Source for WatcherSubscription {
    /// After news, and after a reconnect, which may have missed some, it sets the watches again
    /// before the caller reads. Meanwhile the pings of the session show whether the connection
    /// lives.
    fn hear(&mut self, until: Moment) -> Result<bool, Error> {
        let is_news = !self.nodes.session.is_connected() || self.nodes.session.listen(until)?;
        if is_news {
            drop(self.nodes.session.events());
            let asks: Vec<Ask> = self.watched.iter().map(|path| Ask::Watch(path.clone())).collect();
            self.nodes.ask(&asks, self.nodes.soon())?;
        }
        Ok(is_news)
    }

    fn reset(&mut self) {
        self.nodes.session.hang_up();
    }
}

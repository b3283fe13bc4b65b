//! Wakes a holder or a watcher in a database: by a notification on a connection of its own, or by
//! polling.

use super::Tables;
use super::link::Row;
use super::servers::Again;
use crate::clock::Moment;
use crate::lock::{Name, Token};
use crate::rules::Phase;
use crate::store::engine::coordinator::{Coordinator, Purpose, Reading};
use crate::store::engine::stored_lock::StoredLock;
use crate::store::net::interrupt;
use crate::store::{Error, Listener, Subscription};
use std::collections::BTreeSet;
use std::time::Duration;

/// Pause after a subscription failed. Also the interval at which a holder polls if there are no
/// notifications; a watcher polls four times as often.
const BACKOFF: Duration = Duration::from_secs(1);

/// A subscription on a connection of its own.
pub(super) struct RequestSubscription {
    tables: Tables,
    names: BTreeSet<String>,
    token: Token,
    listener: Listener,
    /// The versions that were last read, for polling.
    seen: Vec<Row>,
    backoff_until: Moment,
}

impl RequestSubscription {
    pub(super) fn new(tables: Tables, names: &[Name], token: &Token, listener: Listener) -> Self {
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        let (seen, backoff_until) = (Vec::new(), Moment::now());
        Self { tables, names, token: token.clone(), listener, seen, backoff_until }
    }

    fn wait(&mut self, until: Moment) -> Result<bool, Error> {
        let by = self.tables.soon().min(until);
        if self.tables.line.is_none() {
            // The first read shows whether there is a pooler in between.
            self.is_news(by)?;
            self.tables.listen(&self.token, by)?;
            // A later change sends a notification or changes a version.
            self.has_changed(by)?;
            if self.is_news(by)? {
                return Ok(true);
            }
        }
        let Some(line) = &mut self.tables.line else { return Ok(false) };
        if line.listens {
            return Ok(line.link.listen(until)?);
        }
        let pace = match self.listener {
            Listener::Holder => BACKOFF,
            Listener::Watcher => BACKOFF / 4,
        };
        line.link.listen(Moment::now().after(pace).min(until))?;
        let by = self.tables.soon().min(until);
        Ok(!until.passed() && self.has_changed(by)? && self.is_news(by)?)
    }

    /// Whether there may be news. For a holder: it no longer holds, or was asked to end.
    fn is_news(&mut self, by: Moment) -> Result<bool, Error> {
        let (names, me, purpose) = (&self.names, Some(&self.token), Purpose::Look);
        let read = self.tables.read(&Reading { names, me, lease: None, purpose, by })?;
        let hold = |lock: &StoredLock| {
            lock.record.holds.get(&self.token).map(|hold| (hold.phase, hold.asked.is_some()))
        };
        let is_held = read.locks.iter().all(|lock| hold(lock) == Some((Phase::Held, false)));
        Ok(self.listener == Listener::Watcher || !is_held)
    }

    /// Whether a version has changed since the last call.
    fn has_changed(&mut self, by: Moment) -> Result<bool, Error> {
        let dialect = self.tables.dialect;
        let asked = dialect.versions(&dialect.list(&mut self.names.iter().map(String::as_str)));
        let now = self.tables.ask(&[asked], Again::Yes, by)?.pop().unwrap_or_default().rows;
        Ok(std::mem::replace(&mut self.seen, now.clone()) != now)
    }
}

impl Subscription for RequestSubscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        crate::clock::sleep_until(until.min(self.backoff_until));
        // Listening does not fail on an interrupt, but returns early.
        while !until.passed() && !interrupt::is_raised() {
            match self.wait(until) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    self.tables.reset();
                    if until.passed() {
                        return Ok(false);
                    }
                    self.backoff_until = Moment::now().after(BACKOFF);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }
}

//! Tells a holder or a watcher that something has happened: by a notification, or by polling where
//! there are none. A holder listens on the connection that it renews on.

use super::Tables;
use super::row::Row;
use super::servers::Again;
use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::Phase;
use crate::store::Error;
use crate::store::engine::coordinator::{Coordinator, Purpose, Reading};
use crate::store::engine::stored_lock::StoredLock;
use crate::store::engine::subscription::Source;
use crate::store::net::interrupt;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often a holder polls if there are no notifications. Each poll is a request, and a server may
/// have hundreds of holders.
const HOLDER_POLLS: Duration = Duration::from_secs(4);
/// Least time that a holder's poll gets.
const POLL_WITHIN: Duration = Duration::from_secs(1);
/// How often a watcher polls if there are no notifications.
const WATCHER_POLLS: Duration = Duration::from_millis(250);

/// A watcher's subscription, on a connection of its own.
pub(super) struct RequestSubscription {
    tables: Tables,
    names: BTreeSet<String>,
    token: Token,
    /// The versions that were last read, for polling.
    seen: Vec<Row>,
}

impl RequestSubscription {
    pub(super) fn new(tables: Tables, names: &[Name], token: &Token) -> Self {
        let names = names.iter().map(|name| name.as_str().to_owned()).collect();
        Self { tables, names, token: token.clone(), seen: Vec::new() }
    }

    /// Whether a version has changed since the last call.
    fn has_changed(&mut self, deadline: Moment) -> Result<bool, Error> {
        let dialect = self.tables.dialect;
        let asked = dialect.versions(&dialect.list(&mut self.names.iter().map(String::as_str)));
        let now = self.tables.ask(&[asked], Again::Yes, deadline)?.pop().unwrap_or_default().rows;
        Ok(std::mem::replace(&mut self.seen, now.clone()) != now)
    }
}

impl Source for RequestSubscription {
    fn hear(&mut self, until: Moment) -> Result<bool, Error> {
        if self.tables.line.is_none() {
            let deadline = self.tables.soon();
            // The first read shows whether there is a pooler in between.
            let (names, me, purpose) = (&self.names, Some(&self.token), Purpose::Look);
            self.tables.read(&Reading { names, me, lease: None, purpose, deadline })?;
            self.tables.listen(&self.token, deadline)?;
            // A later change sends a notification or changes a version.
            self.has_changed(deadline)?;
            return Ok(true);
        }
        let Some(line) = &mut self.tables.line else { return Ok(false) };
        if line.listens {
            return Ok(line.link.listen(until)?);
        }
        line.link.listen(Moment::now().after(WATCHER_POLLS).min(until))?;
        // A poll that is cut off by `until` would cost the connection.
        let deadline = self.tables.soon();
        Ok(!until.passed() && self.has_changed(deadline)?)
    }

    fn reset(&mut self) {
        self.tables.reset();
    }
}

impl Tables {
    /// Sleeps until the holder is asked to end or has lost the locks (true), or until `until`
    /// (false). If the connection breaks, the next renewal makes another.
    pub(super) fn sleep_as_holder(&mut self, names: &Names, token: &Token, until: Moment) -> bool {
        while !until.passed() && !interrupt::is_raised() {
            match self.listen_for_request(names, token, until) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => self.reset(),
            }
        }
        false
    }

    fn listen_for_request(&mut self, names: &Names, token: &Token, until: Moment) -> Result<bool, Error> {
        let Some(line) = &mut self.line else {
            interrupt::sleep_until(until);
            return Ok(false);
        };
        if line.listens {
            return Ok(line.link.listen(until)?);
        }
        if self.listen(token, self.soon().min(until))? {
            // A request before the subscription sent no notification.
            return self.has_request(names, token, until);
        }
        let Some(line) = &mut self.line else { return Ok(false) };
        let poll = Moment::now().after(HOLDER_POLLS);
        // A poll that is cut off by the renewal would cost the connection.
        let is_due = poll.after(POLL_WITHIN) < until;
        line.link.listen(if is_due { poll } else { until })?;
        Ok(is_due && !interrupt::is_raised() && self.has_request(names, token, until)?)
    }

    /// Whether the holder no longer holds all of the locks, or was asked to end. While the versions
    /// are those that it left, neither can be.
    fn has_request(&mut self, names: &Names, token: &Token, until: Moment) -> Result<bool, Error> {
        if let Some(left) = self.remembered_versions(names) {
            let asked = self.dialect.versions(&self.list_of(names));
            let answer = self.ask(&[asked], Again::Yes, self.soon().min(until))?.pop();
            let versions = answer.unwrap_or_default().rows.into_iter().flat_map(|row| row.0).flatten();
            if versions.eq(left.into_iter().map(|version| version.to_string().into_bytes())) {
                return Ok(false);
            }
        }
        let (names, deadline) =
            (names.iter().map(|name| name.as_str().to_owned()).collect(), self.soon().min(until));
        let reading =
            Reading { names: &names, me: Some(token), lease: None, purpose: Purpose::Look, deadline };
        let read = self.read(&reading)?;
        let hold =
            |lock: &StoredLock| lock.record.holds.get(token).map(|hold| (hold.phase, hold.asked.is_some()));
        Ok(!read.locks.iter().all(|lock| hold(lock) == Some((Phase::Held, false))))
    }
}

//! Wakes a holder or a watcher in a database: by a notification on a connection of its own, or by
//! polling.

use super::row::Waiters;
use super::statement::Question;
use super::{Failure, LockRow, Tables};
use crate::clock::Moment;
use crate::lock::{Name, Token};
use crate::rules::Phase;
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
    seen: Vec<Vec<Option<Vec<u8>>>>,
    backoff_until: Moment,
}

impl RequestSubscription {
    pub(super) fn new(tables: Tables, names: &[Name], token: &Token, listener: Listener) -> Self {
        Self {
            tables,
            names: names.iter().map(|name| name.as_str().to_owned()).collect(),
            token: token.clone(),
            listener,
            seen: Vec::new(),
            backoff_until: Moment::now(),
        }
    }

    fn hear(&mut self, until: Moment) -> Result<bool, Failure> {
        self.tables.allow_until(until);
        if self.tables.line.borrow().is_none() {
            // The first read shows whether there is a pooler in between.
            self.read()?;
            self.tables.listen(&self.token)?;
            // A later change sends a notification or changes a version.
            self.look()?;
            if self.is_news()? {
                return Ok(true);
            }
        }
        let Some(mut line) = self.tables.line.take() else { return Ok(false) };
        if line.is_direct != Some(false) && self.tables.database.dialect().has_channels() {
            let heard = line.link.listen(until)?;
            self.tables.line.replace(Some(line));
            return Ok(heard);
        }
        let pace = match self.listener {
            Listener::Holder => BACKOFF,
            Listener::Watcher => BACKOFF / 4,
        };
        line.link.listen(Moment::now().after(pace).min(until))?;
        self.tables.line.replace(Some(line));
        self.tables.allow_until(until);
        Ok(!until.passed() && self.look()? && self.is_news()?)
    }

    /// Whether there may be news. For a holder: it no longer holds, or was asked to end.
    fn is_news(&self) -> Result<bool, Failure> {
        if self.listener == Listener::Watcher {
            return Ok(true);
        }
        let hold =
            |row: &LockRow| row.record.holds.get(&self.token).map(|hold| (hold.phase, hold.asked.is_some()));
        Ok(!self.read()?.iter().all(|row| hold(row) == Some((Phase::Held, false))))
    }

    fn read(&self) -> Result<Vec<LockRow>, Failure> {
        let question = Question { names: &self.names, me: None, waiters: Waiters::All, with_ends: false };
        let found = self.tables.read(&question).map_err(Failure::Refused)?;
        Ok(self.tables.entries(&question, found).map_err(Failure::Refused)?.0)
    }

    /// Whether a version has changed since the last call.
    fn look(&mut self) -> Result<bool, Failure> {
        let asked = self.tables.database.dialect().versions(&self.names);
        let mut answers = self.tables.ask_tables(&[asked])?;
        let now = answers.pop().unwrap_or_default().rows;
        Ok(std::mem::replace(&mut self.seen, now.clone()) != now)
    }
}

impl Subscription for RequestSubscription {
    fn sleep(&mut self, until: Moment) -> Result<bool, Error> {
        crate::clock::sleep_until(until.min(self.backoff_until));
        // Listening does not fail on an interrupt, but returns early.
        while !until.passed() && !interrupt::is_raised() {
            match self.hear(until) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(failure) => {
                    self.tables.line.take();
                    if until.passed() {
                        return Ok(false);
                    }
                    self.backoff_until = Moment::now().after(BACKOFF);
                    return Err(failure.into());
                }
            }
        }
        Ok(false)
    }
}

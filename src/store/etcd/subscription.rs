//! Watches of etcd, on connections of their own. A waiter watches its own `life/` key and those of
//! the tokens that it waits for. A holder's subscription watches its `life/` key, a watcher's the
//! records.

use super::Keys;
use super::client::{Client, is_old_pass, reply};
use super::http::{Connection, Request};
use super::messages::{Bytes, Number, ServerError, Streamed, Watched};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::Phase;
use crate::store::engine::coordinator::{Purpose, Reading};
use crate::store::engine::subscription::Source;
use crate::store::net::failure::{Failure, plain};
use crate::store::{Error, Listener};
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The events of a key that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// Its deletion.
    End,
    All,
}

/// A watch of several keys.
pub struct Watches {
    connection: Connection,
    /// [`Client::dials`] when it began.
    dials: u64,
    keys: BTreeSet<(Bytes, News)>,
}

impl Watches {
    /// Watches these keys for events after a revision. `deadline` is the deadline for connecting and for
    /// etcd's first answer.
    pub fn open(
        client: &Client,
        keys: BTreeSet<(Bytes, News)>,
        after: u64,
        deadline: Moment,
    ) -> Result<Self, Failure> {
        let mut connection = client.connect(deadline)?;
        let mut body = String::new();
        for (key, news) in &keys {
            let filters: &[&str] = if *news == News::End { &["NOPUT"] } else { &[] };
            let create = json!({ "create_request": { "key": key, "start_revision": Number(after.saturating_add(1)), "filters": filters } });
            let _ = writeln!(body, "{create}");
        }
        let request = Request { path: "watch", body };
        match connection.begin_lines(&request, client.pass(), deadline)? {
            None => Ok(Self { connection, dials: client.dials, keys }),
            Some(answer) => {
                let error = reply(answer).err().unwrap_or_default();
                if is_old_pass(&error) {
                    return Err(Failure::Unable(client.ended_login(&error)));
                }
                Err(client.meaning(&error))
            }
        }
    }

    /// Whether it watches these keys. If the client has connected anew, what broke its connection may
    /// have cut off this one as well.
    pub fn is_for(&self, client: &Client, keys: &BTreeSet<(Bytes, News)>) -> bool {
        self.dials == client.dials && self.keys == *keys
    }

    /// Sleeps. Returns true on an event whose revision is `new`, false at `until`.
    pub fn hear(
        &mut self,
        client: &Client,
        new: impl Fn(u64) -> bool,
        until: Moment,
    ) -> Result<bool, Failure> {
        while let Some(line) = self.connection.next_line(until)? {
            let message: Streamed<Watched> = client.parse(&line)?;
            let watched = message.result.filter(|watched| !watched.canceled);
            let watched = watched.ok_or_else(|| Failure::Unable(ended(client, message.error)))?;
            let is_heard = watched.events.iter().any(|event| new(event.kv.mod_revision.0));
            if is_heard || until.passed() {
                return Ok(is_heard);
            }
        }
        Ok(false)
    }
}

/// The error for a watch that etcd ended. The caller opens another, because the member may be
/// shutting down.
fn ended(client: &Client, error: Option<ServerError>) -> Error {
    let why = error.map(|error| format!(": {}", plain(&error.message))).unwrap_or_default();
    Error::Unavailable(format!("{} ended a watch{why}", client.shown()))
}

impl Keys {
    /// Sleeps. Returns true on a newer event of the token's `life/` key or when one of the others
    /// ends, false at `until`. The watch stays open for the next call with the same keys.
    pub(super) fn listen(
        &mut self,
        token: &Token,
        others: &mut dyn Iterator<Item = &Token>,
        until: Moment,
    ) -> Result<bool, Failure> {
        let (layout, client) = (self.layout(), &self.client);
        let mut keys = BTreeSet::from([(layout.life(token), News::All)]);
        keys.extend(others.map(|other| (layout.life(other), News::End)));
        let (seen, wrote) = (self.seen, self.wrote);
        let deadline = Moment::now().after(client.request_time());
        let watches = self.watches.take().filter(|watches| watches.is_for(client, &keys));
        let mut watches = match watches {
            Some(watches) => watches,
            None => Watches::open(client, keys, seen, deadline)?,
        };
        let new = |revision| revision > seen && revision != wrote;
        let is_heard = watches.hear(client, new, until)?;
        self.watches = Some(watches);
        Ok(is_heard)
    }
}

/// A subscription, on connections of its own.
pub struct RequestSubscription {
    pub keys: Keys,
    pub names: BTreeSet<String>,
    pub token: Token,
    pub listener: Listener,
    pub watches: Option<Watches>,
}

impl RequestSubscription {
    /// Whether there may be news already: for a watcher always; for a holder if it no longer holds
    /// all the locks, or is asked to end. Also returns the revision of that read.
    fn is_news(&mut self, deadline: Moment) -> Result<(bool, u64), Failure> {
        let (names, purpose) = (&self.names, Purpose::Look);
        let reading = Reading { names, me: None, lease: None, purpose, deadline };
        let (snapshot, revision) = self.keys.snapshot(&reading)?;
        let holds = snapshot.locks.iter().all(|lock| {
            let mine = lock.record.holds.get(&self.token);
            mine.is_some_and(|mine| mine.phase == Phase::Held && mine.asked.is_none())
        });
        Ok((self.listener == Listener::Watcher || !holds, revision))
    }
}

impl Source for RequestSubscription {
    fn hear(&mut self, until: Moment) -> Result<bool, Error> {
        let Some(watches) = &mut self.watches else {
            let most = Moment::now().after(self.keys.client.request_time());
            let deadline = match self.listener {
                // It must not delay the renewal that is due at `until`.
                Listener::Holder => most.min(until),
                Listener::Watcher => most,
            };
            let (is_news, revision) = self.is_news(deadline)?;
            let layout = self.keys.layout();
            let heard = match self.listener {
                Listener::Holder => BTreeSet::from([(layout.life(&self.token), News::All)]),
                Listener::Watcher => self.names.iter().map(|name| (layout.lock(name), News::All)).collect(),
            };
            self.watches = Some(Watches::open(&self.keys.client, heard, revision, deadline)?);
            return Ok(is_news);
        };
        Ok(watches.hear(&self.keys.client, |_| true, until)?)
    }

    fn reset(&mut self) {
        self.watches = None;
        self.keys.client.next_member();
    }
}

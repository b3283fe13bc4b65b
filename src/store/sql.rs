//! Keeps locks in a database, for `postgres://…` and `mysql://…`: one row for each lock, one for
//! each waiter, and one for each of the last ends of a lock. The engine decides what the rows say.
//! This module reads and writes them; `postgres` and `mysql` have the SQL and the wire protocols.
//!
//! *A transaction of the engine takes two round trips*, and the database holds no lock between
//! them. The first reads the rows and the server's clock in one statement. The second writes all
//! rows in one statement, if no lock has another version meanwhile; otherwise nothing is written
//! and the engine starts again. So a request that arrives late changes nothing, and a request whose
//! reply was lost may be sent again.
//!
//! *The lease is in the record*, and the server's clock decides. The clock is read before the rows
//! are read or written. So a pause of this process makes its own lease shorter and the leases of
//! others look longer. A broken connection proves nothing about its client, so no connection is
//! watched, and a holder renews in the record itself: the renewal succeeds only on the version that
//! was read.
//!
//! *A waiter's heartbeat* changes only its own row. It also returns whether the waiter still waits,
//! so a lost notification costs only the time to the next heartbeat.

mod dialect;
mod link;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod probe;
mod remembered;
mod row;
mod servers;
mod subscription;
mod waiting;

use crate::clock::Moment;
use crate::lock::{Name, Names, Token};
use crate::rules::{RARER_HEARTBEAT, millis};
use crate::store::engine::Engine;
use crate::store::engine::coordinator::{
    Batch, Coordinator, KeepAlive, Leases, Purpose, Reading, Snapshot, Watching, Written,
};
use crate::store::engine::subscription::Resumed;
use crate::store::net::failure::silent;
use crate::store::net::interrupt;
use crate::store::net::target::Target;
use crate::store::{Endurance, Error, Listener, Subscription};
use dialect::{Dialect, Write};
use link::{Answer, Failure, Link};
use remembered::{Clock, Remembered};
use row::{Found, Row};
use servers::{Again, Line};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use subscription::RequestSubscription;
use waiting::POLL;

/// A store in a database.
pub type SqlStore = Engine<Tables>;

impl SqlStore {
    /// The statements that create the tables.
    pub fn tables(&self) -> &'static [&'static str] {
        self.coordinator.dialect.tables()
    }

    /// A store in MySQL or MariaDB. Connects at the first use.
    #[cfg(feature = "mysql")]
    pub fn mysql(target: Target) -> Self {
        Self::new(Tables::new(target, &mysql::Mysql))
    }

    /// A store in PostgreSQL. Connects at the first use.
    #[cfg(feature = "postgres")]
    pub fn postgres(target: Target) -> Self {
        Self::new(Tables::new(target, &postgres::Postgres))
    }
}

/// The tables of a database.
pub struct Tables {
    target: Arc<Target>,
    dialect: &'static dyn Dialect,
    /// Index of the server to try next: the one that worked last, or the one after a server that
    /// failed.
    server: Arc<AtomicUsize>,
    line: Option<Line>,
    /// What the last write left, for a renewal that does not read.
    remembered: Option<Remembered>,
    /// Since when the waiter has been the first in its queues, as far as its polls have seen.
    first_since: Option<Moment>,
}

/// How the records were read.
pub struct Seen {
    /// The clock that the operation decides by.
    clock: Option<Clock>,
    /// If the locks were not read but [remembered]: which times of the server's clock the write is
    /// good for, in microseconds since 1970.
    within: Option<RangeInclusive<u64>>,
    /// Whether this process has reserved the locks.
    reserves: bool,
}

impl Clone for Tables {
    /// The clone has no connection: a connection belongs to the process that made it.
    fn clone(&self) -> Self {
        let (target, server) = (Arc::clone(&self.target), Arc::clone(&self.server));
        Self { target, dialect: self.dialect, server, line: None, remembered: None, first_since: None }
    }
}

impl Tables {
    fn new(target: Target, dialect: &'static dyn Dialect) -> Self {
        let (server, line, remembered, first_since) = Default::default();
        Self { target: Arc::new(target), dialect, server, line, remembered, first_since }
    }

    /// Deadline of a request that has none of its own.
    fn soon(&self) -> Moment {
        Moment::now().after(self.request_time())
    }

    fn list_of(&self, names: &Names) -> String {
        self.dialect.list(&mut names.iter().map(Name::as_str))
    }

    /// The same as [`Tables::ask`], and creates the tables if they are missing.
    fn ask_tables(&mut self, statements: &[String], deadline: Moment) -> Result<Vec<Answer>, Failure> {
        match self.ask(statements, Again::Yes, deadline) {
            Err(Failure::NoTables(_)) => {}
            answer => return answer,
        }
        let each: Vec<_> = self.dialect.tables().iter().map(ToString::to_string).collect();
        match self.ask(&each, Again::Yes, deadline) {
            Ok(_) => self.ask(statements, Again::Yes, deadline),
            Err(Failure::Refused(Error::Denied(why)) | Failure::NoTables(Error::Denied(why))) => {
                Err(Failure::Refused(Error::Denied(format!(
                    "{why}; the tables of dlock are missing or hidden from this user, who may not make them: have an administrator run what 'dlock doctor --sql' prints, and grant this user the rights that docs/stores.md names"
                ))))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Parses the last answer, which has the rows of these locks.
    fn found(&mut self, answers: &[Answer], names: &BTreeSet<String>) -> Result<Found, Error> {
        let rows = answers.last().map(|answer| answer.rows.as_slice()).unwrap_or_default();
        let found = Found::parse(rows, names, &self.target.shown)?;
        if let Some(line) = &mut self.line {
            line.is_direct = Some(line.link.is_direct(found.process));
        }
        Ok(found)
    }
}

impl Coordinator for Tables {
    type Seen = Seen;
    type Watch = Infallible;

    const LEASES: Leases = Leases::Recorded;
    /// Nothing tells a waiter of a death before it, so also those far back read every few seconds.
    const CROWD: (u64, u32) = (4, 4);
    const HEARTBEAT: Duration = RARER_HEARTBEAT;

    fn request_time(&self) -> Duration {
        self.target.request_time()
    }

    fn begin(&mut self, _: &Token) -> Result<Vec<RawFd>, Error> {
        Ok(Vec::new())
    }

    /// Creates missing rows of locks that are about to be changed.
    fn read(&mut self, reading: &Reading<'_>) -> Result<Snapshot<Seen>, Error> {
        if let Some(remembered) = self.recall(reading) {
            return Ok(remembered);
        }
        let (names, deadline) = (reading.names, reading.deadline);
        let mut sent = Moment::now();
        let statements = statements(self.dialect, reading);
        let answers = self.ask_tables(&statements, deadline)?;
        let mut found = self.found(&answers, names)?;
        if reading.purpose.is_change() {
            let missing = found.locks.iter().filter(|lock| lock.version == 0);
            let missing: Vec<&str> = missing.map(|lock| lock.name.as_str()).collect();
            if !missing.is_empty() {
                let begun = [vec![self.dialect.begin(&missing)], statements].concat();
                sent = Moment::now();
                let answers = self.ask(&begun, Again::Yes, deadline)?;
                found = self.found(&answers, names)?;
            }
        }
        let clock = self.line.as_ref().map(|line| Clock { server: line.server, read: found.now, sent });
        let seen = Seen { clock, within: None, reserves: reading.purpose == Purpose::Reserve };
        Ok(Snapshot { locks: found.locks, now: found.now, seen })
    }

    fn commit(&mut self, seen: Seen, batch: Batch<'_>) -> Result<Written, Error> {
        // Another server has another clock.
        let server = seen.clock.map(|clock| clock.server);
        if self.target.has_several() && self.line.as_ref().map(|line| line.server) != server {
            return Ok(Written::Conflict);
        }
        let (me, deadline) = (batch.me, batch.deadline);
        let (mut write, left) =
            Write::of(batch).map_err(|why| Error::Garbled(format!("{}: {why}", self.target.shown)))?;
        (write.reserves, write.within) = (seen.reserves, seen.within);
        match self.ask(&[self.dialect.write(&write)], Again::No, deadline) {
            Ok(answers) => {
                if !answers.last().is_some_and(|answer| self.dialect.is_written(answer)) {
                    return Ok(Written::Conflict);
                }
                self.remembered = me.zip(seen.clock).and_then(|(me, clock)| Remembered::of(me, left, clock));
                if let Some(behind) = self.dialect.behind(&write) {
                    self.tell(behind, deadline);
                }
                Ok(Written::Yes)
            }
            Err(Failure::Conflict) => Ok(Written::Conflict),
            // If the write was done, the retry finds other versions.
            Err(failure @ (Failure::Broken(_) | Failure::ReadOnly(_))) => {
                Ok(Written::Unknown(failure.into()))
            }
            Err(Failure::NoTables(Error::Denied(why))) => {
                Err(Error::Denied(format!("{why}; docs/stores.md has the GRANT statement")))
            }
            // The tables existed when they were read. If they are missing now, the next read
            // reports it.
            Err(Failure::NoTables(_)) => Ok(Written::Conflict),
            Err(failure) => Err(failure.into()),
        }
    }

    fn keep_alive(&mut self, sign: &KeepAlive<'_>, deadline: Moment) -> Result<bool, Error> {
        if sign.ttl.is_some() {
            return Ok(false);
        }
        let heartbeat =
            self.dialect.heartbeat(&self.list_of(sign.names), sign.token, millis(sign.until.left()));
        let answers = self.ask(&[heartbeat], Again::Yes, deadline)?;
        let queues = sign.names.as_slice().len() as u64;
        Ok(answers.last().is_some_and(|answer| answer.changed == queues))
    }

    fn watch(&mut self, _: &Token, _: Moment) -> Watching<Infallible> {
        Watching::Unknown
    }

    fn wait(
        &mut self,
        names: &Names,
        token: &Token,
        ahead: u64,
        _: &mut dyn Iterator<Item = &Infallible>,
        until: Moment,
    ) -> Result<bool, Error> {
        let slept = self.sleep(names, token, ahead, until);
        // The place in the queue does not depend on the connection. The next request shows whether
        // the server can be reached.
        Ok(slept.unwrap_or_else(|_| {
            self.reset();
            interrupt::sleep_until(Moment::now().after(POLL));
            true
        }))
    }

    fn listen_as_holder(&mut self, names: &Names, token: &Token, until: Moment) -> Option<bool> {
        Some(self.sleep_as_holder(names, token, until))
    }

    /// Only for a watcher, because a holder listens on the connection that it renews on.
    fn subscribe(&self, names: &[Name], token: &Token, _: Listener) -> Box<dyn Subscription> {
        Box::new(Resumed::new(RequestSubscription::new(self.clone(), names, token)))
    }

    fn list(&mut self, deadline: Moment) -> Result<Vec<Result<String, Error>>, Error> {
        let answers = self.ask_tables(&[self.dialect.names()], deadline)?;
        let shown = &self.target.shown;
        let read = |row: &Row| {
            let invalid = || row::garbled(shown, &row.text(0), "its name is invalid; here in hex");
            row.name(0).ok_or_else(invalid)
        };
        Ok(answers[0].rows.iter().map(read).collect())
    }

    fn clean_up(&mut self, deadline: Moment) {
        self.ask(&self.dialect.clean_up(), Again::No, deadline).ok();
    }

    fn reset(&mut self) {
        self.line = None;
    }

    fn endurance(&self) -> Endurance {
        let timeout_error = silent(&self.target.shown);
        Endurance::Beside { second: Some(Box::new(Engine::new(self.clone()))), timeout_error }
    }
}

/// The statements that read these locks. A reservation is a text of its own, and so committed
/// before the rows are sent.
fn statements(dialect: &dyn Dialect, reading: &Reading<'_>) -> Vec<String> {
    let names = dialect.list(&mut reading.names.iter().map(String::as_str));
    let reserve = (reading.purpose == Purpose::Reserve).then(|| dialect.reserve(&names));
    let read = dialect.read(&names, reading.purpose == Purpose::LookAtAll);
    reserve.into_iter().chain([read]).collect()
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    /// Rows would stay locked while the queue is sent to a client that may have stopped. A text is
    /// one transaction.
    #[test]
    fn a_reservation_is_committed_before_the_queue_is_read() {
        let names = BTreeSet::from(["k".into()]);
        let deadline = Moment::now();
        let reading = |purpose| Reading { names: &names, me: None, lease: None, purpose, deadline };
        let texts = statements(&postgres::Postgres, &reading(Purpose::Reserve));
        assert!(texts[0].contains("UPDATE") && !texts[0].contains("dlock_waiters"), "{texts:?}");
        assert_eq!(texts[1..], statements(&postgres::Postgres, &reading(Purpose::Change)));
    }
}

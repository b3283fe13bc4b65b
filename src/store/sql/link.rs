//! A connection to a database, and what can go wrong on it. Each kind of database has its own wire
//! protocol for it.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::password::Password;
use crate::store::net::tls::Tls;
use std::time::Duration;

/// A database and how to connect to it.
#[derive(Clone)]
pub struct Target {
    /// The primary and its standbys, in any order; at least one.
    pub servers: Vec<Address>,
    pub user: String,
    pub password: Option<Password>,
    pub database: String,
    /// Set for a connection over TLS.
    pub tls: Option<Tls>,
    /// How messages name the store.
    pub shown: String,
    pub connect_timeout: Duration,
    pub op_timeout: Duration,
}

impl Target {
    /// How messages name one of the servers.
    pub(super) fn shown_at(&self, server: &Address) -> String {
        if self.has_standbys() { format!("{} at {server}", self.shown) } else { self.shown.clone() }
    }

    /// Whether some of the servers may be standbys, so that each must report whether it can write.
    pub(super) fn has_standbys(&self) -> bool {
        self.servers.len() > 1
    }
}

/// One connection.
pub(super) trait Link: Send {
    /// Sends the statements together, and returns the result of each. If one fails, the others
    /// still run; the first error is returned.
    fn ask(&mut self, statements: &[String], deadline: Moment) -> Result<Vec<Answer>, Failure>;

    /// Sends a statement whose answer nobody needs, without waiting for it where that is possible.
    /// Later statements run after it.
    fn tell(&mut self, statement: String, deadline: Moment) -> Result<(), Failure> {
        self.ask(&[statement], deadline).map(drop)
    }

    /// Sleeps until a notification arrives (true) or until `until` (false).
    fn listen(&mut self, until: Moment) -> Result<bool, Failure>;

    /// Whether there is no pooler in between: `process`, which has answered, is the one that this
    /// connection began with.
    fn is_direct(&self, process: u64) -> bool;
}

/// The columns of a row, as text.
pub(super) type Row = Vec<Option<Vec<u8>>>;

/// The result of a statement.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub rows: Vec<Row>,
    /// Number of rows that it changed.
    pub changed: u64,
}

/// Why an exchange failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is broken. A new one may work at once.
    Broken(Error),
    /// No answer in time.
    Silent(Error),
    /// The server cannot write and has done nothing. Another of the servers may be the primary now.
    ReadOnly(Error),
    /// The tables are missing.
    NoTables(Error),
    /// Another client changed the same rows.
    Conflict,
    Refused(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken(error)
            | Failure::Silent(error)
            | Failure::ReadOnly(error)
            | Failure::NoTables(error)
            | Failure::Refused(error) => error,
            Failure::Conflict => {
                Self::Unavailable("other transactions change the same rows all the time".into())
            }
        }
    }
}

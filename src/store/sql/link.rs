//! A connection to a database, and what can go wrong on it. Each kind of database has its own wire
//! protocol for it.

use super::row::Row;
use crate::clock::Moment;
use crate::store::{Error, net};

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

impl From<net::failure::Failure> for Failure {
    fn from(failure: net::failure::Failure) -> Self {
        use net::failure::Failure as Of;
        match failure {
            Of::Broken(error) => Self::Broken(error),
            Of::Silent(error) | Of::Unable(error) => Self::Silent(error),
            Of::Refused(error) => Self::Refused(error),
        }
    }
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

//! What is a connection to a database, and what can go wrong on it? Each kind of database has its own bytes for that.

use super::statement::Grammar;
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::Address;
use crate::store::net::password::Password;
use crate::store::net::tls::Tls;
use std::time::Duration;

/// Which database, and how to get into it.
#[derive(Clone)]
pub struct Target {
    /// The primary and its standbys, whichever is which now; at least one.
    pub servers: Vec<Address>,
    pub user: String,
    pub password: Option<Password>,
    pub database: String,
    /// Set where it is spoken to over TLS.
    pub tls: Option<Tls>,
    /// How messages name the store.
    pub shown: String,
    pub connect_timeout: Duration,
    pub op_timeout: Duration,
}

impl Target {
    /// How messages name one of its servers.
    pub(super) fn shown_at(&self, server: &Address) -> String {
        if self.has_standbys() { format!("{} at {server}", self.shown) } else { self.shown.clone() }
    }

    /// Whether there are servers that cannot write, so that each has to say whether it can.
    pub(super) fn has_standbys(&self) -> bool {
        self.servers.len() > 1
    }
}

/// A kind of database.
pub(super) trait Database: Send + Sync {
    fn target(&self) -> &Target;

    fn connect(&self, server: &Address, by: Moment) -> Result<Box<dyn Link>, Error>;

    /// The words in which it is asked.
    fn grammar(&self) -> &dyn Grammar;
}

/// One connection.
pub(super) trait Link: Send {
    /// Sends the statements together, and answers what each of them did. An error of one does not keep the others from being
    /// done; the first is told.
    fn ask(&mut self, statements: &[String], by: Moment) -> Result<Vec<Answer>, Failure>;

    /// Sends a statement, and does not wait for it. Whatever is asked next is done behind it.
    fn tell(&mut self, statement: &str, by: Moment) -> Result<(), Failure>;

    /// Waits for the answer to what was told last, if nothing was asked since.
    fn told(&mut self, by: Moment) -> Result<Option<Answer>, Failure>;

    /// Sleeps until a bell rings that was asked for, or until then (false).
    fn listen(&mut self, until: Moment) -> Result<bool, Failure>;

    /// Whether nobody in between lends it to others: `process`, who answers, is who it was connected to.
    fn is_direct(&self, process: u64) -> bool;
}

/// What a statement did.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
    /// How many rows it changed.
    pub changed: u64,
}

/// What went wrong in an exchange.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is of no use any more. It may be worth trying another one at once.
    Broken(Error),
    /// There was no answer in time.
    Silent(Error),
    /// The server cannot write, and others are named: one of them may be the primary now. This one has done nothing.
    ReadOnly(Error),
    /// There are no tables.
    NoTables(Error),
    /// Somebody else was quicker.
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
            Failure::Conflict => Self::Unavailable("others change the same rows all the time".into()),
        }
    }
}

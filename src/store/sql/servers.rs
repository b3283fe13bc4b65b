//! Chooses one of the servers that a URL names. One is the primary, the others are standbys, and a
//! failover changes which. An attempt tries each server once, beginning with the one that worked
//! last. Which server is the primary is decided elsewhere: of two that take writes, dlock uses the
//! first that it finds.

use super::{Failure, Line, Tables};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::{interrupt, turn};
use std::sync::atomic::Ordering;

/// The findings of one attempt.
#[derive(Default)]
pub(super) struct Round {
    /// The problem of each server that was tried.
    found: Vec<String>,
    is_read_only: bool,
    /// The error to return if no server can be reached; preferably one that waiting may mend.
    error: Option<Error>,
}

impl Tables {
    /// Connects to the next server that can be reached. Returns the connection and the deadline for
    /// its first answer, which shows whether the server can write.
    pub(super) fn connect(&self, round: &mut Round) -> Result<(Line, Moment), Error> {
        let target = self.database.target();
        let (count, each) = (target.servers.len(), target.connect_timeout + target.op_timeout);
        while round.found.len() < count {
            let by = turn(count, count - round.found.len(), each, self.by.get());
            let server = self.server.load(Ordering::Relaxed) % count;
            match self.database.connect(&target.servers[server], by) {
                Ok(link) => {
                    return Ok((
                        Line { server, link, listens: false, has_advisory_lock: false, is_direct: None },
                        by,
                    ));
                }
                // A server that refuses the connection may be a standby that admits no clients.
                Err(error) if target.has_standbys() && !interrupt::is_raised() => {
                    self.pass(server, Failure::Silent(error), round);
                }
                Err(error) => return Err(error),
            }
        }
        let found = round.found.join(", ");
        let none = || Error::Unavailable(format!("no host of {} takes writes now: {found}", target.shown));
        Err(round.error.take().filter(|_| !round.is_read_only).unwrap_or_else(none))
    }

    /// Whether to try another server: this one is a standby, or did not answer the first request of
    /// a new connection.
    pub(super) fn is_elsewhere(&self, failure: &Failure, is_new: bool) -> bool {
        match failure {
            Failure::ReadOnly(_) => true,
            Failure::Broken(_) | Failure::Silent(_) => is_new && self.database.target().has_standbys(),
            _ => false,
        }
    }

    /// Moves on to the server after this one.
    pub(super) fn pass(&self, server: usize, failure: Failure, round: &mut Round) {
        let target = self.database.target();
        self.server.store((server + 1) % target.servers.len(), Ordering::Relaxed);
        let is_read_only = matches!(failure, Failure::ReadOnly(_));
        let what = if is_read_only { "is read-only" } else { "cannot be reached" };
        round.found.push(format!("{} {what}", target.servers[server]));
        round.is_read_only |= is_read_only;
        let error = Error::from(failure);
        if round.error.is_none() || error.is_outage() {
            round.error = Some(error);
        }
    }
}

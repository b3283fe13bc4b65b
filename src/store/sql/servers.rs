//! Which of several servers is asked? All but one of those that a URL names are standbys, and after a failover it is another
//! one that can write. One attempt tries each server once, beginning with the one that worked last. Which server is to
//! be the primary is decided elsewhere: of two that both take writes the first one found is used.

use super::{Failure, Line, Tables};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::{alarm, turn};
use std::sync::atomic::Ordering;

/// What an attempt has found out.
#[derive(Default)]
pub(super) struct Round {
    /// What is the matter with each server that was tried.
    found: Vec<String>,
    is_read_only: bool,
    /// The error if none can be reached. Of several one that waiting may mend.
    error: Option<Error>,
}

impl Tables {
    /// A connection to the next server that can be reached, and until when that one is to answer. Whether it can write shows
    /// then.
    pub(super) fn connect(&self, round: &mut Round) -> Result<(Line, Moment), Error> {
        let target = self.database.target();
        let (count, each) = (target.servers.len(), target.connect_timeout + target.op_timeout);
        while round.found.len() < count {
            let by = turn(count, count - round.found.len(), each, self.by.get());
            let server = self.server.load(Ordering::Relaxed) % count;
            match self.database.connect(&target.servers[server], by) {
                Ok(link) => {
                    return Ok((
                        Line { server, link, listens: false, is_latched: false, is_direct: None },
                        by,
                    ));
                }
                // One that refuses may be a standby that lets nobody in.
                Err(error) if target.has_standbys() && !alarm::is_raised() => {
                    self.pass(server, Failure::Silent(error), round);
                }
                Err(error) => return Err(error),
            }
        }
        let found = round.found.join(", ");
        let none = || Error::Unavailable(format!("no host of {} takes writes now: {found}", target.shown));
        Err(round.error.take().filter(|_| !round.is_read_only).unwrap_or_else(none))
    }

    /// Whether another server is to be asked: this one is a standby, or did not even answer what it was asked first.
    pub(super) fn is_elsewhere(&self, failure: &Failure, is_new: bool) -> bool {
        match failure {
            Failure::ReadOnly(_) => true,
            Failure::Broken(_) | Failure::Silent(_) => is_new && self.database.target().has_standbys(),
            _ => false,
        }
    }

    /// From now on the server behind that one is tried.
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

//! Asks one of the servers that a URL names. One is the primary, the others are standbys, and a
//! failover changes which. An attempt tries each server once, beginning with the one that worked
//! last. Which server is the primary is decided elsewhere: of two that take writes, dlock uses the
//! first that it finds.

use super::{Answer, Failure, Link, Tables};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::{interrupt, turn};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Pause before a statement is sent again that conflicted with another client.
const CONFLICT: Duration = Duration::from_millis(2);

/// An open connection.
pub(super) struct Line {
    /// Index of the server.
    pub server: usize,
    pub link: Box<dyn Link>,
    /// Whether the connection listens to the notification channel of this process's token.
    pub listens: bool,
    /// Whether the connection leads to one server process, without a pooler. Known after the first
    /// read.
    pub is_direct: Option<bool>,
}

/// Whether the statements may be sent again, on another connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Yes,
    No,
}

/// The findings of one attempt.
#[derive(Default)]
struct Round {
    /// The problem of each server that was tried.
    found: Vec<String>,
    is_read_only: bool,
    /// The error to return if no server can be reached; preferably one that waiting may mend.
    error: Option<Error>,
}

impl Tables {
    /// Sends the statements in one round trip. With [`Again::Yes`] they are sent again if the
    /// connection turns out to be broken, or the server to be a standby.
    pub(super) fn ask(
        &mut self,
        statements: &[String],
        again: Again,
        deadline: Moment,
    ) -> Result<Vec<Answer>, Failure> {
        let mut round = Round::default();
        loop {
            let (is_new, (mut line, until)) = match self.line.take() {
                Some(line) => (false, (line, deadline)),
                None => {
                    // It may lead to a server with other data.
                    self.remembered = None;
                    (true, self.connect(&mut round, deadline).map_err(Failure::Refused)?)
                }
            };
            let answer = line.link.ask(statements, until);
            match answer {
                Err(failure) if self.is_elsewhere(&failure, is_new) => {
                    // An interrupted request says nothing of its server, only that the server is
                    // a standby.
                    if interrupt::is_raised() && !matches!(failure, Failure::ReadOnly(_)) {
                        return Err(failure);
                    }
                    if again == Again::No {
                        self.server.store(line.server + 1, Ordering::Relaxed);
                        return Err(failure);
                    }
                    self.pass(line.server, failure, &mut round);
                }
                // It was idle. If the server closes new connections too, the exchange fails.
                Err(Failure::Broken(_)) if again == Again::Yes && !is_new && !deadline.passed() => {}
                // Another client changed the rows or created the tables at the same time.
                Err(Failure::Conflict) if again == Again::Yes && !deadline.passed() => {
                    self.line = Some(line);
                    thread::sleep(CONFLICT);
                }
                Err(Failure::Broken(_) | Failure::Silent(_)) => return answer,
                answer => {
                    self.server.store(line.server, Ordering::Relaxed);
                    self.line = Some(line);
                    return answer;
                }
            }
        }
    }

    /// Sends a statement that may run some time after a write, on the same connection.
    pub(super) fn tell(&mut self, statement: String, deadline: Moment) {
        if self.line.as_mut().is_some_and(|line| line.link.tell(statement, deadline).is_err()) {
            self.line = None;
        }
    }

    /// Connects to the next server that can be reached. Returns the connection and the deadline for
    /// its first answer, which shows whether the server can write.
    fn connect(&self, round: &mut Round, deadline: Moment) -> Result<(Line, Moment), Error> {
        let target = &self.target;
        let (count, each) = (target.servers.len(), target.request_time());
        while round.found.len() < count {
            let deadline = turn(count, count - round.found.len(), each, deadline);
            let server = self.server.load(Ordering::Relaxed) % count;
            match self.dialect.connect(target, &target.servers[server], deadline) {
                Ok(link) => {
                    return Ok((Line { server, link, listens: false, is_direct: None }, deadline));
                }
                // A server that refuses the connection may be a standby that admits no clients.
                Err(error) if target.has_several() && !interrupt::is_raised() => {
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
    fn is_elsewhere(&self, failure: &Failure, is_new: bool) -> bool {
        match failure {
            Failure::ReadOnly(_) => true,
            Failure::Broken(_) | Failure::Silent(_) => is_new && self.target.has_several(),
            _ => false,
        }
    }

    /// Moves on to the server after this one.
    fn pass(&self, server: usize, failure: Failure, round: &mut Round) {
        let target = &self.target;
        self.server.store((server + 1) % target.servers.len(), Ordering::Relaxed);
        let is_read_only = matches!(failure, Failure::ReadOnly(_));
        let what = if is_read_only { "is read-only" } else { "cannot be reached" };
        round.found.push(format!("{} {what}", target.servers[server]));
        round.is_read_only |= is_read_only;
        let error = Error::from(failure);
        let is_best = matches!(round.error, Some(Error::Overloaded(_)));
        if round.error.is_none() || error.is_outage() && !is_best {
            round.error = Some(error);
        }
    }
}

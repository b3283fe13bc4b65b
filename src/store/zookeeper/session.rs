//! Keeps a session although servers come and go. All servers of an ensemble know a session: a
//! client that loses its connection goes on with the session at another server, until the session's
//! timeout ends. This module chooses the server, logs in, and notices when a session was replaced
//! by a new one.

use super::jute::{Answers, Ask, hello};
use super::wire::Connection;
use crate::clock::Moment;
use crate::rules::millis;
use crate::store::Error;
use crate::store::net::failure::Failure;
use crate::store::net::password;
use crate::store::net::target::Target;
use crate::store::net::{self, interrupt};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a session that is no lease.
const BRIEF_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause between two rounds through all servers when none serves: they may be electing a
/// leader. It doubles after each round.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest of these pauses.
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// Least number of signs of life within a session's timeout. A holder renews four times in it, and
/// so sends no pings.
const PINGS_PER_TIMEOUT: u32 = 3;

/// A session, or the means to begin one.
pub struct Session {
    pub target: Arc<Target>,
    /// The exact length that the session must have, if it is a lease.
    lease: Option<Duration>,
    /// Id of the session; 0 while there is none.
    pub id: i64,
    password: Vec<u8>,
    /// The timeout that the server has granted.
    timeout: Duration,
    /// Counts the sessions. A new number means that the last session and its nodes are gone.
    pub turn: u64,
    /// Counts the connections. A new number means that no watch is left.
    pub dial: u64,
    /// Newest zxid that a server has told.
    seen: i64,
    /// The last request's number (xid). Servers match a commit to a request by session and xid, and
    /// may commit a request of a broken connection late. If xids started again with each
    /// connection, such a commit would answer another request.
    number: i32,
    connection: Option<Connection>,
    /// Index of the server to try next.
    next: usize,
    /// The process that owns the session. A forked copy must not end it.
    process: u32,
}

impl Session {
    pub fn new(target: Arc<Target>) -> Self {
        let count = target.servers.len().max(1);
        let next = getrandom::u32().map_or(0, |chance| chance as usize % count);
        Self {
            target,
            lease: None,
            id: 0,
            password: Vec::new(),
            timeout: BRIEF_TIMEOUT,
            turn: 0,
            dial: 0,
            seen: 0,
            number: 0,
            connection: None,
            next,
            process: std::process::id(),
        }
    }

    pub const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the session is a lease.
    pub const fn is_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Sets the length of the lease. A session of another length is ended.
    pub fn set_lease(&mut self, lease: Option<Duration>) {
        if self.lease != lease {
            self.end();
            self.lease = lease;
        }
    }

    /// Takes the paths of the nodes that this connection's watches have reported.
    pub fn events(&mut self) -> Vec<String> {
        self.connection.as_mut().map(|connection| std::mem::take(&mut connection.events)).unwrap_or_default()
    }

    /// Connects, if it is not connected.
    pub fn connect(&mut self, deadline: Moment) -> Result<(), Failure> {
        if self.connection.is_some() {
            return Ok(());
        }
        let count = self.target.servers.len();
        let (mut untried, mut pause) = (count, PAUSE);
        loop {
            let each = self.target.connect_timeout + self.target.op_timeout;
            let failure = match self.try_next(net::turn(count, untried, each, deadline)) {
                Err(Failure::Refused(error)) => return Err(Failure::Refused(error)),
                Err(failure) => failure,
                connected => return connected,
            };
            untried -= 1;
            if untried == 0 {
                if count == 1 || deadline.left() <= PAUSE || interrupt::pause(pause).is_err() {
                    return Err(failure);
                }
                // During an election, servers close each new connection at once, so the pause grows.
                pause = (pause * 2).min(PAUSE_MOST).min(deadline.left() / 8).max(PAUSE);
                untried = count;
            }
        }
    }

    /// Tries the next server.
    fn try_next(&mut self, deadline: Moment) -> Result<(), Failure> {
        let target = Arc::clone(&self.target);
        let server = &target.servers[self.next % target.servers.len()];
        self.next = (self.next + 1) % target.servers.len();
        let shown = target.shown_at(server);
        let wanted = i32::try_from(millis(self.lease.unwrap_or(BRIEF_TIMEOUT))).unwrap_or(i32::MAX);
        loop {
            let hello = hello(self.seen, wanted, self.id, &self.password);
            let (mut connection, welcome) =
                Connection::begin(&target, server, &hello, self.number, deadline)?;
            let Some(timeout) = welcome.timeout else {
                if self.id == 0 {
                    return Err(Failure::Broken(Error::Unavailable(format!(
                        "{shown} did not start a session"
                    ))));
                }
                // The session has expired. Begin a new one.
                self.id = 0;
                self.password.clear();
                continue;
            };
            if self.id == 0 {
                self.turn += 1;
            }
            (self.id, self.password) = (welcome.session, welcome.password);
            self.timeout = Duration::from_millis(timeout.into());
            if let Some(ttl) = self.lease
                && millis(ttl) != u64::from(timeout)
            {
                connection.close();
                self.id = 0;
                return Err(Failure::Refused(unfit_ttl(&target.shown, ttl, self.timeout)));
            }
            if let Some(user) = &target.user {
                password::log_in(&shown, target.password.as_ref(), deadline, |text| {
                    connection.log_in(format!("{user}:{}", text.unwrap_or_default()).into_bytes(), deadline)
                })?;
            }
            self.connection = Some(connection);
            self.dial += 1;
            return Ok(());
        }
    }

    /// One round trip. Connects first, if it is not connected.
    pub fn ask(&mut self, asks: &[Ask], deadline: Moment) -> Result<Answers, Failure> {
        self.connect(deadline)?;
        let Some(connection) = &mut self.connection else { return Ok(Vec::new()) };
        let answers = connection.ask(asks, deadline);
        self.seen = self.seen.max(connection.seen);
        self.number = connection.number;
        if answers.is_err() {
            self.connection = None;
        }
        answers
    }

    /// Sleeps until a watch reports something (true), or until `until` (false).
    pub fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        let Some(connection) = &mut self.connection else { return Ok(true) };
        let heard = connection.listen(self.timeout / PINGS_PER_TIMEOUT, until);
        if heard.is_err() {
            self.connection = None;
        }
        heard
    }

    /// Drops the connection. The next request goes to another server, in the same session.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Ends the session, and so its nodes.
    pub fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
        self.id = 0;
        self.password.clear();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.end();
        }
    }
}

/// The error for a ttl that the servers grant to no session.
fn unfit_ttl(shown: &str, ttl: Duration, granted: Duration) -> Error {
    use humantime::format_duration;
    let (bound, set) =
        if granted > ttl { ("at least", "minSessionTimeout") } else { ("at most", "maxSessionTimeout") };
    Error::Unfit(format!(
        "{shown}: a lease there is a session, which lasts {bound} {}, not --ttl {}; use such a --ttl, or have {set} changed",
        format_duration(granted),
        format_duration(ttl)
    ))
}

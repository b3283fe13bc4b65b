//! Keeps a session although servers come and go. All servers of an ensemble know a session: a
//! client that loses its connection goes on with the session at another server, until the session's
//! timeout ends. This module chooses the server, logs in, and notices when a session was replaced
//! by a new one.
//!
//! *A silent connection is kept* until another one has answered. Its server may be suspended, and
//! answers when it resumes; the connection may be dead, which looks the same from here. A server that
//! reads a request for the session on a new connection closes the old one, and the answer that is due
//! there is lost. And a TCP proxy delivers such a request long after it was sent, if the server's listen
//! backlog was full. So dlock first opens a *probe*: a connection that only asks `srvr`. The session
//! moves only if a probe is answered and the silent connection is not.

use super::jute::{Answers, Ask, Welcome, hello};
use super::wire::{Connection, send_word};
use crate::clock::Moment;
use crate::rules::{millis, schedule};
use crate::store::Error;
use crate::store::net::failure::{Failure, silent, unreachable};
use crate::store::net::password;
use crate::store::net::pipe::Pipe;
use crate::store::net::streams::{Stream, any_readable};
use crate::store::net::target::Target;
use crate::store::net::{self, interrupt};
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a session that is no lease.
const BRIEF_TIMEOUT: Duration = Duration::from_secs(10);
/// For this long a server may owe the answer to a request for a new session. Then it is asked anew: its
/// machine may have died without a sign.
const OWED_AT_MOST: Duration = Duration::from_secs(10);
/// First pause between two rounds through all servers when none serves: they may be electing a
/// leader. It doubles after each round.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest of these pauses.
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// Divisor of the session's timeout. For this part of it a silent connection may answer later than a
/// probe, and is still kept: a server that resumes has many requests to answer.
const GRACE_SHARE: u32 = 64;
/// Least number of signs of life within a session's timeout. A holder renews four times in it, and
/// so sends no pings.
const PINGS_PER_TIMEOUT: u32 = 3;

/// What has answered while a connection was silent.
enum Heard {
    /// The connection.
    Session,
    /// The probe of the server with this index.
    Probe(usize),
    Nothing,
}

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
    /// Number of sessions so far. One more means that the last session and its nodes are gone.
    pub sessions: u64,
    /// Number of connections so far. One more means that no watch is left.
    pub connections: u64,
    /// Newest zxid that a server has told.
    seen: i64,
    /// The last request's number (xid). Servers match a commit to a request by session and xid, and
    /// may commit a request of a broken connection late. If xids started again with each
    /// connection, such a commit would answer another request.
    number: i32,
    connection: Option<Connection>,
    /// Connections that have asked for a new session and have no answer yet, by server, and when they
    /// asked. To begin a session is a write of the whole ensemble. If each client of a crowd dropped its
    /// request and sent another one, the servers would do them all, and be too late for each.
    pending: Vec<Option<(Moment, Connection)>>,
    /// When the request was sent that the connection has not answered in time.
    silent_since: Option<Moment>,
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
            sessions: 0,
            connections: 0,
            seen: 0,
            number: 0,
            connection: None,
            pending: (0..count).map(|_| None).collect(),
            silent_since: None,
            next,
            process: std::process::id(),
        }
    }

    /// Whether there is a connection that is not silent.
    pub const fn is_connected(&self) -> bool {
        self.connection.is_some() && self.silent_since.is_none()
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
    fn connect(&mut self, deadline: Moment) -> Result<(), Failure> {
        if self.is_connected() {
            return Ok(());
        }
        match self.silent_since {
            Some(since) if !since.after(self.timeout).passed() => self.outwait(since, deadline),
            _ => self.dial(deadline),
        }
    }

    /// Drops the connection that has failed.
    fn lose(&mut self) {
        (self.connection, self.silent_since) = (None, None);
    }

    /// How long the connection may be silent before a probe is sent.
    fn patience(&self) -> Duration {
        schedule::silence(self.timeout)
    }

    /// Waits until the connection, silent since then, answers. Meanwhile sends a probe to each server
    /// in turn. If one is answered, the session moves to that server.
    fn outwait(&mut self, since: Moment, deadline: Moment) -> Result<(), Failure> {
        let target = Arc::clone(&self.target);
        let count = target.servers.len();
        let mut probes: Vec<Option<Pipe>> = (0..count).map(|_| None).collect();
        let share = target.connect_timeout.min(self.patience() / 2);
        // A request that was only interrupted is not late yet.
        let mut until = since.after(self.patience().min(target.op_timeout));
        loop {
            match self.hear(&mut probes, until.min(deadline))? {
                Heard::Session => return Ok(()),
                Heard::Probe(at) => {
                    let soon = Moment::now().after(self.timeout / GRACE_SHARE).min(deadline);
                    if matches!(self.hear(&mut [], soon)?, Heard::Session) {
                        return Ok(());
                    }
                    (self.next, probes[at]) = (at, None);
                    let within = target.request_time();
                    match self.try_next(deadline.min(Moment::now().after(within))) {
                        Err(Failure::Broken(_) | Failure::Silent(_)) => {}
                        moved => return moved,
                    }
                    // During an election servers close each new connection.
                    self.hear(&mut [], Moment::now().after(share.min(PAUSE_MOST)).min(deadline))?;
                }
                Heard::Nothing => {}
            }
            if deadline.passed() || interrupt::is_raised() {
                return Err(Failure::Silent(silent(&target.shown)));
            }
            let at = self.next % count;
            self.next = (at + 1) % count;
            until = Moment::now().after(share);
            if probes[at].is_none() {
                let streams = self.connection.iter().map(Connection::stream);
                let streams = streams.chain(probes.iter().flatten().map(|probe| &probe.stream));
                let open = || send_word(&target, &target.servers[at], "srvr", until.min(deadline));
                probes[at] = interrupt::armed_by(streams.map(Stream::as_fd), open).ok();
            }
        }
    }

    /// Sleeps until the connection or a probe has answered, or until `until` or an interrupt. Fails
    /// if the connection breaks; drops a probe that does.
    fn hear(&mut self, probes: &mut [Option<Pipe>], until: Moment) -> Result<Heard, Failure> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(Heard::Nothing) };
            match connection.has_news() {
                Ok(true) => {
                    self.silent_since = None;
                    return Ok(Heard::Session);
                }
                Ok(false) => {}
                Err(failure) => {
                    self.lose();
                    return Err(failure);
                }
            }
            for (at, probe) in probes.iter_mut().enumerate() {
                match probe.as_mut().map(|probe| probe.hear(Moment::now())) {
                    Some(Ok(true)) => return Ok(Heard::Probe(at)),
                    Some(Err(_)) => *probe = None,
                    Some(Ok(false)) | None => {}
                }
            }
            let probes = probes.iter().flatten().map(|probe| &probe.stream);
            let streams: Vec<&Stream> = [connection.stream()].into_iter().chain(probes).collect();
            if !is_any_readable(&streams, until)? {
                return Ok(Heard::Nothing);
            }
        }
    }

    /// Waits for the silent connection, if there is one, and for this new one. Returns whether the
    /// silent one has answered first. A server that moves the session to the new connection closes
    /// the silent one.
    fn is_answered_before(&mut self, new: &mut Connection, deadline: Moment) -> Result<bool, Failure> {
        while let Some(connection) = &mut self.connection {
            match connection.has_news() {
                Ok(true) => {
                    self.silent_since = None;
                    return Ok(true);
                }
                Ok(false) => {}
                Err(_) => self.lose(),
            }
            let Some(connection) = &self.connection else { break };
            if new.has_news()? || !is_any_readable(&[connection.stream(), new.stream()], deadline)? {
                break;
            }
        }
        Ok(false)
    }

    /// Tries the servers in turn until one serves.
    fn dial(&mut self, deadline: Moment) -> Result<(), Failure> {
        self.lose();
        let count = self.target.servers.len();
        let (mut untried, mut pause) = (count, PAUSE);
        let each = self.target.request_time();
        let mut deadline = deadline;
        if self.id != 0 {
            // The next attempt has the rest of the lease.
            deadline = deadline.min(Moment::now().after(self.patience()));
        }
        loop {
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

    /// Connects to a server, and asks for the session there.
    fn open(&mut self, at: usize, deadline: Moment) -> Result<Connection, Failure> {
        let wanted = i32::try_from(millis(self.lease.unwrap_or(BRIEF_TIMEOUT))).unwrap_or(i32::MAX);
        let hello = hello(self.seen, wanted, self.id, &self.password);
        let (target, number) = (&self.target, self.number);
        let open = || Connection::open(target, &target.servers[at], &hello, number, deadline);
        interrupt::armed_by(self.connection.iter().map(|silent| silent.stream().as_fd()), open)
    }

    /// Asks this server for a new session, unless it was asked already. Returns the first server that
    /// answers, its connection and its answer.
    fn begin_at(&mut self, at: usize, deadline: Moment) -> Result<(usize, Connection, Welcome), Failure> {
        let now = Moment::now();
        let is_owed = self.pending[at].as_mut().is_some_and(|(asked_at, connection)| {
            now.since(*asked_at) <= OWED_AT_MOST || connection.has_news().unwrap_or(true)
        });
        if !is_owed {
            let pending = (now, self.open(at, deadline)?);
            if let Some((_, silent)) = self.pending[at].replace(pending) {
                silent.close();
            }
        }
        loop {
            for from in 0..self.pending.len() {
                match self.pending[from].as_mut().map(|(_, connection)| connection.has_news()) {
                    Some(Ok(true)) => {
                        let Some((_, mut connection)) = self.pending[from].take() else { continue };
                        let welcome = connection.welcome(deadline)?;
                        return Ok((from, connection, welcome));
                    }
                    Some(Err(failure)) => {
                        self.pending[from] = None;
                        if from == at {
                            return Err(failure);
                        }
                    }
                    Some(Ok(false)) | None => {}
                }
            }
            let streams: Vec<&Stream> =
                self.pending.iter().flatten().map(|(_, connection)| connection.stream()).collect();
            if !is_any_readable(&streams, deadline)? {
                return Err(Failure::Silent(silent(&self.target.shown_at(&self.target.servers[at]))));
            }
        }
    }

    /// Ends the sessions that other servers may still begin.
    fn end_pending(&mut self) {
        self.pending.iter_mut().filter_map(Option::take).for_each(|(_, connection)| connection.close());
    }

    /// Tries the next server.
    fn try_next(&mut self, deadline: Moment) -> Result<(), Failure> {
        let target = Arc::clone(&self.target);
        let mut at = self.next % target.servers.len();
        self.next = (at + 1) % target.servers.len();
        loop {
            let (mut connection, welcome);
            if self.id == 0 {
                (at, connection, welcome) = self.begin_at(at, deadline)?;
            } else {
                connection = match self.open(at, deadline) {
                    Ok(connection) => connection,
                    // The silent connection may have answered, which interrupts this one.
                    Err(failure) => {
                        let heard = self.hear(&mut [], Moment::now())?;
                        return if matches!(heard, Heard::Session) { Ok(()) } else { Err(failure) };
                    }
                };
                if self.is_answered_before(&mut connection, deadline)? {
                    return Ok(());
                }
                welcome = connection.welcome(deadline)?;
            }
            let shown = target.shown_at(&target.servers[at]);
            let Some(timeout) = welcome.timeout else {
                if self.id == 0 {
                    return Err(Failure::Broken(Error::Unavailable(format!(
                        "{shown} did not start a session"
                    ))));
                }
                // The session has expired. Begin a new one.
                self.lose();
                self.id = 0;
                self.password.clear();
                continue;
            };
            if self.id == 0 {
                self.sessions += 1;
            }
            (self.id, self.password) = (welcome.session, welcome.password);
            self.timeout = Duration::from_millis(timeout.into());
            if let Some(ttl) = self.lease
                && millis(ttl) != u64::from(timeout)
            {
                connection.close();
                self.lose();
                self.id = 0;
                return Err(Failure::Refused(unfit_ttl(&target.shown, ttl, self.timeout)));
            }
            if let Some(user) = &target.user {
                password::log_in(&shown, target.password.as_ref(), deadline, |text| {
                    connection.log_in(format!("{user}:{}", text.unwrap_or_default()).into_bytes(), deadline)
                })?;
            }
            (self.connection, self.silent_since) = (Some(connection), None);
            self.end_pending();
            self.connections += 1;
            return Ok(());
        }
    }

    /// One round trip. Connects first, if it is not connected. If the connection stays silent, waits
    /// for it, and for another one.
    pub fn ask(&mut self, asks: &[Ask], deadline: Moment) -> Result<Answers, Failure> {
        self.connect(deadline)?;
        let (connections, patience, sent) = (self.connections, self.patience(), Moment::now());
        let Some(connection) = &mut self.connection else { return Ok(Vec::new()) };
        let answers = connection.ask(asks, deadline);
        self.number = connection.number;
        let numbers = answers.inspect_err(|_| self.connection = None)?;
        let mut answers = Vec::new();
        loop {
            let Some(connection) = self.connection.as_mut().filter(|_| self.connections == connections)
            else {
                let moved = unreachable(&self.target.shown, &ErrorKind::ConnectionAborted.into());
                return Err(Failure::Broken(moved));
            };
            let until = deadline.min(Moment::now().after(patience));
            let answered = connection.answers(asks, &numbers, &mut answers, until);
            self.seen = self.seen.max(connection.seen);
            match answered {
                Ok(()) => return Ok(answers),
                // What fails earlier, such as an answer without an end, is not silence.
                Err(Failure::Silent(error)) if until.passed() || interrupt::is_raised() => {
                    self.silent_since = Some(sent);
                    if deadline.passed() || interrupt::is_raised() {
                        return Err(Failure::Silent(error));
                    }
                    self.outwait(sent, deadline)?;
                }
                Err(failure) => {
                    self.lose();
                    return Err(failure);
                }
            }
        }
    }

    /// Sleeps until a watch reports something (true), or until `until` (false).
    pub fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        let Some(connection) = &mut self.connection else { return Ok(true) };
        let heard = connection.listen(self.timeout / PINGS_PER_TIMEOUT, until);
        match &heard {
            Ok(_) => {}
            Err(Failure::Silent(_)) => self.silent_since = Some(connection.sent),
            Err(_) => self.lose(),
        }
        heard
    }

    /// Drops the connection, unless it is silent. The next request goes to another server, in the
    /// same session.
    pub fn hang_up(&mut self) {
        if self.silent_since.is_none() {
            self.connection = None;
        }
    }

    /// Ends the session, and so its nodes.
    pub fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
        self.end_pending();
        self.lose();
        self.id = 0;
        self.password.clear();
    }
}

/// [`any_readable`] with the failure of an exchange.
fn is_any_readable(streams: &[&Stream], until: Moment) -> Result<bool, Failure> {
    let failed = |error| Failure::Silent(Error::Unavailable(format!("cannot wait for a server: {error}")));
    any_readable(streams, until).map_err(failed)
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

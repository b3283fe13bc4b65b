//! How does one keep a session although servers come and go? A session is known to all servers of an ensemble: whoever loses
//! the connection goes on with it at another one, as long as it has not been silent for longer than its timeout. Here is which
//! server to ask, who one is there, and when a session is another one.

use super::jute::{Access, Answer, Ask, Code, Event, hello};
use super::wire::{Connection, Failure};
use crate::clock::Moment;
use crate::rules::millis;
use crate::store::Error;
use crate::store::net::password::{self, Password};
use crate::store::net::tls::Tls;
use crate::store::net::{self, Address, alarm};
use std::sync::Arc;
use std::time::Duration;

/// How long the session of one who only asks something may be silent.
const BRIEFLY: Duration = Duration::from_secs(10);
/// The first pause between two rounds over all servers where none of them serves: they may be choosing a leader. Each one
/// after it is twice as long.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest of these pauses.
const PAUSE_MOST: Duration = Duration::from_millis(500);
/// A session says so many times within its timeout that it lives, at least.
const SIGNS: u32 = 4;

/// Which ensemble, and how to get into it.
#[derive(Clone)]
pub struct Target {
    /// Its servers; at least one.
    pub servers: Vec<Address>,
    /// User and password; what is made then is its own.
    pub login: Option<(String, Password)>,
    /// The node below which everything is, without a slash at its end; empty for the root.
    pub chroot: String,
    /// Set where it is spoken to over TLS.
    pub tls: Option<Tls>,
    /// How messages name the store.
    pub shown: String,
    pub connect_timeout: Duration,
    pub op_timeout: Duration,
}

impl Target {
    fn access(&self) -> Access {
        if self.login.is_some() { Access::Creator } else { Access::Everybody }
    }

    /// How messages name the node below which everything is.
    pub fn chroot_shown(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }
}

/// How long a session is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// As long as the servers like.
    Brief,
    /// Just so long: it is a lease.
    Lease(Duration),
}

/// A session, or what will be one.
pub struct Session {
    target: Arc<Target>,
    length: Length,
    /// 0 as long as there is none.
    id: i64,
    password: Vec<u8>,
    /// How long it may be silent, as agreed.
    timeout: Duration,
    /// Which one it is of those that this has had.
    turn: u64,
    /// Which connection it is.
    dial: u64,
    seen: i64,
    /// The number of the last question. A server tells by session and number which question a commit answers, and a question that a
    /// broken connection left behind may be committed later: with numbers that begin anew, it would answer another one.
    number: i32,
    line: Option<Connection>,
    /// Which server to try next.
    next: usize,
    /// Whose it is; a copy in a process that was forked has nothing to end.
    process: u32,
}

impl Session {
    pub fn new(target: Arc<Target>) -> Self {
        let count = target.servers.len().max(1);
        let next = getrandom::u32().map_or(0, |chance| chance as usize % count);
        Self {
            target,
            length: Length::Brief,
            id: 0,
            password: Vec::new(),
            timeout: BRIEFLY,
            turn: 0,
            dial: 0,
            seen: 0,
            number: 0,
            line: None,
            next,
            process: std::process::id(),
        }
    }

    /// Which session it is. Another number means that what went with the former one is gone.
    pub const fn turn(&self) -> u64 {
        self.turn
    }

    /// Which connection it is. Another number means that no watch is left.
    pub const fn dial(&self) -> u64 {
        self.dial
    }

    pub const fn id(&self) -> i64 {
        self.id
    }

    pub const fn is_connected(&self) -> bool {
        self.line.is_some()
    }

    /// How long it is to be from now on. One of another length is ended.
    pub fn set_length(&mut self, length: Length) {
        if self.length != length {
            self.end();
            self.length = length;
        }
    }

    /// What watches have told on this connection.
    pub fn events(&mut self) -> Vec<Event> {
        self.line.as_mut().map(|line| line.events.drain(..).collect()).unwrap_or_default()
    }

    /// Connects, if it is not connected.
    pub fn connect(&mut self, by: Moment) -> Result<(), Failure> {
        if self.line.is_some() {
            return Ok(());
        }
        let count = self.target.servers.len();
        let (mut untried, mut pause) = (count, PAUSE);
        loop {
            let each = self.target.connect_timeout + self.target.op_timeout;
            match self.try_next(net::turn(count, untried, each, by)) {
                Ok(()) => return Ok(()),
                Err(Failure::Refused(error)) => return Err(Failure::Refused(error)),
                Err(failure) => {
                    untried -= 1;
                    if untried == 0 {
                        if count == 1 || by.left() <= PAUSE || alarm::pause(pause).is_err() {
                            return Err(failure);
                        }
                        // Servers that choose a leader hang up at once, on each of a crowd.
                        pause = (pause * 2).min(PAUSE_MOST).min(by.left() / 8).max(PAUSE);
                        untried = count;
                    }
                }
            }
        }
    }

    /// Tries one server.
    fn try_next(&mut self, by: Moment) -> Result<(), Failure> {
        let target = Arc::clone(&self.target);
        let server = &target.servers[self.next % target.servers.len()];
        self.next = (self.next + 1) % target.servers.len();
        let shown = match target.servers.len() {
            1 => target.shown.clone(),
            _ => format!("{} at {server}", target.shown),
        };
        let wanted = match self.length {
            Length::Brief => BRIEFLY,
            Length::Lease(ttl) => ttl,
        };
        loop {
            let wanted_ms = i32::try_from(millis(wanted)).unwrap_or(i32::MAX);
            let hello = hello(self.seen, wanted_ms, self.id, &self.password);
            let reached = Moment::now().after(target.connect_timeout).min(by);
            let (mut line, welcome) = Connection::begin(
                &shown,
                server,
                target.tls.as_ref(),
                target.access(),
                &hello,
                self.number,
                (reached, by),
            )?;
            let Some(timeout) = welcome.timeout else {
                if self.id == 0 {
                    return Err(Failure::Broken(Error::Unavailable(format!("{shown} begins no session"))));
                }
                // It has ended: what was silent for too long begins anew.
                self.id = 0;
                self.password.clear();
                continue;
            };
            if self.id == 0 {
                self.turn += 1;
            }
            (self.id, self.password) = (welcome.session, welcome.password);
            self.timeout = Duration::from_millis(timeout.into());
            if let Length::Lease(ttl) = self.length
                && millis(ttl) != u64::from(timeout)
            {
                line.close();
                self.id = 0;
                return Err(Failure::Refused(unfit_ttl(&target.shown, ttl, self.timeout)));
            }
            if let Some((user, password)) = &target.login {
                password::log_in(&shown, Some(password), by, |text| {
                    line.log_in(format!("{user}:{}", text.unwrap_or_default()).into_bytes(), by)
                })?;
            }
            self.line = Some(line);
            self.dial += 1;
            return Ok(());
        }
    }

    /// One round trip; connects before it, if it is not connected.
    pub fn ask(&mut self, asks: &[Ask], by: Moment) -> Result<Vec<Result<Answer, Code>>, Failure> {
        self.connect(by)?;
        let Some(line) = &mut self.line else { return Ok(Vec::new()) };
        let answers = line.ask(asks, by);
        self.seen = self.seen.max(line.seen());
        self.number = line.number();
        if answers.is_err() {
            self.line = None;
        }
        answers
    }

    /// Sleeps until a watch tells something (true), or until then.
    pub fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        let Some(line) = &mut self.line else { return Ok(true) };
        let heard = line.listen(self.timeout / SIGNS, until);
        if heard.is_err() {
            self.line = None;
        }
        heard
    }

    /// Goes to another server the next time, with the same session.
    pub fn hang_up(&mut self) {
        self.line = None;
    }

    /// Ends the session, and what goes with it.
    pub fn end(&mut self) {
        if let Some(line) = self.line.take() {
            line.close();
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

/// The error for a ttl that no session there has.
fn unfit_ttl(shown: &str, ttl: Duration, granted: Duration) -> Error {
    use humantime::format_duration;
    let (bound, set) =
        if granted > ttl { ("at least", "minSessionTimeout") } else { ("at most", "maxSessionTimeout") };
    Error::Unfit(format!(
        "{shown}: a lease there is a session, which lasts {bound} {} and not --ttl {}; take such a --ttl, or have {set} \
         changed",
        format_duration(granted),
        format_duration(ttl)
    ))
}

//! How does one speak to a Redis server in bounded time? One connection: dialled, authenticated and used under
//! deadlines that cover the whole exchange, not each read. The `redis` crate packs the commands; its own client is not used, because it cannot be given a deadline (its timeouts are per read, and none while
//! connecting by name), needs a round trip of its own to set up, and hides the descriptor that a waiter polls.
//!
//! After any failure a connection is of no use any more, because a late reply would answer the wrong question. The
//! caller drops it.

use super::tls::{Session, hello, speaks_no_tls};
use super::{Target, script};
use crate::clock::{Moment, Timer};
use crate::store::Error;
use redis::{Cmd, Value};
use resp::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use streams::{Bounded, Channel, Inbox, Stream};

mod resp;
mod streams;

/// Error replies that tell the caller what to do next; they come as values.
const DIRECTIONS: [&str; 5] = ["NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "UNBLOCKED"];
/// How much of a server's own words is repeated, in characters.
const SAID_MAX: usize = 200;
/// From how many hexadecimal digits in a row on they may be a token's.
const TOKEN_LIKE: usize = 12;
/// How long to wait before a full queue of a Unix socket is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp {
        /// Name or IP address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// One connection.
pub struct Link {
    stream: Stream,
    tls: Option<Session>,
    inbox: Inbox,
    greeting: Vec<Cmd>,
    /// How many replies to the greeting are still to come.
    greeted: usize,
    /// Whether the server has ever said something.
    heard: bool,
}

impl Link {
    /// Connects by `by`. AUTH and SELECT go out with the first command, in the same write.
    pub fn dial(target: &Target, by: Moment) -> Result<Self, Error> {
        let mut stream = match &target.address {
            Address::Tcp { host, port } => {
                Stream::Tcp(dial_tcp(host, *port, by).map_err(|e| unreachable(target, &e))?)
            }
            Address::Unix(path) => Stream::Unix(dial_unix(path, by).map_err(|e| match e.kind() {
                ErrorKind::PermissionDenied => {
                    Error::Denied(format!("{}: no permission to connect to the socket", target.shown))
                }
                _ => unreachable(target, &e),
            })?),
        };
        let tls = match (&target.tls, &target.address) {
            (Some(tls), Address::Tcp { host, port }) => {
                // The rest is for finding out who it is that is silent.
                let most = Moment::now().after(by.left() * 7 / 8);
                let begun = Session::begin(target, tls, host, &mut Bounded { stream: &mut stream, by: most });
                Some(begun.map_err(|error| match error {
                    Error::Unreachable(_) if speaks_redis(host, *port, by) => speaks_no_tls(&target.shown),
                    error => error,
                })?)
            }
            _ => None,
        };
        let (inbox, greeting) = (Inbox::default(), target.greeting());
        Ok(Self { stream, tls, inbox, greeting, greeted: 0, heard: false })
    }

    /// The connection, if it is idle and still good: a server that closed it (its own `timeout`, a restart) has said
    /// so by now.
    pub fn if_good(mut self) -> Option<Self> {
        matches!(self.has_news(), Ok(false)).then_some(self)
    }

    /// Whether the server has sent something that was not asked for, or hung up.
    fn has_news(&mut self) -> io::Result<bool> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            if self.has_unread()? {
                return Ok(true);
            }
            if poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&at_once))? == 0 {
                return Ok(false);
            }
            if self.take_in()? {
                return Ok(true);
            }
        }
    }

    /// Whether something has arrived that the descriptor does not show any more.
    fn has_unread(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            _ if !self.inbox.is_empty() => Ok(true),
            Some(session) => session.has_more(),
            None => Ok(false),
        }
    }

    /// To be called when the descriptor is readable: whether that means a reply, or the end.
    fn take_in(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            // Readable, so one read returns at once.
            Some(session) => session.take_in(&mut self.stream),
            None => Ok(true),
        }
    }

    /// Sends a command and waits for its reply until `by`.
    pub fn ask(&mut self, target: &Target, command: &Cmd, by: Moment) -> Result<Value, Error> {
        self.send(target, std::slice::from_ref(command), by)?;
        self.answer(target, by)
    }

    /// Sends commands in one write, preceded by what sets the connection up if they are the first. Waits until it is.
    pub fn send(&mut self, target: &Target, commands: &[Cmd], by: Moment) -> Result<(), Error> {
        self.post(target, commands, by)?;
        self.be_greeted(target, by)
    }

    /// [`Link::send`] that waits for nothing.
    pub fn post(&mut self, target: &Target, commands: &[Cmd], by: Moment) -> Result<(), Error> {
        let greeting = std::mem::take(&mut self.greeting);
        let mut bytes = Vec::new();
        for cmd in greeting.iter().chain(commands) {
            cmd.write_packed_command(&mut bytes);
        }
        let mut channel = self.channel(by);
        if let Err(error) = channel.write_all(&bytes).and_then(|()| channel.flush()) {
            let error = channel.last_words().unwrap_or(error);
            return Err(self.failure(target, &error, by));
        }
        self.greeted += greeting.len();
        Ok(())
    }

    fn be_greeted(&mut self, target: &Target, by: Moment) -> Result<(), Error> {
        while self.greeted > 0 {
            if let Value::ServerError(error) = self.parse(target, by)? {
                return Err(refusal(target, error.code(), error.details()));
            }
            self.greeted -= 1;
        }
        Ok(())
    }

    /// Waits for the next reply until `by`. An error reply is an `Err`, except one that says what to do next, and except
    /// where only who sent a script knows what it means: a right that is missing inside of the script.
    pub fn answer(&mut self, target: &Target, by: Moment) -> Result<Value, Error> {
        match self.read(target, by)? {
            Value::ServerError(error)
                if !DIRECTIONS.contains(&error.code()) && !script::lacks_right(&error) =>
            {
                Err(refusal(target, error.code(), error.details()))
            }
            value => Ok(value),
        }
    }

    /// Sleeps until the server sends something (true) or `until` has come (false). CLOCK_BOOTTIME: a suspended
    /// machine's sleep is over when it wakes.
    pub fn listen(&mut self, target: &Target, until: Moment) -> Result<bool, Error> {
        self.sleep(until).map_err(|error| self.failure(target, &error, until))
    }

    fn sleep(&mut self, until: Moment) -> io::Result<bool> {
        if self.has_unread()? {
            return Ok(true);
        }
        let timer = Timer::new()?;
        timer.set(Some(until))?;
        loop {
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) if fds[0].revents().is_empty() => return Ok(false),
                Ok(_) if self.take_in()? => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sleeps until the server sends something on this connection or on `other`, or `until` has come (false).
    pub fn listen_beside(&mut self, target: &Target, other: &Self, until: Moment) -> Result<bool, Error> {
        self.sleep_beside(other, until).map_err(|error| self.failure(target, &error, until))
    }

    fn sleep_beside(&self, other: &Self, until: Moment) -> io::Result<bool> {
        let timer = Timer::new()?;
        timer.set(Some(until))?;
        loop {
            let mut fds = [
                PollFd::new(&self.stream, PollFlags::IN),
                PollFd::new(&other.stream, PollFlags::IN),
                PollFd::new(&timer, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) => return Ok(fds[..2].iter().any(|fd| !fd.revents().is_empty())),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for the next reply until `by`, whatever it says.
    pub fn read(&mut self, target: &Target, by: Moment) -> Result<Value, Error> {
        self.be_greeted(target, by)?;
        self.parse(target, by)
    }

    fn parse(&mut self, target: &Target, by: Moment) -> Result<Value, Error> {
        let Self { stream, tls, inbox, .. } = self;
        let channel = Channel { tls: tls.as_mut(), raw: Bounded { stream, by } };
        match resp::read(inbox, channel) {
            Ok(value) => {
                self.heard = true;
                Ok(value)
            }
            Err(Failure::Io(error)) => Err(self.failure(target, &error, by)),
            Err(Failure::TooLong) => Err(Error::Garbled(format!(
                "{} sends more than any answer to dlock is long; is it a Redis server?",
                target.shown
            ))),
            Err(Failure::NotRedis) => Err(Error::Garbled(format!(
                "{}: what answers there does not speak the Redis protocol",
                target.shown
            ))),
        }
    }

    fn channel(&mut self, by: Moment) -> Channel<'_> {
        Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, by } }
    }

    /// What an error on this connection means. One that was hung up before anything was heard may have wanted TLS, which
    /// is found out by `by`: that is no outage, which passes.
    fn failure(&self, target: &Target, error: &io::Error, by: Moment) -> Error {
        let explained = match (&self.tls, &target.tls) {
            (Some(session), Some(tls)) => session.explain(target, tls, error),
            _ => None,
        };
        explained.unwrap_or_else(|| match &target.address {
            Address::Tcp { host, port }
                if self.tls.is_none() && !self.heard && is_end(error) && speaks_tls(host, *port, by) =>
            {
                Error::Misnamed(format!(
                    "cannot reach {}: what answers there wants TLS; with TLS the URL begins with rediss",
                    target.shown
                ))
            }
            _ => unreachable(target, error),
        })
    }
}

/// Whether what is silent to TLS is Redis without it, which waits for the end of what it takes for a line.
fn speaks_redis(host: &str, port: u16, by: Moment) -> bool {
    answer_to(host, port, b"PING\r\n", by).is_ok_and(|first| b"+-".contains(&first[0]))
}

/// Whether a server answers the first words of TLS in kind: with a handshake, or an alert.
fn speaks_tls(host: &str, port: u16, by: Moment) -> bool {
    let answer = hello().and_then(|hello| answer_to(host, port, &hello, by));
    answer.is_ok_and(|first| matches!(first, [0x15 | 0x16, 3]))
}

/// How a server's answer to somebody who says this begins.
fn answer_to(host: &str, port: u16, said: &[u8], by: Moment) -> io::Result<[u8; 2]> {
    let mut stream = Stream::Tcp(dial_tcp(host, port, by)?);
    let mut stream = Bounded { stream: &mut stream, by };
    stream.write_all(said)?;
    let mut first = [0; 2];
    stream.read_exact(&mut first)?;
    Ok(first)
}

fn dial_tcp(host: &str, port: u16, by: Moment) -> io::Result<TcpStream> {
    let addresses = resolve(host, port, by)?;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let untried = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let share = by.left() / untried;
        if share.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connecting to a Unix socket blocks while the queue of a stopped server is full, and has no timeout of its own.
fn dial_unix(path: &Path, by: Moment) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::INTR) if !by.passed() => thread::sleep(BACKLOG_PAUSE.min(by.left())),
            Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The name service has no deadline of its own, so a name is looked up on a thread that may be left behind.
fn resolve(host: &str, port: u16, by: Moment) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (found, wait) = mpsc::channel();
    let name = host.to_owned();
    thread::Builder::new().spawn(move || {
        let addresses = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let _ = found.send(addresses);
    })?;
    match wait.recv_timeout(by.left()) {
        Ok(addresses) => addresses,
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, "the name could not be looked up in time")),
    }
}

/// Whether the server hung up.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
    )
}

/// The error for a server that is silent.
pub fn silent(target: &Target) -> Error {
    unreachable(target, &ErrorKind::TimedOut.into())
}

fn unreachable(target: &Target, error: &io::Error) -> Error {
    let what = match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "no answer in time".into(),
        _ if is_end(error) => "the server closed the connection".into(),
        ErrorKind::ConnectionRefused => "connection refused: nothing listens there".into(),
        ErrorKind::NotFound if matches!(target.address, Address::Unix(_)) => "there is no such socket".into(),
        _ => error.to_string(),
    };
    let text = format!("cannot reach {}: {what}", target.shown);
    if NO_SUCH_NAME.iter().any(|end| what.ends_with(end)) {
        Error::Misnamed(text)
    } else {
        Error::Unreachable(text)
    }
}

/// What glibc and musl say of a name that does not exist; they say it in English, for no locale is set. Of a name
/// service that does not answer they say something else.
const NO_SUCH_NAME: [&str; 3] =
    ["Name or service not known", "No address associated with hostname", "Name does not resolve"];

/// A server's own words, cut, without tokens, and without the arguments of a command that it does not know, which it
/// repeats. What acts on a terminal is escaped where they are printed.
pub fn plain(text: &str) -> String {
    let said = text.split_once(", with args beginning with").map_or(text, |(said, _)| said);
    without_tokens(said).chars().take(SAID_MAX).collect()
}

/// Also a token of which the server has cut the end is none of anybody's business.
fn without_tokens(text: &str) -> String {
    let is_hex = |c: char| c.is_ascii_hexdigit();
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find(is_hex) {
        let (before, from) = rest.split_at(begin);
        let end = from.find(|c| !is_hex(c)).unwrap_or(from.len());
        shown.push_str(before);
        shown.push_str(if end < TOKEN_LIKE { &from[..end] } else { "…" });
        rest = &from[end..];
    }
    shown + rest
}

/// What an error reply means. Inside a script the code may stand in the middle of the text (before Redis 7).
pub fn refusal(target: &Target, code: &str, details: Option<&str>) -> Error {
    let store = &target.shown;
    let text = details.unwrap_or_default();
    let code = match code {
        "ERR" => ["OOM", "READONLY", "MISCONF", "LOADING", "NOPERM", "NOREPLICAS"]
            .into_iter()
            .find(|code| text.contains(&format!("-{code} ")))
            .unwrap_or("ERR"),
        code => code,
    };
    let said = plain(text);
    match code {
        // "unauthenticated" answers a long command: before AUTH a server reads none of more than ten words.
        _ if code == "NOAUTH" || text.contains("unauthenticated") => Error::Denied(format!(
            "{store} wants a password; give one by DLOCK_PASSWORD_FILE, --password-file or the config file"
        )),
        "WRONGPASS" => Error::Denied(format!("{store} refused the user name or the password")),
        "NOPERM" if text.contains("access") => Error::Denied(format!(
            "{store} denies this user its keys (~dlock*, and ~PREFIX* where the prefix is another one): {said}"
        )),
        "NOPERM" => Error::Denied(format!("{store} denies this user a right that dlock needs: {said}")),
        "DENIED" => Error::Denied(format!("{store} is in protected mode and refuses this host")),
        "LOADING" => {
            Error::Unavailable(format!("{store} is still loading its data; try again when it is done"))
        }
        "READONLY" => Error::Unavailable(format!("{store} is a read-only replica; name the master")),
        "OOM" => {
            Error::Unavailable(format!("{store} is out of memory (maxmemory reached) and takes no new lock"))
        }
        "MISCONF" => Error::Unavailable(format!(
            "{store} cannot save to disk and takes no writes (MISCONF); see its log"
        )),
        "NOREPLICAS" => Error::Unavailable(format!("{store} has too few good replicas and takes no writes")),
        "MASTERDOWN" => Error::Unavailable(format!("{store} is a replica that has lost its master")),
        "BUSY" => Error::Unavailable(format!("{store} is busy running somebody's script")),
        "CLUSTERDOWN" | "TRYAGAIN" => {
            Error::Unavailable(format!("{store}: the cluster is not able to serve: {said}"))
        }
        "UNBLOCKED" => Error::Unavailable(format!("{store} is no master any more: {said}")),
        "MOVED" | "ASK" | "CROSSSLOT" => Error::Unfit(format!(
            "{store} is a node of a Redis Cluster, not a single server; write redis+cluster://"
        )),
        // A key that the script names by itself has left with its slot.
        _ if text.contains("non local key") => {
            Error::Unavailable(format!("{store}: the slot of this lock is being moved to another node"))
        }
        _ if text.contains("max number of clients") => {
            Error::Unavailable(format!("{store} has reached its maximum number of clients"))
        }
        _ if text.contains("AUTH") || text.contains("invalid password") => {
            Error::Denied(format!("{store} refused the password: {said}"))
        }
        _ if text.contains("DB index") || text.contains("SELECT") => {
            Error::Unfit(format!("{store}: there is no such database: {said}"))
        }
        code => Error::Garbled(format!("{store} answered {code} {said}")),
    }
}

#[cfg(test)]
mod tests;

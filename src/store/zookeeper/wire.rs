//! A connection to a ZooKeeper server, in bounded time: one deadline covers a whole exchange.
//! Requests are sent in one batch and answered in order. Events of watches come in between, and are
//! kept until the caller takes them.
//!
//! After any failure the connection is dropped: a late answer would be taken for the answer to the
//! next request.

use super::jute::{self, Access, Answer, Ask, Code, Event, Head, Welcome};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::{is_end, unreachable};
use crate::store::net::interrupt;
use crate::store::net::password::Refusal;
use crate::store::net::streams::{Bounded, Channel, Stream, any_readable};
use crate::store::net::tls::{Session as TlsSession, Tls};
use crate::store::net::{Address, dial};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// Most bytes of an answer, and of the answers to one batch. That is enough for the nodes of ten
/// thousand waiters, each with a command of a thousand characters, or for the names of a hundred
/// thousand locks.
const ANSWER_MOST: usize = 32 << 20;
/// Most events that are kept. No process watches as many nodes.
const EVENTS_MOST: usize = 16 * 1024;
const READ_SIZE: usize = 16 * 1024;
/// Time for the rest of a frame that has begun to arrive.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// What went wrong in an exchange.
#[derive(Debug)]
pub enum Failure {
    /// The connection is broken. A new one may work at once.
    Broken(Error),
    /// There was no answer in time.
    Silent(Error),
    /// The server refused.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Refusal for Failure {
    fn refusal(&self) -> Option<&Error> {
        match self {
            Self::Refused(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken(error) | Failure::Silent(error) | Failure::Refused(error) => error,
        }
    }
}

/// A connection to a server.
pub struct Connection {
    store: String,
    stream: Stream,
    tls: Option<TlsSession>,
    access: Access,
    inbox: Vec<u8>,
    taken: usize,
    /// Bytes of answers since the last request.
    received: usize,
    number: i32,
    /// Whether the server, or another one for the same session, has answered as ZooKeeper does.
    is_zookeeper: bool,
    /// Newest zxid that the server has told.
    seen: i64,
    /// Events of watches.
    pub events: VecDeque<Event>,
    /// Time of the last send.
    sent: Moment,
    /// Whether a ping is unanswered.
    is_pinged: bool,
}

/// Sends a four-letter command, on a connection of its own, and returns the answer.
pub fn say(
    store: &str,
    address: &Address,
    tls: Option<&Tls>,
    word: &str,
    deadline: Moment,
) -> Result<String, Error> {
    let mut stream = dial::open(store, address, tls, deadline)?;
    let mut raw = Bounded { stream: &mut stream, deadline };
    let mut session = match (tls, address) {
        (Some(tls), Address::Tcp { host, .. }) => Some(TlsSession::begin(store, tls, host, &mut raw)?),
        _ => None,
    };
    let mut channel = Channel { tls: session.as_mut(), raw };
    let mut said = Vec::new();
    channel
        .write_all(word.as_bytes())
        .and_then(|()| channel.flush())
        .map_err(|error| unreachable(store, &error))?;
    match channel.take(64 * 1024).read_to_end(&mut said) {
        // Some servers close without a TLS close_notify.
        Err(error) if said.is_empty() => Err(unreachable(store, &error)),
        _ => Ok(String::from_utf8_lossy(&said).into_owned()),
    }
}

impl Connection {
    /// Connects by `reached`, and begins the session by `deadline`. `number` is the last xid of the
    /// session, over all its connections.
    pub fn begin(
        store: &str,
        address: &Address,
        tls: Option<&Tls>,
        access: Access,
        hello: &[u8],
        number: i32,
        (reached, deadline): (Moment, Moment),
    ) -> Result<(Self, Welcome), Failure> {
        let mut stream = dial::open(store, address, tls, reached).map_err(Failure::Broken)?;
        let tls = match (tls, address) {
            (Some(tls), Address::Tcp { host, .. }) => {
                let mut raw = Bounded { stream: &mut stream, deadline };
                Some(TlsSession::begin(store, tls, host, &mut raw).map_err(Failure::Broken)?)
            }
            _ => None,
        };
        let mut connection = Self {
            store: store.into(),
            stream,
            tls,
            access,
            inbox: Vec::new(),
            taken: 0,
            received: 0,
            number,
            is_zookeeper: number > 0,
            seen: 0,
            events: VecDeque::new(),
            sent: Moment::now(),
            is_pinged: false,
        };
        connection.send(hello, deadline)?;
        let frame = connection.frame(deadline)?;
        let welcome = Welcome::parse(&frame).ok_or_else(|| connection.not_zookeeper())?;
        connection.is_zookeeper = true;
        Ok((connection, welcome))
    }

    /// Logs in with the scheme `digest`. The server does not check the password: user and password
    /// together are the identity.
    pub fn log_in(&mut self, secret: Vec<u8>, deadline: Moment) -> Result<(), Failure> {
        let bytes = Ask::Login { secret }.framed(jute::LOGIN, self.access);
        self.send(&bytes, deadline)?;
        loop {
            let frame = self.frame(deadline)?;
            match self.sort(&frame)? {
                Some((Head { number: jute::LOGIN, code: Code(0), .. }, _)) => return Ok(()),
                Some((Head { number: jute::LOGIN, .. }, _)) => {
                    return Err(Failure::Refused(Error::Denied(format!(
                        "{} refused the user name or the password",
                        self.store
                    ))));
                }
                Some(_) => return Err(self.not_zookeeper()),
                None => {}
            }
        }
    }

    /// Sends requests in one batch and returns their answers in order.
    pub fn ask(&mut self, asks: &[Ask], deadline: Moment) -> Result<Vec<Result<Answer, Code>>, Failure> {
        self.received = 0;
        let (mut bytes, mut numbers) = (Vec::new(), Vec::with_capacity(asks.len()));
        for ask in asks {
            numbers.push(self.next_number());
            bytes.extend(ask.framed(self.number, self.access));
        }
        self.send(&bytes, deadline)?;
        asks.iter().zip(numbers).map(|(ask, number)| self.answer(ask, number, deadline)).collect()
    }

    fn next_number(&mut self) -> i32 {
        self.number = self.number.checked_add(1).unwrap_or(1);
        self.number
    }

    fn answer(&mut self, ask: &Ask, number: i32, deadline: Moment) -> Result<Result<Answer, Code>, Failure> {
        loop {
            let frame = self.asked_frame(deadline)?;
            let Some((head, rest)) = self.sort(&frame)? else { continue };
            if head.number != number {
                return Err(self.not_zookeeper());
            }
            return match head.code {
                Code(0) => ask.answer(rest).ok_or_else(|| self.not_zookeeper()),
                // The session has moved to another server or has ended. This connection answers no
                // further request.
                Code::SESSION_MOVED | Code::SESSION_EXPIRED | Code::CONNECTION_LOSS => {
                    Err(Failure::Broken(unreachable(&self.store, &ErrorKind::ConnectionAborted.into())))
                }
                code => Ok(Err(code)),
            };
        }
    }

    /// Returns an answer, and keeps an event.
    fn sort<'f>(&mut self, frame: &'f [u8]) -> Result<Option<(Head, &'f [u8])>, Failure> {
        let (head, rest) = jute::head(frame).ok_or_else(|| self.not_zookeeper())?;
        match head.number {
            jute::EVENT => {
                let event = jute::event(rest).ok_or_else(|| self.not_zookeeper())?;
                if self.events.len() == EVENTS_MOST {
                    self.events.pop_front();
                }
                self.events.extend(event);
                Ok(None)
            }
            jute::PING => {
                self.is_pinged = false;
                Ok(None)
            }
            _ => {
                self.seen = self.seen.max(head.seen);
                Ok(Some((head, rest)))
            }
        }
    }

    /// Newest zxid that the server has told.
    pub const fn seen(&self) -> i64 {
        self.seen
    }

    /// The last xid.
    pub const fn number(&self) -> i32 {
        self.number
    }

    /// Ends the session, without waiting for the answer.
    pub fn close(mut self) {
        let bytes = Ask::Close.framed(self.number.wrapping_add(1), self.access);
        self.send(&bytes, Moment::now().after(Duration::from_millis(20))).ok();
    }

    /// Sleeps until an event has come (true), or until `until` or an interrupt (false). Sends a
    /// ping at least once per `each`.
    pub fn listen(&mut self, each: Duration, until: Moment) -> Result<bool, Failure> {
        loop {
            if !self.events.is_empty() {
                return Ok(true);
            }
            if let Some(frame) = self.take()? {
                self.sort(&frame)?;
                continue;
            }
            let next = self.sent.after(each);
            if next.passed() {
                if self.is_pinged {
                    return Err(Failure::Silent(unreachable(&self.store, &ErrorKind::TimedOut.into())));
                }
                self.is_pinged = true;
                let bytes = Ask::Ping.framed(jute::PING, self.access);
                self.send(&bytes, Moment::now().after(each))?;
                continue;
            }
            if until.passed() || interrupt::is_raised() {
                return Ok(false);
            }
            self.wait(next.min(until)).map_err(|error| self.failure(&error))?;
        }
    }

    /// Waits for data until `until`, and reads it.
    fn wait(&mut self, until: Moment) -> io::Result<()> {
        let is_there = match &mut self.tls {
            Some(session) => session.has_more()?,
            None => false,
        };
        if !is_there && !any_readable(&[&self.stream], until)? {
            return Ok(());
        }
        let is_more = match &mut self.tls {
            Some(session) if !is_there => session.take_in(&mut self.stream)?,
            _ => true,
        };
        if is_more { self.fill(Moment::now().after(REST_WITHIN)) } else { Ok(()) }
    }

    fn send(&mut self, bytes: &[u8], deadline: Moment) -> Result<(), Failure> {
        let mut channel =
            Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, deadline } };
        let sent = channel.write_all(bytes).and_then(|()| channel.flush());
        self.sent = Moment::now();
        sent.map_err(|error| self.failure(&error))
    }

    /// Waits for the next frame during an exchange, and counts its bytes.
    fn asked_frame(&mut self, deadline: Moment) -> Result<Vec<u8>, Failure> {
        let frame = self.frame(deadline)?;
        self.received += frame.len();
        if self.received > ANSWER_MOST { Err(self.too_long()) } else { Ok(frame) }
    }

    fn frame(&mut self, deadline: Moment) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.fill(deadline).map_err(|error| self.failure(&error))?;
        }
    }

    /// The next frame, if all of it has arrived.
    fn take(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let rest = &self.inbox[self.taken..];
        let Some((length, behind)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > ANSWER_MOST {
            return Err(if self.is_zookeeper { self.too_long() } else { self.not_zookeeper() });
        }
        let Some(frame) = behind.get(..length) else { return Ok(None) };
        let frame = frame.to_vec();
        self.taken += 4 + length;
        Ok(Some(frame))
    }

    fn fill(&mut self, deadline: Moment) -> io::Result<()> {
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let length = self.inbox.len();
        self.inbox.resize(length + READ_SIZE, 0);
        let mut channel =
            Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, deadline } };
        let read = channel.read(&mut self.inbox[length..]);
        self.inbox.truncate(length + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => read.map(drop),
        }
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let explained = self.tls.as_ref().and_then(|session| session.explain(&self.store, error));
        let meant = explained.unwrap_or_else(|| unreachable(&self.store, error));
        if is_end(error) { Failure::Broken(meant) } else { Failure::Silent(meant) }
    }

    /// The error for an answer that is not understood. A server that has answered before is not the
    /// wrong one: while it starts or stops, it may send half an answer, or the answer to a request
    /// of an earlier connection.
    fn not_zookeeper(&self) -> Failure {
        if self.is_zookeeper {
            let what = "sent an answer that fits no request; it may be starting or stopping";
            return Failure::Broken(Error::Unavailable(format!("{} {what}", self.store)));
        }
        let what = "the server there does not speak the protocol of ZooKeeper";
        Failure::Refused(Error::Garbled(format!("{}: {what}", self.store)))
    }

    fn too_long(&self) -> Failure {
        let most = ANSWER_MOST >> 20;
        Failure::Refused(Error::Garbled(format!("{}: an answer is longer than {most} MiB", self.store)))
    }
}

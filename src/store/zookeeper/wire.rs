//! A connection to a ZooKeeper server, in bounded time: one deadline covers a whole exchange.
//! Requests are sent in one batch and answered in order. Events of watches come in between, and are
//! kept until the caller takes them.
//!
//! A connection that is only silent stays in use: the answer to a request that was given up is
//! recognized by its number, and skipped. After any other failure the connection is dropped.

use super::jute::{self, Access, Answer, Answers, Ask, Code, Head, Welcome};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::Failure;
use crate::store::net::pipe::{ANSWER_MOST, Pipe};
use crate::store::net::streams::Stream;
use crate::store::net::target::Target;
use crate::store::net::{Address, budget, interrupt};
use std::io::ErrorKind;
use std::time::Duration;

/// Most events that are kept. No process watches as many nodes.
const EVENTS_MOST: usize = 16 * 1024;
/// Most bytes of the answer to a four-letter command.
const SAID_MOST: usize = 64 * 1024;

/// A connection to a server.
pub struct Connection {
    pipe: Pipe,
    access: Access,
    /// The last xid.
    pub number: i32,
    /// Whether the server, or another one for the same session, has answered as ZooKeeper does.
    is_zookeeper: bool,
    /// Newest zxid that the server has told.
    pub seen: i64,
    /// Paths of the nodes that watches have reported.
    pub events: Vec<String>,
    /// Time of the last send.
    pub sent: Moment,
    /// Whether a ping is unanswered.
    is_pinged: bool,
}

/// Sends a four-letter command on a connection of its own. A server answers also if the command is
/// not in its `4lw.commands.whitelist`: with that reason.
pub fn send_word(target: &Target, server: &Address, word: &str, deadline: Moment) -> Result<Pipe, Error> {
    let mut pipe = Pipe::open(server.to_string(), target, server, deadline)?;
    pipe.begin_tls(target, server, deadline)?;
    pipe.send(word.as_bytes(), deadline)?;
    Ok(pipe)
}

/// Sends a four-letter command, on a connection of its own, and returns the answer.
pub fn say(target: &Target, server: &Address, word: &str, deadline: Moment) -> Result<String, Error> {
    let mut pipe = send_word(target, server, word, deadline)?;
    loop {
        match pipe.fill(deadline) {
            Ok(()) if pipe.rest().len() < SAID_MOST => {}
            Err(failure) if pipe.rest().is_empty() => return Err(failure.into()),
            // Some servers close without a TLS close_notify.
            _ => return Ok(String::from_utf8_lossy(pipe.rest()).into_owned()),
        }
    }
}

impl Connection {
    /// Connects, and asks the server for the session. `number` is the last xid of the session, over
    /// all its connections. [`Connection::welcome`] reads the answer.
    pub fn open(
        target: &Target,
        server: &Address,
        hello: &[u8],
        number: i32,
        deadline: Moment,
    ) -> Result<Self, Failure> {
        let pipe = Pipe::open(target.shown_at(server), target, server, deadline);
        let mut pipe = pipe.map_err(Failure::Broken)?;
        pipe.begin_tls(target, server, deadline).map_err(Failure::Broken)?;
        let mut connection = Self {
            pipe,
            // The nodes that dlock creates belong to the user that is logged in.
            access: if target.user.is_some() { Access::Creator } else { Access::Everybody },
            number,
            is_zookeeper: number > 0,
            seen: 0,
            events: Vec::new(),
            sent: Moment::now(),
            is_pinged: false,
        };
        connection.send(hello, deadline)?;
        Ok(connection)
    }

    /// The answer to the request for the session.
    pub fn welcome(&mut self, deadline: Moment) -> Result<Welcome, Failure> {
        let frame = self.frame(deadline)?;
        let welcome = Welcome::parse(&frame).ok_or_else(|| self.not_zookeeper())?;
        self.is_zookeeper = true;
        Ok(welcome)
    }

    /// Logs in with the scheme `digest`. The server does not check the password: user and password
    /// together are the identity.
    pub fn log_in(&mut self, secret: Vec<u8>, deadline: Moment) -> Result<(), Failure> {
        let login = Ask::Login(secret);
        self.send(&login.framed(jute::LOGIN, self.access), deadline)?;
        let answer = self.answer(&login, jute::LOGIN, deadline)?;
        let store = &self.pipe.store;
        let refused = format!("{store} refused the user name or the password");
        answer.map(drop).map_err(|_| Failure::Refused(Error::Password(refused)))
    }

    /// The socket, to wait on several connections at once.
    pub const fn stream(&self) -> &Stream {
        &self.pipe.stream
    }

    /// Whether the server has sent anything since the last answer.
    pub fn has_news(&mut self) -> Result<bool, Failure> {
        Ok(!self.pipe.rest().is_empty() || self.pipe.hear(Moment::now())?)
    }

    /// Sends requests in one batch. Returns their numbers.
    pub fn ask(&mut self, asks: &[Ask], deadline: Moment) -> Result<Vec<i32>, Failure> {
        let (mut bytes, mut numbers) = (Vec::new(), Vec::with_capacity(asks.len()));
        for ask in asks {
            numbers.push(self.next_number());
            bytes.extend(ask.framed(self.number, self.access));
        }
        budget::note_sent();
        self.send(&bytes, deadline)?;
        Ok(numbers)
    }

    /// Adds the answers to these requests, in order. If not all come in time, another call goes on.
    pub fn answers(
        &mut self,
        asks: &[Ask],
        numbers: &[i32],
        answers: &mut Answers,
        deadline: Moment,
    ) -> Result<(), Failure> {
        for (ask, number) in asks.iter().zip(numbers).skip(answers.len()) {
            answers.push(self.answer(ask, *number, deadline)?);
        }
        self.pipe.has_answered();
        Ok(())
    }

    fn next_number(&mut self) -> i32 {
        self.number = self.number.checked_add(1).unwrap_or(1);
        self.number
    }

    fn answer(&mut self, ask: &Ask, number: i32, deadline: Moment) -> Result<Result<Answer, Code>, Failure> {
        loop {
            let frame = self.frame(deadline)?;
            let Some((head, rest)) = self.sort(&frame)? else { continue };
            if (1..number).contains(&head.number) {
                // That request was given up.
                continue;
            }
            if head.number != number {
                return Err(self.not_zookeeper());
            }
            return match head.code {
                Code(0) => ask.answer(rest).ok_or_else(|| self.not_zookeeper()),
                // The session has moved to another server or has ended. This connection answers no
                // further request.
                Code::SESSION_MOVED | Code::SESSION_EXPIRED | Code::CONNECTION_LOSS => {
                    Err(self.pipe.failure(&ErrorKind::ConnectionAborted.into()))
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
                if self.events.len() < EVENTS_MOST {
                    self.events.push(event);
                }
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
                    return Err(self.pipe.failure(&ErrorKind::TimedOut.into()));
                }
                self.is_pinged = true;
                let bytes = Ask::Ping.framed(jute::PING, self.access);
                self.send(&bytes, Moment::now().after(each))?;
                continue;
            }
            if until.passed() || interrupt::is_raised() {
                return Ok(false);
            }
            self.pipe.hear(next.min(until))?;
        }
    }

    fn send(&mut self, bytes: &[u8], deadline: Moment) -> Result<(), Failure> {
        let sent = self.pipe.send(bytes, deadline);
        self.sent = Moment::now();
        // A server that has half a request understands no other.
        sent.map_err(|failure| Failure::Broken(failure.into()))
    }

    fn frame(&mut self, deadline: Moment) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.pipe.fill(deadline)?;
        }
    }

    /// The next frame, if all of it has arrived.
    fn take(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let rest = self.pipe.rest();
        let Some((length, behind)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > ANSWER_MOST && self.is_zookeeper {
            // Another server would send as much, so this is no failure of the connection.
            let most = ANSWER_MOST >> 20;
            let why = format!("{}: an answer is longer than {most} MiB", self.pipe.store);
            return Err(Failure::Refused(Error::Garbled(why)));
        }
        if length > ANSWER_MOST {
            return Err(self.not_zookeeper());
        }
        let Some(frame) = behind.get(..length) else { return Ok(None) };
        let frame = frame.to_vec();
        self.pipe.take(4 + length);
        Ok(Some(frame))
    }

    /// The error for an answer that is not understood. A server that has answered before is not the
    /// wrong one: while it starts or stops, it may send half an answer, or the answer to a request
    /// of an earlier connection.
    fn not_zookeeper(&self) -> Failure {
        if self.is_zookeeper {
            let what = "sent an answer that fits no request; it may be starting or stopping";
            return Failure::Broken(Error::Unavailable(format!("{} {what}", self.pipe.store)));
        }
        let what = "the server there does not speak the protocol of ZooKeeper";
        Failure::Refused(Error::Garbled(format!("{}: {what}", self.pipe.store)))
    }
}

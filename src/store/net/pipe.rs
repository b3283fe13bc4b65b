//! A connection to a server: sends and receives bytes under deadlines, over a socket or TLS, and
//! says what a failure means. What the bytes mean is the store's own.
//!
//! After any failure the connection is dropped: a late answer would be taken for the answer to the
//! next request.

use super::budget::Counted;
use super::failure::{Failure, is_end, unreachable};
use super::streams::{Bounded, Channel, Stream, any_readable};
use super::target::Target;
use super::tls::{Session, Tls};
use super::{Address, dial, interrupt};
use crate::clock::Moment;
use crate::store::Error;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::time::Duration;

/// Most bytes of the answers to one request or batch. That is room for ten thousand waiters, each
/// with a command of a thousand characters, even in hex or base64, or for the names of a hundred
/// thousand locks.
pub const ANSWER_MOST: usize = 32 << 20;
/// Most values in an answer, because a value of one byte takes many times as much memory here. That
/// is room for two hundred thousand waiters.
const VALUES_MOST: usize = 1 << 20;
/// Most columns in a row; no statement of dlock's asks for more.
const COLUMNS_MOST: usize = 64;
/// Longest wait for the rest of a message that has begun to arrive.
const REST_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait for a connection that cannot take the farewell.
const FAREWELL: Duration = Duration::from_millis(1);
const READ_SIZE: usize = 16 * 1024;

/// A connection, and the bytes that it has received.
pub struct Pipe {
    /// How messages name the server.
    pub store: String,
    pub stream: Stream,
    tls: Option<Session>,
    inbox: Vec<u8>,
    taken: usize,
    /// Bytes received since the last send or wait for news, and the number of values in rows.
    come: usize,
    values: usize,
    /// Sent to the server before the connection is closed. If it is empty, as before a login, the
    /// connection is only closed.
    pub farewell: &'static [u8],
    /// The process that connected. A forked copy sends no farewell.
    process: u32,
    /// Counts the connection until the server has answered a request.
    counted: Option<Counted>,
}

impl Pipe {
    /// Connects by `deadline`, without TLS. The connect timeout covers reaching the server. The login may
    /// take until `deadline`, because another connection would be no faster.
    pub fn open(store: String, target: &Target, server: &Address, deadline: Moment) -> Result<Self, Error> {
        let reached = deadline.min(Moment::now().after(target.connect_timeout));
        Self::dial(store, server, target.tls.as_ref(), reached)
    }

    /// Connects by `deadline`, without TLS, although that may follow.
    pub fn dial(store: String, server: &Address, tls: Option<&Tls>, deadline: Moment) -> Result<Self, Error> {
        let (stream, counted) = dial::open(&store, server, tls, deadline)?;
        Ok(Self {
            store,
            stream,
            tls: None,
            inbox: Vec::new(),
            taken: 0,
            come: 0,
            values: 0,
            farewell: &[],
            process: std::process::id(),
            counted: Some(counted),
        })
    }

    /// The server has answered a request that is no part of the login.
    pub fn has_answered(&mut self) {
        self.counted.take().into_iter().for_each(Counted::answered);
    }

    /// Begins TLS, if the server is reached over it.
    pub fn begin_tls(&mut self, target: &Target, server: &Address, deadline: Moment) -> Result<(), Error> {
        if let (Some(tls), Address::Tcp { host, .. }) = (&target.tls, server) {
            self.secure(tls, host, deadline)?;
        }
        Ok(())
    }

    /// Begins TLS with a server whose certificate must name this host.
    pub fn secure(&mut self, tls: &Tls, host: &str, deadline: Moment) -> Result<(), Error> {
        let mut raw = Bounded { stream: &mut self.stream, deadline };
        self.tls = Some(Session::begin(&self.store, tls, host, &mut raw)?);
        Ok(())
    }

    /// Whether nobody else can read the bytes: they go through TLS, or stay in this machine's
    /// kernel.
    pub fn is_private(&self) -> bool {
        self.tls.is_some() || matches!(self.stream, Stream::Unix(_))
    }

    /// The bytes that have been received and not taken.
    pub fn rest(&self) -> &[u8] {
        &self.inbox[self.taken..]
    }

    /// Takes this many of them.
    pub fn take(&mut self, length: usize) {
        self.taken += length;
    }

    /// Waits for more bytes. Fails if more has been received than an answer may have.
    pub fn fill(&mut self, deadline: Moment) -> Result<(), Failure> {
        if self.come > ANSWER_MOST {
            return Err(self.endless());
        }
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let length = self.inbox.len();
        self.inbox.resize(length + READ_SIZE, 0);
        let mut channel =
            Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, deadline } };
        let read = channel.read(&mut self.inbox[length..]);
        let count = *read.as_ref().unwrap_or(&0);
        self.inbox.truncate(length + count);
        self.come += count;
        match read {
            Ok(0) => Err(self.failure(&ErrorKind::UnexpectedEof.into())),
            read => read.map(drop).map_err(|error| self.failure(&error)),
        }
    }

    /// Counts a row of this many values. An answer with too many is an error.
    pub fn count(&mut self, columns: usize) -> Result<(), Failure> {
        // A row without values takes memory too.
        self.values = self.values.saturating_add(columns.max(1));
        if columns > COLUMNS_MOST || self.values > VALUES_MOST { Err(self.endless()) } else { Ok(()) }
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: &[u8], deadline: Moment) -> Result<(), Failure> {
        (self.come, self.values) = (0, 0);
        let mut channel =
            Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, deadline } };
        let sent = channel.write_all(bytes).and_then(|()| channel.flush());
        let sent = sent.map_err(|error| channel.last_words().unwrap_or(error));
        sent.map_err(|error| self.failure(&error))
    }

    /// Sleeps until the server sends something or closes (true), or until `until` or an interrupt
    /// (false).
    pub fn listen(&mut self, until: Moment) -> Result<bool, Failure> {
        (self.come, self.values) = (0, 0);
        self.has_news(until).map_err(|error| self.failure(&error))
    }

    fn has_news(&mut self, until: Moment) -> io::Result<bool> {
        if let Some(session) = &mut self.tls
            && session.has_more()?
        {
            return Ok(true);
        }
        while any_readable(&[&self.stream], until)? {
            let is_news = match &mut self.tls {
                Some(session) => session.take_in(&mut self.stream)?,
                None => true,
            };
            if is_news {
                return Ok(true);
            }
            // A server may send TLS records without data again and again.
            if until.passed() || interrupt::is_raised() {
                break;
            }
        }
        Ok(false)
    }

    /// The same as [`Pipe::listen`], and receives what has come.
    pub fn hear(&mut self, until: Moment) -> Result<bool, Failure> {
        let is_news = self.listen(until)?;
        if is_news {
            self.fill(Moment::now().after(REST_WITHIN))?;
        }
        Ok(is_news)
    }

    /// What an I/O error on the connection means.
    pub fn failure(&self, error: &io::Error) -> Failure {
        let explained = self.tls.as_ref().and_then(|session| session.explain(&self.store, error));
        let meant = explained.unwrap_or_else(|| unreachable(&self.store, error));
        if is_end(error) { Failure::Broken(meant) } else { Failure::Silent(meant) }
    }

    fn endless(&self) -> Failure {
        self.failure(&io::Error::new(ErrorKind::InvalidData, "its answer is too long"))
    }
}

/// Says farewell: a server counts a client that only closes the connection as failed, and logs a
/// warning.
impl Drop for Pipe {
    fn drop(&mut self) {
        if self.farewell.is_empty() || self.process != std::process::id() {
            return;
        }
        let deadline = Moment::now().after(FAREWELL);
        if self.send(self.farewell, deadline).is_ok()
            && let Some(session) = &mut self.tls
        {
            session.close(&mut Bounded { stream: &mut self.stream, deadline });
        }
    }
}

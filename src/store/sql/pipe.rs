//! What do the connections to all databases have in common? Bytes that come and go under deadlines, by a socket or through TLS, and
//! what it means where they do not. What the bytes say is told in `mysql::wire` and `postgres::wire`.

use super::{Failure, Target};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::failure::{is_end, unreachable};
use crate::store::net::streams::{Bounded, Channel, Stream, any_readable};
use crate::store::net::tls::Session;
use crate::store::net::{Address, dial};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::time::Duration;

/// No answer is longer: so much say the rows of ten thousand who wait, each with a command of a thousand characters, of which each
/// takes two digits; or the names of a hundred thousand locks.
pub const ANSWER_MOST: usize = 32 << 20;
/// Nor has it more values, each of which takes many times as much room here as the byte that it may be: the rows of eighty
/// thousand who wait.
const VALUES_MOST: usize = 1 << 20;
/// No row that is asked for has more of them.
const COLUMNS_MOST: usize = 64;
/// How long a connection that cannot take a few bytes is waited for when it is closed.
const FAREWELL: Duration = Duration::from_millis(1);
const READ_SIZE: usize = 16 * 1024;

/// A connection, and what has come by it.
pub struct Pipe {
    /// How messages name the store.
    pub store: String,
    pub stream: Stream,
    pub tls: Option<Session>,
    inbox: Vec<u8>,
    taken: usize,
    /// How much has come since something was sent, and how many values in rows.
    come: usize,
    values: usize,
    /// Told to the server before the connection is closed; empty before the login.
    pub farewell: &'static [u8],
    /// The process that connected. A copy in a process that was forked says nothing.
    process: u32,
}

impl Pipe {
    /// Connects by `by`, without TLS. The connect timeout covers reaching the server; logging in may take until the end of
    /// the operation, for a new connection would be no quicker.
    pub fn open(target: &Target, server: &Address, by: Moment) -> Result<Self, Error> {
        let reached = by.min(Moment::now().after(target.connect_timeout));
        let store = target.shown_at(server);
        let stream = dial::open(&store, server, target.tls.as_ref(), reached)?;
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
        })
    }

    /// Whether nobody else hears what is said: it goes through TLS, or does not leave this machine's kernel.
    pub fn is_private(&self) -> bool {
        self.tls.is_some() || matches!(self.stream, Stream::Unix(_))
    }

    /// What has come and was not taken.
    pub fn rest(&self) -> &[u8] {
        &self.inbox[self.taken..]
    }

    /// So much of it is done with.
    pub fn take(&mut self, length: usize) {
        self.taken += length;
    }

    /// Waits for more. An answer that never ends is an error.
    pub fn fill(&mut self, by: Moment) -> io::Result<()> {
        if self.come > ANSWER_MOST {
            return Err(endless());
        }
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let length = self.inbox.len();
        self.inbox.resize(length + READ_SIZE, 0);
        let mut channel = Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, by } };
        let read = channel.read(&mut self.inbox[length..]);
        let count = *read.as_ref().unwrap_or(&0);
        self.inbox.truncate(length + count);
        self.come += count;
        match read {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => read.map(drop),
        }
    }

    /// Whether a row with so many values may still be kept.
    pub fn count(&mut self, columns: usize) -> io::Result<()> {
        // A row without any takes room as well.
        self.values = self.values.saturating_add(columns.max(1));
        if columns > COLUMNS_MOST || self.values > VALUES_MOST { Err(endless()) } else { Ok(()) }
    }

    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8], by: Moment) -> io::Result<()> {
        (self.come, self.values) = (0, 0);
        let mut channel = Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, by } };
        channel.write_all(bytes).and_then(|()| channel.flush())
    }

    /// Sleeps until something comes unasked, be it the end, or until then (false).
    pub fn listen(&mut self, until: Moment) -> io::Result<bool> {
        (self.come, self.values) = (0, 0);
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
        }
        Ok(false)
    }

    /// What an error of the connection means.
    pub fn failure(&self, error: &io::Error) -> Failure {
        let explained = self.tls.as_ref().and_then(|session| session.explain(&self.store, error));
        let meant = explained.unwrap_or_else(|| unreachable(&self.store, error));
        if is_end(error) { Failure::Broken(meant) } else { Failure::Silent(meant) }
    }
}

/// A server counts a client that only hangs up as one that failed, and writes a warning into its log.
impl Drop for Pipe {
    fn drop(&mut self) {
        if self.farewell.is_empty() || self.process != std::process::id() {
            return;
        }
        let by = Moment::now().after(FAREWELL);
        if self.send(self.farewell, by).is_ok()
            && let Some(session) = &mut self.tls
        {
            session.close(&mut Bounded { stream: &mut self.stream, by });
        }
    }
}

fn endless() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "its answer does not end")
}

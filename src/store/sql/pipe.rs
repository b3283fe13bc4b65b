//! What do the connections to all databases have in common? Bytes that come and go under deadlines, by a socket or through TLS, and
//! what it means where they do not. What the bytes say is told in `mysql::wire` and `postgres::wire`.

use super::{Failure, Target};
use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::dial;
use crate::store::net::failure::{is_end, unreachable};
use crate::store::net::streams::{Bounded, Channel, Stream, any_readable};
use crate::store::net::tls::Session;
use std::io::{self, ErrorKind, Read as _, Write as _};

/// No answer is longer than that of some hundred thousand waiters.
pub const ANSWER_MOST: usize = 64 << 20;
const READ_SIZE: usize = 16 * 1024;

/// A connection, and what has come by it.
pub struct Pipe {
    /// How messages name the store.
    pub store: String,
    pub stream: Stream,
    pub tls: Option<Session>,
    inbox: Vec<u8>,
    taken: usize,
    /// How much has come since something was sent.
    come: usize,
}

impl Pipe {
    /// Connects by `by`, without TLS.
    pub fn open(target: &Target, by: Moment) -> Result<Self, Error> {
        let stream = dial::open(&target.shown, &target.address, by)?;
        Ok(Self { store: target.shown.clone(), stream, tls: None, inbox: Vec::new(), taken: 0, come: 0 })
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
            return Err(io::Error::new(ErrorKind::InvalidData, "its answer does not end"));
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

    /// Sends all of it.
    pub fn send(&mut self, bytes: &[u8], by: Moment) -> io::Result<()> {
        self.come = 0;
        let mut channel = Channel { tls: self.tls.as_mut(), raw: Bounded { stream: &mut self.stream, by } };
        channel.write_all(bytes).and_then(|()| channel.flush())
    }

    /// Sleeps until something comes unasked, be it the end, or until then (false).
    pub fn listen(&mut self, until: Moment) -> io::Result<bool> {
        self.come = 0;
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

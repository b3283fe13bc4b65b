//! The streams between a socket and a parser, each on top of the one before: a socket whose reads
//! and writes all end at one deadline, TLS if there is any, and bytes that are read and not parsed
//! yet.

use super::interrupt;
use super::tls::Session;
use crate::clock::{Moment, Timer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes of the first read, since most replies are short, and of later ones.
const READ_SIZE: (usize, usize) = (4 * 1024, 64 * 1024);

/// A socket of either kind.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Sleeps until a stream is readable (true), or until `until` or an interrupt (false).
pub fn any_readable(streams: &[&Stream], until: Moment) -> io::Result<bool> {
    // Without a free descriptor for a timer, poll() ends later if the machine sleeps meanwhile.
    let timer = Timer::new().and_then(|timer| timer.set(Some(until)).map(|()| timer)).ok();
    interrupt::with(|interrupt| {
        let mut fds: Vec<_> = streams.iter().map(|stream| PollFd::new(*stream, PollFlags::IN)).collect();
        fds.extend(
            interrupt
                .into_iter()
                .chain(timer.as_ref().map(AsFd::as_fd))
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        loop {
            let left = Timespec::try_from(until.left()).map_err(io::Error::other)?;
            match poll(&mut fds, timer.is_none().then_some(&left)) {
                Ok(_) => return Ok(fds[..streams.len()].iter().any(|fd| !fd.revents().is_empty())),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    })
}

/// Bytes that are read and not parsed yet.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// Whether all of it has been taken.
    pub const fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Takes up to `most` bytes.
    pub fn take(&mut self, most: usize) -> &[u8] {
        let from = self.taken;
        self.taken = self.bytes.len().min(from.saturating_add(most));
        &self.bytes[from..self.taken]
    }

    /// Takes bytes up to and with the next line end.
    pub fn take_line(&mut self) -> &[u8] {
        let rest = &self.bytes[self.taken..];
        let line = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        self.take(line)
    }

    pub fn fill(&mut self, from: &mut impl Read) -> io::Result<()> {
        let size = if self.bytes.len() < READ_SIZE.0 { READ_SIZE.0 } else { READ_SIZE.1 };
        self.bytes.resize(size, 0);
        self.taken = 0;
        let read = from.read(&mut self.bytes);
        self.bytes.truncate(*read.as_ref().unwrap_or(&0));
        read.map(drop)
    }
}

/// The stream of requests and answers, with or without TLS.
pub struct Channel<'a> {
    pub tls: Option<&'a mut Session>,
    pub raw: Bounded<'a>,
}

impl Channel<'_> {
    pub fn last_words(&mut self) -> Option<io::Error> {
        self.tls.as_mut()?.last_words(&mut self.raw)
    }
}

impl Read for Channel<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(session) => session.over(&mut self.raw).read(buf),
            None => self.raw.read(buf),
        }
    }
}

impl Write for Channel<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(session) => session.over(&mut self.raw).write(buf),
            None => self.raw.write(buf),
        }
    }

    /// Over TLS, only this reports a failed write.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(session) => session.over(&mut self.raw).flush(),
            None => self.raw.flush(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A stream whose reads and writes all end at one deadline.
pub struct Bounded<'a> {
    pub stream: &'a mut Stream,
    pub deadline: Moment,
}

impl Bounded<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.left();
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// Maps `WouldBlock` to `TimedOut`: rustls would take `WouldBlock` for something else.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.left()?;
            match interrupt::wait(&*self.stream, PollFlags::IN, left).and_then(|()| self.stream.read(buf)) {
                // A wait with a timeout ends so when the process is stopped and continued
                // (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read.map_err(timed),
            }
        }
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        loop {
            let left = Some(self.left()?);
            let written = match self.stream {
                Stream::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(buf)),
                Stream::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(buf)),
            };
            match written {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => return written.map_err(timed),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! The streams between a socket and a connection, each on top of the one before: a socket whose
//! reads and writes all end at one deadline, and TLS if there is any.

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

/// A socket of either kind.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Sleeps until a stream is readable (true), or until `until` or an interrupt (false).
pub fn any_readable(streams: &[&Stream], until: Moment) -> io::Result<bool> {
    // Without a free descriptor for a timer, poll() ends later if the machine sleeps meanwhile.
    let set = || Timer::new().and_then(|timer| timer.set(Some(until)).map(|()| timer)).ok();
    let timer = if until.passed() { None } else { set() };
    interrupt::with(|interrupts| {
        let mut fds: Vec<_> = streams.iter().map(|stream| PollFd::new(*stream, PollFlags::IN)).collect();
        fds.extend(
            interrupts
                .iter()
                .map(AsFd::as_fd)
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

//! How does one get a stream to a server in bounded time, and what does it speak that is there?

use super::failure::unreachable;
use super::streams::{Bounded, Stream};
use super::tls::hello;
use super::{Address, alarm};
use crate::clock::Moment;
use crate::store::Error;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long to wait before a full queue of a Unix socket is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// A stream to the server of `store`.
pub fn open(store: &str, address: &Address, by: Moment) -> Result<Stream, Error> {
    match address {
        Address::Tcp { host, port } => tcp(host, *port, by).map(Stream::Tcp),
        Address::Unix(path) => unix(path, by).map(Stream::Unix),
    }
    .map_err(|error| match (address, error.kind()) {
        (Address::Unix(_), ErrorKind::PermissionDenied) => {
            Error::Denied(format!("{store}: no permission to connect to the socket"))
        }
        _ => unreachable(store, &error),
    })
}

/// Whether what is silent to TLS is Redis without it, which waits for the end of what it takes for a line.
pub fn speaks_redis(host: &str, port: u16, by: Moment) -> bool {
    answer_to(host, port, b"PING\r\n", by).is_ok_and(|first| b"+-".contains(&first[0]))
}

/// Whether a server answers the first words of TLS in kind: with a handshake, or an alert.
pub fn speaks_tls(host: &str, port: u16, by: Moment) -> bool {
    let answer = hello().and_then(|hello| answer_to(host, port, &hello, by));
    answer.is_ok_and(|first| matches!(first, [0x15 | 0x16, 3]))
}

/// How a server's answer to somebody who says this begins.
fn answer_to(host: &str, port: u16, said: &[u8], by: Moment) -> io::Result<[u8; 2]> {
    let mut stream = Stream::Tcp(tcp(host, port, by)?);
    let mut stream = Bounded { stream: &mut stream, by };
    stream.write_all(said)?;
    let mut first = [0; 2];
    stream.read_exact(&mut first)?;
    Ok(first)
}

/// A connection by TCP; several addresses share the time.
pub fn tcp(host: &str, port: u16, by: Moment) -> io::Result<TcpStream> {
    let addresses = resolve(host, port, by)?;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let untried = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let share = by.left() / untried;
        if share.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match connected(address, share) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connected(address: &SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    let until = Moment::now().after(within);
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => loop {
            match alarm::wait(&socket, PollFlags::OUT, until.left()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => break done?,
            }
        },
        Err(errno) => return Err(errno.into()),
    }
    rustix::net::sockopt::socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    // On a port that programs are given, where nobody listens, one may meet oneself (RFC 9293, a simultaneous open).
    if stream.local_addr()? == *address {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Connecting to a Unix socket blocks while the queue of a stopped server is full, and has no timeout of its own.
pub fn unix(path: &Path, by: Moment) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::NOENT) => return Err(io::Error::new(ErrorKind::NotFound, "there is no such socket")),
            Err(Errno::AGAIN | Errno::INTR) if !by.passed() => alarm::pause(BACKLOG_PAUSE.min(by.left()))?,
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

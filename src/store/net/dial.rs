//! How does one get a stream to a server in bounded time, and what does it speak that is there?

use super::failure::unreachable;
use super::streams::{Bounded, Stream};
use super::tls::{Tls, hello};
use super::{Address, alarm};
use crate::clock::Moment;
use crate::store::Error;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// How long to wait before a full queue of a Unix socket is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);
/// A connect without an answer is begun anew after this time at the earliest, and after this part of the time waited so far.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const AGAIN_SHARE: u32 = 16;

/// A stream to the server of `store`, which is spoken to over TLS or not.
pub fn open(store: &str, address: &Address, tls: Option<&Tls>, by: Moment) -> Result<Stream, Error> {
    match address {
        Address::Tcp { host, port } => resolve(host, *port, by).and_then(|addresses| {
            if tls.is_none() {
                check_local(host, &addresses)?;
            }
            connected_to_any(&addresses, by).map(Stream::Tcp)
        }),
        Address::Unix(path) => unix(path, by).map(Stream::Unix),
    }
    .map_err(|error| match (address, error.kind()) {
        (Address::Unix(_), ErrorKind::PermissionDenied) => {
            Error::Denied(format!("{store}: no permission to connect to the socket"))
        }
        (Address::Tcp { .. }, ErrorKind::InvalidInput) => {
            Error::Misnamed(format!("{store} is not spoken to: {error}"))
        }
        _ => unreachable(store, &error),
    })
}

/// `localhost` needs no TLS because it is this machine. A hosts file or a name service may say that it is another one.
fn check_local(host: &str, addresses: &[SocketAddr]) -> io::Result<()> {
    let is_other = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    let other = addresses.iter().find(is_other).filter(|_| host == "localhost");
    other.map_or(Ok(()), |other| {
        let why = format!(
            "the name localhost leads to {}, which is another machine, and without TLS a password would go there in clear; \
             mend /etc/hosts or the name service, or write 127.0.0.1",
            other.ip()
        );
        Err(io::Error::new(ErrorKind::InvalidInput, why))
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
    let mut stream = Stream::Tcp(connected_to_any(&resolve(host, port, by)?, by)?);
    let mut stream = Bounded { stream: &mut stream, by };
    stream.write_all(said)?;
    let mut first = [0; 2];
    stream.read_exact(&mut first)?;
    Ok(first)
}

/// A connection by TCP; the addresses share the time.
fn connected_to_any(addresses: &[SocketAddr], by: Moment) -> io::Result<TcpStream> {
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

/// How long connecting to an address has taken, for those that were reached.
static REACHED: Mutex<BTreeMap<SocketAddr, Duration>> = Mutex::new(BTreeMap::new());

/// Connects within a time. Where the address was reached before, a connect that gets no answer is begun anew now and then:
/// the kernel sends again ever more seldom, and a network that is back must not be waited for that long.
fn connected(address: &SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let known = REACHED.lock().unwrap_or_else(PoisonError::into_inner).get(address).copied();
    let began = Moment::now();
    let until = began.after(within);
    loop {
        let limit = known.map_or(within, |took| {
            (4 * took).max(AGAIN_AFTER).max(Moment::now().since(began) / AGAIN_SHARE).min(until.left())
        });
        let tried = Moment::now();
        match connect_once(address, limit) {
            Ok(stream) => {
                let took = Moment::now().since(tried);
                REACHED.lock().unwrap_or_else(PoisonError::into_inner).insert(*address, took);
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::TimedOut && !until.passed() && !alarm::is_raised() => {}
            Err(error) => return Err(error),
        }
    }
}

fn connect_once(address: &SocketAddr, within: Duration) -> io::Result<TcpStream> {
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
    match alarm::receive(&wait, by) {
        Some(addresses) => addresses,
        None => Err(io::Error::new(ErrorKind::TimedOut, "the name could not be looked up in time")),
    }
}

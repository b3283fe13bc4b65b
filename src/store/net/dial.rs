//! Opens a stream to a server in bounded time, and finds out which protocol a server speaks.

use super::budget::{self, Counted};
use super::failure::unreachable;
use super::streams::{Bounded, Stream};
use super::tls::{Tls, hello};
use super::{Address, interrupt};
use crate::clock::Moment;
use crate::store::Error;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// Pause before the next connect to a Unix socket with a full backlog.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);
/// Shortest time after which a connect without an answer is started again.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Shortest such time as a part of the time waited so far: one in this many.
const RETRY_SHARE: u32 = 16;

/// When the kernel first asks whether the other end of an idle connection is still there, how often
/// it asks again, and how many questions without an answer end the connection.
const IDLE: Duration = Duration::from_secs(20);
const PROBE_EACH: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Opens a stream to the server of `store`, and counts it. With `tls`, a handshake will follow.
pub fn open(
    store: &str,
    address: &Address,
    tls: Option<&Tls>,
    deadline: Moment,
) -> Result<(Stream, Counted), Error> {
    let unreachable = |error| unreachable(store, &error);
    match address {
        Address::Tcp { host, port } => {
            let addresses = resolve(host, *port, deadline).map_err(unreachable)?;
            if tls.is_none() && host == "localhost" {
                check_local(store, &addresses)?;
            }
            let connected = connected_to_any(&addresses, deadline).map_err(unreachable)?;
            Ok((Stream::Tcp(connected.0), connected.1))
        }
        Address::Unix(path) => match unix(path, deadline) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Error::Denied(format!("{store}: no permission to connect to the socket")))
            }
            opened => opened.map(|(stream, counted)| (Stream::Unix(stream), counted)).map_err(unreachable),
        },
    }
}

/// `localhost` is allowed without TLS because it is this machine. A hosts file or a name service
/// may map it to another one.
fn check_local(store: &str, addresses: &[SocketAddr]) -> Result<(), Error> {
    match addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
        None => Ok(()),
        Some(other) => Err(Error::Misnamed(format!(
            "{store} was not contacted: the name localhost leads to {}, which is another machine, and without TLS a password would be sent there unencrypted; correct /etc/hosts or the name service, or write 127.0.0.1",
            other.ip()
        ))),
    }
}

/// Whether a server that does not answer to TLS is a Redis without TLS: it takes the handshake for
/// an unfinished line.
pub fn speaks_redis(host: &str, port: u16, deadline: Moment) -> bool {
    answer_to(host, port, b"PING\r\n", deadline).is_ok_and(|first| b"+-".contains(&first[0]))
}

/// Whether a server answers a TLS hello with a handshake message or an alert.
pub fn speaks_tls(host: &str, port: u16, deadline: Moment) -> bool {
    let answer = hello().and_then(|hello| answer_to(host, port, &hello, deadline));
    answer.is_ok_and(|first| matches!(first, [0x15 | 0x16, 3]))
}

/// Servers that were asked for their protocol. Each is asked once: a server that hangs up on
/// everybody must not see more connections.
static PROBED: Mutex<BTreeSet<(String, u16)>> = Mutex::new(BTreeSet::new());

/// The first bytes of a server's answer to these bytes.
fn answer_to(host: &str, port: u16, said: &[u8], deadline: Moment) -> io::Result<[u8; 2]> {
    let is_new = PROBED.lock().unwrap_or_else(PoisonError::into_inner).insert((host.into(), port));
    if !is_new {
        return Err(ErrorKind::TimedOut.into());
    }
    let (stream, counted) = connected_to_any(&resolve(host, port, deadline)?, deadline)?;
    let mut stream = Stream::Tcp(stream);
    let mut stream = Bounded { stream: &mut stream, deadline };
    stream.write_all(said)?;
    let mut first = [0; 2];
    stream.read_exact(&mut first)?;
    counted.answered();
    Ok(first)
}

/// Connects by TCP. The addresses share the time.
fn connected_to_any(addresses: &[SocketAddr], deadline: Moment) -> io::Result<(TcpStream, Counted)> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let untried = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let share = deadline.left() / untried;
        if share.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let until = Moment::now().after(share);
        // While another address is left, this one is not waited for.
        let patience = if untried > 1 { Moment::now() } else { until };
        let said = budget::count(address, patience)
            .and_then(|counted| Ok((connected(address, until.left())?, counted)));
        match said {
            Ok((stream, counted)) => {
                stream.set_nodelay(true)?;
                notice_silence(&stream)?;
                return Ok((stream, counted));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Lets the kernel end an idle connection whose other end is gone, as after a failover of a load
/// balancer. Else a connection on which dlock only listens would stay silent for ever.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EACH)?;
    Ok(sockopt::set_tcp_keepcnt(stream, PROBES)?)
}

/// Duration of the last connect to each address that was reached.
static REACHED: Mutex<BTreeMap<SocketAddr, Duration>> = Mutex::new(BTreeMap::new());

/// Connects within a time. If the address was reached before, a connect without an answer is
/// started again now and then: the kernel's own retries get ever rarer, and would find a restored
/// network late.
fn connected(address: &SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let known = REACHED.lock().unwrap_or_else(PoisonError::into_inner).get(address).copied();
    let began = Moment::now();
    let until = began.after(within);
    loop {
        let limit = known.map_or(within, |took| {
            (4 * took).max(RETRY_AFTER).max(Moment::now().since(began) / RETRY_SHARE).min(until.left())
        });
        let tried = Moment::now();
        match connect_once(address, limit) {
            Ok(stream) => {
                let took = Moment::now().since(tried);
                REACHED.lock().unwrap_or_else(PoisonError::into_inner).insert(*address, took);
                return Ok(stream);
            }
            Err(error)
                if error.kind() == ErrorKind::TimedOut && !until.passed() && !interrupt::is_raised() => {}
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
            match interrupt::wait(&socket, PollFlags::OUT, until.left()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => break done?,
            }
        },
        Err(errno) => return Err(errno.into()),
    }
    sockopt::socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    // On an ephemeral port without a listener, a socket can connect to itself (RFC 9293,
    // simultaneous open).
    if stream.local_addr()? == *address {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A blocking connect to a Unix socket hangs, without a timeout, while a stopped server's backlog
/// is full. So the socket is non-blocking.
fn unix(path: &Path, deadline: Moment) -> io::Result<(UnixStream, Counted)> {
    let counted = budget::count(&path, deadline)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::NOENT) => return Err(io::Error::new(ErrorKind::NotFound, "there is no such socket")),
            Err(Errno::AGAIN | Errno::INTR) if !deadline.passed() => {
                interrupt::pause(BACKLOG_PAUSE.min(deadline.left()))?
            }
            Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok((stream, counted))
}

/// Looks a name up on a thread of its own, which may be left behind: the name service has no
/// deadline.
fn resolve(host: &str, port: u16, deadline: Moment) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (found, wait) = mpsc::channel();
    let name = host.to_owned();
    thread::Builder::new().spawn(move || {
        let addresses = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let _ = found.send(addresses);
    })?;
    match interrupt::receive(&wait, deadline) {
        Some(addresses) => addresses,
        None => Err(io::Error::new(ErrorKind::TimedOut, "the name could not be looked up in time")),
    }
}

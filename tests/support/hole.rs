//! Addresses where no server answers.

use rustix::net::{AddressFamily, SocketAddrV4, SocketType, bind, getsockname, listen, socket};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Accepts connections and sends nothing.
pub struct Silent(TcpListener);

impl Silent {
    pub fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    pub fn port(&self) -> u16 {
        self.0.local_addr().expect("an address").port()
    }
}

/// Accepts no connection: its queue is full, so the kernel drops each attempt, as a firewall would.
pub struct Black {
    port: u16,
    _listener: OwnedFd,
    _queue: Vec<TcpStream>,
}

impl Black {
    pub fn new() -> Self {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listen(&listener, 0).expect("a queue");
        let address = getsockname(&listener).expect("an address");
        let address = SocketAddr::try_from(address).expect("an IP address");
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            queue.push(stream);
        }
        Self { port: address.port(), _listener: listener, _queue: queue }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

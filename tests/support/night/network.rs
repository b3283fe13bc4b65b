//! The network between one host and one server, with weather: packets are delayed, lost or late, in
//! both directions or in one; connections are cut. A packet here is what one read returns, which
//! may be several writes of dlock.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

/// The state of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weather {
    #[default]
    Fair,
    /// Each packet is delayed by this time, in both directions.
    Delay(Duration),
    /// Requests arrive, and replies are lost. Connections that lost a reply stay silent afterwards.
    RepliesLost,
    /// Nothing arrives, and no side is told.
    HalfOpen,
    /// Requests arrive when the weather is fair again, after their sender has hung up.
    Late,
    /// Connections are refused.
    Refused,
}

/// The network between one host and one server. It exists until the process ends.
#[derive(Clone)]
pub struct Link {
    port: u16,
    weather: Arc<Mutex<Weather>>,
    open: Arc<Mutex<Open>>,
}

/// The connections that are open, by number, and the next number.
#[derive(Default)]
struct Open {
    streams: BTreeMap<u64, TcpStream>,
    next: u64,
}

impl Link {
    /// A link to a server of this machine that listens at this address.
    pub fn to(server: u16, at: IpAddr) -> Self {
        let listener = TcpListener::bind((at, 0)).expect("a port for a link");
        let port = listener.local_addr().expect("its address").port();
        let link = Self { port, weather: Arc::default(), open: Arc::default() };
        let own = link.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|client| own.take(client, server)));
        link
    }

    /// A proxy at the address that a server announces, through which all hosts reach it. Clients
    /// from one of these addresses take their own link; for others the weather is fair.
    pub fn door(server: u16, at: IpAddr, ways: Vec<(IpAddr, Self)>) {
        // The server has that port at another address.
        let listener = TcpListener::bind((at, server)).expect("the same port");
        let fair = Self { port: server, weather: Arc::default(), open: Arc::default() };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(peer) = client.peer_addr() else { continue };
                let way = ways.iter().find(|(from, _)| *from == peer.ip());
                way.map_or(&fair, |(_, way)| way).take(client, server);
            }
        });
    }

    fn take(&self, client: TcpStream, server: u16) {
        if self.weather() != Weather::Refused {
            let link = self.clone();
            thread::spawn(move || link.serve(client, server));
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).streams.values() {
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, client: TcpStream, server: u16) -> Option<()> {
        let number = {
            let stream = client.try_clone().ok()?;
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.next += 1;
            let number = open.next;
            open.streams.insert(number, stream);
            number
        };
        let outcome = self.carry(client, server);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).streams.remove(&number);
        outcome
    }

    fn carry(&self, mut client: TcpStream, server: u16) -> Option<()> {
        let mut server = TcpStream::connect(("127.0.0.1", server)).ok()?;
        client.set_nodelay(true).ok()?;
        server.set_nodelay(true).ok()?;
        let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
        // After a loss in one direction the rest is useless: the connection is silent from then on.
        let silent = Arc::new(Mutex::new(false));
        let (is_silent, link) = (Arc::clone(&silent), self.clone());
        let backward = thread::spawn(move || {
            let mut buffer = [0; 16384];
            while let Ok(count @ 1..) = replies.read(&mut buffer) {
                let weather = link.weather();
                if let Weather::Delay(delay) = weather {
                    sleep(delay);
                }
                let mut silent = is_silent.lock().unwrap_or_else(PoisonError::into_inner);
                *silent |= matches!(weather, Weather::RepliesLost | Weather::HalfOpen | Weather::Late);
                if !*silent && to_client.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            if !*is_silent.lock().unwrap_or_else(PoisonError::into_inner) {
                drop(to_client.shutdown(Shutdown::Both));
            }
        });
        let mut buffer = [0; 16384];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            match self.weather() {
                Weather::Delay(delay) => sleep(delay),
                Weather::HalfOpen => {
                    *silent.lock().unwrap_or_else(PoisonError::into_inner) = true;
                    continue;
                }
                Weather::Late => {
                    *silent.lock().unwrap_or_else(PoisonError::into_inner) = true;
                    while self.weather() == Weather::Late {
                        sleep(Duration::from_millis(5));
                    }
                }
                Weather::Fair | Weather::RepliesLost | Weather::Refused => {}
            }
            if server.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // After the last request, because a server that reads the end of a connection may drop
        // pending requests.
        drop(server.shutdown(Shutdown::Write));
        drop(backward.join());
        drop(client.shutdown(Shutdown::Both));
        None
    }
}

//! A door before a server, as a load balancer is: it leads to the server, or it accepts each
//! connection and hangs up at once. It records when somebody knocked.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// The door. It stands until the process ends.
#[derive(Clone)]
pub struct Door {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The port that it leads to, if it is open.
    server: Option<u16>,
    knocks: Vec<Instant>,
    ends: Vec<TcpStream>,
}

impl Door {
    /// A door that leads nowhere yet.
    pub fn shut() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the door");
        let port = listener.local_addr().expect("the door's address").port();
        let door = Self { port, state: Arc::default() };
        let keeper = door.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut state = keeper.state();
                state.knocks.push(Instant::now());
                let Some(server) = state.server.and_then(|port| TcpStream::connect(("127.0.0.1", port)).ok())
                else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    state.ends.push(from.try_clone().expect("a descriptor"));
                    let (from, to) =
                        (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
                    thread::spawn(move || pump(from, to));
                }
            }
        });
        door
    }

    /// A door that leads to a server.
    pub fn before(server: u16) -> Self {
        let door = Self::shut();
        door.open(server);
        door
    }

    /// From now on it leads to this server.
    pub fn open(&self, server: u16) {
        self.state().server = Some(server);
    }

    /// From now on it hangs up on everybody, also on those who are inside.
    pub fn close(&self) {
        let mut state = self.state();
        state.server = None;
        for end in state.ends.drain(..) {
            drop(end.shutdown(Shutdown::Both));
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Number of connections so far.
    pub fn knocks(&self) -> usize {
        self.state().knocks.len()
    }

    /// The most connections in any ten seconds so far.
    pub fn most_in_ten_seconds(&self) -> usize {
        let knocks = self.state().knocks.clone();
        let within = |from: &Instant| {
            knocks
                .iter()
                .filter(|at| *at >= from && at.duration_since(*from) < Duration::from_secs(10))
                .count()
        };
        knocks.iter().map(within).max().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics here")
    }
}

/// Copies bytes until an end is closed.
fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        drop(end.shutdown(Shutdown::Both));
    }
}

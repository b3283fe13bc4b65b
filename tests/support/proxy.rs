//! A proxy between dlock and its server that loses and delays replies, delivers requests late, or
//! swallows everything. What a client writes at once counts as one request; dlock writes each
//! request at once.

use super::wait::wait_until;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request reaches the server; the connection breaks before the reply comes back.
    ReplyLost,
    /// The connection breaks before the request reaches the server.
    RequestLost,
    /// The request reaches the server only at [`Proxy::deliver`], after the client has hung up.
    Late,
    /// The request vanishes, and the connection stays silent.
    Swallowed,
}

/// The proxy. It runs until the process ends.
#[derive(Clone)]
pub struct Proxy {
    port: u16,
    plan: Arc<Mutex<Plan>>,
    /// The connections so far, on their clients' side.
    clients: Arc<Mutex<Vec<TcpStream>>>,
}

#[derive(Debug, Default)]
struct Plan {
    seen: usize,
    fault: Option<(usize, Fault)>,
    /// The state of the late request.
    late: Late,
    /// Whether every request vanishes.
    outage: bool,
    /// How many of the connections are forgotten.
    forgotten: usize,
    /// Delay of each reply.
    delay: Duration,
    /// Delay of each request.
    request_delay: Duration,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Late {
    #[default]
    Held,
    Due,
    Delivered,
}

impl Proxy {
    /// A proxy in front of a server's port.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the proxy");
        let port = listener.local_addr().expect("the proxy's address").port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        let proxy = Self { port, plan, clients: Arc::default() };
        let for_thread = proxy.clone();
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                let copy = client.try_clone().expect("a descriptor");
                for_thread.clients.lock().expect("no test thread panics here").push(copy);
                let proxy = for_thread.clone();
                thread::spawn(move || proxy.serve(number, client, server));
            }
        });
        proxy
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The store URL for dlock.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Restarts the count of requests; `fault` hits the request of this number, the first being 1.
    pub fn plan(&self, number: usize, fault: Fault) {
        *self.plan.lock().expect("no test thread panics here") =
            Plan { fault: Some((number, fault)), ..Plan::default() };
    }

    /// Delays each reply from now on.
    pub fn delay_replies(&self, delay: Duration) {
        self.plan.lock().expect("no test thread panics here").delay = delay;
    }

    /// Delays each request from now on.
    pub fn delay_requests(&self, delay: Duration) {
        self.plan.lock().expect("no test thread panics here").request_delay = delay;
    }

    /// Delays each request and each reply from now on.
    pub fn go_far(&self, delay: Duration) {
        self.delay_requests(delay);
        self.delay_replies(delay);
    }

    /// From now on every request vanishes, and the connection that carried it stays silent for ever.
    pub fn begin_outage(&self) {
        self.plan.lock().expect("no test thread panics here").outage = true;
    }

    /// From now on requests get through again, on new connections.
    pub fn end_outage(&self) {
        self.plan.lock().expect("no test thread panics here").outage = false;
    }

    /// Forgets the open connections, as a balancer does in a failover: nothing passes on them any more,
    /// in either direction, and they stay open.
    #[cfg(feature = "etcd")]
    pub fn forget(&self) {
        let connections = self.connections();
        self.plan.lock().expect("no test thread panics here").forgotten = connections;
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.clients.lock().expect("no test thread panics here").len()
    }

    /// Cuts all open connections. New ones may be made at once.
    pub fn cut(&self) {
        for client in self.clients.lock().expect("no test thread panics here").iter() {
            drop(client.shutdown(Shutdown::Both));
        }
    }

    /// Number of requests since the last [`Proxy::plan`].
    pub fn seen(&self) -> usize {
        self.plan.lock().expect("no test thread panics here").seen
    }

    /// Delivers the late request, and waits until the server has answered it.
    #[track_caller]
    pub fn deliver(&self) {
        self.set_late(Late::Due);
        wait_until("the late request arrives", || self.late() == Late::Delivered);
    }

    fn late(&self) -> Late {
        self.plan.lock().expect("no test thread panics here").late
    }

    fn set_late(&self, late: Late) {
        self.plan.lock().expect("no test thread panics here").late = late;
    }

    fn next_fault(&self, connection: usize) -> Option<Fault> {
        let mut plan = self.plan.lock().expect("no test thread panics here");
        plan.seen += 1;
        if plan.outage || connection < plan.forgotten {
            return Some(Fault::Swallowed);
        }
        plan.fault.filter(|(number, _)| *number == plan.seen).map(|(_, fault)| fault)
    }

    fn serve(&self, number: usize, mut client: TcpStream, server: u16) -> Option<()> {
        let mut server = TcpStream::connect(("127.0.0.1", server)).ok()?;
        client.set_nodelay(true).ok()?;
        server.set_nodelay(true).ok()?;
        let (mut replies, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
        // Replies flow on a thread of their own until this side stops them.
        let silenced = Arc::new(Mutex::new(false));
        let (gate, plan) = (Arc::clone(&silenced), Arc::clone(&self.plan));
        let backward = thread::spawn(move || {
            let mut buffer = [0; 65536];
            let mut dropped = 0;
            while let Ok(count @ 1..) = replies.read(&mut buffer) {
                let Plan { delay, forgotten, .. } = *plan.lock().expect("no test thread panics here");
                thread::sleep(delay);
                if number < forgotten {
                    continue;
                }
                if *gate.lock().expect("no test thread panics here") {
                    dropped += count;
                    break;
                }
                if to_client.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            drop(to_client.shutdown(Shutdown::Both));
            dropped
        });
        let mut buffer = [0; 65536];
        while let Some(request) = whole_request(&mut client) {
            let delay = self.plan.lock().expect("no test thread panics here").request_delay;
            thread::sleep(delay);
            let silence = || *silenced.lock().expect("no test thread panics here") = true;
            match self.next_fault(number) {
                None => server.write_all(&request).ok()?,
                Some(Fault::RequestLost) => break,
                Some(Fault::ReplyLost) => {
                    silence();
                    server.write_all(&request).ok()?;
                    // The other thread drops the reply that it holds, and hangs up.
                    drop(backward.join());
                    drop(server.shutdown(Shutdown::Both));
                    return None;
                }
                Some(Fault::Late) => {
                    silence();
                    while matches!(client.read(&mut buffer), Ok(1..)) {}
                    wait_until("the test has a late request delivered", || self.late() == Late::Due);
                    server.write_all(&request).ok()?;
                    drop(backward.join());
                    self.set_late(Late::Delivered);
                    return None;
                }
                Some(Fault::Swallowed) => {
                    silence();
                    while matches!(client.read(&mut buffer), Ok(1..)) {}
                    break;
                }
            }
        }
        drop(server.shutdown(Shutdown::Both));
        drop(client.shutdown(Shutdown::Both));
        None
    }
}

/// The next request. TCP may split a write of more than half of its window, such as one with a
/// script's text: if part of a Redis command is missing, the rest is awaited.
fn whole_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut buffer, mut request) = ([0; 65536], Vec::new());
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        request.extend_from_slice(&buffer[..count]);
        if !is_cut(&request) {
            return Some(request);
        }
    }
    None
}

/// Whether these are Redis commands, the last of which is incomplete.
fn is_cut(mut rest: &[u8]) -> bool {
    while let Some(b'*') = rest.first() {
        let Some(parts) = number(&mut rest) else {
            return rest[1..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'\r');
        };
        for _ in 0..parts {
            if rest.is_empty() {
                return true;
            }
            let Some(length) = number(&mut rest) else { return !rest.contains(&b'\n') };
            let Some(behind) = rest.get(length + 2..) else { return true };
            rest = behind;
        }
    }
    false
}

/// Removes a line such as `*3` or `$12` and returns its number.
fn number(rest: &mut &[u8]) -> Option<usize> {
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(rest.get(1..end)?).ok()?.parse().ok()?;
    *rest = &rest[end + 2..];
    Some(number)
}

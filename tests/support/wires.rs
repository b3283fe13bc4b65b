//! The network between the servers of a cluster. Each connection passes a door, a proxy before the
//! server that it leads to, so that a server can be cut off from the others as if a cable were
//! pulled: nothing is delivered, and no side is told. Its clients still reach it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Reads which server has connected: returns its name, and the bytes to pass on in place of those
/// read so far.
pub type Greeting = fn(&mut TcpStream) -> Option<(String, Vec<u8>)>;

/// All connections between the servers of a cluster.
#[derive(Default, Clone)]
pub struct Wires(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: Vec<Wire>,
    /// The server that is cut off from the others, and its name.
    cut_off: Option<(usize, String)>,
}

struct Wire {
    /// The name of the server that made the connection, and the number of the other.
    from: String,
    to: usize,
    ends: [TcpStream; 2],
    is_cut: Arc<AtomicBool>,
}

impl State {
    fn is_cut(&self, from: &str, to: usize) -> bool {
        self.cut_off.as_ref().is_some_and(|(number, name)| *number == to || name == from)
    }
}

impl Wires {
    /// Opens a door before a port where the server `to` listens to the others.
    pub fn door(&self, to: usize, port: u16, greet: Greeting) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let door = listener.local_addr().expect("an address").port();
        let wires = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let wires = wires.clone();
                thread::spawn(move || wires.pass_through(stream, to, port, greet));
            }
        });
        door
    }

    fn pass_through(&self, mut near: TcpStream, to: usize, port: u16, greet: Greeting) -> Option<()> {
        let (from, head) = greet(&mut near)?;
        let mut far = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let is_cut = Arc::new(AtomicBool::new(false));
        {
            let mut state = self.0.lock().expect("nobody panics here");
            if state.is_cut(&from, to) {
                return None;
            }
            let ends = [near.try_clone().ok()?, far.try_clone().ok()?];
            state.open.push(Wire { from, to, ends, is_cut: Arc::clone(&is_cut) });
        }
        far.write_all(&head).ok()?;
        let (answers, back, cut) = (far.try_clone().ok()?, near.try_clone().ok()?, Arc::clone(&is_cut));
        thread::spawn(move || pump(answers, back, &cut));
        pump(near, far, &is_cut);
        Some(())
    }

    /// Cuts a server off from the others until [`Wires::join`]. Only one at a time.
    pub fn cut_off(&self, number: usize, name: String) {
        let mut state = self.0.lock().expect("nobody panics here");
        state.cut_off = Some((number, name));
        for wire in &state.open {
            if state.is_cut(&wire.from, wire.to) {
                wire.is_cut.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Connects the server again. What was sent meanwhile is lost, so those connections end.
    pub fn join(&self) {
        let mut state = self.0.lock().expect("nobody panics here");
        state.cut_off = None;
        state.open.retain(|wire| {
            let is_cut = wire.is_cut.load(Ordering::SeqCst);
            if is_cut {
                wire.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
            }
            !is_cut
        });
    }
}

/// Copies bytes, except while the wire is cut.
fn pump(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !is_cut.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        drop(end.shutdown(Shutdown::Both));
    }
}

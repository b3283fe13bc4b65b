//! What is between the servers of a cluster? Each connection passes through a door of the server that it leads to, so that a
//! server can be cut off from the others as if a cable were pulled: nothing is delivered, and nobody is told. Its clients reach
//! it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Hears who has connected: what that one is called, and what to pass on in place of what it has said so far.
pub type Greeting = fn(&mut TcpStream) -> Option<(String, Vec<u8>)>;

/// All connections between the servers of a cluster.
#[derive(Default, Clone)]
pub struct Wires(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: Vec<Wire>,
    /// Which server is cut off from the others, and what it is called.
    cut_off: Option<(usize, String)>,
}

struct Wire {
    /// What the server is called that made it, and the number of the other.
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

    /// Cuts a server off from the others, until [`Wires::join`]. Only one at a time.
    pub fn cut_off(&self, number: usize, name: String) {
        let mut state = self.0.lock().expect("nobody panics here");
        state.cut_off = Some((number, name));
        for wire in &state.open {
            if state.is_cut(&wire.from, wire.to) {
                wire.is_cut.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Nobody is cut off any more. What was said meanwhile is lost, so those connections end.
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

/// Passes on what is said, but for what is said while the wire is cut.
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

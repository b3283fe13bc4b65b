//! A proxy between dlock and a real server that replaces answers. It passes on a given number of
//! answers first, so that a lie may come at any point of a conversation that began well. `tongue`
//! makes the lies.

use crate::support::storm::Dice;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// What is sent in place of an answer.
pub enum Lie {
    Say(Vec<u8>),
    /// The bytes, then a hang-up.
    Last(Vec<u8>),
    /// One byte a second.
    Slowly(Vec<u8>),
    /// The first bytes once, then the second ones again and again.
    ForEver(Vec<u8>, Vec<u8>),
}

/// Chooses the lie by the number of the answer, counted from 0 over all connections, and by the
/// answer itself.
type Plan = dyn Fn(&mut Dice, u64, &[u8]) -> Lie + Send + Sync;

/// Starts a proxy before the server at a port, and returns the proxy's port. It runs until the
/// process ends.
pub fn before(
    server: u16,
    seed: u64,
    plan: impl Fn(&mut Dice, u64, &[u8]) -> Lie + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (plan, answers): (Arc<Plan>, _) = (Arc::new(plan), Arc::new(AtomicU64::new(0)));
    thread::spawn(move || {
        let mut dice = Dice(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
        for client in listener.incoming().flatten() {
            let mut own = Dice(dice.roll(u64::MAX) | 1);
            let (plan, answers) = (Arc::clone(&plan), Arc::clone(&answers));
            thread::spawn(move || serve(client, server, &mut own, &*plan, &answers));
        }
    });
    port
}

fn serve(
    mut client: TcpStream,
    server: u16,
    dice: &mut Dice,
    plan: &Plan,
    answers: &AtomicU64,
) -> Option<()> {
    let mut server = TcpStream::connect(("127.0.0.1", server)).ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let (mut asks, mut asked) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        let mut buffer = [0; 16384];
        while let Ok(count @ 1..) = asks.read(&mut buffer) {
            if asked.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        drop(asked.shutdown(Shutdown::Both));
        drop(asks.shutdown(Shutdown::Both));
    });
    let said = relay(&mut client, &mut server, dice, plan, answers);
    drop(client.shutdown(Shutdown::Both));
    drop(server.shutdown(Shutdown::Both));
    said
}

fn relay(
    client: &mut TcpStream,
    server: &mut TcpStream,
    dice: &mut Dice,
    plan: &Plan,
    answers: &AtomicU64,
) -> Option<()> {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        match plan(dice, answers.fetch_add(1, Ordering::Relaxed), &buffer[..count]) {
            Lie::Say(bytes) => client.write_all(&bytes).ok()?,
            Lie::Last(bytes) => {
                client.write_all(&bytes).ok()?;
                return None;
            }
            Lie::Slowly(bytes) => {
                for byte in bytes {
                    client.write_all(&[byte]).ok()?;
                    // Slower than any limit of a reply.
                    sleep(Duration::from_secs(1));
                }
            }
            Lie::ForEver(first, again) => {
                client.write_all(&first).ok()?;
                // Many copies at once; otherwise all the time is spent in the kernel.
                let again = if again.is_empty() { vec![0] } else { again };
                let again = again.repeat((1 << 16) / again.len() + 1);
                loop {
                    client.write_all(&again).ok()?;
                }
            }
        }
    }
    None
}

/// The answer with some bytes changed, removed or doubled.
pub fn garbled(dice: &mut Dice, answer: &[u8]) -> Vec<u8> {
    let mut bytes = answer.to_vec();
    for _ in 0..=dice.roll(5) {
        let at = super::at(dice, bytes.len());
        match dice.roll(5) {
            _ if bytes.is_empty() => {}
            0 | 1 => bytes[at] = u8::try_from(dice.roll(256)).expect("a byte"),
            2 => bytes[at] ^= 1 << dice.roll(8),
            3 => drop(bytes.drain(at..bytes.len().min(at + 4))),
            _ => bytes.extend_from_within(at..bytes.len().min(at + 300)),
        }
    }
    bytes
}

pub fn random(dice: &mut Dice, most: u64) -> Vec<u8> {
    (0..dice.roll(most)).map(|_| u8::try_from(dice.roll(256)).unwrap_or(0)).collect()
}

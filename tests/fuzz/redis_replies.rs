//! A Redis server that answers garbage.

use super::is_decent;
use crate::support::storm::Dice;
use crate::support::world::World;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// Servers that answer anything at all, at any speed.
#[test]
fn any_reply_of_a_server_ends_in_a_line() {
    let world = World::without_redis();
    let seeds = AtomicU64::new(1);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..14 {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed);
                    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                    let port = bad_server(seed);
                    let stores = [
                        format!("redis://127.0.0.1:{port}"),
                        format!("redis+sentinel://127.0.0.1:{port}/m"),
                        format!("redis+cluster://127.0.0.1:{port}"),
                        format!("redis+quorum://127.0.0.1:{port},127.0.0.1:{port}1,127.0.0.1:1")
                            .replace(&format!("{port}1"), "2"),
                    ];
                    let store = dice.of(&stores).clone();
                    let words: &[&str] = match dice.roll(8) {
                        0 | 1 => &["run", "-k", "k", "--max-run", "1s", "-t", "2s", "--", "true"],
                        2 => &["run", "-k", "k", "-w", "300ms", "-t", "2s", "--", "true"],
                        3 => &["status"],
                        4 => &["history", "k"],
                        5 => &["metrics"],
                        6 => &["release", "k", "-y"],
                        _ => &["wait", "k", "-w", "300ms"],
                    };
                    let dlock = world.dlock(words).env("DLOCK_STORE", &store);
                    let dlock = dlock.env("DLOCK_OP_TIMEOUT", "300ms").env("DLOCK_CONNECT_TIMEOUT", "300ms");
                    is_decent(dlock, &format!("{words:?} on {store}, server {seed}"), "--as=400000000");
                }
            });
        }
    });
}

/// A server that answers each packet with random bytes from its seed.
fn bad_server(seed: u64) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        let mut dice = Dice(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
        for stream in listener.incoming().flatten() {
            let mut own = Dice(dice.roll(u64::MAX) | 1);
            thread::spawn(move || answer(stream, &mut own, port));
        }
    });
    port
}

fn answer(mut stream: TcpStream, dice: &mut Dice, port: u16) -> Option<()> {
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer) {
        match dice.roll(12) {
            0 => return None,
            1 => {
                for byte in b"$5\r\nhello\r\n" {
                    stream.write_all(&[*byte]).ok()?;
                    // Slower than any limit of a reply.
                    sleep(Duration::from_secs(1));
                }
            }
            // An answer without an end.
            2 => loop {
                stream.write_all(&[b'x'; 4096]).ok()?;
            },
            3 => loop {
                stream.write_all(b"*1\r\n").ok()?;
            },
            4 => stream.write_all(format!("${}\r\nabc", dice.roll(u64::MAX)).as_bytes()).ok()?,
            5 => stream.write_all(format!("*{}\r\n:1\r\n", dice.roll(u64::MAX)).as_bytes()).ok()?,
            6 => {
                let bytes: Vec<u8> =
                    (0..dice.roll(300)).map(|_| u8::try_from(dice.roll(256)).unwrap_or(0)).collect();
                stream.write_all(&bytes).ok()?;
            }
            7 => stream
                .write_all(format!("-MOVED {} 127.0.0.1:{port}\r\n", dice.roll(20_000)).as_bytes())
                .ok()?,
            _ => {
                let mut reply = String::new();
                for _ in 0..=dice.roll(3) {
                    value(dice, 0, &mut reply);
                }
                stream.write_all(reply.as_bytes()).ok()?;
            }
        }
    }
    None
}

/// A value of the Redis protocol.
fn value(dice: &mut Dice, depth: u64, reply: &mut String) {
    let words = [
        "OK",
        "granted",
        "waiting",
        "busy",
        "renewed",
        "held",
        "free",
        "m",
        "127.0.0.1",
        "6379",
        "[]",
        "-1",
        "",
        "\u{1b}[2J",
    ];
    match dice.roll(if depth > 3 { 7 } else { 11 }) {
        0 => *reply += &format!("+{}\r\n", dice.of(&words)),
        1 => {
            let kinds = [
                "ERR",
                "NOAUTH",
                "WRONGPASS",
                "NOPERM",
                "LOADING",
                "OOM",
                "READONLY",
                "NOSCRIPT",
                "CLUSTERDOWN",
                "TRYAGAIN",
                "",
            ];
            *reply += &format!("-{} {}\r\n", dice.of(&kinds), dice.of(&words));
        }
        2 => *reply += &format!(":{}\r\n", dice.roll(u64::MAX) as i64),
        3 => *reply += "$-1\r\n",
        4 => *reply += "_\r\n",
        5 | 6 => {
            let word = dice.of(&words);
            *reply += &format!("${}\r\n{word}\r\n", word.len());
        }
        _ => {
            let count = dice.roll(7);
            *reply += &format!("{}{count}\r\n", dice.of(&["*", "*", "*", "%", ">", "~"]));
            (0..count).for_each(|_| value(dice, depth + 1, reply));
        }
    }
}

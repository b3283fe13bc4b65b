//! A server that sends what the fuzzer makes up, and dlock's own command line as its client.
//!
//! A target calls [`replies`] with the URL of its kind of store. The first byte of the input
//! chooses the command, the rest is what the server sends on each connection. dlock must end with
//! a status of its own. A panic, a hang and memory without bound are found by libFuzzer.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// What the server sends now, and its port.
struct Server {
    sent: Arc<Mutex<Vec<u8>>>,
    port: u16,
}

static SERVER: OnceLock<Server> = OnceLock::new();

/// The commands that ask a store and start no process.
const COMMANDS: [&[&str]; 9] = [
    &["status", "k"],
    &["status", "--json", "--all"],
    &["history", "--refused", "k"],
    &["acquire", "-k", "k", "-t", "5s"],
    &["pause", "k", "--for", "1m", "--reason", "r"],
    &["forget", "k"],
    &["release", "k", "--force", "-y"],
    &["metrics"],
    &["doctor"],
];

/// Runs one command against a server that sends these bytes. `url` has `PORT` for the port.
pub fn replies(url: &str, data: &[u8]) {
    let Some((first, sent)) = data.split_first() else { return };
    let server = SERVER.get_or_init(serve);
    *server.sent.lock().expect("no thread panics with it") = sent.to_vec();
    let url = url.replace("PORT", &server.port.to_string());
    let command = COMMANDS[usize::from(*first) % COMMANDS.len()];
    let options = ["--store", &url, "--connect-timeout", "0.3s", "--op-timeout", "0.3s"];
    run(&[&["dlock"], command, &options].concat());
}

/// Runs a command line in this process.
pub fn run(words: &[&str]) {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    dlock::commands::execute(&words);
}

fn serve() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&sent);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let bytes = shared.lock().expect("no thread panics with it").clone();
            thread::spawn(move || answer(stream, &bytes));
        }
    });
    Server { sent, port }
}

/// Sends everything at once, and then reads until dlock closes: a server that closes first would
/// take back what dlock has not read yet.
fn answer(mut stream: TcpStream, bytes: &[u8]) {
    let _sent = stream.write_all(bytes);
    let _shut = stream.shutdown(Shutdown::Write);
    let _limit = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let mut rest = [0; 4096];
    while matches!(stream.read(&mut rest), Ok(1..)) {}
}

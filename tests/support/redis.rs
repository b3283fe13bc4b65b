//! A real redis-server for one test: on a free port, in a directory of its own, without persistence
//! unless requested, and killed when the test ends. It can be stopped, killed and started again.

use super::proc;
use super::wait::{wait_for, wait_until};
use redis::{Client, Connection, FromRedisValue, RedisResult};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// The server. Dropping it kills it.
pub struct Redis {
    port: u16,
    home: PathBuf,
    options: Vec<String>,
    environment: Vec<(&'static str, OsString)>,
    child: Child,
}

impl Redis {
    /// Starts a server with further `options`, as on redis-server's command line, that lives in `home`. `{port}` in an
    /// option is the port.
    pub fn start(home: &Path, options: &[&str]) -> Self {
        Self::start_within(home, options, Vec::new())
    }

    /// [`Redis::start`] with an environment.
    pub fn start_within(home: &Path, options: &[&str], environment: Vec<(&'static str, OsString)>) -> Self {
        let options = options.iter().map(ToString::to_string).collect::<Vec<_>>();
        // Another program may have the port: then the next one is tried.
        wait_for("a free port for redis-server", || {
            let port = next_port();
            let child = launch(port, home, &options, &environment)?;
            let (home, options) = (home.to_owned(), options.clone());
            Some(Self { port, home, options, environment: environment.clone(), child })
        })
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.home.join("redis.sock")
    }

    /// The store URL for dlock. A server with TLS has a certificate of the authority whose own
    /// certificate is `ca.pem`.
    pub fn url(&self) -> String {
        match self.options.iter().any(|option| option == "--tls-port") {
            true => format!("rediss://localhost:{}?ca={}/ca.pem", self.port, self.home.display()),
            false => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// A connection, made through the unix socket and as the default user.
    pub fn connect(&self) -> Connection {
        Client::open(format!("redis+unix://{}", self.socket().display()))
            .and_then(|client| client.get_connection())
            .expect("a connection to the test's own server")
    }

    /// Sends one command and reads the answer.
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        ask(&mut self.connect(), words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Whether the server has loaded its data set and answers.
    pub fn is_loaded(&self) -> bool {
        let asked = Client::open(format!("redis+unix://{}", self.socket().display()))
            .and_then(|client| client.get_connection())
            .and_then(|mut connection| ask::<String>(&mut connection, &["PING"]));
        asked.is_ok()
    }

    /// The time at which a key expires, on the server's clock, in milliseconds since 1970.
    pub fn expires(&self, key: &str) -> i64 {
        self.ask(&["PEXPIRETIME", key])
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key])
    }

    /// All keys, of every type.
    pub fn keys(&self) -> Vec<String> {
        self.ask(&["KEYS", "*"])
    }

    /// Waits until the lease under `key` has just been renewed, and returns its new expiry.
    pub fn after_renewal(&self, key: &str) -> i64 {
        let before = self.expires(key);
        wait_for("a renewal", || Some(self.expires(key)).filter(|now| *now > before))
    }

    /// Stops the server as if its machine hung: connections stay open, nothing answers.
    pub fn pause(&self) {
        proc::signal(self.pid(), Signal::STOP);
        wait_until("redis-server stops", || proc::stopped(self.pid()));
    }

    /// Continues a paused server.
    pub fn resume(&self) {
        proc::signal(self.pid(), Signal::CONT);
    }

    /// Kills it: connections are reset, new ones refused.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// [`Redis::restart`] with further options.
    pub fn restart_with(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(ToString::to_string));
        self.restart();
    }

    /// Kills it and starts it again on the same port. Without persistence it has forgotten everything.
    pub fn restart(&mut self) {
        self.kill();
        self.child = wait_for("redis-server's own port", || {
            launch(self.port, &self.home, &self.options, &self.environment)
        });
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends one command on a connection.
pub fn ask<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> RedisResult<T> {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    command.query(connection)
}

/// A port below the range from which the kernel picks ports for outgoing connections. Each suite
/// takes a hundred ports at a time, by an abstract socket name that the kernel gives to one process
/// only.
pub fn next_port() -> u16 {
    // The names stay taken as long as this process lives.
    static TAKEN: Mutex<(Vec<UnixDatagram>, Range<u16>)> = Mutex::new((Vec::new(), 0..0));
    let mut taken = TAKEN.lock().expect("no test thread panics here");
    let (names, ports) = &mut *taken;
    if let Some(port) = ports.next() {
        return port;
    }
    let free = (100..300).find_map(|number| {
        let name = SocketAddr::from_abstract_name(format!("dlock-tests-have-ports-{number}xx")).ok()?;
        Some((UnixDatagram::bind_addr(&name).ok()?, number * 100))
    });
    let (name, first) = free.expect("20,000 ports are enough for all suites of this machine");
    names.push(name);
    *ports = first + 1..first + 100;
    first
}

/// A server that answers on `port`, or None if it could not start there.
fn launch(
    port: u16,
    home: &Path,
    options: &[String],
    environment: &[(&'static str, OsString)],
) -> Option<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(home);
    command.arg("--unixsocket").arg(home.join("redis.sock"));
    // The process title would overwrite the environment, by which processes that outlive the suite
    // are found.
    command.args(["--save", "", "--appendonly", "no", "--set-proc-title", "no"]);
    command.args(["--enable-debug-command", "yes", "--daemonize", "no"]);
    command.args(options.iter().map(|option| option.replace("{port}", &port.to_string())));
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
        .current_dir(home)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command.spawn().expect("redis-server is installed");
    let socket = home.join("redis.sock");
    let answers = wait_for("redis-server answers", || {
        if child.try_wait().expect("the child is ours").is_some() {
            return Some(false);
        }
        // Any answer counts, also LOADING or NOAUTH.
        let mut connection = UnixStream::connect(&socket).ok()?;
        connection.write_all(b"PING\r\n").ok()?;
        (connection.read(&mut [0; 64]).ok()? > 0).then_some(true)
    });
    answers.then_some(child)
}

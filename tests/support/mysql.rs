//! A real MariaDB server. Scenarios share one, each with a database of its own there; a scenario
//! that kills or configures its server has its own. `app` is an ordinary user without a password;
//! `root` administers, by the socket.

use super::masters::steered_clock;
use super::redis::next_port;
use super::wait::{wait_for, wait_until};
use super::world::{Database, suite_home};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;

const USERS: &str = "DROP USER IF EXISTS ''@localhost; CREATE USER IF NOT EXISTS app@'%'; \
     GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER ON *.* TO app@'%'; CREATE DATABASE IF NOT EXISTS ops;";

/// The expression with which dlock asks for the time.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The server. Dropping it kills it.
pub struct Mysql {
    port: u16,
    home: PathBuf,
    options: Vec<String>,
    /// How far the server's clock is ahead, in microseconds.
    offset: i64,
    child: Option<Child>,
}

impl Mysql {
    /// Starts a server in a directory of its own below `home`, with further settings, `name=value`.
    pub fn start(home: &Path, options: &[&str]) -> Self {
        Self::start_in(home.join("mysql"), options)
    }

    /// Starts a replica. The server must have a complete log.
    pub fn replica(&self) -> Self {
        let replica =
            Self::start_in(self.home.with_file_name("replica"), &["server-id=2", "log-bin", "read-only"]);
        let port = self.port;
        replica.ask(
            "mysql",
            &format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'follower', \
                 MASTER_PASSWORD = '', MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos; START SLAVE"
            ),
        );
        replica
    }

    fn start_in(home: PathBuf, options: &[&str]) -> Self {
        fs::create_dir(&home).expect("a directory");
        let copied = Command::new("cp").arg("-a").arg(template()).arg(home.join("data")).status();
        assert!(copied.expect("cp").success());
        let port = wait_for("a free port for mariadbd", || {
            let port = next_port();
            TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
        });
        let options = options.iter().map(ToString::to_string).collect();
        let mut server = Self { port, home, options, offset: 0, child: None };
        server.run();
        server.ask("mysql", USERS);
        server
    }

    /// The server that all scenarios share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Mysql> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (tell, hear) = mpsc::channel();
            // The server is stopped when the thread that started it ends (PR_SET_PDEATHSIG).
            thread::spawn(move || {
                tell.send(Self::start(suite_home(), &["max_connections=600"]))
                    .expect("somebody waits for it");
                loop {
                    thread::park();
                }
            });
            hear.recv().expect("a server")
        })
    }

    /// Starts the server again.
    pub fn run(&mut self) {
        let mut command = as_server("mariadbd");
        if self.offset != 0 {
            command.env("LD_PRELOAD", steered_clock()).env("STEERED_OFFSET", self.offset.to_string());
        }
        command.env("HOME", &self.home);
        command.arg(format!("--datadir={}", self.data().display()));
        // A starting server removes files there that it takes for its own.
        command.arg(format!("--tmpdir={}", self.home.display()));
        command.arg(format!("--socket={}", self.socket().display()));
        command.arg(format!("--pid-file={}", self.home.join("pid").display()));
        command.args(["--bind-address=127.0.0.1", &format!("--port={}", self.port), "--skip-name-resolve"]);
        command.args(self.options.iter().map(|option| format!("--{option}")));
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.home.join("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.child = Some(command.spawn().expect("mariadbd"));
        wait_until("mariadbd is there", || self.try_ask("mysql", "SELECT 1").is_ok());
    }

    /// Adds settings that count from the next start on.
    pub fn add_options(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(ToString::to_string));
    }

    /// Sets the server's clock ahead by `ahead` seconds, from the next start on.
    pub fn set_clock(&mut self, ahead: i64) {
        self.offset = ahead * 1_000_000;
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's socket.
    pub fn socket(&self) -> PathBuf {
        self.home.join("s")
    }

    /// The URL of a database on the server.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://app@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns a port behind which the time is always the one in a file, in microseconds since
    /// 1970: the proxy puts that number in the place of the time expression of each statement. A
    /// server clock that stands still would not do: for each session time advances by a microsecond
    /// with every statement. The proxy runs until the process ends.
    pub fn steered(&self, clock: fs::File) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, socket) = (listener.local_addr().expect("its address").port(), self.socket());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let clock = clock.try_clone().expect("another descriptor");
                let server = UnixStream::connect(&socket).expect("the server");
                // The thread ends when client or server hangs up.
                thread::spawn(move || steer(client, server, &clock).ok());
            }
        });
        port
    }

    /// Runs statements as the administrator and returns the rows, one a line.
    pub fn ask(&self, database: &str, statements: &str) -> String {
        self.try_ask(database, statements).unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// The same for a request that may fail.
    pub fn try_ask(&self, database: &str, statements: &str) -> Result<String, String> {
        let mut client = self.client("root");
        let output = client.args(["-D", database, "-e", statements]).output().expect("mariadb");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// The client, as a user of the socket.
    pub fn client(&self, user: &str) -> Command {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--batch", "--skip-column-names", "--raw", "--unbuffered", "-u", user]);
        client.arg("--socket").arg(self.socket());
        client
    }

    /// Number of dlock's tables in a database.
    pub fn tables(&self, database: &str) -> usize {
        let count = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'dlock%'";
        self.ask(database, count).parse().expect("a number")
    }

    /// Restarts the log of statements.
    pub fn begin_log(&self) {
        let file = self.home.join("asked");
        self.ask("mysql", "SET GLOBAL general_log = 0");
        fs::remove_file(&file).ok();
        let begin = format!("SET GLOBAL general_log_file = '{}'; SET GLOBAL general_log = 1", file.display());
        self.ask("mysql", &begin);
    }

    /// The statements since then.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.home.join("asked")).expect("a log")).into_owned()
    }

    /// Creates a new database.
    pub fn database(&self) -> Database {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("w{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.ask("mysql", &format!("CREATE DATABASE {name}"));
        let remove = |name: &str| drop(Self::shared().try_ask("mysql", &format!("DROP DATABASE {name}")));
        Database { name, remove }
    }

    /// Sends the server a signal: TERM ends it in order, KILL ends it without any clean-up.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).expect("it runs"), signal).expect("it runs");
    }

    /// The process id of the server's first process.
    pub fn pid(&self) -> i32 {
        self.child.as_ref().expect("it runs").id().cast_signed()
    }

    /// Ends the server with a signal, and waits for its end.
    pub fn stop(&mut self, signal: Signal) {
        self.signal(signal);
        self.child.take().expect("it runs").wait().expect("it ends");
    }
}

impl Drop for Mysql {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Copies both directions, and puts the time into the client's statements.
fn steer(mut client: TcpStream, mut server: UnixStream, clock: &fs::File) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut answers, mut to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        io::copy(&mut answers, &mut to_client).ok();
        to_client.shutdown(Shutdown::Both).ok();
    });
    let passed = pass_on(&mut client, &mut server, clock);
    server.shutdown(Shutdown::Both)?;
    passed
}

fn pass_on(client: &mut TcpStream, server: &mut UnixStream, clock: &fs::File) -> io::Result<()> {
    loop {
        // The length of the packet, in three bytes, and its number.
        let (mut head, mut time) = ([0; 4], [0; 8]);
        client.read_exact(&mut head)?;
        let mut packet = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        client.read_exact(&mut packet)?;
        clock.read_exact_at(&mut time, 0)?;
        let now = format!("{:>1$}", i64::from_ne_bytes(time), NOW.len());
        let asked = |at: &usize| packet[*at..].starts_with(NOW.as_bytes());
        let all: Vec<usize> = (0..packet.len()).filter(asked).collect();
        all.into_iter().for_each(|at| packet[at..at + now.len()].copy_from_slice(now.as_bytes()));
        server.write_all(&[&head[..], &packet].concat())?;
    }
}

/// The directory of an unused server, made once.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let data = suite_home().join("mysql-template");
        let made = as_server("mariadb-install-db")
            .arg(format!("--datadir={}", data.display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(made.expect("mariadb-install-db; ./test --stores installs it").success());
        data
    })
}

/// A program of the server's. It is killed when this thread ends.
fn as_server(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program, "--no-defaults"]);
    if geteuid().is_root() {
        command.arg("--user=root");
    }
    command.args(["--innodb-log-file-size=4M", "--innodb-buffer-pool-size=32M"]);
    command.env("LC_ALL", "C").current_dir("/");
    command
}

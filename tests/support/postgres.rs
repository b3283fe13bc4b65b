//! A real PostgreSQL server. Scenarios share one, each with a database of its own there; a scenario
//! that kills or configures its server has its own. Root runs it as `postgres`, because it refuses
//! root.

use super::masters::steered_clock;
use super::redis::next_port;
use super::wait::{wait_for, wait_until};
use super::world::{Database, World, suite_home};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// The server. Dropping it stops it at once.
pub struct Postgres {
    port: u16,
    home: PathBuf,
    options: Vec<String>,
    /// How far the server's clock is ahead, in microseconds.
    offset: i64,
    /// The file that its clock shows, if there is one.
    clock: Option<PathBuf>,
    child: Option<Child>,
}

impl Postgres {
    /// Creates a user `guest` who may create tables and has this password; all users but the tests'
    /// own need one. Returns the store's URL for `guest`, without the password.
    pub fn admit_guest(&self, password: &str) -> String {
        let grant = "GRANT CREATE ON SCHEMA public TO guest";
        self.ask("postgres", &format!("CREATE ROLE guest LOGIN PASSWORD '{password}'; {grant}"));
        let rules = "host all app all trust\nhost all guest all scram-sha-256\n";
        fs::write(self.data().join("pg_hba.conf"), rules).expect("a file");
        self.ask("postgres", "SELECT pg_reload_conf()");
        wait_until("the rules are in force", || {
            self.ask("postgres", "SELECT count(*) FROM pg_hba_file_rules") == "2"
        });
        self.url("postgres").replace("app@", "guest@")
    }

    /// Starts a server in a directory of its own below `home`, with further settings, `name=value`.
    pub fn start(home: &Path, options: &[&str]) -> Self {
        Self::start_steered(home, options, None)
    }

    /// The same with a clock that shows the time in a file; see `steered_clock.c`.
    pub fn start_steered(home: &Path, options: &[&str], clock: Option<PathBuf>) -> Self {
        for open in [suite_home(), home] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o755)).expect("permissions");
        }
        let home = new_home(&home.join("postgres"));
        let copied = Command::new("cp").arg("-a").arg(template()).arg(home.join("data")).status();
        assert!(copied.expect("cp").success());
        let options = options.iter().map(ToString::to_string).collect();
        let mut server = Self { port: free_port(), home, options, offset: 0, clock, child: None };
        server.run();
        server
    }

    /// A standby that streams the server's log.
    pub fn standby(&self) -> Self {
        let home = new_home(&self.home.with_file_name("standby"));
        let copied = as_postgres("pg_basebackup")
            .args(["-h", "127.0.0.1", "-U", "app", "-R", "-c", "fast", "--no-sync", "-p"])
            .arg(self.port.to_string())
            .arg("-D")
            .arg(home.join("data"))
            .status();
        assert!(copied.expect("pg_basebackup").success());
        let options = self.options.clone();
        let mut standby = Self { port: free_port(), home, options, offset: 0, clock: None, child: None };
        standby.run();
        standby
    }

    /// The server that all scenarios share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (tell, hear) = mpsc::channel();
            // The server is stopped when the thread that started it ends (PR_SET_PDEATHSIG).
            thread::spawn(move || {
                let options = ["max_connections=500"];
                tell.send(Self::start(suite_home(), &options)).expect("somebody waits for it");
                loop {
                    thread::park();
                }
            });
            hear.recv().expect("a server")
        })
    }

    /// Starts the server again.
    pub fn run(&mut self) {
        let mut command = as_postgres("postgres");
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", steered_clock()).env("STEERED_CLOCK", clock);
        }
        if self.offset != 0 {
            command.env("LD_PRELOAD", steered_clock()).env("STEERED_OFFSET", self.offset.to_string());
        }
        command.arg("-D").arg(self.home.join("data"));
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={}", self.port)]);
        command.arg("-c").arg(format!("unix_socket_directories={}", self.home.display()));
        for option in &self.options {
            command.args(["-c", option]);
        }
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.home.join("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        wait_until("postgres is there", || {
            // It does not start while processes of a killed server are left.
            if self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None))) {
                self.child = Some(command.spawn().expect("postgres"));
            }
            self.try_ask("postgres", "SELECT 1").is_ok()
        });
        if self.offset != 0 {
            let here = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
            let there = self.ask("postgres", "SELECT floor(extract(epoch FROM clock_timestamp()))");
            let set = here.saturating_add_signed(self.offset / 1_000_000);
            let off = there.parse::<u64>().expect("a time").abs_diff(set);
            assert!(off < 5, "its clock is {off} s from where it was set");
        }
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
        self.home.join(format!(".s.PGSQL.{}", self.port))
    }

    /// The URL of a database on the server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://app@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs a statement as the administrator and returns the rows, one a line.
    pub fn ask(&self, database: &str, statement: &str) -> String {
        self.try_ask(database, statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// The same for a request that may fail.
    pub fn try_ask(&self, database: &str, statement: &str) -> Result<String, String> {
        let output = Command::new(psql())
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-U",
                "app",
                "-XAtqw",
                "-v",
                "ON_ERROR_STOP=1",
            ])
            .args(["-d", database, "-c", statement])
            .env("LC_ALL", "C")
            .output()
            .expect("psql");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Number of dlock's tables in a database.
    pub fn tables(&self, database: &str) -> usize {
        let count = "SELECT count(*) FROM pg_class WHERE relname LIKE 'dlock%' AND relkind = 'r'";
        self.ask(database, count).parse().expect("a number")
    }

    /// Creates a new database.
    pub fn database(&self) -> Database {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("w{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.ask("postgres", &format!("CREATE DATABASE {name}"));
        let remove = |name: &str| {
            Self::shared().try_ask("postgres", &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).ok();
        };
        Database { name, remove }
    }

    /// Sends the server a signal: TERM waits for clients, INT and QUIT do not, KILL ends it without
    /// any clean-up.
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

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
                kill_process(pid, Signal::QUIT).ok();
            }
            drop(child.wait());
        }
    }
}

/// PgBouncer before a server. Dropping it stops it.
pub struct Pooler {
    port: u16,
    database: String,
    child: Child,
}

impl Pooler {
    /// Starts a pooler in the directory of a world, which is opened to all.
    pub fn start(world: &World, server: u16, database: &str, mode: &str) -> Self {
        let port = next_port();
        let pool = if mode == "session" { 60 } else { 2 };
        world.write(
            "pgbouncer.ini",
            &format!(
                "[databases]\n{database} = user=app host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\nmax_client_conn = 200\n\
                 default_pool_size = {pool}\n"
            ),
        );
        let mut pooler = Command::new("setpriv");
        pooler.args([
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
            "--",
            "/usr/sbin/pgbouncer",
            "-q",
        ]);
        let pooler = pooler.arg(world.path("pgbouncer.ini")).stderr(Stdio::null()).spawn();
        let child = pooler.expect("pgbouncer");
        wait_until("pgbouncer is there", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, database: database.to_owned(), child }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("postgres://app@127.0.0.1:{}/{}", self.port, self.database)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A new directory that the server may write to.
fn new_home(home: &Path) -> PathBuf {
    fs::create_dir(home).expect("a directory");
    fs::set_permissions(home, fs::Permissions::from_mode(0o777)).expect("permissions");
    home.to_owned()
}

fn free_port() -> u16 {
    wait_for("a free port for postgres", || {
        let port = next_port();
        std::net::TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}

/// A program of the server's, as a user that it accepts. It is stopped when this thread ends.
fn as_postgres(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if geteuid().is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg("--").arg(bin().join(program)).env("LC_ALL", "C").current_dir("/");
    command
}

/// The client itself: what Debian has in the PATH is a script that takes five times as long to start.
pub fn psql() -> PathBuf {
    bin().join("psql")
}

/// The directory of an unused server, made once.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        fs::set_permissions(suite_home(), fs::Permissions::from_mode(0o755)).expect("permissions");
        let data = new_home(&suite_home().join("postgres-template")).join("data");
        let made = as_postgres("initdb")
            .args(["--username=app", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("initdb").success());
        data
    })
}

/// Debian keeps the server's programs out of the PATH.
fn bin() -> PathBuf {
    let versions =
        fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed; ./test --stores does that");
    versions.flatten().map(|version| version.path().join("bin")).max().expect("a version of postgresql")
}

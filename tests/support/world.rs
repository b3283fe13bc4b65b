//! The world of one test: a directory that is HOME, working directory and the place of all sockets,
//! and a store. When it is dropped, all processes started in it are killed.

mod backend;

pub use backend::Backend;
#[cfg(feature = "sql")]
pub use backend::Database;
pub(crate) use backend::on_every_store;

use super::certificates::Authority;
use super::cluster::Cluster;
use super::dlock::{Dlock, Running};
#[cfg(feature = "etcd")]
use super::etcd::Etcd;
use super::masters::Masters;
#[cfg(feature = "mysql")]
use super::mysql::Mysql;
#[cfg(feature = "postgres")]
use super::postgres::Postgres;
use super::proc;
use super::redis::Redis;
use super::wait::{wait_for, wait_until};
#[cfg(feature = "zookeeper")]
use super::zookeeper::ZooKeeper;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Directory and store of one test.
pub struct World {
    // Before the directory: fields are dropped in order, and the server runs in the directory.
    redis: Option<Redis>,
    /// The servers of a quorum or a cluster.
    servers: Vec<Redis>,
    #[cfg(feature = "sql")]
    database: Option<Database>,
    elsewhere: Option<String>,
    home: TempDir,
}

impl World {
    /// A world with a server of its own, which `start` puts into a directory.
    #[cfg(feature = "sql")]
    pub fn with_server<S>(start: impl FnOnce(&Path) -> S, url: impl FnOnce(&S) -> String) -> (Self, S) {
        let mut world = Self::without_redis();
        let server = start(&world.path(""));
        world.use_store(url(&server));
        (world, server)
    }

    /// A world with the store to test on.
    pub fn new(backend: Backend) -> Self {
        match backend {
            Backend::Redis => Self::with_redis(&[]),
            Backend::File => Self::without_redis(),
            #[cfg(feature = "mysql")]
            Backend::Mysql => Self::with_mysql(),
            #[cfg(feature = "postgres")]
            Backend::Postgres => Self::with_postgres(),
            #[cfg(feature = "etcd")]
            Backend::Etcd => Self::with_etcd(),
            #[cfg(feature = "zookeeper")]
            Backend::ZooKeeper => Self::with_zookeeper(),
        }
    }

    /// A world with three independent masters.
    pub fn on_a_quorum() -> Self {
        let mut masters = Masters::aged(3);
        masters.use_own_store();
        let (mut world, servers) = masters.apart();
        world.servers = servers;
        world
    }

    /// A world with a cluster of two masters.
    pub fn on_a_cluster() -> Self {
        let mut world = Self::without_redis();
        let cluster = Cluster::start(&world, 2);
        world.use_store(cluster.url(&[0]));
        world.servers = cluster.masters;
        world
    }

    /// A world with a redis-server with further options.
    pub fn with_redis(options: &[&str]) -> Self {
        let home = new_home();
        let redis = Redis::start(home.path(), options);
        let mut world = Self::at(home);
        world.redis = Some(redis);
        world
    }

    /// A world with a redis-server with TLS only: its certificate for localhost and 127.0.0.1 is
    /// from `authority`, whose own is `ca.pem`. It asks for no client certificate.
    pub fn with_tls(authority: &Authority, options: &[&str]) -> Self {
        let home = new_home();
        let mut all = certify(authority, home.path());
        all.extend(options);
        let redis = Redis::start(home.path(), &all);
        let mut world = Self::at(home);
        world.redis = Some(redis);
        world
    }

    /// A world whose store is a directory.
    pub fn without_redis() -> Self {
        let home = new_home();
        fs::create_dir(home.path().join("locks")).expect("a directory for the file store");
        Self::at(home)
    }

    /// A world with a database on the shared server.
    #[cfg(feature = "postgres")]
    pub fn with_postgres() -> Self {
        let database = Postgres::shared().database();
        let url = Postgres::shared().url(&database.name);
        Self::with_database(database, url)
    }

    /// The same on MySQL.
    #[cfg(feature = "mysql")]
    pub fn with_mysql() -> Self {
        let database = Mysql::shared().database();
        let url = Mysql::shared().url(&database.name);
        Self::with_database(database, url)
    }

    /// A world with a prefix of its own in the shared etcd.
    #[cfg(feature = "etcd")]
    pub fn with_etcd() -> Self {
        let mut world = Self::at(new_home());
        world.elsewhere = Some(Etcd::shared().new_url());
        world
    }

    /// A world with a node of its own on the shared ZooKeeper server.
    #[cfg(feature = "zookeeper")]
    pub fn with_zookeeper() -> Self {
        let mut world = Self::at(new_home());
        world.elsewhere = Some(ZooKeeper::shared().new_url());
        world
    }

    #[cfg(feature = "sql")]
    fn with_database(database: Database, url: String) -> Self {
        let mut world = Self::at(new_home());
        (world.database, world.elsewhere) = (Some(database), Some(url));
        world
    }

    /// The name of the database.
    #[cfg(feature = "sql")]
    pub fn database(&self) -> &str {
        &self.database.as_ref().expect("this scenario is a database's").name
    }

    fn at(home: TempDir) -> Self {
        Self {
            redis: None,
            servers: Vec::new(),
            #[cfg(feature = "sql")]
            database: None,
            elsewhere: None,
            home,
        }
    }

    /// The redis-server.
    pub fn redis(&self) -> &Redis {
        self.redis.as_ref().expect("this scenario is Redis's")
    }

    /// The redis-server, to kill or restart it.
    pub fn redis_mut(&mut self) -> &mut Redis {
        self.redis.as_mut().expect("this scenario is Redis's")
    }

    /// Names another store than the world's own.
    pub fn use_store(&mut self, url: String) {
        self.elsewhere = Some(url);
    }

    /// The store's URL.
    pub fn url(&self) -> String {
        match (&self.elsewhere, &self.redis) {
            (Some(url), _) => url.clone(),
            (None, Some(redis)) => redis.url(),
            (None, None) => format!("file:{}", self.path("locks").display()),
        }
    }

    /// The store as messages name it, without a user.
    pub fn shown(&self) -> String {
        self.url().replace("//app@", "//")
    }

    /// A path in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes a file into the test's directory.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    /// Writes an executable file. Another process does: a child forked by another test meanwhile
    /// inherits this process's open files until it calls exec, and a file that is open for writing
    /// cannot be run.
    pub fn script(&self, name: &str, text: &str) {
        let draft = format!("{name}.draft");
        self.write(&draft, text);
        let (from, to) = (self.path(&draft), self.path(name));
        let copied =
            Command::new("install").args(["-m", "755"]).args([&from, &to]).status().expect("install");
        assert!(copied.success(), "{name} is made");
        fs::remove_file(from).expect("it was made");
    }

    /// The text of a file; empty as long as there is none.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Opens the directory to every user of this machine.
    pub fn open_to_all(&self) {
        for directory in [suite_home(), self.home.path()] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("permissions");
        }
    }

    /// A command in this directory, without dlock settings of the environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command =
            Command::new(if ignores_signals() { "/usr/bin/env".as_ref() } else { program.as_ref() });
        if ignores_signals() {
            command.arg("--default-signal").arg(program);
        }
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DLOCK_") || name == "NO_COLOR" {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.home.path()).env("XDG_CONFIG_HOME", self.path("config"));
        command.env("LC_ALL", "C").current_dir(self.home.path());
        command
    }

    /// dlock with arguments, on this world's store.
    pub fn dlock<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Dlock<'_> {
        let dlock = Dlock::new(self, args).env("DLOCK_STORE", self.url());
        if self.may_be_slow() { dlock.env("DLOCK_OP_TIMEOUT", "5s") } else { dlock }
    }

    /// Whether the server may take long to answer: it writes to a disk that it shares with other
    /// scenarios, and it may serve hundreds of clients at once.
    fn may_be_slow(&self) -> bool {
        let may = self.url().starts_with("etcd") || self.url().starts_with("zookeeper");
        #[cfg(feature = "sql")]
        let may = may || self.database.is_some();
        may
    }

    /// `dlock run -k KEY options -- sh -c SCRIPT`.
    pub fn run(&self, key: &str, options: &[&str], script: &str) -> Dlock<'_> {
        self.dlock(["run", "-k", key]).args(options).args(["--", "sh", "-c", script])
    }

    /// The lines that jobs appended to `log`. O_APPEND keeps them in the order of writing, so the
    /// order of events is visible without a clock.
    pub fn log(&self) -> Vec<String> {
        self.read("log").lines().map(str::to_owned).collect()
    }

    /// Number of times that jobs have logged this line.
    pub fn lines(&self, line: &str) -> usize {
        self.log().iter().filter(|logged| *logged == line).count()
    }

    /// Waits until jobs have logged a line.
    #[track_caller]
    pub fn wait_for_log(&self, line: &str) {
        self.wait_for_lines(line, 1);
    }

    /// Waits until jobs have logged a line that often.
    #[track_caller]
    pub fn wait_for_lines(&self, line: &str, count: usize) {
        wait_until(&format!("jobs log {line:?} {count} times"), || self.lines(line) >= count);
    }

    /// Waits for a process id that a job writes as one line of `file`.
    #[track_caller]
    pub fn wait_for_pid(&self, file: &str) -> i32 {
        wait_for(&format!("a process id in {file}"), || {
            self.read(file).strip_suffix('\n').and_then(|text| text.trim().parse().ok())
        })
    }

    /// What `dlock status --json KEY` says of a key.
    #[track_caller]
    pub fn status(&self, key: &str) -> Value {
        let look = self.dlock(["status", "--json", key]).env("DLOCK_OP_TIMEOUT", "20s");
        let output = look.any_stdout().run();
        let json: Value = serde_json::from_str(&output.stdout).expect("status --json prints JSON");
        json.get(0).expect("status of one key has one entry").clone()
    }

    /// The state of a key: held, free, cooling, revoked.
    #[track_caller]
    pub fn state(&self, key: &str) -> String {
        self.status(key)["state"].as_str().expect("a state").to_owned()
    }

    /// Number of waiters of a key.
    #[track_caller]
    pub fn waiters(&self, key: &str) -> usize {
        self.status(key)["waiters"].as_array().expect("a list of waiters").len()
    }

    /// The last fence given out for a key.
    #[track_caller]
    pub fn fence(&self, key: &str) -> u64 {
        self.status(key)["fence"].as_u64().expect("a fence")
    }

    /// Waits for this number of waiters.
    #[track_caller]
    pub fn wait_for_waiters(&self, key: &str, count: usize) {
        wait_until(&format!("{count} waiters for {key}"), || self.waiters(key) == count);
    }

    /// Starts a waiter for each job, the next one when the last is in the queue. Nobody else may
    /// wait for the key.
    #[track_caller]
    pub fn queue<J: AsRef<str>>(
        &self,
        key: &str,
        options: &[&str],
        jobs: impl IntoIterator<Item = J>,
    ) -> Vec<Running> {
        let mut queue = Vec::new();
        for job in jobs {
            queue.push(self.run(key, options, job.as_ref()).any_stderr().spawn());
            self.wait_for_waiters(key, queue.len());
        }
        queue
    }

    /// Waits until the key is in that state.
    #[track_caller]
    pub fn wait_for_state(&self, key: &str, state: &str) {
        wait_until(&format!("{key} is {state}"), || self.state(key) == state);
    }
}

/// Writes the TLS files of a server in this directory, and returns the server's options for them.
pub fn certify(authority: &Authority, home: &Path) -> Vec<&'static str> {
    authority.write(&home.join("ca.pem"));
    authority.issue(&["localhost", "127.0.0.1"]).write(home, "server");
    let mut options = vec!["--port", "0", "--tls-port", "{port}", "--tls-auth-clients", "no"];
    options.extend(["--tls-cert-file", "server.pem", "--tls-key-file", "server.key"]);
    options.extend(["--tls-ca-cert-file", "ca.pem"]);
    options
}

impl Drop for World {
    fn drop(&mut self) {
        self.redis = None;
        self.servers.clear();
        proc::kill_inhabitants(self.home.path());
    }
}

/// Whether the suite itself was started with signals ignored, under nohup or in a script's
/// background: that must not reach the programs under test. PIPE does not count, because the
/// standard library resets it; nor do 32 and 33, which no program can change.
fn ignores_signals() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER
        .get_or_init(|| (1..=64).any(|signal| !matches!(signal, 13 | 32 | 33) && proc::suite_ignores(signal)))
}

fn new_home() -> TempDir {
    tempfile::Builder::new().prefix("t").tempdir_in(suite_home()).expect("a temporary directory")
}

/// The directory of this run of the suite. A watchdog notices when the test process has ended, in
/// any way, and kills every process with this directory in its environment.
pub fn suite_home() -> &'static Path {
    static HOME: OnceLock<(PathBuf, Child)> = OnceLock::new();
    let (home, _) = HOME.get_or_init(|| {
        let home = tempfile::Builder::new().prefix("dlock-suite-").tempdir().expect("a directory").keep();
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut watchdog = watchdog.process_group(0).current_dir("/").spawn().expect("sh");
        // The pipe stays open as long as this process lives.
        let pipe = watchdog.stdin.as_mut().expect("a pipe was asked for");
        writeln!(pipe, "{}", home.display()).expect("the watchdog listens");
        (home, watchdog)
    });
    home
}

const WATCHDOG: &str = r#"
read -r home
read -r rest
for process in /proc/[0-9]*; do
    grep -qF "$home" "$process/environ" && kill -9 "${process#/proc/}"
done
grep -F " $home/" /proc/mounts | while read -r _ place _; do umount -l "$place"; done
rm -rf "$home"
"#;

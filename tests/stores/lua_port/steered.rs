//! Servers and databases whose wall clock the test sets.

use super::BEGIN;
use crate::support::masters::steered_clock;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
#[cfg(feature = "mysql")]
use crate::support::target::local;
#[cfg(feature = "sql")]
use crate::support::target::target;
use dlock::clock::Moment;
use dlock::rules::Time;
use dlock::store::Store;
use dlock::store::net::Address;
use dlock::store::quorum::QuorumStore;
use dlock::store::redis::{RedisStore, Target};
#[cfg(feature = "sql")]
use dlock::store::sql::SqlStore;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Redis servers with one clock, or a database with that clock.
pub struct Servers {
    pub processes: Vec<Child>,
    #[cfg(feature = "sql")]
    database: Option<Database>,
    pub dir: tempfile::TempDir,
    pub clock: std::fs::File,
    /// A master did not answer in time: this machine is too busy for a comparison.
    pub left_behind: Arc<AtomicBool>,
}

#[cfg(feature = "sql")]
enum Database {
    /// With the port of a proxy that gives it the test's clock.
    #[cfg(feature = "mysql")]
    Mysql(#[expect(dead_code, reason = "it runs until it is dropped")] Mysql, u16),
    #[cfg(feature = "postgres")]
    Postgres(Postgres),
}

impl Servers {
    pub fn start(count: usize) -> Self {
        let (dir, path, clock) = clock();
        let processes = (0..count).map(|at| {
            Command::new("redis-server")
                .args(["--port", "0", "--save", "", "--appendonly", "no"])
                .args(["--enable-debug-command", "yes", "--dir"])
                .arg(dir.path())
                .arg("--unixsocket")
                .arg(dir.path().join(format!("redis{at}.sock")))
                .env("LD_PRELOAD", steered_clock())
                .env("STEERED_CLOCK", &path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let servers = Self {
            processes: processes.collect(),
            #[cfg(feature = "sql")]
            database: None,
            dir,
            clock,
            left_behind: Arc::default(),
        };
        let deadline = Moment::now().after(Duration::from_secs(20));
        let mut connections = loop {
            match servers.connect() {
                Ok(connections) => break connections,
                Err(error) => assert!(!deadline.passed(), "redis-server does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // Redis 8 removes keys in the very millisecond in which they end; on request they are still
        // there.
        for connection in &mut connections {
            redis::cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).exec(connection).unwrap();
        }
        servers
    }

    #[cfg(feature = "mysql")]
    pub fn mysql() -> Self {
        let (dir, _, clock) = clock();
        let server = Mysql::start(dir.path(), &["innodb-flush-log-at-trx-commit=0"]);
        let port = server.steered(clock.try_clone().unwrap());
        let database = Some(Database::Mysql(server, port));
        Self { processes: Vec::new(), database, dir, clock, left_behind: Arc::default() }
    }

    #[cfg(feature = "postgres")]
    pub fn postgres() -> Self {
        let (dir, path, clock) = clock();
        let server = Postgres::start_steered(dir.path(), &["fsync=off"], Some(path));
        let database = Some(Database::Postgres(server));
        Self { processes: Vec::new(), database, dir, clock, left_behind: Arc::default() }
    }

    pub fn socket(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("redis{at}.sock"))
    }

    pub fn connect(&self) -> redis::RedisResult<Vec<redis::Connection>> {
        let connect =
            |at| redis::Client::open(format!("unix://{}", self.socket(at).display()))?.get_connection();
        (0..self.processes.len()).map(connect).collect()
    }

    pub fn set_clock(&self, now: Time) {
        let us = i64::try_from(now.0).unwrap();
        self.clock.write_at(&us.to_ne_bytes(), 0).unwrap();
    }

    /// One server, with this bound of the queue, or a quorum of several.
    pub fn store(&self, queue_max: usize) -> Box<dyn Store> {
        #[cfg(feature = "sql")]
        if let Some(database) = &self.database {
            return database.store();
        }
        let target = |at| Target {
            address: Address::Unix(self.socket(at)),
            database: 0,
            username: None,
            password: None,
            tls: None,
            shown: format!("redis+unix://test{at}"),
            connect_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(10),
        };
        let left_behind = Arc::clone(&self.left_behind);
        match self.processes.len() {
            1 => Box::new(RedisStore::new(target(0)).with_queue_max(queue_max)),
            count => Box::new(QuorumStore::new(
                (0..count).map(target).collect(),
                "redis+quorum://test".into(),
                Duration::from_secs(60),
                move |what| match what.starts_with("cannot reach") || what.ends_with(" is back") {
                    true => left_behind.store(true, Ordering::Relaxed),
                    false => panic!("{what}"),
                },
            )),
        }
    }
}

#[cfg(feature = "sql")]
impl Database {
    pub fn store(&self) -> Box<dyn Store> {
        let target = |address, database: &str| target(vec![address], Some("app"), database);
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_, port) => Box::new(SqlStore::mysql(target(local(*port), "ops"))),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => {
                Box::new(SqlStore::postgres(target(Address::Unix(server.socket()), "postgres")))
            }
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The directory and path of a clock file that shows `BEGIN`, and the open file.
fn clock() -> (tempfile::TempDir, PathBuf, std::fs::File) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let clock = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    clock.write_at(&i64::try_from(BEGIN.0).unwrap().to_ne_bytes(), 0).unwrap();
    (dir, path, clock)
}

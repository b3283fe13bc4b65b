//! A database server that one scenario has for itself.

use super::Kind;
use crate::support::disk::Disk;
#[cfg(feature = "mysql")]
use crate::support::mysql::Mysql;
#[cfg(feature = "postgres")]
use crate::support::postgres::Postgres;
use crate::support::proc;
use crate::support::wait::wait_until;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A server that one scenario has for itself.
pub enum Server {
    #[cfg(feature = "mysql")]
    Mysql(Mysql),
    #[cfg(feature = "postgres")]
    Postgres(Postgres),
}

/// Does the same with either kind of server.
macro_rules! either {
    ($server:expr, $inner:ident => $do:expr) => {
        match $server {
            #[cfg(feature = "mysql")]
            Server::Mysql($inner) => $do,
            #[cfg(feature = "postgres")]
            Server::Postgres($inner) => $do,
        }
    };
}

impl Server {
    /// Starts a server in a directory of its own below `home`, with further settings, `name=value`.
    pub fn start(kind: Kind, home: &Path, options: &[&str]) -> Self {
        match kind {
            #[cfg(feature = "mysql")]
            Kind::Mysql => Self::Mysql(Mysql::start(home, options)),
            #[cfg(feature = "postgres")]
            Kind::Postgres => Self::Postgres(Postgres::start(home, options)),
        }
    }

    /// Starts a server and a standby that has all of its changes.
    pub fn start_with_standby(kind: Kind, home: &Path) -> (Self, Self) {
        let (primary, standby) = match kind {
            #[cfg(feature = "mysql")]
            Kind::Mysql => {
                let primary = Mysql::start(home, &["server-id=1", "log-bin"]);
                primary.ask("mysql", "CREATE USER follower; GRANT REPLICATION SLAVE ON *.* TO follower");
                let standby = primary.replica();
                (Self::Mysql(primary), Self::Mysql(standby))
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres => {
                let primary = Postgres::start(home, &[]);
                let standby = primary.standby();
                (Self::Postgres(primary), Self::Postgres(standby))
            }
        };
        standby.catch_up_with(&primary);
        (primary, standby)
    }

    /// Waits until this standby has all changes that the primary has made until now.
    pub fn catch_up_with(&self, primary: &Self) {
        let (done, has_it) = match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => ("SELECT @@gtid_binlog_pos", "SELECT MASTER_GTID_WAIT('{}', 0) = 0"),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => (
                "SELECT pg_current_wal_lsn()",
                "SELECT CASE WHEN pg_last_wal_replay_lsn() >= '{}' THEN 1 ELSE 0 END",
            ),
        };
        let has_it = has_it.replace("{}", &primary.ask(done));
        wait_until("the standby has caught up", || self.ask(&has_it) == "1");
    }

    /// From now on a commit waits until the standby has it.
    pub fn replicate_synchronously(&self, standby: &Self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => {
                self.ask(
                    "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'; \
                     SET GLOBAL rpl_semi_sync_master_timeout = 86400000; SET GLOBAL rpl_semi_sync_master_enabled = 1",
                );
                standby.ask(
                    "SET GLOBAL rpl_semi_sync_slave_enabled = 1; STOP SLAVE IO_THREAD; START SLAVE IO_THREAD",
                );
                let on =
                    "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '{}'";
                let on = |name| self.ask(&on.replace("{}", name));
                wait_until("it waits for its standby", || {
                    on("RPL_SEMI_SYNC_MASTER_STATUS") == "ON" && on("RPL_SEMI_SYNC_MASTER_CLIENTS") == "1"
                });
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                let _ = standby;
                self.ask("ALTER SYSTEM SET synchronous_standby_names = '*'");
                self.ask("SELECT pg_reload_conf()");
                let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
                wait_until("it waits for its standby", || self.ask(synchronous) == "1");
            }
        }
    }

    /// Makes a standby the primary, after it has applied all that it has received.
    pub fn promote(&self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => {
                let idle = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Slave has read all relay log%'";
                self.ask("STOP SLAVE IO_THREAD");
                wait_until("it has done what it has heard", || self.ask(idle) == "1");
                self.ask("STOP SLAVE; SET GLOBAL read_only = 0");
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => assert_eq!(self.ask("SELECT pg_promote()"), "t"),
        }
    }

    /// A standby receives no more changes of the primary.
    pub fn stop_following(&self) {
        self.ask(match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => "STOP SLAVE",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "SELECT pg_wal_replay_pause()",
        });
    }

    /// The server refuses writes from now on, and keeps its connections.
    pub fn make_read_only(&self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => drop(self.ask("SET GLOBAL read_only = 1")),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                self.ask("ALTER SYSTEM SET default_transaction_read_only = on");
                self.ask("SELECT pg_reload_conf()");
                wait_until("it is in force", || self.ask("SHOW transaction_read_only") == "on");
            }
        }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        either!(self, server => server.port())
    }

    /// The URL of a database on the server.
    pub fn url(&self) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.url("ops"),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.url("postgres"),
        }
    }

    /// Ends the server in order, without waiting for clients.
    pub fn stop(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.stop(Signal::TERM),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.stop(Signal::INT),
        }
    }

    /// Ends the server as a loss of power would.
    pub fn kill(&mut self) {
        either!(self, server => server.stop(Signal::KILL));
    }

    /// Stops all processes of the server as if its machine hung.
    pub fn pause(&self) {
        // A stopped process starts no other.
        for pid in self.processes() {
            proc::signal(pid, Signal::STOP);
            wait_until("the server stops", || proc::stopped(pid) || !proc::alive(pid));
        }
        for pid in self.processes() {
            proc::signal(pid, Signal::STOP);
        }
    }

    /// Continues a paused server.
    pub fn resume(&self) {
        for pid in self.processes() {
            proc::signal(pid, Signal::CONT);
        }
    }

    /// The server's first process and its children.
    fn processes(&self) -> Vec<i32> {
        let first = either!(self, server => server.pid());
        std::iter::once(first).chain(proc::children(first)).collect()
    }

    /// Starts the server again.
    pub fn run(&mut self) {
        either!(self, server => server.run());
    }

    /// Sets the server's clock ahead by `ahead` seconds, from the next start on.
    pub fn set_clock(&mut self, ahead: i64) {
        either!(self, server => server.set_clock(ahead));
    }

    /// Runs a statement in the server's database as the administrator.
    pub fn ask(&self, statement: &str) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.ask("ops", statement),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.ask("postgres", statement),
        }
    }

    fn number(&self, statement: &str) -> usize {
        self.ask(statement).parse().unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// The statement that counts the exclusive waiters of one lock.
    pub fn count_waiting(&self, name: &str) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => format!(
                "SELECT COUNT(*) FROM dlock_locks WHERE kind = 1 AND name = '{name}' AND queued = 1 AND body LIKE '%\"mode\":\"exclusive\"%'"
            ),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => format!(
                "SELECT count(*) FROM dlock_waiters WHERE name = convert_to('{name}', 'UTF8') AND queued AND convert_from(body, 'UTF8') LIKE '%\"mode\":\"exclusive\"%'"
            ),
        }
    }

    /// Number of rows of locks, without refusal counters, and of ends.
    pub fn rows(&self) -> (usize, usize) {
        let own = "name NOT LIKE 'dlock.refused:%'";
        let [locks, ends] = match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => {
                [0, 2].map(|kind| format!("SELECT COUNT(*) FROM dlock_locks WHERE kind = {kind} AND {own}"))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                ["locks", "ends"].map(|table| format!("SELECT count(*) FROM dlock_{table} WHERE {own}"))
            }
        };
        (self.number(&locks), self.number(&ends))
    }

    /// The lock of each place in a queue, once for each place.
    pub fn places(&self) -> Vec<String> {
        let places = self.ask(match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => "SELECT name FROM dlock_locks WHERE kind = 1 AND queued = 1",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "SELECT convert_from(name, 'UTF8') FROM dlock_waiters WHERE queued",
        });
        places.lines().map(str::to_owned).collect()
    }

    /// Number of dlock's connections.
    pub fn connected(&self) -> usize {
        self.number(match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'",
        })
    }

    /// Ends all connections of dlock.
    pub fn end_connections(&self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => drop(server.ask("ops", "KILL USER app")),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => {
                let end =
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dlock'";
                server.ask("postgres", end);
            }
        }
    }

    /// Restarts the count of statements that change a lock. Needs the settings of
    /// [`Kind::for_many`].
    pub fn begin_count(&self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.begin_log(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                let begin =
                    "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()";
                self.ask(begin);
            }
        }
    }

    /// Number of such statements since then.
    pub fn written(&self) -> u32 {
        let count = match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => {
                let write = "c.n = ";
                server.log().lines().filter(|line| line.contains(write)).count()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                self.number("SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE '%WITH same%'")
            }
        };
        u32::try_from(count).expect("not so many")
    }

    /// Creates a user whose statements are limited to one millisecond.
    pub fn make_hurried(&self, user: &str) {
        self.ask(&match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => format!(
                "CREATE USER {user}@'%'; GRANT ALL ON *.* TO {user}@'%' WITH MAX_STATEMENT_TIME 0.001"
            ),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                format!("CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET statement_timeout = '1ms'")
            }
        });
    }

    /// From now on tables are created on a small disk. Returns None where this user cannot mount
    /// one.
    pub fn move_to_a_small_disk(&self, place: &Path) -> Option<Disk> {
        // The size of the tables when they are created.
        let size = match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => "4m",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "1m",
        };
        self.move_to_a_disk(place, size)
    }

    /// The same with a given size.
    pub fn move_to_a_disk(&self, place: &Path, size: &str) -> Option<Disk> {
        let owner = fs::metadata(self.data()).expect("its data").uid();
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => {
                let _ = place;
                Disk::mount(&server.data().join("ops"), size, owner)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {
                fs::create_dir(place).expect("a directory");
                let disk = Disk::mount(place, size, owner)?;
                self.ask(&format!("CREATE TABLESPACE small LOCATION '{}'", place.display()));
                self.ask("ALTER ROLE app SET default_tablespace = small");
                Some(disk)
            }
        }
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        either!(self, server => server.data())
    }
}

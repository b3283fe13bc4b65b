//! Any kind of database server, for scenarios that are the same on all of them.

mod server;

pub use server::Server;

#[cfg(feature = "mysql")]
use super::mysql::Mysql;
#[cfg(feature = "postgres")]
use super::postgres::Postgres;
use super::world::World;

/// Which database a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "postgres")]
    Postgres,
}

/// Runs each scenario, a `fn(Kind)`, on every kind of database.
macro_rules! on_every_database {
    ($($scenario:ident),+ $(,)?) => {
        #[cfg(feature = "mysql")]
        mod on_mysql {
            $(#[test] fn $scenario() { super::$scenario($crate::support::database::Kind::Mysql); })+
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[test] fn $scenario() { super::$scenario($crate::support::database::Kind::Postgres); })+
        }
    };
}

pub(crate) use on_every_database;

impl Kind {
    /// A world with a database on the server that all share.
    pub fn world(self) -> World {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => World::with_mysql(),
            #[cfg(feature = "postgres")]
            Self::Postgres => World::with_postgres(),
        }
    }

    /// Settings of a server for many clients, with a log of its statements. Nothing is synced to
    /// disk, because its machine does not crash.
    pub fn for_many(self) -> &'static [&'static str] {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => &["max-connections=600", "innodb-flush-log-at-trx-commit=2"],
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                &["max_connections=600", "shared_preload_libraries=pg_stat_statements", "fsync=off"]
            }
        }
    }

    /// The statement that drops the tables.
    pub fn drop_tables(self) -> &'static str {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => "DROP TABLE dlock_locks",
            #[cfg(feature = "postgres")]
            Self::Postgres => "DROP TABLE dlock_locks, dlock_waiters, dlock_ends",
        }
    }

    /// Two statements, each of which damages the waiters' records.
    pub fn damage_waiters(self) -> [&'static str; 2] {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => [
                "UPDATE dlock_locks SET body = NULL WHERE kind = 1",
                "UPDATE dlock_locks SET body = 'somebody' WHERE kind = 1",
            ],
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                ["UPDATE dlock_waiters SET body = ''", "UPDATE dlock_waiters SET body = 'somebody'"]
            }
        }
    }

    /// The port of the shared server.
    pub fn port(self) -> u16 {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => Mysql::shared().port(),
            #[cfg(feature = "postgres")]
            Self::Postgres => Postgres::shared().port(),
        }
    }

    /// Runs a statement in the database of a world as the administrator.
    pub fn ask(self, world: &World, statement: &str) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => Mysql::shared().ask(world.database(), statement),
            #[cfg(feature = "postgres")]
            Self::Postgres => Postgres::shared().ask(world.database(), statement),
        }
    }

    /// An expression for a column of bytes as text.
    pub fn text(self, column: &str) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => column.into(),
            #[cfg(feature = "postgres")]
            Self::Postgres => format!("convert_from({column}, 'UTF8')"),
        }
    }

    /// Number of clients that sleep until a lock in the database of a world is released: after a
    /// subscription or a heartbeat. Where waiters poll, number of those in a queue.
    pub fn sleeping(self, world: &World) -> usize {
        let count = match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => "SELECT COUNT(*) FROM dlock_locks WHERE kind = 1 AND queued = 1".to_owned(),
            #[cfg(feature = "postgres")]
            Self::Postgres => format!(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND state = 'idle' \
                 AND query ~ 'SELECT 1 FROM ONLY dlock_waiters|UPDATE ONLY dlock_waiters SET said'",
                world.database()
            ),
        };
        self.ask(world, &count).parse().expect("a number")
    }

    /// Ends all connections to the database of a world.
    pub fn end_connections(self, world: &World) {
        let database = world.database();
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let all = format!("SELECT id FROM information_schema.processlist WHERE db = '{database}'");
                for id in Mysql::shared().ask("mysql", &all).lines() {
                    // The connection may have ended by now.
                    Mysql::shared().try_ask("mysql", &format!("KILL {id}")).ok();
                }
            }
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                let end = format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
                );
                Postgres::shared().ask("postgres", &end);
            }
        }
    }
}

/// Runs `dlock run -- true`, expects this status, and returns the message.
#[track_caller]
pub fn refused(world: &World, status: i32) -> String {
    world.run("k", &["--op-timeout", "5s"], "echo ran >> log").status(status).any_stderr().run().stderr
}

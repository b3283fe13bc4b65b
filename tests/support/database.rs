//! Any database with a server, for scenarios that are the same on all of them.

#[cfg(feature = "mysql")]
use super::mysql::Mysql;
#[cfg(feature = "postgres")]
use super::postgres::Postgres;
use super::world::World;
use rustix::process::Signal;
use std::path::{Path, PathBuf};

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

    /// Where that server listens.
    pub fn port(self) -> u16 {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => Mysql::shared().port(),
            #[cfg(feature = "postgres")]
            Self::Postgres => Postgres::shared().port(),
        }
    }

    /// What a statement answers in the database of a world, as the administrator.
    pub fn ask(self, world: &World, statement: &str) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => Mysql::shared().ask(world.database(), statement),
            #[cfg(feature = "postgres")]
            Self::Postgres => Postgres::shared().ask(world.database(), statement),
        }
    }

    /// A column of bytes as text.
    pub fn text(self, column: &str) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => column.into(),
            #[cfg(feature = "postgres")]
            Self::Postgres => format!("convert_from({column}, 'UTF8')"),
        }
    }

    /// Ends all connections to the database of a world.
    pub fn end_connections(self, world: &World) {
        let database = world.database();
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let all = format!("SELECT id FROM information_schema.processlist WHERE db = '{database}'");
                for id in Mysql::shared().ask("mysql", &all).lines() {
                    // It may have ended by now.
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

/// A server of one scenario's own.
pub enum Server {
    #[cfg(feature = "mysql")]
    Mysql(Mysql),
    #[cfg(feature = "postgres")]
    Postgres(Postgres),
}

/// Does the same with either.
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
    /// In a directory of its own below `home`.
    pub fn start(kind: Kind, home: &Path) -> Self {
        match kind {
            #[cfg(feature = "mysql")]
            Kind::Mysql => Self::Mysql(Mysql::start(home, &[])),
            #[cfg(feature = "postgres")]
            Kind::Postgres => Self::Postgres(Postgres::start(home, &[])),
        }
    }

    /// The URL of a database there.
    pub fn url(&self) -> String {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.url("ops"),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.url("postgres"),
        }
    }

    /// Ends it in order, without waiting for clients.
    pub fn stop(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::Mysql(server) => server.stop(Signal::TERM),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.stop(Signal::INT),
        }
    }

    /// Ends it as a loss of power would.
    pub fn kill(&mut self) {
        either!(self, server => server.stop(Signal::KILL));
    }

    /// Starts it again.
    pub fn run(&mut self) {
        either!(self, server => server.run());
    }

    /// From the next start on its clock is ahead by so many seconds.
    pub fn set_clock(&mut self, ahead: i64) {
        either!(self, server => server.set_clock(ahead));
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        either!(self, server => server.data())
    }
}

//! The stores that a scenario can run on.

/// Which store a scenario runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Redis,
    File,
    #[cfg(feature = "mysql")]
    Mysql,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "etcd")]
    Etcd,
    #[cfg(feature = "zookeeper")]
    ZooKeeper,
}

/// A database on the shared server, removed when dropped.
#[cfg(feature = "sql")]
pub struct Database {
    pub name: String,
    pub remove: fn(&str),
}

#[cfg(feature = "sql")]
impl Drop for Database {
    fn drop(&mut self) {
        (self.remove)(&self.name);
    }
}

/// Runs each scenario, a `fn(Backend)`, on every store.
macro_rules! on_every_store {
    ($($(#[$attribute:meta])* $scenario:ident),+ $(,)?) => {
        mod on_redis {
            $(#[test] $(#[$attribute])* fn $scenario() { super::$scenario($crate::support::world::Backend::Redis); })+
        }
        mod on_file {
            $(#[test] $(#[$attribute])* fn $scenario() { super::$scenario($crate::support::world::Backend::File); })+
        }
        #[cfg(feature = "mysql")]
        mod on_mysql {
            $(#[test] $(#[$attribute])* fn $scenario() { super::$scenario($crate::support::world::Backend::Mysql); })+
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[test] $(#[$attribute])* fn $scenario() { super::$scenario($crate::support::world::Backend::Postgres); })+
        }
        #[cfg(feature = "etcd")]
        mod on_etcd {
            $(#[test] $(#[$attribute])* fn $scenario() { super::$scenario($crate::support::world::Backend::Etcd); })+
        }
        #[cfg(feature = "zookeeper")]
        mod on_zookeeper {
            $(#[test] $(#[$attribute])* fn $scenario() { super::$scenario($crate::support::world::Backend::ZooKeeper); })+
        }
    };
}
pub(crate) use on_every_store;

//! The arrangements of a store that a night can play on.

use super::super::judge::{SECOND, Time};
#[cfg(feature = "sql")]
use crate::support::database::Kind as Database;

/// How the store is arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    Single,
    File,
    Quorum(usize),
    Sentinel,
    Cluster,
    /// A cluster whose masters have a replica each that can take over.
    Failover,
    #[cfg(feature = "sql")]
    Database(Database),
    /// Three members.
    #[cfg(feature = "etcd")]
    Etcd,
    /// Three servers.
    #[cfg(feature = "zookeeper")]
    ZooKeeper,
}

impl Arrangement {
    /// How long a waiter may be silent before it is passed over.
    pub fn silence(self) -> Time {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd => 15 * SECOND,
            _ => 5 * SECOND,
        }
    }

    /// All arrangements with the built features.
    pub fn all() -> Vec<Self> {
        [
            Self::Single,
            Self::File,
            Self::Quorum(3),
            Self::Sentinel,
            #[cfg(feature = "etcd")]
            Self::Etcd,
            Self::Cluster,
            #[cfg(feature = "postgres")]
            Self::Database(Database::Postgres),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper,
            #[cfg(feature = "mysql")]
            Self::Database(Database::Mysql),
            Self::Quorum(5),
            Self::Failover,
        ]
        .into()
    }

    /// Whether each host has links of its own to the servers, with weather.
    pub(super) fn has_links(self) -> bool {
        !matches!(self, Self::File | Self::Sentinel | Self::Failover)
    }
}

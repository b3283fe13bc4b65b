//! Where a store with several servers is, and how dlock logs in there.

use super::Address;
use super::password::Password;
use super::tls::Tls;
use std::time::Duration;

/// The servers of one store. dlock talks to one of them at a time.
pub struct Target {
    /// In any order; at least one.
    pub servers: Vec<Address>,
    pub user: Option<String>,
    pub password: Option<Password>,
    /// Set if the servers are reached over TLS.
    pub tls: Option<Tls>,
    /// The user allowed to send the password without TLS.
    pub is_clear: bool,
    /// The place of dlock's data: the name of a database, the prefix of all keys (etcd) or the
    /// chroot (ZooKeeper). The last two have no slash at their end; the root is empty.
    pub space: String,
    /// How messages name the store.
    pub shown: String,
    pub connect_timeout: Duration,
    pub op_timeout: Duration,
}

impl Target {
    /// Limit for one request, connecting included.
    pub fn request_time(&self) -> Duration {
        self.connect_timeout + self.op_timeout
    }

    /// How messages name one of the servers.
    pub fn shown_at(&self, server: &Address) -> String {
        if self.has_several() { format!("{} at {server}", self.shown) } else { self.shown.clone() }
    }

    /// Whether there are several servers. Those of a database may be standbys.
    pub const fn has_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// The name of the user; empty if there is none.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or_default()
    }
}

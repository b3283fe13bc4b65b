//! A Redis server: its address, credentials and time limits. Plain values; nothing here connects.

use crate::store::net::Address;
use crate::store::net::password::Password;
use crate::store::net::tls::Tls;
use redis::{Cmd, cmd};
use std::fmt;
use std::time::Duration;

/// A server and how to connect to it.
#[derive(Clone)]
pub struct Target {
    pub address: Address,
    /// The database; 0 needs no SELECT.
    pub database: u32,
    pub username: Option<String>,
    /// For AUTH. Never shown.
    pub password: Option<Password>,
    /// Set if TLS is used; over TCP only.
    pub tls: Option<Tls>,
    /// How messages name it: the URL without its secret.
    pub shown: String,
    pub connect_timeout: Duration,
    /// How long one operation may take.
    pub op_timeout: Duration,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Target {
    /// Limit for one request, connecting included.
    pub fn request_time(&self) -> Duration {
        self.connect_timeout + self.op_timeout
    }

    /// The first commands on a new connection.
    pub fn greeting(&self, password: Option<&str>) -> Vec<Cmd> {
        let mut greeting = Vec::new();
        if let Some(password) = password {
            let mut auth = cmd("AUTH");
            if let Some(username) = &self.username {
                auth.arg(username);
            }
            auth.arg(password);
            greeting.push(auth);
        }
        if self.database != 0 {
            let mut select = cmd("SELECT");
            select.arg(self.database);
            greeting.push(select);
        }
        greeting
    }
}

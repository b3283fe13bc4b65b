//! Connections to a server: in bounded time, over TCP or a Unix socket, with or without TLS, and
//! interruptible by a signal. Every store with a server uses this; the protocol is the store's own.
//!
//! | module | what it does |
//! |---|---|
//! | [`dial`] | connects by a deadline |
//! | [`budget`] | limits how many connections a server sees that it does not serve |
//! | [`streams`] | moves bytes between a socket and a parser by a deadline |
//! | [`tls`] | does that over TLS, and decides which server is trusted |
//! | [`pipe`] | sends and receives on a connection to a database, etcd or ZooKeeper |
//! | [`interrupt`] | interrupts a wait for a server |
//! | [`failure`] | says what an error of a connection means |
//! | [`target`] | says where a store is |
//! | [`password`] | gets the password for a server, and says what its refusal means |

use crate::clock::Moment;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub mod budget;
pub mod dial;
pub mod failure;
pub mod interrupt;
pub mod password;
pub mod pipe;
pub mod streams;
pub mod target;
pub mod tls;

/// Deadline of an attempt at one of `untried` servers that share the time until `deadline`, and at most
/// `each` from now. A single server has all the time, because a new connection to it would not be
/// quicker.
pub fn turn(servers: usize, untried: usize, each: Duration, deadline: Moment) -> Moment {
    let share = deadline.left() / u32::try_from(untried).unwrap_or(u32::MAX).max(1);
    if servers == 1 { deadline } else { Moment::now().after(share.min(each)) }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp {
        /// Name or IP address, without brackets.
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

//! How does one reach a server, whatever it speaks? In bounded time, over TCP or a Unix socket, with TLS or without, and so
//! that a signal can break it off. For every store that is a server; what is said there is the store's own.
//!
//! | where | what it answers |
//! |---|---|
//! | [`dial`] | how a connection is made by a deadline |
//! | [`streams`] | how bytes get from a socket to a parser and back by a deadline |
//! | [`tls`] | how that is done over TLS, and when a server is not trusted |
//! | [`alarm`] | how a wait for a server is broken off |
//! | [`failure`] | what an error of a connection means |
//! | [`password`] | what a server gets as the password, and what it means when it refuses that |

use crate::clock::Moment;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub mod alarm;
pub mod dial;
pub mod failure;
pub mod password;
pub mod streams;
pub mod tls;

/// When an attempt at one of `untried` servers is to end that share the time until `by`: no later than `each` from now. A
/// single server has all of it, for another connection to it would be no quicker.
pub fn turn(servers: usize, untried: usize, each: Duration, by: Moment) -> Moment {
    let share = by.left() / u32::try_from(untried).unwrap_or(u32::MAX).max(1);
    if servers == 1 { by } else { Moment::now().after(share.min(each)) }
}

/// Where a server listens.
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

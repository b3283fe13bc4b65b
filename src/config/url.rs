//! Parses a store URL to plain values. No I/O, no defaults from elsewhere, no variables. An error
//! does not repeat what may contain a secret.
//!
//! Each store has a module with its schemes, their parser and the normalized URL. `Location`,
//! `Location::shape` and `PARSERS` list the stores.

use super::{Credentials, Password};
use crate::sys::named_file::read_secret;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use split::Parts;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

mod database;
mod etcd;
mod file;
mod foreign;
mod parameters;
mod redis;
mod split;
mod zookeeper;

pub use database::{DatabaseAt, Dialect};
pub use parameters::{ClientCertificate, SentinelLogin, Tls};

/// Where a user finds what a store URL may look like, for messages.
pub const ALLOWED: &str = "'dlock --help' lists the URLs";

/// A store's parser. It returns None if the scheme, which is in lower case, is another store's.
type Parser = fn(scheme: &str, rest: &str) -> Result<Option<Url>, String>;

/// The parsers of all stores.
const PARSERS: [Parser; 5] = [redis::parse, database::parse, etcd::parse, zookeeper::parse, file::parse];

/// Escapes all but letters, digits and - _ . ~ (in the name of a database).
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The same, but without escaping / (in a path).
const PATH: &AsciiSet = &PLAIN.remove(b'/');

/// Where the locks are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// A Redis server over TCP.
    Tcp {
        host: Host,
        db: u16,
        /// `Some` if it is reached over TLS.
        tls: Option<Tls>,
    },
    /// A Redis server over a socket on this machine.
    Unix {
        /// The socket; absolute.
        path: PathBuf,
        db: u16,
    },
    /// The Redis server that sentinels name.
    Sentinel {
        /// The sentinels; at least one.
        sentinels: Vec<Host>,
        /// The master's name.
        master: String,
        db: u16,
        /// `Some` if sentinels and servers are reached over TLS.
        tls: Option<Tls>,
    },
    Cluster {
        /// Some of its nodes; at least one.
        nodes: Vec<Host>,
        /// `Some` if they are reached over TLS.
        tls: Option<Tls>,
    },
    /// Several independent masters, of which a majority holds the locks.
    Quorum {
        /// All masters: an odd number, at least three, no two the same.
        nodes: Vec<Host>,
        /// The database on each.
        db: u16,
        /// `Some` if they are reached over TLS.
        tls: Option<Tls>,
    },
    /// A database with tables.
    Database {
        dialect: Dialect,
        at: DatabaseAt,
        /// Its name.
        name: String,
        /// `Some` if it is reached over TLS.
        tls: Option<Tls>,
        /// The user wrote `sslmode=disable`: a password may go there without TLS, too.
        is_clear: bool,
    },
    /// A cluster of etcd.
    Etcd {
        /// Some of its members; at least one.
        members: Vec<Host>,
        /// The prefix of all keys, without a slash at either end.
        prefix: String,
        /// `Some` if they are reached over TLS.
        tls: Option<Tls>,
    },
    /// An ensemble of ZooKeeper.
    ZooKeeper {
        /// Its servers; at least one.
        servers: Vec<Host>,
        /// The root node of all data, without a slash at its end; empty for `/`.
        chroot: String,
        /// `Some` if they are reached over TLS.
        tls: Option<Tls>,
    },
    /// A directory on this machine.
    File {
        /// The directory; absolute.
        dir: PathBuf,
    },
}

/// A machine and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// A name, an IPv4 address, or an IPv6 address without brackets; in lower case.
    pub name: String,
    pub port: u16,
}

impl Host {
    fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.name, self.port)
    }
}

/// What the locations of all stores have.
pub struct Shape<'a> {
    /// The scheme without TLS and topology; also the feature of a store that is one.
    pub scheme: &'static str,
    /// The scheme with TLS. None if another part of the URL enables TLS, or nothing does.
    pub tls_scheme: Option<&'static str>,
    /// The machines in the URL.
    pub hosts: &'a [Host],
    pub tls: Option<&'a Tls>,
    /// What follows the scheme in the normalized URL.
    rest: String,
}

impl Location {
    /// The one place that tells the stores apart; each describes its own locations.
    pub fn shape(&self) -> Shape<'_> {
        match self {
            Self::Tcp { host, db, tls } => redis::shape("", slice::from_ref(host), tls.as_ref(), "", *db),
            Self::Unix { path, db } => redis::socket_shape(path, *db),
            Self::Sentinel { sentinels, master, db, tls } => {
                redis::shape("+sentinel", sentinels, tls.as_ref(), &format!("/{master}"), *db)
            }
            Self::Cluster { nodes, tls } => redis::shape("+cluster", nodes, tls.as_ref(), "", 0),
            Self::Quorum { nodes, db, tls } => redis::shape("+quorum", nodes, tls.as_ref(), "", *db),
            Self::Database { dialect, at, name, tls, .. } => {
                database::shape(*dialect, at, name, tls.as_ref())
            }
            Self::Etcd { members, prefix, tls } => etcd::shape(members, prefix, tls.as_ref()),
            Self::ZooKeeper { servers, chroot, tls } => zookeeper::shape(servers, chroot, tls.as_ref()),
            Self::File { dir } => file::shape(dir),
        }
    }

    /// The TLS settings, if the store is reached over TLS.
    pub fn tls(&self) -> Option<&Tls> {
        self.shape().tls
    }

    /// The hosts in the URL that are reached without TLS: other machines and, if the user wrote so,
    /// this one.
    pub fn in_clear(&self, has_password: bool) -> Vec<&Host> {
        let Shape { hosts, tls, .. } = self.shape();
        let is_meant = has_password && self.is_clear();
        hosts.iter().filter(|host| tls.is_none() && (is_meant || !host.is_loopback())).collect()
    }

    /// Whether the user wrote that a password may go there without TLS.
    pub const fn is_clear(&self) -> bool {
        matches!(self, Self::Database { is_clear: true, .. })
    }
}

/// The normalized URL, never with a secret, for messages and DLOCK_HELD. It identifies the locks,
/// so certificates are left out.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { scheme, tls_scheme, tls, rest, .. } = self.shape();
        let scheme = tls_scheme.filter(|_| tls.is_some()).unwrap_or(scheme);
        write!(f, "{scheme}{rest}")
    }
}

fn joined(hosts: &[Host]) -> String {
    hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",")
}

/// A text that no message shows. Serialized only in DLOCK_HELD, where a command is no secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Reads a secret from a file within this time, without one line end at its end. If there is none,
    /// a relative path is not shown: in a CI system it may be the secret itself.
    pub fn of_file(path: &Path, within: Duration) -> Result<Self, String> {
        let bytes = read_secret(path, within).map_err(|fault| {
            if path.is_relative() && !path.exists() {
                return "there is no such file; it must be a path, which is not shown here in case it is the secret"
                    .to_owned();
            }
            format!("cannot read {}: {fault}", path.display())
        })?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{} is not valid UTF-8", path.display()))?;
        let text =
            text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
        if text.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(Self(text.into())) }
    }

    /// The secret itself; for the store only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// The URL as written, without user and password.
    pub text: String,
    pub place: Location,
    /// The user in it.
    pub username: Option<String>,
    /// The password in it.
    pub password: Option<Secret>,
    /// The login for sentinels, which do not know the servers' users.
    pub sentinel: Option<SentinelLogin>,
}

impl Url {
    /// Whether it may belong to this user: it names no other one.
    pub(super) fn is_of(&self, user: Option<&String>) -> bool {
        self.username.is_none() || self.username.as_ref() == user
    }

    /// The login for sentinels. Checks that its file can be read within this time.
    pub(super) fn sentinel_credentials(&self, within: Duration) -> Result<Option<Credentials>, String> {
        let read = |login: &SentinelLogin| {
            Secret::of_file(&login.password_file, within)?;
            let password = Some(Password::File(login.password_file.clone()));
            Ok(Credentials { username: login.username.clone(), password })
        };
        self.sentinel.as_ref().map(read).transpose()
    }
}

/// Parses a URL. The error says what is allowed, and repeats only parts that cannot be a secret.
pub fn parse(text: &str) -> Result<Url, String> {
    let url = parse_without_text(text)?;
    let bare = match (&url.place, text.find("//"), text.rfind('@')) {
        // In a URL that was parsed, the only @ ends user and password.
        (place, Some(start), Some(end)) if !matches!(place, Location::File { .. }) => {
            format!("{}{}", &text[..start + 2], &text[end + 1..])
        }
        _ => text.into(),
    };
    Ok(Url { text: bare, ..url })
}

fn parse_without_text(text: &str) -> Result<Url, String> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("there is white space in the store URL; {ALLOWED}"));
    }
    let Some((scheme, rest)) = text.split_once(':') else { return Err(bare(text)) };
    let known = scheme.to_ascii_lowercase();
    for parse in PARSERS {
        if let Some(url) = parse(&known, rest)? {
            return Ok(url);
        }
    }
    let is_scheme =
        rest.starts_with("//") && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let jdbc = rest.split(':').next().filter(|_| known == "jdbc").map(str::to_ascii_lowercase);
    if is_scheme || jdbc.is_some() {
        let instead = foreign::instead_of_scheme(&jdbc.unwrap_or(known));
        let instead = instead.map_or(ALLOWED.into(), |instead| format!("write {instead}"));
        return Err(format!("unknown scheme {scheme} in the store URL; {instead}"));
    }
    Err(bare(text))
}

/// The parameters in a URL that change nothing for dlock.
pub fn ignored(text: &str) -> impl Iterator<Item = &str> {
    let query = text.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, text)| foreign::is_harmless(name, text)).map(|(name, _)| name)
}

/// Adds a user to a URL that has none.
pub fn with_user(text: &str, user: &str) -> String {
    text.replacen("//", &format!("//{}@", utf8_percent_encode(user, PLAIN)), 1)
}

/// The error for a text without a scheme.
fn bare(text: &str) -> String {
    // The text before an @ may be a password.
    if text.contains(['@', '?', '#']) {
        format!("the scheme is missing; {ALLOWED}")
    } else if text.starts_with('/') {
        format!(
            "a path alone is not a store URL: write file:{text} for a directory, redis+unix://{text} for a socket"
        )
    } else {
        let (before, after) = match text.rsplit(':').next() {
            Some("5432") => ("postgres://USER@", "/DATABASE"),
            Some("3306") => ("mysql://USER@", "/DATABASE"),
            Some("2379") => ("etcd://", ""),
            Some("2181") => ("zookeeper://", ""),
            _ => ("redis://", ""),
        };
        format!("the scheme is missing, did you mean {before}{text}{after}? {ALLOWED}")
    }
}

fn named_twice(hosts: &[Host]) -> Option<&Host> {
    hosts.iter().enumerate().find(|(at, host)| hosts[..*at].contains(host)).map(|(_, host)| host)
}

fn url(place: Location, parts: Parts<'_>) -> Url {
    Url { text: String::new(), place, username: parts.username, password: parts.password, sentinel: None }
}

#[cfg(test)]
mod tests;

//! The URLs of databases: PostgreSQL, MySQL and MariaDB.

use super::parameters::{self, Wire};
use super::split::{Parts, authority, decode};
use super::{ALLOWED, Host, Location, PLAIN, Shape, Tls, Url, joined, named_twice, url};
use percent_encoding::utf8_percent_encode;
use std::path::PathBuf;

/// The kind of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// MySQL and MariaDB.
    Mysql,
    Postgres,
}

impl Dialect {
    /// Its scheme.
    pub const fn scheme(self) -> &'static str {
        match self {
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    pub const fn port(self) -> u16 {
        match self {
            Self::Mysql => 3306,
            Self::Postgres => 5432,
        }
    }
}

/// Where the servers of a database are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DatabaseAt {
    /// The primary and its standbys in any order; at least one, no two the same.
    Tcp(Vec<Host>),
    /// A socket on this machine; absolute.
    Unix(PathBuf),
}

pub fn parse(scheme: &str, rest: &str) -> Result<Option<Url>, String> {
    let of_socket = scheme.strip_suffix("+unix");
    let dialect = match of_socket.unwrap_or(scheme) {
        "mysql" | "mariadb" => Dialect::Mysql,
        "postgres" | "postgresql" => Dialect::Postgres,
        _ => return Ok(None),
    };
    let parse = if of_socket.is_some() { socket } else { servers };
    parse(authority(rest)?, dialect).map(Some)
}

pub fn shape<'a>(dialect: Dialect, at: &'a DatabaseAt, name: &str, tls: Option<&'a Tls>) -> Shape<'a> {
    let name = utf8_percent_encode(name, PLAIN);
    let (hosts, rest) = match at {
        DatabaseAt::Tcp(hosts) => (&hosts[..], format!("://{}/{name}", joined(hosts))),
        DatabaseAt::Unix(path) => (&[][..], format!("+unix://{}?db={name}", path.display())),
    };
    Shape { scheme: dialect.scheme(), tls_scheme: None, hosts, tls, rest }
}

/// Whether there is no host, or a socket in its place, as libpq and drivers of MySQL write it.
fn may_mean_socket(parts: &Parts<'_>) -> bool {
    let is_path = |text: &str| text.starts_with('/') || text.to_ascii_lowercase().starts_with("%2f");
    let names = ["host", "socket", "unix_socket", "unixSocket"];
    let by_parameter = parts.parameters().any(|(name, text)| names.contains(&name) && is_path(text));
    parts.hosts.is_empty() || is_path(parts.hosts) || by_parameter
}

/// `postgres://` and `mysql://`.
fn servers(parts: Parts<'_>, dialect: Dialect) -> Result<Url, String> {
    if may_mean_socket(&parts) {
        let scheme = dialect.scheme();
        return Err(format!("no host; a socket on this machine is {scheme}+unix://USER@/SOCKET?db=DATABASE"));
    }
    let hosts = parts.hosts(dialect.port())?;
    if let Some(twice) = named_twice(&hosts) {
        return Err(format!("this host{} is named twice; {ALLOWED}", parts.shown(&twice.to_string())));
    }
    let name = database_name(parts.after_slash())?;
    let (modes, others): (Vec<_>, Vec<_>) = parts.parameters().partition(|(name, _)| *name == "sslmode");
    let is_clear = modes[..] == [("sslmode", "disable")];
    let (wire, any_host) = match modes[..] {
        // Traffic that does not leave this machine needs no TLS.
        [] if hosts.iter().all(Host::is_loopback) => (Wire::Plain, false),
        [] | [(_, "verify-full")] => (Wire::Tls, false),
        [(_, "verify-ca")] => (Wire::Tls, true),
        [(_, "disable")] => (Wire::Plain, false),
        _ => return Err(
            "sslmode= is verify-full (the default), verify-ca or disable, once: dlock uses no TLS without a check of the server's certificate (ca=FILE names your own authority)"
                .into(),
        ),
    };
    let mut tls = parameters::tls(others.into_iter(), wire)?;
    if let Some(tls) = &mut tls {
        tls.any_host = any_host;
        if any_host && tls.ca.is_none() {
            return Err("sslmode=verify-ca needs ca=, the file with your own authority: anybody can get a certificate from the public ones"
                .into());
        }
    }
    Ok(url(Location::Database { dialect, at: DatabaseAt::Tcp(hosts), name, tls, is_clear }, parts))
}

/// `postgres+unix://` and `mysql+unix://`.
fn socket(parts: Parts<'_>, dialect: Dialect) -> Result<Url, String> {
    let path = parts.socket(dialect.scheme())?;
    let name = database_name(parts.database_of_socket()?.unwrap_or_default())?;
    let at = DatabaseAt::Unix(path);
    Ok(url(Location::Database { dialect, at, name, tls: None, is_clear: false }, parts))
}

fn database_name(text: &str) -> Result<String, String> {
    match decode(text)? {
        name if name.is_empty() || name.contains('/') => {
            Err(format!("the name of a database is missing; {ALLOWED}"))
        }
        name => Ok(name),
    }
}

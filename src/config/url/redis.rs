//! The URLs of Redis: a server, sentinels, a cluster, and a quorum.

use super::parameters::{self, Wire};
use super::split::{Parts, authority, decode};
use super::{ALLOWED, Host, Location, Shape, Tls, Url, joined, named_twice, url};
use std::path::Path;

/// Default port of a server.
const PORT: u16 = 6379;
/// Default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;

pub fn parse(scheme: &str, rest: &str) -> Result<Option<Url>, String> {
    let wire = if scheme.starts_with("rediss") { Wire::Tls } else { Wire::Plain };
    let parse = match scheme {
        "redis" | "rediss" => server,
        "redis+unix" => unix,
        "redis+sentinel" | "rediss+sentinel" => sentinel,
        "redis+cluster" | "rediss+cluster" => cluster,
        "redis+quorum" | "rediss+quorum" => quorum,
        _ => return Ok(None),
    };
    parse(authority(rest)?, wire).map(Some)
}

pub fn shape<'a>(topology: &str, hosts: &'a [Host], tls: Option<&'a Tls>, path: &str, db: u16) -> Shape<'a> {
    let db = if db == 0 { String::new() } else { format!("/{db}") };
    let rest = format!("{topology}://{}{path}{db}", joined(hosts));
    Shape { scheme: "redis", tls_scheme: Some("rediss"), hosts, tls, rest }
}

pub fn socket_shape(path: &Path, db: u16) -> Shape<'_> {
    let db = if db == 0 { String::new() } else { format!("?db={db}") };
    Shape { rest: format!("+unix://{}{db}", path.display()), ..shape("", &[], None, "", 0) }
}

/// `redis://` and `rediss://`.
fn server(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    if parts.hosts.contains(',') {
        return Err(format!(
            "several hosts need a scheme that says what they are: redis+sentinel://, \
             redis+cluster:// or redis+quorum://; {ALLOWED}"
        ));
    }
    let host = parts.host(parts.hosts, PORT)?;
    let db = parts.database(parts.after_slash())?;
    let tls = parameters::tls(parts.parameters(), wire)?;
    Ok(url(Location::Tcp { host, db, tls }, parts))
}

/// `redis+unix://`.
fn unix(parts: Parts<'_>, _: Wire) -> Result<Url, String> {
    let path = parts.socket("redis")?;
    if path == Path::new("/") {
        return Err(format!("the path of the socket is missing; {ALLOWED}"));
    }
    let db = parts.database(parts.database_of_socket()?.unwrap_or_default())?;
    Ok(url(Location::Unix { path, db }, parts))
}

/// `redis+sentinel://` and `rediss+sentinel://`.
fn sentinel(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let sentinels = parts.hosts(SENTINEL_PORT)?;
    let path = parts.after_slash();
    let (master, db) = path.split_once('/').unwrap_or((path, ""));
    let master = decode(master)?;
    if master.is_empty() {
        return Err(format!("the name of the master is missing after the sentinels; {ALLOWED}"));
    }
    // sentinel.c allows only these in a name.
    if !master.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err(format!("the name of a master has letters, digits, -, . and _ only; {ALLOWED}"));
    }
    let db = parts.database(db)?;
    let (tls, sentinel) = parameters::read(parts.parameters(), wire)?;
    Ok(Url { sentinel, ..url(Location::Sentinel { sentinels, master, db, tls }, parts) })
}

/// `redis+cluster://` and `rediss+cluster://`.
fn cluster(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let nodes = parts.hosts(PORT)?;
    if !matches!(parts.path, "" | "/" | "/0") {
        return Err(format!("a cluster has database 0 only, so write nothing after the hosts; {ALLOWED}"));
    }
    let tls = parameters::tls(parts.parameters(), wire)?;
    Ok(url(Location::Cluster { nodes, tls }, parts))
}

/// `redis+quorum://` and `rediss+quorum://`.
fn quorum(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let nodes = parts.hosts(PORT)?;
    let count = nodes.len();
    if count < 3 {
        return Err(format!(
            "a quorum needs at least three masters, so that one may fail; {count} given; write a single server as redis://HOST"
        ));
    }
    if count.is_multiple_of(2) {
        return Err(format!(
            "a quorum needs an odd number of masters: {count} masters can lose no more of them than {} can; leave one out or add one",
            count - 1
        ));
    }
    if let Some(twice) = named_twice(&nodes) {
        let twice = parts.shown(&twice.to_string());
        return Err(format!("a quorum counts every master once; this one{twice} is named twice"));
    }
    let db = parts.database(parts.after_slash())?;
    let tls = parameters::tls(parts.parameters(), wire)?;
    Ok(url(Location::Quorum { nodes, db, tls }, parts))
}

//! Parses a store URL to plain values. No I/O, no defaults from elsewhere, no variables. An error
//! does not repeat what may contain a secret.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use split::{Parts, absolute, authority, decode, number};
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::slice;

mod split;

/// What a store URL may look like, for messages.
pub const ALLOWED: &str = "a store is redis://[USER:PASSWORD@]HOST[:PORT][/DB], redis+unix:///SOCKET[?db=N], \
     redis+sentinel://HOST,…/MASTER[/DB], redis+cluster://HOST,…, redis+quorum://HOST,HOST,HOST \
     (rediss… is TLS: ?ca=FILE&cert=FILE&key=FILE), postgres://USER[:PASSWORD]@HOST[:PORT],…/DATABASE, \
     postgres+unix://USER[:PASSWORD]@/SOCKET?db=DATABASE, mysql and mysql+unix like these, \
     etcd://[USER:PASSWORD@]HOST[:PORT],…[/PREFIX] (etcds is TLS), \
     zookeeper://[USER:PASSWORD@]HOST[:PORT],…[/CHROOT] (zookeepers is TLS), or file:/DIR";

/// Default port of a Redis server.
const PORT: u16 = 6379;
/// Default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;
/// Default port of an etcd member.
const ETCD_PORT: u16 = 2379;
/// Default prefix of dlock's keys in etcd.
const ETCD_PREFIX: &str = "dlock";
/// Default port of a ZooKeeper server.
const ZOOKEEPER_PORT: u16 = 2181;
const ZOOKEEPER_TLS_PORT: u16 = 2281;
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

/// What TLS trusts and presents. Every path is absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate, for a server that requires one.
    pub client: Option<ClientCertificate>,
    /// Whether the server's certificate may name any host.
    pub any_host: bool,
}

/// A client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificate {
    /// The certificate and its chain.
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Location {
    /// The TLS settings, if the store is reached over TLS.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Tcp { tls, .. }
            | Self::Sentinel { tls, .. }
            | Self::Cluster { tls, .. }
            | Self::Quorum { tls, .. }
            | Self::Database { tls, .. }
            | Self::Etcd { tls, .. }
            | Self::ZooKeeper { tls, .. } => tls.as_ref(),
            Self::Unix { .. } | Self::File { .. } => None,
        }
    }
}

impl Location {
    /// Other machines named in the URL that are reached without TLS.
    pub fn in_clear(&self) -> Vec<&Host> {
        let hosts = match self {
            Self::Tcp { host, .. } => slice::from_ref(host),
            Self::Database { at: DatabaseAt::Tcp(hosts), .. }
            | Self::Sentinel { sentinels: hosts, .. }
            | Self::Cluster { nodes: hosts, .. }
            | Self::Quorum { nodes: hosts, .. }
            | Self::Etcd { members: hosts, .. }
            | Self::ZooKeeper { servers: hosts, .. } => hosts,
            Self::Database { at: DatabaseAt::Unix(_), .. } | Self::Unix { .. } | Self::File { .. } => &[],
        };
        hosts.iter().filter(|host| self.tls().is_none() && !host.is_loopback()).collect()
    }
}

/// The normalized URL, never with a secret, for messages and DLOCK_HELD. It identifies the locks,
/// so certificates are left out.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = |tls: &Option<Tls>| if tls.is_some() { "rediss" } else { "redis" };
        let database =
            |f: &mut fmt::Formatter<'_>, db: u16| if db == 0 { Ok(()) } else { write!(f, "/{db}") };
        match self {
            Self::Tcp { host, db, tls } => {
                write!(f, "{}://{host}", scheme(tls))?;
                database(f, *db)
            }
            Self::Unix { path, db } => {
                write!(f, "redis+unix://{}", path.display())?;
                if *db != 0 { write!(f, "?db={db}") } else { Ok(()) }
            }
            Self::Sentinel { sentinels, master, db, tls } => {
                write!(f, "{}+sentinel://{}/{master}", scheme(tls), joined(sentinels))?;
                database(f, *db)
            }
            Self::Cluster { nodes, tls } => write!(f, "{}+cluster://{}", scheme(tls), joined(nodes)),
            Self::Quorum { nodes, db, tls } => {
                write!(f, "{}+quorum://{}", scheme(tls), joined(nodes))?;
                database(f, *db)
            }
            Self::Database { dialect, at, name, .. } => {
                let (scheme, name) = (dialect.scheme(), utf8_percent_encode(name, PLAIN));
                match at {
                    DatabaseAt::Tcp(hosts) => write!(f, "{scheme}://{}/{name}", joined(hosts)),
                    DatabaseAt::Unix(path) => write!(f, "{scheme}+unix://{}?db={name}", path.display()),
                }
            }
            Self::Etcd { members, prefix, tls } => {
                write!(f, "{}://{}", if tls.is_some() { "etcds" } else { "etcd" }, joined(members))?;
                if prefix == ETCD_PREFIX {
                    Ok(())
                } else {
                    write!(f, "/{}", utf8_percent_encode(prefix, PATH))
                }
            }
            Self::ZooKeeper { servers, chroot, tls } => {
                let scheme = if tls.is_some() { "zookeepers" } else { "zookeeper" };
                write!(f, "{scheme}://{}", joined(servers))?;
                let mut steps = chroot.split('/').skip(1);
                steps.try_for_each(|step| write!(f, "/{}", utf8_percent_encode(step, PLAIN)))
            }
            Self::File { dir } => write!(f, "file:{}", dir.display()),
        }
    }
}

fn joined(hosts: &[Host]) -> String {
    hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",")
}

/// A text that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Reads a secret from a file, without one line end at its end.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        const MOST: u64 = 64 * 1024;
        let said =
            |error: std::io::Error| format!("cannot read {}: {}", path.display(), super::file::plain(&error));
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes))
            .map_err(said)?;
        if bytes.len() as u64 > MOST {
            return Err(format!("{} is too long for a password", path.display()));
        }
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

/// The login for sentinels in a URL. A URL cannot contain their password itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelLogin {
    /// The user; `None` for the default user.
    pub username: Option<String>,
    /// The file with the password; absolute.
    pub password_file: PathBuf,
}

impl Url {
    /// Whether it may belong to this user: it names no other one.
    pub(super) fn is_of(&self, user: Option<&String>) -> bool {
        self.username.is_none() || self.username.as_ref() == user
    }

    /// The login for sentinels. Checks that its file can be read.
    pub(super) fn sentinel_credentials(&self) -> Result<Option<super::Credentials>, String> {
        let read = |login: &SentinelLogin| {
            Secret::of_file(&login.password_file)?;
            let password = Some(super::Password::File(login.password_file.clone()));
            Ok(super::Credentials { username: login.username.clone(), password })
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
    match scheme.to_ascii_lowercase().as_str() {
        "redis" => tcp(authority(rest)?, Wire::Plain),
        "rediss" => tcp(authority(rest)?, Wire::Tls),
        "redis+unix" => unix(authority(rest)?),
        "redis+sentinel" => sentinel(authority(rest)?, Wire::Plain),
        "rediss+sentinel" => sentinel(authority(rest)?, Wire::Tls),
        "redis+cluster" => cluster(authority(rest)?, Wire::Plain),
        "rediss+cluster" => cluster(authority(rest)?, Wire::Tls),
        "redis+quorum" => quorum(authority(rest)?, Wire::Plain),
        "rediss+quorum" => quorum(authority(rest)?, Wire::Tls),
        "mysql" | "mariadb" => database(authority(rest)?, Dialect::Mysql),
        "mysql+unix" | "mariadb+unix" => database_socket(authority(rest)?, Dialect::Mysql),
        "postgres" | "postgresql" => database(authority(rest)?, Dialect::Postgres),
        "postgres+unix" | "postgresql+unix" => database_socket(authority(rest)?, Dialect::Postgres),
        "etcd" => etcd(authority(rest)?, Wire::Plain),
        "etcds" => etcd(authority(rest)?, Wire::Tls),
        "zookeeper" | "zk" => zookeeper(authority(rest)?, Wire::Plain),
        "zookeepers" => zookeeper(authority(rest)?, Wire::Tls),
        "file" => file(rest),
        "rediss+unix" => {
            Err(format!("a socket on this machine has no TLS: write redis+unix:///SOCKET; {ALLOWED}"))
        }
        "unix" | "redis-socket" => Err(format!("write a socket as redis+unix:///SOCKET; {ALLOWED}")),
        _ if rest.starts_with("//")
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) =>
        {
            Err(format!("unknown scheme {scheme}://; {ALLOWED}"))
        }
        _ => Err(bare(text)),
    }
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
        format!("the scheme is missing, did you mean redis://{text}? {ALLOWED}")
    }
}

/// Whether a scheme means TLS.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wire {
    Plain,
    Tls,
}

/// `redis://` and `rediss://`.
fn tcp(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    if parts.hosts.contains(',') {
        return Err(format!(
            "several hosts need a scheme that says what they are: redis+sentinel://, \
             redis+cluster:// or redis+quorum://; {ALLOWED}"
        ));
    }
    let host = parts.host(parts.hosts, PORT)?;
    let db = parts.database(parts.path.strip_prefix('/').unwrap_or_default())?;
    let Parameters { tls, .. } = parameters(&parts, wire, Sentinels::No)?;
    Ok(url(Location::Tcp { host, db, tls }, parts))
}

/// `redis+sentinel://` and `rediss+sentinel://`.
fn sentinel(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let sentinels = parts.hosts(SENTINEL_PORT)?;
    let path = parts.path.strip_prefix('/').unwrap_or_default();
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
    let Parameters { tls, sentinel } = parameters(&parts, wire, Sentinels::Yes)?;
    Ok(Url { sentinel, ..url(Location::Sentinel { sentinels, master, db, tls }, parts) })
}

/// `redis+cluster://` and `rediss+cluster://`.
fn cluster(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let nodes = parts.hosts(PORT)?;
    if !matches!(parts.path, "" | "/" | "/0") {
        return Err(format!("a cluster has database 0 only, so write nothing after the hosts; {ALLOWED}"));
    }
    let Parameters { tls, .. } = parameters(&parts, wire, Sentinels::No)?;
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
    let db = parts.database(parts.path.strip_prefix('/').unwrap_or_default())?;
    let Parameters { tls, .. } = parameters(&parts, wire, Sentinels::No)?;
    Ok(url(Location::Quorum { nodes, db, tls }, parts))
}

fn named_twice(hosts: &[Host]) -> Option<&Host> {
    hosts.iter().enumerate().find(|(at, host)| hosts[..*at].contains(host)).map(|(_, host)| host)
}

fn url(place: Location, parts: Parts<'_>) -> Url {
    Url { text: String::new(), place, username: parts.username, password: parts.password, sentinel: None }
}

/// Whether a scheme means sentinels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sentinels {
    Yes,
    No,
}

/// The parameters after the `?` of a URL with hosts.
struct Parameters {
    tls: Option<Tls>,
    sentinel: Option<SentinelLogin>,
}

fn parameters(parts: &Parts<'_>, wire: Wire, sentinels: Sentinels) -> Result<Parameters, String> {
    parameters_of(parts.parameters(), wire, sentinels)
}

fn parameters_of<'p>(
    given: impl Iterator<Item = (&'p str, &'p str)>,
    wire: Wire,
    sentinels: Sentinels,
) -> Result<Parameters, String> {
    let (mut ca, mut cert, mut key, mut username, mut password_file) = (None, None, None, None, None);
    for (name, text) in given {
        let known = match name {
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            "sentinel-username" => &mut username,
            "sentinel-password-file" => &mut password_file,
            "user" | "username" | "pass" | "password" | "sentinel-password" => {
                return Err(format!(
                    "there is no parameter {name}=: write user and password before the host, or better in DLOCK_USERNAME and DLOCK_PASSWORD_FILE (sentinel-password-file= for sentinels)"
                ));
            }
            "db" => {
                return Err(format!(
                    "there is no parameter db=: the database is written after the host; {ALLOWED}"
                ));
            }
            _ => {
                let word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
                let shown = if word { name } else { "of that name" };
                return Err(format!("there is no parameter {shown}; {ALLOWED}"));
            }
        };
        if matches!(name, "ca" | "cert" | "key") && wire == Wire::Plain {
            return Err(format!(
                "{name}= is for TLS: the scheme must begin with rediss, or be etcds; {ALLOWED}"
            ));
        }
        if name.starts_with("sentinel-") && sentinels == Sentinels::No {
            return Err(format!("{name}= is for redis+sentinel:// only; {ALLOWED}"));
        }
        if text.is_empty() {
            return Err(format!("{name}= is empty; give it a value or leave it out"));
        }
        if known.replace(text).is_some() {
            return Err(format!("{name}= is given twice"));
        }
    }
    let file = |name: &str, text: Option<&str>| {
        text.map(|text| match decode(text)? {
            path if path.starts_with('/') => Ok(PathBuf::from(path)),
            _ => Err(format!("{name}= names a file by its absolute path")),
        })
        .transpose()
    };
    let client = match (file("cert", cert)?, file("key", key)?) {
        (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
        (None, None) => None,
        (Some(_), None) => return Err("cert= needs key=, the file with its private key".into()),
        (None, Some(_)) => return Err("key= needs cert=, the file with its certificate".into()),
    };
    let ca = file("ca", ca)?;
    let username = username.map(decode).transpose()?;
    let sentinel = match (username, file("sentinel-password-file", password_file)?) {
        (username, Some(password_file)) => Some(SentinelLogin { username, password_file }),
        (None, None) => None,
        (Some(_), None) => return Err("sentinel-username= needs sentinel-password-file=".into()),
    };
    Ok(Parameters { tls: (wire == Wire::Tls).then_some(Tls { ca, client, any_host: false }), sentinel })
}

/// `redis+unix://`.
fn unix(parts: Parts<'_>) -> Result<Url, String> {
    if !parts.hosts.is_empty() {
        return Err(format!(
            "a socket has no host: write redis+unix:///SOCKET with three slashes; {ALLOWED}"
        ));
    }
    let path = absolute(parts.path)?;
    if path == Path::new("/") {
        return Err(format!("the path of the socket is missing; {ALLOWED}"));
    }
    let mut db = 0;
    for pair in parts.parameters() {
        match pair {
            ("db", text) => {
                db = number(text)
                    .ok_or_else(|| format!("db= is not followed by a number from 0 to 65535; {ALLOWED}"))?;
            }
            ("user" | "username" | "pass" | "password", _) => {
                return Err(
                    "write user and password before the path: redis+unix://USER:PASSWORD@/SOCKET".into()
                );
            }
            _ => return Err(format!("the only parameter here is db=N; {ALLOWED}")),
        }
    }
    Ok(url(Location::Unix { path, db }, parts))
}

/// `postgres://` and `mysql://`.
fn database(parts: Parts<'_>, dialect: Dialect) -> Result<Url, String> {
    let hosts = parts.hosts(dialect.port())?;
    if let Some(twice) = named_twice(&hosts) {
        return Err(format!("this host{} is named twice; {ALLOWED}", parts.shown(&twice.to_string())));
    }
    let name = database_name(parts.path.strip_prefix('/').unwrap_or_default())?;
    let (mut mode, mut others) = (None, Vec::new());
    for (parameter, text) in parts.parameters() {
        match (parameter, text) {
            ("sslmode", _) if mode.is_some() => return Err("sslmode= is given twice".into()),
            ("sslmode", "disable") => mode = Some((Wire::Plain, false)),
            ("sslmode", "verify-ca") => mode = Some((Wire::Tls, true)),
            ("sslmode", "verify-full") => mode = Some((Wire::Tls, false)),
            ("sslmode", _) => {
                return Err(
                    "sslmode= is verify-full, verify-ca or disable: dlock verifies the server, or uses no TLS"
                        .into(),
                );
            }
            other => others.push(other),
        }
    }
    // Traffic that does not leave this machine needs no TLS.
    let is_local = hosts.iter().all(Host::is_loopback);
    let (wire, any_host) = mode.unwrap_or((if is_local { Wire::Plain } else { Wire::Tls }, false));
    if wire == Wire::Plain && others.iter().any(|(name, _)| matches!(*name, "ca" | "cert" | "key")) {
        return Err(format!("ca=, cert= and key= are for TLS: {} needs sslmode=verify-full", joined(&hosts)));
    }
    let Parameters { mut tls, .. } = parameters_of(others.into_iter(), wire, Sentinels::No)?;
    if let Some(tls) = &mut tls {
        tls.any_host = any_host;
        if any_host && tls.ca.is_none() {
            return Err("sslmode=verify-ca needs ca=, the file with your own authority: anybody can get a certificate from the public ones"
                .into());
        }
    }
    Ok(url(Location::Database { dialect, at: DatabaseAt::Tcp(hosts), name, tls }, parts))
}

/// `postgres+unix://` and `mysql+unix://`.
fn database_socket(parts: Parts<'_>, dialect: Dialect) -> Result<Url, String> {
    if !parts.hosts.is_empty() {
        return Err(format!(
            "a socket has no host: write {}+unix:///SOCKET with three slashes; {ALLOWED}",
            dialect.scheme()
        ));
    }
    let path = absolute(parts.path)?;
    let mut name = None;
    for pair in parts.parameters() {
        match pair {
            ("db", text) if name.is_none() => name = Some(database_name(text)?),
            _ => return Err(format!("the only parameter here is db=DATABASE, once; {ALLOWED}")),
        }
    }
    let name = name.ok_or_else(|| format!("the database is missing: ?db=DATABASE; {ALLOWED}"))?;
    Ok(url(Location::Database { dialect, at: DatabaseAt::Unix(path), name, tls: None }, parts))
}

fn database_name(text: &str) -> Result<String, String> {
    match decode(text)? {
        name if name.is_empty() || name.contains('/') => {
            Err(format!("the name of a database is missing; {ALLOWED}"))
        }
        name => Ok(name),
    }
}

/// `etcd://` and `etcds://`.
fn etcd(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let members = parts.hosts(ETCD_PORT)?;
    let prefix = match decode(parts.path.trim_matches('/'))? {
        prefix if prefix.is_empty() => ETCD_PREFIX.into(),
        prefix if prefix.split('/').all(|part| !part.is_empty()) => prefix,
        _ => return Err(format!("there are two slashes together in the prefix of the keys; {ALLOWED}")),
    };
    let Parameters { tls, .. } = parameters(&parts, wire, Sentinels::No)?;
    Ok(url(Location::Etcd { members, prefix, tls }, parts))
}

/// `zookeeper://` and `zookeepers://`.
fn zookeeper(parts: Parts<'_>, wire: Wire) -> Result<Url, String> {
    let port = if wire == Wire::Tls { ZOOKEEPER_TLS_PORT } else { ZOOKEEPER_PORT };
    let servers = parts.hosts(port)?;
    let chroot = decode(parts.path)?;
    let chroot = chroot.strip_suffix('/').unwrap_or(&chroot);
    if chroot.split('/').skip(1).any(|step| matches!(step, "" | "." | "..")) {
        return Err(format!(
            "the text after the servers must be the path of a node, such as /ops/locks; {ALLOWED}"
        ));
    }
    let chroot = chroot.to_owned();
    if wire == Wire::Plain && parts.parameters().any(|(name, _)| matches!(name, "ca" | "cert" | "key")) {
        return Err(format!("ca=, cert= and key= are for TLS: the scheme must be zookeepers; {ALLOWED}"));
    }
    let Parameters { tls, .. } = parameters(&parts, wire, Sentinels::No)?;
    Ok(url(Location::ZooKeeper { servers, chroot, tls }, parts))
}

/// `file:`.
fn file(rest: &str) -> Result<Url, String> {
    if rest.contains(['?', '#']) {
        return Err(format!(
            "a file: store takes no ? or # part (in a path they are %3F and %23); {ALLOWED}"
        ));
    }
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(after) if after.starts_with('/') => after,
        Some(_) => return Err(format!("a file: store has no host: write file:/DIR; {ALLOWED}")),
    };
    let place = Location::File { dir: absolute(path)? };
    Ok(Url { text: String::new(), place, username: None, password: None, sentinel: None })
}

#[cfg(test)]
mod tests;

//! What does a store URL mean? Plain values; no I/O, no default, no variable. What is refused is refused without
//! repeating it where it might hold a secret.

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

/// The port of a Redis server where the URL names none.
const PORT: u16 = 6379;
/// The port of a sentinel where the URL names none.
const SENTINEL_PORT: u16 = 26379;
/// The port of a member of etcd where the URL names none.
const ETCD_PORT: u16 = 2379;
/// What dlock's keys in etcd begin with where the URL does not say it.
const ETCD_PREFIX: &str = "dlock";
/// The port of a ZooKeeper server where the URL names none; and where it is spoken to over TLS.
const ZOOKEEPER_PORT: u16 = 2181;
const ZOOKEEPER_TLS_PORT: u16 = 2281;
/// Characters of the name of a database that stand for themselves in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The same of a path.
const PATH: &AsciiSet = &PLAIN.remove(b'/');

/// Where the locks are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// A Redis server over TCP.
    Tcp {
        host: Host,
        db: u16,
        /// Set where it is spoken to over TLS.
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
        /// Where the sentinels listen; at least one.
        sentinels: Vec<Host>,
        /// The name by which they know the master.
        master: String,
        db: u16,
        /// Set where sentinels and servers are spoken to over TLS.
        tls: Option<Tls>,
    },
    Cluster {
        /// Some of its nodes; at least one.
        nodes: Vec<Host>,
        /// Set where they are spoken to over TLS.
        tls: Option<Tls>,
    },
    /// Several independent masters, of which a majority holds the locks.
    Quorum {
        /// All of them: an odd number, at least three, no two the same.
        nodes: Vec<Host>,
        /// The database on each.
        db: u16,
        /// Set where they are spoken to over TLS.
        tls: Option<Tls>,
    },
    /// A database with tables.
    Database {
        dialect: Dialect,
        at: DatabaseAt,
        /// Its name.
        name: String,
        /// Set where it is spoken to over TLS.
        tls: Option<Tls>,
    },
    /// A cluster of etcd.
    Etcd {
        /// Some of its members; at least one.
        members: Vec<Host>,
        /// What all keys begin with, without a slash at either end.
        prefix: String,
        /// Set where they are spoken to over TLS.
        tls: Option<Tls>,
    },
    /// An ensemble of ZooKeeper.
    ZooKeeper {
        /// Its servers; at least one.
        servers: Vec<Host>,
        /// The node below which everything is, without a slash at its end; empty for the root.
        chroot: String,
        /// Set where they are spoken to over TLS.
        tls: Option<Tls>,
    },
    /// A directory on this machine.
    File {
        /// The directory; absolute.
        dir: PathBuf,
    },
}

/// What a database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// And MariaDB.
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
    /// The primary and its standbys, whichever is which now; at least one, no two the same.
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

/// What TLS trusts and shows. Every path is absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The certificates to trust in place of the system's.
    pub ca: Option<PathBuf>,
    /// What to show a server that asks who is there.
    pub client: Option<ClientCertificate>,
    /// Whether the server's certificate may name any host.
    pub any_host: bool,
}

/// A certificate of this client's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificate {
    /// The certificate, and the chain above it.
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Location {
    /// Whom to trust and what to show, where the place is spoken to over TLS.
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
    /// The other machines that are spoken to without TLS, of those that the URL names.
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

/// The URL of the place, in one spelling and never with a secret: for messages and DLOCK_HELD. It says which locks are
/// meant; by which certificates they are reached is left out, since it does not change that.
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

    /// The one in a file. One line end at its end does not count.
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

/// A URL taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// As it was written, without user and password.
    pub text: String,
    pub place: Location,
    /// The user it names.
    pub username: Option<String>,
    /// The password in it.
    pub password: Option<Secret>,
    /// What to show the sentinels, who do not know the servers' users.
    pub sentinel: Option<SentinelLogin>,
}

/// How to log in to sentinels, as a URL says it. There is no way to write the password itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelLogin {
    /// The user; none for the default user.
    pub username: Option<String>,
    /// The file with the password; absolute.
    pub password_file: PathBuf,
}

impl Url {
    /// Whether it can be meant for this user: it names no other one.
    pub(super) fn is_of(&self, user: Option<&String>) -> bool {
        self.username.is_none() || self.username.as_ref() == user
    }

    /// What to show the sentinels. Its file can be read.
    pub(super) fn sentinel_credentials(&self) -> Result<Option<super::Credentials>, String> {
        let read = |login: &SentinelLogin| {
            Secret::of_file(&login.password_file)?;
            let password = Some(super::Password::File(login.password_file.clone()));
            Ok(super::Credentials { username: login.username.clone(), password })
        };
        self.sentinel.as_ref().map(read).transpose()
    }
}

/// Takes a URL apart. The error says what is allowed, and repeats of the URL only what cannot be a secret.
pub fn parse(text: &str) -> Result<Url, String> {
    let url = take_apart(text)?;
    let bare = match (&url.place, text.find("//"), text.rfind('@')) {
        // In what could be taken apart an @ stands nowhere else.
        (place, Some(start), Some(end)) if !matches!(place, Location::File { .. }) => {
            format!("{}{}", &text[..start + 2], &text[end + 1..])
        }
        _ => text.into(),
    };
    Ok(Url { text: bare, ..url })
}

fn take_apart(text: &str) -> Result<Url, String> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("one store, one word: there is white space in it; {ALLOWED}"));
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
        "rediss+unix" => Err(format!("a socket on this machine is spoken to without TLS; {ALLOWED}")),
        "unix" | "redis-socket" => Err(format!("a socket is redis+unix:///SOCKET; {ALLOWED}")),
        _ if rest.starts_with("//")
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) =>
        {
            Err(format!("unknown scheme {scheme}://; {ALLOWED}"))
        }
        _ => Err(bare(text)),
    }
}

/// A URL with this user in it, where there was none.
pub fn with_user(text: &str, user: &str) -> String {
    text.replacen("//", &format!("//{}@", utf8_percent_encode(user, PLAIN)), 1)
}

/// The error for what has no scheme.
fn bare(text: &str) -> String {
    // What stands before an @ may be a password.
    if text.contains(['@', '?', '#']) {
        format!("the scheme is missing; {ALLOWED}")
    } else if text.starts_with('/') {
        format!("a path alone is no store; a directory is file:{text}, a socket redis+unix://{text}")
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
            "several hosts need a scheme that says how they belong together: redis+sentinel://, \
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
    // What sentinel.c allows in a name.
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
        return Err(format!("a cluster has database 0 only, so nothing follows its hosts; {ALLOWED}"));
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
            "a quorum needs at least three masters, so that one may fail; {count} given, \
             and a single server is redis://HOST"
        ));
    }
    if count.is_multiple_of(2) {
        return Err(format!(
            "a quorum needs an odd number of masters: {count} survive the loss of no more than {} do; \
             leave one out or add one",
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

/// What stands after the `?` of a URL with hosts.
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
                    "after ? there is no {name}=: user and password stand before the host, \
                     better in DLOCK_USERNAME and DLOCK_PASSWORD_FILE (sentinel-password-file= for sentinels)"
                ));
            }
            "db" => return Err(format!("after ? there is no db=: it stands after the host; {ALLOWED}")),
            _ => {
                let word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
                let shown = if word { name } else { "of that name" };
                return Err(format!("after ? there is no parameter {shown}; {ALLOWED}"));
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
                    "user and password stand before the path: redis+unix://USER:PASSWORD@/SOCKET".into()
                );
            }
            _ => return Err(format!("after ? only db=N is known; {ALLOWED}")),
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
                    "sslmode= is verify-full, verify-ca or disable: dlock trusts a server that it has verified, \
                            or speaks to it without TLS"
                        .into(),
                );
            }
            other => others.push(other),
        }
    }
    // What does not leave this machine needs no TLS.
    let is_local = hosts.iter().all(Host::is_loopback);
    let (wire, any_host) = mode.unwrap_or((if is_local { Wire::Plain } else { Wire::Tls }, false));
    if wire == Wire::Plain && others.iter().any(|(name, _)| matches!(*name, "ca" | "cert" | "key")) {
        return Err(format!("ca=, cert= and key= are for TLS: {} needs sslmode=verify-full", joined(&hosts)));
    }
    let Parameters { mut tls, .. } = parameters_of(others.into_iter(), wire, Sentinels::No)?;
    if let Some(tls) = &mut tls {
        tls.any_host = any_host;
        if any_host && tls.ca.is_none() {
            return Err("sslmode=verify-ca needs ca=, the file with your own authority: from the others that this machine \
                        trusts anybody can have a certificate"
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
            _ => return Err(format!("after ? only db=DATABASE is known, once; {ALLOWED}")),
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
        _ => return Err(format!("two slashes follow each other in the prefix of the keys; {ALLOWED}")),
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
        return Err(format!("after the servers comes the path of a node, such as /ops/locks; {ALLOWED}"));
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

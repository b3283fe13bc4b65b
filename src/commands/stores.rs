//! Makes the store that the settings name: for commands that hold locks, for commands that only
//! watch, and for `doctor`, which needs each server by itself. Nothing is connected yet.

use super::context::Context;
use super::password;
use crate::config::url::{self, Host, Location};
#[cfg(feature = "sql")]
use crate::config::url::{DatabaseAt, Dialect};
use crate::error::Error;
use crate::lease::observer::{Budgets, Observer};
use crate::lock::{Mode, Names, Replicas, Token};
use crate::output::time::span as span_of;
use crate::output::{Kind, What};
use crate::store::Store;
#[cfg(feature = "etcd")]
use crate::store::etcd::{self, EtcdStore};
use crate::store::file::FileStore;
use crate::store::net::Address;
use crate::store::net::password::Password;
use crate::store::net::tls::{Files, Tls};
use crate::store::quorum::QuorumStore;
use crate::store::redis::{self, RedisStore, Target};
#[cfg(feature = "sql")]
use crate::store::sql::{self, SqlStore};
#[cfg(feature = "zookeeper")]
use crate::store::zookeeper::{self, ZooKeeperStore};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Placeholder for an address that sentinels or cluster nodes will name.
const PLACEHOLDER: Address = Address::Tcp { host: String::new(), port: 0 };

/// What a command that holds a lock requires of the store.
#[derive(Clone, Copy)]
pub struct HoldOn {
    pub replicas: Replicas,
    /// The longest lease on independent masters.
    pub max_lease: Duration,
}

/// The parts of a store.
pub enum Made {
    Server(Target),
    /// Sentinels, the master's name, and how to connect to the master.
    Sentinels(Vec<Target>, String, Target),
    /// Nodes of a cluster, and how to connect to each.
    Cluster(Vec<Address>, Target),
    Masters(Vec<Target>),
    Directory(PathBuf),
    #[cfg(feature = "sql")]
    Database(SqlStore),
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdStore>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(zookeeper::Target),
}

impl Context {
    /// The store that the settings name.
    pub fn open(&self) -> Result<Box<dyn Store>, Error> {
        self.open_for_hold(HoldOn { replicas: Replicas::None, max_lease: self.settings.max_lease() })
    }

    /// An observer of locks there; `foreign` is how often it reads locks that dlock did not write.
    pub fn observe(&self, foreign: Duration) -> Result<Observer, Error> {
        let question = self.settings.connect_timeout + self.settings.op_timeout;
        let token = Token::random()
            .map_err(|error| Error::Internal(format!("the system gave no random bytes: {error}")))?;
        Ok(Observer::new(self.open()?, token, Budgets { question, foreign }))
    }

    /// The store, opened to hold a lock.
    pub fn open_for_hold(&self, hold: HoldOn) -> Result<Box<dyn Store>, Error> {
        let shown = self.settings.store.to_string();
        let redis = match self.made()? {
            Made::Server(target) => RedisStore::new(target),
            Made::Sentinels(sentinels, service, master) => RedisStore::sentinel(sentinels, service, master),
            Made::Cluster(seeds, node) => RedisStore::cluster(seeds, node),
            #[cfg(feature = "sql")]
            Made::Database(_) if hold.replicas != Replicas::None => {
                return Err(Error::Config(format!(
                    "--replicas cannot be used with {shown}: the settings of the database say which standbys acknowledge; leave it out (docs/stores.md)"
                )));
            }
            #[cfg(feature = "sql")]
            Made::Database(store) => return Ok(Box::new(store)),
            #[cfg(feature = "etcd")]
            Made::Etcd(_) if hold.replicas != Replicas::None => {
                return Err(Error::Config(format!(
                    "--replicas cannot be used with {shown}: a majority of its members acknowledges each write anyway; leave it out"
                )));
            }
            #[cfg(feature = "etcd")]
            Made::Etcd(store) => return Ok(store),
            #[cfg(feature = "zookeeper")]
            Made::ZooKeeper(_) if hold.replicas != Replicas::None => {
                return Err(Error::Config(format!(
                    "--replicas cannot be used with {shown}: a majority of its servers acknowledges each write anyway; leave it out"
                )));
            }
            #[cfg(feature = "zookeeper")]
            Made::ZooKeeper(target) => return Ok(Box::new(ZooKeeperStore::open(target))),
            Made::Directory(_) | Made::Masters(_) if hold.replicas != Replicas::None => {
                return Err(Error::Config(format!("--replicas: {shown} has no replicas; leave it out")));
            }
            Made::Directory(dir) => {
                let store = FileStore::open(&dir, &shown);
                return Ok(Box::new(store.map_err(|error| self.with_origin(error))?));
            }
            Made::Masters(masters) => {
                let printer = self.printer.clone();
                let tell = move |what: &str| printer.say(Kind::Detail, What::Trouble, what);
                return Ok(Box::new(QuorumStore::new(masters, shown, hold.max_lease, tell)));
            }
        };
        Ok(Box::new(redis.acknowledged_by(hold.replicas)))
    }

    /// Checks that the store can hold these locks in this mode.
    pub fn check_supported(&self, names: &Names, mode: Mode) -> Result<(), Error> {
        let refusal = match self.settings.store.place {
            Location::Quorum { .. } => QuorumStore::refusal(names, mode),
            Location::Cluster { .. } => redis::apart(names.as_slice()),
            _ => None,
        };
        refusal.map_or(Ok(()), |why| Err(Error::Usage(why)))
    }

    /// Checks that the store allows a lease or min-hold this long; `flag` is where it was given.
    pub fn check_lease_limit(&self, flag: &str, span: Duration) -> Result<(), Error> {
        let most = self.settings.max_lease();
        match self.settings.store.place {
            Location::Quorum { .. } if span > most => Err(Error::Usage(format!(
                "{flag} {} is longer than --max-lease ({}) of the independent masters; see docs/stores.md",
                span_of(span),
                span_of(most)
            ))),
            _ => Ok(()),
        }
    }

    fn password(&self) -> Option<Password> {
        let login = self.settings.store.credentials.as_ref()?;
        password::of(login, self.settings.connect_timeout)
    }

    /// The parts of the store.
    pub fn made(&self) -> Result<Made, Error> {
        let settings = &self.settings;
        let store = &settings.store;
        let shown = store.to_string();
        let certificates =
            |tls: &Option<url::Tls>| tls.as_ref().map(|tls| self.certificates(tls, &shown)).transpose();
        let password = self.password();
        let server = |address: Address, database: u16, tls: Option<Tls>| Target {
            address,
            database: u32::from(database),
            username: store.credentials.as_ref().and_then(|login| login.username.clone()),
            password: password.clone(),
            tls,
            shown: shown.clone(),
            connect_timeout: settings.connect_timeout,
            op_timeout: settings.op_timeout,
        };
        Ok(match &store.place {
            Location::Tcp { host, db, tls } => Made::Server(server(tcp(host), *db, certificates(tls)?)),
            Location::Unix { path, db } => Made::Server(server(Address::Unix(path.clone()), *db, None)),
            Location::Sentinel { sentinels, master, db, tls } => {
                let place = server(PLACEHOLDER, *db, certificates(tls)?);
                let login = store.sentinel_credentials.as_ref();
                let sentinel_password = login.and_then(|login| password::of(login, settings.connect_timeout));
                let sentinel = |host: &Host| Target {
                    address: tcp(host),
                    database: 0,
                    username: login.and_then(|login| login.username.clone()),
                    password: sentinel_password.clone(),
                    shown: format!("the sentinel {host}"),
                    ..place.clone()
                };
                Made::Sentinels(sentinels.iter().map(sentinel).collect(), master.clone(), place)
            }
            Location::Cluster { nodes, tls } => {
                let tls = tls.as_ref().map(|tls| self.certificates_of(tls, nodes, &shown)).transpose()?;
                Made::Cluster(nodes.iter().map(tcp).collect(), server(PLACEHOLDER, 0, tls))
            }
            Location::Quorum { nodes, db, tls } => {
                let place = server(PLACEHOLDER, *db, certificates(tls)?);
                let master = |host: &Host| Target {
                    address: tcp(host),
                    shown: Location::Tcp { host: host.clone(), db: *db, tls: tls.clone() }.to_string(),
                    ..place.clone()
                };
                Made::Masters(nodes.iter().map(master).collect())
            }
            Location::Database { dialect, .. } => match dialect {
                #[cfg(feature = "mysql")]
                Dialect::Mysql => Made::Database(SqlStore::mysql(self.database()?)),
                #[cfg(feature = "postgres")]
                Dialect::Postgres => Made::Database(SqlStore::postgres(self.database()?)),
                #[cfg(not(all(feature = "mysql", feature = "postgres")))]
                _ => return Err(self.not_built(dialect.scheme())),
            },
            #[cfg(feature = "etcd")]
            Location::Etcd { members, prefix, tls } => Made::Etcd(Box::new(EtcdStore::etcd(etcd::Target {
                members: members.iter().map(tcp).collect(),
                user: store.credentials.as_ref().and_then(|login| login.username.clone()),
                password,
                tls: certificates(tls)?,
                prefix: prefix.clone(),
                shown,
                connect_timeout: settings.connect_timeout,
                op_timeout: settings.op_timeout,
            }))),
            #[cfg(not(feature = "etcd"))]
            Location::Etcd { .. } => return Err(self.not_built("etcd")),
            #[cfg(feature = "zookeeper")]
            Location::ZooKeeper { servers, chroot, tls } => Made::ZooKeeper(zookeeper::Target {
                servers: servers.iter().map(tcp).collect(),
                login: self.zookeeper_login()?,
                chroot: chroot.clone(),
                tls: certificates(tls)?,
                shown: shown.clone(),
                connect_timeout: settings.connect_timeout,
                op_timeout: settings.op_timeout,
            }),
            #[cfg(not(feature = "zookeeper"))]
            Location::ZooKeeper { .. } => return Err(self.not_built("zookeeper")),
            Location::File { dir } => Made::Directory(dir.clone()),
        })
    }

    /// The error for a store that this dlock was built without.
    #[cfg(not(all(feature = "mysql", feature = "postgres", feature = "etcd", feature = "zookeeper")))]
    fn not_built(&self, feature: &str) -> Error {
        Error::Config(format!(
            "{}: this dlock was built without {feature}; install a dlock package, which has it, or build it from a clone with `cargo install --locked --path . --features {feature}`",
            self.settings.store
        ))
    }

    #[cfg(feature = "sql")]
    fn database(&self) -> Result<sql::Target, Error> {
        let settings = &self.settings;
        let (store, shown) = (&settings.store, settings.store.to_string());
        let Location::Database { dialect, at, name, tls } = &store.place else {
            return Err(Error::Internal(format!("{shown} is no database")));
        };
        let user = store.credentials.as_ref().and_then(|login| login.username.clone()).ok_or_else(|| {
            let scheme = dialect.scheme();
            Error::Config(format!("{shown}: no user is set; write {scheme}://USER@… or set DLOCK_USERNAME"))
        })?;
        Ok(sql::Target {
            servers: match at {
                DatabaseAt::Tcp(hosts) => hosts.iter().map(tcp).collect(),
                // As libpq names it: the directory has one socket for each port.
                DatabaseAt::Unix(path) if *dialect == Dialect::Postgres && path.is_dir() => {
                    vec![Address::Unix(path.join(format!(".s.PGSQL.{}", dialect.port())))]
                }
                DatabaseAt::Unix(path) => vec![Address::Unix(path.clone())],
            },
            user,
            password: self.password(),
            database: name.clone(),
            tls: tls.as_ref().map(|tls| self.certificates(tls, &shown)).transpose()?,
            shown,
            connect_timeout: settings.connect_timeout,
            op_timeout: settings.op_timeout,
        })
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper_login(&self) -> Result<Option<(String, Password)>, Error> {
        let store = &self.settings.store;
        let Some(login) = &store.credentials else { return Ok(None) };
        match (&login.username, self.password()) {
            (Some(user), Some(_)) if user.contains(':') => {
                Err(Error::Config(format!("{store}: a user name there cannot contain a colon")))
            }
            // The server accepts any password, but with a different one dlock would be another
            // user, without access to its locks.
            (Some(user), Some(password)) => Ok(Some((user.clone(), password.kept()))),
            _ => Err(Error::Config(format!(
                "{store}: a password needs a user there; write zookeeper://USER@… or set DLOCK_USERNAME"
            ))),
        }
    }

    /// Reads the certificates for TLS before the guard is forked, so that an unusable file is
    /// reported before the lock is asked for.
    fn certificates(&self, named: &url::Tls, shown: &str) -> Result<Tls, Error> {
        self.certificates_of(named, &[], shown)
    }

    /// The same for servers found through these seeds. They may report addresses while certificates
    /// have names.
    fn certificates_of(&self, named: &url::Tls, seeds: &[Host], shown: &str) -> Result<Tls, Error> {
        let client = named.client.as_ref().map(|client| (client.cert.clone(), client.key.clone()));
        let names = seeds.iter().map(|seed| seed.name.clone());
        let aliases = names.filter(|name| name.parse::<IpAddr>().is_err()).collect();
        let files = Files { ca: named.ca.clone(), client, any_host: named.any_host, aliases };
        Tls::read(files, shown).map_err(|error| self.with_origin(error).into())
    }
}

fn tcp(host: &Host) -> Address {
    Address::Tcp { host: host.name.clone(), port: host.port }
}

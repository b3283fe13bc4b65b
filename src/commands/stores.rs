//! Makes the store that the settings name: for commands that hold locks, for commands that only
//! watch, and for `doctor`, which needs each server by itself. Nothing is connected yet.
//!
//! Each store has a module that makes it from its URL and implements [`Made`]. `Context::made`
//! lists the stores.

use super::context::Context;
use super::password;
use crate::config;
use crate::config::url::{Host, Location, Shape};
use crate::error::Error;
use crate::lease::observer::{Budgets, Observer};
use crate::lock::{Mode, Names, Replicas, Token};
use crate::store::Store;
use crate::store::net::password::Password;
#[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
use crate::store::net::target::Target;
use crate::store::net::tls::{Files, Tls};
use crate::store::net::{Address, budget};
use crate::store::probe::Survey;
use crate::store::quorum::QuorumStore;
use crate::store::redis::apart;
use crate::sys;
#[cfg(feature = "sql")]
use crate::{config::url::Dialect, store::sql::SqlStore};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

#[cfg(feature = "etcd")]
mod etcd;
mod file;
mod redis;
#[cfg(feature = "sql")]
mod sql;
#[cfg(feature = "zookeeper")]
mod zookeeper;

/// What a command that holds a lock requires of the store.
#[derive(Clone, Copy)]
pub struct HoldRequirements {
    pub replicas: Replicas,
    /// The longest lease on independent masters.
    pub max_lease: Duration,
}

impl HoldRequirements {
    /// Refuses `--replicas`. `why` says what decides about replicas instead; `None`: the store has
    /// none.
    fn without_replicas(self, store: &config::Store, why: Option<&str>) -> Result<(), Error> {
        match (self.replicas, why) {
            (Replicas::None, _) => Ok(()),
            (_, None) => Err(Error::Config(format!("--replicas: {store} has no replicas; leave it out"))),
            (_, Some(why)) => Err(Error::Config(format!("--replicas cannot be used with {store}: {why}"))),
        }
    }
}

/// A store that the settings name, to be opened or probed.
pub trait Made {
    /// Opens it to hold locks.
    fn open(self: Box<Self>, context: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error>;

    /// The SQL that creates its tables, if it has any.
    fn sql(&self) -> Option<String> {
        None
    }

    /// Asks every part of it for what `doctor` judges.
    fn probe(self: Box<Self>, context: &Context) -> Survey;
}

impl Context {
    /// Counts connections from now on in memory that this process shares with those it forks.
    pub fn count_connections(&self) -> io::Result<()> {
        budget::share(sys::shared_cells()?);
        Ok(())
    }

    /// Records that the store was asked for nothing so far, until a request is sent. Not for a
    /// directory, whose store does not record what it does.
    pub fn note_nothing_sent(&self) {
        if !matches!(self.settings.store.place, Location::File { .. }) {
            budget::note_unsent();
        }
    }

    /// The store that the settings name.
    pub fn open(&self) -> Result<Box<dyn Store>, Error> {
        self.open_for_hold(HoldRequirements {
            replicas: Replicas::None,
            max_lease: self.settings.max_lease(),
        })
    }

    /// The store, or each of the independent masters by itself.
    pub fn open_each(&self) -> Result<Vec<Box<dyn Store>>, Error> {
        let Location::Quorum { nodes, db, .. } = &self.settings.store.place else {
            return Ok(vec![self.open()?]);
        };
        let hold = HoldRequirements { replicas: Replicas::None, max_lease: self.settings.max_lease() };
        let open = |host| -> Result<_, Error> { Box::new(self.redis(address(host), *db)?).open(self, hold) };
        nodes.iter().map(open).collect()
    }

    /// An observer of locks in this store. `foreign` is how often it reads a lock that dlock did
    /// not write.
    pub fn observe(&self, foreign: Duration) -> Result<Observer, Error> {
        let token = Token::random().map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Observer::new(self.open()?, token, Budgets { question: self.request_time(), foreign }))
    }

    /// The store, opened to hold a lock.
    pub fn open_for_hold(&self, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        self.made()?.open(self, hold)
    }

    /// Checks that the store can hold these locks in this mode.
    pub fn check_supported(&self, names: &Names, mode: Mode) -> Result<(), Error> {
        let refusal = match self.settings.store.place {
            Location::Quorum { .. } => QuorumStore::refusal(names, mode),
            Location::Cluster { .. } => apart(names.as_slice()),
            _ => None,
        };
        refusal.map_or(Ok(()), |why| Err(Error::Usage(why)))
    }

    /// The store, to be opened or probed.
    pub fn made(&self) -> Result<Box<dyn Made>, Error> {
        let place = &self.settings.store.place;
        Ok(match place {
            Location::Tcp { host, db, .. } => Box::new(self.redis(address(host), *db)?),
            Location::Unix { path, db } => Box::new(self.redis(Address::Unix(path.clone()), *db)?),
            Location::Sentinel { sentinels, master, db, .. } => {
                Box::new(self.redis_sentinels(sentinels, master, *db)?)
            }
            Location::Cluster { .. } => Box::new(self.redis_cluster()?),
            Location::Quorum { nodes, db, .. } => Box::new(self.redis_masters(nodes, *db)?),
            #[cfg(feature = "mysql")]
            Location::Database { dialect: Dialect::Mysql, at, name, .. } => {
                Box::new(SqlStore::mysql(self.database(Dialect::Mysql, at, name)?))
            }
            #[cfg(feature = "postgres")]
            Location::Database { dialect: Dialect::Postgres, at, name, .. } => {
                Box::new(SqlStore::postgres(self.database(Dialect::Postgres, at, name)?))
            }
            #[cfg(feature = "etcd")]
            Location::Etcd { prefix, .. } => Box::new(self.etcd(prefix)?),
            #[cfg(feature = "zookeeper")]
            Location::ZooKeeper { chroot, .. } => Box::new(self.zookeeper(chroot)?),
            Location::File { dir } => Box::new(file::Directory(dir.clone())),
            #[cfg(not(all(
                feature = "mysql",
                feature = "postgres",
                feature = "etcd",
                feature = "zookeeper"
            )))]
            _ => {
                let feature = place.shape().scheme;
                return Err(Error::Config(format!(
                    "{place}: this dlock was built without {feature}; install a dlock package, which has it, or build it from a clone with `cargo install --locked --path . --features {feature}`"
                )));
            }
        })
    }

    /// The addresses of the hosts in the URL.
    fn addresses(&self) -> Vec<Address> {
        self.settings.store.place.shape().hosts.iter().map(address).collect()
    }

    /// The servers of the URL. `space` is the place of dlock's data there.
    #[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
    fn target(&self, space: &str) -> Result<Target, Error> {
        Ok(Target {
            servers: self.addresses(),
            user: self.user(),
            password: self.password(),
            tls: self.tls()?,
            is_clear: self.settings.store.place.is_clear(),
            space: space.into(),
            shown: self.settings.store.to_string(),
            connect_timeout: self.settings.connect_timeout,
            op_timeout: self.settings.op_timeout,
        })
    }

    fn user(&self) -> Option<String> {
        self.settings.store.credentials.as_ref()?.username.clone()
    }

    fn password(&self) -> Option<Password> {
        let login = self.settings.store.credentials.as_ref()?;
        password::of(login, self.settings.connect_timeout)
    }

    /// Reads the certificates for TLS before the guard is forked, so that an unusable file is
    /// reported before the lock is asked for.
    fn tls(&self) -> Result<Option<Tls>, Error> {
        let place = &self.settings.store.place;
        let Shape { tls: Some(named), hosts, .. } = place.shape() else { return Ok(None) };
        let client = named.client.as_ref().map(|client| (client.cert.clone(), client.key.clone()));
        // Nodes of a cluster may report IP addresses while their certificates have the names in the
        // URL.
        let seeds = if let Location::Cluster { .. } = place { hosts } else { &[] };
        let names = seeds.iter().map(|seed| seed.name.clone());
        let aliases = names.filter(|name| name.parse::<IpAddr>().is_err()).collect();
        let files = Files { ca: named.ca.clone(), client, any_host: named.any_host, aliases };
        Ok(Some(Tls::read(files, &place.to_string()).map_err(|error| self.with_origin(error))?))
    }
}

fn address(host: &Host) -> Address {
    Address::Tcp { host: host.name.clone(), port: host.port }
}

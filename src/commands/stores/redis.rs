//! Redis: one server, sentinels, a cluster, and independent masters.

use super::super::context::Context;
use super::super::password;
use super::{HoldRequirements, Made, address};
use crate::config::url::{Host, Location};
use crate::error::Error;
use crate::output::{Kind, What};
use crate::store::Store;
use crate::store::net::Address;
use crate::store::probe::{Node, Survey};
use crate::store::quorum::QuorumStore;
use crate::store::redis::probe::{down_after, node_timeout, probe};
use crate::store::redis::{RedisStore, Target};

/// Placeholder for an address that sentinels or cluster nodes will name.
const PLACEHOLDER: Address = Address::Tcp { host: String::new(), port: 0 };

/// One server, sentinels or a cluster; and the sentinels, if there are any.
pub struct Redis(RedisStore, Vec<Target>);

/// Independent masters.
pub struct Masters(Vec<Target>);

impl Context {
    pub(super) fn redis(&self, address: Address, db: u16) -> Result<Redis, Error> {
        Ok(Redis(RedisStore::new(self.server(address, db)?), Vec::new()))
    }

    pub(super) fn redis_sentinels(&self, hosts: &[Host], master: &str, db: u16) -> Result<Redis, Error> {
        let place = self.server(PLACEHOLDER, db)?;
        let login = self.settings.store.sentinel_credentials.as_ref();
        let password = login.and_then(|login| password::of(login, self.settings.connect_timeout));
        let sentinel = |host: &Host| Target {
            address: address(host),
            database: 0,
            username: login.and_then(|login| login.username.clone()),
            password: password.clone(),
            shown: format!("the sentinel {host}"),
            ..place.clone()
        };
        let sentinels: Vec<Target> = hosts.iter().map(sentinel).collect();
        Ok(Redis(RedisStore::sentinel(sentinels.clone(), master.into(), place), sentinels))
    }

    pub(super) fn redis_cluster(&self) -> Result<Redis, Error> {
        let store = RedisStore::cluster(self.addresses(), self.server(PLACEHOLDER, 0)?);
        Ok(Redis(store, Vec::new()))
    }

    pub(super) fn redis_masters(&self, nodes: &[Host], db: u16) -> Result<Masters, Error> {
        let place = self.server(PLACEHOLDER, db)?;
        let tls = self.settings.store.place.tls();
        let master = |host: &Host| Target {
            address: address(host),
            shown: Location::Tcp { host: host.clone(), db, tls: tls.cloned() }.to_string(),
            ..place.clone()
        };
        Ok(Masters(nodes.iter().map(master).collect()))
    }

    fn server(&self, address: Address, database: u16) -> Result<Target, Error> {
        Ok(Target {
            address,
            database: u32::from(database),
            username: self.user(),
            password: self.password(),
            tls: self.tls()?,
            shown: self.settings.store.to_string(),
            connect_timeout: self.settings.connect_timeout,
            op_timeout: self.settings.op_timeout,
        })
    }

    fn probed(&self, servers: &[Target]) -> Vec<Node> {
        servers.iter().map(|server| probe(server, &self.settings.prefix)).collect()
    }
}

impl Made for Redis {
    fn open(self: Box<Self>, _: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        Ok(Box::new(self.0.acknowledged_by(hold.replicas)))
    }

    fn probe(mut self: Box<Self>, context: &Context) -> Survey {
        let store = &context.settings.store;
        let mut failover = match &store.place {
            Location::Sentinel { master, .. } => down_after(&self.1, master),
            _ => None,
        };
        let found = self.0.masters(context.deadline());
        if let (Location::Cluster { .. }, Ok(masters)) = (&store.place, &found) {
            failover = node_timeout(masters);
        }
        let unfound = |error| vec![Node { name: store.to_string(), facts: Err(error) }];
        Survey::Servers { nodes: found.map_or_else(unfound, |masters| context.probed(&masters)), failover }
    }
}

impl Made for Masters {
    fn open(self: Box<Self>, context: &Context, hold: HoldRequirements) -> Result<Box<dyn Store>, Error> {
        let store = &context.settings.store;
        hold.without_replicas(store, None)?;
        let printer = context.printer.clone();
        let tell = move |what: &str| printer.say(Kind::Detail, What::Trouble, what);
        Ok(Box::new(QuorumStore::new(self.0, store.to_string(), hold.max_lease, tell)))
    }

    fn probe(self: Box<Self>, context: &Context) -> Survey {
        Survey::Masters(context.probed(&self.0))
    }
}

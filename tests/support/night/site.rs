//! What a round of a night is about: a store in one of its arrangements, and the machines that use it.

use super::hosts::Host;
use super::network::Link;
use crate::support::cluster::{self, Cluster};
#[cfg(feature = "sql")]
use crate::support::database::{Kind as Database, Server};
use crate::support::masters::{self, steered_clock};
use crate::support::redis::Redis;
use crate::support::replicated;
use crate::support::sentinel::{self, Sentinel, admit_watchers};
use crate::support::wait::wait_until;
use crate::support::world::World;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt as _;

/// How the store is arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    Single,
    File,
    Quorum(usize),
    Sentinel,
    Cluster,
    #[cfg(feature = "sql")]
    Database(Database),
}

impl Arrangement {
    /// All that were built in.
    pub fn all() -> Vec<Self> {
        #[cfg(not(feature = "sql"))]
        let more: [Self; 0] = [];
        #[cfg(feature = "sql")]
        let more = [
            #[cfg(feature = "postgres")]
            Self::Database(Database::Postgres),
            #[cfg(feature = "mysql")]
            Self::Database(Database::Mysql),
        ];
        let redis =
            [Self::Single, Self::File, Self::Quorum(3), Self::Sentinel, Self::Cluster, Self::Quorum(5)];
        redis.into_iter().chain(more).collect()
    }

    /// Whether each host has ways of its own to the servers, with weather.
    fn has_links(self) -> bool {
        !matches!(self, Self::File | Self::Sentinel | Self::Cluster)
    }
}

/// The longest lease of a night. A master of a quorum that was started again is not counted for so long.
const MAX_LEASE: &str = "6s";

/// The store and its users. Dropping it ends all servers.
pub struct Site {
    // Fields are dropped in order, and the servers live in the world's directory.
    pub store: StoreSide,
    pub hosts: Vec<Host>,
    pub world: World,
}

/// What a nemesis can break of the store.
pub struct StoreSide {
    pub arrangement: Arrangement,
    pub sentinels: Vec<Sentinel>,
    pub servers: Vec<Redis>,
    #[cfg(feature = "sql")]
    pub database: Option<Server>,
    /// By host, then by server.
    pub links: Vec<Vec<Link>>,
}

const HOSTS: usize = 3;
/// A server that writes down what it is told before it answers. It is killed, and the machine goes on, so no fsync is needed.
const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

impl Site {
    pub fn new(arrangement: Arrangement) -> Self {
        let mut world = World::without_redis();
        let mut store = StoreSide::start(arrangement, &world);
        world.use_store(store.url(&world));
        world.write("config/dlock.toml", &format!("ttl = \"5s\"\nmax-lease = \"{MAX_LEASE}\"\n"));
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            let apart = arrangement.has_links().then(|| Host::apart(&world, &format!("host{number}")));
            let host = apart.flatten().unwrap_or_else(|| {
                if number == 0 && arrangement.has_links() {
                    println!("note: no networks of their own for the hosts (that takes root): they share this machine's");
                }
                Host::here()
            });
            let ports = store.ports().into_iter().filter(|_| arrangement.has_links());
            store.links.push(ports.map(|port| Link::to(port, host.gateway)).collect());
            hosts.push(host);
        }
        if matches!(arrangement, Arrangement::Quorum(_)) {
            wait_until("the masters are counted", || {
                let probe = world.run("probe", &["-t", "5s"], "true");
                probe.any_stderr().spawn().output().status.success()
            });
        }
        let mut site = Self { store, hosts, world };
        for number in 0..HOSTS {
            site.hosts[number].url = site.url(number);
        }
        site
    }

    fn url(&self, host: usize) -> String {
        let links: Vec<u16> = self.store.links[host].iter().map(Link::port).collect();
        let gateway = self.hosts[host].gateway.to_string();
        match self.store.arrangement {
            Arrangement::Single => format!("redis://{gateway}:{}", links[0]),
            Arrangement::Quorum(_) => masters::url(&links).replace("127.0.0.1", &gateway),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => {
                let (own, new) = (format!(":{}/", self.store.ports()[0]), format!(":{}/", links[0]));
                self.world.url().replace(&own, &new).replace("127.0.0.1", &gateway)
            }
            Arrangement::File | Arrangement::Sentinel | Arrangement::Cluster => self.world.url(),
        }
    }
}

impl StoreSide {
    fn start(arrangement: Arrangement, world: &World) -> Self {
        let mut store = Self {
            arrangement,
            sentinels: Vec::new(),
            servers: Vec::new(),
            #[cfg(feature = "sql")]
            database: None,
            links: Vec::new(),
        };
        match arrangement {
            Arrangement::File => {}
            Arrangement::Single => store.servers.push(single(world)),
            Arrangement::Quorum(count) => {
                let start = |at: usize| replicated::server(world, &format!("server{at}"), &KEEPS);
                store.servers = (0..count).map(start).collect();
            }
            Arrangement::Sentinel => {
                let (master, replicas) = replicated::start(world, 1);
                store.servers = std::iter::once(master).chain(replicas).collect();
                store.servers.iter().for_each(admit_watchers);
                let port = store.servers[0].port();
                store.sentinels = (0..3).map(|_| Sentinel::start(world, port, 2, 1, "")).collect();
            }
            Arrangement::Cluster => store.servers = Cluster::start(world, 3).masters,
            #[cfg(feature = "sql")]
            Arrangement::Database(kind) => store.database = Some(Server::start(kind, &world.path(""), &[])),
        }
        store
    }

    fn url(&self, world: &World) -> String {
        let ports = self.ports();
        match self.arrangement {
            Arrangement::Single => self.servers[0].url(),
            Arrangement::File => world.url(),
            Arrangement::Quorum(_) => masters::url(&ports),
            Arrangement::Sentinel => {
                sentinel::url(&self.sentinels.iter().map(Sentinel::port).collect::<Vec<_>>())
            }
            Arrangement::Cluster => cluster::url(&ports),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => self.database.as_ref().expect("it was started").url(),
        }
    }

    fn ports(&self) -> Vec<u16> {
        #[cfg(feature = "sql")]
        if let Some(server) = &self.database {
            let port = server.url().split([':', '/']).find_map(|word| word.parse().ok());
            return vec![port.expect("a port")];
        }
        self.servers.iter().map(Redis::port).collect()
    }

    /// Has a server that was killed come back, with what it knew or without it.
    pub fn start_again(&mut self, world: &World, at: usize, forgets: bool) {
        if forgets {
            let single = self.arrangement == Arrangement::Single;
            let name = if single { "server".into() } else { format!("server{at}") };
            drop(fs::remove_dir_all(world.path(&name).join("appendonlydir")));
        }
        self.servers[at].restart();
    }
}

/// From now on a single server's clock is ahead by so many milliseconds.
pub fn set_clock(world: &World, ahead: i64) {
    // In place: the server has it mapped.
    let file = fs::File::options().write(true).open(world.path("steps"));
    let set = file.and_then(|file| file.write_all_at(&(ahead * 1000).to_ne_bytes(), 0));
    set.expect("the clock's file");
}

fn single(world: &World) -> Redis {
    let home = world.path("server");
    fs::create_dir(&home).expect("a directory for a server");
    fs::write(world.path("steps"), [0; 8]).expect("a clock");
    let environment: Vec<(&str, OsString)> =
        vec![("LD_PRELOAD", steered_clock().into()), ("STEERED_STEPS", world.path("steps").into())];
    Redis::start_within(&home, &KEEPS, environment)
}

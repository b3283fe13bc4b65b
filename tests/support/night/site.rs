//! The site of a round: a store in one of its arrangements, and the machines that use it.

mod arrangement;
mod faults;

use super::hosts::{Common, Host};
use super::network::Link;
use crate::support::cluster::{self, Cluster};
#[cfg(feature = "sql")]
use crate::support::database::Server;
use crate::support::disk::Disk;
#[cfg(feature = "etcd")]
use crate::support::etcd::Etcd;
use crate::support::masters::{self, steered_clock};
use crate::support::redis::Redis;
use crate::support::replicated;
use crate::support::sentinel::{self, Sentinel, admit_watchers};
use crate::support::wait::wait_until;
use crate::support::world::World;
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::{Ensemble, ZooKeeper};
pub use arrangement::Arrangement;
#[cfg(feature = "sql")]
use dlock::rules::LOG_KEPT;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

/// The longest lease of a night. A restarted master of a quorum is not counted for as long.
const MAX_LEASE: &str = "6s";

/// The store and its hosts. Dropping it ends all servers.
pub struct Site {
    // Fields are dropped in order, and the servers run in the world's directory.
    pub store: StoreSide,
    pub hosts: Vec<Host>,
    pub world: World,
    /// The address that the nodes of a cluster announce.
    common: Option<Common>,
}

/// The parts of the store that the nemesis can break.
pub struct StoreSide {
    pub arrangement: Arrangement,
    pub sentinels: Vec<Sentinel>,
    pub servers: Vec<Redis>,
    #[cfg(feature = "sql")]
    pub database: Option<Server>,
    #[cfg(feature = "etcd")]
    pub etcd: Option<Etcd>,
    #[cfg(feature = "zookeeper")]
    pub ensemble: Option<Ensemble>,
    /// The disk of a directory, a single server or a database, if one can be mounted.
    pub disk: Option<Disk>,
    /// By host, then by server.
    pub links: Vec<Vec<Link>>,
}

const HOSTS: usize = 3;
/// Size of a disk that can be filled.
const ROOM: &str = "64m";
#[cfg(feature = "etcd")]
const MEMBERS: usize = 3;
/// Options of a server that records each change before it answers. Only the server is killed, and
/// not its machine, so no fsync is needed.
const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

impl Site {
    pub fn new(arrangement: Arrangement) -> Self {
        let mut world = World::without_redis();
        let common = (arrangement == Arrangement::Cluster).then(Common::new).flatten();
        let mut store = StoreSide::start(arrangement, &world, common.as_ref());
        // Without a common address each host gets one of its own.
        let has_links = arrangement.has_links() && (arrangement != Arrangement::Cluster || common.is_some());
        world.use_store(store.url(&world));
        world.write("config/dlock.toml", &format!("ttl = \"5s\"\nmax-lease = \"{MAX_LEASE}\"\n"));
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            let apart = has_links.then(|| Host::apart(&world, &format!("host{number}")));
            let host = apart.flatten().unwrap_or_else(|| {
                if number == 0 && arrangement.has_links() {
                    println!("note: no networks of their own for the hosts (that takes root): they share this machine's");
                }
                Host::here()
            });
            let ports = store.ports().into_iter().filter(|_| has_links);
            store.links.push(ports.map(|port| Link::to(port, host.gateway)).collect());
            hosts.push(host);
        }
        if let Some(common) = &common {
            hosts.iter().for_each(|host| host.learn_way_to(common));
            for (at, port) in store.ports().into_iter().enumerate() {
                let way = |(number, host): (usize, &Host)| (host.address, store.links[number][at].clone());
                Link::door(port, common.address(), hosts.iter().enumerate().map(way).collect());
            }
        }
        if matches!(arrangement, Arrangement::Quorum(_)) {
            wait_until("the masters are counted", || {
                let probe = world.run("probe", &["-t", "5s"], "true");
                probe.any_stderr().spawn().output().status.success()
            });
        }
        let mut site = Self { store, hosts, world, common };
        for number in 0..HOSTS {
            site.hosts[number].url = site.url(number);
        }
        site
    }

    fn url(&self, host: usize) -> String {
        if let Some(common) = &self.common {
            return self.world.url().replace("127.0.0.1", &common.address().to_string());
        }
        let gateway = self.hosts[host].gateway;
        let links = self.store.ports().into_iter().zip(&self.store.links[host]);
        links.fold(self.world.url(), |url, (port, link)| {
            url.replace(&format!("127.0.0.1:{port}"), &format!("{gateway}:{}", link.port()))
        })
    }
}

impl StoreSide {
    fn start(arrangement: Arrangement, world: &World, common: Option<&Common>) -> Self {
        let mut store = Self {
            arrangement,
            sentinels: Vec::new(),
            servers: Vec::new(),
            #[cfg(feature = "sql")]
            database: None,
            #[cfg(feature = "etcd")]
            etcd: None,
            #[cfg(feature = "zookeeper")]
            ensemble: None,
            disk: None,
            links: Vec::new(),
        };
        match arrangement {
            Arrangement::File => store.disk = small_disk(world),
            Arrangement::Single => {
                store.disk = small_disk(world);
                store.servers.push(single(world));
            }
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
            Arrangement::Cluster => {
                // Clients get a name, and the nodes find each other by their addresses. A name may
                // look like an address.
                let named = common.map(|common| common.address().to_string());
                let told = named.iter().flat_map(|name| {
                    ["--cluster-announce-hostname", name, "--cluster-preferred-endpoint-type", "hostname"]
                });
                let options: Vec<&str> = KEEPS.into_iter().chain(told).collect();
                store.servers = Cluster::start_with(world, 3, &options).masters;
            }
            Arrangement::Failover => {
                let cluster = Cluster::start_with(world, 3, &KEEPS);
                let replicas: Vec<Redis> = (0..3).map(|of| cluster.replica(world, of)).collect();
                store.servers = cluster.masters.into_iter().chain(replicas).collect();
            }
            #[cfg(feature = "sql")]
            Arrangement::Database(kind) => {
                let server = Server::start(kind, &world.path(""), kind.for_many());
                store.disk = server.move_to_a_disk(&world.path("small"), ROOM);
                store.database = Some(server);
            }
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => store.etcd = Some(Etcd::start(&world.path(""), MEMBERS, &[])),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => store.ensemble = Some(Ensemble::start(&world.path(""), &[])),
        }
        store
    }

    fn url(&self, world: &World) -> String {
        let ports = self.ports();
        match self.arrangement {
            Arrangement::Single => self.servers[0].url(),
            Arrangement::File => format!("file:{}", on_disk(world).display()),
            Arrangement::Quorum(_) => masters::url(&ports),
            Arrangement::Sentinel => {
                sentinel::url(&self.sentinels.iter().map(Sentinel::port).collect::<Vec<_>>())
            }
            Arrangement::Cluster | Arrangement::Failover => cluster::url(&ports),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => {
                // No TLS, not even from another host.
                format!("{}?sslmode=disable", self.database.as_ref().expect("it was started").url())
            }
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => self.etcd.as_ref().expect("it was started").url(),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => self.ensemble.as_ref().expect("it was started").url("/night"),
        }
    }

    fn ports(&self) -> Vec<u16> {
        #[cfg(feature = "sql")]
        if let Some(server) = &self.database {
            let port = server.url().split([':', '/']).find_map(|word| word.parse().ok());
            return vec![port.expect("a port")];
        }
        #[cfg(feature = "etcd")]
        if let Some(etcd) = &self.etcd {
            return (0..MEMBERS).map(|member| etcd.port(member)).collect();
        }
        #[cfg(feature = "zookeeper")]
        if let Some(ensemble) = &self.ensemble {
            return ensemble.servers.iter().map(ZooKeeper::port).collect();
        }
        self.servers.iter().map(Redis::port).collect()
    }

    /// Unneeded records of clients that are gone: places in queues, leases and sessions,
    /// connections, and more than so many locks with their histories. A directory and Redis are
    /// checked elsewhere.
    pub fn left_of_the_dead(&self, world: &World, keys: usize) -> Vec<String> {
        let _ = (world, keys);
        match self.arrangement {
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => {
                let server = self.database.as_ref().expect("it was started");
                let ((locks, ends), connected) = (server.rows(), server.connected());
                let mut left: Vec<String> = server
                    .places()
                    .into_iter()
                    .map(|name| format!("a place in the queue of {name}"))
                    .collect();
                if locks > keys || ends > keys * LOG_KEPT {
                    left.push(format!("{locks} locks and {ends} ends in the tables"));
                }
                if connected > 0 {
                    left.push(format!("{connected} connections"));
                }
                left
            }
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => {
                let etcd = self.etcd.as_ref().expect("it was started");
                let leases = etcd.try_ctl(&["lease", "list"]);
                let none = leases.as_ref().is_ok_and(|said| said == "found 0 leases");
                let keys = etcd.leftovers("/dlock").into_iter();
                keys.chain((!none).then(|| format!("{leases:?}"))).collect()
            }
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => {
                let ensemble = self.ensemble.as_ref().expect("it was started");
                let sessions = ensemble.servers[0].sessions();
                let lives = sessions.lines().filter(|line| line.contains("/dlock/lives/")).map(str::to_owned);
                // A waiter without a turn keeps its place for as long as its ticket is remembered.
                let is_place = |path: &String| path.contains("/w-") && !path.contains("-p");
                let places = ensemble.servers[0].below(world).into_iter().filter(is_place);
                lives.chain(places).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A small disk at [`on_disk`], if the test may have one.
fn small_disk(world: &World) -> Option<Disk> {
    let place = world.path("disk");
    fs::create_dir(&place).expect("a directory");
    let owner = fs::metadata(&place).expect("it is there").uid();
    let disk = Disk::mount(&place, ROOM, owner);
    fs::create_dir(on_disk(world)).expect("a directory");
    disk
}

/// The directory of the files of a directory store or a single server.
pub fn on_disk(world: &World) -> PathBuf {
    world.path("disk/store")
}

/// Sets a single server's clock ahead by `ahead` milliseconds from now on.
pub fn set_clock(world: &World, ahead: i64) {
    // Written in place, because the server has the file mapped.
    let file = fs::File::options().write(true).open(world.path("steps"));
    let set = file.and_then(|file| file.write_all_at(&(ahead * 1000).to_ne_bytes(), 0));
    set.expect("the clock's file");
}

fn single(world: &World) -> Redis {
    let home = on_disk(world);
    fs::write(world.path("steps"), [0; 8]).expect("a clock");
    let environment: Vec<(&str, OsString)> =
        vec![("LD_PRELOAD", steered_clock().into()), ("STEERED_STEPS", world.path("steps").into())];
    Redis::start_within(&home, &KEEPS, environment)
}

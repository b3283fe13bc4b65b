//! A real Redis Cluster in a world: `count` masters with all slots between them.

use super::redis::{Redis, next_port};
use super::replicated::server;
use super::wait::{wait_for, wait_until};
use super::world::World;
use std::time::Duration;

const SLOTS: usize = 16384;

/// The masters, in the order of their slots.
pub struct Cluster {
    pub masters: Vec<Redis>,
}

impl Cluster {
    /// Starts a cluster whose nodes notice a death after two seconds.
    pub fn start(world: &World, count: usize) -> Self {
        Self::start_with(world, count, &[])
    }

    /// The same with further options for each node.
    pub fn start_with(world: &World, count: usize, options: &[&str]) -> Self {
        let start = |number| node_with(world, &format!("node{number}"), options);
        let masters: Vec<_> = (0..count).map(start).collect();
        let share = SLOTS / count;
        for (number, master) in masters.iter().enumerate() {
            let last = if number + 1 == count { SLOTS - 1 } else { (number + 1) * share - 1 };
            let (first, last) = ((number * share).to_string(), last.to_string());
            master.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            master.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            meet(master, &masters[0]);
        }
        let cluster = Self { masters };
        wait_until("the cluster is up", || cluster.masters.iter().all(|master| serves(master, count)));
        cluster
    }

    /// Starts a replica of one master, and waits until it is up to date and all nodes know it.
    pub fn replica(&self, world: &World, of: usize) -> Redis {
        let before = super::replicated::connected(&self.masters[of]);
        let replica = node(world, &format!("replica{of}-{before}"));
        meet(&replica, &self.masters[of]);
        let master: String = self.masters[of].ask(&["CLUSTER", "MYID"]);
        wait_until("the replica knows its master", || {
            super::redis::ask::<()>(&mut replica.connect(), &["CLUSTER", "REPLICATE", &master]).is_ok()
        });
        wait_until("the replica follows", || super::replicated::connected(&self.masters[of]) == before + 1);
        let id: String = replica.ask(&["CLUSTER", "MYID"]);
        wait_until("all know the replica", || {
            self.masters.iter().all(|node| {
                let nodes: String = node.ask(&["CLUSTER", "NODES"]);
                nodes.lines().any(|line| line.starts_with(&id) && line.contains("slave"))
            })
        });
        replica
    }

    /// The number of the master that has the slot of a key.
    pub fn owner(&self, key: &str) -> usize {
        let slot: usize = self.masters[0].ask(&["CLUSTER", "KEYSLOT", key]);
        (slot / (SLOTS / self.masters.len())).min(self.masters.len() - 1)
    }

    /// The store URL for dlock, naming some of the masters.
    pub fn url(&self, which: &[usize]) -> String {
        url(&which.iter().map(|number| self.masters[*number].port()).collect::<Vec<_>>())
    }
}

/// The store URL of a cluster for dlock.
pub fn url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// A node that knows no other node.
pub fn node(world: &World, name: &str) -> Redis {
    node_with(world, name, &[])
}

fn node_with(world: &World, name: &str, more: &[&str]) -> Redis {
    // A server ends if the port of its bus is taken.
    let bus = wait_for("a port for the bus", || {
        let port = next_port();
        std::net::TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    });
    let options =
        ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout"];
    let bus = bus.to_string();
    let others = ["2000", "--cluster-port", &bus, "--repl-diskless-sync-delay", "0"];
    server(world, name, &[&options[..], &others, more].concat())
}

fn meet(node: &Redis, other: &Redis) {
    if node.port() != other.port() {
        let bus: String = other.ask::<Vec<String>>(&["CONFIG", "GET", "cluster-port"])[1].clone();
        node.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string(), &bus]);
    }
}

/// Whether a node says that it is a master.
pub fn is_master(node: &Redis) -> bool {
    let nodes = super::redis::ask::<String>(&mut node.connect(), &["CLUSTER", "NODES"]).unwrap_or_default();
    nodes.lines().any(|line| line.contains("myself,master"))
}

/// The configuration epoch that the node on this port knows: it grows when masters change or slots
/// move.
pub fn epoch(port: u16) -> Option<u64> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).ok()?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let info: String = super::redis::ask(&mut connection, &["CLUSTER", "INFO"]).ok()?;
    info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")?.trim_end().parse().ok())
}

/// Whether all slots are served, as the node sees it.
pub fn is_up(node: &Redis) -> bool {
    let info = super::redis::ask::<String>(&mut node.connect(), &["CLUSTER", "INFO"]);
    info.is_ok_and(|info| info.contains("cluster_state:ok"))
}

/// Whether all slots are served by so many masters, as the node sees it.
fn serves(node: &Redis, masters: usize) -> bool {
    let info: String = node.ask(&["CLUSTER", "INFO"]);
    let has = |line: &str| info.lines().any(|have| have.trim_end() == line);
    has("cluster_state:ok") && has(&format!("cluster_known_nodes:{masters}"))
}

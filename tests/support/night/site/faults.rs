//! What the nemesis does to the servers of a store, and whether they serve again.

use super::{Arrangement, StoreSide, on_disk};
use crate::support::cluster;
use crate::support::sentinel::Sentinel;
use crate::support::world::World;
#[cfg(feature = "zookeeper")]
use crate::support::zookeeper::ZooKeeper;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use rustix::process::Signal;
use std::fs;
#[cfg(feature = "etcd")]
use std::io::{Read as _, Write as _};
#[cfg(feature = "etcd")]
use std::net::TcpStream;
#[cfg(feature = "etcd")]
use std::time::Duration;

impl StoreSide {
    /// Stops a server as if its machine hung.
    pub fn pause(&mut self, at: usize) {
        match self.arrangement {
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => self.etcd.as_ref().expect("it was started").signal(at, Signal::STOP),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => self.zookeeper(at).signal(Signal::STOP),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => self.database.as_ref().expect("it was started").pause(),
            _ => self.servers[at].pause(),
        }
    }

    /// Continues a paused server.
    pub fn resume(&mut self, at: usize) {
        match self.arrangement {
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => self.etcd.as_ref().expect("it was started").signal(at, Signal::CONT),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => self.zookeeper(at).signal(Signal::CONT),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => self.database.as_ref().expect("it was started").resume(),
            _ => self.servers[at].resume(),
        }
    }

    /// Ends the server as a loss of power would, but for its disk.
    pub fn kill(&mut self, at: usize) {
        match self.arrangement {
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => self.database.as_mut().expect("it was started").kill(),
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => self.etcd.as_mut().expect("it was started").kill(at),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => self.zookeeper(at).kill(),
            _ => self.servers[at].kill(),
        }
    }

    /// Whether a server serves after it was away.
    pub fn serves(&self, at: usize) -> bool {
        match self.arrangement {
            Arrangement::Cluster => self.servers.iter().all(cluster::is_up),
            Arrangement::Failover => {
                let masters = self.servers.iter().filter(|server| cluster::is_master(server)).count();
                masters == 3 && self.servers.iter().all(cluster::is_up)
            }
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => is_healthy(self.ports()[at]),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => self.ensemble.as_ref().is_some_and(|all| all.servers[at].serves()),
            // The server may be loading its data.
            Arrangement::Single | Arrangement::Quorum(_) | Arrangement::Sentinel => {
                self.servers[at].is_loaded()
            }
            _ => true,
        }
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper(&mut self, at: usize) -> &mut ZooKeeper {
        &mut self.ensemble.as_mut().expect("it was started").servers[at]
    }

    /// Starts a killed server again, with its data or without.
    pub fn start_again(&mut self, world: &World, at: usize, forgets: bool) {
        match self.arrangement {
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => return self.database.as_mut().expect("it was started").run(),
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => return self.etcd.as_mut().expect("it was started").run(at),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => return self.zookeeper(at).spawn(),
            _ => {}
        }
        if forgets {
            let home = match self.arrangement {
                Arrangement::Single => on_disk(world),
                Arrangement::Cluster => world.path(&format!("node{at}")),
                _ => world.path(&format!("server{at}")),
            };
            drop(fs::remove_dir_all(home.join("appendonlydir")));
        }
        if self.arrangement == Arrangement::Sentinel {
            // The server has no config file in which a sentinel could have recorded its role.
            let named = self.sentinels.iter().find_map(Sentinel::try_named);
            let master = named.filter(|port| *port != self.servers[at].port()).map(|port| port.to_string());
            let role = master.as_ref().map_or(["no", "one"], |port| ["127.0.0.1", port]);
            return self.servers[at].restart_with(&["--replicaof", role[0], role[1]]);
        }
        self.servers[at].restart();
    }
}

/// Whether a member of etcd answers what takes a majority.
#[cfg(feature = "etcd")]
fn is_healthy(port: u16) -> bool {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    };
    asked().is_ok_and(|said| said.contains("true"))
}

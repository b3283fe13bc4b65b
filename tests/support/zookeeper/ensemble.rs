//! Three ZooKeeper servers that elect a leader.

use super::{ZooKeeper, free_port};
use crate::support::members::Cluster;
use crate::support::wait::{OUTAGE, wait_for, wait_within};
use crate::support::wires::Wires;
use rustix::process::Signal;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::Path;

/// Three servers.
pub struct Ensemble {
    pub servers: Vec<ZooKeeper>,
    /// The network between the servers.
    wires: Wires,
}

/// A server that connects as a follower sends its number after 16 bytes.
fn greet_to_follow(near: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = [0; 24];
    near.read_exact(&mut head).ok()?;
    let (_, id) = head.split_last_chunk::<8>()?;
    Some((i64::from_be_bytes(*id).to_string(), head.to_vec()))
}

/// A server that connects for an election sends its number and its address. The address must be
/// that of its door, because others connect to the address that they receive.
fn greet_to_elect(near: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut next = [0; 8];
    near.read_exact(&mut next).ok()?;
    if i64::from_be_bytes(next) < 0 {
        near.read_exact(&mut next).ok()?;
        let mut length = [0; 4];
        near.read_exact(&mut length).ok()?;
        let length = usize::try_from(u32::from_be_bytes(length)).ok().filter(|length| *length < 4096)?;
        near.read_exact(&mut vec![0; length]).ok()?;
    }
    Some((i64::from_be_bytes(next).to_string(), next.to_vec()))
}

impl Ensemble {
    pub fn start(home: &Path, settings: &[&str]) -> Self {
        let wires = Wires::default();
        // The ports on which each listens to the others, and the doors through which they reach it.
        let places: Vec<[String; 2]> = (0..3)
            .map(|number| {
                let (quorum, election) = (free_port(), free_port());
                let doors = (
                    wires.door(number, quorum, greet_to_follow),
                    wires.door(number, election, greet_to_elect),
                );
                let place =
                    |ports: (u16, u16)| format!("server.{}=127.0.0.1:{}:{}", number + 1, ports.0, ports.1);
                [place((quorum, election)), place(doors)]
            })
            .collect();
        let servers = (0..3).map(|number| {
            let mut all: Vec<&str> = vec!["initLimit=50", "syncLimit=10"];
            all.extend(
                places.iter().enumerate().map(
                    |(at, [own, door])| {
                        if at == number { own.as_str() } else { door.as_str() }
                    },
                ),
            );
            all.extend(settings);
            let mut server = ZooKeeper::prepare(home, &format!("zookeeper{}", number + 1), &all);
            fs::write(server.home.join("data/myid"), (number + 1).to_string()).expect("a file");
            server.spawn();
            server
        });
        let ensemble = Self { servers: servers.collect(), wires };
        ensemble.wait_until_it_serves();
        ensemble
    }

    /// The URL of a node there.
    pub fn url(&self, chroot: &str) -> String {
        let servers: Vec<String> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("zookeeper://{}{chroot}", servers.join(","))
    }
}

impl Cluster for Ensemble {
    fn leader(&self) -> usize {
        wait_for("a leader", || self.servers.iter().position(ZooKeeper::leads))
    }

    fn url_of(&self, members: &[usize]) -> String {
        let servers: Vec<String> =
            members.iter().map(|member| format!("127.0.0.1:{}", self.servers[*member].port)).collect();
        format!("zookeeper://{}/ops", servers.join(","))
    }

    fn kill(&mut self, member: usize) {
        self.servers[member].kill();
    }

    fn run(&mut self, member: usize) {
        self.servers[member].run();
    }

    fn signal(&self, member: usize, signal: Signal) {
        self.servers[member].signal(signal);
    }

    fn cut_off(&self, member: usize) {
        self.wires.cut_off(member, (member + 1).to_string());
    }

    fn join(&self) {
        self.wires.join();
    }

    fn wait_until_it_serves(&self) {
        for server in self.servers.iter().filter(|server| server.child.is_some()) {
            wait_within(OUTAGE, "ZooKeeper serves", || server.serves().then_some(()));
        }
    }
}

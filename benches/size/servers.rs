//! Starts the servers of a store on free ports, in a directory of their own, and does to them what
//! the phases want. Ends them when it is dropped. How much they had to do is read here, too.

use crate::pause;
use crate::server::{Program, Server, home_for_all, redis};
use crate::tally::Phase;
use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rustix::process::Signal;
use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The sentinels' name of the master.
const SERVICE: &str = "m";
/// Sentinels that must not fail over take no master for down.
const NEVER: Duration = Duration::from_secs(3600);
/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
/// A single Redis listens on so many addresses of the loopback: all workers together have more
/// connections than one address has ports.
const ADDRESSES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// One Redis
    Redis,
    /// A Redis with a replica and three sentinels
    Sentinel,
    /// PostgreSQL behind PgBouncer, which pools transactions
    Pgbouncer,
    /// Three members of etcd
    Etcd,
    /// Three servers of ZooKeeper
    Zookeeper,
}

impl Store {
    /// How many holders it has, unless the command line says otherwise.
    pub const fn holders(self) -> usize {
        match self {
            Self::Redis => 10_000,
            Self::Sentinel | Self::Etcd | Self::Zookeeper => 2_000,
            Self::Pgbouncer => 1_000,
        }
    }

    /// What is done to it, in order.
    pub fn phases(self) -> Vec<Phase> {
        let has_leader = !matches!(self, Self::Redis | Self::Pgbouncer);
        let failover = has_leader.then_some(Phase::Failover);
        [Phase::Quiet, Phase::Outage].into_iter().chain(failover).chain([Phase::Restart]).collect()
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "Redis",
            Self::Sentinel => "Redis, sentinels",
            Self::Pgbouncer => "PostgreSQL, PgBouncer",
            Self::Etcd => "etcd, three members",
            Self::Zookeeper => "ZooKeeper, three servers",
        })
    }
}

pub struct Servers {
    store: Store,
    ttl: Duration,
    // Ended before the directory is removed.
    servers: Vec<Server>,
    home: TempDir,
}

impl Servers {
    pub fn start(store: Store, ttl: Duration, descriptors: u64) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("dlock-size").tempdir().context("a directory")?;
        // PostgreSQL runs as another user.
        home_for_all(home.path())?;
        let mut site = Self { store, ttl, servers: Vec::new(), home };
        site.add_all(descriptors)?;
        Ok(site)
    }

    fn add_all(&mut self, descriptors: u64) -> Result<()> {
        let home = self.home.path().to_owned();
        // Some are kept for files.
        let clients = descriptors.saturating_sub(100);
        match self.store {
            Store::Redis => {
                let addresses: Vec<_> = (1..=ADDRESSES).map(|last| format!("127.0.0.{last}")).collect();
                self.add(redis_server(&home, 0, &addresses.join(" "), clients, "")?)?;
            }
            Store::Sentinel => {
                self.add(redis_server(&home, 0, "127.0.0.1", clients, "")?)?;
                let master = self.servers[0].port;
                let follows = format!("replicaof 127.0.0.1 {master}\n");
                self.add(redis_server(&home, 1, "127.0.0.1", clients, &follows)?)?;
                for number in 2..5 {
                    let port = free_port()?;
                    let text = format!(
                        "port {port}\nbind 127.0.0.1\ndir {0}\nmaxclients {clients}\nsentinel monitor {SERVICE} 127.0.0.1 \
                         {master} 2\nsentinel down-after-milliseconds {SERVICE} {1}\nsentinel failover-timeout {SERVICE} 10000\n",
                        home.display(),
                        NEVER.as_millis(),
                    );
                    let conf = write(&home, &format!("sentinel{number}.conf"), &text)?;
                    self.add(Server::new(
                        Program::Sentinel,
                        &home,
                        port,
                        &["redis-server", &conf, "--sentinel"],
                    ))?;
                }
                self.wait("a sentinel that knows the replica", |site| {
                    let of_sentinels =
                        site.servers.iter().filter(|server| server.program == Program::Sentinel);
                    of_sentinels
                        .into_iter()
                        .all(|server| {
                            redis::<Vec<redis::Value>>(server.port, &["SENTINEL", "REPLICAS", SERVICE])
                                .is_ok_and(|known| known.len() == 1)
                        })
                        .then_some(())
                })?;
            }
            Store::Pgbouncer => {
                let (port, front) = (free_port()?, free_port()?);
                self.add(Server::postgres(&home, port)?)?;
                let text = format!(
                    "[databases]\npostgres = user=app host=127.0.0.1 port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                     listen_port = {front}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                     max_client_conn = {clients}\nserver_login_retry = 1\n"
                );
                let conf = write(&home, "pgbouncer.ini", &text)?;
                self.add(Server::new(
                    Program::Pgbouncer,
                    &home,
                    front,
                    &["/usr/sbin/pgbouncer", "-q", &conf],
                ))?;
            }
            Store::Etcd => {
                let ports = (0..3).map(|_| Ok([free_port()?, free_port()?])).collect::<Result<Vec<_>>>()?;
                let url = |port: u16| format!("http://127.0.0.1:{port}");
                let all: Vec<_> =
                    ports.iter().map(|[client, peer]| format!("m{client}={}", url(*peer))).collect();
                for [client, peer] in ports {
                    let (clients, peers) = (url(client), url(peer));
                    let (name, data) = (format!("m{client}"), format!("{}/etcd{client}", home.display()));
                    let words = [
                        "etcd",
                        "--name",
                        &name,
                        "--data-dir",
                        &data,
                        "--listen-client-urls",
                        &clients,
                        "--advertise-client-urls",
                        &clients,
                        "--listen-peer-urls",
                        &peers,
                        "--initial-advertise-peer-urls",
                        &peers,
                        "--initial-cluster",
                        &all.join(","),
                    ];
                    self.servers.push(Server::new(Program::Etcd, &home, client, &words));
                }
                self.run_all()?;
            }
            Store::Zookeeper => self.add_ensemble(&home)?,
        }
        Ok(())
    }

    fn add_ensemble(&mut self, home: &Path) -> Result<()> {
        let ports = (0..3).map(|_| Ok([free_port()?, free_port()?, free_port()?]));
        let ports = ports.collect::<Result<Vec<_>>>()?;
        let all: String = ports
            .iter()
            .zip(1..)
            .map(|([_, quorum, election], number)| format!("server.{number}=127.0.0.1:{quorum}:{election}\n"))
            .collect();
        let jars = std::env::var("ZOOKEEPER_JARS").unwrap_or_else(|_| {
            ["zookeeper", "slf4j-nop", "netty-codec", "netty-resolver"]
                .map(|jar| format!("/usr/share/java/{jar}.jar"))
                .join(":")
        });
        for ([client, ..], number) in ports.iter().zip(1..) {
            let data = home.join(format!("zookeeper{number}"));
            fs::create_dir(&data).with_context(|| data.display().to_string())?;
            write(&data, "myid", &format!("{number}\n"))?;
            let text = format!(
                "dataDir={}\nclientPort={client}\nclientPortAddress=127.0.0.1\ntickTime=2000\ninitLimit=10\nsyncLimit=5\n\
                 minSessionTimeout=400\nmaxSessionTimeout=90000000\nmaxClientCnxns=0\nadmin.enableServer=false\n{all}",
                data.display()
            );
            let conf = write(home, &format!("zoo{number}.cfg"), &text)?;
            let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
            let words = [
                "java",
                "-Xmx1g",
                "-Dzookeeper.jmx.log4j.disable=true",
                "-Djava.awt.headless=true",
                "-cp",
                &jars,
                main,
            ];
            self.servers.push(Server::new(
                Program::ZooKeeper,
                home,
                *client,
                &[&words[..], &[&conf]].concat(),
            ));
        }
        self.run_all()
    }

    fn add(&mut self, server: Server) -> Result<()> {
        self.servers.push(server);
        self.run_all()
    }

    /// Starts the servers that do not run, and waits until all serve.
    fn run_all(&mut self) -> Result<()> {
        self.servers.iter_mut().try_for_each(Server::run)?;
        self.wait("its servers", |site| site.servers.iter().all(Server::serves).then_some(()))
    }

    /// Waits for something, and says on failure what the servers have written last.
    fn wait<T>(&mut self, what: &str, mut ask: impl FnMut(&Self) -> Option<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = ask(self) {
                return Ok(found);
            }
            self.check()?;
            if began.elapsed() > PATIENCE {
                let logs: Vec<_> = self.servers.iter().filter_map(Server::last_words).collect();
                bail!("{}: waited in vain for {what}\n{}", self.store, logs.join("\n"));
            }
            pause(Duration::from_millis(50))?;
        }
    }

    /// The URL for a worker.
    pub fn url(&self, worker: usize) -> String {
        let of = |program: Program| {
            let ports = self.servers.iter().filter(|server| server.program == program);
            ports.map(|server| format!("127.0.0.1:{}", server.port)).collect::<Vec<_>>().join(",")
        };
        match self.store {
            Store::Redis => {
                format!("redis://127.0.0.{}:{}", worker % ADDRESSES + 1, self.servers[0].port)
            }
            Store::Sentinel => format!("redis+sentinel://{}/{SERVICE}", of(Program::Sentinel)),
            Store::Pgbouncer => format!("postgres://app@{}/postgres", of(Program::Pgbouncer)),
            Store::Etcd => format!("etcd://{}", of(Program::Etcd)),
            Store::Zookeeper => format!("zookeeper://{}", of(Program::ZooKeeper)),
        }
    }

    /// Does what a phase begins with.
    pub fn begin(&mut self, phase: Phase) -> Result<()> {
        match phase {
            Phase::Outage => self.stand_still(),
            Phase::Failover => self.fail_over(),
            Phase::Restart => self.restart(),
            Phase::Start | Phase::Quiet | Phase::Herd => Ok(()),
        }
    }

    /// All servers stop as if their machines hung. Sentinels go on: they would not fail over for
    /// half a minute after a pause of their own.
    fn stand_still(&self) -> Result<()> {
        let stopped = || self.servers.iter().filter(|server| server.program != Program::Sentinel);
        stopped().for_each(|server| server.signal_all(Signal::STOP));
        let paused = pause(self.ttl.mul_f64(0.4));
        stopped().for_each(|server| server.signal_all(Signal::CONT));
        paused
    }

    /// Kills the leader, and starts it again when another one leads.
    fn fail_over(&mut self) -> Result<()> {
        let leader = self.wait("a leader", Self::leader)?;
        self.take_for_down_after(self.ttl / 10)?;
        self.servers[leader].stop(Signal::KILL)?;
        self.wait("another leader", |site| site.leader().filter(|other| *other != leader))?;
        self.run_all()?;
        self.take_for_down_after(NEVER)
    }

    /// Ends the servers that keep data, in order, and starts them again: one after the other, as an
    /// administrator does.
    fn restart(&mut self) -> Result<()> {
        for at in 0..self.servers.len() {
            if let Some(server) = self.servers.get_mut(at).filter(|server| server.has_data()) {
                server.stop(server.program.ends_by())?;
                self.run_all()?;
            }
        }
        Ok(())
    }

    fn take_for_down_after(&self, after: Duration) -> Result<()> {
        let after = after.as_millis().to_string();
        for server in self.servers.iter().filter(|server| server.program == Program::Sentinel) {
            redis::<()>(server.port, &["SENTINEL", "SET", SERVICE, "down-after-milliseconds", &after])?;
        }
        Ok(())
    }

    fn leader(&self) -> Option<usize> {
        if self.store == Store::Sentinel {
            let sentinel = self.servers.iter().find(|server| server.program == Program::Sentinel)?;
            let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
            let (_, port) = redis::<(String, u16)>(sentinel.port, &ask).ok()?;
            return self.servers.iter().position(|server| server.port == port);
        }
        self.servers.iter().position(Server::leads)
    }

    /// Processor time of all servers since they were started.
    pub fn spent(&self) -> Duration {
        self.servers.iter().map(Server::spent).sum()
    }

    /// Number of requests that the servers have counted since they were started.
    pub fn requests(&self) -> Result<u64> {
        self.servers.iter().map(Server::requests).sum()
    }

    /// Fails if a server has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.servers.iter_mut().try_for_each(Server::check)
    }
}

/// A Redis that writes its data down. Sentinels rewrite its configuration.
fn redis_server(home: &Path, number: usize, addresses: &str, clients: u64, more: &str) -> Result<Server> {
    let (port, name) = (free_port()?, format!("redis{number}"));
    let data = home.join(&name);
    fs::create_dir(&data).with_context(|| data.display().to_string())?;
    let text = format!(
        "port {port}\nbind {addresses}\ndir {}\nsave \"\"\nappendonly yes\nmaxclients {clients}\n{more}",
        data.display()
    );
    let conf = write(home, &format!("{name}.conf"), &text)?;
    Ok(Server::new(Program::Redis, home, port, &["redis-server", &conf]))
}

fn write(home: &Path, name: &str, text: &str) -> Result<String> {
    let path = home.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(path.display().to_string())
}

/// A port below those that the kernel gives to outgoing connections, and below those of the tests.
fn free_port() -> Result<u16> {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 4000).unwrap_or_default();
    for _ in 0..1000 {
        let port = 5000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 5000;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from 5000 to 9999 is free")
}

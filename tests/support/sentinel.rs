//! Real sentinels that watch a master for one test.

use super::proc;
use super::redis::{Redis, ask, next_port};
use super::wait::{wait_for, wait_until};
use super::world::World;
use redis::{Client, Connection};
use rustix::process::Signal;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The sentinels' name of the master.
pub const SERVICE: &str = "m";

/// One sentinel. Dropping it kills it.
pub struct Sentinel {
    port: u16,
    login: Option<(&'static str, &'static str)>,
    child: Child,
}

impl Sentinel {
    /// Starts a sentinel that calls a master down when `quorum` of them say so, and waits until it knows the replicas.
    /// It logs in to the servers as `watcher`, who must exist there if `replicas` is not zero.
    pub fn start(world: &World, master: u16, quorum: usize, replicas: usize, lines: &str) -> Self {
        let login = lines.contains("default off").then_some(("dlock", "sesame"));
        let (port, child) = wait_for("a free port for a sentinel", || {
            let port = next_port();
            let name = format!("sentinel{port}");
            let home = world.path(&name);
            world.write(
                &format!("{name}/sentinel.conf"),
                &format!(
                    "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {master} {quorum}\n\
                     sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 4000\n\
                     sentinel auth-user {SERVICE} watcher\nsentinel auth-pass {SERVICE} x\n{lines}\n",
                    home.display()
                ),
            );
            let mut command = Command::new("redis-server");
            command.arg(home.join("sentinel.conf")).args(["--sentinel", "--set-proc-title", "no"]);
            command.env_clear().env("HOME", &home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
            let mut child = command.current_dir(&home).spawn().expect("redis-server is installed");
            let answers = wait_for("a sentinel answers", || {
                if child.try_wait().expect("the child is ours").is_some() {
                    return Some(false);
                }
                // Another program's server may have the port, and ours may not have found that out
                // yet.
                let own = format!("process_id:{}\r\n", child.id());
                let mut connection = dial(port).ok()?;
                if let Some((user, password)) = login {
                    ask::<()>(&mut connection, &["AUTH", user, password]).ok()?;
                }
                let info: String = ask(&mut connection, &["INFO", "server"]).ok()?;
                info.contains(&own).then_some(true)
            });
            answers.then_some((port, child))
        });
        let sentinel = Self { port, login, child };
        wait_until("the sentinel knows the replicas", || {
            let known: Vec<redis::Value> = sentinel.ask(&["SENTINEL", "REPLICAS", SERVICE]);
            known.len() == replicas
        });
        sentinel
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends one command.
    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = dial(self.port).expect("a connection to the test's own sentinel");
        if let Some((user, password)) = self.login {
            ask::<()>(&mut connection, &["AUTH", user, password]).expect("the sentinel knows its user");
        }
        ask(&mut connection, words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The port of the master that the sentinel names.
    pub fn named(&self) -> u16 {
        self.ask::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).1
    }

    /// The same for a sentinel that may be stopped.
    pub fn try_named(&self) -> Option<u16> {
        named_by(self.port)
    }

    /// Requests a failover, as an administrator does. Returns whether it began.
    pub fn try_fail_over(&self) -> bool {
        let Ok(mut connection) = dial(self.port) else { return false };
        drop(connection.set_read_timeout(Some(Duration::from_secs(1))));
        ask::<()>(&mut connection, &["SENTINEL", "FAILOVER", SERVICE]).is_ok()
    }

    /// Requests a failover, as an administrator does.
    pub fn fail_over(&self) {
        wait_until("the sentinel finds a replica that is good enough", || {
            let mut connection = dial(self.port).expect("a connection to the test's own sentinel");
            ask::<()>(&mut connection, &["SENTINEL", "FAILOVER", SERVICE]).is_ok()
        });
    }

    /// Stops the sentinel as if its machine hung.
    pub fn pause(&self) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        proc::signal(pid, Signal::STOP);
        wait_until("the sentinel stops", || proc::stopped(pid));
    }

    /// Continues a paused server.
    pub fn resume(&self) {
        proc::signal(i32::try_from(self.child.id()).expect("a process id"), Signal::CONT);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The port of the master that the sentinel on this port names, if it answers.
pub fn named_by(sentinel: u16) -> Option<u16> {
    let mut connection = dial(sentinel).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
    ask::<(String, u16)>(&mut connection, &words).ok().map(|(_, port)| port)
}

fn dial(port: u16) -> redis::RedisResult<Connection> {
    Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection_with_timeout(Duration::from_secs(5))
}

/// Creates the user with which sentinels watch a server.
pub fn admit_watchers(server: &Redis) {
    server.ask::<()>(&["ACL", "SETUSER", "watcher", "on", "nopass", "+@all", "~*", "&*"]);
}

/// From now on this server refuses the sentinels, as if it were cut off from them; all other
/// clients still reach it.
pub fn cut_off_watchers(server: &Redis) {
    // Without a user of their own the sentinels are the default user, which is dlock's here.
    let rights = ["-ping", "-info", "-replicaof", "-slaveof", "-multi"];
    server.ask::<()>(&[&["ACL", "SETUSER", "default"][..], &rights].concat());
    server.ask::<()>(&["ACL", "SETUSER", "watcher", "off"]);
    server.ask::<i64>(&["CLIENT", "KILL", "USER", "watcher"]);
}

/// The store URL for dlock.
pub fn url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
}

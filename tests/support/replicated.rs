//! A master and its replicas, in a world.

use super::redis::{Redis, ask};
use super::wait::wait_until;
use super::world::World;
use std::fs;

/// A redis-server in a directory of this name in the world.
pub fn server(world: &World, name: &str, options: &[&str]) -> Redis {
    fs::create_dir(world.path(name)).expect("a directory for a server");
    Redis::start(&world.path(name), options)
}

/// Starts a master and `count` replicas, which log in as a user with no other rights.
pub fn start(world: &World, count: usize) -> (Redis, Vec<Redis>) {
    let master =
        server(world, "master", &["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
    master.ask::<()>(&["ACL", "SETUSER", "follower", "on", "nopass", "+psync", "+replconf", "+ping"]);
    let port = master.port().to_string();
    let options = ["--replicaof", "127.0.0.1", &port, "--masteruser", "follower", "--masterauth", "x"];
    let replicas: Vec<_> =
        (0..count).map(|number| server(world, &format!("replica{number}"), &options)).collect();
    wait_until("all replicas follow", || connected(&master) == count);
    // The master lists replicas before they receive anything.
    let mut connection = master.connect();
    ask::<()>(&mut connection, &["SET", "x", "y", "PX", "1"]).expect("a write");
    let heard = ask::<usize>(&mut connection, &["WAIT", &count.to_string(), "20000"]);
    assert_eq!(heard, Ok(count), "all replicas hear");
    (master, replicas)
}

/// Number of replicas that are up to date, or nearly.
pub fn connected(master: &Redis) -> usize {
    let (_, _, replicas) = master.ask::<(String, u64, Vec<(String, String, String)>)>(&["ROLE"]);
    replicas.len()
}

/// From now on no replica receives anything from the master.
pub fn cut_off_replicas(master: &Redis) {
    master.ask::<()>(&["ACL", "SETUSER", "follower", "off"]);
    master.ask::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]);
    wait_until("the replicas are cut off", || connected(master) == 0);
}

/// Whether a server says that it is a master. A server hangs up on its clients when it becomes one.
pub fn is_master(server: &Redis) -> bool {
    let role = redis::Client::open(format!("redis+unix://{}", server.socket().display()))
        .and_then(|client| client.get_connection())
        .and_then(|mut connection| ask::<Vec<redis::Value>>(&mut connection, &["ROLE"]));
    role.is_ok_and(|role| role.first() == Some(&redis::Value::BulkString(b"master".to_vec())))
}

//! What must be gone when a round is over: jobs, waiters, keys, files.

use super::crowd::Crowd;
use super::groups::Groups;
use super::judge::{Hit, Run};
use super::nemesis::belongs;
use super::site::{StoreSide, on_disk};
use super::{Arrangement, FORGOTTEN};
use crate::support::redis::Redis;
use crate::support::sentinel::Sentinel;
use crate::support::wait::PATIENCE;
use crate::support::world::World;
use crate::support::{cluster, proc};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Processes and files that are of no use any more.
pub fn what_is_left(world: &World, crowd: &Crowd, store: &StoreSide) -> Vec<String> {
    let home = world.path("");
    let home = home.as_os_str().as_encoded_bytes();
    let left = || -> Vec<String> {
        let ours = |pid: &i32| matches!(proc::name(*pid).as_str(), "dlock" | "dlock-guard" | "night-job");
        let all = proc::pids().into_iter().filter(ours).filter(|pid| belongs(*pid, home));
        all.map(|pid| format!("process {pid}: {}", proc::arguments(pid))).collect()
    };
    let deadline = Instant::now() + PATIENCE;
    while !left().is_empty() && Instant::now() < deadline {
        sleep(Duration::from_millis(50));
    }
    let mut left = left();
    if store.arrangement == Arrangement::File {
        // Leftovers of dead clients are removed by the next client that takes the lock, and then by
        // one that lists all locks; those of a client that had lost its place, when its ticket is
        // void.
        let deadline = Instant::now() + FORGOTTEN;
        let mut files = files_without_a_use(world, crowd);
        while !files.is_empty() && Instant::now() < deadline {
            files = files_without_a_use(world, crowd);
        }
        left.extend(files);
    }
    left
}

/// Leftovers of holders and waiters in a database, in etcd or in ZooKeeper.
pub fn left_in_store(world: &World, crowd: &Crowd, store: &StoreSide) -> Vec<String> {
    let left = store.left_of_the_dead(world, crowd.keys().len());
    if left.is_empty() {
        return left;
    }
    // A dead client's place is removed when the next client takes the lock.
    take_each_lock(world, crowd);
    let deadline = Instant::now() + FORGOTTEN;
    loop {
        let left = store.left_of_the_dead(world, crowd.keys().len());
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        sleep(Duration::from_millis(200));
    }
}

/// Control groups in which jobs were stopped. The group of a killed maker is removed by the next
/// dlock that makes one beside it, and there may be none.
pub fn groups_left(groups: &Groups, runs: &[Run]) -> Vec<String> {
    let kills = |run: &Run| run.hits.iter().any(|(_, hit)| matches!(hit, Hit::KillBoth | Hit::LittleMemory));
    let may_stay = runs.iter().any(kills);
    let left = || -> Vec<String> {
        let left = groups.left().into_iter().filter(|(_, is_in_use)| *is_in_use || !may_stay);
        left.map(|(name, _)| name).collect()
    };
    let deadline = Instant::now() + PATIENCE;
    while !left().is_empty() && Instant::now() < deadline {
        sleep(Duration::from_millis(50));
    }
    left()
}

/// Takes and releases each lock, as a later client would.
fn take_each_lock(world: &World, crowd: &Crowd) {
    for key in crowd.keys() {
        let run = world.run(key, &["-w", "20s"], "true").env("DLOCK_OP_TIMEOUT", "20s");
        drop(run.any_stderr().spawn().output());
    }
}

/// Files that are left in a directory after each lock was taken once more and all are listed, and
/// that are of no use.
fn files_without_a_use(world: &World, crowd: &Crowd) -> Vec<String> {
    take_each_lock(world, crowd);
    let list = world.dlock(["status"]).env("DLOCK_OP_TIMEOUT", "20s");
    drop(list.any_stdout().any_stderr().spawn().output());
    let files = fs::read_dir(on_disk(world)).expect("the store").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    // The FIFO of a client that died before it used it stays for an hour, because it looks like a
    // new one.
    let stays = |name: &str| {
        [".json", ".tmp", ".ends", ".mutex", ".new"].iter().any(|end| name.ends_with(end)) || name == "swept"
    };
    names.filter(|name| !stays(name)).map(|name| format!("file {name}")).collect()
}

pub fn keys_without_an_end(store: &StoreSide) -> Vec<String> {
    let deadline = Instant::now() + FORGOTTEN;
    loop {
        let left = keys_left(store);
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        sleep(Duration::from_millis(200));
    }
}

fn keys_left(store: &StoreSide) -> Vec<String> {
    let mut left = Vec::new();
    // A replica has an earlier state of its master.
    let master = store.sentinels.iter().find_map(Sentinel::try_named);
    let counts = |server: &&Redis| master.is_none_or(|port| port == server.port());
    let fails_over = store.arrangement == Arrangement::Failover;
    let counts = |server: &&Redis| counts(server) && (!fails_over || cluster::is_master(server));
    for server in store.servers.iter().filter(counts) {
        for key in server.keys() {
            if server.ask::<i64>(&["PTTL", &key]) == -1 {
                left.push(format!("{key} has no TTL"));
            }
            if key.starts_with("dlock.queue:") {
                left.push(key);
            }
        }
    }
    left
}

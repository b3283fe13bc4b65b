//! Faults of servers: kills, stops, restarts, failovers, full disks, and slots that move.

use super::super::crowd::now;
use super::super::judge::FULL_DIRECTORY;
use super::super::site::{Arrangement, set_clock};
use super::{HOST, Heal, Nemesis, Profile, SENTINEL};
use crate::support::cluster;
use crate::support::redis::{Redis, ask};
use crate::support::sentinel::Sentinel;

impl Nemesis<'_> {
    pub(super) fn hit_a_server(&mut self) -> bool {
        let count = self.store.servers.len();
        let Some(server) = self.a_server(count) else { return false };
        if count == 1 && self.dice.roll(16) == 0 && self.fill_the_disk() {
            return true;
        }
        let (ms, from) = (self.span(10), now());
        let forgets = self.profile == Profile::Forgetful && self.dice.roll(2) == 0;
        let is_quorum = count > 1;
        match self.dice.roll(8) {
            _ if self.profile == Profile::Jumpy && count == 1 && self.dice.roll(2) == 0 => {
                let ahead = i64::try_from(self.dice.roll(30_000)).expect("milliseconds") - 10_000;
                set_clock(self.world, ahead);
                self.busy.insert(server);
                self.trouble("step the clock", from, 300, Heal::Wait(server));
                self.last_trouble().forgets = true;
            }
            0 | 1 => {
                self.store.pause(server);
                self.busy.insert(server);
                self.trouble("stop a server", from, ms, Heal::Resume(server));
            }
            2 | 3 => {
                self.store.kill(server);
                self.busy.insert(server);
                // A quorum's master that comes back empty is not counted before all leases are
                // over.
                let empty = forgets || is_quorum && self.dice.roll(2) == 0;
                let heal = Heal::StartAgain { server, forgets: empty };
                let kind = if empty { "restart a server without its data" } else { "restart a server" };
                self.trouble(kind, from, ms, heal);
                (self.last_trouble().forgets, self.last_trouble().empties) = (forgets && !is_quorum, empty);
            }
            4 if forgets => {
                self.tell(server, &["FLUSHALL"]);
                self.busy.insert(server);
                self.trouble("flush a server", from, 20, Heal::Wait(server));
                self.last_trouble().forgets = true;
            }
            4 | 5 => {
                self.tell(server, &["CONFIG", "SET", "maxmemory", "1"]);
                self.busy.insert(server);
                self.trouble("fill a server's memory", from, ms, Heal::Memory(server));
            }
            6 => {
                self.tell(server, &["CLIENT", "KILL", "TYPE", "normal"]);
                self.busy.insert(server);
                self.trouble("end all connections of a server", from, 20, Heal::Wait(server));
            }
            _ => {
                self.tell(server, &["SCRIPT", "FLUSH"]);
                self.busy.insert(server);
                self.trouble("flush the scripts", from, 20, Heal::Wait(server));
            }
        }
        true
    }

    /// A server without a fault. Mostly a majority is left.
    pub(super) fn a_server(&mut self, count: usize) -> Option<usize> {
        let server = usize::try_from(self.dice.roll(u64::try_from(count).expect("a few"))).expect("a few");
        let down = self.busy.iter().filter(|at| **at < HOST).count();
        let spared =
            self.busy.contains(&server) || count > 1 && down + 1 > count / 2 && self.dice.roll(4) > 0;
        (!spared).then_some(server)
    }

    pub(super) fn fill_the_disk(&mut self) -> bool {
        if self.store.disk.is_none() || !self.busy.insert(0) {
            return false;
        }
        let (ms, from) = (self.span(10), now());
        self.store.disk.as_ref().expect("it is there").fill();
        let is_directory = self.store.arrangement == Arrangement::File;
        let kind = if is_directory { FULL_DIRECTORY } else { "fill the disk of a server" };
        self.trouble(kind, from, ms, Heal::Clear);
        true
    }

    /// Kills or stops a server that keeps its data.
    #[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
    pub(super) fn kill_or_stop(&mut self, count: usize) -> bool {
        let Some(server) = self.a_server(count) else { return false };
        self.busy.insert(server);
        let (ms, from) = (self.span(10), now());
        if self.dice.roll(2) == 0 {
            self.store.pause(server);
            self.trouble("stop a server", from, ms, Heal::Resume(server));
        } else {
            self.store.kill(server);
            self.trouble("restart a server", from, ms, Heal::StartAgain { server, forgets: false });
        }
        true
    }

    /// A database reads its clock so often that the clock can only be set at a start.
    #[cfg(feature = "sql")]
    pub(super) fn restart_with_another_clock(&mut self) -> bool {
        if !self.busy.insert(0) {
            return false;
        }
        let (ms, from) = (self.span(10), now());
        self.store.kill(0);
        let ahead = i64::try_from(self.dice.roll(30)).expect("seconds") - 10;
        self.store.database.as_mut().expect("it was started").set_clock(ahead);
        self.trouble("step the clock", from, ms, Heal::StartAgain { server: 0, forgets: false });
        self.last_trouble().forgets = true;
        true
    }

    pub(super) fn tell(&self, server: usize, words: &[&str]) {
        drop(ask::<redis::Value>(&mut self.store.servers[server].connect(), words));
    }

    /// Hits a server with a replica that may lack the last grants: whatever promotes the replica
    /// makes the store forget.
    pub(super) fn hit_a_replicated_server(&mut self) -> bool {
        if self.dice.roll(3) == 0 {
            let number = usize::try_from(self.dice.roll(3)).expect("a few");
            if self.busy.insert(SENTINEL + number) {
                self.store.sentinels[number].pause();
                let (ms, from) = (self.span(10), now());
                self.trouble("stop a sentinel", from, ms, Heal::ResumeSentinel(number));
                return true;
            }
            return false;
        }
        if !self.busy.insert(0) {
            return false;
        }
        let from = now();
        let master = self.master_by_sentinels();
        match self.dice.roll(3) {
            0 => {
                self.store.sentinels.iter().any(Sentinel::try_fail_over);
                self.trouble("fail over", from, 6000, Heal::Wait(0));
            }
            1 => {
                self.store.kill(master);
                let ms = 1000 + self.dice.roll(4000);
                // Busy until it is back; the other server has to be the master by then.
                let back = Heal::StartAgain { server: master, forgets: false };
                self.trouble("kill the master", from, ms.max(5000), back);
            }
            _ => {
                let server = usize::try_from(self.dice.roll(2)).expect("two");
                self.store.pause(server);
                let ms = self.span(10);
                self.trouble("stop a server", from, ms, Heal::Resume(server));
            }
        }
        self.last_trouble().forgets = true;
        true
    }

    /// A replica takes over from a master that is dead or silent for two seconds, or on request. It
    /// has all changes only if it asks its master first (FAILOVER).
    pub(super) fn hit_a_cluster_that_fails_over(&mut self) -> bool {
        let count = u64::try_from(self.store.servers.len()).expect("a few");
        let node = usize::try_from(self.dice.roll(count)).expect("a few");
        if self.busy.contains(&0) {
            return false;
        }
        let (is_master, from) = (cluster::is_master(&self.store.servers[node]), now());
        let (ms, away) = (self.span(10), 3000 + self.dice.roll(3000));
        match self.dice.roll(4) {
            0 if !is_master => {
                self.tell(node, &["CLUSTER", "FAILOVER"]);
                self.trouble("fail over", from, 3000, Heal::Wait(0));
            }
            // At once, without asking its master.
            1 if !is_master => {
                self.tell(node, &["CLUSTER", "FAILOVER", "TAKEOVER"]);
                self.trouble("take over", from, 3000, Heal::Wait(0));
            }
            2 if is_master => {
                self.store.kill(node);
                let back = Heal::StartAgain { server: node, forgets: false };
                self.trouble("kill the master", from, away, back);
            }
            3 => {
                self.store.pause(node);
                self.trouble("stop a server", from, ms, Heal::Resume(node));
            }
            _ => return false,
        }
        self.busy.insert(0);
        self.last_trouble().forgets = true;
        true
    }

    pub(super) fn master_by_sentinels(&self) -> usize {
        let port = self.store.sentinels.iter().find_map(Sentinel::try_named);
        self.store.servers.iter().position(|server| Some(server.port()) == port).unwrap_or(0)
    }

    pub(super) fn hit_the_cluster(&mut self) -> bool {
        if !self.busy.insert(0) {
            return false;
        }
        let (from, ms) = (now(), self.span(10));
        let node = usize::try_from(self.dice.roll(3)).expect("three");
        let forgets = self.profile == Profile::Forgetful && self.dice.roll(2) == 0;
        match self.dice.roll(8) {
            0..3 => {
                let keys = self.crowd.keys();
                let key = *self.dice.of(&keys);
                if !move_slot(&self.store.servers, node, &format!("dlock:{key}")) {
                    self.busy.remove(&0);
                    return false;
                }
                self.trouble("move a slot", from, 20, Heal::Wait(0));
            }
            3 => {
                self.store.pause(node);
                self.trouble("stop a server", from, ms, Heal::Resume(node));
            }
            4 => {
                self.store.kill(node);
                let kind = if forgets { "restart a server without its data" } else { "restart a server" };
                self.trouble(kind, from, ms, Heal::StartAgain { server: node, forgets });
                (self.last_trouble().forgets, self.last_trouble().empties) = (forgets, forgets);
            }
            5 | 6 if forgets => {
                self.tell(node, &["FLUSHALL"]);
                self.trouble("flush a server", from, 20, Heal::Wait(0));
                self.last_trouble().forgets = true;
            }
            5 => {
                self.tell(node, &["CONFIG", "SET", "maxmemory", "1"]);
                self.trouble("fill a server's memory", from, ms, Heal::Memory(node));
            }
            6 => {
                self.tell(node, &["CLIENT", "KILL", "TYPE", "normal"]);
                self.trouble("end all connections of a server", from, 20, Heal::Wait(0));
            }
            _ => {
                self.tell(node, &["SCRIPT", "FLUSH"]);
                self.trouble("flush the scripts", from, 20, Heal::Wait(0));
            }
        }
        true
    }
}

/// Moves the slot of a key to a node with its keys. Returns whether it was elsewhere.
fn move_slot(nodes: &[Redis], to: usize, key: &str) -> bool {
    let slot = nodes[0].ask::<u32>(&["CLUSTER", "KEYSLOT", key]).to_string();
    let owns = |node: &Redis| {
        let mut connection = node.connect();
        let slot = slot.parse::<u32>().expect("a slot");
        let own = ask::<String>(&mut connection, &["CLUSTER", "NODES"]).unwrap_or_default();
        own.lines().find(|line| line.contains("myself")).is_some_and(|line| {
            line.split(' ').skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(a), Ok(b)) if (a..=b).contains(&slot))
            })
        })
    };
    let Some(from) = nodes.iter().position(owns).filter(|from| *from != to) else { return false };
    let (from, to) = (&nodes[from], &nodes[to]);
    let [source, target]: [String; 2] = [from, to].map(|node| node.ask(&["CLUSTER", "MYID"]));
    to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
    from.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    let port = to.port().to_string();
    loop {
        let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        if keys.is_empty() {
            break;
        }
        for key in keys {
            from.ask::<String>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    }
    for node in [to, from].into_iter().chain(nodes) {
        node.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
    }
    true
}

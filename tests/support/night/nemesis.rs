//! The nemesis makes the faults of a night: processes and servers are killed and stopped, networks
//! lose and delay, clocks step. A seed decides which, when and where; each fault is recorded for
//! the judge.

mod processes;
mod servers;

use super::crowd::{Crowd, now};
use super::hosts::Host;
use super::judge::{Hit, SECOND, Time, Trouble};
use super::network::{Link, Weather};
use super::site::{Arrangement, StoreSide};
use crate::support::proc;
use crate::support::redis::ask;
use crate::support::storm::Dice;
use crate::support::world::World;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

/// The faults that a round may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// No fault of the store: only processes are hit.
    Calm,
    /// All faults that must not change which client holds a lock.
    Safe,
    /// The same, and no process is left or able to stop a job: dlock and its guard are killed or
    /// stopped together.
    Unguarded,
    /// As `Unguarded`, and the store forgets.
    Forgetful,
    /// As `Unguarded`, and the store's clock jumps.
    Jumpy,
    /// All connections of a host are cut at once while the servers run: no job may be stopped for
    /// that.
    Cut,
    /// As `Cut`, and the servers are far away: 0.1 to 0.3 s per round trip. Leases are three times
    /// as long.
    SlowLine,
}

impl Profile {
    /// Factor on the length of leases.
    pub fn stretch(self) -> u64 {
        if self == Self::SlowLine { 3 } else { 1 }
    }
}

/// How long a fault may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outages {
    /// Less than half a lease: every lease outlasts that.
    Short,
    /// Some faults last longer than a lease.
    Any,
}

/// Makes the faults of a round.
pub struct Nemesis<'a> {
    pub dice: Dice,
    pub profile: Profile,
    pub outages: Outages,
    pub store: &'a mut StoreSide,
    pub hosts: &'a [Host],
    pub world: &'a World,
    pub crowd: &'a Crowd<'a>,
    /// Number of faults of each kind.
    pub counts: BTreeMap<&'static str, usize>,
    pub troubles: Vec<Trouble>,
    /// Repairs that are due, with their times.
    open: Vec<(Time, Heal, Option<Trouble>)>,
    /// Servers with a fault, and hosts, numbered from 100 on.
    busy: BTreeSet<usize>,
    /// The weather of a network without a fault.
    usual: Weather,
}

enum Heal {
    /// Continues the processes of a run: pidfds, the run's process, and its id.
    Continue(Vec<OwnedFd>, i32, u64),
    Resume(usize),
    StartAgain {
        server: usize,
        forgets: bool,
    },
    Fair {
        host: usize,
        server: usize,
    },
    Plug(usize),
    /// Waits until the host can reach this machine again.
    Reach(usize),
    /// Waits until the server serves.
    Serve(usize),
    Memory(usize),
    ResumeSentinel(usize),
    /// Waits: the trouble of a server, or of all, is over by then.
    Wait(usize),
    /// Only the trouble ends.
    Nothing,
    /// Frees the disk.
    Clear,
}

/// Programs that take a lock and start a job. dlock's guard is hit separately.
const LOCKERS: [&str; 4] = ["dlock", "flock", "etcdctl", "python3"];
/// A network of a host, in [`Nemesis::busy`].
const HOST: usize = 100;
const SENTINEL: usize = 200;
/// Longest time for which a restarted master of a quorum is not counted.
const NOT_COUNTED: Time = 8_000_000_000;

impl<'a> Nemesis<'a> {
    pub fn new(
        dice: Dice,
        profile: Profile,
        outages: Outages,
        store: &'a mut StoreSide,
        hosts: &'a [Host],
        world: &'a World,
        crowd: &'a Crowd<'a>,
    ) -> Self {
        let (counts, troubles, open, busy, usual) = <_>::default();
        let mut this =
            Self { dice, profile, outages, store, hosts, world, crowd, counts, troubles, open, busy, usual };
        if profile == Profile::SlowLine {
            this.usual = Weather::Delay(Duration::from_millis(50 + this.dice.roll(100)));
            this.store.links.iter().flatten().for_each(|link| link.set(this.usual));
        }
        this
    }

    /// Makes faults until then, and repairs everything at the end.
    pub fn rage(&mut self, until: Time) {
        while now() < until {
            let pause = 30 + self.dice.roll(500);
            let next = now() + pause * 1_000_000;
            while now() < next.min(until) {
                self.heal(now());
                sleep(Duration::from_millis(5));
            }
            let spares = self.profile == Profile::Calm || self.dice.roll(2) == 0;
            if spares || !self.hit_the_store() {
                // Some of the live runs have ended meanwhile, or have no job.
                let _hit = (0..8).any(|_| self.hit_a_process());
            }
        }
        let patient = now() + 60 * SECOND;
        while !self.open.is_empty() {
            assert!(now() < patient, "a server does not come back");
            self.heal(Time::MAX);
            sleep(Duration::from_millis(5));
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn heal(&mut self, now_or_all: Time) {
        let (due, rest) = std::mem::take(&mut self.open).into_iter().partition(|(at, ..)| *at <= now_or_all);
        self.open = rest;
        for (at, heal, trouble) in due {
            match heal {
                Heal::Continue(processes, pid, id) => {
                    // The process id may belong to another run by now.
                    if let Some(run) = self.crowd.live().get_mut(&pid).filter(|run| run.id == id) {
                        run.hits.push((now(), Hit::Continue));
                    }
                    for process in processes {
                        let _gone = pidfd_send_signal(&process, Signal::CONT);
                    }
                }
                Heal::Resume(server) => {
                    self.store.resume(server);
                    self.open.push((now(), Heal::Serve(server), trouble));
                    continue;
                }
                Heal::Serve(server) => {
                    // The others accept a server that they took for dead only a while after it is
                    // back.
                    if !self.store.serves(server) {
                        self.open.push((now() + 50_000_000, Heal::Serve(server), trouble));
                        continue;
                    }
                    self.free(server);
                }
                Heal::Clear => {
                    self.store.disk.as_ref().expect("it was filled").clear();
                    // A server notices that within a second or two.
                    self.open.push((now() + 2_500_000_000, Heal::Wait(0), trouble));
                    continue;
                }
                Heal::StartAgain { server, forgets } => {
                    self.store.start_again(self.world, server, forgets);
                    if matches!(self.store.arrangement, Arrangement::Quorum(_)) {
                        // A restarted master is not counted before it has been up for as long as a
                        // lease may last.
                        self.open.push((now() + NOT_COUNTED, Heal::Wait(server), trouble));
                        continue;
                    }
                    self.open.push((now(), Heal::Serve(server), trouble));
                    continue;
                }
                Heal::Fair { host, server } => {
                    self.store.links[host][server].set(self.usual);
                    self.busy.remove(&(HOST + host));
                }
                Heal::Plug(host) => {
                    self.hosts[host].plug(true);
                    self.open.push((now(), Heal::Reach(host), trouble));
                    continue;
                }
                Heal::Reach(host) => {
                    // The kernel takes up to a second to notice a cable. After three ARP requests
                    // without an answer for this machine's address, it reports a second later that
                    // there is no route, to all programs that have connected meanwhile.
                    if !self.hosts[host].finds_gateway() {
                        self.open.push((now() + 50_000_000, Heal::Reach(host), trouble));
                        continue;
                    }
                    self.busy.remove(&(HOST + host));
                }
                Heal::Memory(server) => {
                    let mut connection = self.store.servers[server].connect();
                    drop(ask::<()>(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]));
                    self.free(server);
                }
                Heal::ResumeSentinel(number) => {
                    self.store.sentinels[number].resume();
                    self.busy.remove(&(SENTINEL + number));
                }
                Heal::Nothing => {}
                Heal::Wait(server) => {
                    // At the end of a round all repairs are due.
                    if now() < at {
                        self.open.push((at, Heal::Wait(server), trouble));
                        continue;
                    }
                    self.busy.remove(&server);
                }
            }
            if let Some(trouble) = trouble {
                self.troubles.push(Trouble { until: now(), ..trouble });
            }
        }
    }

    /// If servers form a group, only one of them at a time has a fault.
    fn free(&mut self, server: usize) {
        let together = matches!(
            self.store.arrangement,
            Arrangement::Sentinel | Arrangement::Cluster | Arrangement::Failover
        );
        self.busy.remove(if together { &0 } else { &server });
    }

    /// Records a trouble that begins now, and its repair after `ms` milliseconds.
    fn trouble(&mut self, kind: &'static str, from: Time, ms: u64, heal: Heal) {
        self.count(kind);
        let trouble = Trouble { kind, from, until: 0, forgets: false, empties: false };
        self.open.push((now() + ms * 1_000_000, heal, Some(trouble)));
    }

    fn last_trouble(&mut self) -> &mut Trouble {
        self.open.last_mut().and_then(|(.., trouble)| trouble.as_mut()).expect("it was pushed before")
    }

    /// Length of an outage: mostly one that a lease outlasts; otherwise one that outlasts the lease
    /// of the long jobs, so that a job that still runs meets its successor.
    fn span(&mut self, sides: u64) -> u64 {
        match self.dice.roll(sides) {
            _ if self.outages == Outages::Short => 20 + self.dice.roll(1000),
            0 => 3200 + self.dice.roll(3500),
            1 => 1500 + self.dice.roll(2000),
            _ => 20 + self.dice.roll(1000),
        }
    }

    /// Makes a fault of the store. Returns false if no part was without a fault.
    fn hit_the_store(&mut self) -> bool {
        if matches!(self.profile, Profile::Cut | Profile::SlowLine) {
            return self.cut_a_host();
        }
        match self.store.arrangement {
            Arrangement::File => self.dice.roll(8) == 0 && self.fill_the_disk(),
            Arrangement::Single | Arrangement::Quorum(_) => {
                if self.dice.roll(2) == 0 {
                    self.hit_a_network()
                } else {
                    self.hit_a_server()
                }
            }
            Arrangement::Sentinel => self.hit_a_replicated_server(),
            Arrangement::Cluster if !self.store.links[0].is_empty() && self.dice.roll(2) == 0 => {
                self.hit_a_network()
            }
            Arrangement::Cluster => self.hit_the_cluster(),
            Arrangement::Failover => self.hit_a_cluster_that_fails_over(),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) if self.dice.roll(4) > 0 => self.hit_a_network(),
            #[cfg(feature = "sql")]
            Arrangement::Database(_) => match self.dice.roll(4) {
                0 | 1 if self.profile == Profile::Jumpy => self.restart_with_another_clock(),
                2 => self.fill_the_disk() || self.kill_or_stop(1),
                _ => self.kill_or_stop(1),
            },
            #[cfg(feature = "etcd")]
            Arrangement::Etcd if self.dice.roll(3) > 0 => self.hit_a_network(),
            #[cfg(feature = "etcd")]
            Arrangement::Etcd => self.kill_or_stop(3),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper if self.dice.roll(3) > 0 => self.hit_a_network(),
            #[cfg(feature = "zookeeper")]
            Arrangement::ZooKeeper => self.kill_or_stop(3),
        }
    }

    /// Cuts each host once within the longest lease: the promise covers one cut.
    fn cut_a_host(&mut self) -> bool {
        let host = usize::try_from(self.dice.roll(3)).expect("a few");
        if !self.busy.insert(HOST + host) {
            return false;
        }
        let from = now();
        self.store.links[host].iter().for_each(Link::cut);
        // A trouble this short explains no lost lock.
        self.trouble("cut connections", from, 50, Heal::Nothing);
        let later = from + 5 * self.profile.stretch() * SECOND;
        self.open.push((later, Heal::Wait(HOST + host), None));
        true
    }

    fn hit_a_network(&mut self) -> bool {
        let host = usize::try_from(self.dice.roll(3)).expect("a few");
        if !self.busy.insert(HOST + host) {
            return false;
        }
        let (ms, from) = (self.span(6), now());
        if self.hosts[host].is_apart() && self.dice.roll(4) == 0 {
            self.hosts[host].plug(false);
            self.trouble("pull a host's cable", from, ms, Heal::Plug(host));
            return true;
        }
        let count = u64::try_from(self.store.links[host].len()).expect("a few");
        let server = usize::try_from(self.dice.roll(count)).expect("a few");
        let delay = Duration::from_millis(1 + self.dice.roll(150));
        let weathers = [
            ("delay packets", Weather::Delay(delay)),
            ("lose replies", Weather::RepliesLost),
            ("half-open connections", Weather::HalfOpen),
            ("deliver late", Weather::Late),
            ("refuse connections", Weather::Refused),
            ("cut connections", Weather::Fair),
        ];
        let (kind, weather) = *self.dice.of(&weathers);
        let link = &self.store.links[host][server];
        link.set(weather);
        if matches!(weather, Weather::Fair | Weather::Refused) {
            link.cut();
        }
        self.trouble(kind, from, ms, Heal::Fair { host, server });
        true
    }
}

/// Whether the process belongs to a round.
pub fn belongs(pid: i32, home: &[u8]) -> bool {
    proc::has_in_environment(pid, home) && proc::alive(pid)
}

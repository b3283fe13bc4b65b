//! Whatever can go wrong in a night, made to go wrong: processes are killed and stopped, servers too, networks lose and delay,
//! clocks step. Which, when and whom a seed decides; what was done is written down for the judge.

use super::check::{FULL_DIRECTORY, Hit, Kind, SECOND, Time, Trouble};
use super::crowd::{Crowd, now};
use super::hosts::Host;
use super::network::{Link, Weather};
use super::site::{Arrangement, StoreSide, set_clock};
use crate::support::cluster;
use crate::support::proc;
use crate::support::redis::{Redis, ask};
use crate::support::sentinel::Sentinel;
use crate::support::storm::Dice;
use crate::support::world::World;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

/// What a round may do to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Nothing: only processes are hit.
    Calm,
    /// Everything that must make no difference to who holds a lock.
    Safe,
    /// The same, and nobody is left to stop a job, or nobody can: dlock and its guard are killed or stopped together.
    Unguarded,
    /// Nobody is left, and the store forgets.
    Forgetful,
    /// Nobody is left, and its clock jumps.
    Jumpy,
    /// All connections of a host are cut at once, and the servers go on: no job may be stopped for that.
    Cut,
    /// The same, and the servers are far away: 0.1 to 0.3 s there and back. Leases are three times as long.
    SlowLine,
}

impl Profile {
    /// How many times as long leases are as in other rounds.
    pub fn stretch(self) -> u64 {
        if self == Self::SlowLine { 3 } else { 1 }
    }
}

/// How long what is done may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outages {
    /// Less than half a lease, which every lease outlasts.
    Short,
    /// Some of them longer than a lease.
    Any,
}

/// The one who does it.
pub struct Nemesis<'a> {
    pub dice: Dice,
    pub profile: Profile,
    pub outages: Outages,
    pub store: &'a mut StoreSide,
    pub hosts: &'a [Host],
    pub world: &'a World,
    pub crowd: &'a Crowd<'a>,
    /// How often each kind of fault was made.
    pub counts: BTreeMap<&'static str, usize>,
    pub troubles: Vec<Trouble>,
    /// What is to be put right, and when.
    open: Vec<(Time, Heal, Option<Trouble>)>,
    /// Servers, or hosts as numbers from 100 on, that something is the matter with.
    busy: BTreeSet<usize>,
    /// The weather when nothing is done to a network.
    usual: Weather,
}

enum Heal {
    /// What a run had going on; the run's process, and its number.
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
    /// Nothing is done; it is over when the host finds this machine again.
    Reach(usize),
    /// Nothing is done; it is over when the server serves.
    Serve(usize),
    Memory(usize),
    ResumeSentinel(usize),
    /// Nothing is done; the trouble of a server, or of all, is over by then.
    Wait(usize),
    /// Nothing is done; the trouble is over.
    Nothing,
    /// There is room on the disk again.
    Clear,
}

/// What takes a lock and starts a job. dlock's guard is something else.
const LOCKERS: [&str; 4] = ["dlock", "flock", "etcdctl", "python3"];
/// A network of a host, in [`Nemesis::busy`].
const HOST: usize = 100;
const SENTINEL: usize = 200;
/// How long a master of a quorum is not counted after a restart, at most.
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

    /// Does harm until then, and puts everything right at the end.
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
                // Some of those who live have ended meanwhile, or have no job.
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
                    // The process may be another run's by now.
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
                    // What the others took for dead they take back a while after it is there again.
                    if !self.store.serves(server) {
                        self.open.push((now() + 50_000_000, Heal::Serve(server), trouble));
                        continue;
                    }
                    self.free(server);
                }
                Heal::Clear => {
                    self.store.disk.as_ref().expect("it was filled").clear();
                    // A server finds that out within a second or two.
                    self.open.push((now() + 2_500_000_000, Heal::Wait(0), trouble));
                    continue;
                }
                Heal::StartAgain { server, forgets } => {
                    self.store.start_again(self.world, server, forgets);
                    if matches!(self.store.arrangement, Arrangement::Quorum(_)) {
                        // It is not counted before it has been up for as long as a lease may last.
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
                    // The kernel takes up to a second to notice a cable; and who asked for this machine's address three times
                    // in vain is told a second after that that there is no route, with all who have asked meanwhile.
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
                    // At the end of a round, too.
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

    /// Where servers belong together, one of them at a time is hit, whichever it is.
    fn free(&mut self, server: usize) {
        let together = matches!(
            self.store.arrangement,
            Arrangement::Sentinel | Arrangement::Cluster | Arrangement::Failover
        );
        self.busy.remove(if together { &0 } else { &server });
    }

    /// Notes a trouble that begins now, and how it ends after so many milliseconds.
    fn trouble(&mut self, kind: &'static str, from: Time, ms: u64, heal: Heal) {
        self.count(kind);
        let trouble = Trouble { kind, from, until: 0, forgets: false, empties: false };
        self.open.push((now() + ms * 1_000_000, heal, Some(trouble)));
    }

    fn last_trouble(&mut self) -> &mut Trouble {
        self.open.last_mut().and_then(|(.., trouble)| trouble.as_mut()).expect("it was pushed before")
    }

    /// Of an outage: mostly one that a lease outlasts; else one that outlasts the lease of those whose jobs are long, so
    /// that what still runs then meets who is next.
    fn span(&mut self, sides: u64) -> u64 {
        match self.dice.roll(sides) {
            _ if self.outages == Outages::Short => 20 + self.dice.roll(1000),
            0 => 3200 + self.dice.roll(3500),
            1 => 1500 + self.dice.roll(2000),
            _ => 20 + self.dice.roll(1000),
        }
    }

    /// Whether there was somebody to hit.
    fn hit_a_process(&mut self) -> bool {
        let is_lenient = match self.profile {
            Profile::Calm | Profile::Safe | Profile::Cut | Profile::SlowLine => false,
            Profile::Unguarded => self.dice.roll(2) == 0,
            Profile::Forgetful | Profile::Jumpy => true,
        };
        let (what, hit) = *self.dice.of(if is_lenient {
            &[("kill dlock and guard", Hit::KillBoth), ("stop a whole tree", Hit::StopAll)]
        } else {
            &[
                ("kill dlock", Hit::KillDlock),
                ("kill dlock", Hit::KillDlock),
                ("kill the guard", Hit::KillGuard),
                ("kill the job", Hit::KillJob),
                ("stop dlock", Hit::Stop),
                ("stop the guard", Hit::Stop),
                ("stop the job", Hit::StopJob),
                ("interrupt dlock", Hit::Interrupt),
                ("terminate dlock", Hit::Interrupt),
            ]
        });
        let is_long = self.outages == Outages::Any && self.dice.roll(4) == 0;
        let ms = if is_long { 2000 + self.dice.roll(5000) } else { 5 + self.dice.roll(600) };
        let mut live = self.crowd.live();
        let candidates: Vec<i32> = live.keys().copied().collect();
        if candidates.is_empty() {
            return false;
        }
        let pid = *self.dice.of(&candidates);
        let Some(run) = live.get_mut(&pid) else { return false };
        // Who stops dlock and then kills its guard leaves nobody to stop the job.
        let may_be_hit_again = matches!(self.profile, Profile::Forgetful | Profile::Jumpy);
        if !may_be_hit_again && run.hits.iter().any(|(_, hit)| !matches!(hit, Hit::FewFiles | Hit::FewTasks))
        {
            return false;
        }
        // A tree without anything but dlock waits, and is a good target, too.
        let tree = Crowd::below(pid);
        let opened = |name: &dyn Fn(&str) -> bool| -> Vec<OwnedFd> {
            let found = tree.iter().filter(|(_, comm)| name(comm));
            found.filter_map(|(pid, _)| pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()).collect()
        };
        let targets = match (hit, what) {
            (Hit::KillDlock | Hit::Interrupt, _) | (Hit::Stop, "stop dlock") => {
                opened(&|name| LOCKERS.contains(&name))
            }
            (Hit::KillGuard | Hit::Stop, _) => opened(&|name| name == "dlock-guard"),
            (Hit::KillJob | Hit::StopJob, _) => opened(&|name| name == "night-job"),
            (Hit::KillBoth, _) => opened(&|name| name.starts_with("dlock")),
            _ => opened(&|name| name.starts_with("dlock") || name == "night-job"),
        };
        // What has a pidfd now is what was found if it is below the run still: numbers are given out again.
        let still: BTreeSet<i32> = Crowd::below(pid).into_iter().map(|(pid, _)| pid).collect();
        if targets.is_empty() || !tree.iter().all(|(pid, _)| still.contains(pid)) {
            return false;
        }
        run.hits.push((now(), hit));
        let signal = match hit {
            Hit::KillDlock | Hit::KillGuard | Hit::KillJob | Hit::KillBoth => Signal::KILL,
            Hit::Stop | Hit::StopJob | Hit::StopAll => Signal::STOP,
            _ if what == "terminate dlock" => Signal::TERM,
            _ => Signal::INT,
        };
        for target in &targets {
            let _gone = pidfd_send_signal(target, signal);
        }
        let (is_script, id) = (run.kind == Kind::Script, run.id);
        drop(live);
        self.count(what);
        if signal == Signal::STOP {
            // In a directory one that is stopped in the middle of a change holds the others up.
            let kind = "stopped";
            let holds_up = self.store.arrangement == Arrangement::File && !is_script;
            let trouble = Trouble { kind, from: now(), until: 0, forgets: false, empties: false };
            let trouble = holds_up.then_some(trouble);
            self.open.push((now() + ms * 1_000_000, Heal::Continue(targets, pid, id), trouble));
        }
        true
    }

    /// Whether there was anything that nothing was the matter with.
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

    /// Each host once in the time of the longest lease: the promise is of one cut.
    fn cut_a_host(&mut self) -> bool {
        let host = usize::try_from(self.dice.roll(3)).expect("a few");
        if !self.busy.insert(HOST + host) {
            return false;
        }
        let from = now();
        self.store.links[host].iter().for_each(Link::cut);
        // So short a trouble explains no loss of a lock.
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

    fn hit_a_server(&mut self) -> bool {
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
                // A master of a quorum that comes back empty is not counted before all leases are over.
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

    /// One of so many with which nothing is the matter. Mostly a majority is left.
    fn a_server(&mut self, count: usize) -> Option<usize> {
        let server = usize::try_from(self.dice.roll(u64::try_from(count).expect("a few"))).expect("a few");
        let down = self.busy.iter().filter(|at| **at < HOST).count();
        let spared =
            self.busy.contains(&server) || count > 1 && down + 1 > count / 2 && self.dice.roll(4) > 0;
        (!spared).then_some(server)
    }

    fn fill_the_disk(&mut self) -> bool {
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

    /// One of so many servers, which keep what they know.
    #[cfg(any(feature = "sql", feature = "etcd", feature = "zookeeper"))]
    fn kill_or_stop(&mut self, count: usize) -> bool {
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

    /// A database reads its clock so often that it is steered from a start on only.
    #[cfg(feature = "sql")]
    fn restart_with_another_clock(&mut self) -> bool {
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

    fn tell(&self, server: usize, words: &[&str]) {
        drop(ask::<redis::Value>(&mut self.store.servers[server].connect(), words));
    }

    /// With a replica that may not have heard of the last grants: whatever makes it the master makes the store forget.
    fn hit_a_replicated_server(&mut self) -> bool {
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
                // Busy until it is back; the other one has to be the master by then.
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

    /// A replica takes over from a master that is dead or silent for two seconds, or when it is told to. It has heard all only
    /// where it asks its master first (FAILOVER).
    fn hit_a_cluster_that_fails_over(&mut self) -> bool {
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
            // At once, and without a word with its master.
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

    fn master_by_sentinels(&self) -> usize {
        let port = self.store.sentinels.iter().find_map(Sentinel::try_named);
        self.store.servers.iter().position(|server| Some(server.port()) == port).unwrap_or(0)
    }

    fn hit_the_cluster(&mut self) -> bool {
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

/// Moves the slot of a key to a node, keys and all; whether it was elsewhere.
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

/// Whether the process is one of a round's own.
pub fn belongs(pid: i32, home: &[u8]) -> bool {
    proc::has_in_environment(pid, home) && proc::alive(pid)
}

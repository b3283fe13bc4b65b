//! A night in which everything goes wrong: real runs of every kind on several hosts, a nemesis, and a judge. In rounds, each
//! with one arrangement of the store and one profile of what may be done to it.

pub mod check;
mod crowd;
mod groups;
mod hosts;
pub mod lives;
mod nemesis;
mod network;
mod peers;
mod planted;
mod site;
mod tasks;

use super::cluster;
use super::proc;
use super::redis::Redis;
use super::sentinel::{self, Sentinel};
use super::storm::Dice;
use super::wait::PATIENCE;
use super::world::World;
use check::{
    BUSY, BUSY_AROUND, Ended, Hit, Round, Run, SECOND, Sighting, Told, Trouble, Verdict, judge, seconds,
};
use crowd::{Crowd, REGISTERS, now};
use dlock::rules::TICKET_KEPT;
use groups::Groups;
use hosts::Host;
use nemesis::{Nemesis, belongs};
pub use nemesis::{Outages, Profile};
pub use peers::{Row, Tool};
use serde_json::Value;
pub use site::Arrangement;
use site::{Site, StoreSide, on_disk};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// So long after the one before begins the next one of the crowd.
const ARRIVES_AFTER: Duration = Duration::from_millis(50);
/// After so long a queue has forgotten everybody who is not heard of.
const FORGOTTEN: Duration = TICKET_KEPT.saturating_add(Duration::from_secs(15));

/// What a night came to.
#[derive(Default)]
pub struct Report {
    pub rounds: Vec<String>,
    pub counts: BTreeMap<&'static str, usize>,
    pub grants: usize,
    pub runs: usize,
    pub granted_overlaps: Vec<u64>,
    /// Those that are not granted.
    pub overlaps: usize,
    /// Additions that a register took and does not have.
    pub lost: u64,
    /// Of how many pairs it was judged who came first and who was served first.
    pub pairs: usize,
    pub refused: u64,
    pub accepted: u64,
    pub longest_stall: u64,
    pub faults: Vec<String>,
}

/// What happened in a round, for a judge.
struct Played {
    round: Round,
    counts: BTreeMap<&'static str, usize>,
    raged: Duration,
    complaints: Vec<String>,
}

/// What a round is made of.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub arrangement: Arrangement,
    pub profile: Profile,
    pub outages: Outages,
    pub seed: u64,
    pub workers: usize,
    /// For how long it is raged.
    pub span: Duration,
}

/// Makes one round, and adds what came of it to the report.
pub fn round(plan: Plan, report: &mut Report) {
    let Plan { arrangement, profile, seed, .. } = plan;
    let groups = Groups::new();
    let mut site = Site::new(arrangement);
    let has_queue = !matches!(arrangement, Arrangement::Quorum(_));
    let Site { world, hosts, store, .. } = &mut site;
    let mut crowd = Crowd::new(world, hosts, has_queue);
    crowd.stretch = profile.stretch();
    let mut played = play(&crowd, world, hosts, store, plan);
    let round = &mut played.round;
    (round.has_queue, round.is_calm) = (has_queue, profile == Profile::Calm);
    round.frees_at_once = arrangement == Arrangement::File;
    round.told = tell(world, &crowd.keys());
    round.left_over = what_is_left(world, &crowd, store);
    round.left_over.extend(keys_without_an_end(store));
    round.left_over.extend(left_in_store(world, &crowd, store));
    round.left_over.extend(groups.iter().flat_map(|groups| groups_left(groups, &round.runs)));
    let mut verdict = judge(round);
    verdict.faults.extend(played.complaints.drain(..).map(|what| (check::Fault::Status, what)));
    report.add(arrangement, profile, seed, &played, &verdict);
}

/// The same for whoever takes locks there, with what every tool can do.
pub fn round_of_peers(plan: Plan, tool: Tool, row: &mut Row) {
    let mut site = Site::new(plan.arrangement);
    let Site { world, hosts, store, .. } = &mut site;
    let crowd = Crowd::of_peers(world, hosts, tool);
    let played = play(&crowd, world, hosts, store, plan);
    row.add(&played.round, played.counts.values().sum());
}

fn play(crowd: &Crowd, world: &World, hosts: &[Host], store: &mut StoreSide, plan: Plan) -> Played {
    let Plan { profile, outages, seed, workers, span, .. } = plan;
    let mut round = Round::default();
    let began = Instant::now();
    let mut counts = BTreeMap::new();
    let sentinels: Vec<u16> = store.sentinels.iter().map(Sentinel::port).collect();
    let nodes: Vec<u16> = match store.arrangement {
        Arrangement::Failover => store.servers.iter().map(Redis::port).collect(),
        _ => Vec::new(),
    };
    thread::scope(|scope| {
        for worker in 0..workers {
            let dice = dice(seed, worker + 1);
            // It takes three for a key: one on each host.
            let long = (worker < (workers / 12).max(1) * 3).then_some(worker);
            scope.spawn(move || {
                // All at once they would take the machine for longer than it may take to hand a lock over.
                sleep(ARRIVES_AFTER * u32::try_from(worker).unwrap_or(0));
                crowd.work(dice, long);
            });
        }
        let looks = scope.spawn(|| look(world, crowd));
        let feels = scope.spawn(|| feel(world, crowd, &sentinels, &nodes));
        let mut nemesis = Nemesis::new(dice(seed, 0), profile, outages, store, hosts, world, crowd);
        nemesis.rage(now() + u64::try_from(span.as_nanos()).expect("a night"));
        (round.troubles, counts) = (nemesis.troubles, nemesis.counts);
        crowd.stop();
        let patient = Instant::now() + 2 * PATIENCE;
        while !crowd.live().is_empty() && Instant::now() < patient {
            sleep(Duration::from_millis(20));
        }
        crowd.end_all();
        round.sightings = looks.join().expect("it only looks");
        round.troubles.extend(feels.join().expect("it only starts programs"));
    });
    round.runs = crowd.runs();
    for (_, hit) in round.runs.iter().flat_map(|run| &run.hits) {
        let kind = match hit {
            Hit::FewFiles => "few descriptors",
            Hit::LittleMemory => "little memory",
            Hit::FewTasks => "few processes",
            _ => continue,
        };
        *counts.entry(kind).or_default() += 1;
    }
    round.lives = crowd.book.lives();
    round.registers = (0..REGISTERS).map(|at| (at, crowd.book.register(at))).collect();
    let complaints = std::mem::take(&mut *crowd.complaints.lock().expect("nobody panics"));
    Played { round, counts, raged: began.elapsed(), complaints }
}

/// The dice of one of those who play in a round.
fn dice(seed: u64, who: usize) -> Dice {
    let who = u64::try_from(who).expect("a few");
    let mut dice = Dice(seed.wrapping_add(who << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // Xorshift stays near its seed for a while.
    (0..20).for_each(|_| _ = dice.roll(2));
    dice
}

/// What a busy machine does by itself. Starts a program that needs no store, again and again: when did even that take long?
/// And asks the sentinels, or the nodes of a cluster, when they had another master, for one that gets no processor is dead to
/// them.
fn feel(world: &World, crowd: &Crowd, sentinels: &[u16], nodes: &[u16]) -> Vec<Trouble> {
    let mut felt = Vec::new();
    let by_sentinels = || sentinels.iter().find_map(|sentinel| sentinel::named_by(*sentinel)).map(u64::from);
    // The one that has heard most.
    let by_nodes = || nodes.iter().filter_map(|node| cluster::epoch(*node)).max();
    let named = || by_sentinels().or_else(by_nodes);
    let (mut master, mut asked) = (named(), now());
    while !crowd.live().is_empty() || !crowd.stop.load(Ordering::Relaxed) {
        let from = now();
        drop(world.dlock(["--version"]).any_stdout().any_stderr().spawn().output());
        let at = now();
        if at - from > SECOND / 4 {
            let (from, until) = (from.saturating_sub(BUSY_AROUND), at + BUSY_AROUND);
            felt.push(Trouble { kind: BUSY, from, until, forgets: false, empties: false });
        }
        let before = std::mem::replace(&mut asked, now());
        if named().is_some_and(|new| master.replace(new).is_some_and(|old| old != new)) {
            // The old one may serve for a while still.
            let (from, until) = (before.saturating_sub(SECOND), now() + 6 * SECOND);
            felt.push(Trouble { kind: "another master", from, until, forgets: true, empties: false });
        }
        sleep(Duration::from_millis(100));
    }
    felt
}

/// Looks who waits, again and again.
fn look(world: &World, crowd: &Crowd) -> Vec<Sighting> {
    let mut seen = Vec::new();
    while !crowd.stop.load(Ordering::Relaxed) {
        let output = world.dlock(["status", "--json"]).any_stdout().any_stderr().spawn().output();
        let at = now();
        let locks: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        let live = crowd.live();
        for lock in locks.as_array().into_iter().flatten() {
            let waiting = lock["waiters"].as_array().into_iter().flatten();
            let ids = waiting.filter_map(|waiter| {
                let pid = i32::try_from(waiter["pid"].as_i64()?).ok()?;
                live.get(&pid).map(|run| run.id)
            });
            seen.push(Sighting { at, waiting: ids.collect() });
        }
        drop(live);
        sleep(Duration::from_millis(300));
    }
    seen
}

/// What the store tells of the keys when nobody uses them any more.
fn tell(world: &World, keys: &[&'static str]) -> BTreeMap<&'static str, Told> {
    let ask = |words: &[&str]| {
        world.dlock(words).env("DLOCK_OP_TIMEOUT", "20s").any_stdout().any_stderr().spawn().output().stdout
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    // What was kept for somebody who died is over with his lease; his place in a queue, if nobody else was heard of any more,
    // when it is forgotten.
    let deadline = Instant::now() + FORGOTTEN;
    let status = loop {
        let status = parse(&ask(&[&["status", "--json"], keys].concat()));
        let is_idle = |lock: &Value| lock["state"] == "free" && lock["waiters"] == Value::Array(Vec::new());
        let all = status.as_array().map_or(&[][..], Vec::as_slice);
        if all.len() == keys.len() && all.iter().all(is_idle) || Instant::now() > deadline {
            break status;
        }
        sleep(Duration::from_millis(100));
    };
    let metrics = ask(&[&["metrics"], keys].concat());
    let ended = |end: &Value| Ended {
        fence: end["fence"].as_u64().unwrap_or(0),
        outcome: end["outcome"].as_str().unwrap_or("").to_owned(),
        status: end["exit_status"].as_i64(),
    };
    let told = keys.iter().map(|key| {
        let lock = status.as_array().into_iter().flatten().find(|lock| lock["key"] == *key);
        let count = |start: &str, label: &str| {
            let label = format!("{label}}} ");
            let line = metrics.lines().find(|line| {
                line.starts_with(start) && line.contains(&format!("key=\"{key}\"")) && line.contains(&label)
            });
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
        };
        let history = parse(&ask(&["history", "--json", key]));
        let told = Told {
            history: history.as_array().into_iter().flatten().map(ended).collect(),
            grants: count("dlock_grants_total{", ""),
            succeeded: count("dlock_jobs_total{", "result=\"succeeded\""),
            state: lock.and_then(|lock| lock["state"].as_str()).unwrap_or("unknown").to_owned(),
            waiters: lock.and_then(|lock| lock["waiters"].as_array()).map_or(0, Vec::len),
        };
        (*key, told)
    });
    told.collect()
}

/// Processes and files that nobody needs any more.
fn what_is_left(world: &World, crowd: &Crowd, store: &StoreSide) -> Vec<String> {
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
        // What the dead have left is removed by whoever takes a lock they had, and then by whoever lists all; of one that had
        // lost its place, when its ticket is void.
        let deadline = Instant::now() + FORGOTTEN;
        let mut files = files_without_a_use(world, crowd);
        while !files.is_empty() && Instant::now() < deadline {
            files = files_without_a_use(world, crowd);
        }
        left.extend(files);
    }
    left
}

/// What is left in a database, in etcd or in ZooKeeper of those who held a lock or waited for one.
fn left_in_store(world: &World, crowd: &Crowd, store: &StoreSide) -> Vec<String> {
    let left = store.left_of_the_dead(world, crowd.keys().len());
    if left.is_empty() {
        return left;
    }
    // The place of one who died goes when the next one takes the lock.
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

/// Control groups in which jobs were stopped. One whose maker was killed is removed by the next dlock that makes one beside it, and
/// there may be none.
fn groups_left(groups: &Groups, runs: &[Run]) -> Vec<String> {
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

/// As somebody who comes later.
fn take_each_lock(world: &World, crowd: &Crowd) {
    for key in crowd.keys() {
        let run = world.run(key, &["-w", "20s"], "true").env("DLOCK_OP_TIMEOUT", "20s");
        drop(run.any_stderr().spawn().output());
    }
}

/// What lies in a directory after each lock was taken once more and all are listed, and need not be there.
fn files_without_a_use(world: &World, crowd: &Crowd) -> Vec<String> {
    take_each_lock(world, crowd);
    let list = world.dlock(["status"]).env("DLOCK_OP_TIMEOUT", "20s");
    drop(list.any_stdout().any_stderr().spawn().output());
    let files = fs::read_dir(on_disk(world)).expect("the store").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    // A FIFO of one that died before it was used is left for an hour, for it cannot be told from one that is new.
    let stays =
        |name: &str| [".json", ".mutex", ".new"].iter().any(|end| name.ends_with(end)) || name == "swept";
    names.filter(|name| !stays(name)).map(|name| format!("file {name}")).collect()
}

fn keys_without_an_end(store: &StoreSide) -> Vec<String> {
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
    // A replica has what its master had, some time ago.
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

impl Report {
    fn add(
        &mut self,
        arrangement: Arrangement,
        profile: Profile,
        seed: u64,
        played: &Played,
        verdict: &Verdict,
    ) {
        let Played { round, counts, raged, .. } = played;
        let harm: usize = counts.values().sum();
        let longest = verdict.granted_overlaps.iter().max().copied().unwrap_or(0);
        self.rounds.push(format!(
            "{arrangement:?} {profile:?}, seed {seed}, {:.0} s: {} runs, {} grants, {harm} faults; overlaps: {}, and {} that \
             are granted (at most {:.0} ms); {} additions, {} lost, {} refused; {} pairs in order; longest stall {:.1} s; \
             wrong: {}",
            raged.as_secs_f64(),
            round.runs.len(),
            verdict.grants,
            verdict.overlaps(),
            verdict.granted_overlaps.len(),
            seconds(longest) * 1000.0,
            verdict.accepted,
            verdict.lost,
            verdict.refused,
            verdict.pairs,
            seconds(verdict.longest_stall),
            verdict.faults.len(),
        ));
        println!("{}", self.rounds.last().expect("it was pushed"));
        for (kind, count) in counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.grants += verdict.grants;
        self.runs += round.runs.len();
        self.granted_overlaps.extend(&verdict.granted_overlaps);
        self.overlaps += verdict.overlaps();
        self.lost += verdict.lost;
        self.pairs += verdict.pairs;
        self.refused += verdict.refused;
        self.accepted += verdict.accepted;
        self.longest_stall = self.longest_stall.max(verdict.longest_stall);
        for (number, (fault, what)) in verdict.faults.iter().enumerate() {
            let line = format!("{arrangement:?} {profile:?} seed {seed}: {fault:?}: {what}");
            // Where everything is wrong one sees nothing.
            if number < 20 {
                println!("{line}");
            }
            self.faults.push(line);
        }
    }

    /// The whole night in a few lines.
    pub fn summary(&self, took: Duration) -> String {
        let harm: usize = self.counts.values().sum();
        let mut text = format!(
            "{:.1} min: {} runs, {} grants, {harm} faults\n",
            took.as_secs_f64() / 60.0,
            self.runs,
            self.grants
        );
        for (kind, count) in &self.counts {
            let _ = writeln!(text, "  {count:>5} {kind}");
        }
        let longest = self.granted_overlaps.iter().max().copied().unwrap_or(0);
        let _ = writeln!(
            text,
            "overlaps: {}, and {} within what is granted, the longest {:.0} ms\nlost updates: {}; {} were taken, {} refused \
             as stale\n{} pairs of which it was judged that who came first was served first\nlongest stall {:.1} s; wrong: {}",
            self.overlaps,
            self.granted_overlaps.len(),
            seconds(longest) * 1000.0,
            self.lost,
            self.accepted,
            self.refused,
            self.pairs,
            seconds(self.longest_stall),
            self.faults.len()
        );
        text
    }
}

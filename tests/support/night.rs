//! The fault-injection run (a night): real runs of every kind on several hosts, a nemesis that
//! makes the faults, and a judge. Each round has one arrangement of the store and one profile of
//! faults.

mod crowd;
pub mod foreign;
mod foreign_tests;
mod groups;
pub mod history;
mod hosts;
pub mod judge;
mod leftovers;
pub mod lives;
mod nemesis;
mod network;
mod peers;
mod planted;
mod report;
mod site;
mod tasks;

use super::cluster;
use super::redis::Redis;
use super::sentinel::{self, Sentinel};
use super::storm::Dice;
use super::wait::PATIENCE;
use super::world::World;
use crowd::{Crowd, REGISTERS, now};
use dlock::rules::TICKET_KEPT;
use groups::Groups;
use hosts::Host;
use judge::{BUSY, BUSY_AROUND, Ended, Hit, Round, SECOND, Sighting, Told, Trouble, judge};
use leftovers::{groups_left, keys_without_an_end, left_in_store, what_is_left};
use nemesis::Nemesis;
use serde_json::Value;
use site::{Site, StoreSide};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

pub use nemesis::{Outages, Profile};
pub use report::Report;

pub use peers::{Row, Tool};

pub use site::Arrangement;

/// Time between the starts of two runs of the crowd.
const ARRIVES_AFTER: Duration = Duration::from_millis(50);

/// Time after which a queue has forgotten every waiter that is no longer heard.
const FORGOTTEN: Duration = TICKET_KEPT.saturating_add(Duration::from_secs(15));

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
    /// How long faults are made.
    pub span: Duration,
}

/// Plays one round and adds its result to the report.
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
    round.silence = arrangement.silence();
    round.frees_at_once = arrangement == Arrangement::File;
    round.told = tell(world, &crowd.keys());
    round.left_over = what_is_left(world, &crowd, store);
    round.left_over.extend(keys_without_an_end(store));
    round.left_over.extend(left_in_store(world, &crowd, store));
    round.left_over.extend(groups.iter().flat_map(|groups| groups_left(groups, &round.runs)));
    let mut verdict = judge(round);
    verdict.faults.extend(played.complaints.drain(..).map(|what| (judge::Fault::Status, what)));
    let history = history::of(&played.round);
    history::keep(plan, &history);
    let foreign = foreign::judge(&history);
    verdict.faults.extend(foreign.faults.iter().map(|what| (judge::Fault::NotLinearizable, what.clone())));
    report.add(arrangement, profile, seed, &played, &verdict);
    println!("  {foreign}");
}

/// The same for any tool, with runs that every tool supports.
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
            // Three long runs share a key: one on each host.
            let long = (worker < (workers / 12).max(1) * 3).then_some(worker);
            scope.spawn(move || {
                // Started all at once they would keep the machine busy for longer than a hand-over
                // may take.
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

/// The dice of one player in a round.
fn dice(seed: u64, who: usize) -> Dice {
    let who = u64::try_from(who).expect("a few");
    let mut dice = Dice(seed.wrapping_add(who << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // Xorshift stays near its seed for a while.
    (0..20).for_each(|_| _ = dice.roll(2));
    dice
}

/// Notes what a busy machine does by itself. It starts a program that needs no store again and
/// again, and notes when even that took long. It also asks the sentinels, or the cluster's nodes,
/// when their master changed: they take a master without processor time for dead.
fn feel(world: &World, crowd: &Crowd, sentinels: &[u16], nodes: &[u16]) -> Vec<Trouble> {
    let mut felt = Vec::new();
    let by_sentinels = || sentinels.iter().find_map(|sentinel| sentinel::named_by(*sentinel)).map(u64::from);
    // The node with the newest configuration.
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
            // The old master may serve for a while.
            let (from, until) = (before.saturating_sub(SECOND), now() + 6 * SECOND);
            felt.push(Trouble { kind: "another master", from, until, forgets: true, empties: false });
        }
        sleep(Duration::from_millis(100));
    }
    felt
}

/// Reads the holders and waiters again and again.
fn look(world: &World, crowd: &Crowd) -> Vec<Sighting> {
    let mut seen = Vec::new();
    while !crowd.stop.load(Ordering::Relaxed) {
        let from = now();
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
            let holders = lock["holders"].as_array().into_iter().flatten();
            let fences = holders.filter_map(|holder| holder["fence"].as_u64()).collect();
            let key = lock["key"].as_str().unwrap_or_default().to_owned();
            seen.push(Sighting { from, at, key, fences, waiting: ids.collect() });
        }
        drop(live);
        sleep(Duration::from_millis(300));
    }
    seen
}

/// The statistics and histories of the keys when no client uses them any more.
fn tell(world: &World, keys: &[&'static str]) -> BTreeMap<&'static str, Told> {
    let ask = |words: &[&str]| {
        world.dlock(words).env("DLOCK_OP_TIMEOUT", "20s").any_stdout().any_stderr().spawn().output().stdout
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    // What was retained for a dead client ends with its lease. Its place in a queue, if no other
    // client was heard since, ends when the ticket is forgotten.
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

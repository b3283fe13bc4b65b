//! The same night for other tools and libraries with the same purpose as dlock, with one store
//! each, and the counts of their nights.

use super::judge::{Outcome, Round, Time, exclude, lived, seconds};
use super::site::Arrangement;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

/// The tool that takes a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Dlock,
    /// flock(1), on one machine.
    Flock,
    /// `Lock` of redis-py, renewed by a thread.
    RedisPy,
    #[cfg(feature = "etcd")]
    Etcdctl,
    /// ZooKeeper's recipe, by kazoo.
    #[cfg(feature = "zookeeper")]
    Kazoo,
}

impl Tool {
    /// Each of the other tools after dlock, on the same store.
    pub fn pairs() -> Vec<(Arrangement, Self)> {
        let peers = [
            (Arrangement::File, Self::Flock),
            (Arrangement::Single, Self::RedisPy),
            #[cfg(feature = "etcd")]
            (Arrangement::Etcd, Self::Etcdctl),
            #[cfg(feature = "zookeeper")]
            (Arrangement::ZooKeeper, Self::Kazoo),
        ];
        peers.into_iter().flat_map(|(store, peer)| [(store, Self::Dlock), (store, peer)]).collect()
    }

    /// The words before a command that run it under a lock and wait for the lock without a limit.
    pub fn words(self, url: &str, key: &str, ttl_ms: u64) -> Vec<OsString> {
        let (_, place) = url.split_once(':').expect("a URL");
        let place = place.trim_start_matches("//");
        let words: Vec<String> = match self {
            Self::Dlock => Vec::new(),
            Self::Flock => vec!["flock".into(), format!("{place}/{key}")],
            Self::RedisPy => library("redis-py", url, key, ttl_ms),
            #[cfg(feature = "etcd")]
            Self::Etcdctl => {
                let ttl = ttl_ms.div_ceil(1000);
                let own = ["sh", "-c", "DLOCK_FENCE=$ETCD_LOCK_REV exec \"$@\"", "sh"];
                ["etcdctl", "--endpoints", place, "lock", "--ttl", &ttl.to_string(), key, "--"]
                    .into_iter()
                    .chain(own)
                    .map(String::from)
                    .collect()
            }
            #[cfg(feature = "zookeeper")]
            Self::Kazoo => library("kazoo", place.split('/').next().expect("servers"), key, ttl_ms),
        };
        words.into_iter().map(OsString::from).collect()
    }
}

fn library(name: &str, store: &str, key: &str, ttl_ms: u64) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/night/peers.py");
    let ttl = std::time::Duration::from_millis(ttl_ms).as_secs_f64().to_string();
    // Debian's Python, which has Debian's packages.
    vec!["/usr/bin/python3".into(), script.display().to_string(), name.into(), store.into(), key.into(), ttl]
}

/// A line of the table.
#[derive(Debug, Default)]
pub struct Row {
    pub grants: usize,
    pub faults: usize,
    pub overlaps: Vec<Time>,
    /// Increments that a register accepted and does not have.
    pub lost: u64,
    /// Jobs that ran for longer than a lease after the process that had taken their lock was gone.
    pub orphans: usize,
    /// Jobs that failed, were killed or never ran, without an error.
    pub swallowed: usize,
}

impl Row {
    pub const HEAD: &str = "| | grants | faults | overlaps | the longest | updates lost | orphans | statuses swallowed |\n\
        |---|---|---|---|---|---|---|---|";

    /// Adds the result of a round.
    pub fn add(&mut self, round: &Round, faults: usize) {
        let lived = lived(round);
        self.grants += lived.len();
        self.faults += faults;
        for (at, new) in lived.iter().enumerate() {
            let meets = lived[..at].iter().filter(|old| {
                exclude(**old, *new) && old.run.id != new.run.id && old.life.last > new.life.start
            });
            self.overlaps.extend(meets.map(|old| old.life.last.min(new.life.last) - new.life.start));
        }
        let mut taken: BTreeMap<usize, u64> = BTreeMap::new();
        for lived in &lived {
            for (at, register) in lived.run.registers.iter().enumerate() {
                *taken.entry(*register).or_default() += lived.life.accepted[at];
            }
        }
        let lost =
            |(at, sum): (&usize, &u64)| sum.saturating_sub(round.registers.get(at).copied().unwrap_or(0));
        self.lost += taken.iter().map(lost).sum::<u64>();
        self.orphans += lived.iter().filter(|one| one.life.last > one.run.ended + one.run.ttl).count();
        let well: Vec<u64> =
            lived.iter().filter(|one| one.life.ended && one.run.wanted == 0).map(|one| one.run.id).collect();
        let silent =
            round.runs.iter().filter(|run| run.outcome == Outcome::Status(0) && !well.contains(&run.id));
        self.swallowed += silent.count();
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grants, faults, overlaps, lost, orphans, swallowed } = self;
        let longest = overlaps
            .iter()
            .max()
            .map_or_else(|| "–".to_owned(), |longest| format!("{:.1} s", seconds(*longest)));
        write!(f, "{grants} | {faults} | {} | {longest} | {lost} | {orphans} | {swallowed}", overlaps.len())
    }
}

//! Facts about a store that matter to locks, as the probes of the stores find them.
//! `commands::doctor` judges them. A fact that the store does not tell is None.

use crate::clock::Moment;
use crate::store::Error;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most round trips that are measured.
const ROUND_TRIPS: usize = 50;
/// Time after which no further round trip is measured.
const MEASURED_WITHIN: Duration = Duration::from_secs(1);

/// What was found out about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survey {
    Servers {
        nodes: Vec<Node>,
        /// Time without an answer from a master after which sentinels or the cluster replace it.
        /// None if nothing replaces it, or the time is not known.
        failover: Option<Duration>,
    },
    /// Independent Redis servers, of which a majority holds locks.
    Masters(Vec<Node>),
    Directory(Directory),
    /// A database, or why it gave no answer.
    Database(Result<Database, Error>),
    /// An ensemble of ZooKeeper.
    Ensemble(Ensemble),
}

/// Facts about an ensemble of ZooKeeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensemble {
    /// The servers in the URL, and what each says of itself.
    pub members: Vec<(String, Result<Member, Error>)>,
    /// The slowest of up to 50 requests, and the offset of the leader's clock from this machine's;
    /// or why no server answered.
    pub answers: Result<(Duration, Option<Offset>), Error>,
    /// Whether nodes like those of a lock could be created, read and deleted, and which other users
    /// may do so. None if dlock has no nodes there yet.
    pub tried: Result<Option<BTreeSet<String>>, Error>,
}

/// A server of an ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its version.
    pub version: Option<String>,
    /// Its role: leader, follower, observer, standalone.
    pub mode: Option<String>,
}

/// Facts about a database or a cluster of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// Duration of the slowest of up to 50 requests.
    pub round_trip: Duration,
    /// Offset of its clock from this machine's.
    pub clock: Option<Offset>,
    /// Its name for itself, and its version.
    pub version: String,
    /// Number of servers that decide together, if known.
    pub members: Option<usize>,
    /// Whether it takes writes.
    pub role: Role,
    /// None if the URL names no standbys.
    pub standbys: Option<Standbys>,
    /// Settings with which a crash of the server may undo writes that it has confirmed.
    pub forgets_by: Vec<String>,
    /// Whether a test lock could be taken and removed.
    pub tried: Result<Tried, Error>,
    /// Whether a waiter is woken, or has to poll.
    pub wake_up: WakeUp,
    /// All users, or the owner of the tables, if they may change the tables besides dlock's user.
    pub others: Option<String>,
    /// The role of dlock's user, if it may do everything on the server.
    pub almighty: Option<String>,
}

/// Facts about a database whose URL names standbys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standbys {
    /// The host that takes writes now.
    pub primary: String,
    /// Whether a standby has every write that the primary has confirmed.
    pub acknowledge: bool,
    /// The settings that make a standby acknowledge.
    pub settings: &'static str,
}

/// Result of the test lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// A lock was taken and removed.
    Done,
    /// There are no tables.
    NoTables,
}

/// How a waiter learns of its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeUp {
    /// It is woken.
    Works,
    /// It polls, because a connection pooler stands in front of the database.
    Pooled,
    /// It polls, because this kind of server tells it nothing.
    Polls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name in messages.
    pub name: String,
    /// What it said, or why it gave no answer.
    pub facts: Result<Facts, Error>,
}

/// Facts about a Redis server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Duration of the slowest of up to 50 requests.
    pub round_trip: Duration,
    /// Offset of its clock from this machine's.
    pub clock: Option<Offset>,
    /// What INFO says. None if the user may not ask.
    pub info: Option<Info>,
    /// What locks need and it refused.
    pub rights: Rights,
}

/// Offset of a server's clock from this machine's, exact to half a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offset {
    /// The server's clock is later.
    Ahead(Duration),
    /// The server's clock is earlier.
    Behind(Duration),
}

/// What INFO says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The version of Redis that it is or claims to be.
    pub version: String,
    /// Whether it takes writes from clients.
    pub role: Role,
    /// Time since its start.
    pub uptime: Duration,
    /// `maxmemory-policy`.
    pub eviction: String,
    /// `maxmemory`, in bytes; 0 for no limit.
    pub memory: u64,
    /// What survives a restart.
    pub persistence: Persistence,
    pub replicas: u64,
    /// `min-replicas-to-write`: whether the master refuses writes when too few replicas are
    /// connected.
    pub fenced: bool,
}

/// A server's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Master,
    /// It follows a master.
    Replica,
}

/// What survives a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// All but the last moment: an append-only file.
    Log,
    /// The last snapshot.
    Snapshots,
    None,
    /// It has no append-only file. Whether it takes snapshots is unknown, because CONFIG is
    /// refused.
    NoLog,
}

/// What was tried with temporary keys and refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Commands that the user may not run.
    pub commands: Vec<String>,
    /// Keys that the user may not access, as a pattern.
    pub keys: Option<String>,
    /// Set if the user may touch the locks of other prefixes: the patterns of its own.
    pub beyond: Option<String>,
    /// Another refusal: it is a replica, out of memory, …
    pub refused: Option<String>,
}

/// A directory of a `file:` store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub path: PathBuf,
    /// Facts about it. None if it does not exist yet.
    pub found: Option<Result<Disk, Error>>,
}

/// A directory that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Name of the file system, or the number of its type.
    pub file_system: String,
    /// The permission bits.
    pub mode: u32,
    /// Whether a second lock on a locked file is refused.
    pub locks: Result<(), String>,
    /// Whether a FIFO reports the death of its reader.
    pub fifos: Result<(), String>,
    /// Whether the time namespace of this process is known.
    pub clock: Result<(), String>,
}

/// Measures round trips. Returns the duration of the slowest, and the offset of the server's clock
/// by the fastest. `ask` returns the server's time since 1970, if it was in the answer.
pub fn measure<E>(
    mut ask: impl FnMut() -> Result<Option<Duration>, E>,
) -> Result<(Duration, Option<Offset>), E> {
    let end = Moment::now().after(MEASURED_WITHIN);
    let (mut count, mut slowest, mut fastest, mut clock) = (0, Duration::ZERO, Duration::MAX, None);
    while count == 0 || (count < ROUND_TRIPS && !end.passed()) {
        let sent = Moment::now();
        let theirs = ask()?;
        let took = Moment::now().since(sent);
        if took < fastest {
            clock = theirs.map(|theirs| offset(theirs.saturating_add(took / 2)));
        }
        (count, slowest, fastest) = (count + 1, slowest.max(took), fastest.min(took));
    }
    Ok((slowest, clock))
}

/// Offset of a clock that shows this time since 1970 now.
pub fn offset(theirs: Duration) -> Offset {
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if theirs >= ours { Offset::Ahead(theirs - ours) } else { Offset::Behind(ours - theirs) }
}

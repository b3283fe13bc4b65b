//! What is a store like, as far as that matters to locks? What the probes of the stores find out, as plain facts.
//! Nothing here says whether it is good: that is the judge's (`commands::doctor`). A fact that the store would not tell
//! is null.

use crate::store::Error;
use std::path::PathBuf;
use std::time::Duration;

/// What was found out about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survey {
    Servers {
        nodes: Vec<Node>,
        /// How long a master must be silent before another server takes its place, as sentinels or a cluster are set
        /// to; null where nothing takes its place, or that is not known.
        failover: Option<Duration>,
    },
    /// Redis servers that do not know of each other, of which a majority holds locks.
    Masters(Vec<Node>),
    Directory(Directory),
    /// A database; or why it said nothing.
    Database(Result<Database, Error>),
    /// An ensemble of ZooKeeper.
    Ensemble(Ensemble),
}

/// An ensemble of ZooKeeper, and how it behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensemble {
    /// Its servers that the URL names, and what each says of itself.
    pub members: Vec<(String, Result<Member, Error>)>,
    /// How long each of up to 50 requests took, the fastest first, and the clock of the leader against this machine's; or why
    /// none of its servers said anything.
    pub answers: Result<(Vec<Duration>, Option<Offset>), Error>,
    /// Whether nodes such as those of a lock could be made, read and removed. Null if there are none of dlock's yet.
    pub tried: Result<Option<()>, Error>,
}

/// A server of an ensemble. What it would not say is null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its version.
    pub version: Option<String>,
    /// What it is to the others: leader, follower, observer, standalone.
    pub mode: Option<String>,
}

/// A database, and how it behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// How long each of up to 50 requests took, the fastest first; at least one.
    pub round_trips: Vec<Duration>,
    /// Its clock against this machine's.
    pub clock: Option<Offset>,
    /// What it calls itself, and its version.
    pub version: String,
    /// How many servers decide together; null where that is not known.
    pub members: Option<usize>,
    /// Whether it takes writes.
    pub role: Role,
    /// Null where the URL names no standbys.
    pub standbys: Option<Standbys>,
    /// What is set so that a crash of the server may take back what it said was done.
    pub forgets_by: Vec<String>,
    /// Whether a lock was taken and removed in its tables.
    pub tried: Result<Tried, Error>,
    /// Whether a waiter is woken, or has to look again and again.
    pub bell: Bell,
    /// What the user of dlock is, if that may do everything in the server.
    pub almighty: Option<String>,
}

/// What is known of a database whose URL names standbys, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standbys {
    /// The host that takes writes now.
    pub primary: String,
    /// Whether a standby has what the primary said is done.
    pub acknowledge: bool,
    /// The settings by which that is so.
    pub settings: &'static str,
}

/// What was tried with the tables of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// A lock was taken and removed.
    Done,
    /// There are no tables.
    NoTables,
}

/// How a waiter learns that it was granted its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bell {
    /// It is woken.
    Heard,
    /// It looks, although the database could wake it.
    Unheard,
    /// It looks: the database has nothing to wake it with.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// How messages name it.
    pub name: String,
    /// What it said; or why it said nothing.
    pub facts: Result<Facts, Error>,
}

/// What a server says of itself, and how it behaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// How long each of up to 50 requests took, the fastest first; at least one.
    pub round_trips: Vec<Duration>,
    /// Its clock against this machine's.
    pub clock: Option<Offset>,
    /// What it says of itself; null where the user may not ask (INFO).
    pub info: Option<Info>,
    /// What it would not do that locks need.
    pub rights: Rights,
}

/// How far the server's clock is from this machine's; known to half a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offset {
    /// The server's is later.
    Ahead(Duration),
    /// The server's is earlier.
    Behind(Duration),
}

/// What INFO says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The version of Redis that it is, or claims to be.
    pub version: String,
    /// Whether it takes writes from clients.
    pub role: Role,
    /// How long it has been running.
    pub uptime: Duration,
    /// `maxmemory-policy`.
    pub eviction: String,
    /// `maxmemory`, in bytes; 0 for no limit.
    pub memory: u64,
    /// What a restart leaves.
    pub persistence: Persistence,
    pub replicas: u64,
    /// `min-replicas-to-write`: whether the master stops to take writes when too few replicas are there.
    pub fenced: bool,
}

/// What a server is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Master,
    /// It repeats what another one does.
    Replica,
}

/// What a restart leaves of the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// All but the last moment: an append-only file.
    Log,
    /// What there was when it was last saved.
    Snapshots,
    None,
    /// It has no append-only file; whether it saves it would not say (CONFIG).
    NoLog,
}

/// What was tried, with throw-away keys, and refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// The commands that the user may not use.
    pub commands: Vec<String>,
    /// The keys that the user may not touch, as a pattern.
    pub keys: Option<String>,
    /// What else the server answered: it is a replica, out of memory, …
    pub refused: Option<String>,
}

/// A directory of a `file:` store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub path: PathBuf,
    /// What it is like; null if it does not exist yet.
    pub found: Option<Result<Disk, Error>>,
}

/// A directory that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The file system, by name or by the number of its type.
    pub file_system: String,
    /// The permission bits.
    pub mode: u32,
    /// Whether a second lock on a locked file is refused.
    pub locks: Result<(), String>,
    /// Whether a FIFO tells of the death of its reader.
    pub fifos: Result<(), String>,
}

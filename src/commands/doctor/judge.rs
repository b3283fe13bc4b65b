//! Judges whether the facts are good enough to hold locks. Pure: facts in, findings out. *Bad*
//! means that locks do not work or do not hold; *warn* names a case in which they may not.

use crate::config::Sensitivity;
use crate::output::doctor::{Finding, Verdict};
use crate::output::time::span;
use crate::store::Error;
use crate::store::probe::{
    Database, Directory, Disk, Info, Node, Offset, Persistence, Rights, Role, Standbys, Survey, Tried, WakeUp,
};
use std::path::PathBuf;
use std::time::Duration;

mod ensemble;
mod quorum;

/// The first major version with everything that the scripts use.
const OLDEST: u64 = 7;
/// From this difference on, times of two machines mislead people, and fences after a failover may
/// be wrong.
const CLOCK: Duration = Duration::from_secs(1);
const CLOCK_EFFECT: &str = "locks are not affected; fences after a failover are";
/// Time that a failover takes besides detection: an election and a promotion.
const ELECTION: Duration = Duration::from_secs(2);
/// An attempt to renew gets one part in this many of the lease (I6).
const ATTEMPT: u32 = 16;

/// What findings depend on besides the store itself.
#[derive(Debug, Clone)]
pub struct Criteria {
    /// The store's name in messages.
    pub store: String,
    /// Which setting named it; `None` for the built-in default.
    pub named: Option<String>,
    pub ttl: Duration,
    /// The longest that one operation may take.
    pub op_timeout: Duration,
    /// The longest lease allowed on a quorum.
    pub max_lease: Duration,
    /// The files that the settings name.
    pub files: Vec<SettingsFile>,
    /// The variables that contain a password.
    pub exposed: Vec<&'static str>,
    /// Where the password is from, in words; `None` if there is none.
    pub password_from: Option<String>,
    /// What goes to other machines unencrypted, and should not.
    pub clear: Option<Clear>,
}

/// Other machines that are reached without TLS.
#[derive(Debug, Clone)]
pub struct Clear {
    pub hosts: String,
    /// How to enable TLS.
    pub tls: Tls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    Scheme(&'static str),
    /// For a database TLS is on unless `sslmode=disable`. It is sent no password in clear.
    SslMode,
}

/// A file that the settings name.
#[derive(Debug, Clone)]
pub struct SettingsFile {
    pub path: PathBuf,
    /// What other users must not do with it.
    pub sensitivity: Sensitivity,
    pub mode: u32,
}

pub fn judge(survey: &Survey, criteria: &Criteria) -> Vec<Finding> {
    let mut findings = of_settings(criteria);
    match survey {
        Survey::Servers { nodes, failover } => {
            findings.extend(failover.map(|after| of_failover(after, criteria)));
            for node in nodes {
                findings.extend(of_server(node, criteria));
            }
        }
        Survey::Masters(nodes) => findings.extend(quorum::of_masters(nodes, criteria)),
        Survey::Directory(directory) => findings.extend(of_directory(directory)),
        Survey::Database(Ok(database)) => findings.extend(of_database(database, criteria)),
        Survey::Database(Err(error)) => findings.push(unreachable(error)),
        Survey::Ensemble(ensemble) => findings.extend(ensemble::of_ensemble(ensemble, criteria)),
    }
    findings
}

/// The findings common to a single server and a master of a quorum.
fn of_node(
    node: &Node,
    criteria: &Criteria,
    more: impl Fn(&Info) -> Vec<Finding>,
    without_info: Finding,
    clock_effect: &str,
) -> Vec<Finding> {
    let mut findings = match &node.facts {
        Err(error) => vec![unreachable(error)],
        Ok(facts) => {
            let mut findings = vec![ok("reachable", "yes"), of_round_trips(&facts.round_trips, criteria)];
            match &facts.info {
                Some(info) => findings.extend(of_info(info).into_iter().chain(more(info))),
                None => findings.push(without_info),
            }
            findings.extend(facts.clock.map(|clock| of_clock(clock, clock_effect)));
            findings.extend(of_rights(&facts.rights));
            findings
        }
    };
    findings.iter_mut().for_each(|finding| finding.node = Some(node.name.clone()));
    findings
}

fn ok(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { node: None, check, verdict: Verdict::Ok, found: found.into(), advice: None }
}

fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Warn, advice: Some(advice.into()), ..ok(check, found) }
}

fn bad(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Bad, ..warn(check, found, advice) }
}

/// Formats a time that may be a fraction of a millisecond.
fn brief(time: Duration) -> String {
    if time < Duration::from_millis(10) {
        format!("{:.2}ms", time.as_secs_f64() * 1000.0)
    } else {
        span(time)
    }
}

/// Rounds up to whole seconds, so that it can be typed.
fn at_least(time: Duration) -> String {
    span(Duration::from_secs(time.as_secs() + 1))
}

fn of_settings(criteria: &Criteria) -> Vec<Finding> {
    let mut findings = vec![match &criteria.named {
        Some(who) => ok("store", format!("{} ({who})", criteria.store)),
        None => warn(
            "store",
            format!("{}, the built-in default: no setting names a store", criteria.store),
            "name it with --store, DLOCK_STORE or /etc/dlock.toml, because that default means a different server on each machine",
        ),
    }];
    findings.extend(criteria.password_from.iter().map(|from| ok("password", from)));
    findings.extend(criteria.files.iter().map(of_file));
    findings.extend(criteria.exposed.iter().map(|variable| {
        warn(
            "secrets",
            format!("{variable} has a password in it, and every job inherits it"),
            "put the password into a file that only its user can read, and name that by DLOCK_PASSWORD_FILE or password-file",
        )
    }));
    findings.extend(criteria.clear.iter().map(of_clear));
    findings
}

fn of_clear(Clear { hosts, tls }: &Clear) -> Finding {
    let (found, tls) = match tls {
        Tls::Scheme(scheme) => {
            (format!("the password goes to {hosts} unencrypted"), format!("write {scheme}"))
        }
        Tls::SslMode => (
            format!("everything goes to {hosts} unencrypted, and can be changed on the way"),
            "leave out sslmode=disable".into(),
        ),
    };
    warn(
        "encryption",
        found,
        format!("{tls} (TLS; docs/stores.md), or make sure that nobody else is on that network"),
    )
}

fn of_file(file: &SettingsFile) -> Finding {
    let path = file.path.display();
    let (check, bits, good) = match file.sensitivity {
        Sensitivity::Secret => ("secrets", "600", format!("not every user can read {path}")),
        Sensitivity::Trusted => ("settings", "644", format!("only its owner can change {path}")),
    };
    let found = if file.sensitivity == Sensitivity::Secret && file.mode & 0o004 != 0 {
        format!("every user of this machine can read {path}, which has a secret in it")
    } else if file.mode & 0o022 != 0 {
        format!("users other than its owner can change {path}")
    } else {
        return ok(check, good);
    };
    warn(check, found, format!("chmod {bits} {path}"))
}

fn unreachable(error: &Error) -> Finding {
    let advice = match error {
        Error::Denied(_) => "give dlock a user that may log in, with the rights that docs/stores.md names",
        Error::Unfit(_) => "correct what the message says, or name another store",
        _ => "check that it runs, and that this machine can reach it",
    };
    bad("reachable", error.to_string(), advice)
}

fn of_server(node: &Node, criteria: &Criteria) -> Vec<Finding> {
    let more = |info: &Info| vec![of_persistence(info), of_replicas(info), of_uptime(info, criteria)];
    let without_info = warn(
        "info",
        "this user may not use INFO, so version, role, eviction, persistence and replicas are unknown",
        "give it +info (ACL SETUSER), or run dlock doctor as an administrator of the server",
    );
    of_node(node, criteria, more, without_info, CLOCK_EFFECT)
}

/// The percentile by the nearest rank.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn of_round_trips(sorted: &[Duration], criteria: &Criteria) -> Finding {
    let (half, most) = (percentile(sorted, 50), percentile(sorted, 99));
    let attempt = criteria.op_timeout.min(criteria.ttl / ATTEMPT);
    let found = format!(
        "{} (p50), {} (p99) of {}; a renewal under --ttl {} gets {}",
        brief(half),
        brief(most),
        sorted.len(),
        span(criteria.ttl),
        brief(attempt)
    );
    let advice = if criteria.op_timeout <= most {
        format!("give --op-timeout {} or more", at_least(most * 4))
    } else {
        format!("give --ttl {} or more", at_least(most * 4 * ATTEMPT))
    };
    if most >= attempt {
        bad("round trip", found, advice)
    } else if most * 4 > attempt {
        warn("round trip", found, advice)
    } else {
        ok("round trip", found)
    }
}

/// The findings from INFO for a single server and a master of a quorum.
fn of_info(info: &Info) -> Vec<Finding> {
    let major = info.version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    let version = match major {
        Some(major) if major >= OLDEST => ok("version", info.version.clone()),
        Some(_) => warn("version", info.version.clone(), "use Redis 7 or later: dlock is tested with it"),
        None => warn("version", "not known", "use Redis 7 or later: dlock is tested with it"),
    };
    let role = match info.role {
        Role::Master => ok("role", "master"),
        Role::Replica => bad("role", "a read-only replica", "name the master"),
    };
    vec![version, role, of_eviction(info)]
}

fn of_eviction(info: &Info) -> Finding {
    let policy = &info.eviction;
    match (policy.as_str(), info.memory) {
        ("noeviction", _) => ok("eviction", "noeviction"),
        (_, 0) => warn(
            "eviction",
            format!("{policy}, and no limit set yet (maxmemory 0)"),
            "set maxmemory-policy noeviction before a limit is set",
        ),
        // Every key of dlock has a time to live, so volatile-… is no better.
        _ => bad(
            "eviction",
            format!("{policy}: a full server deletes locks while their jobs run"),
            "set maxmemory-policy noeviction, or give dlock a server of its own",
        ),
    }
}

fn of_persistence(info: &Info) -> Finding {
    let advice = "set appendonly yes";
    match info.persistence {
        Persistence::Log => ok("persistence", "append-only file"),
        Persistence::Snapshots => {
            warn("persistence", "snapshots: a restart forgets the locks since the last one", advice)
        }
        Persistence::None => {
            warn("persistence", "none: a restart forgets every lock while its job runs", advice)
        }
        Persistence::NoLog => {
            warn("persistence", "no append-only file: a restart forgets locks while their jobs run", advice)
        }
    }
}

fn of_replicas(info: &Info) -> Finding {
    let replicas = match info.replicas {
        1 => "1 replica".into(),
        n => format!("{n} replicas"),
    };
    match (info.replicas, info.fenced) {
        (0, false) => ok("replicas", "none, so there is no failover that could forget a lock"),
        (_, true) => ok("replicas", format!("{replicas}, and min-replicas-to-write is set")),
        (_, false) => warn(
            "replicas",
            format!(
                "{replicas}, and a master that is cut off from them goes on granting locks (min-replicas-to-write 0)"
            ),
            "set min-replicas-to-write 1 and min-replicas-max-lag 10",
        ),
    }
}

/// A server without a log that restarted within the lease may have forgotten a lock that is still
/// held.
fn of_uptime(info: &Info, criteria: &Criteria) -> Finding {
    let found = span(info.uptime);
    if info.persistence != Persistence::Log && info.uptime < criteria.ttl {
        let advice = format!("wait until it has run for {} (--ttl) before jobs start", span(criteria.ttl));
        return warn("uptime", format!("{found}: it may have forgotten locks that are still held"), advice);
    }
    ok("uptime", found)
}

/// `effect` says what a clock difference does to locks.
fn of_clock(offset: Offset, effect: &str) -> Finding {
    let (by, found) = match offset {
        Offset::Ahead(by) => (by, format!("{} ahead of this machine's", brief(by))),
        Offset::Behind(by) => (by, format!("{} behind this machine's", brief(by))),
    };
    if by < Duration::from_millis(1) {
        return ok("clock", "as this machine's, to a millisecond");
    }
    if by < CLOCK {
        return ok("clock", found);
    }
    warn(
        "clock",
        found,
        format!(
            "let a time service set both clocks; {effect}, and times of the two machines cannot be compared"
        ),
    )
}

fn of_rights(rights: &Rights) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(pattern) = &rights.keys {
        findings.push(bad(
            "rights",
            "this user may not touch dlock's keys",
            format!("give it {pattern} (ACL SETUSER; docs/stores.md has the line)"),
        ));
    }
    if !rights.commands.is_empty() {
        let commands = rights.commands.iter().map(|command| format!("+{}", command.to_lowercase()));
        findings.push(bad(
            "rights",
            format!("this user may not use {}", rights.commands.join(", ")),
            format!("give it {} (ACL SETUSER)", commands.collect::<Vec<_>>().join(" ")),
        ));
    }
    if let Some(said) = &rights.refused {
        findings.push(bad("rights", format!("it refuses writes: {said}"), "see the server's log"));
    }
    if findings.is_empty() {
        findings.push(ok("rights", "all that locks need; tested with temporary keys, now removed"));
    }
    findings
}

/// An outage of up to half of the lease disturbs no job (I6).
fn of_failover(after: Duration, criteria: &Criteria) -> Finding {
    let takes = after + ELECTION;
    let found = format!(
        "begins after {} of silence and takes about {} in all; --ttl {} survives an outage of {}",
        span(after),
        span(takes),
        span(criteria.ttl),
        span(criteria.ttl / 2)
    );
    if takes > criteria.ttl / 2 {
        return warn(
            "failover",
            found,
            format!("give --ttl {} or more, else a failover stops jobs", at_least(takes * 2)),
        );
    }
    ok("failover", found)
}

fn of_version(Database { version, members, .. }: &Database) -> Finding {
    if *members == Some(1) || !may_end_live_leases(version) {
        return ok("version", version.clone());
    }
    let found = format!(
        "{version}: a leader that was paused may end leases that the new leader keeps, and two jobs may run"
    );
    warn("version", found, "use etcd 3.4.31, 3.5.13 or later (etcd issue 15247; docs/stores.md)")
}

/// Fixed in etcd 3.4.31, 3.5.13 and 3.6.0.
fn may_end_live_leases(version: &str) -> bool {
    let Some(numbers) = version.strip_prefix("etcd ") else { return false };
    let numbers: Vec<u32> = numbers.split('.').map_while(|number| number.parse().ok()).collect();
    let [major, minor, patch] = numbers[..] else { return false };
    (major, minor, patch) < (3, 4, 31) || ((major, minor) == (3, 5) && patch < 13)
}

fn of_database(database: &Database, criteria: &Criteria) -> Vec<Finding> {
    let mut findings = vec![
        ok("reachable", "yes"),
        of_round_trips(&database.round_trips, criteria),
        of_version(database),
        match (database.role, &database.standbys) {
            (Role::Master, None) => ok("role", "it takes writes"),
            (Role::Master, Some(Standbys { primary, .. })) => ok("role", format!("{primary} takes writes")),
            (Role::Replica, _) => bad("role", "a read-only standby", "name the primary"),
        },
    ];
    findings.extend(database.standbys.iter().map(of_standbys));
    findings.extend(database.clock.map(|clock| of_clock(clock, CLOCK_EFFECT)));
    findings.push(match database.forgets_by.join(" and ") {
        by if by.is_empty() => ok("persistence", "what the server acknowledged survives its crash"),
        by => warn(
            "persistence",
            format!("{by}: a crash of the server forgets the last locks while their jobs run"),
            "set these to their defaults, at least for the user of dlock",
        ),
    });
    findings.push(match &database.tried {
        Ok(Tried::Done) => ok("rights", "all that locks need; tested with a temporary lock, now removed"),
        Ok(Tried::NoTables) => warn(
            "rights",
            "there are no tables yet, so nothing was tested; the first run makes them, if its user may",
            "run a job once; if its user may not make tables, the message has the SQL statements",
        ),
        Err(error) => bad("rights", error.to_string(), "docs/stores.md has the tables and the rights"),
    });
    findings.extend(database.almighty.as_ref().map(|user| {
        warn(
            "user",
            format!("dlock logs in as {user}, which locks do not need"),
            "give dlock a user of its own with the rights that docs/stores.md names, and nothing else",
        )
    }));
    findings.push(match database.wake_up {
        WakeUp::Works => ok("wake-up", "the server wakes a waiter when its turn comes"),
        WakeUp::Pooled => warn(
            "wake-up",
            "a waiter is not woken, but has to look: a pooler stands in between",
            "connect to the server itself where locks are waited for much",
        ),
        WakeUp::Refused => ok(
            "wake-up",
            "waiters poll, the first one every 25ms: the server refuses GET_LOCK, as a cluster may",
        ),
    });
    findings
}

fn of_standbys(Standbys { acknowledge, settings, .. }: &Standbys) -> Finding {
    if *acknowledge {
        return ok(
            "failover",
            "a standby has each grant before its job starts, so a failover to it forgets none",
        );
    }
    warn(
        "failover",
        "asynchronous replication: a failover forgets the last locks while their jobs run",
        format!("set {settings} (docs/stores.md)"),
    )
}

fn of_directory(directory: &Directory) -> Vec<Finding> {
    match &directory.found {
        None => vec![warn(
            "directory",
            format!(
                "{} does not exist; the first run makes it, for its user alone",
                directory.path.display()
            ),
            "make it yourself if several users share locks: group-writable, set-gid and not sticky",
        )],
        Some(Err(error)) => {
            vec![bad("directory", error.to_string(), "correct the directory, or name another one")]
        }
        Some(Ok(disk)) => of_disk(disk),
    }
}

fn of_disk(disk: &Disk) -> Vec<Finding> {
    let mode = disk.mode;
    let whose = match mode & 0o020 {
        0 => "its owner's alone",
        _ => "shared with its group, whose members can take and delete every lock",
    };
    let tried = |check, result: &Result<(), String>, good: &str| match result {
        Ok(()) => ok(check, good),
        Err(why) => bad(check, why.clone(), "name a directory on another file system"),
    };
    vec![
        ok("file system", format!("{}, of this machine", disk.file_system)),
        // A directory that all may write is refused before this.
        ok("mode", format!("{mode:04o}, {whose}")),
        tried("file locks", &disk.locks, "a second lock of the same file is refused"),
        tried("FIFOs", &disk.fifos, "dlock sees when a reader ends"),
    ]
}

#[cfg(test)]
mod tests;

//! Judges a Redis server, alone or with replicas. Most of it holds for a master of a quorum too.

use super::{CLOCK_EFFECT, Criteria, at_least, bad, of_clock, of_round_trip, ok, span, unreachable, warn};
use crate::output::doctor::Finding;
use crate::store::probe::{Info, Node, Persistence, Rights, Role};
use std::time::Duration;

/// The first major version with everything that the scripts use.
const OLDEST: u64 = 7;
/// Time that a failover takes besides detection: an election and a promotion.
const ELECTION: Duration = Duration::from_secs(2);

pub(super) fn of_server(node: &Node, criteria: &Criteria) -> Vec<Finding> {
    let more = |info: &Info| vec![of_persistence(info), of_replicas(info), of_uptime(info, criteria)];
    let without_info = warn(
        "info",
        "this user may not use INFO, so version, role, eviction, persistence and replicas are unknown",
        "give it +info (ACL SETUSER), or run dlock doctor as an administrator of the server",
    );
    of_node(node, criteria, more, without_info, CLOCK_EFFECT)
}

/// The findings common to a single server and a master of a quorum.
pub(super) fn of_node(
    node: &Node,
    criteria: &Criteria,
    more: impl Fn(&Info) -> Vec<Finding>,
    without_info: Finding,
    clock_effect: &str,
) -> Vec<Finding> {
    let mut findings = match &node.facts {
        Err(error) => vec![unreachable(error)],
        Ok(facts) => {
            let mut findings = vec![of_round_trip(facts.round_trip, criteria)];
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

pub(super) fn of_replicas(info: &Info) -> Finding {
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
    if let Some(patterns) = &rights.beyond {
        findings.push(warn(
            "rights",
            "this user may read and change the locks of other prefixes, too",
            format!(
                "if other teams use this server, give it resetkeys {patterns} (ACL SETUSER; docs/stores.md has the line)"
            ),
        ));
    }
    findings
}

/// An outage of up to half of the lease disturbs no job (I6).
pub(super) fn of_failover(after: Duration, criteria: &Criteria) -> Finding {
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

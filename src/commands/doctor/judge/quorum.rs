//! Judges the masters of a quorum. A master may forget everything when it restarts: it does not
//! count until all leases that it may have forgotten are over. What matters is how many count.

use super::server::{of_node, of_replicas};
use super::{Criteria, bad, ok, span, warn};
use crate::output::doctor::{Finding, Verdict};
use crate::store::probe::{Info, Node, Role};
use std::time::Duration;

/// A server reports its uptime in whole seconds, up to one second too much.
const UPTIME_CUT: Duration = Duration::from_secs(1);

/// Whether a master counts for locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Yes,
    /// After this time.
    In(Duration),
    No,
}

pub(super) fn of_masters(nodes: &[Node], criteria: &Criteria) -> Vec<Finding> {
    let counts: Vec<_> = nodes.iter().map(|node| counts(node, criteria)).collect();
    let mut findings = vec![of_majority(&counts)];
    let mut sound = 0;
    for (node, counts) in nodes.iter().zip(counts) {
        let of_master = of_master(node, counts, criteria);
        let is_sound = counts == Counts::Yes && of_master.iter().all(|found| found.verdict != Verdict::Bad);
        sound += usize::from(is_sound);
        findings.extend(of_master);
    }
    // With a sound majority, no lock fails because of the other masters' faults.
    let worst = if sound > nodes.len() / 2 { Verdict::Warn } else { Verdict::Bad };
    findings.iter_mut().for_each(|finding| finding.verdict = finding.verdict.min(worst));
    findings
}

fn counts(node: &Node, criteria: &Criteria) -> Counts {
    match node.facts.as_ref().map(|facts| &facts.info) {
        Ok(Some(info)) if info.role == Role::Master => {
            match (criteria.max_lease + UPTIME_CUT).saturating_sub(info.uptime) {
                Duration::ZERO => Counts::Yes,
                left => Counts::In(left),
            }
        }
        _ => Counts::No,
    }
}

fn of_majority(counts: &[Counts]) -> Finding {
    let (masters, majority) = (counts.len(), counts.len() / 2 + 1);
    let now = counts.iter().filter(|counts| **counts == Counts::Yes).count();
    let found = format!("{now} of {masters} masters count, and {majority} are needed");
    if now == masters {
        return ok("quorum", found);
    }
    if now >= majority {
        return warn("quorum", found, "see the lines of the others: no further master may fail");
    }
    // The time until a majority counts.
    let mut waits: Vec<_> = counts
        .iter()
        .filter_map(|counts| match counts {
            Counts::Yes => Some(Duration::ZERO),
            Counts::In(left) => Some(*left),
            Counts::No => None,
        })
        .collect();
    waits.sort_unstable();
    match waits.get(majority - 1) {
        Some(wait) => bad(
            "quorum",
            format!("{found}: every lock is refused for {} more", span(*wait)),
            "wait; or set a shorter --max-lease on every machine, if all leases are shorter",
        ),
        None => bad("quorum", format!("{found}: every lock is refused"), "see the lines of the masters"),
    }
}

fn of_master(node: &Node, counts: Counts, criteria: &Criteria) -> Vec<Finding> {
    let more = |info: &Info| vec![of_replicas(info), of_uptime(info, counts, criteria)];
    let without_info = bad(
        "info",
        "this user may not use INFO, so the uptime of this master is unknown: it does not count",
        "give it +info (ACL SETUSER)",
    );
    // A majority knows the last fence, whatever the clocks say.
    of_node(node, criteria, more, without_info, "locks are not affected; fences are, if masters forget")
}

fn of_uptime(info: &Info, counts: Counts, criteria: &Criteria) -> Finding {
    let found = span(info.uptime);
    match counts {
        Counts::In(left) => warn(
            "uptime",
            format!("{found}: it may have forgotten locks that are still held, so it does not count yet"),
            format!(
                "wait until it has run for {} (--max-lease): {} more",
                span(criteria.max_lease),
                span(left)
            ),
        ),
        Counts::Yes | Counts::No => ok("uptime", found),
    }
}

//! Judges the masters of a quorum. A master may forget everything when it restarts: it does not
//! count until all leases that it may have forgotten are over. What matters is how many count.

use super::server::{of_node, of_replicas};
use super::{Criteria, bad, ok, span, warn};
use crate::output::doctor::{Finding, Verdict};
use crate::store::probe::{Info, Node, Role};
use std::time::Duration;

/// A server reports its uptime in whole seconds, up to one second too much.
const UPTIME_CUT: Duration = Duration::from_secs(1);

pub(super) fn of_masters(nodes: &[Node], criteria: &Criteria) -> Vec<Finding> {
    let waits: Vec<_> = nodes.iter().map(|node| counts_in(node, criteria)).collect();
    let mut findings = vec![of_majority(&waits)];
    let mut sound = 0;
    for (node, wait) in nodes.iter().zip(waits) {
        let of_master = of_master(node, wait, criteria);
        let is_sound =
            wait == Some(Duration::ZERO) && of_master.iter().all(|found| found.verdict != Verdict::Bad);
        sound += usize::from(is_sound);
        findings.extend(of_master);
    }
    // With a sound majority, no lock fails because of the other masters' faults.
    let worst = if sound > nodes.len() / 2 { Verdict::Warn } else { Verdict::Bad };
    findings.iter_mut().for_each(|finding| finding.verdict = finding.verdict.min(worst));
    findings
}

/// In how long a master counts for locks: zero if it does now, `None` if it does not.
fn counts_in(node: &Node, criteria: &Criteria) -> Option<Duration> {
    let info = node.facts.as_ref().ok()?.info.as_ref()?;
    let left = (criteria.max_lease + UPTIME_CUT).saturating_sub(info.uptime);
    (info.role == Role::Master).then_some(left)
}

fn of_majority(waits: &[Option<Duration>]) -> Finding {
    let (masters, majority) = (waits.len(), waits.len() / 2 + 1);
    let mut waits: Vec<Duration> = waits.iter().flatten().copied().collect();
    waits.sort_unstable();
    let now = waits.iter().filter(|wait| wait.is_zero()).count();
    let found = format!("{now} of {masters} masters count, and {majority} are needed");
    if now == masters {
        return ok("quorum", found);
    }
    if now >= majority {
        return warn("quorum", found, "see the lines of the others: no further master may fail");
    }
    match waits.get(majority - 1) {
        Some(wait) => bad(
            "quorum",
            format!("{found}: every lock is refused for {} more", span(*wait)),
            "wait; or set a shorter --max-lease on every machine, if all leases are shorter",
        ),
        None => bad("quorum", format!("{found}: every lock is refused"), "see the lines of the masters"),
    }
}

fn of_master(node: &Node, wait: Option<Duration>, criteria: &Criteria) -> Vec<Finding> {
    let more = |info: &Info| vec![of_replicas(info), of_uptime(info, wait, criteria)];
    let without_info = bad(
        "info",
        "this user may not use INFO, so the uptime of this master is unknown: it does not count",
        "give it +info (ACL SETUSER)",
    );
    // A majority knows the last fence, whatever the clocks say.
    of_node(node, criteria, more, without_info, "locks are not affected; fences are, if masters forget")
}

fn of_uptime(info: &Info, wait: Option<Duration>, criteria: &Criteria) -> Finding {
    let found = span(info.uptime);
    match wait {
        Some(left) if !left.is_zero() => warn(
            "uptime",
            format!("{found}: it may have forgotten locks that are still held, so it does not count yet"),
            format!(
                "wait until it has run for {} (--max-lease): {} more",
                span(criteria.max_lease),
                span(left)
            ),
        ),
        _ => ok("uptime", found),
    }
}

//! Judges a ZooKeeper ensemble. Some of its servers may be down; whether enough are left shows when
//! a node is written.

use super::{Criteria, bad, of_clock, of_round_trip, ok, unreachable, warn};
use crate::output::doctor::Finding;
use crate::store::probe::{Ensemble, Member};

/// A run's hold lasts at least as long as its session, which no wall clock ends. A script's hold
/// has no session: only its end in the record counts.
const CLOCK_EFFECT: &str = "locks of `dlock run` are not affected; those of `dlock acquire` are, and fences after a change of the leader";

pub(super) fn of_ensemble(ensemble: &Ensemble, criteria: &Criteria) -> Vec<Finding> {
    let servers = ensemble.members.iter().map(|(name, said)| match said {
        Ok(member) => of_member(name, member),
        Err(error) => warn("server", error.to_string(), "start it, or take it out of the URL"),
    });
    let mut findings: Vec<Finding> = servers.collect();
    match &ensemble.answers {
        Ok((round_trip, clock)) => {
            findings.push(of_round_trip(*round_trip, criteria));
            findings.extend(clock.map(|clock| of_clock(clock, CLOCK_EFFECT)));
        }
        Err(error) => {
            findings.push(unreachable(error));
            return findings;
        }
    }
    findings.push(match &ensemble.tried {
        Ok(Some(_)) => ok("rights", "all that locks need; tested with temporary nodes, now removed"),
        Ok(None) => warn(
            "rights",
            "there are no nodes of dlock yet, so nothing was tested; the first run makes them, if its user may",
            "run a job once",
        ),
        Err(error) => bad("rights", error.to_string(), "docs/stores.md has the nodes and the rights"),
    });
    if let Ok(Some(others)) = &ensemble.tried
        && !others.is_empty()
    {
        let others = others.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        findings.push(warn(
            "rights",
            format!("{others} may change dlock's nodes, too, and so end or replace any lock"),
            "if that is not meant, give them to dlock's user alone, by zkCli.sh: addauth digest USER:PASSWORD, then \
             setAcl -R CHROOT/dlock auth::cdrwa",
        ));
    }
    findings
}

fn of_member(name: &str, member: &Member) -> Finding {
    let unsaid = "unknown";
    let (version, mode) =
        (member.version.as_deref().unwrap_or(unsaid), member.mode.as_deref().unwrap_or(unsaid));
    let found = format!("{name}: version {version}, role {mode}");
    if mode != "standalone" && may_forget(version) {
        let advice = "use ZooKeeper 3.8.5, 3.9.4 or later: if several servers fail at once, this version can lose acknowledged writes";
        return warn("server", found, advice);
    }
    ok("server", found)
}

/// Whether an ensemble of this version can lose writes: ZOOKEEPER-4785 is fixed in 3.8.5 and 3.9.2,
/// ZOOKEEPER-4925, which 3.9.3 has, in 3.9.4.
fn may_forget(version: &str) -> bool {
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    let [major, minor, patch] = numbers[..] else { return false };
    (major, minor, patch) < (3, 8, 5) || ((major, minor) == (3, 9) && patch < 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::doctor::Verdict;

    #[test]
    fn versions_that_lose_writes_get_a_warning() {
        let judged = |version: &str, mode: &str| {
            let member = Member { version: Some(version.into()), mode: Some(mode.into()) };
            of_member("zk1", &member).verdict
        };
        for version in ["3.4.14", "3.8.0", "3.8.4", "3.9.0", "3.9.3"] {
            assert_eq!(judged(version, "follower"), Verdict::Warn, "{version}");
        }
        for version in ["3.8.5", "3.8.10", "3.9.4", "3.10.0", "4.0.0", "3.9", "unknown", ""] {
            assert_eq!(judged(version, "leader"), Verdict::Ok, "{version}");
        }
        assert_eq!(judged("3.8.0", "standalone"), Verdict::Ok, "one server has no other copies");
    }
}

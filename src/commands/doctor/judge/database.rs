//! Judges PostgreSQL, MariaDB or MySQL, and etcd.

use super::{CLOCK_EFFECT, Criteria, bad, of_clock, of_round_trip, ok, warn};
use crate::output::doctor::Finding;
use crate::store::probe::{Database, Role, Standbys, Tried, WakeUp};

fn of_version(Database { version, members, .. }: &Database) -> Finding {
    if *members == Some(1) || !may_end_live_leases(version) {
        return ok("version", version.clone());
    }
    let found = format!(
        "{version}: a leader that was paused may end leases that the new leader keeps, and two jobs may run"
    );
    warn("version", found, "use etcd 3.4.31, 3.5.13 or later (etcd issue 15247; docs/stores.md)")
}

/// Whether this version of etcd has issue 15247, which is fixed in 3.4.31, 3.5.13 and 3.6.0.
fn may_end_live_leases(version: &str) -> bool {
    let Some(numbers) = version.strip_prefix("etcd ") else { return false };
    let numbers: Vec<u32> = numbers.split('.').map_while(|number| number.parse().ok()).collect();
    let [major, minor, patch] = numbers[..] else { return false };
    (major, minor, patch) < (3, 4, 31) || ((major, minor) == (3, 5) && patch < 13)
}

pub(super) fn of_database(database: &Database, criteria: &Criteria) -> Vec<Finding> {
    let mut findings = vec![
        of_round_trip(database.round_trip, criteria),
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
            "have each commit written to disk before it is answered: fsync and synchronous_commit on, in MySQL sync_binlog and innodb_flush_log_at_trx_commit = 1",
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
    findings.extend(database.others.as_ref().map(|others| {
        warn(
            "rights",
            format!("{others} may change dlock's tables, too, and so end or take any lock"),
            "if that is not meant, have an administrator make the tables with an owner and a user of their own, as docs/stores.md says",
        )
    }));
    findings.extend(database.almighty.as_ref().map(|user| {
        warn(
            "user",
            format!("dlock logs in as {user}, which locks do not need"),
            "give dlock a user of its own with the rights that docs/stores.md names, and nothing else",
        )
    }));
    let wake_up = match database.wake_up {
        WakeUp::Works => ok("wake-up", "the server wakes a waiter when its turn comes"),
        WakeUp::Pooled => warn(
            "wake-up",
            "a waiter is not woken, but has to look: a pooler stands in between",
            "connect to the server itself where locks are waited for much",
        ),
        WakeUp::Polls => ok("wake-up", "waiters poll, the first one every 25ms"),
    };
    // A connection shows whether it is direct when it reads the tables.
    let is_known = matches!(database.tried, Ok(Tried::Done));
    findings.extend(is_known.then_some(wake_up));
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

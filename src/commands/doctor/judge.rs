//! Judges whether the facts are good enough to hold locks. Pure: facts in, findings out. *Bad*
//! means that locks do not work or do not hold; *warn* names a case in which they may not. Each
//! kind of store has a file of its own; this file has what they share.

use crate::config::Sensitivity;
use crate::output::doctor::{Finding, Verdict};
use crate::output::time::span;
use crate::store::Error;
use crate::store::probe::{Offset, Survey};
use std::path::PathBuf;
use std::time::Duration;

mod database;
mod directory;
mod quorum;
mod server;
mod settings;
mod zookeeper;

/// Smallest clock difference that gets a warning: from here on times of two machines mislead
/// people, and fences after a failover may be wrong.
const CLOCK: Duration = Duration::from_secs(1);
const CLOCK_EFFECT: &str = "locks are not affected; fences after a failover are";
/// Divisor of the ttl: the limit of the first attempt to renew, on the stores that give it the
/// shortest one (I6).
const ATTEMPT: u32 = 16;

/// What findings depend on besides the store itself.
#[derive(Debug, Clone)]
pub struct Criteria {
    /// The store's name in messages.
    pub store: String,
    /// Which setting named it; `None` for the built-in default.
    pub named: Option<String>,
    pub ttl: Duration,
    /// Limit for one operation.
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
    /// The scheme with TLS. None for a database, for which TLS is on unless `sslmode=disable`; it
    /// is sent no password in clear.
    pub tls_scheme: Option<&'static str>,
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
    let mut findings = settings::of_settings(criteria);
    match survey {
        Survey::Servers { nodes, failover } => {
            findings.extend(failover.map(|after| server::of_failover(after, criteria)));
            for node in nodes {
                findings.extend(server::of_server(node, criteria));
            }
        }
        Survey::Masters(nodes) => findings.extend(quorum::of_masters(nodes, criteria)),
        Survey::Directory(directory) => findings.extend(directory::of_directory(directory)),
        Survey::Database(Ok(database)) => findings.extend(database::of_database(database, criteria)),
        Survey::Database(Err(error)) => findings.push(unreachable(error)),
        Survey::Ensemble(ensemble) => findings.extend(zookeeper::of_ensemble(ensemble, criteria)),
    }
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

/// The next whole second after this time, which is easy to type.
fn at_least(time: Duration) -> String {
    span(Duration::from_secs(time.as_secs() + 1))
}

fn unreachable(error: &Error) -> Finding {
    let advice = match error {
        Error::Password(_) => "correct the user or the password",
        Error::Denied(_) => "give dlock a user that may log in, with the rights that docs/stores.md names",
        Error::Unfit(_) => "correct what the message says, or name another store",
        _ => "check that it runs, and that this machine can reach it",
    };
    bad("reachable", error.to_string(), advice)
}

/// A limit for an attempt to renew must bear the slowest round trip.
fn of_round_trip(most: Duration, criteria: &Criteria) -> Finding {
    let attempt = criteria.op_timeout.min(criteria.ttl / ATTEMPT);
    let (ttl, limit) = (span(criteria.ttl), brief(attempt));
    let found = format!("at most {}; under --ttl {ttl} keep it below {limit}", brief(most));
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

#[cfg(test)]
mod tests;

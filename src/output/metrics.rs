//! The text format of Prometheus, with HELP and TYPE: only what an alert, a panel of the dashboard
//! or a person uses. docs/metrics.md explains the names and labels; they change only with a major
//! version.

use super::escaped;
use crate::rules::State;
use crate::rules::stat::{BOUNDS, Histogram, Stat};
use crate::store::View;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

/// The values of one lock.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    stat: Stat,
    holders: u64,
    waiters: u64,
    paused: u64,
    /// None if no run is expected.
    overdue: Option<bool>,
}

/// The locks by the label of their key.
#[derive(Debug, Default)]
pub struct Exposition(BTreeMap<String, Sample>);

impl Exposition {
    pub fn add(&mut self, view: View) {
        // The server may have lost the record of the holder.
        let holders = if view.state == State::Held { view.holders.len().max(1) } else { 0 };
        let sample = Sample {
            overdue: view.overdue(),
            stat: view.stat,
            holders: holders as u64,
            waiters: view.waiters.len() as u64,
            paused: view.paused.is_some().into(),
        };
        self.0.insert(label(view.name.key()), sample);
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, kind, help, points) in FAMILIES {
            head(&mut text, name, kind, help);
            for (key, sample) in &self.0 {
                for (suffix, own, value) in points(sample) {
                    let own = own.map(|(label, value)| format!(",{label}=\"{value}\"")).unwrap_or_default();
                    let _infallible = writeln!(text, "dlock_{name}{suffix}{{key=\"{key}\"{own}}} {value}");
                }
            }
        }
        // Present without any lock, too: an alert finds out by it that there is a page.
        head(&mut text, "keys", "gauge", "Locks on this page.");
        let _infallible = writeln!(text, "dlock_keys {}", self.0.len());
        text
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _infallible = writeln!(text, "# HELP dlock_{name} {help}\n# TYPE dlock_{name} {kind}");
}

/// One line of a family: the suffix of its name, its label besides the lock's, its value.
type Point = (&'static str, Option<(&'static str, &'static str)>, String);

/// Name, type and help of a family of lines, and its lines for a lock.
type Family = (&'static str, &'static str, &'static str, fn(&Sample) -> Vec<Point>);

const FAMILIES: [Family; 15] = [
    ("grants_total", "counter", "Times that the lock was granted.", |lock| one(lock.stat.grants)),
    ("busy_total", "counter", BUSY, |lock| one(lock.stat.busy)),
    ("done_total", "counter", DONE, |lock| one(lock.stat.done)),
    ("superseded_total", "counter", SUPERSEDED, |lock| one(lock.stat.superseded)),
    ("given_up_total", "counter", GIVEN_UP, |lock| one(lock.stat.given_up)),
    ("holders", "gauge", "Holders now.", |lock| one(lock.holders)),
    ("queue_length", "gauge", "Waiters now.", |lock| one(lock.waiters)),
    ("paused", "gauge", PAUSED, |lock| one(lock.paused)),
    ("wait_seconds_total", "counter", WAITED, |lock| time(Some(lock.stat.waited_ms))),
    ("jobs_total", "counter", "Jobs that ended, by result.", |Sample { stat, .. }| {
        let results = [("succeeded", stat.succeeded), ("failed", stat.failed)];
        results.map(|(result, count)| ("", Some(("result", result)), count.to_string())).into()
    }),
    ("hold_seconds", "histogram", "How long the ended holds lasted.", |lock| histogram(&lock.stat.held)),
    ("last_end_timestamp_seconds", "gauge", "When a hold last ended, by outcome.", |lock| {
        let last = lock.stat.last.iter();
        last.map(|(outcome, at)| ("", Some(("outcome", outcome.word())), seconds(*at))).collect()
    }),
    ("last_success_timestamp_seconds", "gauge", SUCCESS, |lock| time(lock.stat.last_success)),
    ("last_failure_timestamp_seconds", "gauge", FAILURE, |lock| time(lock.stat.last_failure)),
    ("overdue", "gauge", OVERDUE, |lock| lock.overdue.map(|is| one(is.into())).unwrap_or_default()),
];
const BUSY: &str = "Attempts that were refused: without --wait, or because the queue was full.";
const DONE: &str = "Runs with --once-per that were skipped because a run had succeeded.";
const SUPERSEDED: &str = "Waiters with --replace that a newer one superseded.";
const GIVEN_UP: &str = "Waiters that left the queue without the lock.";
const PAUSED: &str = "1 while the lock is paused (dlock pause, --pause-on-failure).";
const WAITED: &str = "How long the holders waited for the lock, together.";
const SUCCESS: &str = "When a job last ended by itself with status 0.";
const FAILURE: &str = "When a job last ended otherwise than by itself with status 0.";
const OVERDUE: &str = "1 if the last success is older than --expect or --once-per says; absent without.";

fn one(value: u64) -> Vec<Point> {
    vec![("", None, value.to_string())]
}

fn time(ms: Option<u64>) -> Vec<Point> {
    ms.map(|ms| ("", None, seconds(ms))).into_iter().collect()
}

fn histogram(histogram: &Histogram) -> Vec<Point> {
    static UP_TO: LazyLock<Vec<String>> =
        LazyLock::new(|| BOUNDS.iter().map(|bound| seconds(*bound)).chain(["+Inf".to_owned()]).collect());
    let mut below = 0_u64;
    let mut points = Vec::new();
    for (bound, count) in UP_TO.iter().zip(histogram.buckets) {
        below = below.saturating_add(count);
        points.push(("_bucket", Some(("le", bound.as_str())), below.to_string()));
    }
    points.extend([("_sum", None, seconds(histogram.sum)), ("_count", None, below.to_string())]);
    points
}

/// A label's value: escapes what a terminal would act on, then what the format requires. A key that
/// contains such an escape literally gets its backslash escaped, because Prometheus rejects a
/// scrape in which two locks have the same label.
fn label(text: &str) -> String {
    let seen = escaped(&text.replace("\\u{", "\\u{5c}u{")).into_owned();
    seen.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Milliseconds as seconds.
fn seconds(ms: u64) -> String {
    (ms as f64 / 1000.0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Outcome;
    use std::time::Duration;

    fn page(keys: &[&str]) -> Exposition {
        let mut stat = Stat { grants: 2, waited_ms: 30_005_021, ..Stat::default() };
        for ms in [0, 1_000, 1_001, 50_000, 90_000_000] {
            stat.held.add(Duration::from_millis(ms));
        }
        stat.last.insert(Outcome::Forced, 1_763_724_242_007);
        let sample = Sample { stat, holders: 1, ..Sample::default() };
        Exposition(keys.iter().map(|key| (label(key), sample.clone())).collect())
    }

    #[test]
    fn buckets_are_cumulative() {
        let text = page(&["k"]).text();
        for line in [
            "dlock_hold_seconds_bucket{key=\"k\",le=\"1\"} 2",
            "dlock_hold_seconds_bucket{key=\"k\",le=\"10\"} 3",
            "dlock_hold_seconds_bucket{key=\"k\",le=\"60\"} 4",
            "dlock_hold_seconds_bucket{key=\"k\",le=\"86400\"} 4",
            "dlock_hold_seconds_bucket{key=\"k\",le=\"+Inf\"} 5",
            "dlock_hold_seconds_sum{key=\"k\"} 90052.001",
            "dlock_hold_seconds_count{key=\"k\"} 5",
            "dlock_grants_total{key=\"k\"} 2",
            "dlock_wait_seconds_total{key=\"k\"} 30005.021",
            "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"forced\"} 1763724242.007",
            "dlock_keys 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn overflowing_totals_are_capped() {
        let mut page = page(&["a"]);
        page.0.values_mut().for_each(|forged| forged.stat.held.buckets[1] = u64::MAX);
        let line = "dlock_hold_seconds_count{key=\"a\"} 18446744073709551615";
        assert!(page.text().lines().any(|found| found == line), "{}", page.text());
    }

    #[test]
    fn each_family_has_one_head() {
        let text = page(&["a", "b"]).text();
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                assert!(seen.insert(rest.split(' ').next().unwrap_or_default().to_owned()), "{line}");
            }
        }
        assert!(!text.contains("\n\n") && text.ends_with('\n'));
    }

    #[test]
    fn labels_are_escaped_and_distinct() {
        assert_eq!(label("a\\b\"c"), "a\\\\b\\\"c");
        let keys = ["\u{202e}", "\\u{202e}", "\\u{5c}u{202e}", "\\\u{202e}"];
        let labels: std::collections::BTreeSet<_> = keys.map(label).into();
        assert_eq!(labels.len(), keys.len(), "{labels:?}");
        assert!(labels.iter().all(|label| label.is_ascii()), "{labels:?}");
    }
}

//! The text format of Prometheus, with HELP and TYPE: a family for each metric with a series for
//! each lock, and a second family with the sum over all locks, so that `sum()` counts nothing
//! twice. docs/metrics.md explains the names and labels; they change only with a major version.

use super::escaped;
use super::time::millis;
use crate::rules::stat::{BOUNDS, Histogram, Stat};
use crate::rules::{Outcome, State};
use crate::store::View;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

/// The values of one lock.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// The key; on the page, escaped as a label.
    key: String,
    stat: Stat,
    holders: u64,
    waiters: u64,
    paused: u64,
    /// In milliseconds.
    lease: Option<u64>,
}

impl Sample {
    pub fn of(view: View) -> Self {
        let is_held = view.state == State::Held;
        // The server may have lost the record of the holder.
        let holders = if is_held { view.holders.len().max(1) } else { 0 };
        let lease = view.holders.iter().map(|holder| holder.lease).max();
        let foreign = view.foreign.as_ref().and_then(|foreign| foreign.left);
        Self {
            key: view.name.key().to_owned(),
            stat: view.stat,
            holders: holders as u64,
            waiters: view.waiters.len() as u64,
            paused: view.paused.is_some().into(),
            lease: lease.or(foreign).filter(|_| is_held).map(millis),
        }
    }
}

#[derive(Debug, Default)]
pub struct Exposition {
    most: usize,
    /// The first `most` locks in order of key. A sample here has the label in place of the key.
    shown: BTreeMap<String, Sample>,
    /// The sum. Its key is empty.
    all: Sample,
    keys: u64,
}

impl Exposition {
    /// A page on which at most this many locks have their own series.
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn add(&mut self, mut sample: Sample) {
        self.keys += 1;
        self.all.holders += sample.holders;
        self.all.waiters += sample.waiters;
        self.all.paused += sample.paused;
        sum(&mut self.all.stat, &sample.stat);
        let label = label(&sample.key);
        self.shown.insert(std::mem::replace(&mut sample.key, label), sample);
        if self.shown.len() > self.most {
            self.shown.pop_last();
        }
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut family = |name, kind, help, points: &dyn Fn(&Sample) -> Vec<Point>| {
            each(&mut text, &format!("dlock_{name}"), kind, help, self.shown.values(), points);
            let help = format!("{help} All locks together.");
            each(&mut text, &format!("dlock_all_{name}"), kind, &help, [&self.all], points);
        };
        let counters: [(_, _, Count); 5] = [
            ("grants_total", "Times that the lock was granted.", |lock| lock.stat.waited.count()),
            (
                "busy_total",
                "Attempts that were refused: without --wait, or because the queue was full.",
                |lock| lock.stat.busy,
            ),
            ("done_total", "Runs with --once-per that were skipped because a run had succeeded.", |lock| {
                lock.stat.done
            }),
            ("superseded_total", "Waiters with --replace that a newer one superseded.", |lock| {
                lock.stat.superseded
            }),
            ("given_up_total", "Waiters that left the queue without the lock.", |lock| lock.stat.given_up),
        ];
        for (name, help, of) in counters {
            family(name, "counter", help, &|lock| count(of(lock)));
        }
        family("jobs_total", "counter", "Jobs that ended, by result.", &|Sample { stat, .. }| {
            [("succeeded", stat.succeeded), ("failed", stat.failed)]
                .map(|(result, count)| ("", Some(("result", result.into())), count.to_string()))
                .into()
        });
        // Always all outcomes, so that an alert need not handle an absent series.
        family("ends_total", "counter", "Holds that ended, by outcome.", &|lock| {
            by_outcome(|outcome| Some(lock.stat.ends.get(&outcome).copied().unwrap_or_default().to_string()))
        });
        family("wait_seconds", "histogram", "How long the holders waited for the lock.", &|lock| {
            histogram(&lock.stat.waited)
        });
        family("hold_seconds", "histogram", "How long the ended holds lasted.", &|lock| {
            histogram(&lock.stat.held)
        });
        let gauges: [(_, _, Count); 3] = [
            ("holders", "Holders now.", |lock| lock.holders),
            ("paused", "1 while the lock is paused (dlock pause).", |lock| lock.paused),
            ("queue_length", "Waiters now.", |lock| lock.waiters),
        ];
        for (name, help, of) in gauges {
            family(name, "gauge", help, &|lock| count(of(lock)));
        }
        family("last_end_timestamp_seconds", "gauge", "When a hold last ended, by outcome.", &|lock| {
            by_outcome(|outcome| lock.stat.last.get(&outcome).copied().map(seconds))
        });
        let success = "When a job last ended by itself with status 0.";
        family("last_success_timestamp_seconds", "gauge", success, &|lock| time(lock.stat.last_success));
        let failure = "When a job last ended otherwise than by itself with status 0.";
        family("last_failure_timestamp_seconds", "gauge", failure, &|lock| time(lock.stat.last_failure));
        // A sum of leases is of no use, so there is no family for all locks.
        let (lease, shown) = ("Time left of the lease; of several holders the longest.", self.shown.values());
        each(&mut text, "dlock_lease_left_seconds", "gauge", lease, shown, &|lock| time(lock.lease));
        let (none, hidden) = ([&Sample::default()], self.keys.saturating_sub(self.shown.len() as u64));
        each(&mut text, "dlock_keys", "gauge", "Locks that are counted.", none, &|_| count(self.keys));
        let help = "Locks that are counted in the sum only (--max-keys).";
        each(&mut text, "dlock_keys_not_shown", "gauge", help, none, &|_| count(hidden));
        text
    }
}

fn sum(all: &mut Stat, one: &Stat) {
    // A store's totals may be so large that the sum overflows.
    all.join(one, u64::saturating_add);
    for (all, one) in [(&mut all.waited, &one.waited), (&mut all.held, &one.held)] {
        all.buckets.iter_mut().zip(one.buckets).for_each(|(all, one)| *all = all.saturating_add(one));
        all.sum = all.sum.saturating_add(one.sum);
    }
}

/// One value of a lock.
type Count = fn(&Sample) -> u64;

/// One line of a family: the suffix of its name, its label besides the lock's, its value.
type Point = (&'static str, Option<(&'static str, Cow<'static, str>)>, String);

/// Writes a family. The sum of all locks has no key.
fn each<'a>(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    samples: impl IntoIterator<Item = &'a Sample>,
    points: &dyn Fn(&Sample) -> Vec<Point>,
) {
    let _infallible = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for sample in samples {
        let key = (!sample.key.is_empty()).then_some(("key", sample.key.as_str()));
        for (suffix, own, value) in points(sample) {
            text.extend([name, suffix]);
            let own = own.as_ref().map(|(label, value)| (*label, &**value));
            let mut before = "{";
            for (label, value) in key.into_iter().chain(own) {
                text.extend([before, label, "=\"", value, "\""]);
                before = ",";
            }
            let after = if before == "," { "} " } else { " " };
            text.extend([after, &value, "\n"]);
        }
    }
}

fn count(count: u64) -> Vec<Point> {
    vec![("", None, count.to_string())]
}

fn time(ms: Option<u64>) -> Vec<Point> {
    ms.map(|ms| ("", None, seconds(ms))).into_iter().collect()
}

fn by_outcome(value: impl Fn(Outcome) -> Option<String>) -> Vec<Point> {
    let point = |outcome: Outcome| Some(("", Some(("outcome", outcome.word().into())), value(outcome)?));
    Outcome::ALL.into_iter().filter_map(point).collect()
}

fn histogram(histogram: &Histogram) -> Vec<Point> {
    static UP_TO: LazyLock<Vec<String>> =
        LazyLock::new(|| BOUNDS.iter().map(|bound| seconds(*bound)).chain(["+Inf".to_owned()]).collect());
    let mut below = 0_u64;
    let mut points = Vec::new();
    for (bound, count) in UP_TO.iter().zip(histogram.buckets) {
        below = below.saturating_add(count);
        points.push(("_bucket", Some(("le", bound.into())), below.to_string()));
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
    use std::time::Duration;

    fn sample(key: &str) -> Sample {
        let mut sample = Sample { key: key.into(), holders: 1, lease: Some(1500), ..Sample::default() };
        for ms in [0, 10, 11, 5_000, 30_000_000] {
            sample.stat.waited.add(Duration::from_millis(ms));
        }
        sample.stat.last.insert(Outcome::Forced, 1_763_724_242_007);
        sample
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut page = Exposition::new(5);
        page.add(sample("k"));
        let text = page.text();
        for line in [
            "dlock_wait_seconds_bucket{key=\"k\",le=\"0.01\"} 2",
            "dlock_wait_seconds_bucket{key=\"k\",le=\"0.1\"} 3",
            "dlock_wait_seconds_bucket{key=\"k\",le=\"10\"} 4",
            "dlock_wait_seconds_bucket{key=\"k\",le=\"21600\"} 4",
            "dlock_wait_seconds_bucket{key=\"k\",le=\"+Inf\"} 5",
            "dlock_wait_seconds_sum{key=\"k\"} 30005.021",
            "dlock_wait_seconds_count{key=\"k\"} 5",
            "dlock_grants_total{key=\"k\"} 5",
            "dlock_all_grants_total 5",
            "dlock_all_wait_seconds_bucket{le=\"0.01\"} 2",
            "dlock_lease_left_seconds{key=\"k\"} 1.5",
            "dlock_last_end_timestamp_seconds{key=\"k\",outcome=\"forced\"} 1763724242.007",
            "dlock_ends_total{key=\"k\",outcome=\"lost\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn overflowing_totals_are_capped() {
        let mut page = Exposition::new(2);
        for key in ["a", "b"] {
            let mut forged = sample(key);
            (forged.stat.busy, forged.stat.waited.buckets[1]) = (u64::MAX, u64::MAX);
            page.add(forged);
        }
        let text = page.text();
        for line in
            ["dlock_all_busy_total 18446744073709551615", "dlock_all_grants_total 18446744073709551615"]
        {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn locks_beyond_the_limit_are_only_in_the_sum() {
        let mut page = Exposition::new(2);
        ["a", "b", "c"].map(sample).into_iter().for_each(|sample| page.add(sample));
        let text = page.text();
        assert!(text.contains("\"b\"") && !text.contains("\"c\""), "{text}");
        for line in ["dlock_all_grants_total 15", "dlock_keys 3", "dlock_keys_not_shown 1"] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn each_family_has_one_head() {
        let mut page = Exposition::new(2);
        ["a", "b"].map(sample).into_iter().for_each(|sample| page.add(sample));
        let text = page.text();
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

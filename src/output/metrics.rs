//! What does Prometheus read? The text format, with HELP and TYPE: a family for each thing that is counted, in it a series
//! for each lock, and a family more for the sum over all of them, so that `sum()` counts nothing twice. The names and
//! labels are explained in docs/metrics.md; they change with a major version only.

use super::escaped;
use super::time::millis;
use crate::law::stat::{BOUNDS, Histogram, Stat};
use crate::law::{Outcome, State};
use crate::store::View;
use std::fmt::Write as _;

/// What is told of one lock.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    key: String,
    stat: Stat,
    holders: u64,
    waiters: u64,
    /// In milliseconds.
    lease: Option<u64>,
}

impl Sample {
    /// What a view tells.
    pub fn of(view: &View) -> Self {
        let is_held = view.state == State::Held;
        // The server may have lost who holds it.
        let holders = if is_held { view.holders.len().max(1) } else { 0 };
        let lease = view.holders.iter().map(|holder| holder.lease).max();
        let foreign = view.foreign.as_ref().and_then(|foreign| foreign.left);
        Self {
            key: view.name.key().to_owned(),
            stat: view.stat.clone(),
            holders: holders as u64,
            waiters: view.waiters.len() as u64,
            lease: lease.or(foreign).filter(|_| is_held).map(millis),
        }
    }
}

#[derive(Debug, Default)]
pub struct Exposition {
    most: usize,
    shown: Vec<Sample>,
    /// The sum; its key says nothing.
    all: Sample,
    keys: u64,
}

impl Exposition {
    /// A page on which at most so many locks have series of their own.
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn add(&mut self, sample: Sample) {
        self.keys += 1;
        self.all.holders += sample.holders;
        self.all.waiters += sample.waiters;
        sum(&mut self.all.stat, &sample.stat);
        if self.shown.len() < self.most {
            self.shown.push(sample);
        }
    }

    pub fn text(&self) -> String {
        let mut text = Text { text: String::new(), page: self };
        text.counter("grants_total", "Times that the lock was granted.", |stat| stat.waited.count());
        text.counter("busy_total", "Refusals of those that did not wait.", |stat| stat.busy);
        text.counter("given_up_total", "Waiters that left the queue without the lock.", |stat| stat.given_up);
        text.family("jobs_total", "counter", "Jobs that ended, by result.", |lock, text, name| {
            text.sample(name, &lock.with("result", "succeeded"), &lock.stat.succeeded.to_string());
            text.sample(name, &lock.with("result", "failed"), &lock.stat.failed.to_string());
        });
        text.family("ends_total", "counter", "Holds that ended, by outcome.", |lock, text, name| {
            // All of them always, so that an alert needs no absent series.
            for outcome in Outcome::ALL {
                let count = lock.stat.ends.get(&outcome).copied().unwrap_or_default();
                text.sample(name, &lock.with("outcome", outcome.word()), &count.to_string());
            }
        });
        text.histogram("wait_seconds", "How long was waited for the grants.", |stat| &stat.waited);
        text.histogram("hold_seconds", "How long the holds that ended had lasted.", |stat| &stat.held);
        text.gauge("holders", "Holders now.", |sample| Some(sample.holders.to_string()));
        text.gauge("queue_length", "Waiters now.", |sample| Some(sample.waiters.to_string()));
        text.lease();
        text.family(
            "last_end_timestamp_seconds",
            "gauge",
            "When a hold last ended so, by outcome.",
            |lock, text, name| {
                for outcome in Outcome::ALL {
                    if let Some(at) = lock.stat.last.get(&outcome) {
                        text.sample(name, &lock.with("outcome", outcome.word()), &seconds(*at));
                    }
                }
            },
        );
        text.gauge(
            "last_success_timestamp_seconds",
            "When a job last ended by itself with status 0.",
            |sample| sample.stat.last_success.map(seconds),
        );
        text.gauge("last_failure_timestamp_seconds", "When a job last ended otherwise.", |sample| {
            sample.stat.last_failure.map(seconds)
        });
        let hidden = self.keys - self.shown.len() as u64;
        text.head("dlock_keys", "gauge", "Locks that are counted.");
        text.sample("dlock_keys", "", &self.keys.to_string());
        text.head("dlock_keys_not_shown", "gauge", "Locks that are counted in the sum only (--max-keys).");
        text.sample("dlock_keys_not_shown", "", &hidden.to_string());
        text.text
    }
}

/// What stores count need not be a sum that fits.
fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

fn sum(all: &mut Stat, one: &Stat) {
    let spans = |all: &mut Histogram, one: &Histogram| {
        all.buckets.iter_mut().zip(one.buckets).for_each(|(all, one)| add(all, one));
        add(&mut all.sum, one.sum);
    };
    spans(&mut all.waited, &one.waited);
    spans(&mut all.held, &one.held);
    add(&mut all.busy, one.busy);
    add(&mut all.given_up, one.given_up);
    add(&mut all.succeeded, one.succeeded);
    add(&mut all.failed, one.failed);
    for (outcome, count) in &one.ends {
        add(all.ends.entry(*outcome).or_default(), *count);
    }
    for (outcome, at) in &one.last {
        let last = all.last.entry(*outcome).or_default();
        *last = (*last).max(*at);
    }
    all.last_success = all.last_success.max(one.last_success);
    all.last_failure = all.last_failure.max(one.last_failure);
}

/// One lock, or the sum, with the labels that name it.
struct Lock<'a> {
    stat: &'a Stat,
    labels: &'a str,
}

impl Lock<'_> {
    fn with(&self, label: &str, value: &str) -> String {
        let comma = if self.labels.is_empty() { "" } else { "," };
        format!("{}{comma}{label}=\"{value}\"", self.labels)
    }
}

struct Text<'a> {
    text: String,
    page: &'a Exposition,
}

impl Text<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _infallible = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: &str) {
        let _infallible = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            labels => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    /// The same for each lock, and for the sum.
    fn each(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        mut samples: impl FnMut(&Sample, &str, &mut Self, &str),
    ) {
        let page = self.page;
        let own = format!("dlock_{name}");
        self.head(&own, kind, help);
        for sample in &page.shown {
            samples(sample, &format!("key=\"{}\"", label(&sample.key)), self, &own);
        }
        let sum = format!("dlock_all_{name}");
        self.head(&sum, kind, &format!("{help} All locks together."));
        samples(&page.all, "", self, &sum);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str, samples: impl Fn(&Lock<'_>, &mut Self, &str)) {
        self.each(name, kind, help, |sample, labels, text, name| {
            samples(&Lock { stat: &sample.stat, labels }, text, name);
        });
    }

    fn counter(&mut self, name: &str, help: &str, count: impl Fn(&Stat) -> u64) {
        self.family(name, "counter", help, |lock, text, name| {
            text.sample(name, lock.labels, &count(lock.stat).to_string());
        });
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Sample) -> Option<String>) {
        self.each(name, "gauge", help, |sample, labels, text, name| {
            if let Some(value) = value(sample) {
                text.sample(name, labels, &value);
            }
        });
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&Stat) -> &Histogram) {
        self.family(name, "histogram", help, |lock, text, name| {
            let histogram = of(lock.stat);
            let bounds = BOUNDS.iter().map(|bound| seconds(*bound)).chain(["+Inf".to_owned()]);
            let mut below = 0_u64;
            for (bound, count) in bounds.zip(histogram.buckets) {
                add(&mut below, count);
                text.sample(&format!("{name}_bucket"), &lock.with("le", &bound), &below.to_string());
            }
            text.sample(&format!("{name}_sum"), lock.labels, &seconds(histogram.sum));
            text.sample(&format!("{name}_count"), lock.labels, &below.to_string());
        });
    }

    /// Of no use in sum.
    fn lease(&mut self) {
        let page = self.page;
        let name = "dlock_lease_left_seconds";
        self.head(name, "gauge", "What is left of the lease; of several holders the longest.");
        for sample in &page.shown {
            if let Some(left) = sample.lease {
                self.sample(name, &format!("key=\"{}\"", label(&sample.key)), &seconds(left));
            }
        }
    }
}

/// A label's value: what acts on a terminal is escaped, then what the format gives a meaning. A key that has the escape
/// itself in it has its backslash escaped, for one scrape in which two locks have the same label is refused whole.
fn label(text: &str) -> String {
    let seen = escaped(&text.replace("\\u{", "\\u{5c}u{")).into_owned();
    seen.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Milliseconds as seconds, exactly.
fn seconds(ms: u64) -> String {
    let (whole, rest) = (ms / 1000, ms % 1000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
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
    fn buckets_are_cumulative_and_end_with_all() {
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
    fn totals_that_do_not_fit_are_no_fault() {
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
    fn beyond_the_bound_there_is_only_the_sum() {
        let mut page = Exposition::new(2);
        ["a", "b", "c"].map(sample).into_iter().for_each(|sample| page.add(sample));
        let text = page.text();
        assert!(text.contains("\"b\"") && !text.contains("\"c\""), "{text}");
        for line in ["dlock_all_grants_total 15", "dlock_keys 3", "dlock_keys_not_shown 1"] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn each_family_has_one_head_and_stands_together() {
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
    fn a_label_is_escaped() {
        assert_eq!(label("a\\b\"c"), "a\\\\b\\\"c");
        let keys = ["\u{202e}", "\\u{202e}", "\\u{5c}u{202e}", "\\\u{202e}"];
        let labels: std::collections::BTreeSet<_> = keys.map(label).into();
        assert_eq!(labels.len(), keys.len(), "{labels:?}");
        assert!(labels.iter().all(|label| label.is_ascii()), "{labels:?}");
    }
}

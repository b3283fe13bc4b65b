//! How often a request that has failed is tried again, and for how long. The pauses grow, so that a
//! crowd does not keep a busy server from getting on, and differ, so that the crowd spreads.
//! `store::net::budget` limits how many connections a server sees. `rules::schedule` says when a
//! holder renews again.

use super::Until;
use crate::clock::Moment;
use crate::store::Error;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

/// Longest pause, without the random part. A store that comes back is found about as soon.
const LONGEST: Duration = Duration::from_secs(1);
/// Factor from one pause to the next.
const GROWTH: u32 = 3;
/// How long a caller that does not wait for the lock asks a server that is overloaded, counted from
/// the caller's arrival.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// The tries of one caller.
#[derive(Debug, Clone)]
pub struct Retry {
    arrived: Moment,
    first: Duration,
    failures: u32,
}

impl Retry {
    /// No try has failed so far. The pause after the first failure is `first`.
    pub fn after(first: Duration) -> Self {
        Self { arrived: Moment::now(), first, failures: 0 }
    }

    /// A try has succeeded.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Counts a failed try. Returns how long to pause: as planned, or up to half as long again.
    /// `who` makes the pauses of several callers differ.
    pub fn pause(&mut self, who: impl Hash) -> Duration {
        let planned = self.first.saturating_mul(GROWTH.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let mut hasher = DefaultHasher::new();
        (who, self.failures).hash(&mut hasher);
        planned + planned.mul_f64(f64::from(hasher.finish() as u8) / 512.0)
    }

    /// Whether to ask again although the store failed. A caller that does not wait asks only a
    /// server that may serve it a moment later.
    pub fn rides_out(&self, error: &Error, until: Until) -> bool {
        let is_worth_it = match until {
            Until::No => matches!(error, Error::Overloaded(_)),
            Until::At(_) | Until::Forever => error.is_outage(),
        };
        is_worth_it && !self.end(until).is_some_and(Moment::passed)
    }

    /// When a caller that has had no answer gives up.
    pub fn end(&self, until: Until) -> Option<Moment> {
        if until == Until::No { Some(self.arrived.after(SERVED_WITHIN)) } else { until.end() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let mut retry = Retry::after(Duration::from_millis(300));
        let pauses: Vec<_> = (0..5).map(|_| retry.pause("a").as_millis()).collect();
        let planned = [300, 900, 1000, 1000, 1000];
        for (pause, planned) in pauses.iter().zip(planned) {
            assert!((planned..planned * 3 / 2).contains(pause), "{pauses:?}");
        }
        let mut other = Retry::after(Duration::from_millis(300));
        assert_ne!(pauses, (0..5).map(|_| other.pause("b").as_millis()).collect::<Vec<_>>());
        retry.succeeded();
        assert!(retry.pause("a") < Duration::from_millis(450));
    }
}

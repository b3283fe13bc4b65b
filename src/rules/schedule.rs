//! When a holder renews, when its job gets TERM and KILL, and when the job must be dead (I6). All
//! of it is computed from the ttl and the time at which the last successful request was sent. Reads
//! no clock.

use crate::clock::Moment;
use crate::lock::Ttl;
use std::time::Duration;

/// The timetable of a holder. All times count from `sent`, read *before* the last acquire or
/// renewal that succeeded was sent. The store began to count later, so its lease outlasts every one
/// of them.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    ttl: Duration,
    grace: Duration,
    op_timeout: Duration,
}

/// End of a lease that was requested at `sent`, for its holder. It is 1 % and 2 ms shorter than the
/// ttl, because the two clocks may differ in rate, and the store rounds to milliseconds.
pub fn deadline(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

/// How long a connection may be silent before another one is opened beside it. After a renewal at a
/// quarter of the ttl, an outage of half the ttl then ends while both are waiting.
pub fn silence(ttl: Duration) -> Duration {
    ttl * 3 / 16
}

impl Schedule {
    /// For a lease of `ttl`, a job that gets `grace` between TERM and KILL, and a store that
    /// answers within `op_timeout`.
    pub const fn new(ttl: Ttl, grace: Duration, op_timeout: Duration) -> Self {
        Self { ttl: ttl.get(), grace, op_timeout }
    }

    /// [`deadline`] of this lease.
    pub fn deadline(&self, sent: Moment) -> Moment {
        deadline(sent, self.ttl)
    }

    /// When the job gets KILL, so that it is dead at the deadline.
    pub fn kill_at(&self, sent: Moment) -> Moment {
        self.deadline(sent).before(self.margin())
    }

    /// The time from KILL to the deadline.
    pub fn margin(&self) -> Duration {
        (self.ttl / 50).max(Duration::from_millis(20))
    }

    /// When the job gets TERM: earlier than the deadline by the grace, or by a fifth of the ttl if
    /// that is less, and never after KILL.
    pub fn term_at(&self, sent: Moment) -> Moment {
        self.deadline(sent).before(self.grace.min(self.ttl / 5)).min(self.kill_at(sent))
    }

    /// How much earlier than [`Schedule::kill_at`] the killing may begin without an outage of half
    /// the ttl disturbing the job.
    pub fn spare(&self) -> Duration {
        (self.ttl / 5).saturating_sub(self.margin())
    }

    /// When a job gets KILL if its lock was found lost at `now`, and the last success was sent at
    /// `sent`.
    pub fn kill_of_lost(&self, now: Moment, sent: Moment) -> Moment {
        now.after(self.grace.min(self.ttl / 5)).min(self.kill_at(sent))
    }

    pub fn renew_at(&self, sent: Moment) -> Moment {
        sent.after(self.ttl / 4)
    }

    /// How long an attempt may take, connecting included. After a failure it gets half as long as
    /// the first one. With attempts back to back, an outage of half the ttl that begins just before
    /// a renewal is then over in time, whatever it does to the attempt in flight: 1/4 + 1/2 + 1/32
    /// of the ttl lie before TERM, 1/4 + 1/2 + 1/16 do not.
    pub fn attempt(&self, failed_before: FailedBefore) -> Duration {
        let share = match failed_before {
            FailedBefore::No => self.ttl / 16,
            FailedBefore::Yes => self.ttl / 32,
        };
        share.min(self.op_timeout)
    }

    /// How long an attempt may take where a retry would need a new connection. Three of them cover
    /// an outage of half the ttl: the third one begins before the outage ends
    /// (1/4 + 2 * 3/16 < 1/4 + 1/2) and may go on until TERM. `usual` is how long the last renewal
    /// took; connecting takes a few round trips more.
    pub fn long_attempt(&self, usual: Duration) -> Duration {
        silence(self.ttl).max(usual.saturating_mul(8))
    }

    /// When a second attempt begins beside one that began at `began` and has no answer.
    pub fn beside_at(&self, began: Moment, usual: Duration) -> Moment {
        began.after(usual.saturating_mul(3).clamp(silence(self.ttl), self.ttl * 5 / 16))
    }

    /// The deadline of a second attempt that begins now beside one that began at `first`. A server
    /// that stood still answers the first attempt; a request that the network has lost needs a new
    /// connection. So the second attempt lasts about as long as an outage of half the ttl, and each
    /// one after it a thirty-second of the ttl.
    pub fn beside_until(&self, first: Moment, now: Moment, usual: Duration) -> Moment {
        let share = (self.ttl / 32).max(usual.saturating_mul(8));
        first.after(self.ttl * 15 / 32).max(now.after(share))
    }

    /// When an attempt that began at `began` counts as late and is reported.
    pub fn late_at(&self, began: Moment, usual: Duration) -> Moment {
        began.after(usual.saturating_mul(2).clamp(self.ttl * 3 / 32, self.ttl * 5 / 16))
    }

    /// When to retry after an attempt that began at `began` has failed, as have `failures` in a
    /// row. The first retry comes after a fiftieth of the ttl. The pause doubles each time, because
    /// thousands of holders that all retry hold up a server that is starting. It is at most a
    /// quarter of the time until TERM, so the last retries are a fiftieth of the ttl apart again,
    /// and an outage of half the ttl is noticed to be over in time.
    pub fn retry_at(&self, began: Moment, sent: Moment, failures: u32) -> Moment {
        let (least, left) = (self.ttl / 50, self.term_at(sent).since(began));
        let pause = least.saturating_mul(1 << failures.saturating_sub(1).min(5));
        began.after(pause.min(left / 4).max(least))
    }
}

/// Whether the attempt before this one failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedBefore {
    No,
    Yes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans() -> impl Iterator<Item = (Duration, Schedule)> {
        let grace = Duration::from_secs(10);
        [500, 501, 777, 1000, 3000, 30_000, 3_600_000, 86_400_000].into_iter().filter_map(move |ms| {
            let ttl = Duration::from_millis(ms);
            Some((ttl, Schedule::new(Ttl::new(ttl).ok()?, grace, Duration::from_secs(1))))
        })
    }

    #[test]
    fn an_outage_of_half_the_ttl_is_over_before_term() {
        let sent = Moment::from_boot(Duration::from_secs(1000));
        for (ttl, plan) in plans() {
            let worst = plan.renew_at(sent).after(ttl / 2).after(plan.attempt(FailedBefore::Yes));
            assert!(
                worst < plan.term_at(sent),
                "ttl {ttl:?}: back at {worst:?}, TERM at {:?}",
                plan.term_at(sent)
            );
        }
    }

    /// This must hold however long it takes to kill the job.
    #[test]
    fn an_outage_of_half_the_ttl_is_over_before_the_earliest_kill() {
        let sent = Moment::from_boot(Duration::from_secs(1000));
        for (ttl, plan) in plans() {
            let worst = plan.renew_at(sent).after(ttl / 2).after(plan.attempt(FailedBefore::Yes));
            assert!(worst < plan.kill_at(sent).before(plan.spare()), "ttl {ttl:?}");
        }
    }

    #[test]
    fn moments_come_in_order_and_before_the_store_forgets() {
        let sent = Moment::from_boot(Duration::from_secs(1000));
        for (ttl, plan) in plans() {
            let order = [plan.renew_at(sent), plan.term_at(sent), plan.kill_at(sent), plan.deadline(sent)];
            assert!(order.is_sorted(), "ttl {ttl:?}: {order:?}");
            assert!(plan.deadline(sent) < sent.after(ttl));
        }
    }

    #[test]
    fn without_grace_term_and_kill_come_together() {
        let sent = Moment::from_boot(Duration::from_secs(1000));
        let Ok(ttl) = Ttl::new(Duration::from_secs(30)) else { return };
        let plan = Schedule::new(ttl, Duration::ZERO, Duration::from_secs(1));
        assert_eq!(plan.term_at(sent), plan.kill_at(sent));
    }

    /// Each moment of a lease of 30 s as a number, in ms after `sent`.
    #[test]
    fn the_timetable_of_thirty_seconds() {
        let Ok(ttl) = Ttl::new(Duration::from_secs(30)) else { return };
        let plan = Schedule::new(ttl, Duration::from_secs(10), Duration::from_secs(5));
        let sent = Moment::from_boot(Duration::from_secs(1000));
        let at = |ms: u64| sent.after(Duration::from_millis(ms));
        let ms = |span: Duration| span.as_micros();
        let usual = Duration::from_millis;

        assert_eq!(plan.deadline(sent), at(29_698), "1 % and 2 ms early");
        assert_eq!(plan.kill_at(sent), at(29_098));
        assert_eq!(plan.term_at(sent), at(23_698));
        assert_eq!([plan.margin(), plan.spare()].map(ms), [600_000, 5_400_000]);
        assert_eq!(plan.kill_of_lost(at(10_000), sent), at(16_000));
        assert_eq!(plan.kill_of_lost(at(25_000), sent), at(29_098), "never later than without it");
        let short = Schedule::new(ttl, Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!([short.term_at(sent), short.kill_of_lost(sent, sent)], [at(28_698), at(1_000)]);

        assert_eq!(plan.renew_at(sent), at(7_500));
        assert_eq!(ms(silence(ttl.get())), 5_625_000);
        assert_eq!(
            [FailedBefore::No, FailedBefore::Yes].map(|it| ms(plan.attempt(it))),
            [1_875_000, 937_500]
        );
        let hasty = Schedule::new(ttl, Duration::ZERO, Duration::from_millis(900));
        assert_eq!([FailedBefore::No, FailedBefore::Yes].map(|it| ms(hasty.attempt(it))), [900_000; 2]);
        assert_eq!([100, 1_000].map(|took| ms(plan.long_attempt(usual(took)))), [5_625_000, 8_000_000]);
        for (took, beside) in [(100, 5_625), (2_500, 7_500), (5_000, 9_375)] {
            assert_eq!(plan.beside_at(sent, usual(took)), at(beside), "usually {took} ms");
        }
        for (now, took, until) in [(0, 0, 14_062_500), (14_000, 0, 14_937_500), (14_000, 500, 18_000_000)] {
            let until = sent.after(Duration::from_micros(until));
            assert_eq!(plan.beside_until(sent, at(now), usual(took)), until, "at {now}, usually {took} ms");
        }
        for (took, late) in [(0, 2_812_500), (2_000, 4_000_000), (9_000, 9_375_000)] {
            assert_eq!(plan.late_at(sent, usual(took)), sent.after(Duration::from_micros(late)));
        }
        // Doubled from a fiftieth of the ttl, at most a quarter of the time until TERM.
        for (began, failures, next) in
            [(7_500, 1, 8_100_000), (7_500, 3, 9_900_000), (7_500, 6, 11_549_500), (23_000, 6, 23_600_000)]
        {
            let next = sent.after(Duration::from_micros(next));
            assert_eq!(plan.retry_at(at(began), sent, failures), next, "{failures} failures until {began}");
        }
    }
}

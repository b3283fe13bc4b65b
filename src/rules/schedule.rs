//! When does a holder do what? The holder's own machine (I6): from the moment its last successful renewal was sent,
//! and the ttl, to the moments of the next renewal, of TERM, of KILL and of the deadline. Reads no clock.

use crate::clock::Moment;
use crate::lock::Ttl;
use std::time::Duration;

/// The plan of a holder. All moments count from `sent`, read *before* the send of the last acquire or renewal that
/// succeeded: the store's own count began later, so the store outlasts every one of them.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    ttl: Duration,
    grace: Duration,
    op_timeout: Duration,
}

/// From here on a lease is no longer relied on that was asked for at `sent`. 1 % and 2 ms are kept for two clocks that do not
/// run alike.
pub fn deadline(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

impl Schedule {
    /// For a lease of `ttl`, a job that gets `grace` between TERM and KILL, and a store that answers in `op_timeout`.
    pub const fn new(ttl: Ttl, grace: Duration, op_timeout: Duration) -> Self {
        Self { ttl: ttl.get(), grace, op_timeout }
    }

    /// [`deadline`] of this lease.
    pub fn deadline(&self, sent: Moment) -> Moment {
        deadline(sent, self.ttl)
    }

    /// When the job gets KILL, so that it is dead at the deadline.
    pub fn kill_at(&self, sent: Moment) -> Moment {
        self.deadline(sent).before((self.ttl / 50).max(Duration::from_millis(20)))
    }

    /// When the job gets TERM: the grace before the deadline, cut to a fifth of the ttl.
    pub fn term_at(&self, sent: Moment) -> Moment {
        self.deadline(sent).before(self.grace.min(self.ttl / 5)).min(self.kill_at(sent))
    }

    /// How much earlier than [`Schedule::kill_at`] the killing may begin: not so early that an outage of half the ttl would
    /// disturb the job.
    pub fn spare(&self) -> Duration {
        (self.ttl / 5).saturating_sub((self.ttl / 50).max(Duration::from_millis(20)))
    }

    /// When a job gets KILL whose lock was found lost at `now`, counting from the last success at `sent`.
    pub fn kill_of_lost(&self, now: Moment, sent: Moment) -> Moment {
        now.after(self.grace.min(self.ttl / 5)).min(self.kill_at(sent))
    }

    pub fn renew_at(&self, sent: Moment) -> Moment {
        sent.after(self.ttl / 4)
    }

    /// How long an attempt may take, connecting included. One that follows a failure gets half of what the first gets:
    /// with attempts back to back, an outage of half the ttl that began just before a renewal is over in time, whatever
    /// it does to the attempt in flight (1/4 + 1/2 + 1/32 of the ttl lie before TERM, 1/4 + 1/2 + 1/16 do not).
    pub fn attempt(&self, failed_before: FailedBefore) -> Duration {
        let share = match failed_before {
            FailedBefore::No => self.ttl / 16,
            FailedBefore::Yes => self.ttl / 32,
        };
        share.min(self.op_timeout)
    }

    /// How long an attempt may take that would cost the server a new connection if it were made again. Three of them cover
    /// an outage of half the ttl: the third one begins before it ends (1/4 + 2 * 3/16 < 1/4 + 1/2) and may go on until
    /// TERM. `usual` is how long a renewal took last: connecting anew takes some round trips more.
    pub fn long_attempt(&self, usual: Duration) -> Duration {
        (self.ttl * 3 / 16).max(usual.saturating_mul(8))
    }

    /// When a second attempt begins beside one that began then and is not answered.
    pub fn beside_at(&self, began: Moment, usual: Duration) -> Moment {
        began.after(usual.saturating_mul(3).clamp(self.ttl * 3 / 16, self.ttl * 5 / 16))
    }

    /// Until when the second attempt lasts that begins now; the first one began at `first`. A server that stood still answers
    /// the first one. What the network has lost needs a new connection. So the second one lasts about as long as an outage of
    /// half the ttl; each one after it lasts a thirty-second of the ttl.
    pub fn beside_until(&self, first: Moment, now: Moment, usual: Duration) -> Moment {
        let share = (self.ttl / 32).max(usual.saturating_mul(8));
        first.after(self.ttl * 15 / 32).max(now.after(share))
    }

    /// When an attempt that began then counts as late, so that a person hears of it.
    pub fn late_at(&self, began: Moment, usual: Duration) -> Moment {
        began.after(usual.saturating_mul(2).clamp(self.ttl * 3 / 32, self.ttl * 5 / 16))
    }

    /// When the attempt after a failed one follows: at once after one that timed out, and never faster than every
    /// fiftieth of the ttl.
    pub fn retry_at(&self, attempt_began: Moment) -> Moment {
        attempt_began.after(self.ttl / 50)
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

    /// However long it takes to kill the job.
    #[test]
    fn nor_is_the_kill_anticipated_before_that() {
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
}

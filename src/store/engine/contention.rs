//! What a transaction does when others change the lock before it: it pauses, and begins again while
//! there is time.

use crate::clock::Moment;
use crate::store::Error;
use crate::store::net::interrupt;
use std::time::Duration;

/// Base of the back-off after a write conflict; of a newcomer half its attempt, if that is longer. A
/// back-off is a random time, at most twice this after the first conflict. The maximum doubles with
/// each further conflict, up to the limits below.
const BACK_OFF_FIRST: Duration = Duration::from_micros(500);
/// Longest back-off of a caller that wants a lock; of a newcomer two attempts, if those take longer.
const BACK_OFF_ACQUIRE: Duration = Duration::from_millis(500);
/// Longest back-off of the only holder: short, because the lease is running out, or the grant lapses
/// after [`crate::rules::CONFIRM_WITHIN`].
const BACK_OFF_HOLD: Duration = Duration::from_millis(1);
/// Longest back-off of one of several holders, of operators, and of waiters that leave. They conflict
/// with each other, and shorter back-offs would overload the store. Also the pause after a failure of
/// the store.
const BACK_OFF_SHARED: Duration = Duration::from_millis(20);
/// Number of conflicts after which the callers are a crowd. Then the only holder reserves the record
/// ([`Purpose::Reserve`](super::coordinator::Purpose::Reserve)), and a refusal is no longer counted
/// in it: callers would lose race after race until they time out, only for that count.
const CROWD_AFTER: u32 = 2;

/// A caller that wants to change the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// It wants the lock, and has no place in the queue.
    Newcomer,
    /// It wants the lock, and waits.
    Waiter,
    /// It alone holds the lock.
    Alone,
    /// One of several holders, a waiter that leaves, or an operator.
    Other,
}

impl Contender {
    /// The base of the back-off and its limit, after an attempt that took this long.
    fn bounds(self, attempt: Duration) -> (Duration, Duration) {
        match self {
            // Newcomers on a long line get out of each other's way only if their pauses are as long
            // as their attempts. Waiters and holders go first.
            Self::Newcomer => (BACK_OFF_FIRST.max(attempt / 2), BACK_OFF_ACQUIRE.max(attempt * 2)),
            Self::Waiter => (BACK_OFF_FIRST, BACK_OFF_ACQUIRE),
            Self::Alone => (BACK_OFF_FIRST, BACK_OFF_HOLD),
            Self::Other => (BACK_OFF_FIRST, BACK_OFF_SHARED),
        }
    }
}

/// The conflicts of one transaction.
#[derive(Debug)]
pub struct Contention {
    deadline: Moment,
    conflicts: u32,
    /// When the present attempt began.
    began: Moment,
    /// How long the shortest attempt took. The first one may have had to connect.
    shortest: Duration,
    /// Whether there was hardly time for the present attempt, because of the ones before.
    is_hurried: bool,
    /// Whether the store has failed.
    has_failed: bool,
}

impl Contention {
    pub fn new(deadline: Moment) -> Self {
        Self {
            deadline,
            conflicts: 0,
            began: Moment::now(),
            shortest: Duration::MAX,
            is_hurried: false,
            has_failed: false,
        }
    }

    pub const fn is_crowded(&self) -> bool {
        self.conflicts >= CROWD_AFTER
    }

    /// The error of an attempt. If there was hardly time for it, the crowd took the time, and not
    /// the store.
    pub fn blame(&self, error: Error) -> Error {
        let is_contended = self.is_hurried && !self.has_failed && self.deadline.passed() && error.is_outage();
        if is_contended { contended() } else { error }
    }

    /// Begins again after a failure, or returns it if the time is over.
    pub fn go_on_after(&mut self, error: Error) -> Result<(), Error> {
        if self.deadline.passed() {
            return Err(error);
        }
        self.has_failed = true;
        interrupt::sleep_until(Moment::now().after(BACK_OFF_SHARED.min(self.deadline.left() / 4)));
        self.began = Moment::now();
        Ok(())
    }

    /// Pauses after a conflict, or fails if there is no time for another attempt.
    pub fn pause(&mut self, who: Contender) -> Result<(), Error> {
        self.conflicts += 1;
        let attempt = Moment::now().since(self.began);
        self.shortest = self.shortest.min(attempt);
        let is_too_late = self.conflicts > 1 && !self.has_failed && self.deadline.left() < self.shortest;
        if is_too_late || self.deadline.passed() {
            return Err(contended());
        }
        let (first, longest) = who.bounds(attempt);
        // At most a quarter of the time left, so that several attempts remain.
        let most =
            first.saturating_mul(1 << self.conflicts.min(10)).min(longest).min(self.deadline.left() / 4);
        let chance = getrandom::u32().map_or(1.0, |chance| f64::from(chance) / f64::from(u32::MAX));
        interrupt::sleep_until(Moment::now().after(most.mul_f64(chance)));
        self.began = Moment::now();
        self.is_hurried = self.deadline.left() < self.shortest * 2;
        Ok(())
    }
}

fn contended() -> Error {
    Error::Contended("others changed the lock at each attempt, until the time was over".into())
}

//! How is a job stopped? TERM to all of it, then KILL, again and again until nothing is left. The guard does it, and
//! dlock with the same code if the guard is gone. Who is of the job, and why it must stop, is decided elsewhere.

use super::family::{Blow, Family, Net, Sweep};
use super::{Process, Why};
use crate::clock::Moment;
use crate::sys;
use std::time::Duration;

/// The killing begins earlier by at most this part of the time that TERM leaves.
const LEAD_MOST: u32 = 4;
/// Between two looks at processes that are no descendants, whose end nobody tells us.
const STRAYS: Duration = Duration::from_millis(50);

/// A stop under way.
#[derive(Debug)]
pub(super) struct Stop {
    why: Why,
    kill_at: Moment,
    /// How much before a limit the killing begins.
    lead: Duration,
    passes: u32,
    next: Moment,
}

impl Stop {
    /// Asks the job to end; what is left of it at `kill_at` will be killed.
    pub(super) fn begin(family: &mut Family, why: Why, kill_at: Moment) -> (Self, Vec<Process>) {
        let began = Moment::now();
        // Past the end already: KILL at once, and not after a walk through /proc.
        let sweep = if kill_at.passed() { Sweep::default() } else { family.sweep(Blow::Term, Net::Marked) };
        // On a machine that is short of time, or with a large job, the KILL will take as long as the TERM did.
        let lead = (Moment::now().since(began) * 2).min(kill_at.since(began) / LEAD_MOST);
        (Self { why, kill_at, lead, passes: 0, next: kill_at }, sweep.refused)
    }

    /// Why the job is stopped.
    pub(super) fn why(&self) -> Why {
        self.why
    }

    /// Has the job killed by `kill_at`, if that is earlier than planned, and for this reason from now on.
    pub(super) fn hasten(&mut self, why: Why, kill_at: Moment) {
        self.why = why;
        self.kill_at = self.kill_at.min(kill_at);
        self.next = self.next.min(self.kill_at);
    }

    /// Whether the killing has begun.
    pub(super) fn is_killing(&self) -> bool {
        self.passes > 0
    }

    /// Kills what is left, if the time for it has come. `bound` is another limit to it: the lease may run out while the
    /// job is stopped for another reason. `first` is a process, or a group if negative, that is known without a walk
    /// through /proc. `None` if nothing was due.
    pub(super) fn step(&mut self, family: &mut Family, bound: Moment, first: Option<i32>) -> Option<Sweep> {
        let now = Moment::now();
        if now < self.wake(bound) {
            return None;
        }
        if let Some(first) = first {
            // It may have ended meanwhile, or be one that we may not signal: the sweep finds out.
            let _ = sys::kill(first, libc::SIGKILL);
        }
        // The first pass must not lose time with strays; the second one catches them.
        let net = if self.passes % 4 == 1 { Net::Marked } else { Net::Descendants };
        let sweep = family.sweep(Blow::Kill, net);
        self.passes = self.passes.saturating_add(1);
        let pause = match self.passes {
            0..=1 => Duration::ZERO,
            2..=100 => Duration::from_millis(2),
            101..=200 => Duration::from_millis(20),
            // Only what cannot be killed is left by now.
            _ => Duration::from_millis(100),
        };
        self.next = Moment::now().after(pause);
        Some(sweep)
    }

    /// When [`Stop::step`] is to be called next, as things stand.
    pub(super) fn wake(&self, bound: Moment) -> Moment {
        if self.is_killing() { self.next } else { self.kill_at.min(bound.before(self.lead)) }
    }

    /// The same when no descendant is left and strays are waited for.
    pub(super) fn wake_for_strays(&self, bound: Moment) -> Moment {
        self.wake(bound).min(Moment::now().after(STRAYS))
    }
}

//! Decides when the job must stop: by the limits, `--max-run`, an order, or because dlock is gone.
//! (If the watcher of a hold is gone, children.rs does.) How a job is stopped is in `stop`.

use super::{GuardProcess, JobState};
use crate::clock::Moment;
use crate::exit::OnLost;
use crate::supervise::limits::Limits;
use crate::supervise::pidfd::known;
use crate::supervise::process_tree::Sweep;
use crate::supervise::stop::Stop;
use crate::supervise::{Event, Orphaned, Process, StopReason};
use std::io;
use std::time::Duration;

impl<F: FnMut(Orphaned)> GuardProcess<F> {
    pub fn lost(&mut self, deadline: Moment) {
        if !self.obeys_limits() {
            return;
        }
        let deadline = deadline.min(self.bound());
        match &mut self.state {
            JobState::Running { .. } => self.stop(StopReason::Lost, deadline),
            JobState::Stopping(stop) => stop.hasten(StopReason::Lost, deadline),
            JobState::Idle | JobState::Ended { .. } => {}
        }
    }

    pub fn stop_on_request(&mut self) {
        if let JobState::Running { .. } = self.state {
            self.stop(StopReason::Asked, Moment::now().after(self.setup.plan.grace));
        }
    }

    pub fn obeys_limits(&self) -> bool {
        self.setup.plan.on_lost == OnLost::Stop
    }

    /// What can be signalled of the job without /proc.
    pub fn known(&self) -> Option<i32> {
        known(self.cmd.as_ref()?.pid)
    }

    /// When to wake for TERM by the limits: first to measure how long the killing takes, when that
    /// could matter, then for TERM itself, earlier than `term_at` by what was measured.
    fn term_or_measure_at(&mut self, limits: Limits, now: Moment) -> Option<Moment> {
        if !self.obeys_limits() {
            return None;
        }
        let earliest = limits.term_at.min(limits.kill_at.before(self.setup.plan.spare));
        if earliest == limits.term_at || now < earliest {
            return Some(earliest);
        }
        let known = self.measured.filter(|(for_limit, _)| *for_limit == limits.kill_at);
        let (_, cost) = known.unwrap_or_else(|| (limits.kill_at, self.setup.tree.look().1));
        self.measured = Some((limits.kill_at, cost));
        Some(limits.term_at.before(cost).max(earliest))
    }

    /// The latest moment for a KILL by the limits.
    pub fn bound(&self) -> Moment {
        if self.obeys_limits() { self.setup.limits.get().kill_at } else { Moment::from_boot(Duration::MAX) }
    }

    pub fn stop(&mut self, reason: StopReason, deadline: Moment) {
        self.setup.limits.set_stopping();
        let first = self.known();
        let (stop, refused) = Stop::begin(&mut self.setup.tree, reason, deadline, first);
        self.state = JobState::Stopping(stop);
        self.send_event(&Event::Stopping { reason });
        self.note(refused);
    }

    fn note(&mut self, refused: Vec<Process>) {
        for process in refused {
            self.send_event(&Event::Refused(process.clone()));
            self.refused.push(process);
        }
    }

    /// Checks the clock and whether dlock is gone, and does what is due.
    pub fn act_when_due(&mut self) {
        if self.follows() && self.follow_at.passed() {
            self.reap();
        }
        let now = Moment::now();
        let limits = self.setup.limits.get();
        let ran_out = self.term_or_measure_at(limits, now).is_some_and(|at| at <= now);
        let grace_ends = now.after(self.setup.plan.grace);
        match &mut self.state {
            JobState::Running { .. } if ran_out => self.stop(StopReason::LeaseRanOut, limits.kill_at),
            JobState::Running { .. } if self.is_orphaned => {
                let is_on_input = self.setup.plan.bond.as_ref().is_some_and(|bond| bond.process.is_none());
                // The program at the other end of stdin cannot be stopped. It gets the rest of the
                // lease to end.
                let deadline = if is_on_input { limits.kill_at } else { grace_ends.min(self.bound()) };
                self.stop(StopReason::CallerGone, deadline);
            }
            JobState::Running { since }
                if self.setup.plan.max_run.is_some_and(|most| since.after(most) <= now) =>
            {
                self.stop(StopReason::MaxRun, grace_ends);
            }
            JobState::Stopping(stop) if stop.reason().is_unhurried() && ran_out => {
                stop.hasten(StopReason::LeaseRanOut, limits.kill_at);
            }
            JobState::Stopping(stop) if stop.reason().is_unhurried() && self.is_orphaned => {
                stop.hasten(StopReason::CallerGone, grace_ends);
            }
            _ => {}
        }
        self.go_on_stopping();
    }

    fn go_on_stopping(&mut self) {
        if !matches!(self.state, JobState::Stopping(_)) {
            return;
        }
        let (bound, first) = (self.bound(), self.known());
        let JobState::Stopping(stop) = &mut self.state else { return };
        let mut sweep = Sweep::default();
        if !self.no_child {
            sweep = stop.step(&mut self.setup.tree, bound, first);
        }
        // As long as any descendant lives, the guard has a child.
        let last = self.no_child || sweep.no_child;
        let reason = stop.reason();
        self.take(&sweep);
        self.note(sweep.refused);
        if last {
            self.setup.tree.remove_cgroup();
            self.end(Some(reason));
        } else if self.is_orphaned && sweep.only_refused {
            for process in std::mem::take(&mut self.refused) {
                (self.on_orphaned)(Orphaned::Refused(process));
            }
        }
    }

    /// Sets the timer to the next moment at which something may be due.
    pub fn arm(&mut self) -> io::Result<()> {
        let term_at = self.term_or_measure_at(self.setup.limits.get(), Moment::now());
        let bound = self.bound();
        let at = match &self.state {
            JobState::Idle | JobState::Ended { .. } => None,
            JobState::Running { since } => {
                let max_run = self.setup.plan.max_run.map(|most| since.after(most));
                let follow_at = self.follows().then_some(self.follow_at);
                term_at.into_iter().chain(max_run).chain(follow_at).min()
            }
            JobState::Stopping(stop) => {
                let other = term_at.filter(|_| stop.reason().is_unhurried());
                other.into_iter().chain([stop.wake(bound)]).min()
            }
        };
        // A moment that has passed is set again, because setting makes the timer unreadable first.
        if at != self.armed || at.is_some_and(Moment::passed) {
            self.timer.set(at)?;
            self.armed = at;
        }
        Ok(())
    }
}

impl StopReason {
    /// Whether the stop has its full grace, which the end of the lease or of dlock may shorten.
    fn is_unhurried(self) -> bool {
        matches!(self, Self::MaxRun | Self::Asked)
    }
}

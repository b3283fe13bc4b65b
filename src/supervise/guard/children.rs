//! Handles what happens to CMD and the rest of the job: ends, stops, and signals from dlock.

use super::{GuardProcess, JobState};
use crate::clock::Moment;
use crate::exit::Ended;
use crate::supervise::pin::Pin;
use crate::supervise::process_tree::Sweep;
use crate::supervise::{Event, Group, Leftovers, NOT_PRINTED, OVER, Orphaned, Reached, StopReason};
use crate::sys;
use rustix::process::{Pid, Signal};
use std::time::Duration;

/// Pause before the next look for what the process of a hold has started, if a look has found
/// something new. The pauses double up to [`FOLLOW_IDLE`]. Meanwhile a look at the process's own
/// children, which is cheap, comes this often.
const FOLLOW: Duration = Duration::from_secs(1);
/// Longest pause: then the looks cost an idle hold no more than its renewals do.
const FOLLOW_IDLE: Duration = Duration::from_secs(8);
/// Pause once the process has ended, and what it left behind is waited for.
const FOLLOW_REST: Duration = Duration::from_millis(50);
/// A look takes at most one part of this many of the time.
const FOLLOW_PART: u32 = 100;
/// How many of the processes that are waited for a message names.
const NAMED: usize = 5;

impl<F: FnMut(Orphaned)> GuardProcess<F> {
    pub fn reap(&mut self) {
        let before = self.status();
        let mut sweep = Sweep::default();
        self.follow();
        self.setup.tree.reap(&mut sweep);
        self.take(&sweep);
        if before.is_none() && self.status().is_some() && self.follows() {
            // The process may have ended after the look above, which then knows nothing of its group.
            self.follow();
            self.no_child &= self.setup.tree.is_empty();
        }
        let (JobState::Running { .. }, Some(status)) = (&self.state, self.status()) else { return };
        let is_over = [0, NOT_PRINTED].map(Ended::Code).contains(&status);
        if self.setup.plan.bond.is_some() && !is_over {
            // The process that it watched may still live.
            let deadline = Moment::now().after(self.setup.plan.grace).min(self.bound());
            return self.stop(StopReason::WatcherGone, deadline);
        }
        // A process hands its children to the nearest subreaper before it can be reaped itself. So
        // as long as any descendant lives, the guard has a child; with no child left, the whole job
        // has ended.
        let leaves = || self.setup.plan.leftovers == Leftovers::Leave && !self.setup.tree.has_guard();
        // The hold was given back before its process ended.
        let is_given_back = || self.process().is_some_and(|process| !process.has_ended());
        if self.no_child || leaves() || is_given_back() {
            self.end(None);
        } else if before.is_none() {
            self.send_event(&Event::CommandEnded { status });
            if self.follows() {
                let mut rest = self.setup.tree.rest();
                let more = rest.len().saturating_sub(NAMED);
                rest.truncate(NAMED);
                self.send_event(&Event::Left { rest, more });
            }
        }
    }

    /// Whether the guard looks for what the process of a hold has started, to wait for it.
    pub fn follows(&self) -> bool {
        self.process().is_some()
            && self.setup.plan.leftovers == Leftovers::Await
            && matches!(self.state, JobState::Running { .. })
    }

    /// The process that a hold is for.
    fn process(&self) -> Option<&Pin> {
        self.setup.plan.bond.as_ref()?.process.as_ref()
    }

    fn follow(&mut self) {
        if !self.follows() {
            return;
        }
        let began = Moment::now();
        if self.status().is_none() && !self.follow_all_at.passed() && !self.setup.tree.foreign_has_new_child()
        {
            self.follow_at = began.after(FOLLOW);
            return;
        }
        let is_new = self.setup.tree.follow_foreign();
        let now = Moment::now();
        self.follow_pause = match self.status() {
            Some(_) => FOLLOW_REST,
            None if is_new => FOLLOW,
            None => (self.follow_pause * 2).clamp(FOLLOW, FOLLOW_IDLE),
        };
        let least = now.since(began) * FOLLOW_PART;
        self.follow_all_at = now.after(self.follow_pause.max(least));
        self.follow_at = now.after(self.follow_pause.min(FOLLOW).max(least));
    }

    /// Records what has happened to CMD.
    pub fn take(&mut self, sweep: &Sweep) {
        self.no_child |= sweep.no_child;
        for &(pid, raw) in &sweep.changed {
            // Once CMD has been reaped, its id may belong to another process of the job.
            let cmd = self.cmd.as_mut().filter(|cmd| cmd.pid == pid && cmd.status.is_none());
            let Some(cmd) = cmd else { continue };
            if let Some(status) = Ended::of(raw) {
                cmd.status = Some(status);
            } else {
                self.pause(raw);
            }
        }
    }

    pub fn status(&self) -> Option<Ended> {
        self.cmd.as_ref().and_then(|cmd| cmd.status)
    }

    /// Handles a stop or continuation of CMD.
    fn pause(&mut self, raw: i32) {
        let Some(cmd) = &mut self.cmd else { return };
        let stopped = raw & 0xff == 0x7f;
        if stopped && self.setup.plan.bond.is_some() {
            // A watcher that sleeps would keep the lock after the end of what it watches.
            let _ = sys::kill(cmd.pid, libc::SIGCONT);
            return;
        }
        let event = if stopped { Event::Suspended { signal: raw >> 8 & 0xff } } else { Event::Continued };
        let woken = cmd.was_stopped && !stopped;
        cmd.was_stopped = stopped;
        // Not if something is unsent: these two events may repeat without end while a stopped dlock
        // does not read.
        if self.unsent.is_empty() {
            self.send_event(&event);
        }
        let caller_lives =
            rustix::process::getppid().is_some_and(|parent| parent.as_raw_pid() == self.setup.caller);
        if woken && self.setup.plan.group == Group::Caller && caller_lives {
            // dlock stopped itself along with CMD. If another process continues CMD alone, dlock
            // must renew again.
            let _ = sys::kill(self.setup.caller, libc::SIGCONT);
        }
    }

    pub fn relay(&mut self, signal: i32, reached: Reached) {
        let (JobState::Running { .. } | JobState::Stopping(_), Some(cmd)) = (&self.state, &self.cmd) else {
            return;
        };
        if cmd.status.is_some() {
            if signal == OVER && self.follows() {
                return self.end(None);
            }
            if let (JobState::Running { .. }, Some(signal)) = (&self.state, Signal::from_named_raw(signal)) {
                let caller_group = self.setup.caller_group.map_or(0, Pid::as_raw_pid);
                let but = (reached == Reached::CallerGroup).then_some(caller_group);
                match self.known().filter(|_| self.setup.tree.is_blind()) {
                    Some(known) => drop(sys::kill(known, signal.as_raw())),
                    None => self.setup.tree.relay(signal, but),
                }
            }
            return;
        }
        // CMD has not been reaped, so no other process can have its id, nor a group that it leads.
        if self.setup.plan.group == Group::Caller || sys::kill(-cmd.pid, signal).is_err() {
            // If CMD now belongs to another user, the guard may not signal it. Neither could the
            // signal's sender.
            let _ = sys::kill(cmd.pid, signal);
        }
    }
}

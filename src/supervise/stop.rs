//! Stops a job: sends TERM to all of it, then KILL again and again until nothing is left. The guard
//! runs this, or dlock if the guard is gone. process_tree.rs finds the job's processes and signals them;
//! guard/due.rs decides when the job must stop, by the times that rules/schedule.rs reckons.

use super::process_tree::{Depth, ProcessTree, Sweep};
use super::procfs::Member;
use super::{Process, StopReason};
use crate::clock::Moment;
use crate::sys::{self, Hurry};
use std::time::Duration;
use tuning::{
    BURST, ENDS_WITHIN, FOREIGN, GATHERING, GRACE_KEPT, LATE_KEPT, PAUSE, PAUSE_OF_ALL, PAUSES,
    SHORTEST_PAUSE, SMALL, STEP,
};

mod tuning;

/// A stop under way.
#[derive(Debug)]
pub(super) struct Stop {
    reason: StopReason,
    kill_at: Moment,
    /// How long before the end of the lease the killing begins.
    lead: Duration,
    passes: u32,
    next: Moment,
    /// How long to let killed processes die before looking below them: their children become
    /// children of this process.
    patience: Duration,
    deep_at: Moment,
    /// When to begin moving what has not ended into a control group, if at all.
    gather_at: Option<Moment>,
    /// Real-time priority, so that a busy machine does not delay the KILL.
    hurry: Option<Hurry>,
    /// When to look again at foreign processes, whose children and ends the kernel does not report.
    foreign_at: Option<Moment>,
}

impl Stop {
    /// Sends TERM to the job. What is left at `kill_at` will be killed. `first` is as in
    /// [`Stop::step`].
    pub(super) fn begin(
        tree: &mut ProcessTree,
        reason: StopReason,
        kill_at: Moment,
        first: Option<i32>,
    ) -> (Self, Vec<Process>) {
        let began = Moment::now();
        let mut stop = Self {
            reason,
            kill_at,
            lead: Duration::ZERO,
            passes: 0,
            next: kill_at,
            patience: SHORTEST_PAUSE,
            deep_at: kill_at,
            gather_at: None,
            hurry: None,
            foreign_at: tree.has_foreign().then(|| began.after(FOREIGN)),
        };
        if kill_at.passed() {
            // Already past the end: KILL at once.
            stop.hurry = Some(Hurry::begin());
            return (stop, Vec::new());
        }
        if let Some(first) = first.filter(|_| tree.is_blind()) {
            for signal in [libc::SIGTERM, libc::SIGCONT] {
                let _ = sys::kill(first, signal);
            }
        }
        let (members, cost) = tree.look();
        let looked = Moment::now();
        // Only after the look, which measures the speed without the priority: the dying processes
        // will not have it.
        stop.hurry = Some(Hurry::begin());
        stop.patience = looked.since(began).max(SHORTEST_PAUSE);
        let count = members.len() + tree.count_foreign();
        let most = longest_lead(count, kill_at.since(began));
        let until = kill_at.before(cost.min(most(kill_at.since(looked))));
        let mut sweep = tree.term(reached_in_time(&members, || until.passed()), until);
        let told = Moment::now();
        // On a busy machine the KILL will take at least as long as the TERM did.
        stop.lead = cost.max(told.since(looked)).min(most(kill_at.since(told)));
        if stop.has_time_to_gather(told, kill_at) {
            stop.gather_at = Some(told.after(ENDS_WITHIN));
            tree.catch(&mut sweep.refused);
        } else {
            tree.forget(&mut sweep.refused);
        }
        (stop, sweep.refused)
    }

    fn has_time_to_gather(&self, now: Moment, bound: Moment) -> bool {
        self.passes == 0 && now.after(GATHERING) < self.kill_wake(bound)
    }

    pub(super) fn reason(&self) -> StopReason {
        self.reason
    }

    /// Brings the KILL forward to `kill_at`, if that is earlier, and replaces the reason.
    pub(super) fn hasten(&mut self, reason: StopReason, kill_at: Moment) {
        self.reason = reason;
        self.kill_at = self.kill_at.min(kill_at);
        self.next = self.next.min(self.kill_at);
    }

    /// Goes on: kills what is left, if the KILL is due. `bound` is a second limit: the lease may
    /// end while the job is stopped for another reason. `first` is a process, or a group if
    /// negative, that is known without /proc.
    pub(super) fn step(&mut self, tree: &mut ProcessTree, bound: Moment, first: Option<i32>) -> Sweep {
        let sweep = if self.is_due(bound) { self.kill(tree, first) } else { self.look_at_foreign(tree) };
        if self.gather_at.is_some_and(Moment::passed) {
            let now = Moment::now();
            let done = !self.has_time_to_gather(now, bound) || tree.gather(now.after(STEP));
            self.gather_at = (!done).then(|| Moment::now().after(STEP));
        }
        sweep
    }

    fn look_at_foreign(&mut self, tree: &mut ProcessTree) -> Sweep {
        let mut sweep = Sweep::default();
        if self.foreign_at.is_some_and(Moment::passed) {
            let began = Moment::now();
            tree.look_at_foreign();
            tree.reap(&mut sweep);
            let now = Moment::now();
            self.foreign_at = Some(now.after(PAUSE_OF_ALL.of(now.since(began)).max(FOREIGN)));
        }
        sweep
    }

    fn kill(&mut self, tree: &mut ProcessTree, first: Option<i32>) -> Sweep {
        if let Some(first) = first {
            // The process may have ended, or this user may not signal it: the pass below finds out.
            let _ = sys::kill(first, libc::SIGKILL);
        }
        let began = Moment::now();
        if self.passes == 0 {
            self.deep_at = began.after(self.patience);
        }
        let depth = if began >= self.deep_at { Depth::All } else { Depth::Children };
        if depth == Depth::All {
            tree.begin_anew();
        }
        let mut sweep = tree.kill(depth, began.after(BURST));
        tree.catch(&mut sweep.refused);
        // After the pass, not before: the control group's KILL of thousands may take so long that
        // the guard seems hung.
        tree.kill_gathered();
        // The dying processes need the processor now.
        self.hurry = None;
        if depth == Depth::All {
            let now = Moment::now();
            self.deep_at = now.after(PAUSE_OF_ALL.of(now.since(began).max(SHORTEST_PAUSE)));
        }
        self.passes = self.passes.saturating_add(1);
        let now = Moment::now();
        self.next = now.after(pause(self.passes, now.since(began)));
        sweep
    }

    fn is_due(&self, bound: Moment) -> bool {
        self.kill_wake(bound).passed()
    }

    fn kill_wake(&self, bound: Moment) -> Moment {
        if self.passes > 0 { self.next } else { self.kill_at.min(bound.before(self.lead)) }
    }

    /// When to call [`Stop::step`] next, as things stand.
    pub(super) fn wake(&self, bound: Moment) -> Moment {
        let wake = self.kill_wake(bound);
        let foreign_at = self.foreign_at.filter(|_| self.passes == 0);
        [self.gather_at, foreign_at].into_iter().flatten().fold(wake, Moment::min)
    }
}

/// The most by which the killing of `count` processes may begin before its limit, so that the job
/// keeps a part of its grace. Returns a function of the time that is left. `grace` is the time from
/// the start of the stop to the KILL.
fn longest_lead(count: usize, grace: Duration) -> impl Fn(Duration) -> Duration {
    let kept = if count > SMALL { LATE_KEPT } else { GRACE_KEPT };
    move |left| (grace - GRACE_KEPT.of(grace)).min(left - kept.of(left))
}

/// The pause after the last of `passes` passes, which took `took`.
fn pause(passes: u32, took: Duration) -> Duration {
    let bounds = PAUSES.into_iter().find(|(most, _)| passes <= *most);
    bounds.map_or(took, |(_, bounds)| PAUSE.of(took).clamp(*bounds.start(), *bounds.end()))
}

/// The processes that get TERM: all, or those reached before it is too late.
fn reached_in_time(members: &[Member], is_late: impl Fn() -> bool) -> impl Iterator<Item = &Member> {
    let in_time = move |(count, _): &(usize, &Member)| *count < SMALL || !is_late();
    members.iter().enumerate().take_while(in_time).map(|(_, member)| member)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_job_gets_term_however_late() {
        let members: Vec<Member> = (2..1000).map(|pid| Member { pid, parent: 1 }).collect();
        assert_eq!(reached_in_time(&members[..10], || true).count(), 10);
        assert_eq!(reached_in_time(&members, || true).count(), SMALL);
        assert_eq!(reached_in_time(&members, || false).count(), members.len());
    }

    #[test]
    fn pause_follows_the_pass_and_then_grows() {
        let (micros, millis) = (Duration::from_micros, Duration::from_millis);
        assert_eq!(
            [micros(1), millis(1), millis(50)].map(|took| pause(1, took)),
            [micros(500), millis(2), millis(10)]
        );
        assert_eq!(
            [200, 201, 300, 301, u32::MAX].map(|passes| pause(passes, micros(1))),
            [micros(500), millis(20), millis(20), millis(100), millis(100)]
        );
    }

    #[test]
    fn job_keeps_part_of_grace_after_term() {
        let second = Duration::from_secs(1);
        assert_eq!(longest_lead(10, second)(second), second * 3 / 4);
        assert_eq!(longest_lead(10, second)(second / 2), second * 3 / 8);
        assert_eq!(longest_lead(5000, second)(second), second * 3 / 4);
        assert_eq!(longest_lead(5000, second)(second / 2), second * 15 / 32);
        assert_eq!(longest_lead(10, second)(Duration::ZERO), Duration::ZERO);
    }
}

//! How is a job stopped? TERM to all of it, then KILL, again and again until nothing is left. The guard does it, and
//! dlock with the same code if the guard is gone. Who is of the job, and why it must stop, is decided elsewhere.

use super::process_tree::{Depth, ProcessTree, Sweep};
use super::procfs::Member;
use super::{Process, StopReason};
use crate::clock::Moment;
use crate::sys::{self, Hurry};
use std::time::Duration;

/// A grace is cut short for a job that takes long to kill, but this part of it is left.
const GRACE_LEAST: u32 = 4;
/// A small job: it is asked to end even where the time for that is over, which costs next to nothing.
const SMALL: usize = 32;
/// Of what is left after a TERM that came late, this part is left to a large job. A small one has as much of it as of the
/// grace: to kill it takes no time.
const LATE_LEAST: u32 = 16;
/// One step of moving the job into a control group, and the pause between two of them. The job needs the processor, too.
const STEP: Duration = Duration::from_millis(2);
/// One pass of a kill that finds more and more processes. After it the guard looks at its other duties.
const BURST: Duration = Duration::from_millis(100);
/// Who does what it is told has ended so soon after a TERM. The others are taken into a control group.
const OBEYS: Duration = Duration::from_millis(20);
/// So much time must be left for that: the kernel takes 7 ms and more for the first process that is moved.
const GATHERING: Duration = Duration::from_millis(100);
/// Between two looks at what is left; twice what the last one took, where that is more.
const PAUSE: Duration = Duration::from_micros(500);
/// Between two looks at a foreign process and what it started.
const ABROAD: Duration = Duration::from_millis(20);
/// After a look all the way down, which hits again what was hit, the next one has this many times as long.
const ALL_THE_WAY: u32 = 4;

/// A stop under way.
#[derive(Debug)]
pub(super) struct Stop {
    reason: StopReason,
    kill_at: Moment,
    /// How much before a limit the killing begins.
    lead: Duration,
    passes: u32,
    next: Moment,
    /// How long to leave those that were killed to die before one looks below them: they bring their children along.
    patience: Duration,
    deep_at: Moment,
    /// From when on what does not end is taken into a control group, if it is.
    gather_at: Option<Moment>,
    /// A machine that is short of time must not keep the KILL waiting.
    hurry: Option<Hurry>,
    /// Processes that are not below this one start others, and end, and nobody tells: when to look at them next.
    abroad_at: Option<Moment>,
}

impl Stop {
    /// Asks the job to end; what is left of it at `kill_at` will be killed.
    pub(super) fn begin(tree: &mut ProcessTree, reason: StopReason, kill_at: Moment) -> (Self, Vec<Process>) {
        let began = Moment::now();
        let mut stop = Self {
            reason,
            kill_at,
            lead: Duration::ZERO,
            passes: 0,
            next: kill_at,
            patience: PAUSE,
            deep_at: kill_at,
            gather_at: None,
            hurry: None,
            abroad_at: tree.is_abroad().then(|| began.after(ABROAD)),
        };
        if kill_at.passed() {
            // Past the end already: KILL at once.
            stop.hurry = Some(Hurry::begin());
            return (stop, Vec::new());
        }
        let (members, cost) = tree.look();
        let looked = Moment::now();
        // Not before: what is killed will not be hurried, and the look tells how long that takes.
        stop.hurry = Some(Hurry::begin());
        stop.patience = looked.since(began).max(PAUSE);
        let count = members.len() + tree.count_abroad();
        let most = most_lead(count, kill_at.since(began));
        let until = kill_at.before(cost.min(most(kill_at.since(looked))));
        let mut sweep = tree.term(asked(&members, || until.passed()), until);
        let told = Moment::now();
        // On a machine that is short of time the KILL will take no less than the TERM did.
        stop.lead = cost.max(told.since(looked)).min(most(kill_at.since(told)));
        if stop.has_time_to_gather(told, kill_at) {
            stop.gather_at = Some(told.after(OBEYS));
            tree.catch(&mut sweep.refused);
        } else {
            tree.forget(&mut sweep.refused);
        }
        (stop, sweep.refused)
    }

    fn has_time_to_gather(&self, now: Moment, bound: Moment) -> bool {
        self.passes == 0 && now.after(GATHERING) < self.kill_wake(bound)
    }

    /// Why the job is stopped.
    pub(super) fn reason(&self) -> StopReason {
        self.reason
    }

    /// Has the job killed by `kill_at`, if that is earlier than planned, and for this reason from now on.
    pub(super) fn hasten(&mut self, reason: StopReason, kill_at: Moment) {
        self.reason = reason;
        self.kill_at = self.kill_at.min(kill_at);
        self.next = self.next.min(self.kill_at);
    }

    /// Goes on: kills what is left, if the time for it has come. `bound` is another limit to the kill: the lease may run
    /// out while the job is stopped for another reason. `first` is a process, or a group if negative, that is known
    /// without /proc.
    pub(super) fn step(&mut self, tree: &mut ProcessTree, bound: Moment, first: Option<i32>) -> Sweep {
        let sweep = if self.is_due(bound) { self.kill(tree, first) } else { self.look_abroad(tree) };
        if self.gather_at.is_some_and(Moment::passed) {
            let now = Moment::now();
            let done = !self.has_time_to_gather(now, bound) || tree.gather(now.after(STEP));
            self.gather_at = (!done).then(|| Moment::now().after(STEP));
        }
        sweep
    }

    fn look_abroad(&mut self, tree: &mut ProcessTree) -> Sweep {
        let mut sweep = Sweep::default();
        if self.abroad_at.is_some_and(Moment::passed) {
            let began = Moment::now();
            tree.look_abroad();
            tree.reap(&mut sweep);
            let now = Moment::now();
            self.abroad_at = Some(now.after((now.since(began) * ALL_THE_WAY).max(ABROAD)));
        }
        sweep
    }

    fn kill(&mut self, tree: &mut ProcessTree, first: Option<i32>) -> Sweep {
        if let Some(first) = first {
            // It may have ended meanwhile, or be one that we may not signal: the sweep finds out.
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
        // After the first pass, not before: of thousands at once it may take so long that the guard seems hung.
        tree.kill_gathered();
        // Those that die need the processor now.
        self.hurry = None;
        if depth == Depth::All {
            let now = Moment::now();
            self.deep_at = now.after((now.since(began) * ALL_THE_WAY).max(PAUSE * ALL_THE_WAY));
        }
        self.passes = self.passes.saturating_add(1);
        let pause = match self.passes {
            // Those that die need the processor more than who looks on.
            0..=200 => (Moment::now().since(began) * 2).clamp(PAUSE, PAUSE * 20),
            201..=300 => Duration::from_millis(20),
            // Only what cannot be killed is left by now.
            _ => Duration::from_millis(100),
        };
        self.next = Moment::now().after(pause);
        sweep
    }

    fn is_due(&self, bound: Moment) -> bool {
        self.kill_wake(bound).passed()
    }

    fn kill_wake(&self, bound: Moment) -> Moment {
        if self.passes > 0 { self.next } else { self.kill_at.min(bound.before(self.lead)) }
    }

    /// When [`Stop::step`] is to be called next, as things stand.
    pub(super) fn wake(&self, bound: Moment) -> Moment {
        let wake = self.kill_wake(bound);
        let abroad_at = self.abroad_at.filter(|_| self.passes == 0);
        [self.gather_at, abroad_at].into_iter().flatten().fold(wake, Moment::min)
    }
}

/// How much before its limit the killing of so many may begin, at most, after a TERM that leaves so much of the `grace`.
fn most_lead(count: usize, grace: Duration) -> impl Fn(Duration) -> Duration {
    let least = if count > SMALL { LATE_LEAST } else { GRACE_LEAST };
    move |left| (grace - grace / GRACE_LEAST).min(left - left / least)
}

/// Who is asked to end: all of them, unless it gets too late for that.
fn asked(members: &[Member], is_late: impl Fn() -> bool) -> impl Iterator<Item = &Member> {
    let in_time = move |(count, _): &(usize, &Member)| *count < SMALL || !is_late();
    members.iter().enumerate().take_while(in_time).map(|(_, member)| member)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_job_is_asked_to_end_however_late_it_is() {
        let members: Vec<Member> = (2..1000).map(|pid| Member { pid, parent: 1 }).collect();
        assert_eq!(asked(&members[..10], || true).count(), 10);
        assert_eq!(asked(&members, || true).count(), SMALL);
        assert_eq!(asked(&members, || false).count(), members.len());
    }

    #[test]
    fn who_has_been_told_has_a_part_of_what_is_left_of_the_grace() {
        let second = Duration::from_secs(1);
        assert_eq!(most_lead(10, second)(second), second * 3 / 4);
        assert_eq!(most_lead(10, second)(second / 2), second * 3 / 8);
        assert_eq!(most_lead(5000, second)(second), second * 3 / 4);
        assert_eq!(most_lead(5000, second)(second / 2), second * 15 / 32);
        assert_eq!(most_lead(10, second)(Duration::ZERO), Duration::ZERO);
    }
}

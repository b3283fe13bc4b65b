//! How is a job stopped? TERM to all of it, then KILL, again and again until nothing is left. The guard does it, and
//! dlock with the same code if the guard is gone. Who is of the job, and why it must stop, is decided elsewhere.
//!
//! What descends comes first, always. Strays are looked for in the time that is left over.

use super::process_tree::{Depth, ProcessTree, Signalling, Sweep};
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
/// Between two looks at strays that are known, whose end nobody tells us.
const STRAYS: Duration = Duration::from_millis(50);
/// One step of the search for strays, or of a kill that goes on and on. Then there may be something else to do.
const STEP: Duration = Duration::from_millis(2);
const BURST: Duration = Duration::from_millis(100);
/// Who does what it is told has ended so soon after a TERM. The others are taken into a control group.
const OBEYS: Duration = Duration::from_millis(20);
/// So much time must be left for that: the kernel takes 7 ms and more for the first process that is moved.
const GATHERING: Duration = Duration::from_millis(100);
/// Between two looks at what is left; twice what the last one took, where that is more.
const PAUSE: Duration = Duration::from_micros(500);
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
    search: Searching,
    /// From when on what does not end is taken into a control group, if it is.
    gather_at: Option<Moment>,
    /// A machine that is short of time must not keep the KILL waiting.
    hurry: Option<Hurry>,
}

/// How far the search for strays has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Searching {
    /// In the middle of a round.
    Round,
    /// In the middle of one that began when nothing descended any more.
    LastRound,
    /// Between two.
    Rest,
}

impl Stop {
    /// Asks the job to end; what is left of it at `kill_at` will be killed.
    pub(super) fn begin(tree: &mut ProcessTree, reason: StopReason, kill_at: Moment) -> (Self, Vec<Process>) {
        let began = Moment::now();
        let search = if tree.may_have_strays() { Searching::Round } else { Searching::Rest };
        let mut stop = Self {
            reason,
            kill_at,
            lead: Duration::ZERO,
            passes: 0,
            next: kill_at,
            patience: PAUSE,
            deep_at: kill_at,
            search,
            gather_at: None,
            hurry: None,
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
        let most = most_lead(members.len(), kill_at.since(began));
        let until = kill_at.before(cost.min(most(kill_at.since(looked))));
        let mut sweep = tree.term(asked(&members, || until.passed()));
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

    /// Goes on: kills what is left, if the time for it has come, or looks for strays. `bound` is another limit to the
    /// kill: the lease may run out while the job is stopped for another reason. `first` is a process, or a group if
    /// negative, that is known without /proc.
    pub(super) fn step(&mut self, tree: &mut ProcessTree, bound: Moment, first: Option<i32>) -> Sweep {
        let mut sweep = if self.is_due(bound) { self.kill(tree, first) } else { Sweep::default() };
        if self.gather_at.is_some_and(Moment::passed) {
            let now = Moment::now();
            let done = !self.has_time_to_gather(now, bound) || tree.gather(now.after(STEP));
            self.gather_at = (!done).then(|| Moment::now().after(STEP));
        }
        if self.search == Searching::Round && !sweep.no_child {
            let how = if self.passes > 0 { Signalling::Kill } else { Signalling::Term };
            let until = Moment::now().after(STEP).min(self.kill_wake(bound));
            if tree.search(how, until, &mut sweep) {
                // What TERM has missed KILL will not; the one round is enough for each.
                self.search = Searching::Rest;
            }
        }
        sweep
    }

    fn kill(&mut self, tree: &mut ProcessTree, first: Option<i32>) -> Sweep {
        if self.passes == 0 && tree.may_have_strays() {
            self.search = Searching::Round;
        }
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

    /// Whether it is over, when nothing descends any more: strays are waited for, too. To be called again until it is.
    pub(super) fn is_over(&mut self, tree: &mut ProcessTree, bound: Moment, sweep: &mut Sweep) -> bool {
        if !tree.may_have_strays() {
            return true;
        }
        let how = self.is_due(bound).then_some(Signalling::Kill);
        if self.search != Searching::LastRound {
            if tree.has_known_strays(how, sweep) {
                return false;
            }
            tree.begin_round();
            self.search = Searching::LastRound;
            self.hurry = None;
        }
        if !tree.search(how.unwrap_or(Signalling::Term), Moment::now().after(STEP), sweep) {
            return false;
        }
        self.search = Searching::Rest;
        !tree.has_known_strays(None, sweep)
    }

    fn is_due(&self, bound: Moment) -> bool {
        self.kill_wake(bound).passed()
    }

    fn kill_wake(&self, bound: Moment) -> Moment {
        if self.passes > 0 { self.next } else { self.kill_at.min(bound.before(self.lead)) }
    }

    /// When [`Stop::step`] is to be called next, as things stand.
    pub(super) fn wake(&self, bound: Moment) -> Moment {
        let wake = self.wake_but_to_gather(bound);
        self.gather_at.map_or(wake, |at| at.min(wake))
    }

    fn wake_but_to_gather(&self, bound: Moment) -> Moment {
        match self.search {
            Searching::Rest => self.kill_wake(bound),
            // The job wants to run, too.
            Searching::Round => self.kill_wake(bound).min(Moment::now().after(STEP)),
            Searching::LastRound => Moment::now(),
        }
    }

    /// The same when no descendant is left and strays are waited for.
    pub(super) fn wake_for_strays(&self, bound: Moment) -> Moment {
        let (wake, now) = (self.wake_but_to_gather(bound), Moment::now());
        // A kill that is due has been tried; what it did not end is looked at again after a while.
        let over_due = self.search == Searching::Rest && wake <= now;
        if over_due { now.after(STRAYS) } else { wake.min(now.after(STRAYS)) }
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

//! What dlock does when its guard is gone or hung: dlock, a subreaper too, adopts the job and stops
//! it with the same code, or reports that it has ended. Nothing here runs when dlock is killed: for
//! that see guard.rs, and its callback in commands/run/orphaned.rs.

use super::foreign::Foreign;
use super::pidfd::known;
use super::process_tree::{ProcessTree, Sweep};
use super::procfs::{self, Source};
use super::stop::Stop;
use super::{Ended, Event, Guard, Leftovers, NotStarted, OVERDUE, STALLED, StopReason, WatchedBy};
use crate::clock::Moment;
use crate::exit::OnLost;
use crate::sys::{self, Waited};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Pause between two checks of an adopted job. Unlike the guard, dlock is not woken by the end of
/// each process.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Longest time without progress for a guard that is killing, if the job must be dead `margin` after
/// the KILL. The guard may be stopped in the middle of it: then the rest of the margin is for dlock
/// to kill what is left.
pub(super) fn patience(margin: Duration) -> Duration {
    STALLED.min(margin / 3)
}

#[derive(Debug)]
pub(super) struct Adopted {
    tree: ProcessTree,
    stop: Stop,
    status: Option<Ended>,
    /// The last check found no process.
    was_empty: bool,
    pending: VecDeque<Event>,
}

/// What it means that the guard sends nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// There is nothing to report.
    Right,
    /// The guard should have killed the job by now, and makes no progress.
    Hung,
    /// The job has ended, but the guard, stopped by somebody, cannot report it.
    Late,
}

impl Guard {
    /// Called when the guard has sent nothing. Acts in its place if it is hung or late.
    pub(super) fn act_for_it(&mut self) -> io::Result<Option<Event>> {
        match self.silence()? {
            Silence::Right => Ok(None),
            // A renewal that comes in between does not undo this.
            Silence::Hung => self.replace_hung().map(Some),
            Silence::Late => self.report_end().map(Some),
        }
    }

    fn silence(&mut self) -> io::Result<Silence> {
        if !matches!(self.watch, WatchedBy::Guard) || !self.armed.passed() {
            return Ok(Silence::Right);
        }
        let due = self.bound().after(OVERDUE);
        let soon = Moment::now().after(STALLED);
        let was_stuck = self.guard_stuck;
        let stopped = procfs::read_entry(self.pid).is_some_and(|guard| guard.stopped);
        self.guard_stuck = stopped && self.is_job_over();
        if self.guard_stuck && was_stuck {
            return Ok(Silence::Late);
        }
        if due.passed() {
            let beats = self.limits.beats();
            if std::mem::replace(&mut self.beats, beats) == beats {
                return Ok(Silence::Hung);
            }
            self.arm(Moment::now().after(self.patience))?;
        } else {
            self.arm(if stopped { soon.min(due) } else { due })?;
        }
        Ok(Silence::Right)
    }

    /// Whether the job has ended, as far as /proc shows it.
    fn is_job_over(&self) -> bool {
        // A process that /proc does not show may still be there.
        let gone = |pid: i32| sys::kill(pid, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
        let ended = |pid: i32| match procfs::read_entry(pid) {
            Some(entry) => entry.ended || entry.parent != self.pid,
            None => gone(pid),
        };
        if self.target.is_some() && self.leftovers == Leftovers::Await {
            // Only the guard knows what the process has left behind.
            return false;
        }
        match (Source::find(), self.limits.cmd()) {
            (Source::Nothing, _) | (_, None) => false,
            (source, Some(cmd)) => {
                // `is_stopping` is read after CMD's end: CMD may have ended because the guard has
                // begun to stop the whole job.
                let alone = ended(cmd) && self.leftovers == Leftovers::Leave && !self.limits.is_stopping();
                // Every living process is a child of the guard, or below one.
                alone || ended(cmd) && source.children(self.pid).into_iter().all(ended)
            }
        }
    }

    /// Acts in place of a guard that has not killed the job in time, or has not started it.
    fn replace_hung(&mut self) -> io::Result<Event> {
        self.end_guard();
        // TERM is due, so a child that has not recorded its id by now does not become CMD.
        if self.limits.cmd().is_none() && self.limits.get().term_at.passed() {
            self.watch = WatchedBy::Gone;
            self.timer.set(None)?;
            return Ok(Event::NotStarted(NotStarted::TooLate));
        }
        self.adopt(StopReason::LeaseRanOut)
    }

    /// Reports the end of the job in place of a stopped guard.
    fn report_end(&mut self) -> io::Result<Event> {
        self.end_guard();
        self.watch = WatchedBy::Gone;
        self.timer.set(None)?;
        // What the guard has not reaped is now a child of dlock.
        let ended = self.limits.cmd().map(sys::take);
        let status = match ended {
            Some(Waited::Child(_, raw)) => Ended::of(raw),
            _ => None,
        };
        Ok(Event::Ended { status: self.status.or(status), reason: self.stopping })
    }

    /// Kills and reaps the guard. Its children become children of dlock.
    pub(super) fn end_guard(&mut self) {
        if !std::mem::replace(&mut self.reaped, true) {
            // The id is its own until it is reaped.
            if sys::kill(self.pid, libc::SIGKILL).is_ok() {
                sys::wait_for(self.pid);
            }
        }
    }

    /// Adopts the job of a guard that is gone or hung, and stops it, or goes on with a stop that
    /// the guard has begun. `new` is the reason if the guard has not begun.
    pub(super) fn adopt(&mut self, new: StopReason) -> io::Result<Event> {
        if matches!(self.watch, WatchedBy::Over) {
            // A socket without a peer and a timer that is due would be readable for ever.
            self.watch = WatchedBy::Gone;
            self.timer.set(None)?;
            return Ok(Event::Died);
        }
        self.end_guard();
        let foreign = self.target.clone().map(|target| Foreign::new(target, [procfs::own_pid(), self.pid]));
        let mut tree = ProcessTree::new(self.foreign_children.clone(), foreign, self.limits);
        let bound = self.bound();
        let reason = match self.kill_by {
            Some(_) => StopReason::Lost,
            None if bound.passed() => StopReason::LeaseRanOut,
            None => self.stopping.unwrap_or(new),
        };
        let kill_at = Moment::now().after(self.grace).min(bound);
        let (stop, refused) = Stop::begin(&mut tree, reason, kill_at, self.limits.cmd().and_then(known));
        let mut pending = VecDeque::new();
        if self.stopping != Some(reason) {
            pending.push_back(Event::Stopping { reason });
        }
        pending.extend(refused.into_iter().map(Event::Refused));
        let adopted = Adopted { tree, stop, status: self.status, was_empty: false, pending };
        self.watch = WatchedBy::Adopted(Box::new(adopted));
        self.arm(Moment::now())?;
        Ok(Event::Died)
    }

    /// The latest moment for a KILL by the limits or by the loss.
    pub(super) fn bound(&self) -> Moment {
        match self.on_lost {
            OnLost::Stop => {
                let kill_at = self.limits.get().kill_at;
                self.kill_by.map_or(kill_at, |deadline| deadline.min(kill_at))
            }
            OnLost::Warn => Moment::from_boot(Duration::MAX),
        }
    }

    /// Goes on stopping an adopted job. Returns the next event.
    pub(super) fn step(&mut self) -> io::Result<Option<Event>> {
        let bound = self.bound();
        let WatchedBy::Adopted(adopted) = &mut self.watch else { return Ok(None) };
        if let Some(event) = adopted.pending.pop_front() {
            return Ok(Some(event));
        }
        let mut sweep = Sweep::default();
        adopted.tree.reap(&mut sweep);
        if !sweep.no_child {
            let more = adopted.stop.step(&mut adopted.tree, bound, self.limits.cmd().and_then(known));
            sweep = Sweep { changed: [sweep.changed, more.changed].concat(), ..more };
        }
        let ended = sweep.changed.iter().filter(|(pid, _)| Some(*pid) == self.limits.cmd());
        adopted.status = adopted.status.or(ended.filter_map(|(_, raw)| Ended::of(*raw)).next());
        // If dlock has children of its own, the kernel never reports that no child is left. Then
        // two empty checks in a row count as the end.
        let empty = sweep.no_child || !self.foreign_children.is_empty() && adopted.tree.is_empty();
        let last = empty && (sweep.no_child || adopted.was_empty);
        adopted.was_empty = empty;
        if last {
            adopted.tree.remove_cgroup();
            let (status, reason) = (adopted.status, Some(adopted.stop.reason()));
            self.watch = WatchedBy::Gone;
            self.timer.set(None)?;
            return Ok(Some(Event::Ended { status, reason }));
        }
        adopted.pending.extend(sweep.refused.into_iter().map(Event::Refused));
        let wake = adopted.stop.wake(bound).min(Moment::now().after(CHECK_EVERY));
        let event = adopted.pending.pop_front();
        self.arm(wake)?;
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timer;
    use crate::clock::simulated::{self, Clock};
    use crate::supervise::limits::{Limits, LimitsSender};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::cell::Cell;
    use std::os::fd::OwnedFd;
    use std::rc::Rc;

    struct Hand(Cell<Moment>);

    impl Clock for Hand {
        fn now(&self) -> Moment {
            self.0.get()
        }

        fn sleep_until(&self, at: Moment) {
            self.0.set(at);
        }
    }

    /// A handle on a guard that does nothing: this process stands for it. Returns the other end of
    /// its socket, too.
    fn idle_guard(margin: Duration) -> io::Result<(Guard, OwnedFd)> {
        let (link, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let guard = Guard {
            pid: procfs::own_pid(),
            reaped: false,
            link,
            limits: LimitsSender::new()?,
            modes: None,
            timer: Timer::new()?,
            armed: Moment::from_boot(Duration::MAX),
            beats: 0,
            grace: Duration::ZERO,
            patience: patience(margin),
            on_lost: OnLost::Stop,
            leftovers: Leftovers::Leave,
            foreign_children: Vec::new(),
            guard_stuck: false,
            target: None,
            kill_by: None,
            status: None,
            stopping: None,
            watch: WatchedBy::Guard,
        };
        Ok((guard, far))
    }

    const NOW: Moment = Moment::from_boot(Duration::from_secs(100));

    #[test]
    fn a_guard_stopped_within_its_kill_is_replaced_within_the_margin() -> io::Result<()> {
        let clock = Rc::new(Hand(Cell::new(NOW)));
        simulated::set(Rc::clone(&clock) as Rc<dyn Clock>);
        for margin in [20, 40, 160, 600, 72_000].map(Duration::from_millis) {
            clock.0.set(NOW);
            let (mut guard, _far) = idle_guard(margin)?;
            let kill_at = NOW.after(Duration::from_secs(1));
            guard.start(&[], Limits { term_at: kill_at, kill_at })?;
            assert_eq!(guard.silence()?, Silence::Right, "the KILL is not due");
            clock.0.set(guard.armed);
            guard.limits.beat();
            assert_eq!(guard.silence()?, Silence::Right, "it has begun");
            clock.0.set(guard.armed);
            assert_eq!(guard.silence()?, Silence::Hung, "it has made no progress since");
            assert!(Moment::now().since(kill_at) < margin * 2 / 3, "margin {margin:?}: {:?}", guard.armed);
        }
        Ok(())
    }

    /// A grant that was confirmed late.
    #[test]
    fn a_guard_stopped_after_a_late_start_is_replaced_within_the_margin() -> io::Result<()> {
        simulated::set(Rc::new(Hand(Cell::new(NOW))));
        let (mut guard, _far) = idle_guard(Duration::from_millis(20))?;
        let kill_at = NOW.after(Duration::from_millis(80));
        guard.start(&[], Limits { term_at: NOW.after(Duration::from_millis(1)), kill_at })?;
        assert_eq!(guard.armed, kill_at.after(OVERDUE));
        Ok(())
    }
}

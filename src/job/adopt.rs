//! What if the guard itself is gone, or hangs? Then dlock takes the job over, being a subreaper too, and stops it with the
//! same code. Nothing here runs as long as the guard does its work.

use super::family::Family;
use super::stop::Stop;
use super::{Event, Guard, OVERDUE, OnLost, STALLED, Status, Watch, Why};
use crate::clock::Moment;
use crate::sys::{self, Waited};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Between two looks at a job that dlock adopted. It is not told of each end, unlike the guard.
const ADOPTED: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Adopted {
    family: Family,
    stop: Stop,
    status: Option<Status>,
    /// The last look found nothing.
    was_empty: bool,
    pending: VecDeque<Event>,
}

impl Guard {
    /// Whether the kill is overdue without a sign of it from the guard.
    pub(super) fn is_hung(&mut self) -> io::Result<bool> {
        if !matches!(self.watch, Watch::Guard) || !self.armed.passed() {
            return Ok(false);
        }
        let due = self.bound().after(OVERDUE);
        let beats = self.limits.beats();
        if !due.passed() {
            self.arm(due)?;
        } else if beats == self.beats {
            return Ok(true);
        } else {
            self.beats = beats;
            self.arm(Moment::now().after(STALLED))?;
        }
        Ok(false)
    }

    /// Takes the job over from a guard that is gone or hung, and begins to stop it.
    pub(super) fn adopt(&mut self) -> io::Result<Event> {
        if matches!(self.watch, Watch::Over) {
            // A socket without another end, and a timer that is due, would be readable for ever.
            self.watch = Watch::Gone;
            self.timer.set(None)?;
            return Ok(Event::Died);
        }
        // Not reaped yet, so the id is still the guard's. Its children become ours.
        let _ = sys::kill(self.pid, libc::SIGKILL);
        sys::wait_for(self.pid);
        self.reaped = true;
        let mut family = Family::new(&self.mark, self.apart.clone(), self.limits);
        family.child = self.limits.cmd();
        let bound = self.bound();
        let why = match self.kill_by {
            Some(_) => Why::Lost,
            None if bound.passed() => Why::LeaseRanOut,
            None => Why::GuardGone,
        };
        let (stop, refused) = Stop::begin(&mut family, why, Moment::now().after(self.grace).min(bound));
        let mut pending = VecDeque::from([Event::Stopping { why }]);
        pending.extend(refused.into_iter().map(Event::Refused));
        let adopted = Adopted { family, stop, status: self.status, was_empty: false, pending };
        self.watch = Watch::Adopted(Box::new(adopted));
        self.arm(Moment::now())?;
        Ok(Event::Died)
    }

    /// The latest moment for a kill by the limits, or by the loss.
    pub(super) fn bound(&self) -> Moment {
        match self.on_lost {
            OnLost::Stop => {
                let kill_at = self.limits.get().kill_at;
                self.kill_by.map_or(kill_at, |by| by.min(kill_at))
            }
            OnLost::Warn => Moment::from_boot(Duration::MAX),
        }
    }

    /// Goes on stopping an adopted job.
    pub(super) fn step(&mut self) -> io::Result<Option<Event>> {
        let bound = self.bound();
        let Watch::Adopted(adopted) = &mut self.watch else { return Ok(None) };
        if let Some(event) = adopted.pending.pop_front() {
            return Ok(Some(event));
        }
        let no_child = loop {
            match sys::wait_any() {
                Waited::Child(pid, raw) if adopted.status.is_none() && Some(pid) == self.limits.cmd() => {
                    if let Some(status) = Status::of(raw) {
                        adopted.status = Some(status);
                        adopted.family.child = None;
                    }
                }
                Waited::Child(..) => {}
                Waited::Nothing => break false,
                Waited::NoChild => break true,
            }
        };
        // With children of its own that may live on dlock is never told that it has no child; then it looks twice.
        let empty = (no_child || !self.apart.is_empty()) && adopted.family.is_empty();
        if empty && (no_child || adopted.was_empty) {
            let (status, why) = (adopted.status, Some(adopted.stop.why()));
            self.watch = Watch::Gone;
            self.timer.set(None)?;
            return Ok(Some(Event::Ended { status, why }));
        }
        adopted.was_empty = empty;
        let sweep = adopted.stop.step(&mut adopted.family, bound, None);
        let refused = sweep.into_iter().flat_map(|sweep| sweep.refused);
        adopted.pending.extend(refused.map(Event::Refused));
        let wake = adopted.stop.wake(bound).min(Moment::now().after(ADOPTED));
        let event = adopted.pending.pop_front();
        self.arm(wake)?;
        Ok(event)
    }
}

//! Supervises the job: relays signals, handles news of the lease and of the guard, and says how the
//! job ended.

use super::{News, Own, Runs, Session};
use crate::clock::Moment;
use crate::commands::run::ending::{exit, failure, pause_after, ran};
use crate::exit::{Ended, Exit, OnLost};
use crate::lease::{Asker, Lease, Loss, Report};
use crate::output::hold::HoldEvent;
use crate::output::json;
use crate::output::time::millis;
use crate::rules::{End, FailurePause};
use crate::supervise::{self, Event, NotStarted, Reached, Received, StopReason};
use std::io;

/// How the job ended, or did not start.
pub struct Over {
    pub exit: Exit,
    pub end: End,
}

impl Session<'_> {
    /// Relays and watches until the job is over.
    pub fn supervise(&mut self, own: Option<&Own>) -> anyhow::Result<Over> {
        let lease = own.map(|own| &own.lease);
        loop {
            match self.news(own, None).map_err(|error| self.messages.cannot_watch(&error))? {
                News::Nothing => {}
                News::Signal(received) => {
                    self.note_signal(own, received);
                    if self.is_hold() {
                        self.end_hold_on(received);
                        continue;
                    }
                    self.relay(received);
                    self.stop_without_command(received);
                }
                News::Lease(report) => {
                    self.handle_lease(lease, report).map_err(|error| self.messages.cannot_watch(&error))?;
                }
                News::Job(event) => {
                    if let Some(over) = self.handle_job(lease, event) {
                        return Ok(over);
                    }
                }
            }
        }
    }

    /// Notes a signal to end: what ends after it has not failed.
    fn note_signal(&self, own: Option<&Own>, received: Received) {
        if let Some(own) = own.filter(|_| self.ends(received.signal)) {
            own.notes.set_signalled();
        }
    }

    /// The pause that `--pause-on-failure` asks for, if the job has failed and dlock was not told to end.
    pub fn failure_pause(&self, own: &Own, over: &Over) -> anyhow::Result<Option<FailurePause>> {
        let exit = Some(over.exit).filter(|_| !self.report.started);
        let how = failure(&over.end, exit, self.is_hold());
        if self.run.pause_on_failure.is_none() || how.is_none() {
            return Ok(None);
        }
        // The signal that ended the job may be on its way to dlock, too.
        while let Some(received) =
            self.inherited.next_signal().map_err(|error| self.messages.cannot_watch(&error))?
        {
            self.note_signal(Some(own), received);
        }
        let how = how.filter(|_| !own.notes.is_signalled());
        Ok(pause_after(self.run, &own.lease.owner().host, how))
    }

    /// Handles a report of the lease that comes while the job runs.
    fn handle_lease(&mut self, lease: Option<&Lease>, report: Report) -> io::Result<()> {
        match report {
            Report::Lost { how: Loss::NotHeld, .. } if self.was_released(lease) => {
                self.guard.relay(supervise::OVER, Reached::Nobody);
            }
            Report::Lost { how, kill_by } => self.lose(lease, how, kill_by)?,
            Report::Asked(asker) => {
                self.asked_by = asker;
                // For a hold, print who asked before the guard stops the watcher, because that
                // closes stdout. For a job, stop it first: asking the store takes time.
                let is_hold = self.is_hold();
                if is_hold {
                    self.report.fate = self.fate(lease);
                    let by = self.report.fate.by().map(json::actor);
                    self.tell(&HoldEvent::Asked { by, superseded: asker == Asker::Newer });
                }
                self.guard.stop();
                if !is_hold {
                    self.report.fate = self.fate(lease);
                }
            }
            Report::Trouble { error, until } => {
                self.tell(&HoldEvent::Trouble {
                    error: error.to_string(),
                    left_ms: Some(millis(until.left())),
                });
                self.messages.trouble(&error, until.left(), self.run.on_lost);
            }
            Report::Recovered => {
                // The hold was in the store all the time, or the renewal would have failed.
                self.report.lost = None;
                self.tell(&HoldEvent::Recovered);
                self.messages.recovered();
            }
            _ => {}
        }
        Ok(())
    }

    fn lose(&mut self, lease: Option<&Lease>, how: Loss, kill_by: Moment) -> io::Result<()> {
        self.tell_of_loss(how, kill_by);
        let before = self.report.lost.replace(how);
        if how != Loss::Deadline {
            self.guard.lost(kill_by)?;
            // After the order to the guard, so that a slow store does not delay the stop.
            self.report.fate = self.fate(lease);
        }
        // With `--on-lost warn` the store may say later what the deadline has said before.
        let is_said = (before, how, self.run.on_lost) == (Some(Loss::Deadline), Loss::NotHeld, OnLost::Warn);
        if !is_said || self.report.fate.by().is_some() {
            self.messages.lost(how, &self.report.fate, self.run.on_lost);
        }
        Ok(())
    }

    /// Handles an event of the guard. Returns how the job ended, once it has.
    fn handle_job(&mut self, lease: Option<&Lease>, event: Event) -> Option<Over> {
        match event {
            Event::NotStarted(why) => return Some(self.not_started(why)),
            Event::Ended { status, reason } => return Some(self.over(status, reason)),
            Event::Suspended { signal } if !self.is_hold() && self.guard.is_cmd_stopped() => {
                self.suspend_too(signal);
            }
            Event::Stopping { reason } => {
                self.tell_of_stop(reason);
                self.messages.stopping(reason, self.asked_by, &self.report.fate, self.run);
            }
            Event::Refused(process) => self.messages.refused(&process),
            Event::CommandEnded { .. } if self.is_hold() => self.runs = Runs::Rest,
            Event::Left { rest, more } => self.show_rest(lease, self.messages.process_ended(&rest, more)),
            Event::CommandEnded { status } => {
                self.runs = Runs::Rest;
                self.show_rest(lease, self.messages.command_ended(status, self.guard.processes()));
            }
            // After `Died`, `Stopping` and `Ended` follow.
            Event::Suspended { .. } | Event::Continued | Event::Died => {}
        }
        None
    }

    /// Has the store show what keeps the lock after the end of the command, or of a hold's process.
    /// `rest` is empty if /proc does not show it.
    fn show_rest(&self, lease: Option<&Lease>, rest: String) {
        if let Some(lease) = lease.filter(|_| !rest.is_empty()) {
            lease.set_rest(rest);
        }
    }

    /// CMD could not be executed, or was too late to start.
    fn not_started(&mut self, why: NotStarted) -> Over {
        let exit = match why {
            NotStarted::Errno(libc::ENOENT) => Exit::NotFound,
            NotStarted::Errno(_) => Exit::CannotExecute,
            NotStarted::TooLate => Exit::Unavailable,
        };
        self.messages.not_started(&self.run.argv, why, exit);
        self.report.started = false;
        Over { exit, end: End::NOT_RUN }
    }

    /// The job has ended. Completes what is known of the loss, and chooses the exit status.
    fn over(&mut self, status: Option<Ended>, reason: Option<StopReason>) -> Over {
        let loss = match reason {
            Some(StopReason::Asked) => Some(Loss::Asked(self.asked_by)),
            // The guard acts by its own timer, perhaps before the lease thread reports the loss.
            Some(StopReason::LeaseRanOut) => Some(Loss::Deadline),
            _ => None,
        };
        self.report.lost = self.report.lost.or(loss);
        let job = self.work.subject().recorded(status);
        self.report.job = job;
        let (ran, fence) = (ran(reason, self.report.lost), self.report.granted.map(|(_, fence)| fence));
        Over {
            exit: exit(status, reason, self.report.lost),
            end: End { ran, job, once_per: self.run.once_per.is_some(), fence, pause: None },
        }
    }
}

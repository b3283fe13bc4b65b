//! Waits for the lock, and starts the job when it is granted. From then on `job` supervises it.

use super::{News, Own, Session};
use crate::clock::Moment;
use crate::commands::held::{By, Held};
use crate::commands::job_env::environment;
use crate::commands::run::Work;
use crate::config::run::Run;
use crate::error::Error;
use crate::lease::{self, Report};
use crate::lock::Wait;
use crate::output::busy::Tried;
use crate::output::hold::HoldEvent;
use crate::output::json;
use crate::rules::{Blocker, Done, End, Grant, Notice, Refusal};
use crate::supervise::{self, Event, Limits};
use std::time::Duration;

/// Result of asking for the lock.
pub enum Obtained {
    Lock,
    Busy,
    /// What the lock was to be held for has ended.
    Unwanted,
    /// Another run has done the work within `--once-per`.
    Done,
    TakenAway,
    Interrupted(i32),
    /// Others were faster at each attempt, and the last request may have arrived.
    Contended,
}

impl Session<'_> {
    /// Waits for the lock. If this returns [`Obtained::Lock`], the job has been started.
    pub fn obtain(&mut self, own: &Own) -> anyhow::Result<Obtained> {
        loop {
            // Wakes without news too, to update the line on a terminal.
            let Some(until) = self.next_look() else { return Ok(Obtained::Unwanted) };
            match self.news(Some(own), until).map_err(|error| self.internal("cannot watch", &error))? {
                News::Signal(received) if self.ends(received.signal) => {
                    return Ok(Obtained::Interrupted(received.signal));
                }
                News::Signal(received) if received.signal == libc::SIGTSTP => {
                    self.messages.live.borrow_mut().clear();
                    supervise::stop_by(libc::SIGTSTP);
                }
                News::Signal(received) if received.signal == libc::SIGWINCH => {
                    self.messages.live.borrow_mut().resized()
                }
                News::Signal(_) => {}
                News::Nothing => self.messages.live.borrow_mut().go_on(),
                News::Job(Event::Died) => {
                    self.leave(own);
                    return Err(Error::Internal(self.messages.guard_died_before_start()).into());
                }
                News::Job(_) => {}
                News::Lease(Report::Waiting(waiting)) => {
                    self.tell_of_waiting(&waiting);
                    self.messages.waiting(waiting);
                }
                News::Lease(report) => {
                    if let Some(obtained) = self.handle_report(own, report)? {
                        return Ok(obtained);
                    }
                }
            }
        }
    }

    /// Handles a report that comes before the job runs. Returns the outcome, if there is one.
    fn handle_report(&mut self, own: &Own, report: Report) -> anyhow::Result<Option<Obtained>> {
        match report {
            Report::Granted { grant, sent } => {
                self.start(own, grant, sent)?;
                return Ok(Some(Obtained::Lock));
            }
            Report::Busy(blocker) => {
                self.busy(own, &blocker);
                return Ok(Some(Obtained::Busy));
            }
            Report::Contended(blocker) => {
                self.busy(own, &blocker);
                return Ok(Some(Obtained::Contended));
            }
            Report::Done(done) => {
                self.done(own, &done);
                return Ok(Some(Obtained::Done));
            }
            Report::Superseded(superseded) => {
                self.report.is_superseded = true;
                self.tell(&HoldEvent::Busy { holder: None, status: self.run.busy });
                self.messages.superseded(&superseded, self.run.busy);
                let refusal = Refusal::superseded(own.lease.owner(), &superseded, self.waited());
                own.lease.note(superseded.at, &refusal);
                return Ok(Some(Obtained::Busy));
            }
            Report::Failed(error) => {
                // The request may have arrived without an answer: the guard leaves by token, in the
                // background.
                return Err(self.messages.failed(error).into());
            }
            Report::TooSlow => return Err(self.messages.too_slow(self.run.ttl.get()).into()),
            Report::TakenAway => {
                self.report.lost = Some(lease::Loss::Revoked);
                self.messages.taken_away();
                return Ok(Some(Obtained::TakenAway));
            }
            Report::Trouble { error, .. } => {
                self.tell(&HoldEvent::Trouble { error: error.to_string(), left_ms: None });
                self.messages.trouble_in_queue(&error);
            }
            Report::Recovered => {
                self.tell(&HoldEvent::Recovered);
                self.messages.recovered();
            }
            Report::Waiting(_) | Report::Asked(_) | Report::Lost { .. } => {}
        }
        Ok(None)
    }

    /// The lock was not obtained.
    fn busy(&self, own: &Own, blocker: &Blocker) {
        let Run { wait, once_per, busy: status, .. } = *self.run;
        let holder = blocker.holder.as_ref().map(|holder| json::actor(&holder.owner));
        self.tell(&HoldEvent::Busy { holder, status });
        let waited = Some(self.waited()).filter(|_| wait != Wait::No);
        let notice = Notice::busy(blocker, once_per, waited).filter(|_| !self.is_hold());
        let refusal = Refusal::busy(own.lease.owner(), blocker, waited).with(notice);
        if own.lease.note(blocker.at, &refusal) {
            self.messages.missed_busy(blocker, &refusal, status);
        } else {
            let tried = match wait {
                Wait::For(bound) => Tried::Waited(bound),
                Wait::No | Wait::Forever => Tried::Once,
            };
            self.messages.busy(blocker, tried, &format!("; {}", self.work.subject().unrun), status);
        }
    }

    /// Another run has done the work.
    fn done(&mut self, own: &Own, done: &Done) {
        self.report.is_done = true;
        let once_per = self.run.once_per;
        let notice = once_per.and_then(|period| Notice::done(done, period));
        let refusal = Refusal::done(own.lease.owner(), done, self.waited()).with(notice);
        if own.lease.note(done.at, &refusal) {
            self.messages.missed_done(done, &refusal, once_per);
        } else {
            self.messages.done(done);
        }
    }

    /// Starts the job under a lease that was requested at `sent`.
    fn start(&mut self, own: &Own, grant: Grant, sent: Moment) -> anyhow::Result<()> {
        self.report.granted = Some((Moment::now(), grant.fence));
        own.notes.set_fence(grant.fence);
        self.report.slot = grant.slot;
        self.messages.granted(grant);
        let limits = Limits { term_at: own.schedule.term_at(sent), kill_at: own.schedule.kill_at(sent) };
        let settings = &self.context.settings;
        let held = Held::new(settings, own.keys.clone(), own.token.clone(), grant.fence, By::Run);
        let env = environment(settings, &self.run.keys, &held, grant.slot, Some(own.holds.clone()));
        let started = match &self.work {
            Work::Command => self.guard.start(&env, limits),
            Work::Hold(_) => self.begin_hold(own, &grant, limits),
        };
        if let Err(error) = started {
            self.leave(own);
            let what = match self.work {
                Work::Command => "cannot start the command",
                Work::Hold(_) => "cannot start the hold",
            };
            return Err(self.internal(what, &error));
        }
        self.report.started = true;
        Ok(())
    }

    /// Gives back the hold, or leaves the queue, when no guard can do it and CMD did not run.
    fn leave(&self, own: &Own) {
        // If this fails, the lock is free when its lease ends, and a place in the queue goes stale.
        let _ = own.lease.give_back(&End::NOT_RUN);
    }

    /// How long this run has asked for the lock.
    fn waited(&self) -> Duration {
        self.report.asked.map(|asked| Moment::now().since(asked)).unwrap_or_default()
    }
}

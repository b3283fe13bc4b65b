//! One run, from the guard's fork to the end: it waits for the lock (`obtain`), supervises the job
//! (`job`), and gives the lock back. `super::hold` has what is different for a hold.

use super::messages::Messages;
use super::notes::Notes;
use super::report::RunReport;
use super::{Work, internal};
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::commands::fate::Fate;
use crate::commands::held::Holds;
use crate::config::run::Run;
use crate::exit::Exit;
use crate::lease::{self, Asker, Lease, Report};
use crate::lock::{Key, Token};
use crate::rules::schedule::Schedule;
use crate::rules::{Left, Ran};
use crate::supervise::{self, Event, Group, Guard, Inherited, Interrupt};
use job::Over;
use obtain::Obtained;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

mod job;
mod obtain;

/// How long a dlock that must end waits for the guard to leave the queue. Then dlock ends, and the
/// guard goes on by itself (I9).
const LEAVING: Duration = Duration::from_millis(60);

pub struct Session<'a> {
    pub context: &'a Context,
    pub run: &'a Run,
    pub work: Work,
    pub inherited: Inherited,
    pub group: Group,
    pub guard: Guard,
    pub messages: Messages<'a>,
    pub report: &'a mut RunReport,
    pub runs: Runs,
    /// Who asked the job to end; `Operator` until somebody asks.
    pub asked_by: Asker,
}

/// The hold that this run asks for, renews and gives back.
pub struct Own {
    /// Its keys, in the order given.
    pub keys: Vec<Key>,
    /// The holds of the parent job.
    pub holds: Holds,
    pub token: Token,
    pub schedule: Schedule,
    pub lease: Lease,
    pub notes: Notes,
    /// Interrupts requests to the store before the job runs.
    pub interrupt: Interrupt,
}

/// Which part of the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// CMD, and what it started.
    Command,
    /// What CMD left behind, with `--tree`.
    Rest,
}

/// What `news` returns.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
enum News {
    Signal(supervise::Received),
    Job(Event),
    Lease(Report),
    /// Nothing happened until the given moment.
    Nothing,
}

impl Session<'_> {
    /// Takes the lock, runs the job under it, and gives it back.
    pub fn go(mut self, own: &Own) -> anyhow::Result<Exit> {
        match self.obtain(own)? {
            Obtained::Lock => {
                let mut over = self.supervise(Some(own))?;
                over.end.pause = self.failure_pause(own, &over)?;
                Ok(self.give_back(own, over))
            }
            Obtained::Busy => {
                self.guard.dismiss();
                Ok(Exit::Busy(self.run.busy))
            }
            Obtained::Contended => {
                let _ = self.guard.leave_to_it(LEAVING);
                Ok(Exit::Busy(self.run.busy))
            }
            Obtained::Unwanted => {
                self.messages.unwanted(self.run.busy);
                let _ = self.guard.leave_to_it(LEAVING);
                Ok(Exit::Busy(self.run.busy))
            }
            Obtained::Done => {
                self.guard.dismiss();
                Ok(Exit::Ok)
            }
            // Dropping the guard makes it give back what the token may still have.
            Obtained::TakenAway => Ok(Exit::Lost),
            Obtained::Interrupted(signal) => {
                // The guard leaves the queue by token.
                let _ = self.guard.leave_to_it(LEAVING);
                Ok(Exit::Signal(signal))
            }
        }
    }

    /// Whether a signal ends a waiting dlock, or (except QUIT) a hold.
    pub fn ends(&self, signal: i32) -> bool {
        supervise::ENDING.contains(&signal) && !self.inherited.ignored(signal)
    }

    /// An error that ends dlock before the job was started.
    fn internal(&self, what: &str, error: &dyn Display) -> anyhow::Error {
        internal(what, error, self.work.subject().unrun)
    }

    /// Asks the store who asked for the end, or why the lock is lost.
    pub fn fate(&self, lease: Option<&Lease>) -> Fate {
        let fence = self.report.granted.map(|(_, fence)| fence);
        let told = lease.zip(fence).map(|(lease, fence)| Fate::of(&lease.views(), fence));
        told.unwrap_or(Fate::Unknown)
    }

    /// Gives the lock back. If the store said that this token does not hold the only lock, there is
    /// nothing to give back (I8). Of several, one may be lost and the others still held.
    fn give_back(self, own: &Own, mut over: Over) -> Exit {
        let answer = match self.report.lost {
            Some(lease::Loss::NotHeld) if own.keys.len() == 1 => Ok(Left::NotHeld),
            _ => own.lease.give_back(&over.end),
        };
        match answer {
            Ok(left) => {
                if left == Left::NotHeld && over.end.ran != Ran::No && over.exit != Exit::Lost {
                    // Lost after the last renewal: CMD may have run without it.
                    self.report.lost = Some(lease::Loss::NotHeld);
                    self.report.fate = self.fate(Some(&own.lease));
                    self.messages.lost_unnoticed(&self.report.fate, over.exit);
                    over.exit = Exit::Lost;
                }
                self.messages.left(left);
                if over.end.counts() && over.exit != Exit::Lost {
                    self.messages.counts(self.run.once_per, self.report);
                }
                let has_failed = over.end.pause.is_some() || left == Left::NotHeld;
                if self.run.pause_on_failure.is_some() && has_failed {
                    // Another pause may be in force, or an operator may have ended this one.
                    self.messages.paused(&own.lease.views());
                    own.lease.hang_up();
                }
                self.tell_of_release();
                self.guard.dismiss();
            }
            // The guard goes on trying, by itself.
            Err(error) => {
                // If no renewal arrived, the end of the lease is no failure.
                let pauses_expired = self.context.settings.pauses_expired() && own.lease.has_renewed();
                let pauses = self.run.pause_on_failure.filter(|_| pauses_expired);
                self.messages.not_given_back(&error.to_string(), over.exit, over.end.ran, pauses);
                let _ = self.guard.leave_to_it(Duration::ZERO);
            }
        }
        if over.exit == Exit::Lost {
            self.messages.ends_lost();
        }
        over.exit
    }

    /// Waits until `until` for a signal, or for news of the job or the lease.
    fn news(&mut self, own: Option<&Own>, until: Option<Moment>) -> io::Result<News> {
        let lease = own.map(|own| &own.lease);
        loop {
            // Signals first: if a signal to end and the grant come in the same instant, the job
            // must not start.
            if let Some(received) = self.inherited.next_signal()? {
                if received.signal == libc::SIGCHLD {
                    self.guard.tend()?;
                    continue;
                }
                return Ok(News::Signal(received));
            }
            if let Some(event) = self.guard.next_event()? {
                return Ok(News::Job(event));
            }
            if let Some(report) = lease.and_then(Lease::next_report) {
                return Ok(News::Lease(report));
            }
            if until.is_some_and(Moment::passed) {
                return Ok(News::Nothing);
            }
            let until = until.into_iter().chain(lease.and_then(Lease::next)).min();
            if let Some(own) = own
                && own.lease.acquire_step(own.interrupt.as_fd(), until)
            {
                continue;
            }
            // A moment too far away for the kernel counts as never.
            let left = until.and_then(|until| Timespec::try_from(until.left()).ok());
            let [guard, timer] = self.guard.fds();
            let mut fds = [self.inherited.fd(), guard, timer, lease.map_or(timer, Lease::fd)]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

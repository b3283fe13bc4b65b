//! `dlock run` from start to end: prepare, fork the guard, take the lock, start the job, relay
//! signals and wait, give the lock back, exit with the job's status. Lease, guard and output do not
//! know each other; this module joins them.
//!
//! The order makes it safe: the guard is forked before any thread and before any request to the
//! store (I7), the job starts after a round trip has confirmed the grant (I10), and the lock is
//! given back after the job was reaped (I8).

use super::context::Context;
use super::env::{environment, environment_inside};
use super::fate::Fate;
use super::held::{By, Held, Holds};
use super::owner::{command_line, owner};
use super::stores::HoldOn;
use crate::cli;
use crate::clock::Moment;
use crate::config::run::{KeepFor, Run};
use crate::error::Error;
use crate::exit::{Ended, Exit};
use crate::lease::{self, Asker, Lease, Report, Request, Until};
use crate::lock::{Key, Owner, Token, Wait};
use crate::output::Printer;
use crate::output::hold::HoldEvent;
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, End, Left, Ran, Refusal, Terms};
use crate::supervise::{
    self, Bond, Event, Group, Guard, Inherited, Interrupt, Leftovers, Limits, Orphaned, Plan, Reached,
};
use ending::ran;
pub use hold::{Holding, Voice};
use messages::{Messages, Right, Subject};
use parent_hold::ParentHold;
use report::RunReport;
use report_file::ReportFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd as _, RawFd};
use std::time::Duration;

mod ending;
mod hold;
mod messages;
mod orphaned;
mod parent_hold;
mod relay;
pub mod report;
mod report_file;
mod verify;

/// Time for the guard to leave the queue when a waiting dlock must end; after it dlock is gone
/// (I9).
const LEAVING: Duration = Duration::from_millis(60);

/// `dlock run`.
pub fn run(flags: &cli::Run, printer: &mut Printer) -> anyhow::Result<Exit> {
    let file = flags.report.as_deref().map(ReportFile::find).transpose()?;
    let mut report = RunReport::default();
    let result =
        Context::new(&flags.common, flags.key.first()).map_err(Into::into).and_then(|mut context| {
            *printer = context.printer.clone();
            context.say_default();
            report.store = Some(context.settings.store.to_string());
            guarded(&context, &context.settings.run(flags)?, &mut report, Work::Command)
        });
    if let Some(file) = file {
        file.write(&report, flags, &result, printer);
    }
    result
}

/// What runs under the lock.
pub enum Work {
    Command,
    /// The lock is held for something that dlock did not start.
    Hold(Holding),
}

impl Work {
    fn owner(&self, run: &Run) -> Owner {
        let owner = match self {
            Self::Command => {
                owner(run.label.clone().unwrap_or_else(|| command_line(&run.argv)), run.reason.clone())
            }
            Self::Hold(hold) => hold.owner(run),
        };
        Owner { ttl: Some(run.ttl.get()), ..owner }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Command => Subject::COMMAND,
            Self::Hold(hold) => hold.subject(),
        }
    }

    /// What the guard watches in place of CMD.
    fn bond(&mut self) -> Option<Bond> {
        match self {
            Self::Command => None,
            Self::Hold(hold) => hold.bond(),
        }
    }
}

/// Runs with resolved settings.
pub fn guarded(context: &Context, run: &Run, report: &mut RunReport, mut work: Work) -> anyhow::Result<Exit> {
    let holds = Holds::of_process();
    let unstarted = |error| unstarted(error, work.subject().unrun);
    let (rest, enclosing) = match &work {
        Work::Command => parent_hold::find_parent_hold(context, run, Until::from_now(run.wait), &holds),
        Work::Hold(_) => hold::keys(context, run, &holds).map(|keys| (keys, None)),
    }
    .map_err(unstarted)?;
    report.nested = enclosing.is_some();
    let min_hold = match enclosing {
        Some(enclosing) if rest.is_empty() => return run_inside(context, run, &enclosing, report),
        Some(_) => Duration::ZERO,
        None => run.min_hold,
    };
    let names = context.names(&rest)?;
    context.check_supported(&names, run.mode)?;
    let token =
        Token::random().map_err(|error| internal("cannot get random bytes from the system", &error))?;
    let inherited = prepare()?;
    let mut store = context.open_for_hold(hold_requirements(run)).map_err(unstarted)?;
    let keep = store.prepare(&token).map_err(|error| unstarted(context.with_origin(error).into()))?;

    let messages = Messages::new(context, &rest, run.mode, Right::Own, work.subject());
    let schedule = Schedule::new(run.ttl, run.grace, context.settings.op_timeout);
    let plan = Plan { spare: schedule.spare(), bond: work.bond(), ..plan(run, supervise::group(), keep) };
    let group = plan.group;
    let orphaned = orphaned::orphaned(&mut *store, &names, &token, context, run, &messages);
    let guard =
        Guard::fork(plan, &inherited, orphaned).map_err(|error| internal("cannot make the guard", &error))?;

    report.asked = Some(Moment::now());
    let until = Until::from_now(run.wait);
    let ask = Ask {
        token: token.clone(),
        mode: run.mode,
        ttl: run.ttl.get(),
        min_hold,
        owner: work.owner(run),
        patience: until.patience(),
        terms: Terms { once_per: run.once_per, replaces: run.replaces, stays: run.stays },
        waited: Duration::ZERO,
    };
    let request = Request {
        names,
        ask,
        until,
        schedule,
        connect_timeout: context.settings.connect_timeout,
        op_timeout: context.settings.op_timeout,
    };
    let limits = guard.limits();
    let on_renewed = move |term_at, kill_at| limits.set(Limits { term_at, kill_at });
    let lease = Lease::new(store, request, on_renewed)
        .map_err(|error| internal("cannot ask for the lock", &error))?;
    let interrupt =
        inherited.interrupt(guard.fds()[0]).map_err(|error| internal("cannot watch for signals", &error))?;
    let own = Own { keys: rest, holds, token, schedule, lease, interrupt };
    let runs = Runs::Command;
    let asked_by = Asker::Operator;
    Session { context, run, work, inherited, group, runs, guard, messages, limits, report, asked_by }.go(&own)
}

/// Runs the command under a hold of the parent job. The parent dlock renews that hold and gives it
/// back, and stops this dlock with the rest of its job if it is lost. So there is no lease here, no
/// limit, and nothing to give back.
fn run_inside(
    context: &Context,
    run: &Run,
    enclosing: &ParentHold,
    report: &mut RunReport,
) -> anyhow::Result<Exit> {
    let inherited = prepare()?;
    let messages = Messages::new(context, &run.keys, run.mode, Right::OfEnclosing, Subject::COMMAND);
    let plan = plan(run, supervise::group(), Vec::new());
    let group = plan.group;
    let orphaned = |what| match what {
        Orphaned::Refused(process) => messages.refused(&process),
        Orphaned::Over { started: true, reason: Some(_), .. } => messages.orphaned_inside(),
        Orphaned::Over { .. } => {}
    };
    let guard =
        Guard::fork(plan, &inherited, orphaned).map_err(|error| internal("cannot make the guard", &error))?;
    messages.inside(enclosing);
    let limits = guard.limits();
    let runs = Runs::Command;
    let asked_by = Asker::Operator;
    let work = Work::Command;
    let mut session =
        Session { context, run, work, inherited, group, runs, guard, messages, limits, report, asked_by };
    session.report.asked = Some(Moment::now());
    session.report.granted = Some((Moment::now(), enclosing.proof.fence));
    session.report.slot = enclosing.proof.slot;
    let ParentHold { held, proof } = enclosing;
    let env = environment_inside(&context.settings, &run.keys, &held.token, proof.fence, proof.slot);
    session.guard.start(&env, Limits::NEVER).map_err(|error| internal("cannot start the command", &error))?;
    session.report.started = true;
    let over = session.supervise(None)?;
    session.guard.done();
    Ok(over.exit)
}

/// What this run requires of the store.
fn hold_requirements(run: &Run) -> HoldOn {
    HoldOn { replicas: run.replicas, max_lease: run.max_lease }
}

/// The guard's plan.
fn plan(run: &Run, group: Group, keep: Vec<RawFd>) -> Plan {
    Plan {
        argv: run.argv.clone(),
        bond: None,
        group,
        grace: run.grace,
        max_run: run.max_run,
        on_lost: run.on_lost,
        spare: Duration::ZERO,
        leftovers: match run.keep_for {
            KeepFor::Command => Leftovers::Leave,
            KeepFor::Tree => Leftovers::Await,
        },
        keep,
    }
}

fn prepare() -> anyhow::Result<Inherited> {
    supervise::prepare().map_err(|error| internal("cannot prepare to supervise the job", &error))
}

/// One run, from the guard's fork to the end.
struct Session<'a> {
    context: &'a Context,
    run: &'a Run,
    work: Work,
    inherited: Inherited,
    group: Group,
    runs: Runs,
    guard: Guard,
    messages: Messages<'a>,
    limits: supervise::LimitsSender,
    report: &'a mut RunReport,
    /// Who asked the job to end, if anybody has.
    asked_by: Asker,
}

/// The hold that this run asks for, renews and gives back.
struct Own {
    /// Its keys, in the order given.
    keys: Vec<Key>,
    /// The holds of the parent job.
    holds: Holds,
    token: Token,
    schedule: Schedule,
    lease: Lease,
    /// Interrupts requests to the store before the job runs.
    interrupt: Interrupt,
}

/// Which part of the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// CMD, and what it started.
    Command,
    /// What CMD left behind, with `--tree`.
    Rest,
}

/// How the job ended, or did not start.
struct Over {
    exit: Exit,
    end: End,
}

/// What ended a wait.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
enum News {
    Signal(supervise::Received),
    Job(Event),
    Lease(Report),
    /// Nothing happened until the given moment.
    Nothing,
}

impl Session<'_> {
    fn go(mut self, own: &Own) -> anyhow::Result<Exit> {
        match self.obtain(own)? {
            Obtained::Lock => {
                let over = self.supervise(Some(own))?;
                Ok(self.give_back(own, over))
            }
            Obtained::Busy => {
                self.guard.done();
                Ok(Exit::Busy(self.run.busy))
            }
            Obtained::Unwanted => {
                self.messages.unwanted(self.run.busy);
                let _ = self.guard.finish(LEAVING);
                Ok(Exit::Busy(self.run.busy))
            }
            Obtained::Done => {
                self.guard.done();
                Ok(Exit::Ok)
            }
            // Dropping the guard makes it give back what the token may still have.
            Obtained::TakenAway => Ok(Exit::Lost),
            Obtained::Interrupted(signal) => {
                // The guard leaves the queue by token. If that takes too long, it goes on by
                // itself.
                let _ = self.guard.finish(LEAVING);
                Ok(Exit::Signal(signal))
            }
        }
    }

    /// Waits for the lock. If this returns [`Obtained::Lock`], the job has been started.
    fn obtain(&mut self, own: &Own) -> anyhow::Result<Obtained> {
        loop {
            // Wakes without news too, to update the line on a terminal.
            let Some(until) = self.next_look() else { return Ok(Obtained::Unwanted) };
            match self.news(Some(own), until).map_err(|error| internal("cannot watch", &error))? {
                News::Signal(received) if self.ends(received.signal) => {
                    return Ok(Obtained::Interrupted(received.signal));
                }
                News::Signal(received) if received.signal == libc::SIGTSTP => {
                    self.messages.clear();
                    supervise::stop_by(libc::SIGTSTP);
                }
                News::Signal(received) if received.signal == libc::SIGWINCH => self.messages.resized(),
                News::Signal(_) => {}
                News::Nothing => self.messages.still_waiting(),
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

    /// Gives back the hold, or leaves the queue, when no guard can do it and CMD did not run.
    fn leave(&self, own: &Own) {
        let end = End { ran: Ran::No, job: None, once_per: false };
        // If this fails, the lock is free when its lease ends, and a place in the queue goes stale.
        let _ = own.lease.give_back(&end);
    }

    fn ends(&self, signal: i32) -> bool {
        supervise::ENDING.contains(&signal) && !self.inherited.ignored(signal)
    }

    /// Handles a report that comes before the job runs. Returns the outcome, if there is one.
    fn handle_report(&mut self, own: &Own, report: Report) -> anyhow::Result<Option<Obtained>> {
        match report {
            Report::Granted { grant, sent } => {
                self.report.granted = Some((Moment::now(), grant.fence));
                self.report.slot = grant.slot;
                self.messages.granted(grant);
                let limits =
                    Limits { term_at: own.schedule.term_at(sent), kill_at: own.schedule.kill_at(sent) };
                let settings = &self.context.settings;
                let held = Held::new(settings, own.keys.clone(), own.token.clone(), grant.fence, By::Run);
                let env = environment(settings, &self.run.keys, &held, grant.slot, own.holds.clone());
                let started = match &self.work {
                    Work::Command => self.guard.start(&env, limits),
                    Work::Hold(_) => self.begin_hold(own, &grant, limits),
                };
                if let Err(error) = started {
                    self.leave(own);
                    return Err(internal("cannot start the command", &error));
                }
                self.report.started = true;
                return Ok(Some(Obtained::Lock));
            }
            Report::Busy(blocker) => {
                self.messages.busy(&blocker, self.run.wait, self.run.busy);
                let waited = Some(self.waited()).filter(|_| self.run.wait != Wait::No);
                own.lease.note(blocker.at, &Refusal::busy(own.lease.asker(), &blocker, waited));
                return Ok(Some(Obtained::Busy));
            }
            Report::Done(done) => {
                self.report.is_done = true;
                self.messages.done(&done);
                own.lease.note(done.at, &Refusal::done(own.lease.asker(), &done, self.waited()));
                return Ok(Some(Obtained::Done));
            }
            Report::Superseded(superseded) => {
                self.report.is_superseded = true;
                self.messages.superseded(&superseded, self.run.busy);
                let refusal = Refusal::superseded(own.lease.asker(), &superseded, self.waited());
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
            Report::Trouble { error, .. } => self.messages.trouble_in_queue(&error),
            Report::Recovered => self.messages.recovered(),
            Report::Waiting(_) | Report::Asked(_) | Report::Lost { .. } => {}
        }
        Ok(None)
    }

    /// How long it has asked for the lock.
    fn waited(&self) -> Duration {
        self.report.asked.map(|asked| Moment::now().since(asked)).unwrap_or_default()
    }

    /// Relays and watches until the job is over.
    fn supervise(&mut self, own: Option<&Own>) -> anyhow::Result<Over> {
        let lease = own.map(|own| &own.lease);
        loop {
            match self.news(own, None).map_err(|error| internal_while_running(&error))? {
                News::Nothing => {}
                News::Signal(received) if self.is_hold() => self.end_hold_on(received),
                News::Signal(received) => {
                    self.relay(received);
                    self.stop_without_command(received);
                }
                News::Lease(Report::Lost { how: lease::Loss::NotHeld, .. }) if self.was_released(lease) => {
                    self.guard.relay(supervise::OVER, Reached::Nobody);
                }
                News::Lease(Report::Lost { how, kill_by }) => {
                    self.tell_of_loss(how, kill_by);
                    self.report.lost = Some(how);
                    if how != lease::Loss::Deadline {
                        self.guard.lost(kill_by).map_err(|error| internal_while_running(&error))?;
                        // Only after the guard was told, so that a slow store does not delay the
                        // stop.
                        self.report.fate = self.fate(lease);
                    }
                    self.messages.lost(how, &self.report.fate, self.run.on_lost);
                }
                News::Lease(Report::Asked(asker)) => {
                    self.asked_by = asker;
                    // A hold reports who asked before the watcher is stopped, which closes stdout.
                    // A job is stopped first.
                    let is_hold = self.is_hold();
                    if is_hold {
                        self.report.fate = self.fate(lease);
                        self.tell_of_request(asker);
                    }
                    self.guard.stop();
                    if !is_hold {
                        self.report.fate = self.fate(lease);
                    }
                }
                News::Lease(Report::Trouble { error, until }) => {
                    self.tell_of_trouble(&error, until);
                    self.messages.trouble(&error, until.left(), self.run.on_lost);
                }
                News::Lease(Report::Recovered) => {
                    // The lock key was there all the time, or the renewal would have failed.
                    self.report.lost = None;
                    self.tell(&HoldEvent::Recovered);
                    self.messages.recovered();
                }
                News::Lease(_) => {}
                News::Job(Event::NotStarted(why)) => {
                    return Ok(self.not_started(why));
                }
                News::Job(Event::Stopped { signal }) if !self.is_hold() && self.guard.is_cmd_stopped() => {
                    self.stop_too(signal);
                }
                News::Job(Event::Stopped { .. }) => {}
                News::Job(Event::Continued) => {}
                News::Job(Event::Stopping { reason }) => {
                    self.tell_of_stop(reason);
                    self.messages.stopping(reason, self.asked_by, &self.report.fate, self.run);
                }
                News::Job(Event::Refused(process)) => self.messages.refused(&process),
                News::Job(Event::CommandEnded { status }) => {
                    self.runs = Runs::Rest;
                    self.messages.command_ended(status, || self.guard.processes());
                }
                News::Job(Event::Ended { status, reason }) => return Ok(self.over(status, reason)),
                // `Stopping` and `Ended` follow.
                News::Job(Event::Died) => {}
            }
        }
    }

    /// Asks the store who asked for the end, or why the lock is lost.
    fn fate(&self, lease: Option<&Lease>) -> Fate {
        let fence = self.report.granted.map(|(_, fence)| fence);
        let told = lease.zip(fence).map(|(lease, fence)| Fate::of(&lease.views(), fence));
        told.unwrap_or(Fate::Unknown)
    }

    /// CMD could not be executed, or was too late to start.
    fn not_started(&mut self, why: supervise::NotStarted) -> Over {
        let exit = match why {
            supervise::NotStarted::Errno(libc::ENOENT) => Exit::NotFound,
            supervise::NotStarted::Errno(_) => Exit::CannotExecute,
            supervise::NotStarted::TooLate => Exit::Unavailable,
        };
        self.messages.not_started(&self.run.argv, why, exit);
        self.report.started = false;
        Over { exit, end: End { ran: Ran::No, job: None, once_per: false } }
    }

    /// Chooses the exit status: a lost lock comes first, then `--max-run`, then CMD's own.
    fn over(&mut self, status: Option<Ended>, reason: Option<supervise::StopReason>) -> Over {
        if reason == Some(supervise::StopReason::Asked) {
            self.report.lost.get_or_insert(lease::Loss::Asked(self.asked_by));
        }
        if reason == Some(supervise::StopReason::LeaseRanOut) {
            // The guard acts by its own timer, and may be ahead of the thread that renews.
            self.report.lost.get_or_insert(lease::Loss::Deadline);
        }
        let own = match status {
            Some(Ended::Code(code)) => Exit::Job(code),
            Some(Ended::Signal(signal)) => Exit::Signal(signal),
            None => Exit::Internal,
        };
        let exit = match reason {
            Some(
                supervise::StopReason::Lost
                | supervise::StopReason::LeaseRanOut
                | supervise::StopReason::Asked,
            ) => Exit::Lost,
            _ if self.report.lost.is_some() => Exit::Lost,
            Some(supervise::StopReason::MaxRun) => Exit::TimedOut,
            Some(supervise::StopReason::GuardGone | supervise::StopReason::CallerGone) => Exit::Internal,
            None => own,
        };
        self.report.job = status;
        Over {
            exit,
            end: End {
                ran: ran(reason, self.report.lost),
                job: status,
                once_per: self.run.once_per.is_some(),
            },
        }
    }

    /// Gives the lock back. A single lock that was lost is not given back (I8). Of several, one may
    /// be lost and the others still held.
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
                self.tell_of_release();
                self.guard.done();
            }
            // The guard tries once more, by itself.
            Err(error) => {
                self.messages.not_given_back(&error.to_string(), over.exit, over.end.ran);
                let _ = self.guard.finish(Duration::ZERO);
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
            // A moment too far away for the kernel counts as never.
            let until = until.into_iter().chain(lease.and_then(Lease::next)).min();
            if let Some(own) = own
                && own.lease.wait(own.interrupt.as_fd(), until)
            {
                continue;
            }
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

/// Result of asking for the lock.
enum Obtained {
    Lock,
    Busy,
    /// What the lock was to be held for has ended.
    Unwanted,
    /// Another run has done the work within `--once-per`.
    Done,
    TakenAway,
    Interrupted(i32),
}

/// Adds to a store error from before the run that nothing ran.
fn unstarted(error: Error, unrun: &str) -> Error {
    match error {
        Error::Store(error) => Error::Store(error.map(|text| format!("{text}; {unrun}"))),
        other => other,
    }
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    Error::Internal(format!("{what}: {error}; the command did not run")).into()
}

fn internal_while_running(error: &io::Error) -> anyhow::Error {
    Error::Internal(format!("cannot watch the command: {error}; the guard stops it and gives the lock back"))
        .into()
}

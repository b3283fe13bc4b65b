//! `dlock run` from start to end: prepare, fork the guard, take the lock, start the job, relay
//! signals and wait, give the lock back, exit with the job's status. Lease, guard and output do not
//! know each other; this module joins them. This file has the steps up to the guard's fork, and the
//! whole run inside a parent's hold; `Session::go` has the rest.
//!
//! The order makes it safe: the guard is forked before any thread and before the lock is asked for
//! (I7), the job starts after a round trip has confirmed the grant (I10), and the lock is given
//! back after the job was reaped (I8).

use super::context::Context;
use super::held::{Held, Holds, OwnHold};
use super::job_env::environment;
use super::owner::{command_line, owner};
use super::stores::HoldRequirements;
use crate::cli::{self, Common};
use crate::clock::Moment;
use crate::config::run::{KeepFor, Run};
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::{Asker, Lease, Request, Until};
use crate::lock::{Key, Owner, Period, Token};
use crate::output::busy::listed;
use crate::output::{Kind, Printer, What};
use crate::rules::schedule::Schedule;
use crate::rules::{Ask, Terms};
use crate::supervise::{self, Bond, Guard, Inherited, Leftovers, Limits, Orphaned, Plan};
pub use hold::{Holding, Voice};
use messages::{Messages, Subject, Under};
use notes::Notes;
use orphaned::Kept;
use report::RunReport;
pub use report_file::ReportFile;
use session::{Own, Runs, Session};
use std::fmt::Display;
use std::os::fd::RawFd;
use std::time::Duration;

mod ending;
mod hold;
pub(super) mod messages;
mod notes;
mod orphaned;
mod parent_hold;
mod relay;
pub mod report;
mod report_file;
mod session;

pub fn run(common: &Common, flags: &cli::Run, printer: &mut Printer) -> anyhow::Result<Exit> {
    let file = flags.report.as_deref().map(ReportFile::find).transpose()?;
    let mut report = RunReport::default();
    let result = Context::new(common, flags.how.key.first()).map_err(Into::into).and_then(|mut context| {
        *printer = context.printer.clone();
        context.say_default();
        report.store = Some(context.settings.store.to_string());
        guarded(&context, &context.settings.run(flags)?, &mut report, Work::Command)
    });
    if let Some(file) = file {
        file.write(&report, &flags.how.key, &result, printer);
    }
    result
}

/// What the lock is taken for.
pub enum Work {
    Command,
    /// A process that dlock did not start, or the program on stdin.
    Hold(Holding),
}

impl Work {
    /// The keys that are still to be taken, and the innermost hold of the parent job that has any
    /// of the other keys.
    fn missing_keys(
        &self,
        context: &Context,
        run: &Run,
        holds: &Holds,
    ) -> Result<(Vec<Key>, Option<OwnHold>), Error> {
        let unrun = self.subject().unrun;
        match self {
            Self::Command => {
                parent_hold::find_parent_hold(context, run, Until::from_now(run.wait), holds, unrun)
            }
            Self::Hold(_) => hold::keys(context, run, holds, unrun).map(|keys| (keys, None)),
        }
    }

    fn owner(&self, run: &Run) -> Owner {
        let owner = match self {
            Self::Command => {
                owner(run.label.clone().unwrap_or_else(|| command_line(&run.argv)), run.reason.clone())
            }
            Self::Hold(hold) => hold.owner(run),
        };
        Owner { ttl: Some(run.ttl.get()), once_per: run.once_per.map(Period::counts), ..owner }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Command => Subject::COMMAND,
            Self::Hold(hold) => hold.subject(),
        }
    }

    /// What the watcher watches in place of CMD.
    fn bond(&mut self) -> Option<Bond> {
        match self {
            Self::Command => None,
            Self::Hold(hold) => hold.bond(),
        }
    }
}

/// Takes the lock, and does `work` under it.
pub fn guarded(context: &Context, run: &Run, report: &mut RunReport, mut work: Work) -> anyhow::Result<Exit> {
    let subject = work.subject();
    let unstarted = |error| unstarted(error, subject.unrun);
    let internal = |what, error: &dyn Display| internal(what, error, subject.unrun);
    let holds = Holds::of_process();
    context.count_connections().map_err(|error| internal("cannot share memory with the guard", &error))?;
    let (keys, parent) = work.missing_keys(context, run, &holds).map_err(unstarted)?;
    report.nested = parent.is_some();
    let run = &match &parent {
        Some(_) => inside(context, run, &keys),
        None => run.clone(),
    };
    if let Some(parent) = parent.filter(|_| keys.is_empty()) {
        return run_inside(context, run, &parent, report);
    }
    let names = context.names(&keys)?;
    context.check_supported(&names, run.mode)?;
    let token = Token::random().map_err(|error| internal("cannot make a token", &error))?;
    if let Work::Command = work {
        holds.check_room(&context.settings, &keys, &token, subject.unrun)?;
    }
    let inherited = prepare(subject)?;
    let requirements = HoldRequirements { replicas: run.replicas, max_lease: run.max_lease };
    let mut store = context.open_for_hold(requirements).map_err(unstarted)?;
    let keep = store.prepare(&token).map_err(|error| unstarted(context.with_origin(error).into()))?;

    let messages = Messages::new(context, &keys, run.mode, Under::Own, subject);
    let schedule = Schedule::new(run.ttl, run.grace, context.settings.op_timeout);
    let plan =
        Plan { spare: schedule.spare(), margin: schedule.margin(), bond: work.bond(), ..plan(run, keep) };
    let group = plan.group;
    let owner = work.owner(run);
    let notes = Notes::new().map_err(|error| internal("cannot share memory with the guard", &error))?;
    let kept = Kept { names: &names, token: &token, owner: &owner, notes };
    let orphaned = orphaned::orphaned(&mut *store, kept, context, run, &messages);
    context.note_nothing_sent();
    let guard = fork(plan, &inherited, orphaned, subject)?;

    report.asked = Some(Moment::now());
    let until = Until::from_now(run.wait);
    let ask = ask(run, owner, token.clone(), until);
    let (connect_timeout, op_timeout) = (context.settings.connect_timeout, context.settings.op_timeout);
    let request = Request { names, ask, until, schedule, connect_timeout, op_timeout };
    let limits = guard.limits();
    let on_renewed = move |term_at, kill_at| limits.set(Limits { term_at, kill_at });
    let lease = Lease::new(store, request, on_renewed)
        .map_err(|error| internal("cannot ask for the lock", &error))?;
    let interrupt =
        inherited.interrupt(guard.fds()[0]).map_err(|error| internal("cannot watch for signals", &error))?;

    let own = Own { keys, holds, token, schedule, lease, notes, interrupt };
    let (runs, asked_by) = (Runs::Command, Asker::Operator);
    Session { context, run, work, inherited, group, guard, messages, report, runs, asked_by }.go(&own)
}

fn ask(run: &Run, owner: Owner, token: Token, until: Until) -> Ask {
    Ask {
        token,
        mode: run.mode,
        ttl: run.ttl.get(),
        min_hold: run.min_hold,
        owner,
        patience: until.patience(),
        terms: Terms {
            once_per: run.once_per.map(Period::counts),
            replaces: run.replaces,
            not_replaceable: run.not_replaceable,
            pause_on_failure: run.pause_on_failure,
            during_pause: run.during_pause,
            expect: run.expect,
        },
        waited: Duration::ZERO,
        has_waited: false,
    }
}

/// The same run inside a job that holds all of its keys but the `missing` ones: what is about a hold
/// of its own has no effect, which is said.
fn inside(context: &Context, run: &Run, missing: &[Key]) -> Run {
    let (min_hold, pause_on_failure, during_pause) = (Duration::ZERO, None, false);
    let mut inside = Run { min_hold, pause_on_failure, during_pause, ..run.clone() };
    inside.once_per.take_if(|_| missing.is_empty());
    inside.expect.take_if(|_| missing.is_empty());
    let options = [
        ("--min-hold", inside.min_hold != run.min_hold),
        ("--once-per", inside.once_per != run.once_per),
        // --once-per day implies it.
        ("--expect", inside.expect != run.expect && inside.once_per == run.once_per),
        ("--pause-on-failure", inside.pause_on_failure != run.pause_on_failure),
        ("--during-pause", run.during_pause),
    ];
    let options: Vec<&str> =
        options.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    if !options.is_empty() {
        let held: Vec<Key> = run.keys.iter().filter(|key| !missing.contains(key)).cloned().collect();
        let (keys, store) = (listed(&held), &context.settings.store);
        let text = format!(
            "the surrounding job holds {keys} in {store}, so this has no effect here: {}; give it to the outer 'dlock run'",
            options.join(", ")
        );
        context.printer.say(Kind::Note, What::Setting, &text);
    }
    inside
}

/// Runs the command under a hold of the parent job. The parent dlock renews that hold and gives it
/// back, and stops this dlock with the rest of its job if it is lost. So there is no lease here, no
/// limit from one, and nothing to give back.
fn run_inside(
    context: &Context,
    run: &Run,
    parent: &OwnHold,
    report: &mut RunReport,
) -> anyhow::Result<Exit> {
    let subject = Subject::COMMAND;
    let inherited = prepare(subject)?;
    let messages = Messages::new(context, &run.keys, run.mode, Under::Parent, subject);
    let plan = plan(run, Vec::new());
    let group = plan.group;
    let orphaned = |what| match what {
        Orphaned::Refused(process) => messages.refused(&process),
        Orphaned::Over { started: true, reason: Some(_), .. } => messages.orphaned_inside(),
        Orphaned::Over { .. } => {}
    };
    let mut guard = fork(plan, &inherited, orphaned, subject)?;
    messages.inside(parent);
    let OwnHold { held, proof } = parent;
    report.asked = Some(Moment::now());
    report.granted = Some((Moment::now(), proof.fence));
    report.slot = proof.slot;
    // DLOCK_HELD may name another fence; the one from the store is right.
    let held = Held { fence: proof.fence, ..held.clone() };
    let env = environment(&context.settings, &run.keys, &held, proof.slot, None);
    guard
        .start(&env, Limits::NEVER)
        .map_err(|error| internal("cannot start the command", &error, subject.unrun))?;
    report.started = true;

    let (work, runs, asked_by) = (Work::Command, Runs::Command, Asker::Operator);
    let mut session =
        Session { context, run, work, inherited, group, guard, messages, report, runs, asked_by };
    let over = session.supervise(None)?;
    session.guard.dismiss();
    Ok(over.exit)
}

/// The guard's plan. [`guarded`] adds what depends on the lease and on the work.
fn plan(run: &Run, keep: Vec<RawFd>) -> Plan {
    Plan {
        argv: run.argv.clone(),
        bond: None,
        group: supervise::group(),
        grace: run.grace,
        max_run: run.max_run,
        on_lost: run.on_lost,
        spare: Duration::ZERO,
        margin: Duration::MAX,
        leftovers: match run.keep_for {
            KeepFor::Command => Leftovers::Leave,
            KeepFor::Tree => Leftovers::Await,
        },
        keep,
    }
}

fn prepare(subject: Subject) -> anyhow::Result<Inherited> {
    supervise::prepare()
        .map_err(|error| internal("cannot prepare to supervise the job", &error, subject.unrun))
}

fn fork(
    plan: Plan,
    inherited: &Inherited,
    orphaned: impl FnMut(Orphaned),
    subject: Subject,
) -> anyhow::Result<Guard> {
    Guard::fork(plan, inherited, orphaned)
        .map_err(|error| internal("cannot make the guard", &error, subject.unrun))
}

/// Appends `unrun` to an error of the store.
fn unstarted(error: Error, unrun: &str) -> Error {
    match error {
        Error::Store(error) => Error::Store(error.map(|text| format!("{text}; {unrun}"))),
        other => other,
    }
}

fn internal(what: &str, error: &dyn Display, unrun: &str) -> anyhow::Error {
    Error::Internal(format!("{what}: {error}; {unrun}")).into()
}

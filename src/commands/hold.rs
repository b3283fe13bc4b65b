//! `dlock hold`: holds a lock for a process that dlock did not start, or for the program on stdin.
//! This module finds out what the lock is held for, and whether dlock goes to the background. The
//! hold itself is a run: commands/run/session.rs, with what differs in commands/run/hold.rs.

use super::context::Context;
use super::foreground::Signals;
use super::held::Holds;
use super::job_env::Changes;
use super::run::report::RunReport;
use super::run::{Holding, ReportFile, Voice, Work, guarded};
use crate::cli::{self, Common};
use crate::config::run::{Run, script_status};
use crate::error::{self, Error};
use crate::exit::{Ended, Exit, OnLost};
use crate::lock::Token;
use crate::output::acquired::{lines, shell};
use crate::output::busy::listed;
use crate::output::{self, Event, Kind, Printer, What};
use crate::shell::{cited, word};
use crate::store::net::interrupt;
use crate::supervise::{self, NoPin, Pin};
use crate::sys;
use crate::sys::named_file::{self, Fault};
use rustix::event::PollFlags;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

/// Longer than any wait for the lock.
const WHOLE_WAIT: Duration = Duration::from_secs(1 << 32);

pub fn hold(common: &Common, flags: &cli::hold::Hold, printer: &mut Printer) -> anyhow::Result<Exit> {
    let mut file = flags.report.as_deref().map(ReportFile::find).transpose()?;
    let mut report = RunReport::default();
    let result = reported(common, flags, printer, &mut report, &mut file);
    if let Some(file) = file {
        file.write(&report, &flags.how.key, &result, printer);
    }
    result
}

/// The hold. Takes the file of `--report` if the process in the background writes it.
fn reported(
    common: &Common,
    flags: &cli::hold::Hold,
    printer: &mut Printer,
    report: &mut RunReport,
    file: &mut Option<ReportFile>,
) -> anyhow::Result<Exit> {
    let process = flags.pid.map(pinned).transpose()?;
    if process.is_none() && !supervise::is_stdin_alive() {
        return Err(Error::Usage(
            "stdin is not a pipe, socket or terminal, so dlock cannot see when to give the lock back; give it one, or --pid PID; nothing is held"
                .into(),
        )
        .into());
    }
    let mut context = Context::new(common, flags.how.key.first())?;
    *printer = context.printer.clone();
    context.say_default();
    report.store = Some(context.settings.store.to_string());
    let run = context.settings.run(&flags.as_run())?;
    if let Some(process) = &process {
        warn_if_unstoppable(process, &context);
    }
    if flags.background {
        script_status(run.busy)?;
        if run.on_lost == OnLost::Warn && flags.log.is_none() && file.is_none() {
            let text = "nobody would hear of a loss with --on-lost warn --background: add --log FILE or --report FILE; nothing is held";
            return Err(Error::Usage(text.into()).into());
        }
        return in_background(&context, flags, &run, process, report, file);
    }
    let voice = if flags.json { Voice::Events } else { Voice::Silent };
    hold_lock(&context, &run, process, voice, flags.log.as_deref(), report)
}

/// Warns if the process could not be stopped when the lock is lost.
fn warn_if_unstoppable(process: &Pin, context: &Context) {
    let why = match process.pid() {
        1 => {
            "it is the first process of a system or container, whose end kills dlock, too, so that the lock stays until its lease ends; use 'exec dlock run' in its place, or name another process"
        }
        _ if !process.is_ours() => "it runs as another user; use 'sudo dlock hold …'",
        _ => return,
    };
    let text = format!("process {} cannot be stopped if the lock is lost: {why}", process.pid());
    context.printer.say(Kind::Warning, What::Unstoppable, &text);
}

fn hold_lock(
    context: &Context,
    run: &Run,
    process: Option<Pin>,
    voice: Voice,
    log: Option<&Path>,
    report: &mut RunReport,
) -> anyhow::Result<Exit> {
    let log = log.map(open_to_append).transpose()?;
    let holding = Holding::new(process, voice, log).map_err(cannot_make_process)?;
    match guarded(context, run, report, Work::Hold(holding))? {
        // The job of a hold is the watcher, so this is the watcher's status.
        Exit::Job(0) => Ok(Exit::Ok),
        Exit::Job(supervise::NOT_PRINTED) => {
            Err(Error::Output(io::Error::other("the lock is given back")).into())
        }
        exit => Ok(exit),
    }
}

fn pinned(pid: i32) -> Result<Pin, Error> {
    Pin::new(pid).map_err(|why| {
        Error::Usage(match why {
            NoPin::Gone => format!("--pid: there is no process {pid}"),
            NoPin::Thread => format!("--pid: {pid} is a thread; name its process"),
            NoPin::Unsupported(errno) => format!(
                "--pid: pidfd_open fails ({errno}), so another process could be mistaken for {pid}; nothing is held; it needs Linux 5.3, a free descriptor, and a sandbox that allows it"
            ),
        })
    })
}

/// Holds the lock in another process. Returns when it is held.
fn in_background(
    context: &Context,
    flags: &cli::hold::Hold,
    run: &Run,
    process: Option<Pin>,
    report: &mut RunReport,
    report_file: &mut Option<ReportFile>,
) -> anyhow::Result<Exit> {
    // What can fail must fail before the lock is asked for.
    check_room(context, flags, run)?;
    let mut file = flags.env_file.as_deref().map(open_to_append).transpose()?;
    let log = flags.log.as_deref().unwrap_or(Path::new("/dev/null"));
    let pid = process.as_ref().map(Pin::pid).unwrap_or_default();
    let child = supervise::detach(process.as_ref(), || {
        let result = hold_lock(context, run, process.clone(), Voice::Variables, Some(log), report);
        if let Some(file) = &report_file {
            file.write(report, &run.keys, &result, &context.printer);
        }
        ended(context, result)
    });
    let mut child = child.map_err(cannot_make_process)?;
    *report_file = None;
    let printed = match printed(&mut child.stdout)? {
        ControlFlow::Break(signal) => {
            child.tell_to_end();
            return Ok(Exit::Signal(signal));
        }
        ControlFlow::Continue(printed) => printed,
    };
    let Ok(changes) = serde_json::from_slice::<Changes>(&printed) else {
        return Ok(match child.status() {
            // The process that the lock is for ended before the grant.
            Some(Ended::Code(0)) => Exit::Busy(run.busy),
            Some(Ended::Code(code)) => Exit::Job(code),
            Some(Ended::Signal(signal)) => Exit::Signal(signal),
            None => Exit::Internal,
        });
    };
    let appended = file.as_mut().map_or(Ok(()), |file| file.write_all(lines(&changes).as_bytes()));
    let delivered = appended.map_err(Error::Output).and_then(|()| match flags.export {
        true => output::deliver(&shell(&changes)),
        false => Ok(()),
    });
    if let Err(error) = delivered {
        // The caller did not get the hold.
        child.end();
        return Err(error.into());
    }
    let release = match &*run.keys {
        [key, ..] if flags.export => {
            format!(", or {} gives it back", cited(&format!("dlock release {}", word(key.as_str()))))
        }
        _ => String::new(),
    };
    let (keys, store) = (listed(&run.keys), &context.settings.store);
    let rest = if flags.tree { " and what it has started" } else { "" };
    let text = format!("{keys} in {store} is held until process {pid}{rest} ends{release}");
    context.printer.say(Kind::Done, What::Granted, &text);
    Ok(Exit::Ok)
}

/// Refuses keys whose variables the script, if it wants them, could give to no command.
fn check_room(context: &Context, flags: &cli::hold::Hold, run: &Run) -> Result<(), Error> {
    if !flags.export && flags.env_file.is_none() {
        return Ok(());
    }
    let token = Token::random().map_err(|error| Error::Internal(format!("{error}; nothing is held")))?;
    Holds::of_process().check_room(&context.settings, &run.keys, &token, "nothing is held")
}

/// Says how the hold in the background ended, and returns its exit status.
fn ended(context: &Context, result: anyhow::Result<Exit>) -> u8 {
    let exit = result.unwrap_or_else(|error| {
        let exit = error::exit_of(&error);
        context.printer.say(Kind::Error, Event::of_failure(exit), &error::line(&error));
        exit
    });
    sys::kill_all_separate();
    if let Exit::Signal(signal) = exit {
        supervise::die_of(signal);
    }
    exit.code()
}

/// Reads a pipe to its end, or until a signal comes. After the end no signal ends this process before
/// it has told the caller of the hold.
fn printed(pipe: &mut File) -> anyhow::Result<ControlFlow<i32, Vec<u8>>> {
    let signals = Signals::take()?;
    let mut printed = Vec::new();
    let read = signals.or(|| Interruptible(pipe).read_to_end(&mut printed))?;
    Ok(match read {
        ControlFlow::Break(signal) => ControlFlow::Break(signal),
        ControlFlow::Continue(read) => {
            read.map_err(cannot_make_process)?;
            ControlFlow::Continue(printed)
        }
    })
}

/// A pipe; an interrupt ends the wait for it.
struct Interruptible<'a>(&'a mut File);

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        interrupt::wait(&*self.0, PollFlags::IN, WHOLE_WAIT)?;
        self.0.read(buffer)
    }
}

fn open_to_append(path: &Path) -> Result<File, Error> {
    let open = || {
        let mut file = named_file::open_to_append(path)?;
        // If the last line has no line end, the first new line would be joined to it.
        let (mut last, end) = ([b'\n'], file.metadata()?.len());
        if end > 0 && file.read_at(&mut last, end - 1).is_ok() && last != [b'\n'] {
            file.write_all(b"\n")?;
        }
        Ok(file)
    };
    open().map_err(|fault: Fault| {
        Error::Config(format!("cannot write to {}: {fault}; nothing is held", path.display()))
    })
}

fn cannot_make_process(error: io::Error) -> Error {
    Error::Internal(format!("cannot start a process that holds the lock: {error}; nothing is held"))
}

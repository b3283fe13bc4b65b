//! How is a lock held for something that dlock did not start? As `run` holds it; here is what comes before: what it is held
//! for, and whether dlock goes on in the background.

use super::context::Context;
use super::env::Changes;
use super::run::report::RunReport;
use super::run::{Holding, Voice, Work, guarded};
use crate::cli;
use crate::config::run::{KeepFor, Run};
use crate::error::{self, Error};
use crate::exit::{Ended, Exit};
use crate::output::acquired::{lines, shell};
use crate::output::busy::listed;
use crate::output::{self, Event, Kind, Printer, What};
use crate::shell::word;
use crate::supervise::{self, NoPin, Pin};
use crate::sys;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

/// `dlock hold`.
pub fn hold(flags: &cli::hold::Hold, printer: &mut Printer) -> anyhow::Result<Exit> {
    let process = flags.pid.map(pinned).transpose()?;
    if process.is_none() && !supervise::is_stdin_alive() {
        return Err(Error::Usage(
            "stdin is no pipe, socket or terminal, so nothing would keep the lock; give it one, or --pid PID"
                .into(),
        )
        .into());
    }
    let mut context = Context::new(&flags.common, flags.key.first())?;
    *printer = context.printer.clone();
    context.say_default();
    let run = Run { keep_for: KeepFor::Command, ..context.settings.run(&flags.as_run())? };
    if let Some(process) = &process {
        warn_of(process, &context);
    }
    if flags.background && run.busy == 0 {
        return Err(Error::Config(
            "busy-exit-code is 0 in the configuration, and a script would go on without the lock; add -E 75"
                .into(),
        )
        .into());
    }
    if flags.background {
        return in_background(&context, flags, &run, process);
    }
    let voice = if flags.json { Voice::Events } else { Voice::Silent };
    keep(&context, &run, process, voice)
}

/// Says what cannot be stopped if the lock is lost.
fn warn_of(process: &Pin, context: &Context) {
    let why = match process.pid() {
        1 => "is the first of this system or container, which nothing in it can kill; name another one",
        _ if !process.is_ours() => "runs as another user, so it cannot be stopped; 'sudo dlock hold …' could",
        _ => return,
    };
    let text = format!("if the lock is lost: process {} {why}", process.pid());
    context.printer.say(Kind::Warning, What::Unstoppable, &text);
}

fn keep(context: &Context, run: &Run, process: Option<Pin>, voice: Voice) -> anyhow::Result<Exit> {
    let holding = Holding::new(process, voice).map_err(unmade)?;
    match guarded(context, run, &mut RunReport::default(), Work::Hold(holding))? {
        // The watcher's.
        Exit::Job(0) => Ok(Exit::Ok),
        exit => Ok(exit),
    }
}

fn pinned(pid: i32) -> Result<Pin, Error> {
    Pin::new(pid).map_err(|why| {
        Error::Usage(match why {
            NoPin::Gone => format!("--pid: there is no process {pid}"),
            NoPin::Thread => format!("--pid: {pid} is a thread; name its process"),
            NoPin::Unsupported(errno) => format!(
                "--pid: this system has no pidfd ({errno}; Linux 5.3 has, a sandbox may forbid it), without which another \
                 process could be taken for {pid}"
            ),
        })
    })
}

/// Has another process hold the lock, and returns when it does.
fn in_background(
    context: &Context,
    flags: &cli::hold::Hold,
    run: &Run,
    process: Option<Pin>,
) -> anyhow::Result<Exit> {
    // What can fail fails before the lock is asked for.
    let mut file = flags.env_file.as_deref().map(open_to_append).transpose()?;
    let pid = process.as_ref().map(Pin::pid).unwrap_or_default();
    let child = supervise::detach(process.as_ref(), || {
        let exit = keep(context, run, process.clone(), Voice::Variables).unwrap_or_else(|error| {
            let exit = error::exit_of(&error);
            context.printer.say(Kind::Error, Event::of_failure(exit), &error::line(&error));
            exit
        });
        sys::kill_all_apart();
        if let Exit::Signal(signal) = exit {
            supervise::die_of(signal);
        }
        exit.code()
    });
    let child = child.map_err(unmade)?;
    let Ok(changes) = serde_json::from_slice::<Changes>(&child.said) else {
        return Ok(match child.status() {
            // Its process had ended before the lock was held.
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
        // Nobody knows of it.
        child.end();
        return Err(error.into());
    }
    context.printer.say(
        Kind::Done,
        What::Granted,
        &format!(
            "{} in {} is held until process {pid} ends{}",
            listed(&run.keys),
            context.settings.store,
            match &*run.keys {
                [key, ..] if flags.export =>
                    format!(", or 'dlock release {}' gives it back", word(key.as_str())),
                _ => String::new(),
            }
        ),
    );
    Ok(Exit::Ok)
}

fn open_to_append(path: &std::path::Path) -> Result<File, Error> {
    let open = || {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        // A last line without its end would swallow the first one of ours.
        let mut last = [b'\n'];
        if file.metadata()?.is_file() && file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
        Ok(file)
    };
    open().map_err(|error: std::io::Error| {
        Error::Config(format!("cannot write to {}: {error}; nothing is held", path.display()))
    })
}

fn unmade(error: std::io::Error) -> Error {
    Error::Internal(format!("cannot make a process for the hold: {error}; nothing is held"))
}

//! Dispatches to the subcommand: parses the command line, resolves the settings, runs the command,
//! and prints its error.

use crate::cli::usage::{self, Parsed};
use crate::cli::{Cli, Command};
use crate::error::{self, Error};
use crate::exit::Exit;
use crate::output::{self, Event, Kind, Printer, What};
use crate::supervise;
use crate::sys;
use context::Context;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;

pub mod acquire;
pub mod check;
pub mod complete;
pub mod completions;
pub mod context;
pub mod doctor;
mod fate;
mod foreground;
pub mod forget;
pub mod held;
pub mod history;
pub mod hold;
mod hold_ref;
mod job_env;
mod key_operands;
pub mod metrics;
mod owner;
mod password;
pub mod pause;
pub mod release;
pub mod renew;
pub mod run;
pub mod status;
mod stores;
mod token_file;
pub mod wait;
pub mod watch;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let exit = execute(&std::env::args_os().collect::<Vec<_>>());
    if let Exit::Signal(signal) = exit {
        supervise::die_of(signal);
    }
    ExitCode::from(exit.code())
}

/// Runs a command line, whose first word is the program's name, and prints its error.
pub fn execute(arguments: &[OsString]) -> Exit {
    let words = || arguments.iter().cloned();
    let evaluated = usage::is_evaluated(words());
    let mut printer = Printer::early(usage::log_format(words()));
    let exit = match usage::parse(words()) {
        Ok(Parsed::Print(_)) if evaluated && !std::io::stdout().is_terminal() => Err(Error::Usage(
            "with --export a shell would run this text as code; leave --export out to read it".into(),
        )
        .into()),
        Ok(Parsed::Print(text)) => output::print(&text).map(|()| Exit::Ok).map_err(Into::into),
        Ok(Parsed::Complete(question)) => complete::complete(&question).map_err(Into::into),
        Ok(Parsed::Command(cli)) => {
            printer = Printer::early(cli.common.log_format).about(cli.command.key());
            dispatch(&cli, &mut printer)
        }
        Err(line) => Err(Error::Usage(line).into()),
    };
    let exit = exit.unwrap_or_else(|error| {
        let exit = error::exit_of(&error);
        printer.say(Kind::Error, Event::of_failure(exit), &error::line(&error));
        exit
    });
    sys::kill_all_separate();
    if evaluated && exit != Exit::Ok {
        // The shell evaluates this in place of variables, and ends.
        let _said = output::print(&format!("exit {}\n", exit.code()));
    }
    exit
}

/// Runs the command. Sets `printer` to one with the resolved settings, which then prints an error.
fn dispatch(Cli { common, command }: &Cli, printer: &mut Printer) -> anyhow::Result<Exit> {
    let mut context = || {
        let context = Context::new(common, command.key())?;
        *printer = context.printer.clone();
        if let Some(text) = context.settings.misplaced().filter(|_| !matches!(command, Command::Acquire(_))) {
            printer.say(Kind::Warning, What::Setting, &text);
        }
        Ok::<_, Error>(context)
    };
    match command {
        Command::Run(flags) => run::run(common, flags, printer),
        Command::Hold(flags) => hold::hold(common, flags, printer),
        Command::Acquire(flags) => acquire::acquire(context()?, flags),
        Command::Completions(wanted) => Ok(completions::completions(wanted)?),
        Command::Status(flags) => status::status(&context()?, flags),
        Command::Renew(flags) => renew::renew(&context()?, flags, printer),
        Command::Check(flags) => check::check(&context()?, flags, printer),
        Command::Wait(flags) => wait::wait(&context()?, flags),
        Command::Pause(flags) => pause::pause(&context()?, flags),
        Command::Resume(flags) => pause::resume(&context()?, flags),
        Command::Forget(flags) => forget::forget(&context()?, flags),
        Command::History(flags) => history::history(&context()?, flags),
        Command::Doctor(flags) => doctor::doctor(&context()?, flags),
        Command::Release(flags) => release::release(&context()?, flags, printer),
        Command::Watch(flags) => watch::watch(&context()?, flags),
        Command::Metrics(flags) => metrics::metrics(&context()?, flags),
    }
}

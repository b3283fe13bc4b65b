//! Which command was asked for? Parses, resolves the settings, runs the command, says once what went wrong.

use crate::cli::Command;
use crate::cli::usage::{self, Parsed};
use crate::error::{self, Error};
use crate::exit::Exit;
use crate::job;
use crate::output::{self, Kind, Printer};
use context::Context;
use std::process::ExitCode;

pub mod acquire;
pub mod check;
mod claim;
pub mod complete;
pub mod completions;
mod context;
pub mod doctor;
mod env;
mod foreground;
pub mod forget;
pub mod held;
pub mod history;
pub mod metrics;
mod owner;
pub mod pause;
pub mod release;
pub mod renew;
pub mod run;
pub mod status;
mod stores;
mod token_file;
pub mod wait;
mod wanted;
pub mod watch;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let evaluated = usage::is_evaluated(std::env::args_os());
    let (exit, printer) = match usage::parse(std::env::args_os()) {
        Ok(Parsed::Print(text)) => {
            (output::print(&text).map(|()| Exit::Ok).map_err(Into::into), Printer::early(None))
        }
        Ok(Parsed::Complete(question)) => {
            (complete::complete(&question).map_err(Into::into), Printer::early(None))
        }
        Ok(Parsed::Command(command)) => {
            (dispatch(&command), Printer::early(Some(command.common())).about(command.key()))
        }
        Err(line) => (Err(Error::Usage(line).into()), Printer::early(None)),
    };
    let exit = exit.unwrap_or_else(|error| {
        printer.say(Kind::Error, &error::line(&error));
        error::exit_of(&error)
    });
    if evaluated && exit != Exit::Ok {
        // In place of variables; `set -e` then stops the shell.
        let _said = output::print(&format!("(exit {})\n", exit.code()));
    }
    if let Exit::Signal(signal) = exit {
        job::die_of(signal);
    }
    ExitCode::from(exit.code())
}

fn dispatch(command: &Command) -> anyhow::Result<Exit> {
    let context = || Context::new(command.common(), command.key());
    match command {
        Command::Run(flags) => run::run(flags),
        Command::Acquire(flags) => acquire::acquire(context()?, flags),
        Command::Completions(wanted) => Ok(completions::completions(wanted)?),
        Command::Status(flags) => status::status(&context()?, flags),
        Command::Renew(flags) => renew::renew(&context()?, flags),
        Command::Check(flags) => check::check(&context()?, flags),
        Command::Wait(flags) => wait::wait(&context()?, flags),
        Command::Pause(flags) => pause::pause(&context()?, flags),
        Command::Resume(flags) => pause::resume(&context()?, flags),
        Command::Forget(flags) => forget::forget(&context()?, flags),
        Command::History(flags) => history::history(&context()?, flags),
        Command::Doctor(flags) => doctor::doctor(&context()?, flags),
        Command::Release(flags) => release::release(&context()?, flags),
        Command::Watch(flags) => watch::watch(&context()?, flags),
        Command::Metrics(flags) => metrics::metrics(&context()?, flags),
    }
}

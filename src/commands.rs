//! Which command was asked for? Parses, resolves the settings, runs the command, says once what went wrong.

use crate::cli::Command;
use crate::cli::usage::{self, Parsed};
use crate::config::{Settings, Surroundings};
use crate::error::{self, Error};
use crate::exit::Exit;
use crate::output::{self, Kind, Printer};
use std::process::ExitCode;

pub mod completions;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let exit = match usage::parse(std::env::args_os()) {
        Ok(Parsed::Print(text)) => output::print(&text).map(|()| Exit::Ok).map_err(Into::into),
        Ok(Parsed::Command(command)) => dispatch(&command),
        Err(line) => Err(Error::Usage(line).into()),
    };
    let exit = exit.unwrap_or_else(|error| {
        Printer::early(None).say(Kind::Error, &error::line(&error));
        error::exit_of(&error)
    });
    ExitCode::from(exit.code())
}

fn dispatch(command: &Command) -> anyhow::Result<Exit> {
    let common = match command {
        Command::Run(run) => &run.common,
        Command::Status(status) => &status.common,
        Command::Release(release) => &release.common,
        Command::Completions(completions) => &completions.common,
    };
    let settings = Settings::resolve(common, &Surroundings::of_process())?;
    let printer = Printer::new(&settings);
    for warning in &settings.warnings {
        printer.say(Kind::Warning, warning);
    }
    match command {
        Command::Completions(wanted) => Ok(completions::completions(wanted)?),
        Command::Run(run) => {
            printer.say(Kind::Note, &format!("{:?}", settings.run(run)?));
            Err(Error::Internal("not built yet".into()).into())
        }
        _ => Err(Error::Internal("not built yet".into()).into()),
    }
}

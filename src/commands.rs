//! Which command was asked for? Parses, resolves the settings, runs the command, says once what went wrong.

use crate::cli::usage::{self, Parsed};
use crate::cli::{Command, Common};
use crate::config::url::Place;
use crate::config::{Settings, Surroundings};
use crate::error::{self, Error};
use crate::exit::Exit;
use crate::job;
use crate::lock::{Key, Name, Names, Owner};
use crate::output::{self, Kind, Printer};
use crate::store::file::FileStore;
use crate::store::redis::{Address, RedisStore, Target};
use crate::store::{self, Store};
use std::process::ExitCode;

pub mod completions;
pub mod held;
mod owner;
pub mod release;
pub mod run;
pub mod status;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let (exit, printer) = match usage::parse(std::env::args_os()) {
        Ok(Parsed::Print(text)) => {
            (output::print(&text).map(|()| Exit::Ok).map_err(Into::into), Printer::early(None))
        }
        Ok(Parsed::Command(command)) => {
            let printer = Printer::early(Some(command.common()));
            let printer = match command.key() {
                Some(key) => printer.about(key.as_str()),
                None => printer,
            };
            (dispatch(&command), printer)
        }
        Err(line) => (Err(Error::Usage(line).into()), Printer::early(None)),
    };
    let exit = exit.unwrap_or_else(|error| {
        printer.say(Kind::Error, &error::line(&error));
        error::exit_of(&error)
    });
    if let Exit::Signal(signal) = exit {
        job::die_of(signal);
    }
    ExitCode::from(exit.code())
}

fn dispatch(command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Run(flags) => run::run(flags),
        Command::Status(flags) => {
            let (settings, printer) = settle(&flags.common)?;
            status::status(&settings, flags, &printer)
        }
        Command::Release(flags) => {
            let (settings, printer) = settle(&flags.common)?;
            release::release(&settings, flags, &printer)
        }
        Command::Completions(wanted) => Ok(completions::completions(wanted)?),
    }
}

/// The settings that every command has, and who prints; what is to be said about the settings is said.
fn settle(common: &Common) -> anyhow::Result<(Settings, Printer)> {
    let settings = Settings::resolve(common, &Surroundings::of_process())?;
    let printer = Printer::new(&settings);
    for warning in &settings.warnings {
        printer.say(Kind::Warning, warning);
    }
    for remark in &settings.remarks {
        printer.say(Kind::Detail, remark);
    }
    Ok((settings, printer))
}

/// The store that the settings name. A server is not spoken to yet.
fn open(settings: &Settings) -> Result<Box<dyn Store>, Error> {
    let shown = settings.store.to_string();
    let (address, database) = match &settings.store.place {
        Place::Tcp { host, port, db } => (Address::Tcp { host: host.clone(), port: *port }, *db),
        Place::Unix { path, db } => (Address::Unix(path.clone()), *db),
        Place::File { dir } => {
            let store = FileStore::open(dir, &shown);
            return Ok(Box::new(store.map_err(|error| located(settings, error))?));
        }
    };
    let credentials = settings.store.credentials.as_ref();
    Ok(Box::new(RedisStore::new(Target {
        address,
        database: u32::from(database),
        username: credentials.and_then(|credentials| credentials.username.clone()),
        password: credentials.map(|credentials| credentials.password.expose().to_owned()),
        shown,
        connect_timeout: settings.connect_timeout,
        op_timeout: settings.op_timeout,
    })))
}

/// An error of the store, with where the store was set.
fn located(settings: &Settings, error: store::Error) -> Error {
    error.map(|text| format!("{text} ({})", settings.store.origin())).into()
}

/// The full name of a lock.
fn name(settings: &Settings, key: &Key) -> Result<Name, Error> {
    Name::new(&settings.prefix, key).map_err(Error::Usage)
}

/// The full names of locks that one hold takes together.
fn names(settings: &Settings, keys: &[Key]) -> Result<Names, Error> {
    let mut names = keys.iter().map(|key| name(settings, key)).collect::<Result<Vec<_>, _>>()?.into_iter();
    let first = names.next().ok_or_else(|| Error::Usage("a key is needed".into()))?;
    Ok(Names::new(first, names))
}

/// This process, as others see it in the store.
fn operator(command: &str) -> Owner {
    owner::owner(command.into(), None)
}

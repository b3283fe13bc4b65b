//! Which command was asked for? Parses, resolves the settings, runs the command, says once what went wrong.

use crate::cli::usage::{self, Parsed};
use crate::cli::{Command, Common};
use crate::clock::{self, Moment};
use crate::config::reach::PasswordAt;
use crate::config::{Settings, Source, Surroundings};
use crate::error::{self, Error};
use crate::exit::Exit;
use crate::job;
use crate::law::Proof;
use crate::lease::{RIDE_OUT_PAUSE, Wait};
use crate::lock::{Key, Name, Names, Owner};
use crate::output::busy::listed;
use crate::output::{self, Kind, Printer};
use crate::store::{self, Store};
use held::{Held, Holds, Scope};
use std::process::ExitCode;
use stores::open;

pub mod acquire;
mod attend;
pub mod check;
pub mod complete;
pub mod completions;
pub mod doctor;
pub mod held;
pub mod history;
mod lookout;
pub mod metrics;
mod owner;
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
    if evaluated && exit != Exit::Ok {
        let _said = output::print(&refusal(exit));
    }
    if let Exit::Signal(signal) = exit {
        job::die_of(signal);
    }
    ExitCode::from(exit.code())
}

fn dispatch(command: &Command) -> anyhow::Result<Exit> {
    let ready = || {
        let (settings, printer) = settle(command.common())?;
        anyhow::Ok(match command.key() {
            Some(key) => (settings, printer.about(key.as_str())),
            None => (settings, printer),
        })
    };
    match command {
        Command::Run(flags) => run::run(flags),
        Command::Acquire(flags) => acquire::acquire(flags),
        Command::Completions(wanted) => Ok(completions::completions(wanted)?),
        Command::Status(flags) => {
            ready().and_then(|(settings, printer)| status::status(&settings, flags, &printer))
        }
        Command::Renew(flags) => {
            ready().and_then(|(settings, printer)| renew::renew(&settings, flags, &printer))
        }
        Command::Check(flags) => {
            ready().and_then(|(settings, printer)| check::check(&settings, flags, &printer))
        }
        Command::Wait(flags) => {
            ready().and_then(|(settings, printer)| wait::wait(&settings, flags, &printer))
        }
        Command::History(flags) => ready().and_then(|(settings, _)| history::history(&settings, flags)),
        Command::Doctor(flags) => ready().and_then(|(settings, _)| doctor::doctor(&settings, flags)),
        Command::Release(flags) => {
            ready().and_then(|(settings, printer)| release::release(&settings, flags, &printer))
        }
        Command::Watch(flags) => {
            ready().and_then(|(settings, printer)| watch::watch(&settings, flags, &printer))
        }
        Command::Metrics(flags) => {
            ready().and_then(|(settings, printer)| metrics::metrics(&settings, flags, &printer))
        }
    }
}

/// What a shell that evaluates the output of `acquire --export` gets in place of variables: the status as its own, so that
/// `set -e` stops it.
fn refusal(exit: Exit) -> String {
    format!("(exit {})\n", exit.code())
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

/// Says that nobody named the store in which something is about to be locked, and how to.
fn say_default(settings: &mut Settings, printer: &Printer) {
    if settings.store.source == Source::Default {
        let text = format!(
            "nothing names a store, so it is {}, which on another machine is another server; --store, DLOCK_STORE or \
             store = \"URL\" in /etc/dlock.toml names one, also this one",
            settings.store
        );
        printer.say(Kind::Warning, &text);
        settings.store.default_is_said = true;
    }
}

/// An error of the store, with where the store was set.
fn with_origin(settings: &Settings, error: store::Error) -> store::Error {
    let store = &settings.store;
    let is_withheld = |held: &Held| held.access.password == PasswordAt::Elsewhere;
    let hint = match &error {
        store::Error::Denied(_)
            if store.credentials.is_none() && Holds::of_process().here(settings).any(is_withheld) =>
        {
            "; the dlock around this job was told the password in a way that does not reach in here: give it by \
             --password-file out there"
        }
        _ => "",
    };
    error.map(|text| format!("{text} ({}){hint}", store.origin()))
}

/// The same, as the error that ends a command.
fn located(settings: &Settings, error: store::Error) -> Error {
    with_origin(settings, error).into()
}

/// The same, of something that was asked of these locks, and what is unsure now.
fn unsure(settings: &Settings, error: store::Error, what: &str) -> Error {
    with_origin(settings, error).map(|text| format!("{text}; {what}")).into()
}

/// Asks again while the store cannot be reached, as long as one would wait for the lock; `trouble` hears of it once.
fn riding_out<T>(
    wait: Wait,
    mut trouble: impl FnMut(&store::Error),
    mut ask: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut troubled = false;
    loop {
        match ask() {
            Err(Error::Store(error)) if wait.rides_out(&error) && !wait.is_over() => {
                if !std::mem::replace(&mut troubled, true) {
                    trouble(&error);
                }
                clock::sleep_until(Moment::now().after(RIDE_OUT_PAUSE));
            }
            answer => return answer,
        }
    }
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

/// What the store says of a hold that DLOCK_HELD claims; nothing if it is none any more.
fn prove(settings: &Settings, store: &mut dyn Store, held: &Held) -> Result<Option<Proof>, Error> {
    let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
    let names = held.names().map_err(Error::Usage)?;
    store.prove(&names, &held.token, by).map_err(|error| {
        unsure(settings, error, &format!("whether {} is still held is not known", listed(&held.keys)))
    })
}

/// DLOCK_HELD knows no such hold.
fn no_hold(settings: &Settings, scope: Scope<'_>, holds: &Holds, key: Option<&Key>) -> Error {
    let of = key.map(|key| format!(" of {key}")).unwrap_or_default();
    let others: Vec<String> =
        holds.inside_out().map(|held| format!("{} in {}", listed(&held.keys), held.store)).collect();
    let next = if others.is_empty() {
        "'dlock run' and 'dlock acquire --export' set DLOCK_HELD".into()
    } else if scope.is_open() || holds.here(settings).next().is_some() {
        format!("it holds {}", others.join(", "))
    } else {
        format!("it holds {}; --store and --prefix have to name the same place", others.join(", "))
    };
    let place = if scope.is_open() { String::new() } else { format!(" in {}", settings.store) };
    Error::NotHeld(format!("this process runs under no lock{of}{place}: {next}"))
}

/// This process, as others see it in the store.
fn operator(command: &str) -> Owner {
    owner::owner(command.into(), None)
}

//! How does a hold end before its time? A script gives back its own; whoever wants somebody's asks for it (`ask`), or takes
//! it away (`force`). Which of the three is meant is decided here: one's own hold comes first, so that a script whose lock
//! has gone to another never stops that one's job.

use super::held::{By, Held, Holds, Scope};
use super::{name, open, prove, token_file, unsure};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::{End, Left, Ran};
use crate::lock::{Key, Names, Token};
use crate::output::busy::listed;
use crate::output::time::span;
use crate::output::{Kind, Printer};
use crate::shell::word;

mod ask;
mod force;

/// `dlock release`.
pub fn release(settings: &Settings, flags: &cli::Release, printer: &Printer) -> anyhow::Result<Exit> {
    let key = &flags.key.0;
    if let Some(file) = &flags.token_file {
        let (shown, name) = (format!("{key} in {}", settings.store), name(settings, key)?);
        return give_back(settings, &name.into(), &token_file::read(file)?, &shown, printer);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(settings, &flags.common);
    match holds.meant(scope, key) {
        Some(held) if flags.force => {
            let settings = scope.settings(held)?;
            force::force(&settings, &name(&settings, key)?, flags, printer)
        }
        Some(held) => own(&scope.settings(held)?, held, key, printer),
        None if flags.force => force::force(settings, &name(settings, key)?, flags, printer),
        None => ask::ask(settings, &name(settings, key)?, flags, printer),
    }
}

/// A hold that this process has, by what DLOCK_HELD says.
fn own(settings: &Settings, held: &Held, key: &Key, printer: &Printer) -> anyhow::Result<Exit> {
    let shown = format!("{} in {}", listed(&held.keys), settings.store);
    if held.by == By::Acquire {
        let names = held.names().map_err(Error::Usage)?;
        return give_back(settings, &names, &held.token, &shown, printer);
    }
    let mut store = open(settings)?;
    Err(match prove(settings, &mut *store, held)? {
        Some(_) => Error::Usage(format!(
            "{shown} is held by the 'dlock run' around this process, and ends with its job; --force takes it away"
        )),
        None => Error::NotHeld(format!(
            "{shown} is not held any more by the 'dlock run' around this process; 'env -u DLOCK_HELD dlock release {}' asks \
             whoever holds it now",
            word(key.as_str())
        )),
    }
    .into())
}

fn give_back(
    settings: &Settings,
    names: &Names,
    token: &Token,
    shown: &str,
    printer: &Printer,
) -> anyhow::Result<Exit> {
    let end = End { ran: Ran::Yes, job: None };
    let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
    let mut store = open(settings)?;
    let left = store.leave(names, token, &end, by);
    let unknown = format!("whether {shown} is given back is not known; if not, its lease ends by itself");
    let line = match left.map_err(|error| unsure(settings, error, &unknown))? {
        Left::Released { cooling } if cooling.is_zero() => format!("{shown} is given back"),
        Left::Released { cooling } => {
            format!("{shown} is given back; its --min-hold keeps it for {} more", span(cooling))
        }
        Left::Dequeued => format!("the place in the queue for {shown} is given up"),
        Left::Already => format!("{shown} was given back before"),
        Left::NotHeld => {
            return Err(Error::NotHeld(format!(
                "the token holds nothing: {shown} is not held by it (any more); 'dlock status' shows who has it"
            ))
            .into());
        }
    };
    printer.say(Kind::Done, &line);
    Ok(Exit::Ok)
}

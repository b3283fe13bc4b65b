//! How does a hold end before its time? A script gives back its own; whoever wants somebody's asks for it (`ask`), or takes
//! it away (`force`). Which of the three is meant is decided here: one's own hold comes first, so that a script whose lock
//! has gone to another never stops that one's job.

use super::context::Context;
use super::held::{By, Held, Holds, Scope};
use super::token_file;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::{End, Left, Ran};
use crate::lock::{Key, Names, Token};
use crate::output::Kind;
use crate::output::busy::listed;
use crate::output::time::span;
use crate::shell::word;

mod ask;
mod force;

pub fn release(context: &Context, flags: &cli::Release) -> anyhow::Result<Exit> {
    let key = &flags.key.0;
    if let Some(file) = &flags.token_file {
        let (shown, name) = (format!("{key} in {}", context.settings.store), context.name(key)?);
        return give_back(context, &name.into(), &token_file::read(file)?, &shown);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(&context.settings, &flags.common);
    match holds.meant(scope, key) {
        Some(held) if flags.force => {
            let context = context.at(scope.settings(held)?);
            force::force(&context, &context.name(key)?, flags)
        }
        Some(held) => own(&context.at(scope.settings(held)?), held, key),
        None if flags.force => force::force(context, &context.name(key)?, flags),
        None => ask::ask(context, &context.name(key)?, flags),
    }
}

/// A hold that this process has, by what DLOCK_HELD says.
fn own(context: &Context, held: &Held, key: &Key) -> anyhow::Result<Exit> {
    let shown = format!("{} in {}", listed(&held.keys), context.settings.store);
    if held.by == By::Acquire {
        let names = held.names().map_err(Error::Usage)?;
        return give_back(context, &names, &held.token, &shown);
    }
    Err(match context.verify(&mut *context.open()?, held)? {
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

fn give_back(context: &Context, names: &Names, token: &Token, shown: &str) -> anyhow::Result<Exit> {
    let end = End { ran: Ran::Yes, job: None };
    let left = context.open()?.leave(names, token, &end, context.deadline());
    let unknown = format!("whether {shown} is given back is not known; if not, its lease ends by itself");
    let line = match left.map_err(|error| context.unsure(error, &unknown))? {
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
    context.printer.say(Kind::Done, &line);
    Ok(Exit::Ok)
}

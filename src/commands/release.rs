//! How does a hold end before its time? A script gives back its own; whoever wants somebody's asks for it (`ask`), or takes
//! it away (`force`). Which of the three is meant is decided here: one's own hold comes first, so that a script whose lock
//! has gone to another never stops that one's job.

use super::claim::Claim;
use super::context::Context;
use super::held::{By, Holds, Scope};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::{End, Left, Ran};
use crate::lock::Key;
use crate::output::Kind;
use crate::output::time::span;
use crate::shell::word;

mod ask;
mod force;

pub fn release(context: &Context, flags: &cli::Release) -> anyhow::Result<Exit> {
    let key = &flags.key.0;
    if let Some(file) = &flags.token_file {
        return give_back(&Claim::of_token(context, key, file)?);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(&context.settings, &flags.common);
    match holds.meant(scope, key) {
        Some(held) if flags.force => {
            let context = context.at(scope.settings(held)?);
            force::force(&context, &context.name(key)?, flags)
        }
        Some(held) => own(&Claim::of_held(context.at(scope.settings(held)?), held)?, key),
        None if flags.force => force::force(context, &context.name(key)?, flags),
        None => ask::ask(context, &context.name(key)?, flags),
    }
}

/// A hold that this process has, by what DLOCK_HELD says.
fn own(claim: &Claim, key: &Key) -> anyhow::Result<Exit> {
    if claim.by == By::Acquire {
        return give_back(claim);
    }
    let shown = claim.place();
    Err(match claim.verify()? {
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

fn give_back(claim: &Claim) -> anyhow::Result<Exit> {
    let Claim { context, names, token, .. } = claim;
    let (shown, end) = (claim.place(), End { ran: Ran::Yes, job: None });
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

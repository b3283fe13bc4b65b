//! How does a hold end before its time? A script gives back its own; whoever wants somebody's asks for it (`ask`), or takes
//! it away (`force`). Which of the three is meant is decided here: one's own hold comes first, so that a script whose lock
//! has gone to another never stops that one's job.

use super::claim::Claim;
use super::context::Context;
use super::held::{By, Holds, Keeper, Scope};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Key, Pattern};
use crate::output::time::span;
use crate::output::{Kind, Printer, What};
use crate::rules::{End, Left, Ran};
use crate::shell::word;

mod ask;
mod force;

pub fn release(context: &Context, flags: &cli::Release, printer: &mut Printer) -> anyhow::Result<Exit> {
    let given = &flags.key.0;
    let (holds, scope) = (Holds::of_process(), Scope::new(&context.settings, &flags.common));
    // A script gives back its own lock by its name as it is, also where that has a star in it.
    let is_own = flags.token_file.is_some() || holds.meant(scope, given).is_some();
    if !is_own && Pattern::of(given).is_some() {
        return Err(Error::Usage(format!(
            "{given} is a pattern, and release takes one key: 'dlock status {}' shows which there are; \\* and \\? stand for the \
             characters themselves",
            word(given.as_str())
        ))
        .into());
    }
    let key = &if is_own { given.clone() } else { given.unescaped() };
    if let Some(file) = &flags.token_file {
        return give_back(&Claim::of_token(context, key, file)?);
    }
    match holds.meant(scope, key) {
        Some(held) if flags.force => {
            let context = context.at(scope.settings(held)?);
            *printer = context.printer.clone();
            force::force(&context, &context.name(key)?, flags)
        }
        Some(held) => {
            let claim = Claim::of_held(context.at(scope.settings(held)?), held)?;
            *printer = claim.context.printer.clone();
            own(&claim, key)
        }
        None if flags.force => force::force(context, &context.name(key)?, flags),
        None => ask::ask(context, &context.name(key)?, flags),
    }
}

/// A hold that this process has, by what DLOCK_HELD says.
fn own(claim: &Claim, key: &Key) -> anyhow::Result<Exit> {
    match claim.by {
        By::Acquire => return give_back(claim),
        By::Hold => return end_hold(claim),
        By::Run => {}
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

/// The `dlock hold` that keeps it is told, if it runs here: one that only heard of it from the store would take it for a loss
/// while the store is away.
fn end_hold(claim: &Claim) -> anyhow::Result<Exit> {
    if claim.verify()?.is_some()
        && let Some(keeper) = claim.keeper.and_then(Keeper::find)
        && keeper.end(claim.context.deadline())
        && claim.verify()?.is_none()
    {
        claim.context.printer.say(Kind::Done, What::Released, &format!("{} is given back", claim.place()));
        return Ok(Exit::Ok);
    }
    give_back(claim)
}

fn give_back(claim: &Claim) -> anyhow::Result<Exit> {
    let Claim { context, names, token, .. } = claim;
    let (shown, end) = (claim.place(), End { ran: Ran::Yes, job: None, once_per: false });
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
    context.printer.say(Kind::Done, What::Released, &line);
    Ok(Exit::Ok)
}

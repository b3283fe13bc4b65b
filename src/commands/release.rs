//! `dlock release`: a script gives back its own hold, an operator asks a holder to end (`ask`) or
//! takes the lock away (`force`). The caller's own hold comes first, so that a script whose lock
//! has passed to another never stops that holder's job.

use super::context::Context;
use super::held::{By, HoldProcess, Holds};
use super::hold_ref::{self, HoldRef};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Key, Pattern};
use crate::output::time::span;
use crate::output::{Kind, Printer, What};
use crate::rules::{End, Left, Ran};
use crate::shell::{cited, word};

mod ask;
mod force;

pub fn release(context: &Context, flags: &cli::Release, printer: &mut Printer) -> anyhow::Result<Exit> {
    let given = flags.key.as_ref().ok_or_else(|| Error::Usage("release needs KEY".into()))?;
    let (holds, settings) = (Holds::of_process(), &context.settings);
    // A script gives back its own lock by its exact name, even if that contains a star.
    let is_own = flags.token_file.is_some() || holds.inside_out().any(|held| held.has(given));
    if !is_own && Pattern::of(given).is_some() {
        return Err(Error::Usage(format!(
            "{given} is a pattern, and release takes one key: {} shows the keys that match; write \\* or \\? for the character itself",
            cited(&format!("dlock status {}", word(given.as_str())))
        ))
        .into());
    }
    let key = &if is_own { given.clone() } else { given.unescaped() };
    if let Some(file) = &flags.token_file {
        return give_back(&HoldRef::of_token(context, key, file)?);
    }
    let Some(held) = hold_ref::find(context, &holds, key)? else {
        let name = context.name(key)?;
        return if flags.force {
            force::force(context, &name, flags)
        } else {
            ask::ask(context, &name, flags)
        };
    };
    let there = context.at(held.settings(settings)?);
    *printer = there.printer.clone();
    if !flags.force {
        return own(&HoldRef::new(there, held.clone())?, key);
    }
    // The same lock may have another prefix there.
    let here = context.name(key).ok().filter(|name| held.has_lock(name));
    let name = here.map_or_else(|| there.name(key), Ok)?;
    force::force(&there, &name, flags)
}

/// Handles a hold that this process has according to DLOCK_HELD.
fn own(claim: &HoldRef, key: &Key) -> anyhow::Result<Exit> {
    match claim.held.by {
        By::Acquire => return give_back(claim),
        By::Hold => return end_hold(claim),
        By::Run => {}
    }
    let shown = claim.place();
    Err(match claim.verify()? {
        Some(_) => Error::Usage(format!(
            "{shown} is held by the 'dlock run' around this process, which gives it back when its job ends; --force takes it away"
        )),
        None => Error::NotHeld(format!(
            "{shown} is not held any more by the 'dlock run' around this process; 'env -u DLOCK_HELD dlock release {}' asks the present holder",
            word(key.as_str())
        )),
    }
    .into())
}

/// Ends the `dlock hold` process that has this hold, if it runs on this machine. With a release in
/// the store alone, that process would report a loss if it could not ask the store what had
/// happened.
fn end_hold(claim: &HoldRef) -> anyhow::Result<Exit> {
    if claim.verify()?.is_some()
        && let Some(process) = claim.held.process.and_then(HoldProcess::find)
        && process.end(claim.context.deadline())
        && claim.verify()?.is_none()
    {
        claim.context.printer.say(Kind::Done, What::Released, &format!("{} is given back", claim.place()));
        return Ok(Exit::Ok);
    }
    give_back(claim)
}

fn give_back(claim: &HoldRef) -> anyhow::Result<Exit> {
    let HoldRef { context, names, held } = claim;
    let (shown, end) = (
        claim.place(),
        End { ran: Ran::Yes, job: None, once_per: false, fence: held.known_fence(), pause: None },
    );
    let left = context.open()?.leave(names, &held.token, &end, context.deadline());
    let unknown = format!("it is unknown whether {shown} was given back; if not, its lease ends by itself");
    let line = match left.map_err(|error| context.unsure(error, &unknown))? {
        Left::Released { cooling } if cooling.is_zero() => format!("{shown} is given back"),
        Left::Released { cooling } => {
            format!("{shown} is given back; its --min-hold keeps it for {} more", span(cooling))
        }
        Left::Dequeued => format!("left the queue for {shown}"),
        Left::Already => format!("{shown} was already given back"),
        Left::NotHeld => {
            return Err(Error::NotHeld(format!(
                "{shown} is not held by this token (any more); 'dlock status' shows the holder"
            ))
            .into());
        }
    };
    context.printer.say(Kind::Done, What::Released, &line);
    Ok(Exit::Ok)
}

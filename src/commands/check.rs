//! `dlock check`: asks the store once whether the lock that this process runs under is still held,
//! right before an action that must not run twice. Renews nothing.

use super::context::Context;
use super::fate::person;
use super::held::Holds;
use super::hold_ref::HoldRef;
use crate::cli;
use crate::exit::Exit;
use crate::output::time::span;
use crate::output::{Event, Kind, Printer, What};

pub fn check(context: &Context, flags: &cli::check::Check, printer: &mut Printer) -> anyhow::Result<Exit> {
    let (key, file) = (flags.key.as_ref(), flags.token_file.as_deref());
    let claim = HoldRef::meant(context, key, file, Holds::current)?;
    *printer = claim.context.printer.clone();
    let proof = claim.verify()?.ok_or_else(|| claim.is_over())?;
    let held = format!("{} is held, for {} more", claim.place(), span(proof.lease));
    match &proof.asked {
        Some(_) => {
            let by = proof.asked.as_ref();
            let text = format!("{held}, but {} asks for it back: end soon", person(by));
            printer.say(Kind::Note, Event::from(What::Asked).by(by), &text);
        }
        None => printer.say(Kind::Detail, What::Held, &held),
    }
    Ok(Exit::Ok)
}

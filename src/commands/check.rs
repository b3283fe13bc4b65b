//! Is the lock that this process runs under still held? One question to the store, for use right before a step that must
//! not be done twice. Renews nothing.

use super::claim::Claim;
use super::context::Context;
use super::held::Holds;
use crate::cli;
use crate::exit::Exit;
use crate::output::Kind;
use crate::output::time::span;

pub fn check(context: &Context, flags: &cli::check::Check) -> anyhow::Result<Exit> {
    let (key, file) = (flags.key.as_ref(), flags.token_file.as_deref());
    let claim = Claim::meant(context, &flags.common, key, file, Holds::current)?;
    let proof = claim.verify()?.ok_or_else(|| claim.is_over())?;
    let text = format!("{} is held, for {} more", claim.place(), span(proof.lease));
    context.printer.say(Kind::Detail, &text);
    Ok(Exit::Ok)
}

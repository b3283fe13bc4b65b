//! Is the lock that this process runs under still held? One question to the store, for use right before a step that must
//! not be done twice. Renews nothing.

use super::context::Context;
use super::held::{Holds, Scope};
use super::token_file;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::Proof;
use crate::output::Kind;
use crate::output::busy::listed;
use crate::output::time::span;

pub fn check(context: &Context, flags: &cli::check::Check) -> anyhow::Result<Exit> {
    if let (Some(file), Some(key)) = (&flags.token_file, &flags.key) {
        let token = token_file::read(file)?;
        let proof = context.open()?.prove(&context.name(key)?.into(), &token, context.deadline());
        let unknown = format!("whether {key} is still held is not known");
        return answer(context, key, proof.map_err(|error| context.unsure(error, &unknown))?);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(&context.settings, &flags.common);
    let held = match &flags.key {
        Some(key) => holds.meant(scope, key),
        None => holds.current(scope),
    };
    let Some(held) = held else {
        return Err(holds.lack(scope, flags.key.as_ref()).into());
    };
    let context = context.at(scope.settings(held)?);
    let proof = context.verify(&mut *context.open()?, held)?;
    answer(&context, &listed(&held.keys), proof)
}

fn answer(context: &Context, keys: &dyn std::fmt::Display, proof: Option<Proof>) -> anyhow::Result<Exit> {
    let Context { settings, printer } = context;
    match proof {
        Some(proof) => {
            let lease = span(proof.lease);
            printer.say(Kind::Detail, &format!("{keys} in {} is held, for {lease} more", settings.store));
            Ok(Exit::Ok)
        }
        None => Err(Error::NotHeld(format!(
            "{keys} in {} is not held any more; what is done now is done without the lock",
            settings.store
        ))
        .into()),
    }
}

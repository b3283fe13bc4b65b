//! Is the lock that this process runs under still held? One question to the store, for use right before a step that must
//! not be done twice. Renews nothing.

use super::held::{Holds, Scope};
use super::{name, no_hold, open, prove, token_file, unsure};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::Proof;
use crate::output::busy::listed;
use crate::output::time::span;
use crate::output::{Kind, Printer};

/// `dlock check`.
pub fn check(settings: &Settings, flags: &cli::check::Check, printer: &Printer) -> anyhow::Result<Exit> {
    if let (Some(file), Some(key)) = (&flags.token_file, &flags.key) {
        let token = token_file::read(file)?;
        let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
        let proof = open(settings)?.prove(&name(settings, key)?.into(), &token, by);
        let unknown = format!("whether {key} is still held is not known");
        return answer(settings, key, proof.map_err(|error| unsure(settings, error, &unknown))?, printer);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(settings, &flags.common);
    let held = match &flags.key {
        Some(key) => holds.meant(scope, key),
        None => holds.current(scope),
    };
    let Some(held) = held else {
        return Err(no_hold(settings, scope, &holds, flags.key.as_ref()).into());
    };
    let settings = scope.settings(held)?;
    let mut store = open(&settings)?;
    let proof = prove(&settings, &mut *store, held)?;
    answer(&settings, &listed(&held.keys), proof, printer)
}

fn answer(
    settings: &Settings,
    keys: &dyn std::fmt::Display,
    proof: Option<Proof>,
    printer: &Printer,
) -> anyhow::Result<Exit> {
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

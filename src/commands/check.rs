//! Is the lock that this process runs under still held? One question to the store, for use right before a step that must
//! not be done twice. Renews nothing.

use super::held::Holds;
use super::{open, prove};
use crate::cli;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::busy::listed;
use crate::output::time::span;
use crate::output::{Kind, Printer};

/// `dlock check`.
pub fn check(settings: &Settings, flags: &cli::check::Check, printer: &Printer) -> anyhow::Result<Exit> {
    let holds = Holds::of_process();
    let held = match &flags.key {
        Some(key) => holds.of_key(settings, key).next(),
        None => holds.current(settings),
    };
    let Some(held) = held else {
        return Err(super::no_hold(settings, &holds, flags.key.as_ref()).into());
    };
    let keys = listed(&held.keys);
    let mut store = open(settings)?;
    match prove(settings, &mut *store, held)? {
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

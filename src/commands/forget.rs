//! `dlock forget`: the store forgets the last successful run with `--once-per`, so that the next
//! one runs. Nothing else about the lock changes.

use super::context::Context;
use super::key_operands::{KeyOperands, Meant};
use super::pause::unknown;
use crate::cli;
use crate::exit::Exit;
use crate::lock::Name;
use crate::output::{Event, Kind, What};
use crate::store::Store;

pub fn forget(context: &Context, flags: &cli::forget::Forget) -> anyhow::Result<Exit> {
    let place = &context.settings.store;
    let forget = |store: &mut dyn Store, name: &Name, meant| {
        let was = store.forget(name, context.deadline())?;
        let key = name.key();
        let text = match was {
            true => format!("{key} in {place} is due again: the next run with --once-per runs its command"),
            false => {
                let unknown = match meant {
                    Meant::ByName => unknown(context, store, name)?,
                    Meant::ByPattern => String::new(),
                };
                format!("{key} in {place}: nothing to forget, no successful run on record{unknown}")
            }
        };
        let kind = match (was, meant) {
            (true, Meant::ByPattern) => Kind::Note,
            (true, Meant::ByName) => Kind::Done,
            // The name may be misspelt.
            (false, Meant::ByName) => Kind::Note,
            (false, Meant::ByPattern) => Kind::Detail,
        };
        let what = if was { What::Forgotten } else { What::Unchanged };
        context.printer.say(kind, Event::from(what).about(key), &text);
        Ok(was)
    };
    let wanted = KeyOperands::of(context, &flags.keys)?;
    Ok(wanted.change(context, "has a successful run on record", forget)?)
}

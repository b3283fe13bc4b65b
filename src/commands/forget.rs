//! `dlock forget`: the store forgets the last successful run with `--once-per`, so that the next
//! one runs, or with `--retire` that a run is expected. Nothing else about the lock changes.

use super::context::Context;
use super::key_operands::{KeyOperands, Meant};
use super::pause::unknown;
use crate::cli;
use crate::exit::Exit;
use crate::lock::Name;
use crate::output::{Event, Kind, What};
use crate::rules::Forget;
use crate::store::Store;

pub fn forget(context: &Context, flags: &cli::forget::Forget) -> anyhow::Result<Exit> {
    let place = &context.settings.store;
    let what = if flags.retire { Forget::Expected } else { Forget::Success };
    let forget = |store: &mut dyn Store, name: &Name, meant| {
        let was = store.forget(name, what, context.deadline())?;
        let key = name.key();
        let unknown = match meant {
            Meant::ByName if !was => unknown(context, store, name)?,
            _ => String::new(),
        };
        let text = match (what, was) {
            (Forget::Success, true) => {
                format!("{key} in {place} is due again: the next run with --once-per runs its command")
            }
            (Forget::Success, false) => {
                format!("{key} in {place}: nothing to forget, no successful run on record{unknown}")
            }
            (Forget::Expected, true) => format!(
                "no run of {key} in {place} is expected any more, until one with --expect, or --once-per day and the like, says so"
            ),
            (Forget::Expected, false) => {
                format!("{key} in {place}: nothing to retire, no run is expected{unknown}")
            }
        };
        let kind = match (was, meant) {
            (true, Meant::ByPattern) => Kind::Note,
            (true, Meant::ByName) => Kind::Done,
            // The name may be misspelt.
            (false, Meant::ByName) => Kind::Note,
            (false, Meant::ByPattern) => Kind::Detail,
        };
        let event = if was { What::Forgotten } else { What::Unchanged };
        context.printer.say(kind, Event::from(event).about(key), &text);
        Ok(was)
    };
    let wanted = KeyOperands::of(context, &flags.keys)?;
    let lacking = match what {
        Forget::Success => "has a successful run on record",
        Forget::Expected => "expects a run",
    };
    Ok(wanted.change(context, lacking, forget)?)
}

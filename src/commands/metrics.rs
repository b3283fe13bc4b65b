//! What is counted of the locks? Asks the store for each and prints; changes nothing.

use super::context::Context;
use super::wanted::{Wanted, is_damaged, its_locks};
use crate::cli;
use crate::exit::Exit;
use crate::lock::Name;
use crate::output::metrics::{Exposition, Sample};
use crate::output::{self, Kind};
use crate::store::{self, Which};
use std::collections::BTreeSet;

/// `dlock metrics`.
pub fn metrics(context: &Context, flags: &cli::metrics::Metrics) -> anyhow::Result<Exit> {
    let printer = &context.printer;
    let mut store = context.open()?;
    let wanted = Wanted::of(context, &flags.keys)?;
    let found = wanted.found(&mut *store, Which::Known).map_err(|error| context.with_origin(error))?;
    let named: BTreeSet<&Name> = wanted.named().iter().collect();
    // The same series twice is an error of the format.
    let names: BTreeSet<&Name> = named.iter().copied().chain(&found.names).collect();
    let mut exit = Exit::Ok;
    for missing in &found.missing {
        printer.say(Kind::Error, &format!("{missing}; {} not counted", its_locks(missing)));
        if !is_damaged(missing) {
            exit = Exit::Unavailable;
        }
    }
    let mut page = Exposition::new(flags.max_keys);
    for name in names {
        let view = match store.inspect(name, context.deadline()) {
            // One lock with a damaged record must not hide the others.
            Err(error @ store::Error::Garbled(_)) => {
                printer.say(Kind::Error, &format!("{} is not counted: {error}", name.key()));
                if named.contains(name) {
                    exit = Exit::Unavailable;
                }
                continue;
            }
            // The part of the store that is missing has it.
            Err(error) if !found.missing.is_empty() && error.is_transient() && !named.contains(name) => {
                continue;
            }
            answer => answer.map_err(|error| context.with_origin(error))?,
        };
        // What only somebody who watched has left behind is no lock.
        if named.contains(name) || view.is_used() {
            page.add(Sample::of(&view));
        }
    }
    output::print(&page.text())?;
    Ok(exit)
}

//! What is counted of the locks? Asks the store for each and prints; changes nothing.

use super::wanted::Wanted;
use super::{located, open};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::Name;
use crate::output::metrics::{Page, Sample};
use crate::output::{self, Kind, Printer};
use crate::store::{self, Which};
use std::collections::BTreeSet;

/// `dlock metrics`.
pub fn metrics(
    settings: &Settings,
    flags: &cli::metrics::Metrics,
    printer: &Printer,
) -> anyhow::Result<Exit> {
    let mut store = open(settings)?;
    let wanted = Wanted::of(settings, &flags.keys)?;
    let found = wanted.found(&mut *store, Which::Known).map_err(|error| located(settings, error))?;
    let named: BTreeSet<&Name> = wanted.named().iter().collect();
    // The same series twice is an error of the format.
    let names: BTreeSet<&Name> = named.iter().copied().chain(&found.names).collect();
    let mut exit = Exit::Ok;
    for missing in &found.missing {
        printer.say(Kind::Error, &format!("{missing}; its locks are not counted"));
        exit = Exit::Unavailable;
    }
    let mut page = Page::new(flags.max_keys);
    for name in names {
        let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
        let view = match store.inspect(name, by) {
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
            answer => answer.map_err(|error| located(settings, error))?,
        };
        // What only somebody who watched has left behind is no lock.
        if named.contains(name) || view.is_used() {
            page.add(Sample::of(&view));
        }
    }
    output::print(&page.text())?;
    Ok(exit)
}

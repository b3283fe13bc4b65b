//! What is counted of the locks? Asks the store for each and prints; changes nothing.

use super::{located, name, open};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::exit::Exit;
use crate::output::metrics::{Page, Sample};
use crate::output::{self, Kind, Printer};
use crate::store;

/// `dlock metrics`.
pub fn metrics(
    settings: &Settings,
    flags: &cli::metrics::Metrics,
    printer: &Printer,
) -> anyhow::Result<Exit> {
    let mut store = open(settings)?;
    let named = flags.keys.iter().map(|key| name(settings, key)).collect::<Result<Vec<_>, _>>()?;
    let all = named.is_empty();
    let mut names =
        if all { store.list(&settings.prefix).map_err(|error| located(settings, error))? } else { named };
    // The same series twice is an error of the format.
    names.sort();
    names.dedup();
    let mut page = Page::new(flags.max_keys);
    for name in names {
        let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
        let view = match store.inspect(&name, by) {
            // One lock with a damaged record must not hide the others.
            Err(error @ store::Error::Garbled(_)) if all => {
                printer.say(Kind::Error, &format!("{} is not counted: {error}", name.key()));
                continue;
            }
            answer => answer.map_err(|error| located(settings, error))?,
        };
        let sample = Sample::of(&view);
        // What only somebody who watched has left behind is no lock.
        if !all || sample.is_used() {
            page.add(sample);
        }
    }
    output::print(&page.text())?;
    Ok(Exit::Ok)
}

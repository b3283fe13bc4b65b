//! Who holds what, who waits, for how long? Asks the store and prints; changes nothing.

use super::{located, name, open};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::State;
use crate::output::{self, Kind, Printer, json, table};
use crate::store::{self, View};

/// `dlock status`.
pub fn status(settings: &Settings, flags: &cli::Status, printer: &Printer) -> anyhow::Result<Exit> {
    let mut store = open(settings)?;
    let by = || Moment::now().after(settings.connect_timeout + settings.op_timeout);
    let named = flags.keys.iter().map(|key| name(settings, key)).collect::<Result<Vec<_>, _>>()?;
    let all = named.is_empty();
    let names =
        if all { store.list(&settings.prefix).map_err(|error| located(settings, error))? } else { named };
    let mut views = Vec::new();
    for name in names {
        let view = match store.inspect(&name, by()) {
            // One lock with a damaged record must not hide the others.
            Err(error @ store::Error::Garbled(_)) if all => {
                printer.say(Kind::Error, &format!("{} is not shown: {error}", name.key()));
                continue;
            }
            answer => answer.map_err(|error| located(settings, error))?,
        };
        if !all || view.state != State::Free || !view.waiters.is_empty() {
            views.push(view);
        }
    }
    output::print(&text(settings, flags, &views)?)?;
    Ok(Exit::Ok)
}

fn text(settings: &Settings, flags: &cli::Status, views: &[View]) -> Result<String, Error> {
    if flags.json {
        return json::status(views).map_err(|error| Error::Internal(error.to_string()));
    }
    Ok(table::status(views, table::Width::of_stdout(), output::coloured(settings.color)))
}

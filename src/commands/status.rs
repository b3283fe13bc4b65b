//! Who holds what, who waits, for how long? Asks the store and prints; changes nothing.

use super::{located, name, open};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::State;
use crate::lock::Name;
use crate::output::{self, Kind, Printer, json, table};
use crate::store::{self, Store, View};
use std::time::Duration;

mod watch;

/// `dlock status`.
pub fn status(settings: &Settings, flags: &cli::Status, printer: &Printer) -> anyhow::Result<Exit> {
    let named = flags.keys.iter().map(|key| name(settings, key)).collect::<Result<Vec<_>, _>>()?;
    let wanted = Wanted {
        named,
        prefix: settings.prefix.clone(),
        within: settings.connect_timeout + settings.op_timeout,
    };
    let mut store = open(settings)?;
    if let Some(every) = flags.watch {
        return watch::watch(settings, store, wanted, every.unwrap_or(Duration::from_secs(1)));
    }
    let seen = wanted.look(&mut *store).map_err(|error| located(settings, error))?;
    for line in &seen.damaged {
        printer.say(Kind::Error, line);
    }
    output::print(&text(settings, flags, &seen.views)?)?;
    Ok(Exit::Ok)
}

fn text(settings: &Settings, flags: &cli::Status, views: &[View]) -> Result<String, Error> {
    if flags.json {
        return json::status(views).map_err(|error| Error::Internal(error.to_string()));
    }
    Ok(table::status(views, table::Width::of_stdout(), output::coloured(settings.color)))
}

/// Which locks to look at.
struct Wanted {
    /// These; if there are none, all that are not simply free.
    named: Vec<Name>,
    prefix: String,
    /// How long one lock may take.
    within: Duration,
}

/// What was seen.
struct Seen {
    views: Vec<View>,
    /// What there is to say of locks that cannot be shown.
    damaged: Vec<String>,
}

impl Wanted {
    fn look(&self, store: &mut dyn Store) -> Result<Seen, store::Error> {
        let all = self.named.is_empty();
        let names = if all { store.list(&self.prefix)? } else { self.named.clone() };
        let mut seen = Seen { views: Vec::new(), damaged: Vec::new() };
        for name in names {
            let view = match store.inspect(&name, Moment::now().after(self.within)) {
                // One lock with a damaged record must not hide the others.
                Err(error @ store::Error::Garbled(_)) if all => {
                    seen.damaged.push(format!("{} is not shown: {error}", name.key()));
                    continue;
                }
                answer => answer?,
            };
            if !all || view.state != State::Free || !view.waiters.is_empty() {
                seen.views.push(view);
            }
        }
        Ok(seen)
    }
}

//! How did the last runs under a lock go? Asks the store and prints; changes nothing. The store keeps 64 ends for 40
//! days, those of holders that were never heard of again included.

use super::{located, name, open};
use crate::cli::history::History;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::history::{Look, picture, table};
use crate::output::table::Width;
use crate::output::{self, json};

/// `dlock history KEY`.
pub fn history(settings: &Settings, flags: &History) -> anyhow::Result<Exit> {
    let name = name(settings, &flags.key.0)?;
    let mut store = open(settings)?;
    let by = Moment::now().after(settings.connect_timeout + settings.op_timeout);
    let view = store.inspect(&name, by).map_err(|error| located(settings, error))?;
    let look = Look::of_stdout(settings.color);
    let text = match Width::of_stdout() {
        _ if flags.json => json::history(&view.log).map_err(|error| Error::Internal(error.to_string()))?,
        _ if view.log.is_empty() => {
            format!("no run under {} in {} has ended in the last 40 days\n", name.key(), settings.store)
        }
        Width::Columns(columns) => picture(&view.log, view.now, columns, look),
        Width::Endless => table(&view.log, look),
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

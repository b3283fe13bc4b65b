//! How did the last runs under a lock go? Asks the store and prints; changes nothing. The store keeps 64 ends for 40
//! days, those of holders that were never heard of again included.

use super::context::Context;
use crate::cli::history::History;
use crate::exit::Exit;
use crate::output::columns::Width;
use crate::output::history::{Style, picture, table};
use crate::output::{self, json};

pub fn history(context: &Context, flags: &History) -> anyhow::Result<Exit> {
    let name = context.name(&flags.key.0)?;
    let view = context.open()?.inspect(&name, context.deadline());
    let view = view.map_err(|error| context.with_origin(error))?;
    let settings = &context.settings;
    let style = Style::of_stdout(settings.color);
    let text = match Width::of_stdout() {
        _ if flags.json => json::history(&view.log)?,
        _ if view.log.is_empty() => {
            format!("no run under {} in {} has ended in the last 40 days\n", name.key(), settings.store)
        }
        Width::Columns(columns) => picture(&view.log, view.now, columns, style),
        Width::Endless => table(&view.log, style),
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

//! `dlock metrics`: asks the store for each lock and prints its totals. Changes nothing.

use super::context::Context;
use super::key_operands::{KeyOperands, Overview};
use crate::cli::{self, key::each_once};
use crate::exit::Exit;
use crate::output;
use crate::output::metrics::Exposition;
use crate::store::{View, Which};

pub fn metrics(context: &Context, flags: &cli::metrics::Metrics) -> anyhow::Result<Exit> {
    // The same series twice would be a format error.
    let wanted = KeyOperands::of(context, &each_once(&flags.keys))?;
    let mut store = context.open()?;
    // The totals include the ends, so the log is not needed.
    let looked = wanted.look(context, &mut *store, Which::Known, 0, "counted");
    let Overview { views, exit, .. } = looked.map_err(|error| context.with_origin(error))?;
    wanted.say_unmatched(context, &views);
    let mut page = Exposition::default();
    // A record that only a watcher has left is no lock.
    let counts = |view: &View| view.is_used() || wanted.named.contains(&view.name);
    views.into_iter().filter(counts).for_each(|view| page.add(view));
    output::print(&page.text())?;
    Ok(exit)
}

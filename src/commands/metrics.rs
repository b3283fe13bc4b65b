//! `dlock metrics`: asks the store for each lock and prints its totals. Changes nothing.

use super::context::Context;
use super::key_operands::{Damaged, KeyOperands};
use crate::cli::{self, key::each_once};
use crate::exit::Exit;
use crate::output::metrics::{Exposition, Sample};
use crate::output::{self, Kind, What};
use crate::store::{View, Which};

pub fn metrics(context: &Context, flags: &cli::metrics::Metrics) -> anyhow::Result<Exit> {
    // The same series twice would be a format error.
    let wanted = KeyOperands::of(context, &each_once(&flags.keys))?;
    let (mut page, mut exit) = (Exposition::new(flags.max_keys), Exit::Ok);
    let mut names = Vec::new();
    let seen = |view: View, is_named| {
        names.push(view.name.clone());
        // A record that only a watcher has left is no lock.
        if is_named || view.is_used() {
            page.add(Sample::of(view));
        }
    };
    let lacks = |damaged: Damaged| {
        context.printer.say(Kind::Error, What::Unreadable, &damaged.line);
        if damaged.is_asked_for {
            exit = Exit::Unavailable;
        }
    };
    let mut store = context.open()?;
    // The totals include the ends, so the log is not needed.
    let looked = wanted.look(&mut *store, Which::Known, 0, "counted", seen, lacks);
    looked.map_err(|error| context.with_origin(error))?;
    if let Some(none) = wanted.unmatched(&names, &context.settings.store) {
        context.printer.say(Kind::Note, What::Matched, &none);
    }
    output::print(&page.text())?;
    Ok(exit)
}

//! What is counted of the locks? Asks the store for each and prints; changes nothing.

use super::context::Context;
use super::wanted::{Damaged, Wanted};
use crate::cli::{self, key::each_once};
use crate::exit::Exit;
use crate::output::metrics::{Exposition, Sample};
use crate::output::{self, Kind};
use crate::store::{View, Which};

pub fn metrics(context: &Context, flags: &cli::metrics::Metrics) -> anyhow::Result<Exit> {
    // The same series twice is an error of the format.
    let wanted = Wanted::of(context, &each_once(&flags.keys))?;
    let (mut page, mut exit) = (Exposition::new(flags.max_keys), Exit::Ok);
    let seen = |view: View, is_named| {
        // What only somebody who watched has left behind is no lock.
        if is_named || view.is_used() {
            page.add(Sample::of(view));
        }
    };
    let lacks = |damaged: Damaged| {
        context.printer.say(Kind::Error, &damaged.line);
        if damaged.is_asked_for {
            exit = Exit::Unavailable;
        }
    };
    let mut store = context.open()?;
    // The ends are in the totals.
    let looked = wanted.look(&mut *store, Which::Known, 0, "counted", seen, lacks);
    let patterns = looked.and_then(|()| wanted.paused(&mut *store));
    page.patterns = patterns.map_err(|error| context.with_origin(error))?.len() as u64;
    output::print(&page.text())?;
    Ok(exit)
}

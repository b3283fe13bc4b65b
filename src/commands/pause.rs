//! How is a lock paused, so that nobody is granted it for a while? Whoever holds it goes on, or is asked to end. And how does
//! that end before its time?

use super::context::Context;
use super::owner::owner;
use super::wanted::Wanted;
use crate::cli::pause::{Pause, Resume};
use crate::exit::Exit;
use crate::lock::{Key, Name};
use crate::output::Kind;
use crate::output::owner::who;
use crate::output::time::span;
use crate::store::{self, Store, Which};

/// `dlock pause`.
pub fn pause(context: &Context, flags: &Pause) -> anyhow::Result<Exit> {
    let by = owner("dlock pause".into(), Some(flags.reason.clone()).filter(|text| !text.is_empty()));
    let count = each(context, &flags.keys, |store, name| {
        store.pause(name, Some((&by, flags.lasts)), context.deadline())?;
        let view = store.inspect(name, context.deadline())?;
        let goes_on = if flags.stop { "is asked to end" } else { "goes on" };
        let holders = view.holders.iter().filter(|holder| holder.confirmed);
        let held: Vec<String> =
            holders.clone().map(|one| format!("; {} {goes_on}", who(&one.owner))).collect();
        if flags.stop {
            for holder in holders {
                store.request(name, holder.fence, &by, context.deadline())?;
            }
        }
        Ok(format!("is paused for {}: nobody is granted it{}", span(flags.lasts), held.concat()))
    })?;
    // Whoever asks for a freeze must not believe in one that is none.
    Ok(if count == 0 { Exit::Busy(Exit::BUSY) } else { Exit::Ok })
}

/// `dlock resume`.
pub fn resume(context: &Context, flags: &Resume) -> anyhow::Result<Exit> {
    each(context, &flags.keys, |store, name| {
        let was = store.pause(name, None, context.deadline())?;
        Ok(if was { "is not paused any more".into() } else { "was not paused".into() })
    })?;
    Ok(Exit::Ok)
}

/// Does it to each lock that is meant, and says what has become of it. Answers how many these were.
fn each(
    context: &Context,
    keys: &[Key],
    act: impl Fn(&mut dyn Store, &Name) -> Result<String, store::Error>,
) -> anyhow::Result<usize> {
    let wanted = Wanted::of(context, keys)?;
    let origin = |error| context.with_origin(error);
    let mut store = context.open()?;
    let found = wanted.found(&mut *store, Which::Known).map_err(origin)?;
    if let Some(missing) = found.missing.into_iter().next() {
        return Err(origin(missing).into());
    }
    let names: Vec<&Name> = wanted.named.iter().chain(&found.names).collect();
    for (at, name) in names.iter().enumerate() {
        let said = act(&mut *store, name).map_err(|error| {
            if names.len() > 1 {
                let text = format!("{at} of {} locks were reached before {}", names.len(), name.key());
                context.printer.say(Kind::Warning, &text);
            }
            origin(error)
        })?;
        let text = format!("{} in {} {said}", name.key(), context.settings.store);
        context.printer.say(Kind::Done, &text);
    }
    if names.is_empty() {
        let patterns = wanted.patterns().join(" or ");
        let text = format!(
            "{} knows no lock like {patterns}; a pattern means locks that were used before: name a new one",
            context.settings.store
        );
        context.printer.say(Kind::Warning, &text);
    }
    Ok(names.len())
}

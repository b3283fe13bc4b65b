//! How does somebody make a run due again that `--once-per` takes for done? The store forgets that one succeeded; nothing
//! else about the lock changes.

use super::context::Context;
use crate::cli;
use crate::exit::Exit;
use crate::output::Kind;

/// `dlock forget`.
pub fn forget(context: &Context, flags: &cli::forget::Forget) -> anyhow::Result<Exit> {
    let names = flags.keys.iter().map(|key| context.name(key)).collect::<Result<Vec<_>, _>>()?;
    let mut store = context.open()?;
    for name in names {
        let was = store.forget(&name, context.deadline()).map_err(|error| context.with_origin(error))?;
        let (key, store) = (name.key(), &context.settings.store);
        let (kind, text) = if was {
            let text =
                format!("{key} in {store} is due again: the next run with --once-per runs its command");
            (Kind::Done, text)
        } else {
            // Perhaps it is called otherwise.
            (Kind::Note, format!("{key} in {store} was due already: no run is remembered that succeeded"))
        };
        context.printer.say(kind, &text);
    }
    Ok(Exit::Ok)
}

//! Who holds what, who waits, for how long? Asks the store and prints; changes nothing.

use super::context::Context;
use super::wanted::{Wanted, is_damaged, its_locks};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::State;
use crate::output::record::{self, Scope};
use crate::output::{self, Kind, json, table};
use crate::store::{self, Store, View, Which};
use std::time::Duration;

mod watch;

/// `dlock status`.
pub fn status(context: &Context, flags: &cli::Status) -> anyhow::Result<Exit> {
    let Context { settings, printer } = context;
    let view = Looks {
        wanted: Wanted::of(context, &flags.keys)?,
        within: settings.connect_timeout + settings.op_timeout,
    };
    let mut store = context.open()?;
    if let Some(every) = flags.watch {
        return watch::watch(context, store, view, every.unwrap_or(Duration::from_secs(1)));
    }
    let seen = view.look(&mut *store).map_err(|error| context.with_origin(error))?;
    for damaged in &seen.damaged {
        printer.say(Kind::Error, &damaged.line);
    }
    output::print(&text(settings, flags, &view.wanted, &seen)?)?;
    let lacks = seen.damaged.iter().any(|damaged| damaged.is_asked_for);
    Ok(if lacks { Exit::Unavailable } else { Exit::Ok })
}

fn text(settings: &Settings, flags: &cli::Status, wanted: &Wanted, seen: &Overview) -> Result<String, Error> {
    if flags.json {
        return json::status(&seen.views).map_err(|error| Error::Internal(error.to_string()));
    }
    let (width, colours) = (table::Width::of_stdout(), output::coloured(settings.color));
    Ok(match (wanted.single(), seen.views.as_slice()) {
        (Some(_), [view]) => record::record(view, &place(settings), width, colours),
        (_, []) if !seen.damaged.is_empty() => String::new(),
        (_, []) => place(settings).empty(&wanted.patterns()),
        (_, views) => table::status(views, width, colours),
    })
}

fn place(settings: &Settings) -> Scope {
    Scope { store: settings.store.to_string(), prefix: settings.prefix.clone() }
}

/// What to look at, and how.
struct Looks {
    /// Those named, and of the others all that are not simply free.
    wanted: Wanted,
    /// How long one lock may take.
    within: Duration,
}

struct Overview {
    views: Vec<View>,
    /// What there is to say of locks that cannot be shown.
    damaged: Vec<Damaged>,
}

/// A lock, or a part of the store, that cannot be shown. It hides no other.
struct Damaged {
    line: String,
    /// Whether something is not shown that was asked for: by name, or because everything was.
    is_asked_for: bool,
}

impl Looks {
    fn look(&self, store: &mut dyn Store) -> Result<Overview, store::Error> {
        let named = self.wanted.named().to_vec();
        let found = self.wanted.found(store, Which::Live)?;
        let mut seen = Overview { views: Vec::new(), damaged: Vec::new() };
        for missing in &found.missing {
            let line = format!("{missing}; {} not shown", its_locks(missing));
            seen.damaged.push(Damaged { line, is_asked_for: !is_damaged(missing) });
        }
        let all = named
            .into_iter()
            .map(|name| (name, true))
            .chain(found.names.into_iter().map(|name| (name, false)));
        for (name, is_named) in all {
            match store.inspect(&name, Moment::now().after(self.within)) {
                Err(error @ store::Error::Garbled(_)) => {
                    let line = format!("{} is not shown: {error}", name.key());
                    seen.damaged.push(Damaged { line, is_asked_for: is_named });
                }
                // The part of the store that is missing has it.
                Err(error) if !is_named && !found.missing.is_empty() && error.is_transient() => {}
                Err(error) => return Err(error),
                Ok(view) if is_named || view.state != State::Free || !view.waiters.is_empty() => {
                    seen.views.push(view);
                }
                Ok(_) => {}
            }
        }
        Ok(seen)
    }
}

//! When are these locks free? Looks on, one lock after the other, and takes none. Nobody is held up by it: it stands in no
//! queue.

use super::attend::Attendant;
use super::context::Context;
use super::held::Holds;
use super::lookout::{First, Lookout, Remark, Seen};
use crate::cli;
use crate::clock::Moment;
use crate::error::Error;
use crate::exit::Exit;
use crate::job::Endings;
use crate::law::State;
use crate::lock::Key;
use crate::output::Kind;
use crate::output::sight;
use crate::output::time::span;
use crate::store::View;

/// `dlock wait`.
pub fn wait(context: &Context, flags: &cli::wait::Wait) -> anyhow::Result<Exit> {
    let Context { settings, printer } = context;
    let names = flags.keys.iter().map(|key| context.name(key)).collect::<Result<Vec<_>, _>>()?;
    let (since, end) = (Moment::now(), flags.wait.map(|bound| Moment::now().after(bound)));
    // Before the first thread. There is nothing to leave: a signal ends this as it ends anything, but the line goes.
    let endings = Endings::take().map_err(|error| internal(&error))?;
    let attendant = Attendant::start(endings, printer, |_| ()).map_err(|error| internal(&error))?;
    // Without a bound the store that cannot be reached may be one that never was.
    let bound = flags.wait.is_some_and(|bound| !bound.is_zero());
    let first = if bound { First::RiddenOut } else { First::Counts };
    let mut lookout = Lookout::open(context, first)?;
    for key in &flags.keys {
        refuse_own(context, &mut lookout, key)?;
    }
    for name in &names {
        let mut last: Option<View> = None;
        let seen = lookout.look(
            name,
            end,
            |view| {
                if view.state == State::Free {
                    return Some(());
                }
                last = Some(view.clone());
                let (view, store, seen) = (view.clone(), settings.store.to_string(), Moment::now());
                attendant.waits(move |room| {
                    let now = Moment::now();
                    sight::watching(&store, &view, now.since(seen), now.since(since), room)
                });
                None
            },
            |remark| match remark {
                Remark::Trouble(error) => attendant.announce(&format!(
                    "{error} ({}); still waiting for {}, trying again",
                    settings.store.origin(),
                    name.key()
                )),
                Remark::Recovered => attendant.say(Kind::Note, &format!("{} answers again", settings.store)),
            },
        );
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => {
                attendant.conclude(|| ());
                return Err(error.into());
            }
        };
        let place = format!("{} in {}", name.key(), settings.store);
        if seen == Seen::Nothing {
            let state = last.as_ref().map(sight::state).unwrap_or_default();
            let over = match flags.wait {
                Some(bound) if !bound.is_zero() => format!("; the {} of --wait are over", span(bound)),
                _ => String::new(),
            };
            attendant.say(Kind::Note, &format!("{place} {state}{over}"));
            return Ok(Exit::Busy(Exit::BUSY));
        }
        let (kind, after) = match attendant.has_announced() {
            true => (Kind::Note, format!(" after {}", span(Moment::now().since(since)))),
            false => (Kind::Detail, String::new()),
        };
        attendant.say(kind, &format!("{place} is free{after}"));
    }
    attendant.conclude(|| ());
    Ok(Exit::Ok)
}

/// Nobody lives to see the end of what ends with himself.
fn refuse_own(context: &Context, lookout: &mut Lookout<'_>, key: &Key) -> Result<(), Error> {
    let (holds, settings) = (Holds::of_process(), &context.settings);
    for held in holds.of_key(settings, key) {
        if context.verify(lookout.store(), held)?.is_some() {
            return Err(Error::Usage(format!(
                "this process itself runs under {key} in {}, and would wait for its own end",
                settings.store
            )));
        }
    }
    Ok(())
}

fn internal(error: &std::io::Error) -> Error {
    Error::Internal(format!("cannot wait: {error}"))
}

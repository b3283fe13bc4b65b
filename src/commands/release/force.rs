//! Takes a lock away: the store refuses every renewal of the holder from now on, and grants the
//! lock to the next waiter when that is safe, or at once. The operator confirms; the holder is not
//! asked.

use crate::cli;
use crate::commands::context::Context;
use crate::commands::owner::owner;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{By, Name};
use crate::output::describe;
use crate::output::owner::who;
use crate::output::question;
use crate::output::time::span;
use crate::output::{Event, Kind, Printer, What};
use crate::rules::{Foreign, Holder, Revoke, Revoked, State, When};
use crate::store::View;

pub fn force(context: &Context, name: &Name, flags: &cli::Release) -> anyhow::Result<Exit> {
    let Context { settings, printer, .. } = context;
    let when = if flags.now { When::Now } else { When::Safe };
    let revoke = Revoke { when, by: owner("dlock release --force".into(), flags.reason.clone()) };
    let mut store = context.open()?;
    // Without a terminal, only --now needs -y: it lets two jobs run at once.
    if !flags.yes && (flags.now || question::can_be_asked()) {
        let view = store.inspect(name, context.deadline()).map_err(|error| context.with_origin(error))?;
        if !confirmed(&format!("{} in {}", name.key(), settings.store), &view, when, printer)? {
            return Ok(Exit::Busy(Exit::BUSY));
        }
    }
    let was = store.revoke(name, &revoke, context.deadline());
    let unknown = format!("it is unknown whether {} was taken away; 'dlock status' shows it", name.key());
    let was = was.map_err(|error| context.unsure(error, &unknown))?;
    let what = if was == Revoked::Free { What::Free } else { What::Revoked };
    let view = if was == Revoked::Free { store.inspect(name, context.deadline()).ok() } else { None };
    let unknown = view.map(|view| context.if_unknown(&mut *store, &view)).unwrap_or_default();
    printer.say(Kind::Note, what, &(revoked(settings, name, when, was)? + &unknown));
    Ok(Exit::Ok)
}

/// Shows the operator the holders and asks for a yes. A free lock needs none.
fn confirmed(place: &str, view: &View, when: When, printer: &Printer) -> Result<bool, Error> {
    let shown = match &view.foreign {
        Some(Foreign { kind, .. }) => vec![format!("a {kind} that dlock did not write")],
        None if view.state == State::Free => return Ok(true),
        None if view.holders.is_empty() => vec![describe::state(view)],
        None => view.holders.iter().map(describe::hold).collect(),
    };
    let event = Event::from(What::Held).held_by(view.holders.first());
    shown.iter().for_each(|line| printer.say(Kind::Warning, event, &format!("{place}: {line}")));
    let question = match when {
        When::Safe => "take the lock away?",
        When::Now => {
            "take the lock away and grant it to the next waiter at once, although the old job may still run?"
        }
    };
    let nobody = format!(
        "{place} is not free. No terminal to confirm on: add -y to grant it to the next waiter at once. Nothing was done"
    );
    let is_yes = question::is_yes(question, &nobody)?;
    if !is_yes {
        let event = Event::from(What::Unchanged).held_by(view.holders.first()).ends(Exit::Busy(Exit::BUSY));
        printer.say(Kind::Note, event, &format!("nothing was done; {place} is as before"));
    }
    Ok(is_yes)
}

fn all(holders: &[Holder]) -> String {
    holders.iter().map(|holder| who(&holder.owner)).collect::<Vec<_>>().join(", ")
}

/// Whether a dlock stops the job of each of these holders; a script has none.
fn is_by_dlock(holders: &[Holder]) -> bool {
    holders.iter().all(|holder| holder.owner.by != By::Acquire)
}

/// Says who stops the old job, and when the next grant comes.
fn then(holders: &[Holder], left: &str) -> String {
    if is_by_dlock(holders) {
        return format!(
            "each holder's dlock stops its job, and the next grant comes then, or in {left} at the latest"
        );
    }
    // The store does not learn when a script has stopped.
    format!("dlock cannot stop a script; the next grant comes in {left}")
}

fn revoked(settings: &Settings, name: &Name, when: When, was: Revoked) -> Result<String, Error> {
    let (key, place) = (name.key(), &settings.store);
    Ok(match was {
        Revoked::Free => format!("{key} in {place} is free; nothing to release"),
        Revoked::Cooling => {
            format!("{key} in {place} was kept by the --min-hold of a run that is over, and is free now")
        }
        Revoked::Holds { holders, left } => {
            let from = format!("{key} in {place} is taken away from {}", all(&holders));
            match when {
                _ if holders.iter().all(|holder| !holder.confirmed) => {
                    format!("{from}, whose job had not begun; it is free now")
                }
                When::Safe => format!("{from}; {}", then(&holders, &span(left))),
                When::Now => {
                    let until = if is_by_dlock(&holders) { ", until its dlock has stopped it" } else { "" };
                    format!("{from} and is free now; an old job may still run beside the next one{until}")
                }
            }
        }
        Revoked::AlreadyRevoked { holders, left } => {
            let was = match holders.as_slice() {
                [] => "is taken away; its holder is not on record".to_owned(),
                holders => format!("was already taken away from {}", all(holders)),
            };
            match when {
                When::Safe => {
                    let left = span(left);
                    format!(
                        "{key} in {place} {was}; the next grant comes in {left} at the latest, or at once with --now"
                    )
                }
                When::Now => format!(
                    "{key} in {place} {was}, and is free now; the old job may still run beside the next one"
                ),
            }
        }
        Revoked::Foreign(foreign) => return Err(left_alone(settings, name, &foreign)),
        Revoked::ForeignDeleted => format!(
            "{key} in {place} was a string that dlock did not write; it is deleted; the program that wrote it may still run"
        ),
    })
}

/// The refusal to change a value that dlock did not write.
pub fn left_alone(settings: &Settings, name: &Name, Foreign { kind, left }: &Foreign) -> Error {
    let lasts = left.map(|left| format!("it expires in {}", span(left)));
    let lasts = lasts.unwrap_or_else(|| "it never expires".into());
    let next = if kind == "string" { "; --force --now deletes it" } else { "" };
    let (key, place) = (name.key(), &settings.store);
    Error::Usage(format!(
        "{key} in {place} is a {kind} that dlock did not write ({lasts}); it was not changed{next}"
    ))
}

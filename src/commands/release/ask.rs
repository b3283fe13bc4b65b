//! Asks holders to stop. Shows the operator the holders, asks for a yes, sends the request to
//! exactly the holds that were shown (by fence), and waits until these have ended. Their dlocks
//! stop the jobs; nothing is taken away here.

use super::force::left_alone;
use crate::cli;
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::commands::foreground::{Foreground, Signals};
use crate::commands::owner::owner;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::observer::{First, Observer, Remark};
use crate::lock::{By, Mode, Name};
use crate::output::describe;
use crate::output::live::Line;
use crate::output::owner::who;
use crate::output::question;
use crate::output::time::span;
use crate::output::{Event, Kind, What};
use crate::rules::{FOREIGN_LOOK, Holder, Requested, State};
use crate::store::{self, Store, View};
use crate::supervise;
use std::ops::ControlFlow;
use std::time::Duration;

/// `dlock release KEY` of another holder's lock.
pub fn ask(context: &Context, name: &Name, flags: &cli::Release) -> anyhow::Result<Exit> {
    let Context { settings, printer } = context;
    let place = format!("{} in {}", name.key(), settings.store);
    let mut observer = context.observe(FOREIGN_LOOK)?;
    let view = observer.look(name, context.deadline()).map_err(|error| context.with_origin(error))?;
    let asked = match holders(settings, name, &view, flags.slot)? {
        Found::Holders(holders) => holders,
        Found::Nobody(why) => {
            let what = if view.state == State::Free { What::Free } else { What::Unchanged };
            printer.say(Kind::Note, what, &format!("{place} {why}"));
            return Ok(Exit::Ok);
        }
    };
    let kind = if flags.yes { Kind::Done } else { Kind::Warning };
    let event = |what, holder| Event::from(what).held_by(Some(holder));
    asked.iter().for_each(|holder| {
        printer.say(kind, event(What::Held, holder), &format!("{place}: {}", describe::hold(holder)));
    });
    let question = match asked.len() {
        1 => "ask the holder to stop its job and give the lock back?".into(),
        many => format!("ask all {many} holders to stop their jobs and give the lock back?"),
    };
    let nobody = format!(
        "{place} is held. No terminal to confirm on: add -y to have the job stopped. Nothing was done"
    );
    if !flags.yes && !question::is_yes(&question, &nobody)? {
        let exit = Exit::Busy(Exit::BUSY);
        let event = Event::from(What::Unchanged).held_by(asked.first()).ends(exit);
        printer.say(Kind::Note, event, &format!("nothing was done; {place} is held as before"));
        return Ok(exit);
    }
    let pending = request(context, name, flags, observer.store(), &asked)?;
    wait_for_ends(context, name, flags, observer, pending)
}

enum Found {
    Holders(Vec<Holder>),
    Nobody(String),
}

fn holders(settings: &Settings, name: &Name, view: &View, slot: Option<u32>) -> Result<Found, Error> {
    if let Some(foreign) = &view.foreign {
        return Err(left_alone(settings, name, foreign));
    }
    if view.state != State::Held {
        let more = match view.state {
            State::Cooling => "; no job runs under it, and --force frees it at once",
            State::Revoked => "; --force --now grants it to the next waiter at once",
            State::Free | State::Paused | State::Held => "; nothing to release",
        };
        return Ok(Found::Nobody(format!("{}{more}", describe::state(view))));
    }
    let holders = view.holders.clone();
    match (slot, view.mode) {
        (None, _) if holders.is_empty() => Ok(Found::Nobody(describe::state(view))),
        (None, _) => Ok(Found::Holders(holders)),
        (Some(slot), Some(Mode::Slots(_))) => {
            let of_slot: Vec<Holder> =
                holders.into_iter().filter(|holder| holder.slot == Some(slot)).collect();
            match of_slot.is_empty() {
                true => Ok(Found::Nobody(format!("has no holder in slot {slot}; nothing to release"))),
                false => Ok(Found::Holders(of_slot)),
            }
        }
        (Some(_), _) => Err(Error::Usage(format!(
            "{} in {} is not held in slots; leave --slot out",
            name.key(),
            settings.store
        ))),
    }
}

/// Sends the request to each holder. Returns those that have not ended yet.
fn request(
    context: &Context,
    name: &Name,
    flags: &cli::Release,
    store: &mut dyn Store,
    asked: &[Holder],
) -> Result<Vec<Holder>, Error> {
    let (printer, operator) = (&context.printer, owner("dlock release".into(), flags.reason.clone()));
    let mut pending = Vec::new();
    for holder in asked {
        let answer = store.request(name, holder.fence, &operator, context.deadline());
        let (who, place) = (who(&holder.owner), format!("{} in {}", name.key(), context.settings.store));
        let unknown = format!("it is unknown whether {who} was asked to give {} back; try again", name.key());
        let (kind, line) = match (answer.map_err(|error| context.unsure(error, &unknown))?, holder.owner.by) {
            (Requested::Gone, _) => {
                printer.say(
                    Kind::Note,
                    What::Released,
                    &format!("{place}: {who} has given the lock back already"),
                );
                continue;
            }
            (Requested::Asked, By::Run | By::Hold) => {
                (Kind::Done, format!("{place}: asked {who} to stop; waiting until its job has ended"))
            }
            (Requested::Asked, By::Acquire) => {
                let text = format!(
                    "{place}: {who} is a script and learns of the request at its next 'dlock renew'; waiting until it gives the lock back, or does not renew it in the next {}; --force takes the lock away",
                    span(holder.lease)
                );
                (Kind::Note, text)
            }
        };
        printer.say(kind, Event::from(What::Asked).held_by(Some(holder)), &line);
        pending.push(holder.clone());
    }
    Ok(pending)
}

/// What the worker thread, which watches the lock, reports.
enum Learned {
    Seen(Box<View>),
    Remark(Remark),
    /// The last report: all have ended, or the time is over (`None`).
    Over(Result<Option<()>, store::Error>),
}

/// Waits until the holds that were asked to end have ended.
fn wait_for_ends(
    context: &Context,
    name: &Name,
    flags: &cli::Release,
    mut observer: Observer,
    mut pending: Vec<Holder>,
) -> anyhow::Result<Exit> {
    if pending.is_empty() {
        return Ok(Exit::Ok);
    }
    let settings = &context.settings;
    let place = format!("{} in {}", name.key(), settings.store);
    let (since, end) = (Moment::now(), flags.timeout.map(|bound| Moment::now().after(bound)));
    // Signals are taken only now, after the question: they end the wait, and the request remains.
    let signals = Signals::take(&supervise::ENDING)?;
    let (watched, fences) = (name.clone(), pending.iter().map(|holder| holder.fence).collect::<Vec<_>>());
    let foreground = Foreground::start(signals, move |teller| {
        let all_ended = |view: View| {
            let ended = !view.holders.iter().any(|holder| fences.contains(&holder.fence));
            teller.tell(Learned::Seen(Box::new(view)));
            ended.then_some(())
        };
        let remark = |remark| teller.tell(Learned::Remark(remark));
        let over = observer.wait_for(&watched, end, First::Counts, all_ended, remark);
        teller.tell(Learned::Over(over));
    })?;
    let mut line = Line::new(&context.printer, since);
    loop {
        let learned = match foreground.learn(&mut line)? {
            ControlFlow::Break(signal) => return Ok(Exit::Signal(signal)),
            ControlFlow::Continue(learned) => learned,
        };
        match learned {
            Learned::Seen(view) => {
                pending.retain(|holder| {
                    let lives = view.holders.iter().any(|other| other.fence == holder.fence);
                    if !lives {
                        let kind = if line.has_announced() { Kind::Note } else { Kind::Done };
                        let event = Event::from(What::Released).held_by(Some(holder));
                        line.say(kind, event, &ended(&place, holder, &view, since));
                    }
                    lives
                });
                if !pending.is_empty() {
                    line.waits(describe::line(settings.store.to_string(), *view, since));
                }
            }
            Learned::Remark(Remark::Trouble(error)) => {
                let origin = settings.store.origin();
                let text = format!("{error} ({origin}); still waiting, trying again");
                line.say(Kind::Passing, What::Trouble, &text);
            }
            Learned::Remark(Remark::Recovered) => {
                line.say(Kind::Note, What::Recovered, &format!("{} answers again", settings.store));
            }
            Learned::Over(Ok(Some(()))) => return Ok(Exit::Ok),
            Learned::Over(Ok(None)) => return Ok(ran_out(&mut line, &place, &pending, flags.timeout)),
            Learned::Over(Err(error)) => return Err(context.with_origin(error).into()),
        }
    }
}

/// The time is over while these holders have not ended.
fn ran_out(line: &mut Line, place: &str, pending: &[Holder], timeout: Option<Duration>) -> Exit {
    let holders = pending.iter().map(|holder| who(&holder.owner)).collect::<Vec<_>>().join(", ");
    let bound = span(timeout.unwrap_or_default());
    let text = format!(
        "{place} is still held by {holders} after {bound} (--timeout). The request to stop remains; --force takes the \
         lock away"
    );
    let exit = Exit::Busy(Exit::BUSY);
    line.say(Kind::Note, Event::from(What::Busy).held_by(pending.first()).ends(exit), &text);
    exit
}

fn ended(place: &str, holder: &Holder, view: &View, since: Moment) -> String {
    let end = view.log.iter().find(|end| end.fence == holder.fence);
    let how = end.map_or_else(|| "does not hold the lock any more".into(), describe::end);
    format!("{place}: {} {how} ({} after the request)", who(&holder.owner), span(Moment::now().since(since)))
}

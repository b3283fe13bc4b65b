//! Asks holders to stop. Shows the operator the holders, asks for a yes, sends the request to
//! exactly the holds that were shown (by fence), and waits until these have ended. Their dlocks
//! stop the jobs; nothing is taken away here.

use super::force::left_alone;
use crate::cli;
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::commands::foreground::{Onlooker, Signals};
use crate::commands::owner::owner;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::lease::Until;
use crate::lease::observer::Observer;
use crate::lock::{By, Mode, Name};
use crate::output::describe;
use crate::output::live::Line;
use crate::output::owner::who;
use crate::output::question;
use crate::output::time::span;
use crate::output::{Event, Kind, What};
use crate::rules::{FOREIGN_LOOK, Holder, Requested, State};
use crate::store::{Store, View};

/// `dlock release KEY` of another holder's lock.
pub fn ask(context: &Context, name: &Name, flags: &cli::Release) -> anyhow::Result<Exit> {
    let Context { settings, printer, .. } = context;
    let place = format!("{} in {}", name.key(), settings.store);
    let mut observer = context.observe(FOREIGN_LOOK)?;
    let view = observer.look(name, context.deadline()).map_err(|error| context.with_origin(error))?;
    let asked = holders(settings, name, &view, flags.slot)?;
    if asked.is_empty() {
        let what = if view.state == State::Free { What::Free } else { What::Unchanged };
        let unknown = context.if_unknown(observer.store(), &view);
        printer.say(Kind::Note, what, &format!("{place} {}{unknown}", nobody(&view, flags.slot)));
        return Ok(Exit::Ok);
    }
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

/// The holders to ask.
fn holders(settings: &Settings, name: &Name, view: &View, slot: Option<u32>) -> Result<Vec<Holder>, Error> {
    if let Some(foreign) = &view.foreign {
        return Err(left_alone(settings, name, foreign));
    }
    if view.state != State::Held {
        return Ok(Vec::new());
    }
    if slot.is_some() && !matches!(view.mode, Some(Mode::Slots(_))) {
        let (key, store) = (name.key(), &settings.store);
        return Err(Error::Usage(format!("{key} in {store} is not held in slots; leave --slot out")));
    }
    let is_meant = |holder: &&Holder| slot.is_none() || holder.slot == slot;
    Ok(view.holders.iter().filter(is_meant).cloned().collect())
}

/// Why there is nobody to ask, as a clause.
fn nobody(view: &View, slot: Option<u32>) -> String {
    let more = match (view.state, slot) {
        (State::Held, Some(slot)) => return format!("has no holder in slot {slot}; nothing to release"),
        (State::Held, None) => "",
        (State::Cooling, _) => "; no job runs under it, and --force frees it at once",
        (State::Revoked, _) => "; --force --now grants it to the next waiter at once",
        (State::Free | State::Paused, _) => "; nothing to release",
    };
    format!("{}{more}", describe::state(view))
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
                let text = format!("{place}: {who} has given the lock back already");
                printer.say(Kind::Note, What::Released, &text);
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

/// Waits until the holds that were asked to end have ended.
fn wait_for_ends(
    context: &Context,
    name: &Name,
    flags: &cli::Release,
    observer: Observer,
    mut pending: Vec<Holder>,
) -> anyhow::Result<Exit> {
    if pending.is_empty() {
        return Ok(Exit::Ok);
    }
    let store = context.settings.store.to_string();
    let place = format!("{} in {store}", name.key());
    let since = Moment::now();
    let until = flags.timeout.map_or(Until::Forever, |bound| Until::At(since.after(bound)));
    // Signals are taken only now, after the question: they end the wait, and the request remains.
    let signals = Signals::take()?;
    let mut onlooker = Onlooker { context, observer, line: Line::new(&context.printer, since), until };
    signals.or_exit(|| {
        let all_ended = onlooker.look_for(name, |view, line| {
            let lives = |holder: &Holder| view.holders.iter().any(|other| other.fence == holder.fence);
            for holder in pending.extract_if(.., |holder| !lives(holder)) {
                let text = ended(&place, &holder, &view, since);
                let kind = if line.has_announced() { Kind::Note } else { Kind::Done };
                line.say(kind, Event::from(What::Released).held_by(Some(&holder)), &text);
            }
            if pending.is_empty() {
                return Some(());
            }
            line.waits(describe::line(store.clone(), view, false, since));
            None
        });
        if all_ended?.is_some() {
            return Ok(Exit::Ok);
        }
        let holders = pending.iter().map(|holder| who(&holder.owner)).collect::<Vec<_>>().join(", ");
        let bound = span(flags.timeout.unwrap_or_default());
        let text = format!(
            "{place} is still held by {holders} after {bound} (--timeout). The request to stop remains; --force takes the \
             lock away"
        );
        let exit = Exit::Busy(Exit::BUSY);
        let event = Event::from(What::Busy).held_by(pending.first()).ends(exit);
        onlooker.line.say(Kind::Note, event, &text);
        Ok(exit)
    })
}

fn ended(place: &str, holder: &Holder, view: &View, since: Moment) -> String {
    let end = view.log.iter().find(|end| end.fence == holder.fence);
    let how = end.map_or_else(|| "does not hold the lock any more".into(), describe::end);
    format!("{place}: {} {how} ({} after the request)", who(&holder.owner), span(Moment::now().since(since)))
}

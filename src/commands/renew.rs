//! `dlock renew`: renews a script's hold once. A hold of a `dlock run` or `dlock hold` is only
//! checked, because that process renews it by its own schedule.

use super::context::Context;
use super::fate::{Fate, person};
use super::held::By;
use super::hold_ref::HoldRef;
use crate::cli;
use crate::config::run::TTL;
use crate::error::Error;
use crate::exit::Exit;
use crate::lock::{Owner, Ttl};
use crate::output::time::{local, millis, now, span};
use crate::output::{Event, Kind, Printer, What};
use crate::rules::{Renew, Renewal};
use crate::store::{Store, View};

pub fn renew(context: &Context, flags: &cli::renew::Renew, printer: &mut Printer) -> anyhow::Result<Exit> {
    let (key, file) = (flags.key.as_ref(), flags.token_file.as_deref());
    let claim = HoldRef::meant(context, key, file, |holds, settings| {
        holds.acquired(settings).or_else(|| holds.current(settings))
    })?;
    *printer = claim.context.printer.clone();
    match claim.held.by {
        By::Run | By::Hold => {
            let proof = claim.verify()?.ok_or_else(|| claim.is_over())?;
            let (place, lease) = (claim.place(), span(proof.lease));
            let keeper = if claim.held.by == By::Hold { "hold" } else { "run" };
            let text = format!(
                "{place} is renewed by the 'dlock {keeper}' that holds it; its lease is good for {lease} more"
            );
            printer.say(Kind::Detail, What::Renewed, &text);
        }
        By::Acquire => renew_once(&claim, flags.ttl)?,
    }
    Ok(Exit::Ok)
}

fn renew_once(claim: &HoldRef, ttl: Option<Ttl>) -> Result<(), Error> {
    let HoldRef { context, names, held } = claim;
    let token = &held.token;
    let (place, printer) = (claim.place(), &context.printer);
    let unsure = |error| context.unsure(error, &format!("it is unknown whether {place} was renewed"));
    let mut store = context.open()?;
    let ttl = match ttl {
        Some(ttl) => {
            context.settings.check_lease("ttl", ttl.get(), true, None)?;
            ttl.get()
        }
        None => {
            let proof = store.prove(names, token, held.known_fence(), context.deadline()).map_err(unsure)?;
            let acquired = claim.held.ttl().map_or(TTL, Ttl::get);
            acquired.max(proof.map(|proof| proof.lease).unwrap_or_default())
        }
    };
    let asks_back = |event: Event<'_>, who: String| {
        let text =
            format!("{who} asks for {place} back: it was renewed, but give it back soon ('dlock release')");
        printer.say(Kind::Warning, event, &text);
    };
    let renew = Renew { token, fence: held.known_fence(), ttl, rest: None };
    match store.renew(names, &renew, context.deadline()).map_err(unsure)? {
        Renewal::Renewed => {}
        Renewal::Superseded => asks_back(What::Superseded.into(), "a newer run (--replace)".into()),
        Renewal::Asked => {
            let by = asker(&mut *store, claim);
            asks_back(Event::from(What::Asked).by(by.as_ref()), person(by.as_ref()));
        }
        Renewal::Revoked => {
            return Err(Error::NotHeld(format!(
                "an operator took {place} away; stop using it, then run 'dlock release'"
            )));
        }
        Renewal::NotHeld => return Err(claim.is_over()),
    }
    let now = now();
    let until = local(now.saturating_add(millis(ttl)), now);
    printer.say(Kind::Detail, What::Renewed, &format!("{place} is renewed until {until}, for {}", span(ttl)));
    Ok(())
}

/// Who asked for the hold back, if the store says so.
fn asker(store: &mut dyn Store, HoldRef { context, names, held }: &HoldRef) -> Option<Owner> {
    let proof = store.prove(names, &held.token, held.known_fence(), context.deadline()).ok()??;
    let views: Vec<View> =
        names.iter().map_while(|name| store.inspect(name, context.deadline()).ok()).collect();
    Fate::of(&views, proof.fence).by().cloned()
}

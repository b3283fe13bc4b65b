//! How does a script keep a lock for longer? One renewal. A hold that a `dlock run` around the script keeps is renewed
//! there, by a plan that knows its lease, and is only looked at here.

use super::acquire::TTL;
use super::context::Context;
use super::held::{By, Holds, Scope};
use super::token_file;
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::Renewal;
use crate::lock::{Names, Token};
use crate::output::Kind;
use crate::output::busy::listed;
use crate::output::time::{local, millis, now, span};
use crate::store;
use std::time::Duration;

pub fn renew(context: &Context, flags: &cli::renew::Renew) -> anyhow::Result<Exit> {
    if let (Some(file), Some(key)) = (&flags.token_file, &flags.key) {
        let lease = Lease {
            shown: format!("{key} in {}", context.settings.store),
            names: context.name(key)?.into(),
            token: token_file::read(file)?,
            ttl: None,
        };
        return lease.renew(context, flags);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(&context.settings, &flags.common);
    let held = match &flags.key {
        Some(key) => holds.meant(scope, key),
        None => holds.acquired(scope).or_else(|| holds.current(scope)),
    };
    let Some(held) = held else {
        return Err(holds.lack(scope, flags.key.as_ref()).into());
    };
    let context = context.at(scope.settings(held)?);
    let shown = format!("{} in {}", listed(&held.keys), context.settings.store);
    if held.by == By::Run {
        let proof = context.verify(&mut *context.open()?, held)?.ok_or_else(|| no_more(&shown))?;
        let lease = span(proof.lease);
        let text = format!(
            "{shown} is renewed by the 'dlock run' that holds it; its lease is good for {lease} more"
        );
        context.printer.say(Kind::Detail, &text);
        return Ok(Exit::Ok);
    }
    let names = held.names().map_err(Error::Usage)?;
    let ttl = held.ttl.map(|ttl| ttl.get());
    Lease { shown, names, token: held.token.clone(), ttl }.renew(&context, flags)
}

struct Lease {
    shown: String,
    names: Names,
    token: Token,
    /// For how long it was acquired, where that is known.
    ttl: Option<Duration>,
}

impl Lease {
    fn renew(&self, context: &Context, flags: &cli::renew::Renew) -> anyhow::Result<Exit> {
        let printer = &context.printer;
        let mut store = context.open()?;
        let ttl = match flags.ttl {
            Some(ttl) => {
                context.check_lease_limit("--ttl", ttl.get())?;
                ttl.get()
            }
            None => {
                let proof = store.prove(&self.names, &self.token, context.deadline());
                let proof = proof.map_err(|error| self.unsure(context, error))?;
                self.ttl.unwrap_or(TTL).max(proof.map(|proof| proof.lease).unwrap_or_default())
            }
        };
        let answer = store.renew(&self.names, &self.token, ttl, context.deadline());
        match answer.map_err(|error| self.unsure(context, error))? {
            Renewal::Renewed => {}
            Renewal::Superseded => printer.say(
                Kind::Warning,
                &format!(
                    "a newer run (--replace) asks for {} back: it is renewed, and should be given back soon",
                    self.shown
                ),
            ),
            Renewal::Asked => printer.say(
                Kind::Warning,
                &format!(
                    "an operator asks for {} back: it is renewed, and should be given back soon",
                    self.shown
                ),
            ),
            Renewal::Revoked => {
                return Err(Error::NotHeld(format!(
                    "an operator took {} away; 'dlock release' says when it is not used any more",
                    self.shown
                ))
                .into());
            }
            Renewal::NotHeld => return Err(no_more(&self.shown).into()),
        }
        let now = now();
        let until = local(now.saturating_add(millis(ttl)), now);
        printer.say(Kind::Detail, &format!("{} is renewed until {until}, for {}", self.shown, span(ttl)));
        Ok(Exit::Ok)
    }

    fn unsure(&self, context: &Context, error: store::Error) -> store::Error {
        context.unsure(error, &format!("whether {} is renewed is not known", self.shown))
    }
}

fn no_more(shown: &str) -> Error {
    Error::NotHeld(format!("{shown} is not held any more; what is done now is done without the lock"))
}

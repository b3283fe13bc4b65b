//! How does a script keep a lock for longer? One renewal. A hold that a `dlock run` around the script keeps is renewed
//! there, by a plan that knows its lease, and is only looked at here.

use super::acquire::TTL;
use super::held::{By, Holds, Scope};
use super::stores::bearable;
use super::{name, no_hold, open, prove, token_file, unsure};
use crate::cli;
use crate::clock::Moment;
use crate::config::Settings;
use crate::error::Error;
use crate::exit::Exit;
use crate::law::Renewal;
use crate::lock::{Names, Token};
use crate::output::busy::listed;
use crate::output::time::{local, millis, now, span};
use crate::output::{Kind, Printer};
use crate::store;
use std::time::Duration;

/// `dlock renew`.
pub fn renew(settings: &Settings, flags: &cli::renew::Renew, printer: &Printer) -> anyhow::Result<Exit> {
    if let (Some(file), Some(key)) = (&flags.token_file, &flags.key) {
        let lease = Lease {
            shown: format!("{key} in {}", settings.store),
            names: name(settings, key)?.into(),
            token: token_file::read(file)?,
            ttl: None,
        };
        return lease.renew(settings, flags, printer);
    }
    let holds = Holds::of_process();
    let scope = Scope::new(settings, &flags.common);
    let held = match &flags.key {
        Some(key) => holds.meant(scope, key),
        None => holds.acquired(scope).or_else(|| holds.current(scope)),
    };
    let Some(held) = held else {
        return Err(no_hold(settings, scope, &holds, flags.key.as_ref()).into());
    };
    let settings = &scope.settings(held)?;
    let shown = format!("{} in {}", listed(&held.keys), settings.store);
    if held.by == By::Run {
        let mut store = open(settings)?;
        let proof = prove(settings, &mut *store, held)?.ok_or_else(|| no_more(&shown))?;
        let lease = span(proof.lease);
        let text = format!(
            "{shown} is renewed by the 'dlock run' that holds it; its lease is good for {lease} more"
        );
        printer.say(Kind::Detail, &text);
        return Ok(Exit::Ok);
    }
    let names = held.names().map_err(Error::Usage)?;
    let ttl = held.ttl.map(|ttl| ttl.get());
    Lease { shown, names, token: held.token.clone(), ttl }.renew(settings, flags, printer)
}

/// What is to be renewed.
struct Lease {
    shown: String,
    names: Names,
    token: Token,
    /// For how long it was acquired, where that is known.
    ttl: Option<Duration>,
}

impl Lease {
    fn renew(
        &self,
        settings: &Settings,
        flags: &cli::renew::Renew,
        printer: &Printer,
    ) -> anyhow::Result<Exit> {
        let by = || Moment::now().after(settings.connect_timeout + settings.op_timeout);
        let mut store = open(settings)?;
        let ttl = match flags.ttl {
            Some(ttl) => {
                bearable(settings, "--ttl", ttl.get())?;
                ttl.get()
            }
            None => {
                let proof = store.prove(&self.names, &self.token, by());
                let proof = proof.map_err(|error| self.unsure(settings, error))?;
                self.ttl.unwrap_or(TTL).max(proof.map(|proof| proof.lease).unwrap_or_default())
            }
        };
        let answer = store.renew(&self.names, &self.token, ttl, by());
        match answer.map_err(|error| self.unsure(settings, error))? {
            Renewal::Renewed => {}
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

    fn unsure(&self, settings: &Settings, error: store::Error) -> Error {
        unsure(settings, error, &format!("whether {} is renewed is not known", self.shown))
    }
}

fn no_more(shown: &str) -> Error {
    Error::NotHeld(format!("{shown} is not held any more; what is done now is done without the lock"))
}

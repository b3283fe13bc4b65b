//! What every command has: the settings and the printer, and with them the deadline for the store,
//! the full names of locks, and errors with their origin. `stores` opens the store.

use super::held::{Held, Holds, OwnHold};
use crate::cli::Common;
use crate::cli::usage::nearest;
use crate::clock::Moment;
use crate::config::{Environment, Settings, Source};
use crate::error::Error;
use crate::lease::retry::Retry;
use crate::lease::{RIDE_OUT_PAUSE, Until};
use crate::lock::{Key, Name, Names};
use crate::output::busy::listed;
use crate::output::{Kind, Printer, What};
use crate::rules::Proof;
use crate::shell::quoted;
use crate::store::net::interrupt;
use crate::store::{self, Store, View};
use std::sync::OnceLock;
use std::time::Duration;

/// The key of the lock that has the identity of the store (`doctor`), under the prefix. Commands without
/// KEY leave it out, and no suggestion names it.
pub const IDENTITY_KEY: &str = "dlock.identity";

/// The settings and the printer of a command.
#[derive(Debug, Clone)]
pub struct Context {
    pub settings: Settings,
    pub printer: Printer,
    /// The locks to suggest, once they were asked for.
    known: OnceLock<Vec<Name>>,
}

impl Context {
    /// Resolves the settings and prints warnings about them. `key` is what the command is about.
    pub fn new(common: &Common, key: Option<&Key>) -> Result<Self, Error> {
        let settings = Settings::resolve(common, &Environment::of_process())?;
        let printer = Printer::new(&settings).about(key);
        for warning in &settings.warnings {
            printer.say(Kind::Warning, What::Setting, warning);
        }
        for remark in &settings.remarks {
            printer.say(Kind::Detail, What::Setting, remark);
        }
        Ok(Self::with(settings, printer))
    }

    pub const fn with(settings: Settings, printer: Printer) -> Self {
        Self { settings, printer, known: OnceLock::new() }
    }

    /// The context of the same command for the store of these settings.
    pub fn at(&self, settings: Settings) -> Self {
        Self::with(settings.clone(), self.printer.clone().at(&settings))
    }

    /// Warns that no setting names the store in which something is about to be locked, and how to
    /// name it.
    pub fn say_default(&mut self) {
        let store = &mut self.settings.store;
        if store.source == Source::Default {
            let text = format!(
                "no setting names a store, so {store} is used, which is a different server on each machine; name one with --store, DLOCK_STORE or store = \"URL\" in /etc/dlock.toml, even if it is this one"
            );
            self.printer.say(Kind::Warning, What::Setting, &text);
            store.default_is_said = true;
        }
    }

    /// Limit for one request, connecting included.
    pub fn request_time(&self) -> Duration {
        self.settings.connect_timeout + self.settings.op_timeout
    }

    /// Longest time for which a process that outlives dlock tries to give the lock back: no longer than
    /// the ttl, but at least for one whole request.
    pub fn give_back_time(&self, ttl: Duration) -> Duration {
        const MOST: Duration = Duration::from_secs(10);
        self.request_time().max(MOST.min(ttl))
    }

    /// The deadline for a request that is made now, connecting included.
    pub fn deadline(&self) -> Moment {
        Moment::now().after(self.request_time())
    }

    /// The full name of a lock.
    pub fn name(&self, key: &Key) -> Result<Name, Error> {
        Name::new(&self.settings.prefix, key).map_err(Error::Usage)
    }

    /// The full names of locks that one hold takes together.
    pub fn names(&self, keys: &[Key]) -> Result<Names, Error> {
        let mut names = keys.iter().map(|key| self.name(key)).collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = names.next().ok_or_else(|| Error::Usage("a key is needed".into()))?;
        Ok(Names::new(first, names))
    }

    /// Asks the store about a hold that is claimed; `None` if it is no longer held.
    pub fn verify(&self, store: &mut dyn Store, held: &Held) -> Result<Option<Proof>, Error> {
        let unknown = || format!("it is unknown whether {} is still held", listed(&held.keys));
        let names = held.names().map_err(Error::Usage)?;
        let proof = store.prove(&names, &held.token, held.known_fence(), self.deadline());
        let proof = proof.map_err(|error| self.unsure(error, &unknown()))?;
        Ok(proof.filter(|proof| held.is_proved_by(proof)))
    }

    /// Asks the store whether a hold that DLOCK_HELD claims has these locks there; `None` if not.
    /// Under another URL than the hold's, the store must first show the fence of the hold: another
    /// store must not learn the token.
    fn verify_in(
        &self,
        store: &mut dyn Store,
        held: &Held,
        names: &Names,
    ) -> Result<Option<Proof>, store::Error> {
        if !held.is_in(&self.settings) {
            if !held.may_be_in(&self.settings) {
                return Ok(None);
            }
            let holders = store.inspect(names.first(), self.deadline())?.holders;
            if holders.iter().all(|holder| holder.fence != held.fence) {
                return Ok(None);
            }
        }
        let proof = store.prove(names, &held.token, held.known_fence(), self.deadline())?;
        Ok(proof.filter(|proof| held.is_proved_by(proof)))
    }

    /// The holds that this process has of a lock, innermost first, as the store confirms them. A
    /// caller that waits for the lock would wait for itself.
    pub fn own_holds(&self, store: &mut dyn Store, name: &Name) -> Result<Vec<OwnHold>, store::Error> {
        let mut own = Vec::new();
        for held in Holds::of_process().of_lock(name) {
            let proof = self.verify_in(store, held, &name.clone().into()).inspect_err(|_| store.reset())?;
            own.extend(proof.map(|proof| OwnHold { held: held.clone(), proof }));
        }
        Ok(own)
    }

    /// A clause about a lock that the store does not know, to follow another one: with the nearest key
    /// that it knows. Empty if it knows the lock.
    pub fn if_unknown(&self, store: &mut dyn Store, view: &View) -> String {
        match view.is_known() {
            true => String::new(),
            false => format!("; not known here{}", self.suggestion(store, view)),
        }
    }

    /// The known key that is nearest to that of an unknown lock, as a clause to follow another one.
    pub fn suggestion(&self, store: &mut dyn Store, view: &View) -> String {
        // A store that is slow or forbids the search gives none.
        let known = self.known.get_or_init(|| store.glimpse(&self.settings.prefix).unwrap_or_default());
        let others = known.iter().map(Name::key).filter(|key| ![view.name.key(), IDENTITY_KEY].contains(key));
        let near = nearest(view.name.key(), others);
        near.map(|near| format!("; did you mean {}?", quoted(near))).unwrap_or_default()
    }

    /// Adds to a store error which setting named the store; to one about the password, where the
    /// password is from.
    pub fn with_origin(&self, error: store::Error) -> store::Error {
        let store = &self.settings.store;
        let is_withheld = |held: &Held| held.access.password;
        let is_inside = || Holds::of_process().here(&self.settings).any(is_withheld);
        let hint = match (&error, &self.settings.password_from) {
            (store::Error::Password(_), Some(from)) => {
                return error.map(|text| format!("{text}; the password is {from}"));
            }
            (store::Error::Denied(_), _) if store.credentials.is_none() && is_inside() => {
                "; the surrounding dlock run got the password in a way that its job does not inherit: give it --password-file there"
            }
            _ => "",
        };
        error.map(|text| format!("{text} ({}){hint}", store.origin()))
    }

    /// Adds to a store error which setting named the store, and what is unknown because of it.
    pub fn unsure(&self, error: store::Error, what: &str) -> store::Error {
        self.with_origin(error).map(|text| format!("{text}; {what}"))
    }
}

/// Asks again while the store cannot be reached, as long as the caller would wait for the lock, and
/// until an [interrupt]. Calls `trouble` once.
pub fn riding_out<T>(
    until: Until,
    mut trouble: impl FnMut(&store::Error),
    mut ask: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let (mut troubled, mut retry) = (until == Until::No, Retry::after(RIDE_OUT_PAUSE));
    loop {
        match ask() {
            Err(Error::Store(error)) if retry.rides_out(&error, until) && !interrupt::is_raised() => {
                if !std::mem::replace(&mut troubled, true) {
                    trouble(&error);
                }
                let pause = retry.pause(std::process::id());
                interrupt::sleep_until(Moment::now().after(pause));
            }
            answer => return answer,
        }
    }
}

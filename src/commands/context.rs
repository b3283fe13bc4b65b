//! What does every command have? The settings, who prints, and what follows from both: how long the store has, what a lock
//! is called there, and how its errors are told. How the store is opened is in `stores`.

use super::held::{Held, Holds};
use crate::cli::Common;
use crate::clock::{self, Moment};
use crate::config::reach::PasswordAt;
use crate::config::{Environment, Settings, Source};
use crate::error::Error;
use crate::lease::{RIDE_OUT_PAUSE, Until};
use crate::lock::{Key, Name, Names, Token};
use crate::output::busy::listed;
use crate::output::{Kind, Printer, What};
use crate::rules::Proof;
use crate::store::{self, Store};

/// The settings of a command, and who prints.
#[derive(Debug, Clone)]
pub struct Context {
    pub settings: Settings,
    pub printer: Printer,
}

impl Context {
    /// Resolves the settings, and says what is to be said about them. `key` is what the command is about.
    pub fn new(common: &Common, key: Option<&Key>) -> Result<Self, Error> {
        let settings = Settings::resolve(common, &Environment::of_process())?;
        let printer = Printer::new(&settings).about(key);
        for warning in &settings.warnings {
            printer.say(Kind::Warning, What::Setting, warning);
        }
        for remark in &settings.remarks {
            printer.say(Kind::Detail, What::Setting, remark);
        }
        Ok(Self { settings, printer })
    }

    /// The same command in another place.
    pub fn at(&self, settings: Settings) -> Self {
        Self { printer: self.printer.clone().at(&settings), settings }
    }

    /// Says that nobody named the store in which something is about to be locked, and how to.
    pub fn say_default(&mut self) {
        let store = &mut self.settings.store;
        if store.source == Source::Default {
            let text = format!(
                "nothing names a store, so it is {store}, which on another machine is another server; name one by \
                 --store, DLOCK_STORE or store = \"URL\" in /etc/dlock.toml, even if it is this one"
            );
            self.printer.say(Kind::Warning, What::Setting, &text);
            store.default_is_said = true;
        }
    }

    /// Until when a question that is asked now has to be answered, connecting included.
    pub fn deadline(&self) -> Moment {
        Moment::now().after(self.settings.connect_timeout + self.settings.op_timeout)
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

    /// What the store says of a hold that DLOCK_HELD claims; nothing if it is none any more.
    pub fn verify(&self, store: &mut dyn Store, held: &Held) -> Result<Option<Proof>, Error> {
        self.prove(store, &held.names().map_err(Error::Usage)?, &held.token, &listed(&held.keys))
    }

    /// Whether a token holds these locks, whose `keys` messages name.
    pub fn prove(
        &self,
        store: &mut dyn Store,
        names: &Names,
        token: &Token,
        keys: &str,
    ) -> Result<Option<Proof>, Error> {
        let proof = store.prove(names, token, self.deadline());
        Ok(proof
            .map_err(|error| self.unsure(error, &format!("whether {keys} is still held is not known")))?)
    }

    /// An error of the store, with where the store was set.
    pub fn with_origin(&self, error: store::Error) -> store::Error {
        let store = &self.settings.store;
        let is_withheld = |held: &Held| held.access.password == PasswordAt::Elsewhere;
        let is_inside = || Holds::of_process().here(&self.settings).any(is_withheld);
        let hint = match &error {
            store::Error::Denied(_) if store.credentials.is_none() && is_inside() => {
                "; the dlock around this job was told the password in a way that does not reach in here: give it by \
                 --password-file out there"
            }
            _ => "",
        };
        error.map(|text| format!("{text} ({}){hint}", store.origin()))
    }

    /// The same, and what is not known because of it.
    pub fn unsure(&self, error: store::Error, what: &str) -> store::Error {
        self.with_origin(error).map(|text| format!("{text}; {what}"))
    }
}

/// Asks again while the store cannot be reached, as long as one would wait for the lock; `trouble` hears of it once.
pub fn riding_out<T>(
    until: Until,
    mut trouble: impl FnMut(&store::Error),
    mut ask: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut troubled = false;
    loop {
        match ask() {
            Err(Error::Store(error)) if until.rides_out(&error) && !until.is_over() => {
                if !std::mem::replace(&mut troubled, true) {
                    trouble(&error);
                }
                clock::sleep_until(Moment::now().after(RIDE_OUT_PAUSE));
            }
            answer => return answer,
        }
    }
}

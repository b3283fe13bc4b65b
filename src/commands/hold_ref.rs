//! Finds the hold that a script's command is about, by a token file or by DLOCK_HELD, and asks the
//! store whether it is still held.

use super::context::Context;
use super::held::{By, Held, Holds, Keeper};
use super::token_file;
use crate::config::Settings;
use crate::error::Error;
use crate::lock::{Key, Names, Token, Ttl};
use crate::output::busy::listed;
use crate::rules::Proof;
use std::path::Path;

/// A hold that the caller claims to have.
pub struct HoldRef {
    /// With the settings of the hold's store.
    pub context: Context,
    pub names: Names,
    pub token: Token,
    /// Its keys, as messages list them.
    pub keys: String,
    /// Which command renews it. With a token file, the script itself does.
    pub by: By,
    /// The lease that it was acquired for, if known.
    pub ttl: Option<Ttl>,
    /// The `dlock hold` process that renews it.
    pub keeper: Option<Keeper>,
}

impl HoldRef {
    /// The hold that a command's flags name. `usual` picks one if they name no key.
    pub fn meant(
        context: &Context,
        key: Option<&Key>,
        token_file: Option<&Path>,
        usual: for<'a> fn(&'a Holds, &'a Settings) -> Option<&'a Held>,
    ) -> Result<Self, Error> {
        if let (Some(file), Some(key)) = (token_file, key) {
            return Self::of_token(context, key, file);
        }
        let (holds, settings) = (Holds::of_process(), &context.settings);
        let held = match key {
            Some(key) => holds.meant(settings, key),
            None => usual(&holds, settings),
        };
        let held = held.ok_or_else(|| holds.lack(settings, key))?;
        Self::of_held(context.at(held.settings(settings)?), held)
    }

    /// The hold whose token is in a file.
    pub fn of_token(context: &Context, key: &Key, file: &Path) -> Result<Self, Error> {
        let (names, token) = (context.name(key)?.into(), token_file::read(file)?);
        Ok(Self {
            context: context.clone(),
            names,
            token,
            keys: key.to_string(),
            by: By::Acquire,
            ttl: None,
            keeper: None,
        })
    }

    /// A hold listed in DLOCK_HELD. `context` is that of its store.
    pub fn of_held(context: Context, held: &Held) -> Result<Self, Error> {
        let Held { token, by, ttl, keeper, .. } = held.clone();
        Ok(Self {
            context,
            names: held.names().map_err(Error::Usage)?,
            token,
            keys: listed(&held.keys),
            by,
            ttl,
            keeper,
        })
    }

    /// The locks and their store, for messages.
    pub fn place(&self) -> String {
        format!("{} in {}", self.keys, self.context.settings.store)
    }

    /// Asks the store; `None` if it is no longer held.
    pub fn verify(&self) -> Result<Option<Proof>, Error> {
        self.context.prove(&mut *self.context.open()?, &self.names, &self.token, &self.keys)
    }

    /// The error for a hold that the store does not confirm.
    pub fn is_over(&self) -> Error {
        Error::NotHeld(format!(
            "{} is not held any more; what runs under it now runs without the lock",
            self.place()
        ))
    }
}

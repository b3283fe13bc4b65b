//! Finds the hold that a script's command is about, by a token file or by DLOCK_HELD, and asks the
//! store whether it is still held.

use super::context::Context;
use super::held::{By, Held, Holds};
use super::token_file;
use crate::config::Settings;
use crate::error::Error;
use crate::lock::{Fence, Key, Names};
use crate::output::busy::listed;
use crate::rules::Proof;
use std::path::Path;

/// The hold of this key that a command means. A store that a flag names is asked for the holds that
/// DLOCK_HELD has in others, because it may be one of them under another URL.
pub fn find<'a>(context: &'a Context, holds: &'a Holds, key: &Key) -> Result<Option<&'a Held>, Error> {
    if let Some(held) = holds.meant(&context.settings, key) {
        return Ok(Some(held));
    }
    let name = context.name(key)?;
    let mut claims = holds.of_lock(&name).peekable();
    if claims.peek().is_none() {
        return Ok(None);
    }
    let own = context.own_holds(&mut *context.open()?, &name).map_err(|error| context.with_origin(error))?;
    Ok(claims.find(|held| own.first().is_some_and(|own| own.held.token == held.token)))
}

/// A hold that the caller says it has; [`HoldRef::verify`] asks the store.
pub struct HoldRef {
    /// With the settings of the hold's store.
    pub context: Context,
    pub held: Held,
    pub names: Names,
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
            Some(key) => find(context, &holds, key)?,
            None => usual(&holds, settings),
        };
        let held = held.ok_or_else(|| holds.lack(settings, key))?;
        Self::new(context.at(held.settings(settings)?), held.clone())
    }

    /// The hold whose token is in a file. The script that has the file renews it.
    pub fn of_token(context: &Context, key: &Key, file: &Path) -> Result<Self, Error> {
        let token = token_file::read(file, context.settings.connect_timeout)?;
        let (keys, unknown) = (vec![key.clone()], Fence(0));
        Self::new(context.clone(), Held::new(&context.settings, keys, token, unknown, By::Acquire))
    }

    /// A hold; `context` is that of its store.
    pub fn new(context: Context, held: Held) -> Result<Self, Error> {
        Ok(Self { names: held.names().map_err(Error::Usage)?, context, held })
    }

    /// The locks and their store, for messages.
    pub fn place(&self) -> String {
        format!("{} in {}", listed(&self.held.keys), self.context.settings.store)
    }

    /// Asks the store about the hold; `None` if it is no longer held.
    pub fn verify(&self) -> Result<Option<Proof>, Error> {
        self.context.verify(&mut *self.context.open()?, &self.held)
    }

    /// The error for a hold that the store does not confirm.
    pub fn is_over(&self) -> Error {
        Error::NotHeld(format!(
            "{} is not held any more; what runs under it now runs without the lock",
            self.place()
        ))
    }
}

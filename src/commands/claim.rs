//! Which hold is a script's command about, and is it still held? The hold is the one whose token is in a file, or one that
//! DLOCK_HELD tells of. Both are claims until the store bears them out.

use super::context::Context;
use super::held::{By, Held, Holds, Keeper, Scope};
use super::token_file;
use crate::cli::Common;
use crate::error::Error;
use crate::lock::{Key, Names, Token, Ttl};
use crate::output::busy::listed;
use crate::rules::Proof;
use std::path::Path;

/// A hold that somebody says to have.
pub struct Claim {
    /// With the settings for where it is.
    pub context: Context,
    pub names: Names,
    pub token: Token,
    /// Its keys, as messages list them.
    pub keys: String,
    /// Who renews it. Who has its token in a file does that himself.
    pub by: By,
    /// The lease that it was acquired for, where that is known.
    pub ttl: Option<Ttl>,
    /// The `dlock hold` that keeps it.
    pub keeper: Option<Keeper>,
}

impl Claim {
    /// What a command is about by its flags. `usual` picks one where they name no key.
    pub fn meant(
        context: &Context,
        common: &Common,
        key: Option<&Key>,
        token_file: Option<&Path>,
        usual: for<'a> fn(&'a Holds, Scope<'a>) -> Option<&'a Held>,
    ) -> Result<Self, Error> {
        if let (Some(file), Some(key)) = (token_file, key) {
            return Self::of_token(context, key, file);
        }
        let holds = Holds::of_process();
        let scope = Scope::new(&context.settings, common);
        let held = match key {
            Some(key) => holds.meant(scope, key),
            None => usual(&holds, scope),
        };
        let held = held.ok_or_else(|| holds.lack(scope, key))?;
        Self::of_held(context.at(scope.settings(held)?), held)
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

    /// One that DLOCK_HELD tells of, where `context` is.
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

    /// The locks and where they are, for messages.
    pub fn place(&self) -> String {
        format!("{} in {}", self.keys, self.context.settings.store)
    }

    /// What the store says of it; nothing if it is none any more.
    pub fn verify(&self) -> Result<Option<Proof>, Error> {
        self.context.prove(&mut *self.context.open()?, &self.names, &self.token, &self.keys)
    }

    /// That the store does not bear it out.
    pub fn is_over(&self) -> Error {
        Error::NotHeld(format!(
            "{} is not held any more; what is done now is done without the lock",
            self.place()
        ))
    }
}

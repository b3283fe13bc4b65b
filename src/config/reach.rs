//! How does a dlock inside of a job reach the same store? By the variables that its job gets, and, for a hold that is
//! somewhere else, by what DLOCK_HELD says of it. All as it was resolved, and never a secret: a password that stands in no
//! file is known to whoever was told it, by DLOCK_PASSWORD mostly.

use super::url::{self, Location, Secret};
use super::{Credentials, Error, Password, Settings, Source, Store, invalid};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How a store is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The URL without a password, and without a user who has one.
    pub url: String,
    /// The user, if one is named.
    pub username: Option<String>,
    pub password: PasswordAt,
}

/// Where the password of a store is to be found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PasswordAt {
    #[default]
    Nowhere,
    /// In this file; absolute.
    File(PathBuf),
    /// This command prints it.
    Command(Secret),
    /// In DLOCK_PASSWORD, a URL or a configuration file.
    Elsewhere,
}

impl PasswordAt {
    pub(super) fn of(password: &Password) -> Self {
        match password {
            Password::Text(_) => Self::Elsewhere,
            Password::File(path) => Self::File(path.clone()),
            Password::Command(text) => Self::Command(text.clone()),
        }
    }
}

/// What has to be in the environment beside [`Access`] for the password to be found again.
#[derive(Debug, Clone, Default)]
pub(super) struct Beside {
    /// DLOCK_STORE stays as it is: it has the password.
    pub store_has_it: bool,
    /// DLOCK_PASSWORD is another one.
    pub variable_differs: bool,
    /// The configuration file that has it, if a dlock inside would not read that by itself.
    pub config: Option<PathBuf>,
}

impl Settings {
    /// The variables by which a dlock in this environment reaches the store of these settings: to set, or to unset.
    pub fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let Access { url, username, password } = &self.store.access;
        let (file, command) = match password {
            PasswordAt::File(path) => (Some(path.into()), None),
            PasswordAt::Command(text) => (None, Some(text.expose().into())),
            PasswordAt::Nowhere | PasswordAt::Elsewhere => (None, None),
        };
        let mut variables = vec![
            ("DLOCK_PREFIX", Some(OsString::from(&self.prefix))),
            ("DLOCK_USERNAME", username.as_ref().map(OsString::from)),
            ("DLOCK_PASSWORD_FILE", file),
            ("DLOCK_PASSWORD_COMMAND", command),
        ];
        if !self.beside.store_has_it {
            variables.push(("DLOCK_STORE", Some(url.into())));
        }
        if self.beside.variable_differs {
            variables.push(("DLOCK_PASSWORD", None));
        }
        if let Some(config) = &self.beside.config {
            variables.push(("DLOCK_CONFIG", Some(config.into())));
        }
        variables
    }

    /// The settings for another place, which `held_by` (a variable) names: everything else stays as it is. `shown` is the
    /// store's name as messages have it.
    pub fn at(
        &self,
        shown: &str,
        access: &Access,
        prefix: &str,
        held_by: &'static str,
    ) -> Result<Self, Error> {
        let mut settings = self.clone();
        settings.prefix = prefix.into();
        if self.store.to_string() == shown {
            return Ok(settings);
        }
        let source = Source::Variable(held_by);
        let invalid = |why: String| invalid(&source, &why);
        let url = url::parse(&access.url).map_err(invalid)?;
        let sentinel_credentials = url.sentinel_credentials().map_err(invalid)?;
        let password = match (&access.password, &url.place) {
            (PasswordAt::Nowhere, _) | (_, Location::File { .. }) => None,
            (PasswordAt::File(path), _) => {
                Secret::of_file(path).map_err(invalid)?;
                Some(Password::File(path.clone()))
            }
            (PasswordAt::Command(text), _) => Some(Password::Command(text.clone())),
            (PasswordAt::Elsewhere, _) => self.password_variable.clone().map(Password::Text),
        };
        let username = access.username.clone();
        let username = username.or_else(|| url.username.clone());
        let has_any = password.is_some() || username.is_some();
        let credentials = has_any.then_some(Credentials { username, password });
        let access = access.clone();
        settings.store = Store {
            place: url.place,
            credentials,
            sentinel_credentials,
            source,
            access,
            default_is_said: false,
        };
        Ok(settings)
    }
}

/// The path from the root. Whoever reads it may be in another directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

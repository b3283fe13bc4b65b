//! How a dlock inside a job reaches the same store: by the variables that the job gets, and for a
//! hold in another store by its entry in DLOCK_HELD. All values are as resolved, and never a
//! secret: a password that is in no file must come from the caller, mostly in DLOCK_PASSWORD.

use super::url::{self, Location, Secret};
use super::{Credentials, Error, Password, Settings, Source, Store, invalid};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How a store is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The URL, without a password, and without a user that has a password.
    pub url: String,
    /// The user, if there is a password; else the URL names it.
    pub username: Option<String>,
    pub password: PasswordAt,
}

/// Where the password of a store is found.
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

/// What the environment needs besides [`Access`] for the password to be found again.
#[derive(Debug, Clone, Default)]
pub(super) struct Beside {
    /// DLOCK_STORE stays unchanged: it contains the password.
    pub store_has_it: bool,
    /// DLOCK_PASSWORD is set and may be another password.
    pub variable_differs: bool,
    /// The configuration file that contains it, if a dlock inside would not read that file anyway.
    pub config: Option<PathBuf>,
}

impl Settings {
    /// The variables to set or unset, so that a dlock in this environment reaches the store of
    /// these settings.
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

    /// The settings for another store, which the variable `held_by` names. Everything else stays
    /// the same. `shown` is the store's name in messages.
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

/// The absolute path: its reader may have another current directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

//! How a dlock inside a job reaches the same store: by the variables that the job gets, and for a
//! hold in another store by its entry in DLOCK_HELD. All values are as resolved, and never a
//! secret: a password that is in no file must come from the caller, mostly in DLOCK_PASSWORD.

use super::url::{self, Location, Secret};
use super::{Credentials, Error, Password, Settings, Source, Store, invalid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How a store is reached, as an entry of DLOCK_HELD says it. At most one of the last three fields
/// is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// The URL if it differs from the store's name: with parameters such as certificates, or with a
    /// user that has no password. Never with a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The user, if there is a password; else the URL names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The file with the password; absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The command that prints the password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_command: Option<Secret>,
    /// Whether the password is elsewhere: in DLOCK_PASSWORD, a URL or a configuration file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub password: bool,
}

impl Access {
    /// How this store is reached by its URL, which has no user or password in it.
    pub(super) fn of(place: &Location, url: String, login: Option<&Credentials>) -> Self {
        let username = login.and_then(|login| login.username.clone());
        let (url, mut access) = match (login.and_then(|login| login.password.as_ref()), &username) {
            // A user without a password goes into the URL, not into a variable: it is valid for this
            // store only.
            (None, Some(user)) => (url::with_user(&url, user), Self::default()),
            (None, None) => (url, Self::default()),
            (Some(Password::Text(_)), _) => (url, Self { password: true, ..Self::default() }),
            (Some(Password::File(path)), _) => {
                (url, Self { password_file: Some(path.clone()), ..Self::default() })
            }
            (Some(Password::Command(text)), _) => {
                (url, Self { password_command: Some(text.clone()), ..Self::default() })
            }
        };
        access.url = Some(url).filter(|url| *url != place.to_string());
        access.username = username.filter(|_| access.has_password());
        access
    }

    fn has_password(&self) -> bool {
        self.password || self.password_file.is_some() || self.password_command.is_some()
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
        let Access { url, username, password_file, password_command, .. } = &self.store.access;
        let mut variables = vec![
            ("DLOCK_PREFIX", Some(OsString::from(&self.prefix))),
            ("DLOCK_USERNAME", username.as_ref().map(OsString::from)),
            ("DLOCK_PASSWORD_FILE", password_file.as_ref().map(OsString::from)),
            ("DLOCK_PASSWORD_COMMAND", password_command.as_ref().map(|text| text.expose().into())),
        ];
        if !self.beside.store_has_it {
            let url = url.clone().unwrap_or_else(|| self.store.to_string());
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

    /// The settings for another store, which the variable `from` names. Everything else stays
    /// the same. `shown` is the store's name in messages.
    pub fn at(&self, shown: &str, access: &Access, prefix: &str, from: &'static str) -> Result<Self, Error> {
        let mut settings = self.clone();
        settings.prefix = prefix.into();
        if self.store.to_string() == shown {
            return Ok(settings);
        }
        let source = Source::Variable(from);
        let invalid = |why: String| invalid(&source, &why);
        let url = url::parse(access.url.as_deref().unwrap_or(shown)).map_err(invalid)?;
        let sentinel_credentials = url.sentinel_credentials(self.connect_timeout).map_err(invalid)?;
        let password = match access {
            _ if matches!(url.place, Location::File { .. }) => None,
            Access { password_file: Some(path), .. } => {
                Secret::of_file(path, self.connect_timeout).map_err(invalid)?;
                Some(Password::File(path.clone()))
            }
            Access { password_command: Some(text), .. } => Some(Password::Command(text.clone())),
            Access { password: true, .. } => self.password_variable.clone().map(Password::Text),
            _ => None,
        };
        let username = access.username.clone();
        let username = username.or_else(|| url.username.clone());
        let has_any = password.is_some() || username.is_some();
        // `Text` is only in DLOCK_PASSWORD.
        let from = match &password {
            Some(Password::Text(_)) => Some(Source::Variable("DLOCK_PASSWORD")),
            Some(_) => Some(source.clone()),
            None => None,
        };
        settings.password_from = password.as_ref().zip(from).map(|(password, from)| password.is_from(&from));
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

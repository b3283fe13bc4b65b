//! Resolves the user and password, and where they are found. Every layer may name them; the
//! strongest layer wins, and two different values on it are an error.

use super::access::{Beside, absolute};
use super::url::{self, Location, Secret};
use super::{Credentials, Layers, Password, Sensitivity, Set, Source, invalid, of_flag};
use crate::error::Error;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The login, and where it was found.
#[derive(Default)]
pub struct Login {
    pub credentials: Option<Credentials>,
    password_source: Option<Source>,
}

impl Login {
    /// Where the password is from, in words.
    pub fn password_from(&self) -> Option<String> {
        let password = self.credentials.as_ref()?.password.as_ref()?;
        Some(password.is_from(self.password_source.as_ref()?))
    }
}

impl Password {
    /// Where it is from, in words.
    pub(super) fn is_from(&self, source: &Source) -> String {
        match self {
            Self::Text(_) => format!("from {source}"),
            Self::File(path) => format!("from {}, read before each connection ({source})", path.display()),
            Self::Command(_) => format!("from a command, run before each connection ({source})"),
        }
    }
}

impl Layers<'_> {
    /// Resolves user and password. A password in the URL counts as set where the URL was set. The
    /// highest layer with a password may give several only if they are equal. A file is read within
    /// this time.
    pub fn credentials(&self, url: &Set<url::Url>, within: Duration) -> Result<Login, Error> {
        let Self { flags, files, file, .. } = self;
        let rank = |source: &Source| match source {
            Source::Flag(_) => usize::MAX,
            Source::Variable(_) => usize::MAX - 1,
            Source::File { path, .. } => 1 + files.iter().position(|file| file.path == *path).unwrap_or(0),
            Source::Default => 0,
        };
        let in_url = |text: &Option<String>| {
            text.as_ref().map(|text| Set { value: text.clone(), source: url.source.clone() })
        };
        let separate = self.text(flags.username.as_deref(), "--username", "DLOCK_USERNAME", "username")?;
        let username =
            highest("users", &rank, separate.into_iter().chain(in_url(&url.value.username)).collect())?;
        let secret_of = |below: Set<url::Url>| {
            let of_user = below.value.is_of(username.as_ref().map(|set| &set.value));
            let secret = below.value.password.filter(|_| of_user)?;
            Some((Form::Text, Set { value: secret.expose().to_owned(), source: below.source }))
        };
        let secret = url.value.password.as_ref().map(|secret| secret.expose().to_owned());
        let flag =
            |text: &Option<OsString>, name| text.as_deref().map(|text| of_flag(text, name)).transpose();
        let given = [
            (Form::File, flag(&flags.password_file, "--password-file")?),
            (Form::Command, flag(&flags.password_command, "--password-command")?),
            (Form::Text, self.variable("DLOCK_PASSWORD")),
            (Form::File, self.variable("DLOCK_PASSWORD_FILE")),
            (Form::Command, self.variable("DLOCK_PASSWORD_COMMAND")),
            (Form::Text, in_url(&secret)),
            (Form::Text, file.get("password").cloned()),
            (Form::File, file.get("password-file").cloned()),
            (Form::Command, file.get("password-command").cloned()),
        ];
        let mut given: Vec<_> = given.into_iter().filter_map(|(form, set)| Some((form, set?))).collect();
        given.extend(self.urls_below(url).into_iter().filter_map(secret_of));
        let top = given.iter().map(|(_, set)| rank(&set.source)).max().unwrap_or(0);
        given.retain(|(_, set)| rank(&set.source) == top);
        let password = resolved(given, within)?;
        match (username, password) {
            (username, Some(Set { value: password, source })) => Ok(Login {
                credentials: Some(Credentials {
                    username: username.map(|set| set.value),
                    password: Some(password),
                }),
                password_source: Some(source),
            }),
            (Some(username), None) if matches!(url.value.place, Location::Database { .. }) => Ok(Login {
                credentials: Some(Credentials { username: Some(username.value), password: None }),
                ..Login::default()
            }),
            (Some(username), None) => Err(invalid(
                &username.source,
                "a user is set, but no password; give it with --password-file, --password-command or DLOCK_PASSWORD",
            )),
            (None, None) => Ok(Login::default()),
        }
    }

    /// The URLs on lower layers that name the same store. A job gets DLOCK_STORE without the
    /// password; if it can read the password's original place, it finds it there.
    fn urls_below(&self, url: &Set<url::Url>) -> Vec<Set<url::Url>> {
        let files = self.files.iter().filter_map(|file| file.get("store").cloned());
        let texts = self.variable("DLOCK_STORE").into_iter().chain(files);
        let others = texts.filter(|text| text.source != url.source);
        let parsed =
            others.filter_map(|text| Some(Set { value: url::parse(&text.value).ok()?, source: text.source }));
        parsed.filter(|other| other.value.place == url.value.place).collect()
    }

    /// What a dlock inside a job needs besides the store and the user.
    pub fn beside(&self, login: &Login) -> Beside {
        let user = login.credentials.as_ref().and_then(|login| login.username.as_ref());
        let in_store = login.password_source == Some(Source::Variable("DLOCK_STORE"));
        let store = self.variable("DLOCK_STORE").filter(|_| in_store);
        let store = store.and_then(|store| url::parse(&store.value).ok());
        let password = login.credentials.as_ref().and_then(|login| login.password.as_ref());
        let in_file = match (&login.password_source, password) {
            (Some(Source::File { path, .. }), Some(Password::Text(_))) => Some(path),
            _ => None,
        };
        let named = in_file.filter(|_| self.flags.config.is_some());
        let relative = || {
            let path = self.variables.get("DLOCK_CONFIG").map(Path::new)?;
            path.is_relative().then_some(path)
        };
        Beside {
            store_has_it: store.is_some_and(|store| store.is_of(user)),
            // The file or command may give a new password by then, which would contradict
            // DLOCK_PASSWORD.
            variable_differs: matches!(password, Some(Password::File(_) | Password::Command(_)))
                && self.variables.contains_key("DLOCK_PASSWORD"),
            config: named.map(PathBuf::as_path).or_else(relative).map(absolute),
        }
    }

    /// Every file that the settings name, also one with a password that a stronger layer overrides.
    pub fn sensitive_files(&self, url: &Set<url::Url>) -> Vec<(PathBuf, Sensitivity)> {
        use Sensitivity::{Secret, Trusted};
        let below = self.urls_below(url);
        let of_url = |path: &Path| {
            below.iter().chain([url]).any(|url| match &url.source {
                Source::File { path: named, .. } => named == path && url.value.password.is_some(),
                _ => false,
            })
        };
        let mut found: BTreeMap<PathBuf, Sensitivity> = BTreeMap::new();
        // A file that others may change was refused.
        let secret = self.files.iter().filter(|file| file.get("password").is_some() || of_url(&file.path));
        found.extend(secret.map(|file| (file.path.clone(), Secret)));
        let passwords = [
            self.flags.password_file.as_ref().map(PathBuf::from),
            self.variable("DLOCK_PASSWORD_FILE").map(|set| set.value.into()),
            self.file.get("password-file").cloned().map(|set| password_path(&set)),
            url.value.sentinel.as_ref().map(|login| login.password_file.clone()),
        ];
        found.extend(passwords.into_iter().flatten().map(|path| (path, Secret)));
        if let Some(tls) = url.value.place.tls() {
            let client = tls.client.as_ref();
            let trusted = tls.ca.iter().chain(client.map(|client| &client.cert));
            // Certificate and key may be one file.
            found.extend(trusted.map(|path| (path.clone(), Trusted)));
            found.extend(client.map(|client| (client.key.clone(), Secret)));
        }
        found.into_iter().collect()
    }

    /// The variables that contain a password, also one that is overridden.
    pub fn exposed(&self) -> Vec<&'static str> {
        let in_url = |set: Set<String>| url::parse(&set.value).is_ok_and(|url| url.password.is_some());
        let store = self.variable("DLOCK_STORE").is_some_and(in_url).then_some("DLOCK_STORE");
        self.variable("DLOCK_PASSWORD").map(|_| "DLOCK_PASSWORD").into_iter().chain(store).collect()
    }
}

/// The path of a password file. In a configuration file it is relative to that file: under cron the
/// current directory means nothing.
fn password_path(named: &Set<String>) -> PathBuf {
    match &named.source {
        Source::File { path, .. } => path.parent().unwrap_or(Path::new("/")).join(&named.value),
        _ => PathBuf::from(&named.value),
    }
}

/// The kind of a password setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// A file that contains the password.
    File,
    /// A command that prints it.
    Command,
}

/// The password from the settings of one layer. Several settings may give it if they give the same
/// one; what a command prints is unknown here.
fn resolved(given: Vec<(Form, Set<String>)>, within: Duration) -> Result<Option<Set<Password>>, Error> {
    let command = given.iter().find(|(form, _)| *form == Form::Command);
    let other = given.iter().find(|(form, set)| {
        command.is_some_and(|(_, command)| *form != Form::Command || set.value != command.value)
    });
    match (command, other) {
        (Some((_, command)), Some((_, other))) => {
            return Err(differ(&other.source, &command.source, "passwords"));
        }
        (Some((_, Set { value, source })), None) => {
            let password = Password::Command(Secret::new(value.as_str()));
            return Ok(Some(Set { value: password, source: source.clone() }));
        }
        (None, _) => {}
    }
    let (mut read, mut file) = (Vec::new(), None);
    for (form, set) in given {
        if form == Form::File {
            let path = password_path(&set);
            read.push(set.clone().try_map(|_| Ok(Secret::of_file(&path, within)?.expose().to_owned()))?);
            file.get_or_insert(Set { value: path, source: set.source });
        } else {
            read.push(set);
        }
    }
    let text = highest("passwords", &|_| 0, read)?;
    Ok(text.map(|text| match file {
        Some(file) if can_be_read_again(&file.value) => {
            Set { value: Password::File(absolute(&file.value)), source: file.source }
        }
        _ => Set { value: Password::Text(Secret::new(text.value)), source: text.source },
    }))
}

/// A pipe can be read once, and a descriptor is closed before the next read.
fn can_be_read_again(path: &Path) -> bool {
    !may_be_descriptor(path) && std::fs::metadata(path).is_ok_and(|found| found.is_file())
}

/// Whether the path may name a descriptor. Files in /dev/shm are like those in other directories.
pub(super) fn may_be_descriptor(path: &Path) -> bool {
    (path.starts_with("/dev") && !path.starts_with("/dev/shm")) || path.starts_with("/proc")
}

fn differ(one: &Source, other: &Source, what: &str) -> Error {
    Error::Config(format!("{one} and {other} give different {what} for the store; leave one out"))
}

/// The value of the highest layer. Two different values there are an error that names both sources.
fn highest(
    what: &str,
    rank: &impl Fn(&Source) -> usize,
    candidates: Vec<Set<String>>,
) -> Result<Option<Set<String>>, Error> {
    let mut best: Option<Set<String>> = None;
    for next in candidates {
        match &best {
            Some(kept) if rank(&next.source) < rank(&kept.source) => {}
            Some(kept) if rank(&next.source) == rank(&kept.source) => {
                if next.value != kept.value {
                    return Err(differ(&kept.source, &next.source, what));
                }
            }
            _ => best = Some(next),
        }
    }
    Ok(best)
}

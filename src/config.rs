//! Which settings are in force, and who said so? Flag, then variable, then configuration file, then default, resolved
//! once into plain values. Nothing here connects to anything; the store's URL is only taken apart.
//!
//! No setting is lost silently, because two machines that lock in different places run the job twice: a variable that
//! is set but empty, two different stores, a file that is named and absent, an unknown key are all status 78.

use crate::cli::{Color, Common, LogFormat};
use crate::error::Error;
use clap::ValueEnum;
use file::{File, Value};
use reach::{Access, Beside, PasswordAt, absolute};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::{Location, Secret};

pub mod file;
pub mod reach;
pub mod run;
pub mod url;

/// The store that is used where none is named.
pub const DEFAULT_STORE: &str = "redis://127.0.0.1:6379";

/// The prefix that is used where none is named.
pub const DEFAULT_PREFIX: &str = "dlock:";

/// Every variable that dlock reads, beside HOME, XDG_CONFIG_HOME, SHELL, TZ and NO_COLOR.
pub const VARIABLES: [&str; 9] = [
    "DLOCK_STORE",
    "DLOCK_PREFIX",
    "DLOCK_CONFIG",
    "DLOCK_USERNAME",
    "DLOCK_PASSWORD",
    "DLOCK_PASSWORD_FILE",
    "DLOCK_CONNECT_TIMEOUT",
    "DLOCK_OP_TIMEOUT",
    "DLOCK_LOG_FORMAT",
];

/// What the process was started with, as far as settings depend on it.
#[derive(Debug, Clone)]
pub struct Environment {
    pub variables: BTreeMap<&'static str, OsString>,
    /// The configuration file of the machine.
    pub machine_file: PathBuf,
    pub uid: u32,
}

impl Environment {
    pub fn of_process() -> Self {
        let others = ["HOME", "XDG_CONFIG_HOME", "SHELL", "NO_COLOR"];
        let names = VARIABLES.into_iter().chain(others);
        Self {
            variables: names.filter_map(|name| Some((name, std::env::var_os(name)?))).collect(),
            machine_file: "/etc/dlock.toml".into(),
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// A variable that other programs own: empty means unset.
    fn foreign(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(name).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A flag, with its dashes.
    Flag(&'static str),
    Variable(&'static str),
    File {
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// Nobody.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Default => f.write_str("the default"),
        }
    }
}

/// A value and who set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set<T> {
    pub value: T,
    pub source: Source,
}

impl<T> Set<T> {
    /// Turns the value into another one, or says at which setting that failed.
    fn try_map<U>(self, read: impl FnOnce(T) -> Result<U, String>) -> Result<Set<U>, Error> {
        match read(self.value) {
            Ok(value) => Ok(Set { value, source: self.source }),
            Err(why) => Err(invalid(&self.source, &why)),
        }
    }
}

/// What a store asks to be shown before it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user; null for the server's default user.
    pub username: Option<String>,
    /// Null where a user alone is enough, as a database may be set up.
    pub password: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    pub place: Location,
    pub credentials: Option<Credentials>,
    /// What to log in to sentinels with; null where they ask for nothing.
    pub sentinel_credentials: Option<Credentials>,
    pub source: Source,
    /// How it is reached, without a secret.
    pub access: Access,
    /// That nobody named it, and how to, has been said.
    pub default_is_said: bool,
}

impl Store {
    /// Where the store was set, to stand in parentheses after its name; at the default also how to name another, once.
    pub fn origin(&self) -> String {
        match &self.source {
            Source::Default if self.default_is_said => "the default".into(),
            Source::Default => "the default; --store or DLOCK_STORE names another".into(),
            source => format!("set by {source}"),
        }
    }
}

/// The URL, without a secret.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors and warnings.
    Quiet,
    /// Also who is busy, waited for, and that the lock is lost.
    Normal,
    /// Also what goes as it should.
    Verbose,
}

/// What others must not do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sensitivity {
    /// Change it: it says where the locks are, or whom to trust.
    Trusted,
    /// Read it, either.
    Secret,
}

/// The settings that every command has.
#[derive(Debug, Clone)]
pub struct Settings {
    pub store: Store,
    /// What the names of all locks begin with.
    pub prefix: String,
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub op_timeout: Duration,
    pub verbosity: Verbosity,
    pub log_format: LogFormat,
    pub color: Color,
    /// What worked and should not be done so: one line each, to be printed once.
    pub warnings: Vec<String>,
    /// What `--verbose` says about the settings themselves.
    pub remarks: Vec<String>,
    /// The files that the settings lead to, each once.
    pub files: Vec<(PathBuf, Sensitivity)>,
    /// The variables that have a password in them: every job inherits them.
    pub exposed: Vec<&'static str>,
    file: File,
    password_variable: Option<Secret>,
    beside: Beside,
    /// The program that runs `-c STRING`.
    shell: OsString,
}

impl Settings {
    /// Resolves the options that every command takes. Reads the configuration files and the password file.
    pub fn resolve(flags: &Common, around: &Environment) -> Result<Self, Error> {
        let (mut warnings, mut remarks) = (Vec::new(), Vec::new());
        let layers = Layers::read(flags, around, &mut remarks)?;
        let url = layers.store()?;
        if url.value.password.is_some() && matches!(url.source, Source::Flag(_)) {
            warnings.push(
                "a password on the command line can be seen by every user of this machine, \
                 and is not handed on to a dlock inside of the job; use --password-file or DLOCK_PASSWORD"
                    .into(),
            );
        }
        let login = match url.value.place {
            Location::File { .. } => Login::default(),
            _ => layers.credentials(&url)?,
        };
        let sentinel_credentials =
            url.value.sentinel_credentials().map_err(|why| invalid(&url.source, &why))?;
        let beside = layers.beside(&login);
        let credentials = login.credentials;
        let sensitive = layers.sensitive_files(&url);
        let exposed = layers.exposed();
        let username = credentials.as_ref().and_then(|login| login.username.clone());
        // A user without a password is of use to this store only, so its URL has it and no variable.
        let has_password = credentials.as_ref().is_some_and(|login| login.password.is_some());
        let access = Access {
            url: match &username {
                Some(user) if !has_password => url::with_user(&url.value.text, user),
                _ => url.value.text,
            },
            username: username.filter(|_| has_password),
            password: login.password_at,
        };
        let prefix = layers
            .text(flags.prefix.as_deref(), "--prefix", "DLOCK_PREFIX", "prefix")?
            .unwrap_or(Set { value: DEFAULT_PREFIX.into(), source: Source::Default })
            .try_map(|prefix| match prefix.chars().any(char::is_control) {
                true => Err("a prefix must not contain control characters".into()),
                false => Ok(prefix),
            })?;
        let timeout = |flag, variable, key, default| {
            let set = layers.value(flag, variable, crate::cli::duration::parse_positive)?;
            Ok::<_, Error>(set.or_else(|| layers.file.span(key)).unwrap_or(default))
        };
        let two_seconds = Duration::from_secs(2);
        let connect_timeout =
            timeout(flags.connect_timeout, "DLOCK_CONNECT_TIMEOUT", "connect-timeout", two_seconds)?;
        let op_timeout = timeout(flags.op_timeout, "DLOCK_OP_TIMEOUT", "op-timeout", Duration::from_secs(1))?;
        let log_format = layers.value(flags.log_format, "DLOCK_LOG_FORMAT", choice)?;
        let file = &layers.file;
        let no_color = around.foreign("NO_COLOR").map(|_| Color::Never);
        Ok(Self {
            connect_timeout,
            op_timeout,
            verbosity: verbosity(flags, file)?,
            log_format: log_format.or_else(|| file.choice("log-format")).unwrap_or(LogFormat::Text),
            color: flags.color.or(no_color).or_else(|| file.choice("color")).unwrap_or(Color::Auto),
            store: Store {
                place: url.value.place,
                credentials,
                sentinel_credentials,
                source: url.source,
                access,
                default_is_said: false,
            },
            prefix: prefix.value,
            files: sensitive,
            exposed,
            warnings,
            remarks,
            password_variable: layers.variable("DLOCK_PASSWORD").map(|set| Secret::new(set.value)),
            beside,
            file: layers.file,
            shell: around.foreign("SHELL").unwrap_or(OsStr::new("/bin/sh")).into(),
        })
    }
}

/// How much to say: `--quiet` and `--verbose` exclude each other, also in one file.
fn verbosity(flags: &Common, file: &File) -> Result<Verbosity, Error> {
    let of = |quiet, verbose| match (quiet, verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    };
    if flags.quiet || flags.verbose {
        return Ok(of(flags.quiet, flags.verbose));
    }
    match (file.get("quiet"), file.get("verbose")) {
        (Some(quiet), Some(verbose)) if quiet.value == Value::Flag(true) && verbose.value == quiet.value => {
            Err(invalid(&verbose.source, "quiet and verbose exclude each other; leave one out"))
        }
        _ => Ok(of(file.flag("quiet"), file.flag("verbose"))),
    }
}

/// An invalid setting, with its place.
fn invalid(source: &Source, why: &str) -> Error {
    Error::Config(format!("{source}: {why}"))
}

/// dlock's own variables, checked: set but empty is an error (DLOCK_PREFIX aside), and so is what is not UTF-8. A
/// DLOCK_STORE that is empty is none where a flag names the store.
fn own_variables(flags: &Common, around: &Environment) -> Result<BTreeMap<&'static str, String>, Error> {
    let mut read = BTreeMap::new();
    for name in VARIABLES {
        let Some(value) = around.variables.get(name) else { continue };
        let Some(text) = value.to_str() else {
            return Err(Error::Config(format!("{name} is not valid UTF-8")));
        };
        if text.is_empty() && name == "DLOCK_STORE" && !flags.store.is_empty() {
            continue;
        }
        if text.is_empty() && name != "DLOCK_PREFIX" {
            return Err(Error::Config(format!("{name} is set but empty; give it a value or unset it")));
        }
        read.insert(name, text.to_owned());
    }
    Ok(read)
}

/// The value of a closed set of words.
fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let words: Vec<_> = T::value_variants()
            .iter()
            .filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("must be one of {}", words.join(", "))
    })
}

/// Everybody who sets something.
struct Layers<'a> {
    flags: &'a Common,
    variables: BTreeMap<&'static str, String>,
    /// The weakest first.
    files: Vec<File>,
    /// The same, joined.
    file: File,
}

impl<'a> Layers<'a> {
    fn read(flags: &'a Common, around: &Environment, remarks: &mut Vec<String>) -> Result<Self, Error> {
        let variables = own_variables(flags, around)?;
        let mut layers = Self { flags, variables, files: Vec::new(), file: File::default() };
        layers.files = layers.read_files(around, remarks)?;
        layers.file = File::merged(&layers.files);
        Ok(layers)
    }

    fn variable(&self, name: &'static str) -> Option<Set<String>> {
        let value = self.variables.get(name)?.clone();
        Some(Set { value, source: Source::Variable(name) })
    }

    /// What a flag says, or else a variable.
    fn value<T>(
        &self,
        flag: Option<T>,
        variable: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        match self.variable(variable) {
            Some(set) if flag.is_none() => Ok(Some(set.try_map(|text| read(&text))?.value)),
            _ => Ok(flag),
        }
    }

    /// A text that may come from all three layers. Only the prefix may be empty.
    fn text(
        &self,
        flag: Option<&OsStr>,
        name: &'static str,
        variable: &'static str,
        key: &str,
    ) -> Result<Option<Set<String>>, Error> {
        match flag {
            Some(text) => of_flag(text, name).map(Some),
            None => Ok(self.variable(variable).or_else(|| self.file.text(key))),
        }
    }

    /// The store: from one layer whole, so that a URL never gets another one's user or password by accident.
    fn store(&self) -> Result<Set<url::Url>, Error> {
        if let Some((first, others)) = self.flags.store.split_first()
            && others.iter().any(|other| other != first)
        {
            return Err(Error::Config("--store: two different stores are given; a lock has one".into()));
        }
        let flag = self.flags.store.first().map(OsString::as_os_str);
        self.text(flag, "--store", "DLOCK_STORE", "store")?
            .unwrap_or(Set { value: DEFAULT_STORE.into(), source: Source::Default })
            .try_map(|text| url::parse(&text))
    }

    /// User and password. A password in the URL counts as set where the URL was set. On the highest layer that has a
    /// password there may be several only if they are equal.
    fn credentials(&self, url: &Set<url::Url>) -> Result<Login, Error> {
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
        let flag = flags.password_file.as_deref().map(|path| of_flag(path, "--password-file")).transpose()?;
        let given = [
            (Form::File, flag),
            (Form::Text, self.variable("DLOCK_PASSWORD")),
            (Form::File, self.variable("DLOCK_PASSWORD_FILE")),
            (Form::Text, in_url(&secret)),
            (Form::Text, file.text("password")),
            (Form::File, file.text("password-file")),
        ];
        let mut given: Vec<_> = given.into_iter().filter_map(|(form, set)| Some((form, set?))).collect();
        given.extend(self.urls_below(url).into_iter().filter_map(secret_of));
        let top = given.iter().map(|(_, set)| rank(&set.source)).max().unwrap_or(0);
        let (mut read, mut file) = (Vec::new(), None);
        for (form, set) in given.into_iter().filter(|(_, set)| rank(&set.source) == top) {
            read.push(match form {
                Form::Text => set,
                Form::File => {
                    let path = password_path(&set);
                    let read = set.try_map(|_| password_in(&path))?;
                    file.get_or_insert(path);
                    read
                }
            });
        }
        match (username, highest("passwords", &rank, read)?) {
            (username, Some(password)) => Ok(Login {
                password_at: file.map_or(PasswordAt::Elsewhere, |path| PasswordAt::File(absolute(&path))),
                credentials: Some(Credentials {
                    username: username.map(|set| set.value),
                    password: Some(Secret::new(password.value)),
                }),
                password_source: Some(password.source),
            }),
            (Some(username), None) if matches!(url.value.place, Location::Database { .. }) => Ok(Login {
                credentials: Some(Credentials { username: Some(username.value), password: None }),
                ..Login::default()
            }),
            (Some(username), None) => Err(invalid(
                &username.source,
                "a user is named and no password; DLOCK_PASSWORD or --password-file gives it",
            )),
            (None, None) => Ok(Login::default()),
        }
    }

    /// The URLs on lower layers that name the place that is in force. A job gets DLOCK_STORE without the password in it:
    /// whoever could read that where it stands still can.
    fn urls_below(&self, url: &Set<url::Url>) -> Vec<Set<url::Url>> {
        let files = self.files.iter().filter_map(|file| file.text("store"));
        let texts = self.variable("DLOCK_STORE").into_iter().chain(files);
        let others = texts.filter(|text| text.source != url.source);
        let parsed =
            others.filter_map(|text| Some(Set { value: url::parse(&text.value).ok()?, source: text.source }));
        parsed.filter(|other| other.value.place == url.value.place).collect()
    }

    /// What a dlock inside of a job has to find beside the store and the user.
    fn beside(&self, login: &Login) -> Beside {
        let user = login.credentials.as_ref().and_then(|login| login.username.as_ref());
        let secret = login.credentials.as_ref().and_then(|login| Some(login.password.as_ref()?.expose()));
        let in_store = login.password_source == Some(Source::Variable("DLOCK_STORE"));
        let store = self.variable("DLOCK_STORE").filter(|_| in_store);
        let store = store.and_then(|store| url::parse(&store.value).ok());
        let variable = self.variables.get("DLOCK_PASSWORD").map(String::as_str);
        let in_file = match &login.password_source {
            Some(Source::File { path, .. }) if login.password_at == PasswordAt::Elsewhere => Some(path),
            _ => None,
        };
        let named = in_file.filter(|_| self.flags.config.is_some());
        let relative = || {
            let path = self.variables.get("DLOCK_CONFIG").map(Path::new)?;
            path.is_relative().then_some(path)
        };
        Beside {
            store_has_it: store.is_some_and(|store| store.is_of(user)),
            variable_differs: matches!(login.password_at, PasswordAt::File(_))
                && variable.is_some_and(|variable| Some(variable) != secret),
            config: named.map(PathBuf::as_path).or_else(relative).map(absolute),
        }
    }
}

/// What to log in with, and where that was found.
#[derive(Default)]
struct Login {
    credentials: Option<Credentials>,
    password_at: PasswordAt,
    password_source: Option<Source>,
}

impl Layers<'_> {
    /// Every file that the settings lead to, whatever it is for: a password that a stronger layer overrules is one all
    /// the same.
    fn sensitive_files(&self, url: &Set<url::Url>) -> Vec<(PathBuf, Sensitivity)> {
        use Sensitivity::{Secret, Trusted};
        let below = self.urls_below(url);
        let of_url = |path: &Path| {
            below.iter().chain([url]).any(|url| match &url.source {
                Source::File { path: named, .. } => named == path && url.value.password.is_some(),
                _ => false,
            })
        };
        let mut found: BTreeMap<PathBuf, Sensitivity> = BTreeMap::new();
        for file in &self.files {
            let has_secret = file.get("password").is_some() || of_url(&file.path);
            found.insert(file.path.clone(), if has_secret { Secret } else { Trusted });
        }
        let passwords = [
            self.flags.password_file.as_ref().map(PathBuf::from),
            self.variable("DLOCK_PASSWORD_FILE").map(|set| set.value.into()),
            self.file.text("password-file").map(|set| password_path(&set)),
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

    /// The configuration files in force, the weakest first.
    fn read_files(&self, around: &Environment, remarks: &mut Vec<String>) -> Result<Vec<File>, Error> {
        let named = match &self.flags.config {
            Some(path) => Some(of_flag(path, "--config")?),
            None => self.variable("DLOCK_CONFIG"),
        };
        if let Some(named) = named {
            let path = Path::new(&named.value);
            return match File::read(path) {
                Ok(Some(file)) => Ok(vec![file]),
                Ok(None) => Err(invalid(&named.source, &format!("{} does not exist", path.display()))),
                Err(error) => Err(invalid(&named.source, &error.to_string())),
            };
        }
        let mut found: Vec<File> = File::read(&around.machine_file)?.into_iter().collect();
        let xdg = around.foreign("XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let home = || around.foreign("HOME").map(|home| Path::new(home).join(".config"));
        if let Some(dir) = around.foreign("HOME").and(xdg).or_else(home) {
            let path = dir.join("dlock.toml");
            match file::owner(&path)? {
                None => {}
                Some(uid) if uid == around.uid => found.extend(File::read(&path)?),
                Some(_) => {
                    remarks.push(format!("{} belongs to somebody else and is skipped", path.display()))
                }
            }
        }
        Ok(found)
    }

    /// The variables with a password in them, whatever overrules them.
    fn exposed(&self) -> Vec<&'static str> {
        let in_url = |set: Set<String>| url::parse(&set.value).is_ok_and(|url| url.password.is_some());
        let store = self.variable("DLOCK_STORE").is_some_and(in_url).then_some("DLOCK_STORE");
        self.variable("DLOCK_PASSWORD").map(|_| "DLOCK_PASSWORD").into_iter().chain(store).collect()
    }
}

/// Where a password file is. A configuration file names its neighbours: under cron the current directory means nothing.
fn password_path(named: &Set<String>) -> PathBuf {
    match &named.source {
        Source::File { path, .. } => path.parent().unwrap_or(Path::new("/")).join(&named.value),
        _ => PathBuf::from(&named.value),
    }
}

/// What a setting for the password is.
enum Form {
    Text,
    /// Where the password is.
    File,
}

/// The one value of the highest layer; two different ones there are an error that names both places.
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
                    return Err(Error::Config(format!(
                        "{} and {} give different {what} for the store; leave one out",
                        kept.source, next.source
                    )));
                }
            }
            _ => best = Some(next),
        }
    }
    Ok(best)
}

/// The text of a flag. Only `--prefix` may be empty.
fn of_flag(text: &OsStr, name: &'static str) -> Result<Set<String>, Error> {
    let source = Source::Flag(name);
    match text.to_str() {
        None => Err(invalid(&source, "the value is not valid UTF-8")),
        Some("") if name != "--prefix" => Err(invalid(&source, "the value is empty")),
        Some(text) => Ok(Set { value: text.into(), source }),
    }
}

/// The password in a file. One line end at its end does not count.
fn password_in(path: &Path) -> Result<String, String> {
    const MOST: u64 = 64 * 1024;
    let said = |error: std::io::Error| format!("cannot read {}: {}", path.display(), file::plain(&error));
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(said)?;
    if bytes.len() as u64 > MOST {
        return Err(format!("{} is too long for a password", path.display()));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{} is not valid UTF-8", path.display()))?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    if text.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests;

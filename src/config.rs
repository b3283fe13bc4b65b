//! Resolves the settings: flag, then variable, then configuration file, then default, once, into
//! plain values that remember their source. Connects to nothing; the store's URL is only parsed.
//!
//! No setting is ignored silently, because two machines that lock in different stores run the job
//! twice. So these are errors (78): a variable that is set but empty, two different stores, a named
//! file that is absent, an unknown setting.

use crate::cli::{Color, Common, LogFormat};
use crate::error::Error;
use crate::sys::named_file::{Fault, Owner};
use access::{Access, Beside};
use clap::ValueEnum;
use credentials::Login;
use file::File;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::{Location, Secret};

pub mod access;
mod credentials;
pub mod file;
pub mod run;
pub mod url;

/// The store if none is named.
pub const DEFAULT_STORE: &str = "redis://127.0.0.1:6379";

/// The prefix if none is named.
pub const DEFAULT_PREFIX: &str = "dlock:";

/// The warning about a password in the URL of a flag.
const PASSWORD_IN_ARGV: &str = "every user of this machine can see a password on the command line, and a dlock inside the job does not get it; use --password-file or DLOCK_PASSWORD";

/// Every variable that dlock reads, besides HOME, XDG_CONFIG_HOME, SHELL, TZ and NO_COLOR.
pub const VARIABLES: [&str; 10] = [
    "DLOCK_STORE",
    "DLOCK_PREFIX",
    "DLOCK_CONFIG",
    "DLOCK_USERNAME",
    "DLOCK_PASSWORD",
    "DLOCK_PASSWORD_FILE",
    "DLOCK_PASSWORD_COMMAND",
    "DLOCK_CONNECT_TIMEOUT",
    "DLOCK_OP_TIMEOUT",
    "DLOCK_LOG_FORMAT",
];

/// The parts of the process environment that settings depend on.
#[derive(Debug, Clone)]
pub struct Environment {
    pub variables: BTreeMap<&'static str, OsString>,
    /// The machine's configuration file.
    pub machine_file: PathBuf,
}

impl Environment {
    pub fn of_process() -> Self {
        let others = ["HOME", "XDG_CONFIG_HOME", "SHELL", "NO_COLOR"];
        let names = VARIABLES.into_iter().chain(others);
        Self {
            variables: names.filter_map(|name| Some((name, std::env::var_os(name)?))).collect(),
            machine_file: "/etc/dlock.toml".into(),
        }
    }

    /// A variable shared with other programs: empty means unset.
    fn shared_variable(&self, name: &str) -> Option<&OsStr> {
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
    /// No setting.
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

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set<T> {
    pub value: T,
    pub source: Source,
}

impl<T> Set<T> {
    /// Converts the value. The error names the setting.
    fn try_map<U>(self, read: impl FnOnce(T) -> Result<U, String>) -> Result<Set<U>, Error> {
        match read(self.value) {
            Ok(value) => Ok(Set { value, source: self.source }),
            Err(why) => Err(invalid(&self.source, &why)),
        }
    }
}

/// The login for a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user; `None` for the server's default user.
    pub username: Option<String>,
    /// `None` if a user alone is enough, as a database may be set up.
    pub password: Option<Password>,
}

/// Where a password comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Password {
    Text(Secret),
    /// This file, which is read before each connection; absolute.
    File(PathBuf),
    /// The first line that this command prints. The command runs before each connection.
    Command(Secret),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    pub place: Location,
    pub credentials: Option<Credentials>,
    /// The login for sentinels; `None` if they need none.
    pub sentinel_credentials: Option<Credentials>,
    pub source: Source,
    /// How a dlock inside the job reaches it, without a secret.
    pub access: Access,
    /// The warning that no setting names the store was printed.
    pub default_is_said: bool,
}

impl Store {
    /// Which setting named the store, to follow its name in parentheses. For the default, also how
    /// to name another, once.
    pub fn origin(&self) -> String {
        match &self.source {
            Source::Default if self.default_is_said => "the default".into(),
            Source::Default => {
                "the default; --store, DLOCK_STORE or store in /etc/dlock.toml names another".into()
            }
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
    /// Also busy locks, waiting, and a lost lock.
    Normal,
    /// Also what succeeds.
    Verbose,
}

/// What other users must not do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sensitivity {
    /// Change it: it names the store, or the certificates to trust.
    Trusted,
    /// Read it either.
    Secret,
}

/// The settings that every command has.
#[derive(Debug, Clone)]
pub struct Settings {
    pub store: Store,
    /// The start of every lock's full name.
    pub prefix: String,
    /// A flag gave it.
    pub is_prefix_given: bool,
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub op_timeout: Duration,
    pub verbosity: Verbosity,
    pub log_format: LogFormat,
    pub color: Color,
    /// Warnings about the settings, one line each, to be printed once.
    pub warnings: Vec<String>,
    /// Remarks about the settings, for `--verbose`.
    pub remarks: Vec<String>,
    /// The files that the settings name, each once.
    pub files: Vec<(PathBuf, Sensitivity)>,
    /// The variables that contain a password. Every job inherits them.
    pub exposed: Vec<&'static str>,
    /// Where the password is from, in words; `None` if there is none.
    pub password_from: Option<String>,
    file: File,
    password_variable: Option<Secret>,
    beside: Beside,
    /// The program that runs `-c STRING`.
    shell: OsString,
}

impl Settings {
    /// Resolves the options that every command takes. Reads the configuration files and the
    /// password file.
    pub fn resolve(flags: &Common, environment: &Environment) -> Result<Self, Error> {
        let mut layers = Layers::read(flags, environment)?;
        let url = layers.store()?;
        if url.value.password.is_some() && matches!(url.source, Source::Flag(_)) {
            layers.warnings.push(PASSWORD_IN_ARGV.into());
        }
        let timeout = |flag, variable, key, default| {
            let set = layers.value(flag, variable, crate::cli::duration::parse_positive)?;
            Ok::<_, Error>(set.or_else(|| layers.file.span(key)).unwrap_or(default))
        };
        let two_seconds = Duration::from_secs(2);
        let connect_timeout =
            timeout(flags.connect_timeout, "DLOCK_CONNECT_TIMEOUT", "connect-timeout", two_seconds)?;
        let op_timeout = timeout(flags.op_timeout, "DLOCK_OP_TIMEOUT", "op-timeout", Duration::from_secs(1))?;
        let login = match url.value.place {
            Location::File { .. } => Login::default(),
            _ => layers.credentials(&url, connect_timeout)?,
        };
        let sentinel_credentials =
            url.value.sentinel_credentials(connect_timeout).map_err(|why| invalid(&url.source, &why))?;
        let beside = layers.beside(&login);
        let password_from = login.password_from();
        let credentials = login.credentials;
        let sensitive = layers.sensitive_files(&url);
        let exposed = layers.exposed();
        let access = Access::of(&url.value.place, url.value.text, credentials.as_ref());
        let prefix = layers
            .text(flags.prefix.as_deref(), "--prefix", "DLOCK_PREFIX", "prefix")?
            .unwrap_or(Set { value: DEFAULT_PREFIX.into(), source: Source::Default })
            .try_map(checked_prefix)?;
        let log_format = layers.value(flags.log_format, "DLOCK_LOG_FORMAT", choice)?;
        let file = &layers.file;
        let no_color = environment.shared_variable("NO_COLOR").map(|_| Color::Never);
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
            is_prefix_given: flags.prefix.is_some(),
            files: sensitive,
            exposed,
            password_from,
            password_variable: layers.variable("DLOCK_PASSWORD").map(|set| Secret::new(set.value)),
            warnings: layers.warnings,
            remarks: layers.remarks,
            beside,
            file: layers.file,
            shell: environment.shared_variable("SHELL").unwrap_or(OsStr::new("/bin/sh")).into(),
        })
    }

    /// A message about settings of one job in the configuration files, if there are any.
    pub fn misplaced(&self) -> Option<String> {
        self.file.misplaced()
    }

    /// Whether a flag gave the store.
    pub fn is_store_given(&self) -> bool {
        matches!(self.store.source, Source::Flag(_))
    }
}

/// The verbosity. `--quiet` and `--verbose` exclude each other, also in one file.
fn verbosity(flags: &Common, file: &File) -> Result<Verbosity, Error> {
    let of = |quiet, verbose| match (quiet, verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    };
    if flags.quiet || flags.verbose {
        return Ok(of(flags.quiet, flags.verbose));
    }
    match file.get("verbose") {
        Some(verbose) if file.flag("quiet") && file.flag("verbose") => {
            Err(invalid(&verbose.source, "quiet and verbose exclude each other; leave one out"))
        }
        _ => Ok(of(file.flag("quiet"), file.flag("verbose"))),
    }
}

fn checked_prefix(prefix: String) -> Result<String, String> {
    if prefix.chars().any(char::is_control) {
        return Err("a prefix must not contain control characters".into());
    }
    if prefix.trim() != prefix {
        return Err("the prefix begins or ends with white space; remove it".into());
    }
    Ok(prefix)
}

/// The error for an invalid setting, with its source.
fn invalid(source: &Source, why: &str) -> Error {
    Error::Config(format!("{source}: {why}"))
}

/// Reads and checks dlock's own variables. Errors: set but empty (except DLOCK_PREFIX), in quotes
/// (except a password or its command), and not UTF-8. An empty DLOCK_STORE is ignored if a flag names
/// the store.
///
/// Quotes: `docker --env-file` keeps them and systemd's EnvironmentFile does not, so the same line
/// would name two stores, or two prefixes.
fn own_variables(flags: &Common, environment: &Environment) -> Result<BTreeMap<&'static str, String>, Error> {
    let mut read = BTreeMap::new();
    for name in VARIABLES {
        let Some(value) = environment.variables.get(name) else { continue };
        let Some(text) = value.to_str() else {
            return Err(Error::Config(format!("{name} is not valid UTF-8")));
        };
        if text.is_empty() && name == "DLOCK_STORE" && !flags.store.is_empty() {
            continue;
        }
        if text.is_empty() && name != "DLOCK_PREFIX" {
            return Err(Error::Config(format!("{name} is set but empty; give it a value or unset it")));
        }
        let may_be_quoted = ["DLOCK_PASSWORD", "DLOCK_PASSWORD_COMMAND"].contains(&name);
        if !may_be_quoted && ['"', '\''].iter().any(|quote| is_between(text, *quote)) {
            return Err(Error::Config(format!(
                "{name}: the quotes are part of the value (docker --env-file keeps them, systemd and a shell do not); remove them"
            )));
        }
        read.insert(name, text.to_owned());
    }
    Ok(read)
}

fn is_between(text: &str, quote: char) -> bool {
    text.strip_prefix(quote).is_some_and(|rest| rest.ends_with(quote))
}

/// Parses one of a closed set of words.
fn choice<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let words: Vec<_> = T::value_variants()
            .iter()
            .filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("must be one of {}", words.join(", "))
    })
}

/// The layers that set something.
struct Layers<'a> {
    flags: &'a Common,
    variables: BTreeMap<&'static str, String>,
    /// Weakest first.
    files: Vec<File>,
    /// The files, merged.
    file: File,
    /// About files that are not read, as in [`Settings`].
    warnings: Vec<String>,
    remarks: Vec<String>,
}

impl<'a> Layers<'a> {
    fn read(flags: &'a Common, environment: &Environment) -> Result<Self, Error> {
        let variables = own_variables(flags, environment)?;
        let mut layers = Self {
            flags,
            variables,
            files: Vec::new(),
            file: File::default(),
            warnings: Vec::new(),
            remarks: Vec::new(),
        };
        layers.read_files(environment)?;
        layers.file = File::merged(&layers.files);
        Ok(layers)
    }

    fn variable(&self, name: &'static str) -> Option<Set<String>> {
        let value = self.variables.get(name)?.clone();
        Some(Set { value, source: Source::Variable(name) })
    }

    /// The flag's value, else the variable's.
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
            None => Ok(self.variable(variable).or_else(|| self.file.get(key).cloned())),
        }
    }

    /// The store, taken whole from one layer, so that a URL never gets the user or password of
    /// another.
    fn store(&mut self) -> Result<Set<url::Url>, Error> {
        if let Some((first, others)) = self.flags.store.split_first()
            && others.iter().any(|other| other != first)
        {
            return Err(Error::Config("--store: two different stores are given; give one".into()));
        }
        let flag = self.flags.store.first().map(OsString::as_os_str);
        let url = self
            .text(flag, "--store", "DLOCK_STORE", "store")?
            .unwrap_or(Set { value: DEFAULT_STORE.into(), source: Source::Default })
            .try_map(|text| url::parse(&text))?;
        for name in url::ignored(&url.value.text) {
            self.remarks.push(format!("{}: {name}= has no effect and is ignored", url.source));
        }
        Ok(url)
    }

    /// Reads the configuration files in force. One that dlock looks for by itself is not used if
    /// another user may have written it.
    fn read_files(&mut self, environment: &Environment) -> Result<(), Error> {
        let named = match &self.flags.config {
            Some(path) => Some(of_flag(path, "--config")?),
            None => self.variable("DLOCK_CONFIG"),
        };
        let unread = |path: &Path, fault: &Fault| format!("{} is not read: {fault}", path.display());
        if let Some(Set { value, source }) = named {
            let path = Path::new(&value);
            let file = File::read(path, Owner::Any).map_err(|error| invalid(&source, &error.to_string()))?;
            self.files.push(file.map_err(|fault| invalid(&source, &unread(path, &fault)))?);
            return Ok(());
        }
        let path = &environment.machine_file;
        match File::read(path, Owner::RootOrCaller)? {
            Ok(file) => self.files.push(file),
            Err(fault) if fault.is_absence() => {}
            Err(fault) => {
                let text = unread(path, &fault);
                return Err(Error::Config(format!("{text}; use --config to name another file, or this one")));
            }
        }
        let xdg =
            environment.shared_variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let home = || environment.shared_variable("HOME").map(|home| Path::new(home).join(".config"));
        if let Some(dir) = environment.shared_variable("HOME").and(xdg).or_else(home) {
            let path = dir.join("dlock.toml");
            match File::read(&path, Owner::RootOrCaller)? {
                Ok(file) => self.files.push(file),
                Err(fault) if fault.is_absence() => {}
                Err(fault @ (Fault::Foreign(_) | Fault::ForeignLink(..))) => {
                    self.warnings
                        .push(format!("{}; if it is meant, name it by --config", unread(&path, &fault)));
                }
                Err(fault @ Fault::Hidden) => self.remarks.push(unread(&path, &fault)),
                Err(fault) => return Err(Error::Config(unread(&path, &fault))),
            }
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests;

//! Options that several commands share, and the parsers of their values: a ttl, a number of slots,
//! a status, a note.

use super::duration;
use crate::lock::{SLOTS_MAX, Ttl};
use clap::{ArgAction, Args, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::time::Duration;

/// How `acquire` and `hold` ask for the lock.
#[derive(Debug, Args)]
pub struct How {
    /// Share the lock with others that share it
    #[arg(short, long, conflicts_with_all = ["exclusive", "slots"])]
    pub shared: bool,

    /// One holder at a time [default]
    #[arg(short = 'x', long, short_alias = 'e', conflicts_with = "slots")]
    pub exclusive: bool,

    /// Up to N holders at a time, 1 to 1000, each with a slot number of its own
    #[arg(short = 'n', long, value_name = "N", value_parser = slots)]
    pub slots: Option<u32>,

    /// Wait for the lock, first come first served; without DUR for ever [default: do not wait]
    #[arg(short, long, value_name = "DUR", num_args = 0..=1, value_parser = duration::parse)]
    pub wait: Option<Option<Duration>>,
}

// The options every command takes. A flag wins over its variable, a variable over a configuration file.
// No doc comment: clap would take it for the help of each command.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options every command takes")]
pub struct Common {
    /// Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]
    ///
    /// 'dlock --help' lists the URLs. Do not write a password here: every user of this machine can see it.
    #[arg(long, value_name = "URL", action = ArgAction::Append, value_hint = ValueHint::Url)]
    pub store: Vec<OsString>,

    /// What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<OsString>,

    /// Read FILE in place of the configuration files (or DLOCK_CONFIG)
    ///
    /// TOML; the settings are the long flags without the dashes, also those of `run`. Without this option
    /// /etc/dlock.toml is read, then ~/.config/dlock.toml; a setting that is in both
    /// is taken from the second.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<OsString>,

    /// The user to log in to the store as (or DLOCK_USERNAME)
    #[arg(long, value_name = "USER")]
    pub username: Option<OsString>,

    /// Read the store's password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)
    ///
    /// A regular file is read again before each connection, so the password may be changed while a lock is held.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub password_file: Option<OsString>,

    /// Run COMMAND by /bin/sh for the store's password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)
    ///
    /// It is run again before each connection, for tokens that expire (RDS, ElastiCache, Vault). It is killed if it runs
    /// longer than --connect-timeout. What it prints on stderr is dropped.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub password_command: Option<OsString>,

    /// How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_positive)]
    pub connect_timeout: Option<Duration>,

    /// How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_positive)]
    pub op_timeout: Option<Duration>,

    /// Do not report a busy lock, waiting, or trouble that passes; errors and a lost lock are still reported
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Report more
    #[arg(short, long)]
    pub verbose: bool,

    /// The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// When to use colours; NO_COLOR in the environment means never [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<Color>,
}

/// `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal
    Auto,
    /// Also into a pipe
    Always,
    /// Not at all
    Never,
}

/// The value of `--ttl`.
pub(super) fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration::parse(text)?)
}

/// The value of `--slots`.
pub fn slots(text: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| (1..=SLOTS_MAX).contains(slots));
    slots.ok_or_else(|| format!("a number of slots is from 1 to {SLOTS_MAX}"))
}

/// The value of `--busy-exit-code`.
pub fn exit_status(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "an exit status is a number from 0 to 255".into())
}

/// Longest `--reason` and `--label`, in bytes.
pub const NOTE_MAX: usize = 500;

/// The value of `--reason` and `--label`: short enough for every record of the hold. It may be
/// empty, for a script whose variable is empty.
pub fn note(text: &str) -> Result<String, String> {
    if text.len() > NOTE_MAX {
        return Err(format!("the text is at most {NOTE_MAX} bytes long, this one has {}", text.len()));
    }
    Ok(text.into())
}

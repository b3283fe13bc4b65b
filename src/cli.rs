//! What can be said on the command line? The structs that clap fills, and the help; it is written here and nowhere
//! else (man/ and completions/ are generated from it). Nothing is resolved here: a value that a variable or a file
//! may also give stays as it was typed, for `config`.

use crate::lock::{Key, SLOTS_MAX, Ttl};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::time::Duration;

pub mod acquire;
pub mod check;
pub mod complete;
pub mod doctor;
pub mod duration;
pub mod forget;
pub mod history;
pub mod key;
mod leading;
pub mod metrics;
pub mod pause;
pub mod release;
pub mod renew;
pub mod run;
pub mod status;
pub mod usage;
pub mod wait;
pub mod watch;

pub use release::Release;
pub use run::Run;
pub use status::Status;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    about = "Run a command under a lock that a whole fleet of machines respects",
    long_about = "Run a command under a lock that a whole fleet of machines respects.\n\n\
        dlock is flock(1) for more than one machine. The lock lives in a server that all of them reach, such as \
        Redis, PostgreSQL or MySQL, or, for one machine, in a directory. It is a lease: dlock renews it while the command \
        runs, gives it back when the command ends, and stops the command before the lease ends if it cannot be \
        renewed.",
    after_long_help = "Examples:\n  \
        # Crontab of every machine; one of them runs the job:\n  \
        @daily /usr/bin/dlock run -q -k rep --once-per 20h -w -- /opt/rep\n\n  \
        # Who holds what, and who waits:\n  \
        dlock status\n\n\
        The store is redis://127.0.0.1:6379, on each machine its own, unless --store,\n\
        DLOCK_STORE or a configuration file names another one. The options that every\n\
        command takes may stand before the command: dlock --store URL status.\n\
        'dlock run --help' explains the rest.",
    disable_help_subcommand = true,
    args_override_self = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the lock, run a command under it, give it back, exit as the command did
    ///
    /// The lease is renewed while CMD runs. Without --wait dlock does not wait: if the lock is held it says by whom
    /// and exits 75. CMD gets stdin, stdout, stderr, directory and signals as if it had been started without dlock.
    Run(Box<Run>),
    /// Show who holds what, who waits, and for how long
    ///
    /// Without KEY: every lock under the prefix that is held, cooling or waited for.
    Status(Status),
    /// Show how the last runs under a lock went
    ///
    /// The last 64 ends are kept, for 40 days. A run whose dlock was killed is there, too: "crashed", or "expired" if nobody
    /// was left to say so.
    History(history::History),
    /// Take a lock for a script, which renews it and gives it back itself
    ///
    /// Prints the token that proves the hold, and says until when the lease lasts. For scripts that cannot be wrapped in
    /// 'dlock run'.
    Acquire(Box<acquire::Acquire>),
    /// Extend the lease of an acquired lock
    Renew(renew::Renew),
    /// Say whether the lock that this process runs under is still held
    Check(check::Check),
    /// Wait until locks are free, without taking them
    Wait(wait::Wait),
    /// Give back a lock, ask its holder to stop, or take it away
    ///
    /// What a script acquired is given back. Somebody else's lock: shows who holds it and asks whether to go on; then
    /// the holder's dlock stops its job and gives the lock back, and this returns when that has happened.
    Release(Release),
    /// Have nobody granted a lock for a while; whoever holds it goes on
    ///
    /// Who waits goes on waiting, who does not is told who paused it, why, and until when.
    Pause(pause::Pause),
    /// End a pause
    Resume(pause::Resume),
    /// Make a run due again that --once-per takes for done
    ///
    /// The store forgets that a run under the lock has succeeded. Nothing else about the lock changes.
    Forget(forget::Forget),
    /// Print what happens to locks, as it happens
    ///
    /// From now on, one line an event, until ^C. Without KEY: every lock under the prefix.
    Watch(watch::Watch),
    /// Print what was counted of locks, for Prometheus
    ///
    /// Grants, refusals, ends, how long was waited and held. Without KEY: every lock under the prefix.
    Metrics(metrics::Metrics),
    /// Say whether the store is fit to hold locks
    ///
    /// Looks at every server that the store is made of, and at the settings that lead to it.
    Doctor(doctor::Doctor),
    /// Print a completion script for a shell
    Completions(Completions),
}

impl Command {
    /// The lock that the command is about, where it is one.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Run(run) => run.key.first(),
            Self::Acquire(acquire) => acquire.key.first(),
            Self::Renew(renew) => renew.key.as_ref(),
            Self::Check(check) => check.key.as_ref(),
            Self::Wait(wait) => match &*wait.keys {
                [key] => Some(key),
                _ => None,
            },
            Self::Forget(forget) => match &*forget.keys {
                [key] => Some(key),
                _ => None,
            },
            Self::Pause(pause::Pause { keys, .. }) | Self::Resume(pause::Resume { keys, .. }) => {
                match &**keys {
                    [key] => Some(key),
                    _ => None,
                }
            }
            Self::Release(release) => Some(&release.key.0),
            Self::History(history) => Some(&history.key.0),
            Self::Status(_) | Self::Watch(_) | Self::Metrics(_) | Self::Doctor(_) | Self::Completions(_) => {
                None
            }
        }
    }

    /// The options every command takes.
    pub fn common(&self) -> &Common {
        match self {
            Self::Run(run) => &run.common,
            Self::Status(status) => &status.common,
            Self::Acquire(acquire) => &acquire.common,
            Self::Renew(renew) => &renew.common,
            Self::Check(check) => &check.common,
            Self::Wait(wait) => &wait.common,
            Self::Forget(forget) => &forget.common,
            Self::Pause(pause) => &pause.common,
            Self::Resume(resume) => &resume.common,
            Self::History(history) => &history.common,
            Self::Release(release) => &release.common,
            Self::Watch(watch) => &watch.common,
            Self::Metrics(metrics) => &metrics.common,
            Self::Doctor(doctor) => &doctor.common,
            Self::Completions(completions) => &completions.common,
        }
    }
}

const COMPLETIONS_AFTER: &str = "\
Examples:
  dlock completions bash > ~/.local/share/bash-completion/completions/dlock
  dlock completions zsh > \"${fpath[1]}/_dlock\"
  dlock completions fish > ~/.config/fish/completions/dlock.fish

For a KEY, TAB offers the keys that the store knows. The store is the one that
--store or DLOCK_STORE on the line names, else the one that dlock would use. If
it does not answer within a quarter of a second, no keys are offered.

EXIT STATUS
    0  the script was printed
   64  the command line makes no sense
   74  output could not be written";

/// `dlock completions`.
#[derive(Debug, Args)]
#[command(after_long_help = COMPLETIONS_AFTER)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,

    /// The options every command takes.
    #[command(flatten)]
    pub common: Common,
}

/// The options every command takes. A flag wins over its variable, a variable over a configuration file.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options every command takes")]
pub struct Common {
    /// Where the locks are (or DLOCK_STORE) [default: redis://127.0.0.1:6379]
    ///
    /// redis://[USER:PASSWORD@]HOST[:PORT][/DB], redis+unix:///SOCKET[?db=N], redis+sentinel://HOST,HOST/MASTER,
    /// redis+cluster://HOST,HOST, redis+quorum://HOST,HOST,HOST for a majority of independent masters,
    /// postgres://USER@HOST[:PORT]/DATABASE or postgres+unix://USER@/SOCKET?db=DATABASE for a database, mysql:// and
    /// mysql+unix:// alike, or file:/DIR for locks between the processes of this machine only. rediss:// is TLS, and so
    /// are postgres:// and mysql:// to another machine: ?ca=FILE trusts FILE in place of the system's authorities,
    /// &cert=FILE&key=FILE shows a certificate. Do not write a password here: every user of this machine can see it.
    #[arg(long, value_name = "URL", action = ArgAction::Append, value_hint = ValueHint::Url)]
    pub store: Vec<OsString>,

    /// What the names of all locks begin with (or DLOCK_PREFIX) [default: dlock:]
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<OsString>,

    /// Read FILE in place of the configuration files (or DLOCK_CONFIG)
    ///
    /// TOML; the keys are the long flags without the dashes, also those of `run`. Without this option
    /// /etc/dlock.toml is read, then ~/.config/dlock.toml; the later one wins key by key.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<OsString>,

    /// The user to log in to the store as (or DLOCK_USERNAME)
    #[arg(long, value_name = "USER")]
    pub username: Option<OsString>,

    /// Read the store's password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub password_file: Option<OsString>,

    /// How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]
    #[arg(long, value_name = "DUR", value_parser = timeout)]
    pub connect_timeout: Option<Duration>,

    /// How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]
    #[arg(long, value_name = "DUR", value_parser = timeout)]
    pub op_timeout: Option<Duration>,

    /// Do not say that the lock is busy or waited for; errors, and that the lock was lost, are still said
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say more
    #[arg(short, long)]
    pub verbose: bool,

    /// How messages on stderr are written (or DLOCK_LOG_FORMAT) [default: text]
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

/// A shell that has a completion script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// The value of `--ttl`.
fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration::parse(text)?)
}

/// The value of a timeout: a duration that is not zero.
fn timeout(text: &str) -> Result<Duration, String> {
    duration::parse_positive(text)
}

/// The value of `--slots`.
pub fn slots(text: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| (1..=SLOTS_MAX).contains(slots));
    slots.ok_or_else(|| format!("a number of slots is from 1 to {SLOTS_MAX}"))
}

/// The value of `--busy-exit-code`.
fn exit_status(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "an exit status is a number from 0 to 255".into())
}

/// The greatest number of bytes in `--reason` and `--label`.
pub const NOTE_MAX: usize = 500;

/// The value of `--reason` and `--label`: short enough to be kept in every record of the hold. It may be empty, for a
/// script whose variable is.
pub fn note(text: &str) -> Result<String, String> {
    if text.len() > NOTE_MAX {
        return Err(format!("the text is at most {NOTE_MAX} bytes long, this one has {}", text.len()));
    }
    Ok(text.into())
}

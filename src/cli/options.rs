//! Options that several commands share, and the parsers of their values: a ttl, a number of slots,
//! a status, a note.

use super::duration;
use crate::exit::OnLost;
use crate::lock::{Key, Replicas, SLOTS_MAX, Ttl};
use clap::{ArgAction, Args, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::time::Duration;

/// How `run`, `hold` and `acquire` ask for the lock.
#[derive(Debug, Clone, Default, Args)]
pub struct How {
    /// The lock's name: 1 to 512 bytes of UTF-8; several -k are taken together, all or none
    ///
    /// While it waits dlock holds none of them. So two runs that name the same keys in another order cannot block
    /// each other. The same key twice is one.
    #[arg(short, long, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new, action = ArgAction::Append, help_heading = "Lock")]
    pub key: Vec<Key>,

    /// Share the lock with others that share it
    ///
    /// Any number of shared holders at a time, or one exclusive holder. While a run waits for the exclusive lock, later
    /// shared runs wait, too.
    #[arg(short, long, conflicts_with_all = ["exclusive", "slots"], help_heading = "Lock")]
    pub shared: bool,

    /// One holder at a time [default]
    #[arg(
        short = 'x',
        long,
        short_alias = 'e',
        conflicts_with = "slots",
        help_heading = "Lock",
        hide_short_help = true
    )]
    pub exclusive: bool,

    /// Up to N holders at a time, 1 to 1000, each with a slot number of its own
    ///
    /// The number is 0 to N-1, the lowest that is free. 'run' gives it to CMD in DLOCK_SLOT; 'acquire' and 'hold' tell
    /// it with --export or --json. All runs under the key must give the same N. While the lock is held, it is busy for a
    /// run with another N or another mode.
    #[arg(short = 'n', long, value_name = "N", value_parser = slots, help_heading = "Lock")]
    pub slots: Option<u32>,

    /// The length of the lease, 500ms to 24h [default: 30s]
    ///
    /// If the lease is not renewed for this long, as when the machine is lost, the lock is free for others. 'run' and
    /// 'hold' renew it each time a quarter of it has passed; an outage of the store of up to half of it disturbs
    /// nothing. After 'acquire' only 'dlock renew' renews it: give more than the script needs, or renew.
    #[arg(short, long, value_name = "DUR", value_parser = ttl, help_heading = "Lock")]
    pub ttl: Option<Ttl>,

    /// Wait for the lock, first come first served; without DUR for ever [default: do not wait]
    ///
    /// Waiters get the lock in the order they came, whatever machine they are on. dlock also waits for a store that cannot
    /// be reached. A duration is 90s, 1h30m, or bare seconds, fractions too. 0: do not wait. A server that does not
    /// answer or is full is asked for ten seconds in any case.
    #[arg(short, long, value_name = "DUR", num_args = 0..=1, value_parser = duration::parse, help_heading = "Waiting")]
    pub wait: Option<Option<Duration>>,

    /// The exit status when the lock was not obtained, 0 to 255 [default: 75]
    ///
    /// 'acquire' and 'hold --background' refuse 0, because the script would go on without the lock.
    #[arg(short = 'E', long, alias = "conflict-exit-code", value_name = "N", value_parser = exit_status, help_heading = "Waiting")]
    pub busy_exit_code: Option<u8>,

    /// Why the lock is taken; `dlock status` shows it
    #[arg(long, value_name = "TEXT", value_parser = note, help_heading = "Reporting")]
    pub reason: Option<String>,

    /// Show and store TEXT in place of the command line
    ///
    /// Without it dlock stores the first 200 bytes of a command line: that of CMD, of the process of 'hold --pid', or of
    /// the process that started dlock. Everybody with access to the store can read them.
    #[arg(long, value_name = "TEXT", value_parser = note, help_heading = "Reporting", hide_short_help = true)]
    pub label: Option<String>,
}

/// How `run` and `hold` keep the lock, and give it up.
#[derive(Debug, Clone, Default, Args)]
pub struct Keep {
    /// The newest wins: ask the holder to end, and take the lock when the old job is dead; needs --wait
    ///
    /// Like cancel-in-progress in CI. The old job is stopped as by 'dlock release', and its dlock exits 79. Other waiters
    /// with --replace under this key exit 75, so of several the last one gets the lock. Waiters without --replace keep their
    /// places before this one, and a holder with --no-replace is waited for. While the lock is paused, no holder is asked
    /// to end. Not with --shared or --slots.
    #[arg(long, conflicts_with_all = ["shared", "slots"], help_heading = "Waiting")]
    pub replace: bool,

    /// Once the lock is held, do not let a run with --replace end the hold
    ///
    /// If all runs use it together with --replace, the running job ends by itself, and then the newest waiter runs.
    #[arg(long, help_heading = "Waiting", hide_short_help = true)]
    pub no_replace: bool,

    /// If this run fails, let nobody have the lock for DUR
    ///
    /// As after 'dlock pause' with the reason 'failed on HOST: exit 1', up to 40d. Waiters keep their places, and 'dlock resume'
    /// ends it. It puts time between the tries of many machines, and stops a rollout where it broke. Every end without
    /// success counts as a failure, also a command that cannot be executed and a lost machine, but not a request of an
    /// operator, nor a run in which dlock got INT, TERM, HUP or QUIT before. The later end counts if the lock is paused
    /// already. With --slots the whole lock is paused; not with --shared or --replace. A 'hold' fails only if its lease runs
    /// out.
    #[arg(long, value_name = "DUR", value_parser = duration::parse_pause, conflicts_with_all = ["shared", "replace"], help_heading = "Waiting")]
    pub pause_on_failure: Option<Duration>,

    /// The time between TERM and KILL when dlock must stop the job [default: 10s]
    ///
    /// The job of 'hold --pid' is the process. While a lease runs out, this time is cut to a fifth of the ttl. For a
    /// 'hold' without --pid it is the time from the end of stdout to the end of the hold.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Limits")]
    pub grace: Option<Duration>,

    /// What to do with the job when the lock is lost [default: stop]
    #[arg(long, value_name = "WHAT", help_heading = "When the lock is lost")]
    pub on_lost: Option<OnLost>,

    /// Replicas that must acknowledge each grant, renewal and release [default: 0]
    ///
    /// A number, or `all`: every replica that the store knows, at least one. If too few acknowledge a grant, the lock
    /// is given back and dlock exits 69; if too few acknowledge a renewal, it has failed. A failover then loses the lock
    /// less often; see docs/stores.md.
    #[arg(long, value_name = "N|all", value_parser = Replicas::parse, help_heading = "Lock", hide_short_help = true)]
    pub replicas: Option<Replicas>,
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
    /// TOML; the settings are the long flags without the dashes, also those of `run` that do not describe one job.
    /// Without this option /etc/dlock.toml is read, then ~/.config/dlock.toml; a setting that is in both is taken from
    /// the second.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<OsString>,

    /// The user to log in to the store as (or DLOCK_USERNAME)
    #[arg(long, value_name = "USER", hide_short_help = true)]
    pub username: Option<OsString>,

    /// Read the store's password from FILE (or DLOCK_PASSWORD_FILE; DLOCK_PASSWORD is the password itself)
    ///
    /// A regular file is read again before each connection, so the password may be changed while a lock is held.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub password_file: Option<OsString>,

    /// Run COMMAND by /bin/sh for the store's password, the first line that it prints (or DLOCK_PASSWORD_COMMAND)
    ///
    /// It is run again before each connection, for tokens that expire (RDS, ElastiCache, Vault). It is killed if it runs
    /// longer than --connect-timeout, and not run again within a second of a failure. What it prints on stderr is
    /// dropped.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, hide_short_help = true)]
    pub password_command: Option<OsString>,

    /// How long connecting may take (or DLOCK_CONNECT_TIMEOUT) [default: 2s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_positive, hide_short_help = true)]
    pub connect_timeout: Option<Duration>,

    /// How long an answer may take (or DLOCK_OP_TIMEOUT) [default: 1s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse_positive, hide_short_help = true)]
    pub op_timeout: Option<Duration>,

    /// Do not report a busy lock, waiting, or trouble that passes; errors, a lost lock and a missed --once-per run are
    /// still reported
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Report more
    #[arg(short, long)]
    pub verbose: bool,

    /// The format of messages on stderr (or DLOCK_LOG_FORMAT) [default: text]
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
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

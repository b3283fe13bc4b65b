//! What can be said on the command line? The structs that clap fills, and the help; it is written here and nowhere
//! else (man/ and completions/ are generated from it). Nothing is resolved here: a value that a variable or a file
//! may also give stays as it was typed, for `config`.

use crate::lock::{Key, Replicas, SLOTS_MAX, Ttl};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub mod acquire;
pub mod check;
pub mod complete;
pub mod doctor;
pub mod duration;
pub mod history;
pub mod metrics;
pub mod renew;
pub mod usage;
pub mod wait;
pub mod watch;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    about = "Run a command under a lock that a whole fleet of machines respects",
    long_about = "Run a command under a lock that a whole fleet of machines respects.\n\n\
        dlock is flock(1) for more than one machine. The lock lives in a Redis server (or, for one machine, in a \
        directory). It is a lease: dlock renews it while the command runs, gives it back when the command ends, and \
        stops the command before the lease ends if it cannot be renewed.",
    after_long_help = "Examples:\n  \
        # Crontab on every machine; one of them runs the job:\n  \
        0 3 * * *  dlock run -k nightly-report --min-hold 1m -- /usr/local/bin/report\n\n  \
        # Who holds what, and who waits:\n  \
        dlock status\n\n\
        The store is redis://127.0.0.1:6379 unless --store or DLOCK_STORE names another one.\n\
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
    /// The last 64 ends are kept, for 40 days; also those of holders that crashed ("expired").
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
            Self::Release(release) => Some(&release.key),
            Self::History(history) => Some(&history.key),
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
            Self::History(history) => &history.common,
            Self::Release(release) => &release.common,
            Self::Watch(watch) => &watch.common,
            Self::Metrics(metrics) => &metrics.common,
            Self::Doctor(doctor) => &doctor.common,
            Self::Completions(completions) => &completions.common,
        }
    }
}

const RUN_AFTER: &str = "\
Examples:
  # From cron on every machine; one of them runs the job, the others exit 75:
  dlock run -k nightly-report --min-hold 1m -- /usr/local/bin/report

  # Wait up to ten minutes for the lock; then give up with 75:
  dlock run -k deploy -w 10m -- ./deploy.sh

  # A shell line:
  dlock run -k backup -c 'pg_dump app | gzip > /backup/app.gz'

  # Busy is no error: exit 0 if another machine has it:
  dlock run -k nightly-report -E 0 -- /usr/local/bin/report

  # Many read, one writes:
  dlock run -k index -s -w -- ./search
  dlock run -k index -w -- ./rebuild

  # Three at a time over all machines, each on a shard of its own:
  dlock run -k import -n 3 -w -c './import --shard \"$DLOCK_SLOT\"'

  # Two locks or none:
  dlock run -k stock -k orders -w -- ./settle

The command gets DLOCK_KEY, DLOCK_KEYS, DLOCK_TOKEN, DLOCK_FENCE, with --slots
DLOCK_SLOT, and DLOCK_HELD in its environment. The fence is a number that grows
with every grant of the key; a database that refuses a smaller one is safe from
a job that was thought dead.

A dlock run inside the job, also through scripts, does not wait for a lock that
the job holds: it runs its command at once, under that hold.

EXIT STATUS
  The command's own status if it ran; if it died of a signal, dlock dies of the
  same. Else:
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   70  a fault of dlock's own
   75  busy: the lock was not obtained (-E changes the number)
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid
   79  the lock was lost, and the command was stopped
  124  --max-run stopped the command
  126  the command cannot be executed
  127  the command was not found
  When dlock itself ends so, the command never ran, save with 70, 79 and 124;
  the message says so.";

/// `dlock run`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock run -k KEY [OPTIONS] -- CMD [ARG]...\n       dlock run -k KEY [OPTIONS] -c STRING",
    allow_negative_numbers = true,
    after_long_help = RUN_AFTER
)]
pub struct Run {
    /// The lock's name: 1 to 512 bytes of UTF-8; several -k are taken together, all or none
    ///
    /// Nothing is held while the rest is waited for, so that runs which name the same keys in another order cannot
    /// lock each other out. The same key twice is one.
    #[arg(short, long, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new, action = ArgAction::Append)]
    pub key: Vec<Key>,

    /// Share the lock with others that share it
    ///
    /// Any number of shared holders, or one exclusive one. Who waits for the exclusive lock holds back whoever comes
    /// later to share it.
    #[arg(short, long)]
    pub shared: bool,

    /// One holder at a time [default]
    #[arg(short = 'x', long, short_alias = 'e')]
    pub exclusive: bool,

    /// Up to N holders at a time, 1 to 1000, each with a slot number of its own
    ///
    /// CMD finds the number in DLOCK_SLOT: 0 to N-1, the lowest that is free. All who use a key must name the same N;
    /// while it is held another one, or another mode, is busy.
    #[arg(short = 'n', long, value_name = "N", num_args = 0..=1, value_parser = slots)]
    pub slots: Option<Option<u32>>,

    /// Wait for the lock, first come first served; without DUR for ever [default: do not wait]
    ///
    /// Waiters are served in the order they came, whatever machine they are on. A duration is 90s, 1h30m, or bare
    /// seconds, fractions too. 0: do not wait.
    #[arg(short, long, value_name = "DUR", num_args = 0..=1, value_parser = duration::parse)]
    pub wait: Option<Option<Duration>>,

    /// Keep the lock at least this long after it was granted
    ///
    /// For cron hosts whose clocks differ: a job that takes a second is then not run again by a machine whose clock
    /// is two seconds behind. Holds also when CMD fails or dlock is killed; dlock itself exits as soon as CMD does.
    /// Not together with --wait.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub min_hold: Option<Duration>,

    /// Stop CMD when it has run this long, and exit 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub max_run: Option<Duration>,

    /// The length of the lease, 500ms to 24h [default: 30s]
    ///
    /// Renewed every quarter of it. An outage of the store of up to half of it disturbs nothing. After the machine
    /// is lost the lock is free when this time has passed.
    #[arg(short, long, value_name = "DUR", value_parser = ttl)]
    pub ttl: Option<Ttl>,

    /// The longest lease anybody may ask of redis+quorum:// masters; the same for the whole fleet [default: 5m]
    ///
    /// A longer --ttl or --min-hold is refused. A master that restarted counts again when it has been up for so long:
    /// until then it may have forgotten a lock that is held. Other stores do not look at it.
    #[arg(long, value_name = "DUR", value_parser = timeout)]
    pub max_lease: Option<Duration>,

    /// The time between TERM and KILL when dlock must stop CMD [default: 10s]
    ///
    /// While a lease runs out it is cut to a fifth of the ttl.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub grace: Option<Duration>,

    /// What to do with CMD when the lock is lost [default: stop]
    #[arg(long, value_name = "WHAT")]
    pub on_lost: Option<OnLost>,

    /// The exit status when the lock was not obtained, 0 to 255 [default: 75]
    #[arg(short = 'E', long, alias = "conflict-exit-code", value_name = "N", value_parser = status)]
    pub busy_exit_code: Option<u8>,

    /// Keep the lock until every process of the job has ended, not CMD alone
    ///
    /// Also those that went to the background, or into sessions of their own. dlock then exits as CMD did. Until then
    /// they are stopped as CMD would be, and get the signals that are sent to dlock.
    #[arg(long)]
    pub tree: bool,

    /// When done, write the outcome to FILE as JSON
    ///
    /// Also when the command did not run: busy, unreachable, interrupted. The file appears whole, by a rename. The
    /// fields are explained in docs/report.md.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,

    /// Replicas that must acknowledge each grant and each renewal [default: 0]
    ///
    /// A number, or `all` that are connected, of which there must be one. Too few: the lock is given back and dlock
    /// exits 69; a renewal counts as failed. A failover then loses the lock less often; see docs/stores.md.
    #[arg(long, value_name = "N|all", value_parser = Replicas::parse)]
    pub replicas: Option<Replicas>,

    /// Why; `dlock status` shows it
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub reason: Option<String>,

    /// Show and store TEXT in place of the command line
    ///
    /// Without it the first 200 bytes of the command line are stored, where everybody with access to the store can
    /// read them.
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub label: Option<String>,

    /// Run STRING by $SHELL (or /bin/sh) in place of `-- CMD`
    #[arg(short = 'c', long = "command", value_name = "STRING")]
    pub shell: Option<OsString>,

    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// The options every command takes.
    #[command(flatten)]
    pub common: Common,

    /// Other tools' habits.
    #[command(flatten)]
    pub hidden: Hidden,
}

impl Run {
    /// The keys in the order given, each once.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for key in &self.key {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        keys
    }
}

/// What `run` understands without showing it: habits of other tools.
#[derive(Debug, Args)]
pub struct Hidden {
    /// flock's way to say that it does not wait
    #[arg(long, alias = "nb", hide = true)]
    pub nonblock: bool,

    /// An ambiguous word
    #[arg(long, hide = true, num_args = 0..=1)]
    pub timeout: Option<Option<String>>,
}

const STATUS_AFTER: &str = "\
Examples:
  # Every lock that is held, cooling or waited for:
  dlock status

  # One lock, for a script:
  dlock status nightly-report --json | jq -r '.[0].state'

  # The same table, redrawn every five seconds:
  dlock status --watch 5s

A lock is held, free, cooling (given back, and kept for the rest of --min-hold)
or revoked (taken away by an operator while the old job may still run).

EXIT STATUS
    0  the store answered, whatever it said
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   74  output could not be written
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid";

/// `dlock status`.
#[derive(Debug, Args)]
#[command(after_long_help = STATUS_AFTER)]
pub struct Status {
    /// The locks to show
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    /// Print a JSON array, one object a lock
    ///
    /// Every field is there, null if unknown. Times are RFC 3339 in UTC, spans are whole milliseconds. The fields are
    /// explained in docs/status.md.
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,

    /// Redraw the table in place, with those who wait under each lock, until ^C [default: every second]
    ///
    /// On a terminal only. When the store does not answer, that is said above what was last seen. KEYs stand before
    /// --watch.
    #[arg(long, value_name = "DUR", num_args = 0..=1, value_parser = interval)]
    pub watch: Option<Option<Duration>>,

    /// The options every command takes.
    #[command(flatten)]
    pub common: Common,
}

const RELEASE_AFTER: &str = "\
Examples:
  # What a script got by dlock acquire, in that script:
  dlock release nightly-report

  # Somebody else's: shows who has it, and asks; -y goes on without asking:
  dlock release nightly-report
  dlock release nightly-report -y --timeout 1m

  # A lock whose token was kept in a file:
  dlock release nightly-report --token-file token

  # The job hangs: its dlock stops it at the next heartbeat, and the next grant
  # comes when it is known dead:
  dlock release nightly-report --force

  # The machine is gone for good, do not wait for the lease to end:
  dlock release nightly-report --force --now

EXIT STATUS
    0  the hold has ended, or is taken away; or nobody held the lock
   64  the command line makes no sense, or nobody is there to answer (-y); or the
       lock ends with the job of a 'dlock run' around this process
   69  the store cannot be reached, or refused
   75  it is still held: the answer was no, or --timeout ran out
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid
   79  the token given, or the hold that DLOCK_HELD names, is no more";

/// `dlock release`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock release KEY [-y] [--slot N] [--timeout DUR]\n       \
        dlock release KEY --token-file FILE\n       dlock release KEY --force [--now]",
    allow_negative_numbers = true,
    after_long_help = RELEASE_AFTER
)]
pub struct Release {
    /// The lock
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub key: Key,

    /// Give back the hold whose token is in FILE (`-`: standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "force")]
    pub token_file: Option<PathBuf>,

    /// Take the lock away: its renewals are refused from now on
    ///
    /// The holder's dlock stops the job. The next grant comes when the job is known dead or its lease ends.
    #[arg(long)]
    pub force: bool,

    /// With --force: grant it to the next at once; both jobs may then run
    #[arg(long)]
    pub now: bool,

    /// Do not ask whether to go on
    #[arg(short, long)]
    pub yes: bool,

    /// Of a lock with slots, ask only the holder of slot N to stop
    #[arg(long, value_name = "N", value_parser = slot, conflicts_with_all = ["force", "token_file"])]
    pub slot: Option<u32>,

    /// How long to wait for the job to end; the holder stays asked [default: for ever]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with_all = ["force", "token_file"])]
    pub timeout: Option<Duration>,

    /// The options every command takes.
    #[command(flatten)]
    pub common: Common,
}

const COMPLETIONS_AFTER: &str = "\
Examples:
  dlock completions bash > ~/.local/share/bash-completion/completions/dlock
  dlock completions zsh > \"${fpath[1]}/_dlock\"
  dlock completions fish > ~/.config/fish/completions/dlock.fish

Where a KEY goes, the keys are completed that the store knows: the one that is
named by --store or DLOCK_STORE on the line, else as usual. If it does not
answer within a quarter of a second there are none.

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
    /// redis+cluster://HOST,HOST, redis+quorum://HOST,HOST,HOST for a majority of independent masters, or file:/DIR for
    /// locks between the processes of this machine only. rediss:// is TLS: ?ca=FILE trusts FILE in place of the
    /// system's authorities, &cert=FILE&key=FILE shows a certificate. Better not write a password here: every user of
    /// this machine can see it.
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

    /// Do not say that the lock is busy, waited for or lost; errors are still said
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

/// `--on-lost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop it
    Stop,
    /// Let it run on, warn, and exit 79 when it has ended
    Warn,
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

/// The value of `status --watch`.
fn interval(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|why| format!("{why}; a KEY stands before --watch"))?;
    if span < Duration::from_millis(100) { Err("100ms is the shortest".into()) } else { Ok(span) }
}

/// The value of `--slot`.
fn slot(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("a slot is a number from 0 to {}", SLOTS_MAX - 1))
}

/// The value of `--busy-exit-code`.
fn status(text: &str) -> Result<u8, String> {
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

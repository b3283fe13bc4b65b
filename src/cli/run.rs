//! The options of `dlock run` and their help.

use super::duration;
use super::options::{exit_status, note, slots, ttl};
use crate::exit::OnLost;
use crate::lock::{Key, ONCE_PER_MOST, Replicas, Ttl};
use clap::{ArgAction, Args, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const RUN_AFTER: &str = "\
Examples:
  # From cron on every machine; one of them runs the job, the others stand by:
  dlock run -q -k nightly --once-per 18h -w 4h -- /usr/local/bin/report

  # Wait up to ten minutes for the lock; then give up with 75:
  dlock run -k deploy -w 10m -- ./deploy.sh

  # A shell line:
  dlock run -k backup -c 'pg_dump app | gzip > /backup/app.gz'

  # Busy is no error: exit 0 if another machine has it:
  dlock run -k nightly-report -E 0 -- /usr/local/bin/report

  # A newer commit stops the deployment of an older one:
  dlock run -k preview-42 --replace -w -- ./deploy-preview 42

  # Many read, one writes:
  dlock run -k index -s -w -- ./search
  dlock run -k index -w -- ./rebuild

  # Three at a time over all machines, each on a shard of its own:
  dlock run -k import -n 3 -w -c './import --shard \"$DLOCK_SLOT\"'

  # Two locks or none:
  dlock run -k stock -k orders -w -- ./settle

The command gets DLOCK_KEY, DLOCK_KEYS, DLOCK_TOKEN, DLOCK_FENCE, with --slots
DLOCK_SLOT, and DLOCK_HELD in its environment. The fence is a number that grows
with every grant of the key. A database that refuses smaller numbers is safe
from a job that was thought dead and still writes.

A dlock inside the job uses the same store, whatever named it: the command also
gets DLOCK_STORE, DLOCK_PREFIX, DLOCK_USERNAME, and DLOCK_PASSWORD_FILE or
DLOCK_PASSWORD_COMMAND, but no password. A flag of the dlock inside wins.

A dlock run inside the job, also in a script that the job starts, does not wait
for a lock that the job holds: it runs its command at once, under that hold.

EXIT STATUS
  The command's own status if it ran; if it died of a signal, dlock dies of the
  same. 0 also if another run had done it (--once-per). Else:
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   70  a fault of dlock's own
   75  busy: the lock was not obtained, or a newer run with --replace took the
       place of this one before it began (-E changes the number)
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid
   79  the lock was lost, or an operator or a newer run (--replace) asked for
       it, and the command was stopped
  124  --max-run stopped the command
  126  the command cannot be executed
  127  the command was not found
  With 70, 79 and 124 the command may have run; with the others in this list it
  did not. The message says so.";

/// `dlock run`.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock run -k KEY [OPTIONS] [--] CMD [ARG]...\n       dlock run -k KEY [OPTIONS] -c STRING",
    allow_negative_numbers = true,
    after_long_help = RUN_AFTER
)]
pub struct Run {
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
    #[arg(short, long, help_heading = "Lock")]
    pub shared: bool,

    /// One holder at a time [default]
    #[arg(short = 'x', long, short_alias = 'e', help_heading = "Lock")]
    pub exclusive: bool,

    /// Up to N holders at a time, 1 to 1000, each with a slot number of its own
    ///
    /// CMD finds the number in DLOCK_SLOT: 0 to N-1, the lowest that is free. All runs under the key must give
    /// the same N. While the lock is held, it is busy for a run with another N or another mode.
    #[arg(short = 'n', long, value_name = "N", num_args = 0..=1, value_parser = slots, help_heading = "Lock")]
    pub slots: Option<Option<u32>>,

    /// Wait for the lock, first come first served; without DUR for ever [default: do not wait]
    ///
    /// Waiters get the lock in the order they came, whatever machine they are on. dlock also waits for a store that cannot
    /// be reached. A duration is 90s, 1h30m, or bare seconds, fractions too. 0: do not wait.
    #[arg(short, long, value_name = "DUR", num_args = 0..=1, value_parser = duration::parse, help_heading = "Waiting")]
    pub wait: Option<Option<Duration>>,

    /// Keep the lock at least this long after it was granted
    ///
    /// For cron hosts whose clocks differ: a job that takes a second is then not run again by a machine whose clock
    /// is two seconds behind. Holds also when CMD fails or dlock is killed; dlock itself exits as soon as CMD does.
    /// Not together with --wait.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Once")]
    pub min_hold: Option<Duration>,

    /// Skip CMD, and exit 0, if a run with --once-per that succeeded was granted within the last DUR
    ///
    /// For a job that must run once per tick, on any machine. Success is status 0, and the time of the grant counts, by the
    /// store's clock. Only runs with --once-per count: a run without it, such as a test by hand, never does. With --wait one
    /// machine runs and the others stand by: if it succeeds, the others exit 0; if it fails or dies, the next one runs. dlock
    /// says who ran it and when. DUR must be below the time between two ticks, less --wait, less an hour for the day that has
    /// 23: for a nightly job with -w 4h that is less than 19h. With several keys, each must have such a success. Up to 30d; not
    /// with --shared or --slots. 'dlock forget KEY' makes the next run due at once, and so does a store that lost its data.
    #[arg(long, value_name = "DUR", value_parser = once_per, conflicts_with_all = ["shared", "slots"], help_heading = "Once")]
    pub once_per: Option<Duration>,

    /// The newest wins: ask the holder to end, and run CMD when the old job is dead; needs --wait
    ///
    /// Like cancel-in-progress in CI. The old job is stopped as by 'dlock release', and its dlock exits 79. Other waiters
    /// with --replace under this key exit 75, so of several the last one runs. Waiters without --replace keep their places
    /// before this run, and a run with --no-replace is waited for. While the lock is paused, no holder is asked to end. Not
    /// with --shared or --slots.
    #[arg(long, conflicts_with_all = ["shared", "slots"], help_heading = "Waiting")]
    pub replace: bool,

    /// Once CMD runs, do not let a run with --replace end it
    ///
    /// If all runs use it together with --replace, the running job ends by itself, and then the newest waiter runs.
    #[arg(long, help_heading = "Waiting")]
    pub no_replace: bool,

    /// Stop CMD when it has run this long, and exit 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Limits")]
    pub max_run: Option<Duration>,

    /// The length of the lease, 500ms to 24h [default: 30s]
    ///
    /// dlock renews the lease each time a quarter of it has passed. An outage of the store of up to half of it
    /// disturbs nothing. If the machine is lost, the lock is free after this time.
    #[arg(short, long, value_name = "DUR", value_parser = ttl, help_heading = "Lock")]
    pub ttl: Option<Ttl>,

    /// The longest lease on redis+quorum:// masters; the same on every machine [default: 5m]
    ///
    /// A longer --ttl or --min-hold is refused. A master that restarted is not counted until it has been up for this
    /// long, because it may have forgotten a lock that is still held. Other stores ignore this option.
    #[arg(long, value_name = "DUR", value_parser = duration::parse_positive, help_heading = "Lock")]
    pub max_lease: Option<Duration>,

    /// The time between TERM and KILL when dlock must stop CMD [default: 10s]
    ///
    /// While a lease runs out it is cut to a fifth of the ttl.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Limits")]
    pub grace: Option<Duration>,

    /// What to do with CMD when the lock is lost [default: stop]
    #[arg(long, value_name = "WHAT", help_heading = "When the lock is lost")]
    pub on_lost: Option<OnLost>,

    /// The exit status when the lock was not obtained, 0 to 255 [default: 75]
    #[arg(short = 'E', long, alias = "conflict-exit-code", value_name = "N", value_parser = exit_status, help_heading = "Waiting")]
    pub busy_exit_code: Option<u8>,

    /// Keep the lock until every process of the job has ended, not CMD alone
    ///
    /// Also those that went to the background, or into sessions of their own. dlock then exits as CMD did. Until then
    /// they are stopped as CMD would be, and get the signals that are sent to dlock.
    #[arg(long, help_heading = "Lock")]
    pub tree: bool,

    /// When done, write the outcome to FILE as JSON
    ///
    /// Also when the command did not run: busy, unreachable, interrupted. A reader never sees half a file. The fields
    /// are explained in docs/report.md.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Reporting")]
    pub report: Option<PathBuf>,

    /// Replicas that must acknowledge each grant, renewal and release [default: 0]
    ///
    /// A number, or `all`: every replica that the store knows, at least one. If too few acknowledge a grant, the lock
    /// is given back and dlock exits 69; if too few acknowledge a renewal, it has failed. A failover then loses the lock
    /// less often; see docs/stores.md.
    #[arg(long, value_name = "N|all", value_parser = Replicas::parse, help_heading = "Lock")]
    pub replicas: Option<Replicas>,

    /// Why the job runs; `dlock status` shows it
    #[arg(long, value_name = "TEXT", value_parser = note, help_heading = "Reporting")]
    pub reason: Option<String>,

    /// Show and store TEXT in place of the command line
    ///
    /// Without it the first 200 bytes of the command line are stored, where everybody with access to the store can
    /// read them.
    #[arg(long, value_name = "TEXT", value_parser = note, help_heading = "Reporting")]
    pub label: Option<String>,

    /// Run STRING by $SHELL (or /bin/sh) in place of `-- CMD`
    #[arg(short = 'c', long = "command", value_name = "STRING")]
    pub shell: Option<OsString>,

    /// The command and its arguments; `--` before it is needed right after -w without DUR
    #[arg(trailing_var_arg = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    #[command(flatten)]
    pub hidden: Hidden,
}

/// The value of `--once-per`.
fn once_per(text: &str) -> Result<Duration, String> {
    let span = duration::parse_positive(text)?;
    if span > ONCE_PER_MOST {
        return Err("a success is remembered for 30 days, not longer".into());
    }
    Ok(span)
}

/// What `run` understands without showing it: habits of other tools.
#[derive(Debug, Default, Args)]
pub struct Hidden {
    /// flock's way to say that it does not wait
    #[arg(long, alias = "nb", hide = true)]
    pub nonblock: bool,
}

//! The options of `dlock run` and their help.

use super::duration;
use super::options::{How, Keep};
use crate::lock::{EXPECT_MOST, ONCE_PER_MOST, Period};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const RUN_AFTER: &str = "\
Examples:
  # From cron on every machine; one of them runs the job, the others stand by:
  dlock run -q -k report --once-per day -w 4h --max-run 3h -- /opt/report

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

  # Three at a time over all machines:
  dlock run -k import -n 3 -w -- ./import

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
    #[command(flatten)]
    pub how: How,

    #[command(flatten)]
    pub keep: Keep,

    /// Keep the lock at least this long after it was granted
    ///
    /// For cron hosts whose clocks differ: a job that takes a second is then not run again by a machine whose clock
    /// is two seconds behind. Holds also when CMD fails or dlock is killed; dlock itself exits as soon as CMD does.
    /// Not together with --wait.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Once")]
    pub min_hold: Option<Duration>,

    /// Skip CMD, and exit 0, if a run of this minute, hour, day or week, or of the last DUR, has succeeded
    ///
    /// For a line that runs once a day on each machine. A success counts for 12 hours. With minute, hour and week, too, it
    /// counts for half of that time (30s, 30m, 84h): room for machines that are late, and for a rerun by hand half a period
    /// before the next run. A DUR is taken as it is, up to 30d. A run arrives when it first tries to reach the store, by the store's clock,
    /// however long it then waits. It is skipped if a run with --once-per succeeded (status 0) that arrived less than that
    /// before it, or that was granted the lock after it arrived. So with --wait one machine runs and the others stand by: if
    /// it succeeds, the others exit 0; if it fails or dies, the next one runs. Scheduled runs that arrive while an earlier one
    /// waits are done by one run. dlock says who ran it and when; on a terminal or with --verbose a run that succeeded says
    /// until when it counts. A scheduled run that gives up waiting, or is skipped at an unusual time, is named by one machine,
    /// also with --quiet. Only runs with --once-per count: a run without it, such as a test by hand, never does. With several
    /// keys, each must be done; not with --shared or --slots. 'dlock forget KEY' makes the next run due at once, and so does
    /// a store that lost its data.
    #[arg(long, value_name = "PERIOD", value_parser = once_per, conflicts_with_all = ["shared", "slots"], help_heading = "Once")]
    pub once_per: Option<Period>,

    /// Run although the lock is paused; needs --reason
    ///
    /// A change freeze with one urgent deploy. A run that asks while all its locks are paused goes before those that wait
    /// without this option, and keeps that place; no holder is passed, and the pause goes on. If one of its locks is not
    /// paused, it waits as others do. 'dlock history' and 'dlock pause -v' show it.
    #[arg(long, help_heading = "Waiting")]
    pub during_pause: bool,

    /// Report KEY as overdue if no run succeeds for minute, hour, day, week, or this long
    ///
    /// 'dlock status --overdue' and 'dlock metrics' report it, once the last success ended longer ago than that and a
    /// quarter, at least 30s more. A success of any run counts, also without --once-per. --once-per minute, hour, day and
    /// week imply it; a job of weekdays says --expect 3d. Up to 31d; 0: nothing is expected. The last run that says so
    /// decides. It is kept for 400 days after the last use, or until 'dlock forget --retire KEY'. A nested run changes
    /// nothing.
    #[arg(long, value_name = "PERIOD", value_parser = expect, help_heading = "Once")]
    pub expect: Option<Duration>,

    /// Stop CMD when it has run this long, and exit 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Limits")]
    pub max_run: Option<Duration>,

    /// The longest lease on redis+quorum:// masters; the same on every machine [default: 5m]
    ///
    /// A longer --ttl or --min-hold is refused. A master that restarted is not counted until it has been up for this
    /// long, because it may have forgotten a lock that is still held. Other stores ignore this option.
    #[arg(long, value_name = "DUR", value_parser = duration::parse_positive, help_heading = "Lock", hide_short_help = true)]
    pub max_lease: Option<Duration>,

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

    /// Run STRING by $SHELL (or /bin/sh) in place of `-- CMD`
    #[arg(short = 'c', long = "command", value_name = "STRING")]
    pub shell: Option<OsString>,

    /// The command and its arguments; `--` before it is needed right after -w without DUR
    #[arg(trailing_var_arg = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// flock's way to say that it does not wait
    #[arg(long, alias = "nb", hide = true)]
    pub nonblock: bool,
}

/// The value of `--once-per`.
pub(super) fn once_per(text: &str) -> Result<Period, String> {
    let period = period(text, duration::parse_positive)?;
    if period.counts() > ONCE_PER_MOST {
        return Err("a success is remembered for 30 days, not longer".into());
    }
    Ok(period)
}

/// The value of `--expect`. A word means the whole period.
fn expect(text: &str) -> Result<Duration, String> {
    let every = period(text, duration::parse)?.whole();
    if every > EXPECT_MOST {
        return Err("a run is expected at least every 31 days".into());
    }
    Ok(every)
}

fn period(text: &str, span: impl Fn(&str) -> Result<Duration, String>) -> Result<Period, String> {
    let word = Period::WORDS.into_iter().find(|(word, _)| *word == text).map(|(_, period)| period);
    let period = word.map_or_else(|| span(text).map(Period::Span), Ok);
    period.map_err(|why| format!("{why}; or minute, hour, day or week"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_half_of_its_period() {
        for (text, seconds) in [
            ("minute", 30),
            ("hour", 1800),
            ("day", 43_200),
            ("week", 302_400),
            ("18h", 64_800),
            ("30d", 2_592_000),
        ] {
            let counts = once_per(text).map(Period::counts);
            assert_eq!(counts, Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["daily", "days", "month", "0", "31d", ""] {
            assert!(once_per(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_expected_is_the_whole_period() {
        for (text, seconds) in [("minute", 60), ("hour", 3600), ("day", 86_400), ("week", 604_800)] {
            assert_eq!(expect(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!((expect("0"), expect("31d")), (Ok(Duration::ZERO), Ok(EXPECT_MOST)));
        for text in ["daily", "32d", ""] {
            assert!(expect(text).is_err(), "{text}");
        }
    }
}

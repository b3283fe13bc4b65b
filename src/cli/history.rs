//! The options of `dlock history` and their help.

use super::after::after;
use super::key::Named;
use super::point::{self, Point};
use crate::lock::Key;
use clap::{Args, ValueHint};

const AFTER: &str = "\
Examples:
  # How the last runs of a job went, and when:
  dlock history nightly-report

  # What failed in the last two days, of all locks:
  dlock history --failed --since 48h

  # And what did not run since midnight, and why:
  dlock history --refused --since 00:00 nightly-report

  # The last run of each kind of deployment, for a script:
  dlock history 'deploy-*' --json |
    jq -r 'unique_by(.key)[] | \"\\(.key) \\(.outcome)\"'

On a terminal each run is a row with a bar. Where the runs overlap or follow
each other closely, all bars are on one time axis: a thin line while the run
waited, a thick one while it held the lock. Otherwise a bar shows how long the
run held the lock, on the scale above the bars. Green where the job ended with
0, red with another status or a signal or by --max-run, magenta where dlock
crashed, the lease expired or the lock was lost, yellow where an operator or a
newer run (--replace) asked for the end, or an operator took the lock away.
A pipe gets a plain table, which is never cut.";

/// `dlock history`.
#[derive(Debug, Args)]
#[command(after_long_help = after(AFTER, &[
    (0, "the store answered, whatever it said"),
    (74, "output could not be written"),
]))]
pub struct History {
    /// The locks [default: all]; in a pattern * stands for any text, ? for one character
    ///
    /// The ends of several locks are shown together, the newest first, with their keys.
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Show the last N only
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<usize>,

    /// Show only runs that failed: a status other than 0, a signal, or an end that the job did not choose
    #[arg(long)]
    pub failed: bool,

    /// Also show runs that did not get the lock, and why
    ///
    /// For example busy, paused, or gave up waiting; docs/status.md has all reasons. On a terminal, several between two runs share one line, with a tick for each. In a pipe each has a line.
    #[arg(long)]
    pub refused: bool,

    /// Show only what ended within the last DUR, or since a moment such as 03:00 or yesterday
    ///
    /// A moment is in this machine's zone: 03:00 is the last three o'clock, yesterday the midnight at which that began,
    /// '2026-11-28 03:00' and 2026-11-28 what they say. dlock prints which moment it understood.
    #[arg(long, value_name = "WHEN", value_parser = point::parse)]
    pub since: Option<Point>,

    /// Print a JSON array, one object a run, the newest first
    ///
    /// Every field is there, null if unknown. Times are RFC 3339 in UTC, spans are whole milliseconds. The fields are
    /// explained in docs/status.md.
    #[arg(long)]
    pub json: bool,
}

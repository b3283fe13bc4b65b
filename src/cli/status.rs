//! The options of `dlock status` and their help.

use super::after::after;
use super::key::Named;
use crate::lock::Key;
use clap::{Args, ValueHint};

const STATUS_AFTER: &str = "\
Examples:
  # Every lock that is held, cooling, paused, overdue or waited for:
  dlock status

  # Everything about one lock, with its waiters:
  dlock status nightly-report

  # The locks whose keys match (quoted, because of the shell):
  dlock status 'deploy-*'

  # Every lock of the last 40 days, with its last run and last success:
  dlock status --all

  # What should have run and did not, with its last run; 75 if anything should:
  dlock status --overdue nightly-report 'backup-*'

  # One lock, for a script:
  dlock status nightly-report --json | jq -r '.[0].state'

  # The table of a pipe, redrawn every five seconds by watch(1):
  watch -n 5 dlock status

A lock is held, free, cooling (given back, and kept for the rest of --min-hold),
revoked (taken away by an operator while the old job may still run) or paused
(free, but granted to nobody until the pause ends or dlock resume ends it; who
paused it, why and until when is shown).

A KEY with * or ? means the keys that the store knows at that moment: those in
use, and those with a history. \\* and \\? stand for the characters themselves.";

/// `dlock status`.
#[derive(Debug, Args)]
#[command(after_long_help = after(STATUS_AFTER, &[
    (0, "the store answered, whatever it said; with --overdue: nothing is overdue"),
    (74, "output could not be written"),
    (75, "with --overdue: a lock is overdue, or a KEY expects none or is not known"),
]))]
pub struct Status {
    /// The locks to show; in a pattern * stands for any text, ? for one character
    ///
    /// One KEY is shown as a record, several as a table. Without KEY: the locks that are held, cooling, paused,
    /// overdue or waited for. A pattern also shows free locks that have a history.
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Show every lock that the store knows, also those that are free, with the last run and the last success
    #[arg(short, long)]
    pub all: bool,

    /// Show only the locks whose last success is too old, with their last run; exit 75 if there are any
    ///
    /// What is expected of a lock is what the last 'dlock run' with --expect, or with --once-per minute, hour, day or week,
    /// has said. Also 75 if a KEY is not known or expects no run, as after the store has lost its data: a monitor names its
    /// keys.
    #[arg(long, conflicts_with = "all")]
    pub overdue: bool,

    /// Print a JSON array, one object a lock
    ///
    /// Every field is there, null if unknown. Times are RFC 3339 in UTC, spans are whole milliseconds. The fields are
    /// explained in docs/status.md.
    #[arg(long)]
    pub json: bool,
}

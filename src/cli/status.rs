//! The options of `dlock status` and their help.

use super::after::after;
use super::key::Named;
use crate::lock::Key;
use clap::{Args, ValueHint};

const STATUS_AFTER: &str = "\
Examples:
  # Every lock that is held, cooling, paused or waited for:
  dlock status

  # Everything about one lock, with its waiters:
  dlock status nightly-report

  # The locks whose keys match (quoted, because of the shell):
  dlock status 'deploy-*'

  # Every lock of the last 40 days, with its last run and last success:
  dlock status --all

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
    (0, "the store answered, whatever it said"),
    (74, "output could not be written"),
]))]
pub struct Status {
    /// The locks to show; in a pattern * stands for any text, ? for one character
    ///
    /// One KEY is shown as a record, several as a table. Without KEY: the locks that are held, cooling, paused or waited
    /// for. A pattern also shows free locks that have a history.
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Show every lock that the store knows, also those that are free, with the last run and the last success
    #[arg(short, long)]
    pub all: bool,

    /// Print a JSON array, one object a lock
    ///
    /// Every field is there, null if unknown. Times are RFC 3339 in UTC, spans are whole milliseconds. The fields are
    /// explained in docs/status.md.
    #[arg(long)]
    pub json: bool,
}

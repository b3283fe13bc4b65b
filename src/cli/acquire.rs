//! The options of `dlock acquire` and their help.

use super::after::{EXPORT, after};
use super::duration;
use super::options::How;
use clap::Args;
use std::time::Duration;

const AFTER: &str = "\
Examples:
  # In a script that cannot be wrapped in 'dlock run':
  lock=$(dlock acquire --export -k import -t 10m) || exit; eval \"$lock\"
  trap 'dlock release import' EXIT
  trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM

  # Keep the token in a file, for other programs; -w waits its turn:
  dlock acquire -k import -t 10m -w > token || exit
  dlock renew import -t 10m --token-file token || exit
  dlock release import --token-file token

  # For programs:
  dlock acquire -k import --json

Only the script renews the lock: each 'dlock renew' does it once. When the lease
ends the lock is free for others, and nobody tells the script. 'dlock check'
right before a step that matters says whether the lock is still held. Use
'dlock run' where you can: it does all of this by itself.

The holder, as 'dlock status' shows it, is the process that started dlock.
A configuration file may give -t, -w and -E, as for 'dlock run'.";

/// `dlock acquire`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock acquire -k KEY [OPTIONS]\n       lock=$(dlock acquire --export -k KEY [OPTIONS]) || exit; eval \"$lock\"",
    allow_negative_numbers = true,
    after_long_help = after(AFTER, &[
        (0, "the lock is acquired, and what was asked for is printed"),
        (64, "the command line makes no sense, or -w would wait for this process itself"),
        (70, "a fault of dlock's own"),
        (74, "output could not be written; the lock is given back"),
        (75, "busy: the lock was not obtained (-E changes the number)"),
        (79, "an operator took the lock away just when it was granted"),
    ]) + EXPORT
)]
pub struct Acquire {
    #[command(flatten)]
    pub how: How,

    /// Keep the lock at least this long after it was granted, also when it is given back earlier
    ///
    /// For cron hosts whose clocks differ, as in 'dlock run'. Not together with --wait.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Lock")]
    pub min_hold: Option<Duration>,

    /// Print shell code that sets DLOCK_KEY, DLOCK_TOKEN and so on, in place of the token
    ///
    /// As 'dlock run' sets them for its command. 'dlock renew', 'check' and 'release' then know which hold is meant.
    #[arg(long, conflicts_with = "json", help_heading = "Reporting")]
    pub export: bool,

    /// Print a JSON array with one object, in place of the token
    ///
    /// Every field is there, null if unknown; spans are whole milliseconds. The fields are explained in
    /// docs/json.md.
    #[arg(long, help_heading = "Reporting")]
    pub json: bool,
}

//! The options of `dlock wait` and their help.

use super::after::after;
use super::duration;
use super::key::{NAMED, Named};
use super::run::once_per;
use crate::lock::{Key, Period};
use clap::{Args, ValueHint};
use std::time::Duration;

const AFTER: &str = "\
Examples:
  # Until the deployment is over, ten minutes at most:
  dlock wait deploy -w 10m || exit

  # After last night's export, on whichever machine it ran:
  dlock wait --done day -w 4h export && /usr/local/bin/report

The lock is not taken: another may take it the moment after. A lock that
is kept by --min-hold after its run has ended is not free yet. Several locks are
waited for one after the other. To wait for a lock and then take it, use
'dlock run -w', which also keeps a place in the queue.

A KEY with * or ? means the keys that the store knows at that moment: those in
use, and those with a history. \\* and \\? stand for the characters themselves.
If there is none, dlock says that there is nothing to wait for, and exits 0 (75
with --done).

With --done a key counts as done as it does for a run with '--once-per PERIOD'
that arrives now. If no success of a run with --once-per is remembered, the last
success of a run without it counts, if it is among the last 64 ends of the key.
A success that 'dlock forget' has made due again does not count.";

/// `dlock wait`.
#[derive(Debug, Args)]
#[command(override_usage = "dlock wait [OPTIONS] KEY...", allow_negative_numbers = true, after_long_help = after(AFTER, &[
    (0, "each lock was seen free or, with --done, done"),
    (64, "the command line makes no sense, or this process holds the lock itself"),
    (70, "a fault of dlock's own"),
    (75, "--wait ran out, or nothing matches with --done"),
]))]
pub struct Wait {
    /// The locks; in a pattern * stands for any text, ? for one character
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Wait until each key has succeeded in this minute, hour, day or week, or within the last DUR
    ///
    /// In place of waiting until it is free. It is done if a run with '--once-per PERIOD' that arrives now would be skipped.
    /// A key that the store does not know is waited for, and dlock says so.
    #[arg(long, value_name = "PERIOD", value_parser = once_per)]
    pub done: Option<Period>,

    /// Wait at most this long; 0: only look [default: for ever]
    #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
    pub wait: Option<Duration>,
}

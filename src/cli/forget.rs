//! The options of `dlock forget` and their help.

use super::after::after;
use super::key::{NAMED, Named};
use crate::lock::Key;
use clap::{Args, ValueHint};

const AFTER: &str = "\
Examples:
  # Tonight's backup turned out to be empty; the next run does it again:
  dlock forget backup

  # The job no longer exists, so do not report it as overdue:
  dlock forget --retire old-report

A run that is under way goes on. If it has --once-per and succeeds, that counts.

A KEY with * or ? means the keys that the store knows at that moment: those in
use, and those with a history. \\* and \\? stand for the characters themselves.";

/// `dlock forget`.
#[derive(Debug, Args)]
#[command(override_usage = "dlock forget [OPTIONS] KEY...", after_long_help = after(AFTER, &[
    (0, "the next 'dlock run --once-per' runs its command; with --retire:
       no run is expected any more"),
    (64, "the command line makes no sense, or no key matches a pattern"),
    (74, "output could not be written"),
]))]
pub struct Forget {
    /// The locks; in a pattern * stands for any text, ? for one character
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Expect no run of KEY any more, in place of forgetting its last success
    ///
    /// It is then no longer reported as overdue, until a run with --expect, or --once-per day and the like, says so again.
    #[arg(long)]
    pub retire: bool,
}

//! The options of `dlock pause` and `dlock resume` and their help.

use super::after::after;
use super::duration;
use super::key::{NAMED, Named};
use super::options::note;
use super::point::{self, Point};
use crate::lock::Key;
use clap::{Args, ValueHint};
use std::time::Duration;

const PAUSE_AFTER: &str = "\
Examples:
  # A deploy freeze of two hours:
  dlock pause deploy --for 2h --reason 'release 4.2 is being tested'

  # The same for every deploy, and stop those that run:
  dlock pause 'deploy-*' --for 2h --reason 'incident 311' --stop

A pause always has an end, so one that is forgotten does not stop the nightly
job for good. A second pause of a lock takes the place of the first; it ends
earlier than that only with --for or --until. A job that runs under the lock may
still run 'dlock run' of the same key inside.

A KEY with * or ? means the keys that the store knows at that moment: those in
use, and those with a history. \\* and \\? stand for the characters themselves.
A key that is used for the first time later is not paused: name it. A pattern
does not shorten a pause that ends later.";

const RESUME_AFTER: &str = "\
Examples:
  dlock resume deploy
  dlock resume 'deploy-*'

A KEY with * or ? means the keys that the store knows at that moment: those in
use, and those with a history. \\* and \\? stand for the characters themselves.";

/// `dlock pause`.
#[derive(Debug, Args)]
#[command(override_usage = "dlock pause [OPTIONS] --reason TEXT KEY...", after_long_help = after(PAUSE_AFTER, &[
    (0, "the locks are paused"),
    (64, "the command line makes no sense, or no key matches a pattern"),
    (74, "output could not be written"),
]))]
pub struct Pause {
    /// The locks; in a pattern * stands for any text, ? for one character
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// For how long, up to 40d [default: 1h, or as long as it is paused already]
    #[arg(long = "for", value_name = "DUR", value_parser = duration::parse_pause)]
    pub lasts: Option<Duration>,

    /// Until when, in place of --for: a moment such as 03:00 or '2026-11-28 03:00'
    ///
    /// In this machine's zone; 03:00 is the next three o'clock. dlock prints which moment it understood.
    #[arg(long, value_name = "WHEN", value_parser = point::parse_end, conflicts_with = "lasts")]
    pub until: Option<Point>,

    /// Why; shown by status, and to a run that is refused
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub reason: String,

    /// Also ask the holder to end, as 'dlock release' does
    #[arg(long)]
    pub stop: bool,
}

/// `dlock resume`.
#[derive(Debug, Args)]
#[command(override_usage = "dlock resume [OPTIONS] KEY...", after_long_help = after(RESUME_AFTER, &[
    (0, "the locks are not paused, whether they were or not"),
    (64, "the command line makes no sense, or no key matches a pattern"),
    (74, "output could not be written"),
]))]
pub struct Resume {
    /// The locks; in a pattern * stands for any text, ? for one character
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,
}

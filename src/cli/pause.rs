//! What can be said to `dlock pause` and `dlock resume`? The structs that clap fills, and their help.

use super::duration;
use super::key::{NAMED, Named};
use super::options::{Common, note};
use crate::lock::{Key, PAUSE_MOST};
use clap::{Args, ValueHint};
use std::time::Duration;

const PAUSE_AFTER: &str = "\
Examples:
  # A deploy freeze of two hours:
  dlock pause deploy --for 2h --reason 'release 4.2 is being tested'

  # Of every deploy, and those that run are to end:
  dlock pause 'deploy-*' --for 2h --reason 'incident 311' --stop

A pause always has an end, so one that is forgotten does not stop the nightly
job for good. A second pause of a lock takes the place of the first. A job that
runs under the lock may still run 'dlock run' of the same key inside.

A KEY with * or ? means every lock whose key looks like that, also one that is
used for the first time later. Of several patterns that a key looks like the
one that ends last counts. Up to 64 may be in force under one prefix; 'dlock
status' shows them.

EXIT STATUS
    0  nobody is granted the locks from now on
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   74  output could not be written
   75  64 patterns are in force already: this one is not
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid";

const RESUME_AFTER: &str = "\
Examples:
  dlock resume deploy
  dlock resume 'deploy-*'

A KEY with * or ? ends the pause of that pattern, and of every lock whose key
looks like it. A lock that another pattern pauses as well stays paused: resume
that pattern.

EXIT STATUS
    0  the locks are not paused, whether they were or not
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   74  output could not be written
   75  a lock stays paused, by a pattern that was not named
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid";

/// `dlock pause`.
#[derive(Debug, Args)]
#[command(after_long_help = PAUSE_AFTER)]
pub struct Pause {
    /// The locks; with * or ?, every one that looks like that, now or later
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// For how long, up to 40d
    #[arg(long = "for", value_name = "DUR", default_value = "1h", value_parser = lasts)]
    pub lasts: Duration,

    /// Why; whoever is refused is told
    #[arg(long, value_name = "TEXT", value_parser = note)]
    pub reason: String,

    /// Also ask whoever holds the lock to end, as 'dlock release' does
    #[arg(long)]
    pub stop: bool,

    #[command(flatten)]
    pub common: Common,
}

/// `dlock resume`.
#[derive(Debug, Args)]
#[command(after_long_help = RESUME_AFTER)]
pub struct Resume {
    /// The locks; with * or ?, that pattern and every lock that looks like it
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    #[command(flatten)]
    pub common: Common,
}

/// The value of `--for`.
fn lasts(text: &str) -> Result<Duration, String> {
    let span = duration::parse_positive(text)?;
    if span > PAUSE_MOST {
        return Err("a pause lasts 40 days at most".into());
    }
    Ok(span)
}

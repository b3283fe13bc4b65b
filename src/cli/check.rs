//! What can be said to `dlock check`?

use super::Common;
use crate::lock::Key;
use clap::{Args, ValueHint};

const AFTER: &str = "\
Examples:
  # Right before the step that must not be done twice:
  dlock check || exit

  # With what is left of the lease:
  dlock check import -v

It asks the store once, whatever DLOCK_HELD claims. The answer was true when the
store gave it; a step that takes longer than the lease needs the fence.

EXIT STATUS
    0  the lock is held
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid
   79  the lock is not held any more, or this process runs under no lock";

/// `dlock check`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER)]
pub struct Check {
    /// The lock; without it, the one that DLOCK_KEY names
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub key: Option<Key>,

    /// The options every command takes.
    #[command(flatten)]
    pub common: Common,
}

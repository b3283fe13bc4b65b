//! The options of `dlock check` and their help.

use super::after::after;
use super::key::Named;
use crate::lock::Key;
use clap::{Args, ValueHint};
use std::path::PathBuf;

const AFTER: &str = "\
Examples:
  # Right before the step that must not be done twice:
  dlock check || exit

  # With what is left of the lease:
  dlock check import -v

  # A token that was kept in a file:
  dlock check import --token-file token

dlock asks the store once, and does not trust DLOCK_HELD. The answer was true
when the store gave it; a step that takes longer than the lease needs the fence.";

/// `dlock check`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock check [KEY]\n       dlock check KEY --token-file FILE",
    after_long_help = after(AFTER, &[
        (0, "the lock is held"),
        (79, "the lock is not held any more, or this process runs under no lock"),
    ])
)]
pub struct Check {
    /// The lock; without it, the one that DLOCK_KEY names
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub key: Option<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Ask about the hold whose token is in FILE (`-`: standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
}

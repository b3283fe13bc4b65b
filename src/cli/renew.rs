//! The options of `dlock renew` and their help.

use super::after::after;
use super::key::Named;
use super::options::ttl;
use crate::lock::{Key, Ttl};
use clap::{Args, ValueHint};
use std::path::PathBuf;

const AFTER: &str = "\
Examples:
  # Between two steps of a script that has run 'dlock acquire --export':
  dlock renew import || exit

  # A token that was kept in a file:
  dlock renew import -t 10m --token-file token || exit

Without -t the lease is made as long as it was when it was acquired, if
DLOCK_HELD says how long that was, else 30s. It is never made shorter. If a
'dlock run' around the script holds the lock, that dlock renews it; this command
then only says whether it is held.";

/// `dlock renew`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock renew [KEY] [-t DUR]\n       dlock renew KEY --token-file FILE [-t DUR]",
    allow_negative_numbers = true,
    after_long_help = after(AFTER, &[
        (0, "the lock is held, for as long as asked for"),
        (79, "the lock is not held any more, or there is no hold to renew"),
    ])
)]
pub struct Renew {
    /// The lock; without it, what the script acquired last
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub key: Option<Key>,

    #[command(flatten)]
    pub named: Named,

    /// The length of the lease from now on, 500ms to 24h
    #[arg(short, long, value_name = "DUR", value_parser = ttl)]
    pub ttl: Option<Ttl>,

    /// Renew the hold whose token is in FILE (`-`: standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
}

//! What can be said to `dlock doctor`? The struct that clap fills, and its help.

use super::options::{Common, ttl};
use crate::lock::Ttl;
use clap::Args;

const AFTER: &str = "\
Examples:
  # Is this store fit to hold locks, with the settings that are in force?
  dlock doctor

  # In a deployment: fail also on what is only doubtful, for leases of 10 s:
  dlock doctor --strict --ttl 10s

Each line begins with ok, warn or bad, and says what to do. To try the rights,
dlock writes two keys of its own and removes them again. Run it as an
administrator's user (--username) to see more: a user who has only the rights
that locks need may not ask for CONFIG.

EXIT STATUS
    0  nothing is bad, and with --strict nothing doubtful either
    1  with --strict: something is doubtful
   64  the command line makes no sense
   69  something is bad, or the store cannot be reached
   74  output could not be written
   78  a configuration file, variable or URL is invalid";

/// `dlock doctor`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER)]
pub struct Doctor {
    /// Exit 1 if there is a warning
    #[arg(long)]
    pub strict: bool,

    /// The lease to judge by [default: that of the configuration files, else 30s]
    #[arg(short, long, value_name = "DUR", value_parser = ttl)]
    pub ttl: Option<Ttl>,

    /// Print a JSON array, one object a line
    ///
    /// Every field is there, null if unknown. The fields are explained in docs/json.md.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub common: Common,
}

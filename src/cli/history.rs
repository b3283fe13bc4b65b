//! What can be said to `dlock history`? The struct that clap fills, and its help.

use super::key::OneKey;
use super::options::Common;
use clap::Args;

const AFTER: &str = "\
Examples:
  # How the last runs of a job went, and when:
  dlock history nightly-report

  # The runs that failed, for a script:
  dlock history import --json |
    jq '.[] | select(.outcome != \"released\" or .exit_status != 0)'

On a terminal each run is a row with a bar on a time axis that all rows share:
a thin line while it waited, a thick one while it held the lock, green where
the job ended with 0, red with another status or a signal or by --max-run,
magenta where dlock crashed, the lease expired or the lock was lost, yellow
where an operator or a newer run (--replace) asked for the end, or an operator
took the lock away.
Into a pipe goes a plain table, never cut.

EXIT STATUS
    0  the store answered, whatever it said
   64  the command line makes no sense
   69  the store cannot be reached, or refused
   74  output could not be written
   77  authentication or permission refused by the store
   78  a configuration file, variable or URL is invalid";

/// `dlock history`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER)]
pub struct History {
    #[command(flatten)]
    pub key: OneKey,

    /// Print a JSON array, one object a run, the newest first
    ///
    /// Every field is there, null if unknown. Times are RFC 3339 in UTC, spans are whole milliseconds. The fields are
    /// explained in docs/json.md.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub common: Common,
}

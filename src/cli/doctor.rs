//! The options of `dlock doctor` and their help.

use super::options::ttl;
use crate::lock::Ttl;
use clap::Args;

const AFTER: &str = "\
Examples:
  # Is this store fit to hold locks, with the present settings?
  dlock doctor

  # In a deployment: fail also on warnings, for leases of 10 s:
  dlock doctor --strict --ttl 10s

The first line is the verdict: ok, or how many warnings and faults there are;
then which locks are meant: the prefix, and an identity that the first doctor
keeps in the store (as the lock dlock.identity under the prefix), the same on
every machine whose settings mean the same store and prefix. Then come the
settings and each server, a line for each check: ok, warn or bad, and what to
do. To test the rights, dlock writes two keys of its own and removes them again.
A user with only the rights that locks need may not read the server's
configuration; as an administrator (--username) dlock sees more.

EXIT STATUS
    0  no fault, and with --strict no warning either
    1  with --strict: there is a warning
   64  the command line makes no sense
   69  there is a fault, or the store cannot be reached
   74  output could not be written
   78  a configuration file, variable or URL is invalid";

/// `dlock doctor`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER)]
pub struct Doctor {
    /// Exit 1 if there is a warning
    #[arg(long)]
    pub strict: bool,

    /// The lease that the jobs use [default: that of the configuration files, else 30s]
    #[arg(short, long, value_name = "DUR", value_parser = ttl)]
    pub ttl: Option<Ttl>,

    /// Print the SQL that creates the tables of this store, for an administrator; asks no server
    ///
    /// For PostgreSQL, MySQL and MariaDB, where dlock's user may not create them. docs/stores.md has the rights to grant.
    #[arg(long, conflicts_with_all = ["strict", "json"])]
    pub sql: bool,

    /// Print a JSON array, one object a line
    ///
    /// Every field is there, null if unknown. The fields are explained in docs/json.md.
    #[arg(long)]
    pub json: bool,
}

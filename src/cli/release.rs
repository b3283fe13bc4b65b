//! The options of `dlock release` and their help.

use super::after::after;
use super::duration;
use super::key::{NAMED, Named};
use crate::lock::{Key, SLOTS_MAX};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

const RELEASE_AFTER: &str = "\
Examples:
  # What a script got by dlock acquire, in that script:
  dlock release nightly-report

  # Another's lock: shows the holder and asks you to confirm; -y does not ask:
  dlock release nightly-report
  dlock release nightly-report -y --timeout 1m --reason 'deploy at noon'

  # A lock whose token was kept in a file:
  dlock release nightly-report --token-file token

  # Its dlock does not answer: take the lock away. The next grant comes when the
  # job is known dead, or its lease ends:
  dlock release nightly-report --force

  # The machine is gone for good, do not wait for the lease to end:
  dlock release nightly-report --force --now";

/// `dlock release`.
#[derive(Debug, Args)]
#[command(
    override_usage = "dlock release KEY [-y] [--slot N] [--timeout DUR] [--reason TEXT]\n       \
        dlock release KEY --token-file FILE\n       dlock release KEY --force [--now] [--reason TEXT]",
    allow_negative_numbers = true,
    after_long_help = after(RELEASE_AFTER, &[
        (0, "the hold has ended, or is taken away; or nobody held the lock"),
        (64, "the command line makes no sense, KEY is a pattern (\\* stands for the
       character itself), there is no terminal to confirm on (add -y), or a
       'dlock run' around this process holds the lock, and gives it back"),
        (75, "it is still held: the answer was no, or --timeout ran out"),
        (79, "the hold that the token or DLOCK_HELD names is over"),
    ])
)]
pub struct Release {
    /// The lock
    #[arg(required_unless_present = NAMED, value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub key: Option<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Give back the hold whose token is in FILE (`-`: standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "force")]
    pub token_file: Option<PathBuf>,

    /// Take the lock away: its renewals are refused from now on
    ///
    /// The holder's dlock stops the job. The next grant comes when the job is known dead or its lease ends.
    #[arg(long)]
    pub force: bool,

    /// With --force: grant it to the next at once; both jobs may then run
    ///
    /// Without a terminal to confirm on this needs -y.
    #[arg(long)]
    pub now: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,

    /// Ask only the holder of slot N to stop
    #[arg(long, value_name = "N", value_parser = slot, conflicts_with_all = ["force", "token_file"])]
    pub slot: Option<u32>,

    /// How long to wait for the job to end; the request to stop remains [default: for ever]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with_all = ["force", "token_file"])]
    pub timeout: Option<Duration>,

    /// Why; shown in the message of the stopped job, in its --report and by 'dlock history'
    #[arg(long, value_name = "TEXT", conflicts_with = "token_file")]
    pub reason: Option<String>,
}

/// The value of `--slot`.
fn slot(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("a slot is a number from 0 to {}", SLOTS_MAX - 1))
}

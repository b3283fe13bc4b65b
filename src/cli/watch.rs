//! The options of `dlock watch` and their help.

use super::after::after;
use super::key::Named;
use crate::lock::Key;
use clap::{Args, ValueHint};

const AFTER: &str = "\
Examples:
  # What happens to every lock under the prefix, from now on:
  dlock watch

  # The runs that failed, for a program:
  dlock watch report --json | jq -c 'select(.exit_status > 0 or .signal
    or (.event | IN(\"crashed\", \"expired\", \"lost\", \"timeout\",
    \"stopped\", \"forced\")))'

The events: waiting, left (the queue, without the lock), busy (a run without
--wait, or that found the queue full, was refused; its owner is not known),
granted, released, crashed (dlock was killed, and its guard gave the lock back),
timeout (--max-run), stopped (an operator asked for it), superseded (by a newer
run with --replace, also in the queue), lost, expired, forced (an operator took
it away), ended (how is not known any more).
Without KEY, a lock that is new in the store is noticed within two seconds, or
later if listing the store takes long. What happened to it before is shown, too.

If the store does not answer, dlock says so once, and goes on when it is back.
Events in between are shown as far as the log of the last 64 ends has them.";

/// `dlock watch`.
#[derive(Debug, Args)]
#[command(after_long_help = after(AFTER, &[
    (0, "ended by INT or TERM, or the reader of its output has gone"),
    (69, "the store cannot be reached, or refused, at first contact"),
    (74, "output could not be written"),
]))]
pub struct Watch {
    /// The locks to watch; in a pattern * stands for any text, ? for one character
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,

    /// Print one JSON object a line
    ///
    /// Every field is there, null if unknown. Times are RFC 3339 in UTC, spans are whole milliseconds. The fields are
    /// explained in docs/watch.md.
    #[arg(long)]
    pub json: bool,
}

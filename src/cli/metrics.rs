//! The options of `dlock metrics` and their help.

use super::after::after;
use super::key::Named;
use crate::lock::Key;
use clap::{Args, ValueHint};

const AFTER: &str = "\
Examples:
  # All metrics of every lock under the prefix:
  dlock metrics

  # Of some locks only, where each run has a key of its own:
  dlock metrics 'nightly-*' deploy

  # From cron, for the textfile collector of node_exporter:
  dlock metrics > /var/lib/node_exporter/dlock.$$ \\
    && mv /var/lib/node_exporter/dlock.$$ /var/lib/node_exporter/dlock.prom

Each lock has its own time series, by the label key. docs/metrics.md explains
each, docs/recipes.md has alerts.";

/// `dlock metrics`.
#[derive(Debug, Args)]
#[command(after_long_help = after(AFTER, &[
    (0, "the metrics were printed"),
    (69, "the store cannot be reached, or refused; nothing was printed"),
    (74, "output could not be written"),
]))]
pub struct Metrics {
    /// The locks to count; in a pattern * stands for any text, ? for one character
    #[arg(value_name = "KEY", value_hint = ValueHint::Other, value_parser = Key::new)]
    pub keys: Vec<Key>,

    #[command(flatten)]
    pub named: Named,
}

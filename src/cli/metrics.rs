//! The options of `dlock metrics` and their help.

use super::after::after;
use super::key::Named;
use crate::lock::Key;
use clap::{Args, ValueHint};

const AFTER: &str = "\
Examples:
  # All metrics of every lock under the prefix:
  dlock metrics

  # From cron, for the textfile collector of node_exporter:
  dlock metrics > /var/lib/node_exporter/dlock.$$ \\
    && mv /var/lib/node_exporter/dlock.$$ /var/lib/node_exporter/dlock.prom

Each lock has its own time series, by the label key; dlock_all_... is the sum
over all of them. docs/metrics.md explains each, docs/recipes.md has alerts.";

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

    /// Print the time series of at most N locks, the first by name
    ///
    /// The others are counted in the sum only, and dlock_keys_not_shown says how many they are. Each lock has about
    /// forty time series.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = max_keys)]
    pub max_keys: usize,
}

/// The value of `--max-keys`.
fn max_keys(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "how many locks is a whole number, such as 1000".into())
}

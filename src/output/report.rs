//! The words in the object that `run --report` writes: how the run ended, and how it lost its lock.

use super::event::What;
use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command ran and ended by itself.
    Ran,
    /// A signal ended dlock while it waited.
    Interrupted,
    /// Anything else has the word of its message.
    #[serde(untagged)]
    Other(What),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HowLost {
    /// The lease could not be renewed in time.
    Expired,
    /// The hold vanished from the store, or another one holds the lock.
    Vanished,
    /// An operator took the lock away.
    Forced,
    /// An operator asked the holder to end.
    Asked,
    /// A newer run with `--replace` asked the holder to end.
    Superseded,
}

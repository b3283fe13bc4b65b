//! What does a program read about one run? The object that `run --report` writes. Every field is always there, null if
//! unknown; spans are whole milliseconds. docs/report.md explains the fields; adding one is a minor change, anything else
//! a major one. There is no time of day in it: the store's clock decides about a lock, and a run that never reached the
//! store has only this machine's.

use super::json::{Actor, JobEnd};
use crate::lock::Fence;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// In one word.
    pub outcome: Outcome,
    /// dlock's exit status, as a shell shows it.
    pub status: u8,
    pub started: bool,
    /// How the job ended; of a dlock that was interrupted before, the signal.
    #[serde(flatten)]
    pub job: JobEnd,
    pub lost: Option<HowLost>,
    /// Who asked for the end, or took the lock away.
    pub forced_by: Option<Actor<'a>>,
    /// The first key.
    pub key: Option<String>,
    /// Every key, in the order given.
    pub keys: Vec<String>,
    /// The store, without its secret.
    pub store: Option<&'a str>,
    /// From the first request to the grant, or until dlock gave up.
    pub waited_ms: Option<u64>,
    /// From the grant to the release.
    pub held_ms: Option<u64>,
    pub fence: Option<Fence>,
    pub slot: Option<u32>,
    /// Whether the job around dlock held a key of these already.
    pub nested: bool,
    /// What dlock failed of.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command ran and ended by itself.
    Ran,
    /// Another run had done it, within `--once-per`.
    Done,
    /// The lock was not obtained.
    Busy,
    /// The same, for a newer run with `--replace` took the place of this one.
    Superseded,
    /// The lock was lost, or an operator took it away.
    Lost,
    /// The store could not be reached, or refused to serve.
    Unreachable,
    /// `--max-run` stopped the command.
    Timeout,
    /// A signal ended dlock while it waited.
    Interrupted,
    /// The command cannot be executed, or was not found.
    NotStarted,
    /// The store refused the password, or a right is missing.
    Denied,
    /// A setting is invalid.
    Invalid,
    /// A fault of dlock's own.
    Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HowLost {
    /// It could not be renewed in time.
    Expired,
    /// It vanished from the store, or is another's.
    Vanished,
    /// An operator took it away.
    Forced,
    /// An operator asked the holder to end.
    Asked,
    /// A newer run with `--replace` did.
    Superseded,
}

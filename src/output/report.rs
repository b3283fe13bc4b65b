//! The object that `run --report` writes. Every field is always present, null if unknown; spans are
//! whole milliseconds. docs/report.md explains the fields; adding one is a minor change, anything
//! else a major one. It contains no time of day: the store's clock decides about a lock, and a run
//! that never reached the store knows only this machine's clock.

use super::event::What;
use super::json::{Actor, JobEnd};
use crate::lock::Fence;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// The outcome in one word.
    pub outcome: Outcome,
    /// dlock's exit status, as a shell shows it.
    pub status: u8,
    pub started: bool,
    /// How the job ended. If a signal ended dlock before the job started, that signal.
    #[serde(flatten)]
    pub job: JobEnd,
    pub lost: Option<HowLost>,
    /// Who asked for the end or took the lock away.
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
    /// Whether the parent job held one of these keys already.
    pub nested: bool,
    /// The error that ended dlock.
    pub error: Option<String>,
}

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

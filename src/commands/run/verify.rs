//! How is the store asked before the guard is forked? In a process of its own. To ask sentinels, or a quorum, takes
//! threads, which may hang and be left behind; and a process with threads must not be forked (a lock that one of them has
//! at that moment would be held in the guard for ever).

use crate::error::Error;
use crate::job;
use crate::law::Proof;
use crate::store;
use serde::{Deserialize, Serialize};
use std::io;

/// What the store said of each claim.
type Proofs = Vec<Option<Proof>>;

/// An error, as it goes from one process to the other.
#[derive(Serialize, Deserialize)]
enum Failure {
    Store(store::Error),
    Usage(String),
    Config(String),
    Other(String),
}

/// Has `ask` called in another process. The outer failure is that this could not be done.
pub fn in_another_process(ask: impl FnOnce() -> Result<Proofs, Error>) -> io::Result<Result<Proofs, Error>> {
    let said = job::apart(|| serde_json::to_vec(&ask().map_err(Failure::from)).unwrap_or_default())?;
    let answer: Result<Proofs, Failure> = serde_json::from_slice(&said).map_err(io::Error::other)?;
    Ok(answer.map_err(Error::from))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => Self::Store(error),
            Error::Usage(text) => Self::Usage(text),
            Error::Config(text) => Self::Config(text),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(error) => Self::Store(error),
            Failure::Usage(text) => Self::Usage(text),
            Failure::Config(text) => Self::Config(text),
            Failure::Other(text) => Self::Internal(text),
        }
    }
}

//! How is the store asked before the guard is forked? In a process of its own. To ask sentinels, or a quorum, takes
//! threads, which may hang and be left behind; and a process with threads must not be forked (a lock that one of them has
//! at that moment would be held in the guard for ever).

use crate::error::Error;
use crate::job;
use crate::law::Proof;
use crate::lock::{Fence, Mode};
use crate::store;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// What the store said of each claim, as it goes from one process to the other.
#[derive(Serialize, Deserialize)]
enum Answer {
    Proofs(Vec<Option<Said>>),
    Failed(ErrorKind, String),
}

#[derive(Serialize, Deserialize)]
struct Said {
    mode: Mode,
    slot: Option<u32>,
    fence: Fence,
    lease: Duration,
}

#[derive(Serialize, Deserialize)]
enum ErrorKind {
    Unreachable,
    Misnamed,
    Unavailable,
    Unacknowledged,
    Denied,
    Unfit,
    Garbled,
    Usage,
    Config,
    Other,
}

/// Has `ask` called in another process. The outer failure is that this could not be done.
pub fn in_another_process(
    ask: impl FnOnce() -> Result<Vec<Option<Proof>>, Error>,
) -> io::Result<Result<Vec<Option<Proof>>, Error>> {
    let said = job::apart(|| {
        let answer = match ask() {
            Ok(proofs) => Answer::Proofs(proofs.into_iter().map(|proof| proof.map(Said::from)).collect()),
            Err(error) => failed(error),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    })?;
    Ok(match serde_json::from_slice(&said).map_err(io::Error::other)? {
        Answer::Proofs(proofs) => Ok(proofs.into_iter().map(|said| said.map(Proof::from)).collect()),
        Answer::Failed(kind, text) => Err(error(&kind, text)),
    })
}

impl From<Proof> for Said {
    fn from(proof: Proof) -> Self {
        Self { mode: proof.mode, slot: proof.slot, fence: proof.fence, lease: proof.lease }
    }
}

impl From<Said> for Proof {
    fn from(said: Said) -> Self {
        Self { mode: said.mode, slot: said.slot, fence: said.fence, lease: said.lease }
    }
}

fn failed(error: Error) -> Answer {
    let text = error.to_string();
    let kind = match error {
        Error::Store(store::Error::Unreachable(_)) => ErrorKind::Unreachable,
        Error::Store(store::Error::Misnamed(_)) => ErrorKind::Misnamed,
        Error::Store(store::Error::Unavailable(_)) => ErrorKind::Unavailable,
        Error::Store(store::Error::Unacknowledged(_)) => ErrorKind::Unacknowledged,
        Error::Store(store::Error::Denied(_)) => ErrorKind::Denied,
        Error::Store(store::Error::Unfit(_)) => ErrorKind::Unfit,
        Error::Store(store::Error::Garbled(_)) => ErrorKind::Garbled,
        Error::Usage(_) => ErrorKind::Usage,
        Error::Config(_) => ErrorKind::Config,
        _ => ErrorKind::Other,
    };
    Answer::Failed(kind, text)
}

fn error(kind: &ErrorKind, text: String) -> Error {
    match kind {
        ErrorKind::Unreachable => store::Error::Unreachable(text).into(),
        ErrorKind::Misnamed => store::Error::Misnamed(text).into(),
        ErrorKind::Unavailable => store::Error::Unavailable(text).into(),
        ErrorKind::Unacknowledged => store::Error::Unacknowledged(text).into(),
        ErrorKind::Denied => store::Error::Denied(text).into(),
        ErrorKind::Unfit => store::Error::Unfit(text).into(),
        ErrorKind::Garbled => store::Error::Garbled(text).into(),
        ErrorKind::Usage => Error::Usage(text),
        ErrorKind::Config => Error::Config(text),
        ErrorKind::Other => Error::Internal(text),
    }
}

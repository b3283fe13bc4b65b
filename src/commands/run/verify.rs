//! Asks the store in a separate process before the guard is forked. Asking sentinels or a quorum
//! takes threads, which may hang and be left behind, and a process with threads must not fork: a
//! mutex that one of them holds at that moment would stay locked in the guard for ever.

use crate::error::Error;
use crate::rules::Proof;
use crate::supervise;
use crate::sys;
use std::io;

/// The store's answer for each claim.
type Proofs = Vec<Option<Proof>>;

/// Calls `ask` in another process. The outer error means that this failed.
pub fn in_another_process(ask: impl FnOnce() -> Result<Proofs, Error>) -> io::Result<Result<Proofs, Error>> {
    let said = supervise::in_separate_process(|| {
        let said = serde_json::to_vec(&ask()).unwrap_or_default();
        sys::kill_all_separate();
        said
    })?;
    serde_json::from_slice(&said).map_err(io::Error::other)
}

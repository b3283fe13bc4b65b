//! How is the store asked before the guard is forked? In a process of its own. To ask sentinels, or a quorum, takes
//! threads, which may hang and be left behind; and a process with threads must not be forked (a lock that one of them has
//! at that moment would be held in the guard for ever).

use crate::error::Error;
use crate::rules::Proof;
use crate::supervise;
use crate::sys;
use std::io;

/// What the store said of each claim.
type Proofs = Vec<Option<Proof>>;

/// Has `ask` called in another process. The outer failure is that this could not be done.
pub fn in_another_process(ask: impl FnOnce() -> Result<Proofs, Error>) -> io::Result<Result<Proofs, Error>> {
    let said = supervise::apart(|| {
        let said = serde_json::to_vec(&ask()).unwrap_or_default();
        sys::kill_all_apart();
        said
    })?;
    serde_json::from_slice(&said).map_err(io::Error::other)
}

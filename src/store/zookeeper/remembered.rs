//! Lets a renewal begin without reading: what this process wrote last is what the lock's node says,
//! if nobody has written since. The write finds out, by the version, and by the check of the
//! session node. The leader's clock is counted on from that last write (see [`super::stamp`]).

use super::Znodes;
use super::node::LockNode;
use super::read::Seen;
use crate::clock::Moment;
use crate::lock::Token;
use crate::store::Error;
use crate::store::engine::coordinator::{Reading, Snapshot};
use crate::store::engine::stored_lock::StoredLock;

/// Locks with their nodes, as a write leaves them.
pub(super) type Left = Vec<(StoredLock, LockNode)>;

/// What this process's last write left: locks that it holds alone, and nobody waits for.
pub(super) struct Remembered {
    pub token: Token,
    pub locks: Left,
    /// Number of the connection.
    pub dial: u64,
}

impl Remembered {
    /// Returns None if another process is likely to change one of the locks before the next renewal,
    /// or if a node is new: one that is deleted and made again would have the same version.
    pub fn of(token: &Token, locks: Left, dial: u64) -> Option<Self> {
        let is_quiet = locks.iter().all(|(lock, node)| lock.is_quietly_held_by(token) && !node.is_new());
        is_quiet.then(|| Self { token: token.clone(), locks, dial })
    }
}

impl Znodes {
    /// What is remembered of these locks, if a lease is to be extended. It is returned once: if the
    /// write is refused, the next read must be a real one.
    pub(super) fn recall(&mut self, reading: &Reading<'_>) -> Result<Option<Snapshot<Seen>>, Error> {
        if !reading.may_renew() {
            return Ok(None);
        }
        let Some(Remembered { token, locks, dial }) = self.remembered.take() else { return Ok(None) };
        let began = Moment::now();
        let is_same = locks.iter().map(|(lock, _)| &lock.name).eq(reading.names);
        let is_there = self.session.dial() == dial && self.living().is_some() && !self.must_sync;
        let is_timed = self.stamp.is_some_and(|stamp| stamp.is_good(began, dial));
        if !is_same || !is_there || !is_timed || reading.me != Some(&token) {
            return Ok(None);
        }
        let mut seen = self.seen_at(began, false, &[])?;
        let (mut locks, nodes): (Vec<_>, Vec<_>) = locks.into_iter().unzip();
        seen.nodes = nodes;
        // The write checks that.
        seen.lives.insert(token, true);
        self.judge(&mut locks, &mut seen, reading);
        Ok(Some(Snapshot { locks, now: seen.now, seen }))
    }
}

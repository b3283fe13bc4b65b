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

impl Znodes {
    /// Remembers what a write left of locks that this process holds. It forgets them if another
    /// process is likely to change one before the next renewal, or if a node is new: one that is
    /// deleted and made again would have the same version.
    pub(super) fn remember(&mut self, me: &Token, left: Left) {
        let is_quiet = left.iter().all(|(lock, node)| lock.is_quietly_held_by(me) && !node.is_new());
        self.remembered = is_quiet.then_some(left);
    }

    /// What is remembered of these locks, if a lease is to be extended. It is returned once: if the
    /// write is refused, the next read must be a real one.
    pub(super) fn recall(&mut self, reading: &Reading<'_>) -> Result<Option<Snapshot<Seen>>, Error> {
        if !reading.may_renew() {
            return Ok(None);
        }
        let (Some(left), Some(me)) = (self.remembered.take(), reading.me) else { return Ok(None) };
        let began = Moment::now();
        let is_same = left.iter().map(|(lock, _)| &lock.name).eq(reading.names);
        let is_there = self.is_watched() && self.living().is_some();
        if !is_same || !is_there || !self.has_good_stamp(began) {
            return Ok(None);
        }
        let mut seen = self.seen_at(began, &[])?;
        let (mut locks, nodes): (Vec<_>, Vec<_>) = left.into_iter().unzip();
        seen.nodes = nodes;
        // The write checks that.
        seen.lives.insert(me.clone(), true);
        self.judge(&mut locks, &mut seen, reading);
        Ok(Some(Snapshot { locks, now: seen.now, seen }))
    }
}

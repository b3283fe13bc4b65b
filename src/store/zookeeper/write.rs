//! Writes a transaction, and wakes.

use super::Znodes;
use super::jute::{Access, Ask, Code};
use super::life::Life;
use super::node::LockNode;
use super::read::Seen;
use super::remembered::Left;
use crate::lock::Token;
use crate::rules::{Due, Record, millis};
use crate::store::Error;
use crate::store::engine::coordinator::{Batch, Written};
use crate::store::engine::stored_lock::Change;
use crate::store::net::failure::Failure;
use std::time::Duration;

/// Most bytes of a transaction: a server's default `jute.maxbuffer`, less some room.
const TRANSACTION_MOST: usize = 1_000_000;
/// Most bytes of a transaction that adds the caller to a lock. What is left must be enough for the
/// grants, renewals and releases of all that are there already.
const JOINING_MOST: usize = 800_000;

impl Znodes {
    /// Writes everything or nothing; nothing if any of it has changed since it was read.
    pub(super) fn write(&mut self, seen: Seen, mut batch: Batch<'_>) -> Result<Written, Error> {
        if batch.changes.iter().all(|change| !change.is_changed) {
            return Ok(Written::Yes);
        }
        let holds = batch.me.is_some_and(|me| round_up(&mut batch.changes, me, seen.uncertain));
        let life = self.living().filter(|_| batch.me.is_some_and(|me| self.is_own(me)));
        let has_new = seen.nodes.iter().any(LockNode::is_absent);
        let joins = batch.changes.iter().any(|change| is_added(change, batch.me));
        let most = if joins { JOINING_MOST } else { TRANSACTION_MOST };
        let (mut all, left) = self.requests(seen.nodes, &mut batch, life)?;
        if all.iter().all(|ask| matches!(ask, Ask::Check { .. })) {
            // The locks had no nodes and need none.
            return Ok(Written::Yes);
        }
        // The same transaction wakes the waiters whose sessions are known to live. If one has ended
        // since, nothing is written, and the next waiter is chosen again.
        let (with_it, after): (Vec<&Token>, Vec<_>) =
            batch.woken.iter().partition(|token| seen.lives.get(*token) == Some(&true));
        let wake = |token: &Token| Ask::touch(self.life_path(token));
        all.extend(with_it.into_iter().map(wake));
        let all = Ask::All(all);
        if all.framed(0, Access::Creator).len() > most {
            return Ok(Written::too_large(self.shown()));
        }
        let mut asks = vec![all];
        asks.extend(after.into_iter().map(wake));
        // The read after a write that fails must see what made it fail.
        self.must_sync = true;
        let answer = match self.ask_once(&asks, batch.deadline) {
            Ok(answers) => answers.into_iter().next(),
            // The write may have been done. If it was, the retry finds other versions.
            Err(Failure::Broken(error)) => return Ok(Written::Unknown(error)),
            Err(failure) => return Err(failure.into()),
        };
        match answer {
            Some(Ok(_)) => {
                self.must_sync = false;
                if let (Some(life), Some(me), true) = (life, batch.me, holds) {
                    // The session node existed at the write, so this session is now the lease.
                    self.life = Some(Life { holds: true, ..life });
                    self.remember(me, left);
                }
                Ok(Written::Yes)
            }
            Some(Err(code @ (Code::BAD_VERSION | Code::NODE_EXISTS | Code::NO_NODE | Code::NOT_EMPTY))) => {
                if code == Code::NO_NODE && has_new {
                    self.make_base(batch.deadline)?;
                }
                Ok(Written::Conflict)
            }
            Some(Err(code)) => Err(self.refused(code)),
            None => Err(self.refused(Code(0))),
        }
    }

    /// The requests that check and write the locks, and the locks as they leave them. `life` is the
    /// caller's session node.
    fn requests(
        &self,
        nodes: Vec<LockNode>,
        batch: &mut Batch<'_>,
        life: Option<Life>,
    ) -> Result<(Vec<Ask>, Left), Error> {
        let me = batch.me.filter(|_| life.is_some());
        // A grant, a renewal or a wait counts only while this session lasts.
        let check = me.map(|me| Ask::Check { path: self.life_path(me), version: None });
        let (mut all, mut left): (Vec<Ask>, _) = (check.into_iter().collect(), Vec::new());
        for (node, change) in nodes.into_iter().zip(batch.changes.drain(..)) {
            let written = node.write(change, me, batch.now);
            let (asks, lock, node) =
                written.map_err(|error| Error::Garbled(format!("{}: {error}", self.shown())))?;
            all.extend(asks);
            left.push((lock, node));
        }
        Ok((all, left))
    }
}

/// Lets the caller's lease end in the record as late as the leader's clock may be ahead of the time
/// of the operation. Returns whether it holds one of the locks.
fn round_up(changes: &mut [Change], me: &Token, uncertain: Duration) -> bool {
    let mut holds = false;
    for change in changes.iter_mut().filter(|change| change.is_changed) {
        let record = &mut change.after.record;
        if let Some(hold) = record.holds.get(me).filter(|hold| hold.confirmed) {
            holds = true;
            let until = Due(hold.until.0.saturating_add(millis(uncertain) + 1));
            record.lasts(me, until);
        }
    }
    holds
}

/// Whether the change adds the caller, as a waiter or a holder.
fn is_added(change: &Change, me: Option<&Token>) -> bool {
    let has = |record: &Record| {
        me.is_some_and(|me| record.waiters.contains_key(me) || record.holds.contains_key(me))
    };
    has(&change.after.record) && !has(&change.before)
}

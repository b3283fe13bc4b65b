//! Cleans up old records of locks that nobody uses.

use super::Keys;
use super::messages::{Act, Compare, Span, Txn};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{HISTORY_KEPT, Time, millis};
use crate::store::Error;
use crate::store::engine::stored_lock::StoredLock;

/// Most records that one run reads.
const CLEANED_UP: usize = 64;

impl Keys {
    /// Deletes records that have been unused for twice [`HISTORY_KEPT`], with their waiters, which
    /// have no session left. Each run starts at a random record, so that each record gets its turn.
    pub(super) fn remove_old(&mut self, deadline: Moment) -> Result<(), Error> {
        let layout = self.layout();
        let mut keys = self.all_records(deadline)?;
        let from = getrandom::u32().map_or(0, |chance| chance as usize % keys.len().max(1));
        keys.rotate_left(from);
        keys.truncate(CLEANED_UP);
        let (read, now) =
            self.client.read(keys.into_iter().map(|key| Span::one(key).whole()).collect(), deadline)?;
        for pair in read.ranges().flatten() {
            let used = last_used_if_vacant(&pair.value.0, now).unwrap_or(u64::MAX);
            let Some(name) = layout.name_of(&pair.key) else { continue };
            if now.millis().saturating_sub(used) > 2 * millis(HISTORY_KEPT) {
                let compare = vec![
                    Compare::unchanged(pair.key.clone(), pair.mod_revision.0),
                    Compare::nothing(layout.sessions(&name)),
                ];
                let spans = [Span::one(pair.key), layout.waiters(&name), layout.ends(&name)];
                self.client.txn(&Txn { compare, success: spans.map(Act::Delete).into() }, deadline)?;
            }
        }
        Ok(())
    }
}

/// Time of a record's last use, in milliseconds since 1970. None if the lock would be in use even
/// without its holders. The caller must check that no session is left: a renewal does not write the
/// record, so the record of a held lock can look old.
fn last_used_if_vacant(value: &[u8], now: Time) -> Option<u64> {
    let (StoredLock { mut record, .. }, used) = StoredLock::parse(value, 0).ok()?;
    record.judge(now, |_, _| None);
    let holders: Vec<Token> = record.holds.keys().cloned().collect();
    // A min-hold outlives its holder's session.
    holders.iter().for_each(|holder| record.reap(now, holder));
    record.is_vacant(now).then_some(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Due, Lock, Record};
    use crate::store::engine::stored_lock::Change;
    use anyhow::{Result, ensure};

    #[test]
    fn a_record_in_use_is_not_old() -> Result<()> {
        let body = |lock| -> Result<Vec<u8>> {
            let after =
                StoredLock { record: Record { lock, ..Record::default() }, ..StoredLock::absent("k") };
            let mut change = Change { before: Record::default(), after, is_changed: true };
            Ok(change.parts(Time(5_000))?.body)
        };
        let held = Lock::Exclusive { token: Token::random()?, until: Due(9) };
        ensure!(last_used_if_vacant(&body(Lock::Free)?, Time(7_000)) == Some(5));
        ensure!(last_used_if_vacant(&body(held)?, Time(10_000)).is_none());
        let kept = |until| Lock::Cooling { until: Due(until) };
        ensure!(last_used_if_vacant(&body(kept(9))?, Time(10_000)) == Some(5));
        ensure!(last_used_if_vacant(&body(kept(11))?, Time(10_000)).is_none());
        ensure!(last_used_if_vacant(b"not a record", Time(10_000)).is_none());
        Ok(())
    }
}

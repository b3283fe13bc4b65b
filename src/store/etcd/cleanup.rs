//! Cleans up old records of locks that nobody uses.

use super::Keys;
use super::messages::{Act, Compare, Span, Txn};
use crate::clock::Moment;
use crate::lock::Token;
use crate::rules::{Time, millis};
use crate::store::Error;
use crate::store::engine::stored_lock::StoredLock;

/// Most records that one run reads.
const CLEANED_UP: usize = 64;

impl Keys {
    /// Deletes records that have been unused for so long that they are to be
    /// [removed](crate::rules::Record::removed_after), with their waiters, which have no session left.
    /// Each run starts at a random record, so that each record gets its turn.
    pub(super) fn remove_old(&mut self, deadline: Moment) -> Result<(), Error> {
        let layout = self.layout();
        let mut keys = self.all_records(deadline)?;
        let from = getrandom::u32().map_or(0, |chance| chance as usize % keys.len().max(1));
        keys.rotate_left(from);
        keys.truncate(CLEANED_UP);
        let (read, now) =
            self.client.read(keys.into_iter().map(|key| Span::one(key).whole()).collect(), deadline)?;
        for pair in read.ranges().flatten() {
            let Some(name) = layout.name_of(&pair.key) else { continue };
            if is_old(&pair.value.0, now) {
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

/// Whether a record is to be removed: it is old, and the lock would not be in use without its holders.
/// The caller must check that no session is left: a renewal does not write the record, so the record
/// of a held lock can look old.
fn is_old(value: &[u8], now: Time) -> bool {
    let Ok((StoredLock { mut record, .. }, used)) = StoredLock::parse(value, 0) else { return false };
    record.judge(now, |_, _| None);
    // The longest pause that its end could begin is over by the time the record is old.
    record.holds.values_mut().for_each(|hold| hold.pause_on_failure = None);
    let holders: Vec<Token> = record.holds.keys().cloned().collect();
    // A min-hold outlives its holder's session.
    holders.iter().for_each(|holder| record.reap(now, holder));
    record.is_vacant(now) && now.millis().saturating_sub(used) > millis(record.removed_after())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Due, Expected, Lock, Record};
    use crate::store::engine::stored_lock::Change;
    use anyhow::{Result, ensure};
    use std::time::Duration;

    const DAY: u64 = 24 * 60 * 60 * 1000;

    #[test]
    fn a_record_in_use_is_not_old() -> Result<()> {
        let body = |lock, expected| -> Result<Vec<u8>> {
            let record = Record { lock, expected, ..Record::default() };
            let after = StoredLock { record, ..StoredLock::absent("k") };
            let mut change = Change { before: Record::default(), after, is_changed: true };
            Ok(change.parts(Time(5_000))?.body)
        };
        let is_old = |body: &[u8], days| is_old(body, Time(days * DAY * 1000));
        let free = body(Lock::Free, None)?;
        ensure!(!is_old(&free, 79) && is_old(&free, 81));
        let held = Lock::Exclusive { token: Token::random()?, until: Due(9) };
        ensure!(!is_old(&body(held, None)?, 81));
        let cooling = |days| body(Lock::Cooling { until: Due(days * DAY) }, None);
        ensure!(is_old(&cooling(80)?, 81) && !is_old(&cooling(82)?, 81));
        ensure!(!is_old(b"not a record", 81));
        let expected = Some(Expected { every: Duration::from_secs(60), since: 5 });
        let expecting = body(Lock::Free, expected)?;
        ensure!(!is_old(&expecting, 81) && !is_old(&expecting, 399) && is_old(&expecting, 401));
        Ok(())
    }
}

//! Cleans up old records of locks that nobody uses.

use super::Keys;
use super::entry;
use super::words::{Act, Compare, Range, Span, Txn};
use crate::rules::{HISTORY_KEPT, millis};
use crate::store::Error;

/// Most records that one run reads.
const CLEANED_UP: usize = 64;

impl Keys {
    /// Deletes records that have been unused for twice [`HISTORY_KEPT`]. Each run starts at a
    /// random record, so that each record gets its turn.
    pub(super) fn remove_old(&self) -> Result<(), Error> {
        let layout = self.layout();
        let all = Range { keys_only: true, ..layout.locks().whole() };
        let (answer, _) = self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(all)] })?;
        let mut keys: Vec<_> = answer.ranges().flat_map(|range| range.kvs).map(|pair| pair.key).collect();
        let from = getrandom::u32().map_or(0, |chance| chance as usize % keys.len().max(1));
        keys.rotate_left(from);
        keys.truncate(CLEANED_UP);
        let read = |key| Act::Range(Span { key, range_end: None }.whole());
        let success = keys.into_iter().map(read).collect();
        let (answer, now) = self.client.txn(&Txn { compare: Vec::new(), success })?;
        for pair in answer.ranges().flat_map(|range| range.kvs) {
            let used = entry::free_since(&pair.value.0, now).unwrap_or(u64::MAX);
            let Some(name) = layout.name_of(&pair.key) else { continue };
            if now.millis().saturating_sub(used) > 2 * millis(HISTORY_KEPT) {
                let compare = vec![
                    Compare::unchanged(pair.key.clone(), pair.mod_revision.0),
                    Compare::nothing(layout.holds(&name)),
                ];
                let record = Act::Delete(Span { key: pair.key, range_end: None });
                let success = vec![record, Act::Delete(layout.ends(&name))];
                self.client.txn(&Txn { compare, success })?;
            }
        }
        Ok(())
    }
}

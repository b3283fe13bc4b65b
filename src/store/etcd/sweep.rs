//! What of locks that nobody uses is removed, and when?

use super::Keys;
use super::entry;
use super::words::{Act, Compare, Number, Range, Span, Txn};
use crate::law::{HISTORY_KEPT, millis};
use crate::store::Error;

/// So many records at most are looked at for that.
const TIDIED: u64 = 64;

impl Keys {
    /// Removes what nobody has used for twice as long as it is kept, of what was not written for longest.
    pub(super) fn remove_old(&self) -> Result<(), Error> {
        let layout = self.layout();
        let oldest = Range {
            limit: Some(Number(TIDIED)),
            sort_order: Some("ASCEND"),
            sort_target: Some("MOD"),
            ..layout.locks().whole()
        };
        let (answer, now) =
            self.client.txn(&Txn { compare: Vec::new(), success: vec![Act::Range(oldest)] })?;
        for pair in answer.ranges().flat_map(|range| range.kvs) {
            let used = entry::free_since(&pair.value.0, now).unwrap_or(u64::MAX);
            let Some(name) = layout.name_of(&pair.key) else { continue };
            if now.millis().saturating_sub(used) > 2 * millis(HISTORY_KEPT) {
                let compare = vec![Compare::unchanged(pair.key.clone(), pair.mod_revision.0)];
                let record = Act::Delete(Span { key: pair.key, range_end: None });
                let success = vec![record, Act::Delete(layout.ends(&name))];
                self.client.txn(&Txn { compare, success })?;
            }
        }
        Ok(())
    }
}

//! `--once-per`: whether a success makes this run unnecessary.

use super::{Done, LockTable, Terms, Time};
use crate::lock::Name;
use std::collections::VecDeque;
use std::time::Duration;

impl LockTable {
    /// Forgets the success that `--once-per` counts from, so that the job is due again. Returns
    /// whether there was one.
    pub fn forget_success(&mut self, now: Time, name: &Name) -> bool {
        let record = self.record(name.as_str());
        record.expire(now);
        record.forget(now);
        let was = record.success.take().is_some();
        self.grant_next(now, VecDeque::from([name.as_str().to_owned()]));
        was
    }

    /// The success because of which `--once-per` skips a run that came then, at the lock that is due
    /// first.
    /// None unless every lock has one.
    pub(super) fn done<'n>(
        &mut self,
        now: Time,
        came: Time,
        names: impl Iterator<Item = &'n str>,
        terms: &Terms,
    ) -> Option<Done> {
        let span = terms.once_per?;
        let mut first: Option<Done> = None;
        for (at, name) in names.enumerate() {
            let record = self.record(name);
            let due = record.done_for(now, came, span)?;
            if first.as_ref().is_none_or(|first| due < first.due) {
                let success = record.success.clone()?;
                let ago = Duration::from_millis(now.millis().saturating_sub(success.since));
                let age = Duration::from_millis(came.millis().saturating_sub(success.arrived()));
                first = Some(Done { at, success, ago, age, due });
            }
        }
        first
    }
}

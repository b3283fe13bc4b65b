//! `--once-per`: whether a success makes this run unnecessary.

use super::queue::is_much_earlier;
use super::stat::count;
use super::{Acquired, Ask, Done, Hold, LockTable, Terms, Time, worklist};
use crate::lock::{Name, Names};
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

    /// Answers `Done` if `--once-per` skips a run that came then, and takes the caller out of its queues.
    pub(super) fn skip_if_done(
        &mut self,
        now: Time,
        names: &Names,
        ask: &Ask,
        came: Time,
    ) -> Option<Acquired> {
        let done = self.done(now, came, names.iter().map(Name::as_str), &ask.terms)?;
        for name in names {
            let record = self.record(name.as_str());
            record.remove_waiter(&ask.token);
            record.drop_hold_of(&ask.token);
        }
        count(&mut self.record(names.as_slice()[done.at].as_str()).stat.done);
        self.grant_next(now, worklist(names));
        Some(Acquired::Done(done))
    }

    /// The caller holds the locks, and asks because it has no answer yet. If the request that was
    /// granted had waited for the store, it did not say for how long, and this one does: the run arrived
    /// earlier, and may be done. A late copy of a request shows a later arrival, and changes nothing;
    /// nor does one that comes after the clock was set back to before the grant, for its job may run.
    pub(super) fn date_back(&mut self, now: Time, names: &Names, ask: &Ask) -> Option<Acquired> {
        let came = ask.came(now);
        if ask.has_waited {
            return None;
        }
        let is_earlier = |hold: &Hold| {
            hold.since <= now && is_much_earlier(came, hold.since.millis().saturating_sub(hold.waited))
        };
        let holds = names.iter().filter_map(|name| self.records.get(name.as_str())?.holds.get(&ask.token));
        if !holds.into_iter().any(is_earlier) {
            return None;
        }
        let skipped = self.skip_if_done(now, names, ask, came);
        for name in names {
            if let Some(hold) = self.record(name.as_str()).holds.get_mut(&ask.token) {
                hold.waited = hold.waited.max(hold.since.millis().saturating_sub(came.millis()));
            }
        }
        skipped
    }

    /// The success because of which `--once-per` skips a run that came then, at the lock that is due
    /// first. None unless every lock has one.
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

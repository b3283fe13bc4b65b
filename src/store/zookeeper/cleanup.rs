//! Cleans up locks that have been unused for long. Every user of the store does so now and then.

use super::jute::Ask;
use super::{Znodes, node};
use crate::clock::Moment;
use crate::rules::{Time, millis};
use crate::store::engine::stored_lock::StoredLock;
use crate::store::net::failure::Failure;

/// Most locks that one clean-up looks at.
const CLEANS_UP_MOST: usize = 64;

impl Znodes {
    /// Removes locks that have been unused for so long that they are to be
    /// [removed](crate::rules::Record::removed_after).
    pub(super) fn sweep(&mut self, deadline: Moment) -> Result<(), Failure> {
        let Some(stamp) = self.stamp else { return Ok(()) };
        let now = Time(stamp.at.saturating_mul(1000));
        let mut names = match self.ask(&[Ask::List(self.locks())], deadline)?.pop() {
            Some(Ok(answer)) => answer.names,
            _ => return Ok(()),
        };
        let from = getrandom::u32().map_or(0, |chance| chance as usize % names.len().max(1));
        names.rotate_left(from);
        names.truncate(CLEANS_UP_MOST);
        let paths: Vec<String> = names.iter().map(|name| format!("{}/{name}", self.locks())).collect();
        let both = |path: &String| [Ask::Get(path.clone()), Ask::List(path.clone())];
        let asks: Vec<Ask> = paths.iter().flat_map(both).collect();
        for (path, answers) in paths.iter().zip(self.ask(&asks, deadline)?.chunks(2)) {
            let [Ok(lock), Ok(children)] = answers else { continue };
            // A waiter in the queues of several locks may wait for another one.
            let is_waited_for = children.names.iter().any(|child| node::is_beat(child));
            if !is_old(&lock.data, lock.stat.mtime, now) || lock.stat != children.stat || is_waited_for {
                continue;
            }
            let mut all = vec![Ask::Check { path: path.clone(), version: Some(lock.stat.version) }];
            all.extend(children.names.iter().map(|child| Ask::Delete(format!("{path}/{child}"))));
            all.push(Ask::Delete(path.clone()));
            // Not again: the lock may have been made anew, with the same version.
            drop(self.ask_once(&[Ask::All(all)], deadline)?);
        }
        Ok(())
    }
}

/// Whether a lock whose node was last written at this time, in milliseconds since 1970, is to be
/// removed.
fn is_old(data: &[u8], written: u64, now: Time) -> bool {
    StoredLock::parse(data, 0).is_ok_and(|(StoredLock { record, .. }, _)| {
        record.is_vacant(now) && now.millis().saturating_sub(written) > millis(record.removed_after())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Due, Expected, Lock, Record};
    use anyhow::{Result, ensure};
    use std::time::Duration;

    #[test]
    fn a_lock_of_which_runs_are_expected_is_kept_for_longer() -> Result<()> {
        const DAY: u64 = 24 * 60 * 60 * 1000;
        let node = |lock, expected| -> Result<Vec<u8>> {
            let record = Record { lock, expected, ..Record::default() };
            Ok(StoredLock { record, ..StoredLock::absent("k") }.to_value(Time(5_000))?.0)
        };
        let is_old = |node: &[u8], days| is_old(node, 5, Time(days * DAY * 1000));
        let free = node(Lock::Free, None)?;
        ensure!(!is_old(&free, 79) && is_old(&free, 81));
        ensure!(!is_old(&node(Lock::Cooling { until: Due(82 * DAY) }, None)?, 81));
        let expected = Some(Expected { every: Duration::from_secs(60), since: 5 });
        let expecting = node(Lock::Free, expected)?;
        ensure!(!is_old(&expecting, 81) && !is_old(&expecting, 399) && is_old(&expecting, 401));
        Ok(())
    }
}

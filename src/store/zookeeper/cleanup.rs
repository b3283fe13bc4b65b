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
    /// Removes locks that have been unused for twice [`HISTORY_KEPT`](crate::rules::HISTORY_KEPT).
    pub(super) fn sweep(&mut self, deadline: Moment) -> Result<(), Failure> {
        let Some(stamp) = self.stamp else { return Ok(()) };
        let now = Time(stamp.at.saturating_mul(1000));
        let old = (stamp.at).saturating_sub(2 * millis(crate::rules::HISTORY_KEPT));
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
            let parsed = StoredLock::parse(&lock.data, 0);
            let is_vacant = parsed.is_ok_and(|(kept, _)| kept.record.is_vacant(now));
            // A waiter in the queues of several locks may wait for another one.
            let is_waited_for = children.names.iter().any(|child| node::is_beat(child));
            if lock.stat.mtime >= old || lock.stat != children.stat || !is_vacant || is_waited_for {
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

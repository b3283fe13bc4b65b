//! What may a holder go by that it read when its job began? Who gives back soon writes at once, while the next one waits.

use std::time::Duration;

/// What was read with a grant is gone by within this time, or read again: later, somebody has more likely come, and those who
/// wait have said since that they are there.
pub const AHEAD_FOR: Duration = Duration::from_secs(1);

/// Whether nobody but `me` holds the lock, and nothing of it ends at a time that has to be known better.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper"))]
pub fn held_alone(record: &crate::law::Record, me: &crate::lock::Token) -> bool {
    use crate::law::{Due, Lock, Phase};
    let hold = record.holds.get(me).filter(|hold| hold.phase == Phase::Held && hold.confirmed);
    matches!(&record.lock, Lock::Exclusive { token, .. } if token == me)
        && record.holds.len() == 1
        && record.paused.is_none()
        && hold.is_some_and(|hold| hold.cool == Due(0))
}

//! Is the job dead when its lease is over? Both the promise and the check need processor time. If
//! this machine ran no process for a while, an observation after that proves nothing, and the test
//! only asks that the job dies.

use super::wait::wait_until;
use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, as a server on this machine counts it: milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a time")
}

/// The end of the last lease of a holder that cannot reach its store since `lost`. The store counts
/// the last renewal until `seen`, but if too much time passed before the loss, there may have been
/// another renewal.
pub fn end_of_last_lease(seen: i64, lost: i64, ttl: Duration) -> i64 {
    let ttl = i64::try_from(ttl.as_millis()).expect("a ttl");
    // Renewals follow each other after a quarter of the ttl; one is under way for a sixteenth at
    // most.
    if lost < seen - ttl + ttl / 8 { seen } else { lost + ttl }
}

/// Waits until no process of the job is left, and fails if one is seen after the end of the lease.
/// `over` is called before `alive`: a process seen alive was alive at that time.
#[track_caller]
pub fn dead_in_time<T: Debug>(over: impl Fn() -> bool, alive: impl Fn() -> Vec<T>) {
    let mut last = Instant::now();
    let mut stalled = None;
    wait_until("the job is dead", || {
        let over = over();
        let alive = alive();
        if last.elapsed() > Duration::from_millis(100) {
            stalled = Some(Instant::now());
        }
        last = Instant::now();
        let excused = stalled.is_some_and(|at| at.elapsed() < Duration::from_secs(2));
        assert!(alive.is_empty() || !over || excused, "alive when the lease is over: {alive:?}");
        alive.is_empty()
    });
}

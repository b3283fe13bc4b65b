//! Is the job dead when its lease is over? The promise is kept by processes that need the processor for it, and so is the
//! look: where this machine ran nobody for a while, what is seen then proves nothing, and only that the job dies is asked.

use super::wait::wait_until;
use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, as a server on this machine counts it: milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a time")
}

/// When the last lease ends of a holder whose store is lost to it since `lost`: with the renewal that the store counts
/// until `seen`, unless so much time went by before the loss that there may have been another one.
pub fn end_of_last_lease(seen: i64, lost: i64, ttl: Duration) -> i64 {
    let ttl = i64::try_from(ttl.as_millis()).expect("a ttl");
    // The next one is sent a quarter of the ttl after the last one, which was under way for a sixteenth at most.
    if lost < seen - ttl + ttl / 8 { seen } else { lost + ttl }
}

/// Waits until nothing of the job is left, and none of it may be seen when the lease is over. `over` is asked before
/// `alive`: whoever is seen alive was alive at that time.
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

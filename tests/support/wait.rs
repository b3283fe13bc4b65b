//! How a test waits: for a condition, with a deadline that only a failure reaches, and with a
//! message that says what did not come. Nothing here measures speed.

use std::panic::Location;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than any step of the suite takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Longest time on a busy machine until the store serves again after an outage and a client has the
/// lock.
pub const OUTAGE: Duration = Duration::from_secs(180);

/// Waits until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()))
}

/// Waits until `probe` returns something, and returns it.
#[track_caller]
pub fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, probe)
}

/// [`wait_for`] with a deadline of its own, for a promise whose breach would last long but not for
/// ever.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let from = Location::caller();
    let deadline = Instant::now() + limit;
    loop {
        // The clock is read before the probe: a probe in time counts even if this thread was slow.
        let began = Instant::now();
        let last = began >= deadline;
        if let Some(found) = probe() {
            return found;
        }
        assert!(!last, "{from}: waited {limit:?} in vain: {what}");
        // A probe that starts a program leaves most of the machine to what it waits for.
        sleep((began.elapsed() * 2).clamp(Duration::from_millis(3), Duration::from_millis(200)));
    }
}

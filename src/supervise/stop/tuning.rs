//! The tuning constants of a stop in one table, each with its unit in the type and its reason. They
//! divide the time until the KILL. The lease and the job decide when the KILL is due.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A fraction of a time: one part of this many.
#[derive(Debug, Clone, Copy)]
pub struct OneIn(u32);

impl OneIn {
    pub fn of(self, time: Duration) -> Duration {
        time / self.0
    }
}

/// A multiple of a time.
#[derive(Debug, Clone, Copy)]
pub struct Times(u32);

impl Times {
    pub fn of(self, time: Duration) -> Duration {
        time * self.0
    }
}

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

// TERM: how much of the time is for the job to end by itself.

/// Part of the grace that is left to a job even if it takes long to kill.
pub const GRACE_KEPT: OneIn = OneIn(4);
/// After a late TERM, a large job keeps this part of the time left. A small job, which is killed in
/// no time, keeps [`GRACE_KEPT`] of it.
pub const LATE_KEPT: OneIn = OneIn(16);
/// Largest small job, in processes. It gets TERM however late that is, which costs next to nothing.
pub const SMALL: usize = 32;

// Moving the job into a control group, which one write kills.

/// Time after TERM in which a process that obeys has ended. The others are then moved.
pub const ENDS_WITHIN: Duration = millis(20);
/// Least time left for moving processes: the kernel takes several ms for the first one.
pub const GATHERING: Duration = millis(100);
/// Time for one step of moving, and pause between two steps: the job needs the processor, too.
pub const STEP: Duration = millis(2);

// KILL, again and again.

/// Longest pass of a kill that finds ever more processes. After that the guard does its other work.
pub const BURST: Duration = millis(100);
/// Pause after a pass, as a multiple of its time, within the bounds of [`PAUSES`].
pub const PAUSE: Times = Times(2);
/// Bounds of the pause after a pass, up to this many passes.
pub const PAUSES: [(u32, RangeInclusive<Duration>); 3] = [
    // The dying processes need the processor more than the guard.
    (200, SHORTEST_PAUSE..=millis(10)),
    (300, millis(20)..=millis(20)),
    // Only what cannot be killed is left by now.
    (u32::MAX, millis(100)..=millis(100)),
];
/// The shortest pause; also the least time for killed processes to die before the guard looks below
/// them.
pub const SHORTEST_PAUSE: Duration = micros(500);
/// Pause after a look all the way down, which kills again what was killed, as a multiple of its
/// time.
pub const PAUSE_OF_ALL: Times = Times(4);

// Foreign processes, whose children and ends the kernel does not report.

/// Shortest pause between two looks at foreign processes. [`PAUSE_OF_ALL`] applies if it is longer.
pub const FOREIGN: Duration = millis(20);

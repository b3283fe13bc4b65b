//! Until when the job may run. The limits lie in memory that dlock and the guard share, not in
//! messages: setting them wakes nobody, cannot block and cannot get lost, and a guard that was
//! stopped for a while finds the newest limits, not a queue of old ones.

use crate::clock::Moment;
use crate::sys;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Until when the job may run, unless the limits are moved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// When the job gets TERM and CONT. Once that has happened, later limits change nothing.
    pub term_at: Moment,
    /// When the whole job gets KILL.
    pub kill_at: Moment,
}

impl Limits {
    /// No limits.
    pub const NEVER: Self =
        Self { term_at: Moment::from_boot(Duration::MAX), kill_at: Moment::from_boot(Duration::MAX) };
}

/// The memory that dlock and the guard share: the limits, CMD's id, and how far a stop is. May be
/// used on any thread; never blocks and makes no system call.
#[derive(Debug, Clone, Copy)]
pub struct LimitsSender {
    cells: &'static [AtomicU64; 5],
}

const TERM: usize = 0;
const KILL: usize = 1;
const BEAT: usize = 2;
const CMD: usize = 3;
const STOPPING: usize = 4;

impl LimitsSender {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { cells: sys::shared_cells()? })
    }

    /// Sets new limits. Limits earlier than the current ones have no effect.
    pub fn set(&self, limits: Limits) {
        // KILL first. The reader must never pair a new term_at with an old kill_at: it would sleep
        // beyond the KILL.
        self.cells[KILL].fetch_max(nanos(limits.kill_at), Ordering::Release);
        self.cells[TERM].fetch_max(nanos(limits.term_at), Ordering::Release);
    }

    /// The newest limits; the time of boot, long past, before any were set.
    pub fn get(&self) -> Limits {
        let term_at = moment(self.cells[TERM].load(Ordering::Acquire));
        Limits { term_at, kill_at: moment(self.cells[KILL].load(Ordering::Acquire)) }
    }

    /// Records CMD's id. Called by the process that is to become CMD, and by the guard with 0 if
    /// that failed.
    pub(super) fn set_cmd(&self, pid: i32) {
        self.cells[CMD].store(u64::from(pid.cast_unsigned()), Ordering::Release);
    }

    /// The process that the guard started, if it has started one. The process may not have become
    /// CMD yet. No event reports the start: it would wake dlock at the very moment that CMD needs
    /// the processor.
    pub(super) fn cmd(&self) -> Option<i32> {
        let pid = self.cells[CMD].load(Ordering::Acquire);
        i32::try_from(pid).ok().filter(|&pid| pid > 0)
    }

    /// Called by the guard before it begins to stop the job.
    pub(super) fn set_stopping(&self) {
        self.cells[STOPPING].store(1, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.cells[STOPPING].load(Ordering::Acquire) != 0
    }

    /// Called by the guard for each step of killing.
    pub(super) fn beat(&self) {
        self.cells[BEAT].fetch_add(1, Ordering::Relaxed);
    }

    /// How many steps of killing the guard has made; 0 if it has not begun.
    pub(super) fn beats(&self) -> u64 {
        self.cells[BEAT].load(Ordering::Relaxed)
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn moment(nanos: u64) -> Moment {
    Moment::from_boot(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(term: u64, kill: u64) -> Limits {
        Limits { term_at: moment(term), kill_at: moment(kill) }
    }

    #[test]
    fn limits_never_move_back() -> io::Result<()> {
        let sender = LimitsSender::new()?;
        assert_eq!(sender.get(), limits(0, 0));
        sender.set(limits(5, 9));
        sender.set(limits(3, 7));
        assert_eq!(sender.get(), limits(5, 9));
        Ok(())
    }
}

//! Until when may the job run? The limits live in memory that dlock and the guard share, not in messages: a renewal
//! costs a store and wakes nobody, it can neither block nor get lost, and a guard that was stopped for a while finds the
//! newest limits, not a queue of old ones.

use crate::clock::Moment;
use crate::sys;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Until when the job may run as things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// When it is asked to end: TERM, with CONT. That is final.
    pub term_at: Moment,
    /// When all of it is killed.
    pub kill_at: Moment,
}

impl Limits {
    /// Those of a job that may run for as long as it likes.
    pub const NEVER: Self =
        Self { term_at: Moment::from_boot(Duration::MAX), kill_at: Moment::from_boot(Duration::MAX) };
}

/// Where the limits are put. May be handed to another thread; setting them never blocks and needs no system call.
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

    /// Sets new limits. They only ever move on: earlier ones than those set before are without effect.
    pub fn set(&self, limits: Limits) {
        // The reader must never pair a new term_at with an old kill_at: it would sleep beyond the kill.
        self.cells[KILL].fetch_max(nanos(limits.kill_at), Ordering::Release);
        self.cells[TERM].fetch_max(nanos(limits.term_at), Ordering::Release);
    }

    /// The newest limits; boot, long past, before any were set.
    pub fn get(&self) -> Limits {
        let term_at = moment(self.cells[TERM].load(Ordering::Acquire));
        Limits { term_at, kill_at: moment(self.cells[KILL].load(Ordering::Acquire)) }
    }

    /// The process that the guard starts notes itself; 0: there is none after all.
    pub(super) fn set_cmd(&self, pid: i32) {
        self.cells[CMD].store(u64::from(pid.cast_unsigned()), Ordering::Release);
    }

    /// The process that the guard started, if it has; perhaps on the way to that still.
    pub(super) fn cmd(&self) -> Option<i32> {
        let pid = self.cells[CMD].load(Ordering::Acquire);
        i32::try_from(pid).ok().filter(|&pid| pid > 0)
    }

    /// The guard notes that it stops the job, before it asks anything of it to end.
    pub(super) fn set_stopping(&self) {
        self.cells[STOPPING].store(1, Ordering::Release);
    }

    /// Whether the guard has begun to stop the job.
    pub(super) fn is_stopping(&self) -> bool {
        self.cells[STOPPING].load(Ordering::Acquire) != 0
    }

    /// The guard counts here that its killing gets on.
    pub(super) fn beat(&self) {
        self.cells[BEAT].fetch_add(1, Ordering::Relaxed);
    }

    /// How far the guard's killing has got; 0 if it has not begun.
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
    fn limits_only_move_on() -> io::Result<()> {
        let sender = LimitsSender::new()?;
        assert_eq!(sender.get(), limits(0, 0));
        sender.set(limits(5, 9));
        sender.set(limits(3, 7));
        assert_eq!(sender.get(), limits(5, 9));
        Ok(())
    }
}

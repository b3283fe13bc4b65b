//! Which children of dlock are not of its job? Those it had before the guard, if a shell that had put something into the
//! background then became dlock; and what such a process leaves behind, or, where dlock is PID 1, whatever anybody leaves
//! behind. They are never signalled, and reaped when they end: nobody else would.
//!
//! As long as the guard lives, what its job leaves behind goes to the guard. So any other child is a stranger.

use super::{Guard, STALLED, WatchedBy, procfs};
use crate::clock::Moment;
use crate::sys;
use std::io;
use std::time::Duration;

impl Guard {
    /// A child of this process has changed (SIGCHLD): reaps strangers, and looks after a guard that somebody has stopped.
    pub fn tend(&mut self) -> io::Result<()> {
        if self.reaped || !matches!(self.watch, WatchedBy::Guard | WatchedBy::Over) {
            return Ok(());
        }
        let cmd = self.limits.cmd();
        let mut strangers = procfs::own_children();
        // CMD is here only if the guard has just died; whoever takes the job over wants to know how it ended.
        strangers.retain(|&pid| pid != self.pid && Some(pid) != cmd && !sys::reap(pid));
        let Some(guard) = procfs::read_entry(self.pid).filter(|guard| !guard.ended) else { return Ok(()) };
        self.apart = strangers;
        // Before there is a job nothing can be late: no limits are set yet, and they would count as passed.
        let has_begun = self.limits.get().kill_at > Moment::from_boot(Duration::ZERO);
        if guard.stopped && has_begun && matches!(self.watch, WatchedBy::Guard) {
            self.arm(self.armed.min(Moment::now().after(STALLED)))?;
        }
        Ok(())
    }
}

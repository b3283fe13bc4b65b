//! Reaps children of dlock that are not part of its job: those it had before the guard (a shell
//! started something in the background and then became dlock), and orphans of these; where dlock is
//! PID 1, any orphan. They are never signalled. They must be reaped here, because no other process
//! can.
//!
//! While the guard lives, orphans of the job go to the guard. So every other child of dlock is
//! foreign.

use super::{Guard, STALLED, WatchedBy, procfs};
use crate::clock::Moment;
use crate::sys;
use std::io;
use std::time::Duration;

impl Guard {
    /// Called when a child has changed (SIGCHLD): reaps foreign children, and checks whether the
    /// guard was stopped.
    pub fn tend(&mut self) -> io::Result<()> {
        if self.reaped || !matches!(self.watch, WatchedBy::Guard | WatchedBy::Over) {
            return Ok(());
        }
        let cmd = self.limits.cmd();
        let mut foreign_children = procfs::own_children();
        // CMD is a child of dlock only if the guard has just died. Adopting the job needs its
        // status.
        foreign_children.retain(|&pid| pid != self.pid && Some(pid) != cmd && !sys::reap(pid));
        let Some(guard) = procfs::read_entry(self.pid).filter(|guard| !guard.ended) else { return Ok(()) };
        self.foreign_children = foreign_children;
        // Before the start nothing can be overdue: no limits are set yet, and they would count as
        // passed.
        let has_begun = self.limits.get().kill_at > Moment::from_boot(Duration::ZERO);
        if guard.stopped && has_begun && matches!(self.watch, WatchedBy::Guard) {
            self.arm(self.armed.min(Moment::now().after(STALLED)))?;
        }
        Ok(())
    }
}

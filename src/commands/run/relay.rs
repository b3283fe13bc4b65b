//! What becomes of a signal that dlock gets while the job runs? It is passed on, unless the terminal did that already; and
//! when the job is stopped, so is dlock. What ends a dlock that waits is not decided here.

use super::{Runs, Session};
use crate::supervise::{self, Group, Reached};
use std::time::Duration;

impl Session<'_> {
    /// With a terminal CMD is in dlock's group: what the kernel sends for a key has reached it already. What is left when
    /// CMD has ended is mostly out of the terminal's reach, and only dlock is there to interrupt.
    pub(super) fn relay(&mut self, received: supervise::Received) {
        let from_terminal = received.from == supervise::Sender::Kernel && self.group == Group::Caller;
        let from_guard = received.from == supervise::Sender::Process(self.guard.pid().cast_unsigned());
        let stops_reading = [libc::SIGTTIN, libc::SIGTTOU].contains(&received.signal);
        let interrupts = [libc::SIGINT, libc::SIGQUIT].contains(&received.signal);
        if from_guard || stops_reading {
            return;
        }
        if !from_terminal {
            self.guard.relay(received.signal, Reached::Nobody);
        } else if self.runs == Runs::Rest && interrupts {
            self.guard.relay(received.signal, Reached::CallerGroup);
        }
    }

    /// ^Z when CMD, which dlock otherwise follows, has ended.
    pub(super) fn stop_without_command(&self, received: supervise::Received) {
        if self.runs == Runs::Rest && received.signal == libc::SIGTSTP {
            self.stop_too(libc::SIGTSTP);
        }
    }

    /// The job was stopped. With a terminal the shell must see dlock stop too, or it would not take its terminal back.
    pub(super) fn stop_too(&self, signal: i32) {
        if self.group == Group::Caller {
            self.messages.stopped(self.limits_left(), self.run.on_lost);
            supervise::stop_by(signal);
        }
    }

    fn limits_left(&self) -> Duration {
        self.limits.get().term_at.left()
    }
}

//! Handles signals while the job runs: relays them to CMD, and suspends dlock when the job is
//! suspended (^Z). Not relayed are TTIN and TTOU, what the guard sent, and what the terminal has
//! sent to CMD already. While dlock waits, session/obtain.rs handles signals.

use super::session::{Runs, Session};
use crate::supervise::{self, Group, Reached};

impl Session<'_> {
    /// With a terminal, CMD is in dlock's group, so a signal from a key of the terminal has reached
    /// it already. The rest of the job may be in other groups, which the terminal's ^C does not
    /// reach.
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

    /// Handles ^Z after CMD has ended. Before that, dlock is suspended when CMD is.
    pub(super) fn stop_without_command(&self, received: supervise::Received) {
        if self.runs == Runs::Rest && received.signal == libc::SIGTSTP {
            self.suspend_too(libc::SIGTSTP);
        }
    }

    /// Suspends dlock after the job was suspended. With a terminal the shell must see dlock
    /// suspended too, or it would not take its terminal back.
    pub(super) fn suspend_too(&self, signal: i32) {
        if self.group == Group::Caller {
            let left = self.guard.limits().get().term_at.left();
            self.messages.suspended(left, self.run.on_lost);
            supervise::stop_by(signal);
        }
    }
}

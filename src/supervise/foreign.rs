//! Finds the processes that descend from one that dlock did not start, and stops them. Unlike CMD's
//! descendants, they do not become children of this process when their parents end. So each process
//! that was seen once is remembered by its number and start time. A process that lost its parent
//! before a look found it cannot be found any more.

use super::pidfd::{Signalling, pinned};
use super::pin::Pin;
use super::procfs::{Entry, Source, read_entry};
use crate::clock::Moment;
use rustix::process::Signal;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// How long to look for new processes before the signal.
const FREEZE: Duration = Duration::from_millis(5);
/// Longest time for one look, because a job may fork faster than it can be read.
const LOOK_MAX: Duration = Duration::from_millis(100);
/// Longest time for all looks before a signal. A stopped process forks no more. A process that was
/// not found by then is not signalled.
const LOOKS_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Foreign {
    target: Pin,
    /// Processes that were seen and may be alive, each after its parent; the target first.
    known: Vec<Known>,
    /// dlock's own processes, which may descend from the target.
    left_out: [i32; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Known {
    pid: i32,
    started: u64,
}

impl Known {
    fn entry(self) -> Option<Entry> {
        read_entry(self.pid).filter(|entry| entry.started == self.started)
    }

    fn lives(self) -> bool {
        self.entry().is_some_and(|entry| !entry.ended)
    }

    fn signal(self, how: Signalling) -> io::Result<()> {
        pinned(self.pid, how, || self.lives())
    }
}

impl Foreign {
    /// Begins with the target alone. Looks find what descends from it, except `left_out` and what
    /// these started.
    pub(super) fn new(target: Pin, left_out: [i32; 2]) -> Self {
        let known = target.started().map(|started| Known { pid: target.pid(), started });
        Self { target, known: known.into_iter().collect(), left_out }
    }

    /// Looks for new processes and forgets those that have ended.
    pub(super) fn look(&mut self, source: Source) {
        self.find(source, Moment::now().after(LOOK_MAX), |_| {});
    }

    /// Looks for new processes. Calls `met` on each before it looks for its children. Returns
    /// whether there were new ones.
    fn find(&mut self, source: Source, until: Moment, met: impl Fn(Known)) -> bool {
        let mut seen: HashSet<Known> = self.known.iter().copied().collect();
        let (before, mut at) = (self.known.len(), 0);
        while let Some(&parent) = self.known.get(at).filter(|_| !until.passed()) {
            at += 1;
            met(parent);
            let children = source.children_but(parent.pid, &self.left_out).into_iter();
            let children = children.filter_map(read_entry).filter(|child| child.parent == parent.pid);
            let children = children.map(|child| Known { pid: child.pid, started: child.started });
            let mut fresh: Vec<Known> = children.filter(|child| !seen.contains(child)).collect();
            // Check the parent again after the list was read: its number may have been reused, and
            // then the list shows the children of another process.
            if !fresh.is_empty() && parent.entry().is_some() {
                seen.extend(&fresh);
                self.known.append(&mut fresh);
            }
        }
        let is_new = self.known.len() > before;
        self.known.retain(|known| known.lives());
        is_new
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no known process is left.
    pub(super) fn is_gone(&self) -> bool {
        self.target.has_ended() && !self.known.iter().any(|known| known.lives())
    }

    /// Whether all known processes that live are among these.
    pub(super) fn is_among(&self, pids: &HashSet<i32>) -> bool {
        self.known.iter().all(|known| pids.contains(&known.pid) || !known.lives())
    }

    /// Sends TERM and CONT to all. A child that is forked after the look would be lost when its
    /// parent ends of the TERM, so the target's descendants are stopped first. The target itself is
    /// not stopped: its own parent may be `su` or `sudo`, which stops with it and is never
    /// continued. It gets TERM straight after the look; what it forks in between may be lost.
    ///
    /// If the KILL is due by then, no TERM is sent, and the KILL finds the descendants stopped.
    pub(super) fn term(&mut self, source: Source, kill_at: Moment) -> Vec<(i32, io::Result<()>)> {
        let target = self.target.pid();
        self.freeze(source, |known| known.pid != target, || {});
        if kill_at.passed() {
            return Vec::new();
        }
        let done = self.signal(Signalling::Relay(Signal::TERM));
        if self.known.is_empty() {
            drop(self.target.signal(Signal::CONT));
        }
        // Children first: a continued parent must never find its child stopped.
        self.known.iter().rev().for_each(|known| drop(known.signal(Signalling::Relay(Signal::CONT))));
        done
    }

    /// Signals each of them. Returns the results.
    fn signal(&self, how: Signalling) -> Vec<(i32, io::Result<()>)> {
        let mut done: Vec<_> = self.known.iter().map(|known| (known.pid, known.signal(how))).collect();
        if self.known.is_empty() && !self.target.has_ended() {
            // Without /proc, only the target can be reached.
            let signal = if how == Signalling::Kill { Signal::KILL } else { Signal::TERM };
            done.push((self.target.pid(), self.target.signal(signal)));
        }
        done
    }

    /// Kills all.
    pub(super) fn kill(&mut self, source: Source, beat: impl Fn()) -> Vec<(i32, io::Result<()>)> {
        self.freeze(source, |_| true, beat);
        self.signal(Signalling::Kill)
    }

    /// Stops each process that `may_be_stopped` before looking for its children: a stopped process
    /// starts no other while the rest is found.
    fn freeze(&mut self, source: Source, may_be_stopped: impl Fn(Known) -> bool, beat: impl Fn()) {
        // If a process may not be stopped, the signal that follows reports that.
        let stop = |known: Known| {
            beat();
            if may_be_stopped(known) {
                drop(known.signal(Signalling::Relay(Signal::STOP)));
            }
        };
        let now = Moment::now();
        let (until, deadline) = (now.after(FREEZE), now.after(LOOKS_MAX));
        while self.find(source, deadline, stop) && !until.passed() {}
        // Also stop those that the last look found.
        self.find(source, deadline, stop);
    }
}

//! Which processes descend from one that dlock did not start, and how are they stopped? They do not become children of
//! this process when their parents end, as those of CMD do. So each one that was seen once is remembered by its number and
//! the time it was started. What left its parent before anybody looked cannot be found any more.

use super::bond::Pin;
use super::procfs::{Entry, Source, read_entry};
use super::strike::{Signalling, pinned};
use crate::clock::Moment;
use rustix::process::Signal;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// How long new processes are looked for before all that were found are signalled.
const FREEZE: Duration = Duration::from_millis(5);
/// How long one look may take: what forks faster than it is read would keep the guard in it.
const LOOK: Duration = Duration::from_millis(100);
/// How long all looks before a signal may take. What is stopped forks no more, and what was not found is lost.
const LOOKS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Foreign {
    target: Pin,
    /// Those that were seen and may be alive, each after its parent; the target first.
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
    /// The tree below the target, without dlock's processes and what they started.
    pub(super) fn new(target: Pin, left_out: [i32; 2]) -> Self {
        let known = target.started().map(|started| Known { pid: target.pid(), started });
        Self { target, known: known.into_iter().collect(), left_out }
    }

    /// Looks for new ones, and forgets those that have ended.
    pub(super) fn look(&mut self, source: Source) {
        self.find(source, Moment::now().after(LOOK), |_| {});
    }

    /// Looks for new ones; each is `met` before its children are looked for. Whether there were new ones.
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
            // Read after the list: the number may have become another's, whose children these are.
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

    /// Whether nothing is left that is known.
    pub(super) fn is_gone(&self) -> bool {
        self.target.has_ended() && !self.known.iter().any(|known| known.lives())
    }

    /// Whether all that is left is among these.
    pub(super) fn is_among(&self, pids: &HashSet<i32>) -> bool {
        self.known.iter().all(|known| pids.contains(&known.pid) || !known.lives())
    }

    /// Asks all of it to end. A child that is forked after the look would be lost when its parent ends of the TERM, so what the
    /// process has started stands still meanwhile. Not the process itself: its own parent may be `su` or `sudo`, which stop
    /// with it, and which nobody has go on. So it is asked straight after the look; what it forks just then may be lost.
    ///
    /// Nothing is asked once it is time for the KILL, which comes next and finds all of it standing still.
    pub(super) fn term(&mut self, source: Source, kill_at: Moment) -> Vec<(i32, io::Result<()>)> {
        let target = self.target.pid();
        self.freeze(source, |known| known.pid != target, || {});
        if kill_at.passed() {
            return Vec::new();
        }
        let done = self.signal(Signalling::Relay(Signal::TERM));
        // Children first: a parent that goes on never finds its child stopped.
        self.known.iter().rev().for_each(|known| drop(known.signal(Signalling::Relay(Signal::CONT))));
        done
    }

    /// Signals each of them; says what became of it.
    fn signal(&self, how: Signalling) -> Vec<(i32, io::Result<()>)> {
        let mut done: Vec<_> = self.known.iter().map(|known| (known.pid, known.signal(how))).collect();
        if self.known.is_empty() && !self.target.has_ended() {
            // Without /proc it is all that can be reached.
            let signal = if how == Signalling::Kill { Signal::KILL } else { Signal::TERM };
            done.push((self.target.pid(), self.target.signal(signal)));
        }
        done
    }

    /// Kills what there is.
    pub(super) fn kill(&mut self, source: Source, beat: impl Fn()) -> Vec<(i32, io::Result<()>)> {
        self.freeze(source, |_| true, beat);
        self.signal(Signalling::Kill)
    }

    /// Stops those of it that may be stopped, parents before their children are looked for: what is stopped starts no other process
    /// while the rest is found.
    fn freeze(&mut self, source: Source, may_be_stopped: impl Fn(Known) -> bool, beat: impl Fn()) {
        // What this user may not stop is said to be refused by the signal that comes next.
        let stop = |known: Known| {
            beat();
            if may_be_stopped(known) {
                drop(known.signal(Signalling::Relay(Signal::STOP)));
            }
        };
        let now = Moment::now();
        let (until, by) = (now.after(FREEZE), now.after(LOOKS));
        while self.find(source, by, stop) && !until.passed() {}
        // Those that were met when the time was over.
        self.find(source, by, stop);
    }
}

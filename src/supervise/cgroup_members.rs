//! Moves the processes of a job into its control group, and no others: an id may have been reused
//! since it was read. Checks descent; the caller decides when to move and when to kill.

use super::cgroup::{Cgroup, Taken};
use super::procfs::{Entry, Member, Source, is_below, read_entry};
use crate::clock::Moment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{HashSet, VecDeque};

/// How many processes are moved before this process's own children are read again.
const BATCH: usize = 32;

#[derive(Debug)]
pub(super) struct CgroupMembers {
    root: i32,
    cgroup: Cgroup,
    /// Processes that are in the control group or cannot be moved there.
    seen: HashSet<i32>,
    /// Processes still to be moved.
    unseen: VecDeque<Member>,
    /// A process was moved since the last look at all processes.
    has_moved: bool,
}

impl CgroupMembers {
    pub(super) fn new(root: i32) -> Self {
        Self { root, cgroup: Cgroup::Unmade, seen: HashSet::new(), unseen: VecDeque::new(), has_moved: true }
    }

    /// Called when a child was reaped: its id may be given to another process.
    pub(super) fn forget(&mut self, pid: i32) {
        self.seen.remove(&pid);
    }

    /// Goes on moving processes until `until`, own children first: a chain of processes that fork
    /// and end is caught there. Returns whether all processes were moved. That stays true, because
    /// a process forked by one in the group is in it from birth.
    pub(super) fn go_on(&mut self, source: Source, foreign_children: &[i32], until: Moment) -> bool {
        loop {
            for pid in source.children_but(self.root, foreign_children) {
                // Only this process can reap its child, so the id stays the child's.
                if self.seen.insert(pid) {
                    self.has_moved |= self.cgroup.take(pid) == Taken::Now;
                }
            }
            if !self.cgroup.is_available() {
                return true;
            }
            if self.unseen.is_empty() {
                if !std::mem::take(&mut self.has_moved) {
                    return true;
                }
                let members = source.below(self.root, foreign_children);
                self.unseen.extend(members.into_iter().filter(|member| !self.seen.contains(&member.pid)));
            }
            for _ in 0..BATCH {
                let Some(Member { pid, .. }) = self.unseen.pop_front() else { break };
                // The list has parents first, so the parent was seen before.
                self.take(pid, |this, entry| entry.parent == this.root || this.seen.contains(&entry.parent));
                self.seen.insert(pid);
            }
            if until.passed() {
                return false;
            }
        }
    }

    /// Moves a process into the group if it is part of the job. Returns whether the process is
    /// there or has ended, because one that `cgroup.kill` has killed still refuses this user's
    /// signals.
    pub(super) fn catch(&mut self, pid: i32) -> bool {
        self.take(pid, |this, entry| is_below(entry.pid, this.root))
            || read_entry(pid).is_none_or(|entry| entry.ended)
    }

    fn take(&mut self, pid: i32, is_ours: impl Fn(&Self, &Entry) -> bool) -> bool {
        let Some(pin) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return false;
        };
        let lives =
            |this: &Self| read_entry(pid).filter(|entry| !entry.ended).map(|entry| is_ours(this, &entry));
        if lives(self) != Some(true) {
            return false;
        }
        let taken = self.cgroup.take(pid);
        let has_ended = poll(&mut [PollFd::new(&pin, PollFlags::IN)], Some(&Timespec::default())) != Ok(0);
        if taken == Taken::Now && has_ended && lives(self) == Some(false) {
            // It ended, and another process had got its id before the move.
            self.cgroup.put_back(pid);
        }
        self.has_moved |= taken == Taken::Now;
        taken != Taken::No
    }

    pub(super) fn kill(&mut self) {
        self.cgroup.kill();
    }

    pub(super) fn remove(&mut self) {
        self.cgroup.remove();
    }
}

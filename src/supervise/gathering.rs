//! Which processes of a job are taken into its control group, and how does no stranger get there? An id may have been given
//! away since it was read. Whom they descend from is known here; when it is done, and when they are killed, is not.

use super::cgroup::{Cgroup, Taken};
use super::procfs::{Entry, Member, Source, is_below, read_entry};
use crate::clock::Moment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{HashSet, VecDeque};

/// So many are taken before the own children are looked at again.
const BATCH: usize = 32;

#[derive(Debug)]
pub(super) struct Gathering {
    root: i32,
    cgroup: Cgroup,
    /// Those that are in the control group, or cannot be taken there; and those that are still to be.
    seen: HashSet<i32>,
    unseen: VecDeque<Member>,
    /// One was taken there since all were looked for last.
    took: bool,
}

impl Gathering {
    pub(super) fn new(root: i32) -> Self {
        Self { root, cgroup: Cgroup::Unmade, seen: HashSet::new(), unseen: VecDeque::new(), took: true }
    }

    /// A child has been reaped: its id may be given to another process.
    pub(super) fn forget(&mut self, pid: i32) {
        self.seen.remove(&pid);
    }

    /// Goes on until `until`: first with the processes that are children of this one, for a chain of processes that fork
    /// and end is met there. Whether there is no more to do: whatever is forked by one that was taken in is in from its
    /// birth.
    pub(super) fn go_on(&mut self, source: Source, apart: &[i32], until: Moment) -> bool {
        loop {
            for pid in source.children_but(self.root, apart) {
                // Only this process can reap its child, so the id stays that child's.
                if self.seen.insert(pid) {
                    self.took |= self.cgroup.take(pid) == Taken::Now;
                }
            }
            if !self.cgroup.is_available() {
                return true;
            }
            if self.unseen.is_empty() {
                if !std::mem::take(&mut self.took) {
                    return true;
                }
                let members = source.below(self.root, apart);
                self.unseen.extend(members.into_iter().filter(|member| !self.seen.contains(&member.pid)));
            }
            for _ in 0..BATCH {
                let Some(Member { pid, .. }) = self.unseen.pop_front() else { break };
                // Its parent was seen before it.
                self.take(pid, |this, entry| entry.parent == this.root || this.seen.contains(&entry.parent));
                self.seen.insert(pid);
            }
            if until.passed() {
                return false;
            }
        }
    }

    /// Takes one in, if it is of the job. Whether it is in, or has ended: what dies of the group's kill may not be signalled
    /// either.
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
            // It ended, and its id was a stranger's before it was used.
            self.cgroup.put_back(pid);
        }
        self.took |= taken == Taken::Now;
        taken != Taken::No
    }

    pub(super) fn kill(&mut self) {
        self.cgroup.kill();
    }

    pub(super) fn remove(&mut self) {
        self.cgroup.remove();
    }
}

//! Keeps track of the processes of the job, which procfs.rs finds, and signals each of them without
//! ever hitting another. The caller decides when.
//!
//! The job is what descends from the process that watches it. The watching process is a subreaper,
//! so a descendant stays one whatever group, session or parent it takes: while it lives, it is a
//! child of a descendant or of the watching process.
//!
//! Only descent counts. The environment and memory of a process are never read: to find what a
//! daemon such as atd started for the job, the guard would have to read those of foreign processes,
//! which decide how large they are and whether the read ever returns.

use super::cgroup_members::CgroupMembers;
use super::foreign::Foreign;
use super::limits::LimitsSender;
use super::pidfd::{Signalling, pinned, send};
use super::procfs::{Member, Source, name_of, own_pid, read_entry};
use super::{GUARD_NAME, Process};
use crate::clock::Moment;
use crate::sys::{self, Waited};
use rustix::process::Signal;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// How many processes are killed further down before this process's own children are read again. A
/// process whose parent has died is one of them, and costs less to find there.
const BATCH: usize = 32;
/// Cost of ending a process, as a multiple of the cost of finding it (measured; see
/// docs/protocol.md). On a slow or busy machine both grow alike.
const DYING: u32 = 12;

/// How far down a kill looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Only this process's children. What is below them becomes a child when they end.
    Children,
    All,
}

/// Result of one pass over the job's processes.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Processes that may not be signalled and were not reported before.
    pub refused: Vec<Process>,
    /// Children that have changed: ids and raw wait statuses.
    pub changed: Vec<(i32, i32)>,
    /// No child is left.
    pub no_child: bool,
    /// Only processes that may not be signalled are left.
    pub only_refused: bool,
}

/// The job, seen from the process that watches it.
#[derive(Debug)]
pub(super) struct ProcessTree {
    root: i32,
    source: OnceCell<Source>,
    /// Processes that descend from the root but are not part of the job.
    foreign_children: Vec<i32>,
    refused: HashSet<i32>,
    cgroup_members: CgroupMembers,
    /// The job of a `hold`: a process that is not below the root, and what descends from it.
    foreign: Option<Foreign>,
    /// Processes that got a KILL and may not have ended yet.
    killed: HashSet<i32>,
    /// Counts the steps of killing.
    beat: LimitsSender,
}

impl ProcessTree {
    /// The job is the descendants of this process except `foreign_children`, and the foreign
    /// process with what descends from it.
    pub(super) fn new(foreign_children: Vec<i32>, foreign: Option<Foreign>, beat: LimitsSender) -> Self {
        let root = own_pid();
        Self {
            root,
            source: OnceCell::new(),
            foreign_children,
            refused: HashSet::new(),
            cgroup_members: CgroupMembers::new(root),
            foreign,
            killed: HashSet::new(),
            beat,
        }
    }

    fn source(&self) -> Source {
        *self.source.get_or_init(Source::find)
    }

    /// Whether nothing below this process can be found.
    pub(super) fn is_blind(&self) -> bool {
        self.source() == Source::Nothing
    }

    /// The processes of the job, and the estimated time to kill them all.
    pub(super) fn look(&mut self) -> (Vec<Member>, Duration) {
        let began = Moment::now();
        let members = self.source().below(self.root, &self.foreign_children);
        self.look_at_foreign();
        (members, Moment::now().since(began) * DYING)
    }

    /// Whether there is a foreign process, whose descendants the kernel does not report.
    pub(super) fn has_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Looks for new processes below the foreign one.
    pub(super) fn look_at_foreign(&mut self) {
        let source = self.source();
        if let Some(foreign) = &mut self.foreign {
            foreign.look(source);
        }
    }

    /// Looks for what the foreign process has started and, once it has ended, left behind. Returns
    /// whether there is anything new.
    pub(super) fn follow_foreign(&mut self) -> bool {
        let source = self.source();
        self.foreign.as_mut().is_some_and(|foreign| foreign.follow(source))
    }

    /// Whether the foreign process has a child that is not known.
    pub(super) fn foreign_has_new_child(&self) -> bool {
        self.foreign.as_ref().is_some_and(|foreign| foreign.has_new_child(self.source()))
    }

    /// What the foreign process has left behind.
    pub(super) fn rest(&self) -> Vec<Process> {
        self.foreign.as_ref().map(Foreign::rest).unwrap_or_default()
    }

    /// How many processes are known of the foreign one and what descends from it.
    pub(super) fn count_foreign(&self) -> usize {
        self.foreign.as_ref().map_or(0, Foreign::len)
    }

    /// Sends these processes TERM, parents before children: a shell must not go on to its next line
    /// because the child that it waited for is gone.
    pub(super) fn term<'a>(&mut self, members: impl Iterator<Item = &'a Member>, kill_at: Moment) -> Sweep {
        let mut known = HashSet::from([self.root]);
        let mut sweep = Sweep::default();
        for member in members {
            known.insert(member.pid);
            let done = self.signal_one(member.pid, member.parent, &known, Signalling::Term);
            self.note(member.pid, done, &mut sweep);
        }
        let source = self.source();
        let foreign_done = self.foreign.as_mut().map(|foreign| foreign.term(source, kill_at));
        for (pid, done) in foreign_done.into_iter().flatten() {
            self.note(pid, done, &mut sweep);
        }
        sweep
    }

    /// Kills all processes, including new ones, and reaps them. Ends when a look finds nothing new,
    /// or at `until`.
    ///
    /// A killed process leaves its children to the root, so what it forked before is out of reach
    /// only until it is dead.
    pub(super) fn kill(&mut self, depth: Depth, until: Moment) -> Sweep {
        let mut sweep = Sweep::default();
        self.kill_foreign(&mut sweep);
        loop {
            self.beat.beat();
            self.reap(&mut sweep);
            if sweep.no_child {
                break;
            }
            let mut hit = self.kill_children(&mut sweep);
            if hit == 0 && depth == Depth::All {
                hit = self.kill_below(&mut sweep);
            }
            if hit == 0 || until.passed() {
                break;
            }
        }
        sweep
    }

    /// Forgets which processes were killed: an id may now be another process of the job.
    pub(super) fn begin_anew(&mut self) {
        self.killed.clear();
    }

    /// Records the changes of this process's children, and forgets those that have ended.
    pub(super) fn reap(&mut self, sweep: &mut Sweep) {
        loop {
            match sys::wait_any() {
                Waited::Child(pid, raw) => {
                    self.killed.remove(&pid);
                    self.cgroup_members.forget(pid);
                    sweep.changed.push((pid, raw));
                }
                Waited::Nothing => return,
                Waited::NoChild => {
                    sweep.no_child = self.foreign.as_ref().is_none_or(Foreign::is_gone);
                    return;
                }
            }
        }
    }

    /// Goes on moving the job into a control group until `until`. Returns whether all is done.
    pub(super) fn gather(&mut self, until: Moment) -> bool {
        self.cgroup_members.go_on(self.source(), &self.foreign_children, until)
    }

    /// Moves processes that may not be signalled into the control group, where they can be killed.
    /// They no longer count as refused.
    pub(super) fn catch(&mut self, refused: &mut Vec<Process>) {
        refused.retain(|process| {
            let caught = self.cgroup_members.catch(process.pid);
            if caught {
                self.refused.remove(&process.pid);
            }
            !caught
        });
    }

    /// Forgets these refused processes, so that they are reported again.
    pub(super) fn forget(&mut self, refused: &mut Vec<Process>) {
        for process in refused.drain(..) {
            self.refused.remove(&process.pid);
        }
    }

    pub(super) fn kill_gathered(&mut self) {
        self.beat.beat();
        self.cgroup_members.kill();
    }

    /// Removes the control group once the job has ended.
    pub(super) fn remove_cgroup(&mut self) {
        self.cgroup_members.remove();
    }

    fn kill_foreign(&mut self, sweep: &mut Sweep) {
        let source = self.source();
        let Self { foreign, beat, .. } = self;
        let done = foreign.as_mut().map(|foreign| foreign.kill(source, || beat.beat()));
        for (pid, done) in done.into_iter().flatten() {
            self.beat.beat();
            self.note(pid, done, sweep);
        }
    }

    fn kill_children(&mut self, sweep: &mut Sweep) -> usize {
        let children = self.own_children();
        let has_foreign = |foreign: &Foreign| !foreign.is_among(&self.refused);
        sweep.only_refused = children.iter().all(|pid| self.refused.contains(pid))
            && !self.foreign.as_ref().is_some_and(has_foreign);
        let mut hit = 0;
        for pid in children {
            if !self.killed.contains(&pid) {
                // Only this process can reap its child, so the id stays the child's.
                let done = send(pid, None, Signalling::Kill);
                hit += usize::from(self.note_kill(pid, done, sweep));
            }
        }
        hit
    }

    fn kill_below(&mut self, sweep: &mut Sweep) -> usize {
        let source = self.source();
        let mut members = self.own_children();
        let mut known: HashSet<i32> = members.iter().chain([&self.root]).copied().collect();
        let (mut hit, mut at) = (0, 0);
        while let Some(&parent) = members.get(at) {
            at += 1;
            for pid in source.children(parent) {
                if self.foreign_children.contains(&pid) || !known.insert(pid) {
                    continue;
                }
                members.push(pid);
                if self.killed.contains(&pid) {
                    continue;
                }
                let done = self.signal_one(pid, parent, &known, Signalling::Kill);
                if self.note_kill(pid, done, sweep) {
                    hit += 1;
                    if hit % BATCH == 0 && self.kill_children(sweep) > 0 {
                        return hit;
                    }
                }
            }
        }
        hit
    }

    fn own_children(&self) -> Vec<i32> {
        self.source().children_but(self.root, &self.foreign_children)
    }

    /// Relays a signal to every descendant once, parents before children, except those in the
    /// process group `but`. A process forked meanwhile may be missed: a second look could not tell
    /// it from a child that a handler of this very signal has started.
    pub(super) fn relay(&self, signal: Signal, but: Option<i32>) {
        let members = self.source().below(self.root, &self.foreign_children);
        let known = members.iter().map(|member| member.pid).chain([self.root]).collect();
        for member in members {
            if but.is_none() || read_entry(member.pid).is_some_and(|entry| Some(entry.group) != but) {
                // If the guard may not signal a process, the signal's sender could not either.
                let _ = self.signal_one(member.pid, member.parent, &known, Signalling::Relay(signal));
            }
        }
    }

    /// Signals a descendant, a child of one of the `known`.
    fn signal_one(&self, pid: i32, parent: i32, known: &HashSet<i32>, how: Signalling) -> io::Result<()> {
        if parent == self.root {
            // The root's own child: only this process can reap it.
            return send(pid, None, how);
        }
        pinned(pid, how, || {
            read_entry(pid).is_some_and(|entry| !entry.ended && known.contains(&entry.parent))
        })
    }

    /// Whether no descendant is left: every living one is a child, or below one.
    pub(super) fn is_empty(&self) -> bool {
        self.own_children().is_empty() && self.foreign.as_ref().is_none_or(Foreign::is_gone)
    }

    /// Whether a child is a guard: its dlock ran inside the job and was killed, and the guard is
    /// stopping that dlock's job.
    pub(super) fn has_guard(&self) -> bool {
        self.own_children().into_iter().any(|pid| name_of(pid).as_bytes() == GUARD_NAME.to_bytes())
    }

    /// Returns whether the process was killed.
    fn note_kill(&mut self, pid: i32, done: io::Result<()>, sweep: &mut Sweep) -> bool {
        self.beat.beat();
        let hit = done.is_ok();
        if hit {
            self.killed.insert(pid);
        }
        self.note(pid, done, sweep);
        hit
    }

    fn note(&mut self, pid: i32, done: io::Result<()>, sweep: &mut Sweep) {
        // Any other error means that the process has ended by itself.
        if done.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) && self.refused.insert(pid) {
            sweep.refused.push(Process { pid, name: name_of(pid) });
        }
    }
}

//! Which processes are the job, and how is each of them signalled without ever hitting another? When to do so is not
//! decided here.
//!
//! The job is what descends from the process that watches it. That one is a subreaper, so a descendant stays one
//! whatever group, session or parent it takes; and while it lives it is a child of a descendant or of the watcher.
//!
//! Descent is all that counts. The environment or the memory of a process is never read: to look for what a daemon such as
//! atd started for the job, the guard would have to read those of strangers, who decide how large they are, and whether
//! the read ever returns.

use super::foreign::Foreign;
use super::gathering::Gathering;
use super::limits::LimitsSender;
use super::procfs::{Member, Source, name_of, own_pid, read_entry};
use super::strike::{Signalling, pinned, send};
use super::{GUARD_NAME, Process};
use crate::clock::Moment;
use crate::sys::{self, Waited};
use rustix::process::Signal;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// So many are killed further down before the own children are looked at again: what loses its parent is met there, and
/// costs less there.
const BATCH: usize = 32;
/// What it costs the kernel to end a process, as a multiple of what it costs to find it: measured once with 2,000
/// small ones on a busy machine, 10 to 17. Both grow alike where the machine is slow or busy.
const DYING: u32 = 12;

/// How far down a kill looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// At the own children. Whatever is below them comes here when they end.
    Children,
    All,
}

/// What a sweep met.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Processes that may not be signalled, if they had not been met before.
    pub refused: Vec<Process>,
    /// Children that have changed: their ids and raw statuses.
    pub changed: Vec<(i32, i32)>,
    /// There is no child left.
    pub no_child: bool,
    /// Nothing is left but what may not be signalled.
    pub only_refused: bool,
}

/// The job, seen from the process that watches it.
#[derive(Debug)]
pub(super) struct ProcessTree {
    root: i32,
    source: OnceCell<Source>,
    /// Processes that are not of the job though they descend from the root.
    apart: Vec<i32>,
    refused: HashSet<i32>,
    gathering: Gathering,
    /// Where the job is a process that is not below the root, with what descends from it.
    foreign: Option<Foreign>,
    /// Those that have got a KILL and may not have ended yet.
    killed: HashSet<i32>,
    /// Where it is counted that the killing gets on.
    beat: LimitsSender,
}

impl ProcessTree {
    /// The descendants of this process, but for the processes `apart`; and a foreign process with what descends from it.
    pub(super) fn new(apart: Vec<i32>, foreign: Option<Foreign>, beat: LimitsSender) -> Self {
        let root = own_pid();
        Self {
            root,
            source: OnceCell::new(),
            apart,
            refused: HashSet::new(),
            gathering: Gathering::new(root),
            foreign,
            killed: HashSet::new(),
            beat,
        }
    }

    fn source(&self) -> Source {
        *self.source.get_or_init(Source::find)
    }

    /// What the job consists of, and what killing it all may take.
    pub(super) fn look(&mut self) -> (Vec<Member>, Duration) {
        let began = Moment::now();
        let members = self.source().below(self.root, &self.apart);
        self.look_abroad();
        (members, Moment::now().since(began) * DYING)
    }

    /// Whether there is a foreign process to look after, which nobody tells about.
    pub(super) fn is_abroad(&self) -> bool {
        self.foreign.is_some()
    }

    /// Looks for new processes below the foreign one.
    pub(super) fn look_abroad(&mut self) {
        let source = self.source();
        if let Some(foreign) = &mut self.foreign {
            foreign.look(source);
        }
    }

    /// How many there are abroad, as far as they were seen.
    pub(super) fn count_abroad(&self) -> usize {
        self.foreign.as_ref().map_or(0, Foreign::len)
    }

    /// Asks these processes to end, parents before children: a shell must not go on to its next line because the child it
    /// waited for is gone already.
    pub(super) fn term<'a>(&mut self, members: impl Iterator<Item = &'a Member>, kill_at: Moment) -> Sweep {
        let mut known = HashSet::from([self.root]);
        let mut sweep = Sweep::default();
        for member in members {
            known.insert(member.pid);
            let done = self.strike(member.pid, member.parent, &known, Signalling::Term);
            self.note(member.pid, done, &mut sweep);
        }
        let source = self.source();
        let abroad = self.foreign.as_mut().map(|foreign| foreign.term(source, kill_at));
        for (pid, done) in abroad.into_iter().flatten() {
            self.note(pid, done, &mut sweep);
        }
        sweep
    }

    /// Kills what there is and what comes up meanwhile, and reaps it; ends when a look finds nothing new, or at `until`.
    ///
    /// Who is killed leaves its children to the root, so nothing that forked before it was hit is out of reach for longer
    /// than it takes to die.
    pub(super) fn kill(&mut self, depth: Depth, until: Moment) -> Sweep {
        let mut sweep = Sweep::default();
        self.kill_abroad(&mut sweep);
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

    /// What was hit counts as not hit from now on: an id may have been given to another process of the job.
    pub(super) fn begin_anew(&mut self) {
        self.killed.clear();
    }

    /// Takes what there is to know of the own children, and forgets those that have ended.
    pub(super) fn reap(&mut self, sweep: &mut Sweep) {
        loop {
            match sys::wait_any() {
                Waited::Child(pid, raw) => {
                    self.killed.remove(&pid);
                    self.gathering.forget(pid);
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

    /// Goes on taking the job into a control group until `until`. Whether there is no more to do.
    pub(super) fn gather(&mut self, until: Moment) -> bool {
        self.gathering.go_on(self.source(), &self.apart, until)
    }

    /// Takes into the control group what may not be signalled, so that it can be killed nevertheless; it does not count as
    /// refused then.
    pub(super) fn catch(&mut self, refused: &mut Vec<Process>) {
        refused.retain(|process| {
            let caught = self.gathering.catch(process.pid);
            if caught {
                self.refused.remove(&process.pid);
            }
            !caught
        });
    }

    /// Has these processes found to be refused again.
    pub(super) fn forget(&mut self, refused: &mut Vec<Process>) {
        for process in refused.drain(..) {
            self.refused.remove(&process.pid);
        }
    }

    /// Kills what is in the control group.
    pub(super) fn kill_gathered(&mut self) {
        self.beat.beat();
        self.gathering.kill();
    }

    /// When nothing of the job is left.
    pub(super) fn remove_cgroup(&mut self) {
        self.gathering.remove();
    }

    fn kill_abroad(&mut self, sweep: &mut Sweep) {
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
        let is_abroad = |foreign: &Foreign| !foreign.is_among(&self.refused);
        sweep.only_refused = children.iter().all(|pid| self.refused.contains(pid))
            && !self.foreign.as_ref().is_some_and(is_abroad);
        let mut hit = 0;
        for pid in children {
            if !self.killed.contains(&pid) {
                // Only this process can reap its child, so the id stays that child's.
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
                if self.apart.contains(&pid) || !known.insert(pid) {
                    continue;
                }
                members.push(pid);
                if self.killed.contains(&pid) {
                    continue;
                }
                let done = self.strike(pid, parent, &known, Signalling::Kill);
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
        self.source().children_but(self.root, &self.apart)
    }

    /// Passes a signal on to every descendant once, parents before children, but for those that are in the process group
    /// `but`. One that is forked meanwhile may be missed: a second look could not tell it from a child that a handler of
    /// this very signal has started.
    pub(super) fn relay(&self, signal: Signal, but: Option<i32>) {
        let members = self.source().below(self.root, &self.apart);
        let known = members.iter().map(|member| member.pid).chain([self.root]).collect();
        for member in members {
            if but.is_none() || read_entry(member.pid).is_some_and(|entry| Some(entry.group) != but) {
                // What is not ours to signal, its sender could not have signalled either.
                let _ = self.strike(member.pid, member.parent, &known, Signalling::Relay(signal));
            }
        }
    }

    /// Signals a descendant, a child of one of the `known`.
    fn strike(&self, pid: i32, parent: i32, known: &HashSet<i32>, how: Signalling) -> io::Result<()> {
        if parent == self.root {
            // As above.
            return send(pid, None, how);
        }
        pinned(pid, how, || {
            read_entry(pid).is_some_and(|entry| !entry.ended && known.contains(&entry.parent))
        })
    }

    /// Whether no descendant can be found any more: whoever lives is a child, or below one.
    pub(super) fn is_empty(&self) -> bool {
        self.own_children().is_empty() && self.foreign.as_ref().is_none_or(Foreign::is_gone)
    }

    /// Whether a guard is a child: its dlock ran inside the job and was killed, and it is stopping what that ran.
    pub(super) fn has_guard(&self) -> bool {
        self.own_children().into_iter().any(|pid| name_of(pid).as_bytes() == GUARD_NAME.to_bytes())
    }

    /// Whether it was hit.
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
        // Any other error: it has ended by itself.
        if done.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) && self.refused.insert(pid) {
            sweep.refused.push(Process { pid, name: name_of(pid) });
        }
    }
}

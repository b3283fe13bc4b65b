//! Which processes are the job, and how is each of them signalled without ever hitting another? When to do so is not
//! decided here.
//!
//! The job is what descends from the process that watches it. That one is a subreaper, so a descendant stays one
//! whatever group, session or parent it takes; and while it lives it is a child of a descendant or of the watcher.
//! Besides, as a second net, whatever carries the mark in the environment it was started with ([`super::strays`]).

use super::gathering::Gathering;
use super::limits::LimitsSender;
use super::procfs::{Member, Source, name_of, own_pid, read_entry};
use super::strays::{Looked, Search};
use super::{GUARD_NAME, Process};
use crate::clock::Moment;
use crate::sys::{self, Waited};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::OnceCell;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// So many are killed further down before the own children are looked at again: what loses its parent is met there, and
/// costs less there.
const BATCH: usize = 32;
/// What it costs the kernel to end a process, as a multiple of what it costs to find it: measured once with 2,000
/// small ones on a busy machine, 10 to 17. Both grow alike where the machine is slow or busy.
const DYING: u32 = 12;

/// What is done to each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signalling {
    /// TERM, and CONT after it: a stopped process would not see the TERM.
    Term,
    /// KILL, which a stopped process gets too.
    Kill,
    /// What somebody sent to dlock.
    Relay(Signal),
}

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
    /// Processes that are not of the job though they descend from the root, or carry the mark.
    apart: Vec<i32>,
    strays: Search,
    /// Strays that have got a TERM. One that is met again, in another round, gets no second one.
    asked: HashSet<i32>,
    refused: HashSet<i32>,
    gathering: Gathering,
    /// Those that have got a KILL and may not have ended yet.
    killed: HashSet<i32>,
    /// Where it is counted that the killing gets on.
    beat: LimitsSender,
}

impl ProcessTree {
    /// The descendants of this process, and what carries the mark, but for the processes `apart`.
    pub(super) fn new(mark: &str, apart: Vec<i32>, beat: LimitsSender) -> Self {
        let root = own_pid();
        Self {
            root,
            source: OnceCell::new(),
            apart,
            strays: Search::new(mark),
            asked: HashSet::new(),
            refused: HashSet::new(),
            gathering: Gathering::new(root),
            killed: HashSet::new(),
            beat,
        }
    }

    fn source(&self) -> Source {
        *self.source.get_or_init(Source::find)
    }

    /// What the job consists of, and what killing it all may take.
    pub(super) fn look(&self) -> (Vec<Member>, Duration) {
        let began = Moment::now();
        let members = self.source().below(self.root, &self.apart);
        (members, Moment::now().since(began) * DYING)
    }

    /// Asks these processes to end, parents before children: a shell must not go on to its next line because the child it
    /// waited for is gone already.
    pub(super) fn term<'a>(&mut self, members: impl Iterator<Item = &'a Member>) -> Sweep {
        let mut known = HashSet::from([self.root]);
        let mut sweep = Sweep::default();
        for member in members {
            known.insert(member.pid);
            let done = self.strike(member.pid, member.parent, &known, Signalling::Term);
            self.note(member.pid, done, &mut sweep);
        }
        sweep
    }

    /// Kills what there is and what comes up meanwhile, and reaps it; ends when a look finds nothing new, or at `until`.
    ///
    /// Who is killed leaves its children to the root, so nothing that forked before it was hit is out of reach for longer
    /// than it takes to die.
    pub(super) fn kill(&mut self, depth: Depth, until: Moment) -> Sweep {
        let mut sweep = Sweep::default();
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
                    sweep.no_child = true;
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

    fn kill_children(&mut self, sweep: &mut Sweep) -> usize {
        let children = self.own_children();
        sweep.only_refused = children.iter().all(|pid| self.refused.contains(pid));
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
        self.own_children().is_empty()
    }

    /// Whether a guard is a child: its dlock ran inside the job and was killed, and it is stopping what that ran.
    pub(super) fn has_guard(&self) -> bool {
        self.own_children().into_iter().any(|pid| name_of(pid).as_bytes() == GUARD_NAME.to_bytes())
    }

    /// Whether there may be strays.
    pub(super) fn may_have_strays(&self) -> bool {
        !self.strays.is_idle()
    }

    /// Has the search for strays begin a round of its own.
    pub(super) fn begin_round(&mut self) {
        self.strays.begin_round();
    }

    /// Goes on looking for strays until `until`, and signals those it meets, at least one look each time. Whether that
    /// was the end of a round.
    pub(super) fn search(&mut self, how: Signalling, until: Moment, sweep: &mut Sweep) -> bool {
        if how == Signalling::Kill {
            self.beat.beat();
        }
        loop {
            match self.strays.look(self.root, &self.apart) {
                None => return true,
                Some(Looked::Stray(pid)) => self.strike_stray(pid, how, sweep),
                Some(Looked::Other) => {}
            }
            if until.passed() {
                return false;
            }
        }
    }

    /// Whether any of the strays that were found last lives on; kills those that do, if that is the `how`.
    pub(super) fn has_known_strays(&mut self, how: Option<Signalling>, sweep: &mut Sweep) -> bool {
        let known = self.strays.known(self.root);
        if let Some(how) = how {
            self.beat.beat();
            known.iter().for_each(|&pid| self.strike_stray(pid, how, sweep));
        }
        !known.is_empty()
    }

    fn strike_stray(&mut self, pid: i32, how: Signalling, sweep: &mut Sweep) {
        if how == Signalling::Term && !self.asked.insert(pid) {
            return;
        }
        let done = pinned(pid, how, || self.strays.is_stray(pid, self.root));
        self.note(pid, done, sweep);
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

/// Signals the process behind an id that may have been given away since it was read: pins the process first, then makes
/// sure by `is_still` that the id stands for one of the job.
fn pinned(pid: i32, how: Signalling, is_still: impl Fn() -> bool) -> io::Result<()> {
    let pin = match Pid::from_raw(pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
    {
        Ok(pin) => Some(pin),
        // Linux before 5.3, or a sandbox that does not know the call: the check alone must do.
        Err(Errno::NOSYS | Errno::PERM) => None,
        Err(error) => return Err(error.into()),
    };
    if is_still() { send(pid, pin.as_ref(), how) } else { Err(Errno::SRCH.into()) }
}

fn send(pid: i32, pin: Option<&OwnedFd>, how: Signalling) -> io::Result<()> {
    let signal = |signal: Signal| match pin {
        Some(pin) => Ok(pidfd_send_signal(pin, signal)?),
        None => sys::kill(pid, signal.as_raw()),
    };
    match how {
        Signalling::Term => signal(Signal::TERM).and_then(|()| signal(Signal::CONT)),
        Signalling::Kill => signal(Signal::KILL),
        Signalling::Relay(relayed) => signal(relayed),
    }
}

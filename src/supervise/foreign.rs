//! Finds the processes that descend from one that dlock did not start, and stops them. Unlike CMD's
//! descendants, they do not become children of this process when their parents end. So each process
//! that was seen once is remembered by its number and start time. A process that lost its parent
//! before a look found it cannot be found any more.
//!
//! With `--tree` the guard looks from time to time ([`Foreign::follow`]), and waits for what the
//! target leaves behind: what was below it, and what is left of the session or group that it led.
//! A daemon is not waited for: a process in a session of its own whose parent ended before the
//! target did.

use super::pidfd::{Signalling, pinned};
use super::pin::Pin;
use super::procfs::{Entry, Source, name_of, read_entry};
use super::{GUARD_NAME, Process, bond::WATCHER_NAME};
use crate::clock::Moment;
use rustix::process::Signal;
use std::collections::HashSet;
use std::ffi::CStr;
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
    /// The target, as of the last look while it lived.
    seen: Option<Known>,
    /// The target has ended, and what it left behind is known.
    is_settled: bool,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    pid: i32,
    started: u64,
    /// As of the last look while the target lived.
    parent: i32,
    group: i32,
    session: i32,
    /// A process of a dlock, for which nobody waits: it may wait for this very lock.
    is_dlock: bool,
}

impl Known {
    fn of(entry: Entry) -> Self {
        let Entry { pid, started, parent, group, session, .. } = entry;
        Self { pid, started, parent, group, session, is_dlock: false }
    }

    /// What no other process has.
    fn id(self) -> (i32, u64) {
        (self.pid, self.started)
    }

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
        // The process had not been reaped when the entry was read, so the entry is its own.
        let known = read_entry(target.pid()).filter(|_| !target.has_ended()).map(Known::of);
        Self { target, known: known.into_iter().collect(), left_out, seen: known, is_settled: false }
    }

    /// Looks for what the target has started, and forgets what has left it. Once the target has
    /// ended, adds what is left of its session or group. Returns whether the look found anything new.
    pub(super) fn follow(&mut self, source: Source) -> bool {
        let is_new = self.find(source, Moment::now().after(LOOK_MAX), |_| {});
        if !self.is_settled
            && let Some(target) = self.seen
        {
            let now: Vec<Known> =
                self.known.iter().map(|known| known.entry().map_or(*known, Known::of)).collect();
            // When the target ends, its children get another parent: what was read before that counts.
            if self.target.has_ended() {
                self.is_settled = true;
                self.add_rest_of_group(source, target);
            } else {
                self.seen = now.first().copied();
                self.known = now;
            }
            let session = self.seen.map_or(target.session, |seen| seen.session);
            let mut below = HashSet::from([target.pid]);
            self.known.retain(|known| {
                let stays = known.session == session || below.contains(&known.parent);
                stays && (known.pid == target.pid || below.insert(known.pid))
            });
        }
        if self.is_settled {
            self.known.iter_mut().for_each(|known| known.is_dlock = is_dlock(source, known.pid));
        }
        is_new
    }

    /// Whether the target has a child that no look has found. `false` without lists of children, for
    /// which all processes would be read.
    pub(super) fn has_new_child(&self, source: Source) -> bool {
        let is_known = |pid: &i32| self.known.iter().any(|known| known.pid == *pid);
        source == Source::Lists
            && !source.children_but(self.target.pid(), &self.left_out).iter().all(is_known)
    }

    /// Adds what is left of the session or group that the target led.
    fn add_rest_of_group(&mut self, source: Source, target: Known) {
        let leads = |id: i32| id == target.pid;
        // Of a target that was reaped long ago, another process may have the number.
        if read_entry(target.pid).is_some_and(|entry| entry.started != target.started) {
            return;
        }
        if leads(target.session) || leads(target.group) {
            let known: HashSet<_> = self.known.iter().map(|known| known.id()).collect();
            let rest = source.all().into_iter().filter(|entry| !entry.ended && entry.pid != target.pid);
            let rest = rest.filter(|entry| leads(entry.session) || leads(entry.group)).map(Known::of);
            let is_own = |pid: i32| self.left_out.contains(&pid);
            let rest =
                rest.filter(|one| !is_own(one.pid) && !is_own(one.parent) && !known.contains(&one.id()));
            // Their session stands for having been below the target.
            self.known.extend(rest.map(|one| Known { parent: target.pid, ..one }).collect::<Vec<_>>());
        }
    }

    /// The processes that are waited for once the target has ended.
    pub(super) fn rest(&self) -> Vec<Process> {
        let rest = self.known.iter().filter(|known| !known.is_dlock && known.lives());
        rest.map(|known| Process { pid: known.pid, name: name_of(known.pid) }).collect()
    }

    /// Looks for new processes and forgets those that have ended.
    pub(super) fn look(&mut self, source: Source) {
        self.find(source, Moment::now().after(LOOK_MAX), |_| {});
    }

    /// Looks for new processes. Calls `met` on each before it looks for its children. Returns
    /// whether there were new ones.
    fn find(&mut self, source: Source, until: Moment, met: impl Fn(Known)) -> bool {
        let mut seen: HashSet<_> = self.known.iter().map(|known| known.id()).collect();
        let (before, mut at) = (self.known.len(), 0);
        while let Some(&parent) = self.known.get(at).filter(|_| !until.passed()) {
            at += 1;
            met(parent);
            let children = source.children_but(parent.pid, &self.left_out).into_iter();
            let children = children.filter_map(read_entry).filter(|child| child.parent == parent.pid);
            let mut fresh: Vec<Known> =
                children.map(Known::of).filter(|child| !seen.contains(&child.id())).collect();
            // Check the parent again after the list was read: its number may have been reused, and
            // then the list shows the children of another process.
            if !fresh.is_empty() && parent.entry().is_some() {
                seen.extend(fresh.iter().map(|child| child.id()));
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

    /// Whether no known process is left that is waited for.
    pub(super) fn is_gone(&self) -> bool {
        self.target.has_ended() && !self.known.iter().any(|known| !known.is_dlock && known.lives())
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

/// Whether this is a process of a dlock: a guard, a watcher, or the parent of a guard.
fn is_dlock(source: Source, pid: i32) -> bool {
    let is = |pid: i32, name: &CStr| name_of(pid).as_bytes() == name.to_bytes();
    is(pid, GUARD_NAME)
        || is(pid, WATCHER_NAME)
        || source.children(pid).into_iter().any(|child| is(child, GUARD_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_that_no_look_has_found_is_new() -> io::Result<()> {
        let mut script = Command::new("sh");
        script.args(["-c", "read -r _; sleep 1000 & echo up; read -r _; kill $!"]);
        let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pin = Pin::new(script.id().cast_signed()).map_err(|why| io::Error::other(format!("{why:?}")))?;
        let (mut foreign, source) = (Foreign::new(pin, [0; 2]), Source::Lists);
        foreign.follow(source);
        let before = foreign.has_new_child(source);
        let (stdin, stdout) = (script.stdin.as_mut(), script.stdout.as_mut());
        let (stdin, stdout) = stdin.zip(stdout).ok_or(io::ErrorKind::NotFound)?;
        stdin.write_all(b"\n")?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        let started = foreign.has_new_child(source);
        foreign.follow(source);
        let after = foreign.has_new_child(source);
        stdin.write_all(b"\n")?;
        script.wait()?;
        assert_eq!([before, started, after], [false, true, false]);
        Ok(())
    }
}

//! Which processes are the job, and how is each of them signalled without ever hitting another? When to do so is not
//! decided here.
//!
//! The job is what descends from the process that watches it. That one is a subreaper, so a descendant stays one
//! whatever group, session or parent it takes; and while it lives it is a child of a descendant or of the watcher.
//! Besides, as a second net, whatever carries the mark in the environment it was started with.

use super::Process;
use super::limits::LimitsSender;
use crate::sys;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

/// What is done to each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    /// TERM, and CONT after it: a stopped process would not see the TERM.
    Term,
    /// KILL, which a stopped process gets too.
    Kill,
    /// What somebody sent to dlock.
    Relay(Signal),
}

/// How far a sweep looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    /// At the descendants.
    Descendants,
    /// Also at everything that carries the mark: it reads the environment of each process of the machine.
    Marked,
}

/// What a sweep met.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Processes that were signalled.
    pub hit: usize,
    /// Processes that may not be signalled, if they had not been met before.
    pub refused: Vec<Process>,
}

/// The job, seen from the process that watches it.
#[derive(Debug)]
pub(super) struct Family {
    root: i32,
    /// A child of the root that has not been reaped: known without /proc.
    pub child: Option<i32>,
    /// Processes that are not of the job though they descend from the root, or carry the mark.
    apart: Vec<i32>,
    mark: Vec<u8>,
    refused: HashSet<i32>,
    /// Where it is counted that the killing gets on.
    beat: LimitsSender,
}

/// A process as /proc/PID/stat shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pid: i32,
    parent: i32,
    /// Its process group; 0 if that has no name in our PID namespace.
    group: i32,
    /// A signal has stopped it.
    stopped: bool,
    /// Ended, with no thread left; only its status waits for the parent.
    ended: bool,
}

impl Family {
    /// The descendants of this process, and what carries the mark, but for the processes `apart`.
    pub(super) fn new(mark: &str, apart: Vec<i32>, beat: LimitsSender) -> Self {
        let root = rustix::process::getpid().as_raw_pid();
        Self { root, child: None, apart, mark: mark.into(), refused: HashSet::new(), beat }
    }

    /// Signals every process of the job that can be found, parents before children: a shell must not go on to its next
    /// line because the child it waited for is gone already.
    pub(super) fn sweep(&mut self, blow: Blow, net: Net) -> Sweep {
        if blow == Blow::Kill {
            self.beat.beat();
        }
        let entries = processes();
        let descendants = self.descendants(&entries);
        let members: HashSet<i32> = descendants.iter().map(|entry| entry.pid).chain([self.root]).collect();
        let mut sweep = Sweep::default();
        for entry in &descendants {
            let done = self.strike(*entry, &members, blow);
            self.note(entry.pid, blow, done, &mut sweep);
        }
        if net == Net::Marked {
            let strays: Vec<i32> = self.strays(&entries, &members).collect();
            for pid in strays {
                let done = pinned(pid, blow, || carries(pid, &self.mark));
                self.note(pid, blow, done, &mut sweep);
            }
        }
        sweep
    }

    /// Passes a signal on to every descendant once, parents before children, but for those that are in the process group
    /// `but`. One that is forked meanwhile may be missed: a second look could not tell it from a child that a handler of
    /// this very signal has started.
    pub(super) fn relay(&self, signal: Signal, but: Option<i32>) {
        let descendants = self.descendants(&processes());
        let members = descendants.iter().map(|entry| entry.pid).chain([self.root]).collect();
        for entry in descendants.into_iter().filter(|entry| Some(entry.group) != but) {
            // What is not ours to signal, its sender could not have signalled either.
            let _ = self.strike(entry, &members, Blow::Relay(signal));
        }
    }

    /// Signals a descendant, a child of one of the `members`.
    fn strike(&self, entry: Entry, members: &HashSet<i32>, blow: Blow) -> io::Result<()> {
        if entry.parent == self.root {
            // Only this process can reap its child, so the id stays that child's.
            return send(entry.pid, None, blow);
        }
        pinned(entry.pid, blow, || parent_of(entry.pid).is_some_and(|parent| members.contains(&parent)))
    }

    /// Whether nothing of the job can be found any more. One look may miss a process that was forked meanwhile.
    pub(super) fn is_empty(&self) -> bool {
        let entries = processes();
        let descendants = self.descendants(&entries);
        let members = descendants.iter().map(|entry| entry.pid).chain([self.root]).collect();
        descendants.is_empty() && self.strays(&entries, &members).next().is_none()
    }

    /// The living descendants, each after its parent.
    fn descendants(&self, entries: &[Entry]) -> Vec<Entry> {
        descend(self.root, &self.apart, entries)
    }

    /// What carries the mark without descending from the root.
    fn strays<'a>(
        &'a self,
        entries: &'a [Entry],
        members: &'a HashSet<i32>,
    ) -> impl Iterator<Item = i32> + 'a {
        let others = entries.iter().filter(move |entry| {
            !entry.ended && !members.contains(&entry.pid) && !self.apart.contains(&entry.pid)
        });
        others.map(|entry| entry.pid).filter(|&pid| carries(pid, &self.mark))
    }

    fn note(&mut self, pid: i32, blow: Blow, done: io::Result<()>, sweep: &mut Sweep) {
        if blow == Blow::Kill {
            self.beat.beat();
        }
        match done {
            Ok(()) => sweep.hit += 1,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                if self.refused.insert(pid) {
                    sweep.refused.push(Process { pid, name: name_of(pid) });
                }
            }
            // It has ended by itself.
            Err(_) => {}
        }
    }
}

/// Signals the process behind an id that may have been given away since it was read: pins the process first, then makes
/// sure by `is_still` that the id stands for one of the job.
fn pinned(pid: i32, blow: Blow, is_still: impl Fn() -> bool) -> io::Result<()> {
    let pin = match Pid::from_raw(pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
    {
        Ok(pin) => Some(pin),
        // Linux before 5.3, or a sandbox that does not know the call: the check alone must do.
        Err(Errno::NOSYS | Errno::PERM) => None,
        Err(error) => return Err(error.into()),
    };
    if is_still() { send(pid, pin.as_ref(), blow) } else { Err(Errno::SRCH.into()) }
}

fn send(pid: i32, pin: Option<&OwnedFd>, blow: Blow) -> io::Result<()> {
    let signal = |signal: Signal| match pin {
        Some(pin) => Ok(pidfd_send_signal(pin, signal)?),
        None => sys::kill(pid, signal.as_raw()),
    };
    match blow {
        Blow::Term => signal(Signal::TERM).and_then(|()| signal(Signal::CONT)),
        Blow::Kill => signal(Signal::KILL),
        Blow::Relay(relayed) => signal(relayed),
    }
}

/// What lives below `root`, each after its parent; nothing that is `apart`.
fn descend(root: i32, apart: &[i32], entries: &[Entry]) -> Vec<Entry> {
    let mut children: HashMap<i32, Vec<Entry>> = HashMap::new();
    for entry in entries {
        if entry.pid != root && !apart.contains(&entry.pid) {
            children.entry(entry.parent).or_default().push(*entry);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut at = 0;
    while let Some(entry) = found.get(at) {
        found.extend(children.remove(&entry.pid).unwrap_or_default());
        at += 1;
    }
    found.retain(|entry| !entry.ended);
    found
}

/// The living processes below another one, as they are at the moment.
pub(super) fn below(root: i32) -> Vec<Process> {
    let named = |entry: Entry| Process { pid: entry.pid, name: name_of(entry.pid) };
    descend(root, &[], &processes()).into_iter().map(named).collect()
}

/// The children of this process.
pub(super) fn own_children() -> Vec<i32> {
    let own = rustix::process::getpid().as_raw_pid();
    processes().into_iter().filter(|entry| entry.parent == own).map(|entry| entry.pid).collect()
}

/// Every process that /proc shows. None if /proc is not that of our PID namespace, or is not there: its numbers would
/// stand for other processes than ours.
fn processes() -> Vec<Entry> {
    let own = rustix::process::getpid().as_raw_pid();
    let seen = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    if seen != Some(own) {
        return Vec::new();
    }
    let proc = fs::read_dir("/proc").into_iter().flatten().flatten();
    proc.filter_map(|entry| read_entry(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn read_entry(pid: i32) -> Option<Entry> {
    // In proc_pid_stat(5) the name has 16 bytes, a kernel thread's 64; what is wanted follows soon after.
    let mut stat = [0u8; 512];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    parse_stat(stat.get(..length)?)
}

fn parse_stat(stat: &[u8]) -> Option<Entry> {
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.trim().parse::<i32>().ok();
    let pid = number(stat.split(|&byte| byte == b' ').next()?)?;
    // The name is in parentheses and may contain any character, these too.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let fields: Vec<&[u8]> = stat.get(after_name..)?.splitn(19, |&byte| byte == b' ').collect();
    // A first thread that has ended shows as a zombie while others of the process live on.
    let ended = matches!(*fields.first()?, b"Z" | b"X") && number(fields.get(17)?)? <= 1;
    let stopped = *fields.first()? == b"T";
    Some(Entry { pid, parent: number(fields.get(1)?)?, group: number(fields.get(2)?)?, stopped, ended })
}

/// Whether a process is stopped by a signal; if that cannot be seen, it is taken for granted.
pub(super) fn is_stopped(pid: i32) -> bool {
    read_entry(pid).is_none_or(|entry| entry.stopped)
}

fn parent_of(pid: i32) -> Option<i32> {
    read_entry(pid).map(|entry| entry.parent)
}

/// Whether a process carries the mark in the environment it was started with. Not, if we may not read it.
fn carries(pid: i32, mark: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    !mark.is_empty() && environment.windows(mark.len()).any(|part| part == mark)
}

fn name_of(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_any_name() {
        let line = |name: &str, state: &str, threads: u32| {
            format!("42 ({name}) {state} 7 40 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 99 0\n")
        };
        let read = |name, state, threads| parse_stat(line(name, state, threads).as_bytes());
        let alive = Some(Entry { pid: 42, parent: 7, group: 40, stopped: false, ended: false });
        let ended = Some(Entry { pid: 42, parent: 7, group: 40, stopped: false, ended: true });
        assert_eq!(read("sh", "S", 1), alive);
        let stopped = alive.map(|entry| Entry { stopped: true, ..entry });
        assert_eq!(read(") Z 1 (", "T", 1), stopped);
        assert_eq!(read("sh", "Z", 1), ended);
        assert_eq!(read("java", "Z", 9), alive);
        assert_eq!(parse_stat(b"42 (cut"), None);
    }

    #[test]
    fn this_process_is_found() {
        let own = rustix::process::getpid().as_raw_pid();
        assert!(processes().iter().any(|entry| entry.pid == own && !entry.ended));
    }

    fn entry(pid: i32, parent: i32) -> Entry {
        Entry { pid, parent, group: pid, stopped: false, ended: false }
    }

    #[test]
    fn parents_come_before_children_and_the_dead_lead_on() -> io::Result<()> {
        let family = Family {
            root: 10,
            child: None,
            apart: vec![13],
            mark: vec![],
            refused: HashSet::new(),
            beat: LimitsSender::new()?,
        };
        let dead = Entry { ended: true, ..entry(12, 10) };
        let entries =
            [entry(5, 12), entry(20, 13), entry(11, 10), dead, entry(13, 10), entry(3, 5), entry(9, 1)];
        let found: Vec<i32> = family.descendants(&entries).iter().map(|entry| entry.pid).collect();
        assert_eq!(found, [11, 5, 3]);
        Ok(())
    }
}

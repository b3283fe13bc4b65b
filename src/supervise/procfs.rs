//! Reads from /proc a process's parent, children and state. Decides nothing.
//!
//! Children are read from /proc/PID/task/TID/children, so the cost of a look grows with the job,
//! not with the machine. A kernel without these files (CONFIG_PROC_CHILDREN) leaves only the walk
//! through all processes.

use super::Process;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

/// How to find the children of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Each process has a list of its children.
    Lists,
    /// Each process names its parent, so all must be read.
    Walk,
    /// Not at all: there is no /proc, or it is that of another PID namespace, where the numbers
    /// mean other processes.
    Nothing,
}

/// A process below another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub pid: i32,
    pub parent: i32,
}

/// A process as /proc/PID/stat shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub pid: i32,
    pub parent: i32,
    /// Its process group; 0 if the group has no id in this PID namespace.
    pub group: i32,
    /// Its session; 0 if the session has no id in this PID namespace.
    pub session: i32,
    /// Stopped by a signal.
    pub stopped: bool,
    /// Ended, with no thread left, and not yet reaped.
    pub ended: bool,
    /// When it was started, in clock ticks since boot. It never changes.
    pub started: u64,
}

impl Source {
    /// The source that this machine has.
    pub(super) fn find() -> Self {
        let own = own_pid();
        let seen = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
        if seen != Some(own) {
            Self::Nothing
        } else if File::open(format!("/proc/self/task/{own}/children")).is_ok() {
            Self::Lists
        } else {
            Self::Walk
        }
    }

    /// The children of a process, with those that have ended and were not reaped.
    pub(super) fn children(self, pid: i32) -> Vec<i32> {
        match self {
            Self::Lists => listed_children(pid),
            Self::Walk => {
                processes().iter().filter(|entry| entry.parent == pid).map(|entry| entry.pid).collect()
            }
            Self::Nothing => Vec::new(),
        }
    }

    /// Every process.
    pub(super) fn all(self) -> Vec<Entry> {
        if self == Self::Nothing { Vec::new() } else { processes() }
    }

    /// The children of a process without those in `foreign_children`.
    pub(super) fn children_but(self, pid: i32, foreign_children: &[i32]) -> Vec<i32> {
        let mut children = self.children(pid);
        children.retain(|pid| !foreign_children.contains(pid));
        children
    }

    /// The descendants of `root`, each after its parent, without `foreign_children` and their
    /// descendants.
    pub(super) fn below(self, root: i32, foreign_children: &[i32]) -> Vec<Member> {
        match self {
            Self::Lists => descend(root, foreign_children, listed_children),
            Self::Walk => {
                let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
                for entry in processes() {
                    children.entry(entry.parent).or_default().push(entry.pid);
                }
                descend(root, foreign_children, |pid| children.remove(&pid).unwrap_or_default())
            }
            Self::Nothing => Vec::new(),
        }
    }
}

fn descend(root: i32, foreign_children: &[i32], mut children: impl FnMut(i32) -> Vec<i32>) -> Vec<Member> {
    // A process that changes its parent between two reads may be found twice.
    let mut seen: HashSet<i32> = foreign_children.iter().copied().chain([root]).collect();
    let mut found: Vec<Member> = Vec::new();
    let (mut parent, mut at) = (root, 0);
    loop {
        let fresh = children(parent).into_iter().filter(|&pid| seen.insert(pid));
        found.extend(fresh.map(|pid| Member { pid, parent }));
        let Some(next) = found.get(at) else { return found };
        (parent, at) = (next.pid, at + 1);
    }
}

fn listed_children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut read = |task: &str| {
        let list = fs::read(format!("/proc/{pid}/task/{task}/children")).unwrap_or_default();
        found.extend(list.split(|&byte| byte == b' ').filter_map(number));
    };
    let tasks = format!("/proc/{pid}/task");
    // A directory's link count is 2 and one for each subdirectory. Nearly every process has one
    // thread.
    match fs::metadata(&tasks).map(|tasks| tasks.nlink()) {
        Ok(..=3) => read(&pid.to_string()),
        Ok(_) => {
            let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
            tasks.filter_map(|task| task.file_name().into_string().ok()).for_each(|task| read(&task));
        }
        // The process has ended.
        Err(_) => {}
    }
    found
}

/// The living descendants of a process.
pub(super) fn below(root: i32) -> Vec<Process> {
    let living = |member: &Member| read_entry(member.pid).is_some_and(|entry| !entry.ended);
    let members = Source::find().below(root, &[]).into_iter().filter(living);
    members.map(|member| Process { pid: member.pid, name: name_of(member.pid) }).collect()
}

pub(super) fn own_children() -> Vec<i32> {
    Source::find().children(own_pid())
}

pub(super) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

fn processes() -> Vec<Entry> {
    pids().filter_map(read_entry).collect()
}

/// The id of every process.
fn pids() -> impl Iterator<Item = i32> {
    let proc = fs::read_dir("/proc").into_iter().flatten().flatten();
    proc.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process descends from `root`.
pub(super) fn is_below(mut pid: i32, root: i32) -> bool {
    while pid > 1 {
        match read_entry(pid) {
            Some(entry) if entry.parent == root => return true,
            Some(entry) => pid = entry.parent,
            None => return false,
        }
    }
    false
}

pub(super) fn read_entry(pid: i32) -> Option<Entry> {
    // The buffer is long enough: the name has up to 16 bytes (proc_pid_stat(5)), a kernel thread's
    // 64, and the fields needed follow soon after.
    let mut stat = [0u8; 512];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    parse_stat(stat.get(..length)?)
}

fn number(field: &[u8]) -> Option<i32> {
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

fn parse_stat(stat: &[u8]) -> Option<Entry> {
    let pid = number(stat.split(|&byte| byte == b' ').next()?)?;
    // The name is in parentheses and may contain any character, also parentheses.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let fields: Vec<&[u8]> = stat.get(after_name..)?.splitn(21, |&byte| byte == b' ').collect();
    // If the first thread has ended and others have not, the process also shows as a zombie.
    let ended = matches!(*fields.first()?, b"Z" | b"X") && number(fields.get(17)?)? <= 1;
    let stopped = *fields.first()? == b"T";
    let started = std::str::from_utf8(fields.get(19)?).ok()?.trim().parse().ok()?;
    Some(Entry {
        pid,
        parent: number(fields.get(1)?)?,
        group: number(fields.get(2)?)?,
        session: number(fields.get(3)?)?,
        stopped,
        ended,
        started,
    })
}

/// Whether a process is stopped by a signal. True if that cannot be seen.
pub(super) fn is_stopped(pid: i32) -> bool {
    read_entry(pid).is_none_or(|entry| entry.stopped)
}

/// Whether a process blocks a signal below 32 (proc(5), field 32 of stat). False if that cannot be
/// seen.
pub(super) fn blocks(pid: i32, signal: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let mask = fields.and_then(|fields| fields.split_whitespace().nth(32 - 3)?.parse::<u64>().ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

pub(super) fn name_of(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_any_name() {
        let line = |name: &str, state: &str, threads: u32| {
            format!("42 ({name}) {state} 7 40 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 99 0\n")
        };
        let read = |name, state, threads| parse_stat(line(name, state, threads).as_bytes());
        let alive = Some(Entry {
            pid: 42,
            parent: 7,
            group: 40,
            session: 41,
            stopped: false,
            ended: false,
            started: 99,
        });
        let ended = alive.map(|entry| Entry { ended: true, ..entry });
        assert_eq!(read("sh", "S", 1), alive);
        let stopped = alive.map(|entry| Entry { stopped: true, ..entry });
        assert_eq!(read(") Z 1 (", "T", 1), stopped);
        assert_eq!(read("sh", "Z", 1), ended);
        assert_eq!(read("java", "Z", 9), alive);
        assert_eq!(parse_stat(b"42 (cut"), None);
    }

    #[test]
    fn this_process_is_found() {
        assert!(processes().iter().any(|entry| entry.pid == own_pid() && !entry.ended));
    }

    #[test]
    fn parents_come_first_and_excluded_processes_are_left_out() {
        let tree = [(10, vec![11, 12, 13]), (12, vec![5]), (13, vec![20]), (5, vec![3, 11])];
        let children =
            |pid: i32| tree.iter().find(|(of, _)| *of == pid).map_or(vec![], |(_, all)| all.clone());
        let found: Vec<i32> = descend(10, &[13], children).iter().map(|member| member.pid).collect();
        assert_eq!(found, [11, 12, 5, 3]);
    }

    /// A look reads nothing of other processes on the machine.
    #[test]
    fn look_reads_one_list_per_process() {
        let mut looks = 0;
        let found = descend(own_pid(), &[], |pid| {
            looks += 1;
            listed_children(pid)
        });
        assert_eq!(looks, found.len() + 1);
    }

    /// Lists and walk find the same children, those of other threads too.
    #[test]
    fn lists_and_walk_find_the_same_children() -> std::io::Result<()> {
        if Source::find() != Source::Lists {
            println!("skipped: this kernel has no lists of children");
            return Ok(());
        }
        let start = || std::process::Command::new("sleep").arg("1000").spawn();
        let mut mine = start()?;
        let mut of_thread =
            std::thread::spawn(start).join().map_err(|_| std::io::Error::other("thread"))??;
        let (lists, walk) = (Source::Lists.children(own_pid()), Source::Walk.children(own_pid()));
        for child in [&mut mine, &mut of_thread] {
            let pid = i32::try_from(child.id()).map_err(std::io::Error::other)?;
            child.kill()?;
            child.wait()?;
            assert!(lists.contains(&pid) && walk.contains(&pid), "{pid}: {lists:?} {walk:?}");
        }
        Ok(())
    }
}

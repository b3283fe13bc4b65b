//! Is there anything that carries the job's mark and does not descend from it? A second net: a daemon that starts
//! something for the job with the job's environment, as atd does, makes such a process. To find one, the environment of
//! every process of the machine must be read. So it is looked for in small steps, and no kill waits for it.

use super::procfs::{carries, pids, read_entry};
use std::fmt;

/// The look at every process, as far as it has got.
pub(super) struct Search {
    mark: Vec<u8>,
    /// Those that are still to be looked at; none between two rounds.
    rest: Option<Box<dyn Iterator<Item = i32>>>,
    /// What the round has found so far, and what the one before did.
    found: Vec<i32>,
    known: Vec<i32>,
}

impl Search {
    /// A search for processes with `mark` in their environment; for nothing if that is empty.
    pub(super) fn new(mark: &str) -> Self {
        Self { mark: mark.into(), rest: None, found: Vec::new(), known: Vec::new() }
    }

    /// Whether there is anything to look for.
    pub(super) fn is_idle(&self) -> bool {
        self.mark.is_empty()
    }

    /// Has the next look begin a round of its own. What was found so far stays known.
    pub(super) fn begin_round(&mut self) {
        self.rest = None;
        self.known.append(&mut self.found);
    }

    /// Looks at one more process. `None` at the end of a round; the next call begins another one.
    pub(super) fn look(&mut self, root: i32, apart: &[i32]) -> Option<Looked> {
        if self.mark.is_empty() {
            return None;
        }
        let rest = self.rest.get_or_insert_with(|| Box::new(pids()));
        let Some(pid) = rest.next() else {
            self.rest = None;
            self.known = std::mem::take(&mut self.found);
            return None;
        };
        let stray = pid != root && !apart.contains(&pid) && self.is_stray(pid, root);
        if stray {
            self.found.push(pid);
        }
        Some(if stray { Looked::Stray(pid) } else { Looked::Other })
    }

    /// Whether this process is one still. An id may have been given away.
    pub(super) fn is_stray(&self, pid: i32, root: i32) -> bool {
        carries(pid, &self.mark) && read_entry(pid).is_some_and(|entry| !entry.ended) && !is_below(pid, root)
    }

    /// The strays that live of those that the last whole round found.
    pub(super) fn known(&mut self, root: i32) -> Vec<i32> {
        let mut known = std::mem::take(&mut self.known);
        known.retain(|&pid| self.is_stray(pid, root));
        self.known.clone_from(&known);
        known
    }
}

/// What the look at one process showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// It carries the mark and does not descend from the root.
    Stray(i32),
    Other,
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

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").field("known", &self.known).finish_non_exhaustive()
    }
}

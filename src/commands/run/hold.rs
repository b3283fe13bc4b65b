//! What `dlock hold` does differently from `dlock run`: a watcher watches a process that dlock did
//! not start, or stdin, events go to stdout, and signals end the hold. Taking, renewing and giving
//! back the lock are the same. The watcher is what the guard starts in place of CMD.

use super::Work;
use super::messages::Subject;
use super::parent_hold;
use super::report::how_lost;
use super::session::{Own, Session};
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::commands::fate::Fate;
use crate::commands::held::{By, Held, HoldProcess, Holds};
use crate::commands::job_env::{Changes, environment};
use crate::commands::owner;
use crate::config::run::Run;
use crate::error::Error;
use crate::lease::{Lease, Loss, Until};
use crate::lock::{Key, Mode, Owner, Wait};
use crate::output;
use crate::output::busy::listed;
use crate::output::hold::{HoldEvent, line};
use crate::output::json;
use crate::output::time::millis;
use crate::rules::{Grant, Outcome, Waiting};
use crate::supervise::{self, Bond, Limits, Pin, Received, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stdout;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How often a waiting hold checks whether its process, or the program on stdin, still runs.
const LOOK: Duration = Duration::from_millis(500);

/// What is printed on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// Nothing.
    Silent,
    /// A line for each event.
    Events,
    /// The variables of the hold, once, for the dlock that started this one in the background.
    Variables,
}

/// What a lock is held for, and what is printed about it.
pub struct Holding {
    /// The process that the lock is held for; `None`: the program on stdin.
    process: Option<Pin>,
    voice: Voice,
    words: Words,
    /// The watcher's end of `words`, until the watcher has it.
    reader: Option<OwnedFd>,
    /// What becomes stderr once the lock is held, if that of the caller does not stay.
    log: Option<Arc<File>>,
    /// The watcher has stdout.
    is_begun: bool,
    /// The position in the queue that was printed last.
    ahead: Cell<Option<u64>>,
    /// The loss was printed.
    is_lost: Cell<bool>,
    /// The pinned process, or the program on stdin, is being stopped.
    is_stopping: Cell<bool>,
}

impl Holding {
    pub fn new(process: Option<Pin>, voice: Voice, log: Option<File>) -> io::Result<Self> {
        let (words, reader) = Words::new()?;
        Ok(Self {
            process,
            voice,
            words,
            reader: Some(reader),
            log: log.map(Arc::new),
            is_begun: false,
            ahead: Cell::new(None),
            is_lost: Cell::new(false),
            is_stopping: Cell::new(false),
        })
    }

    pub(super) fn owner(&self, run: &Run) -> Owner {
        owner::held_for(self.process.as_ref().map(Pin::pid), run.label.clone(), run.reason.clone())
    }

    pub(super) fn subject(&self) -> Subject {
        match self.process {
            Some(_) => Subject {
                command: "hold",
                job: "the process it is held for",
                stopped: "is being stopped",
                orphaned: "stopped the process it was held for",
                unrun: "nothing is held",
            },
            None => Subject {
                command: "hold",
                job: "the program on stdin",
                stopped: "is told to end, by closing stdout",
                orphaned: "closed stdout",
                unrun: "nothing is held",
            },
        }
    }

    pub(super) fn bond(&mut self) -> Option<Bond> {
        Some(Bond { process: self.process.clone(), words: self.reader.take()?, stderr: self.log.clone() })
    }

    /// Whether the pinned process, or the program on stdin, has ended already.
    fn is_over(&self) -> bool {
        self.process.as_ref().map_or_else(supervise::is_stdin_hung_up, Pin::has_ended)
    }
}

/// The keys to ask for. Refuses to wait for a key that the job around this dlock holds: the hold
/// would wait for that job.
pub(super) fn keys(context: &Context, run: &Run, holds: &Holds, unrun: &str) -> Result<Vec<Key>, Error> {
    if run.wait != Wait::No && run.mode == Mode::Exclusive {
        let (rest, _) = parent_hold::find_parent_hold(context, run, Until::from_now(run.wait), holds, unrun)?;
        if rest.len() < run.keys.len() {
            let held: Vec<Key> = run.keys.iter().filter(|key| !rest.contains(key)).cloned().collect();
            return Err(Error::Usage(format!(
                "the job that runs this dlock holds {} in {}, and the hold would wait for it; the lock is not taken",
                listed(&held),
                context.settings.store
            )));
        }
    }
    Ok(run.keys.clone())
}

impl Session<'_> {
    fn hold(&self) -> Option<&Holding> {
        match &self.work {
            Work::Command => None,
            Work::Hold(hold) => Some(hold),
        }
    }

    pub(super) fn is_hold(&self) -> bool {
        self.hold().is_some()
    }

    /// When to check again whether the lock is still wanted: at this time, or for `Some(None)` only
    /// on news. `None` if it is not wanted any more, so that dlock gives up.
    pub(super) fn next_look(&self) -> Option<Option<Moment>> {
        let next = self.messages.live.borrow().next();
        let Some(hold) = self.hold() else { return Some(next) };
        let look = Moment::now().after(LOOK);
        (!hold.is_over()).then(|| Some(next.map_or(look, |next| next.min(look))))
    }

    /// Called when the lock is granted: hands stdout, and what to print there first, to the
    /// watcher.
    pub(super) fn begin_hold(&mut self, own: &Own, grant: &Grant, limits: Limits) -> io::Result<()> {
        let text = match self.hold().map(|hold| hold.voice) {
            Some(Voice::Events) => {
                let granted = HoldEvent::Granted {
                    token: own.token.secret(),
                    fence: grant.fence,
                    slot: grant.slot,
                    lease_ms: millis(self.run.ttl.get()),
                    waited_ms: millis(grant.waited),
                };
                self.line(&granted).into_bytes()
            }
            Some(Voice::Variables) => {
                let changes = self.variables(own, grant);
                serde_json::to_vec(&changes).map_err(io::Error::other)?
            }
            Some(Voice::Silent) | None => Vec::new(),
        };
        let Work::Hold(hold) = &mut self.work else { return Ok(()) };
        if !text.is_empty() && !hold.words.say(&text) {
            return Err(io::Error::other("it could not be handed to its watcher"));
        }
        if hold.voice == Voice::Variables {
            hold.words.end();
        }
        self.guard.start(&[], limits)?;
        hold.is_begun = true;
        if hold.voice == Voice::Variables {
            supervise::outlive_caller()?;
        }
        if let Some(file) = &hold.log {
            rustix::stdio::dup2_stderr(file)?;
        }
        // Leave stdout to the watcher, so that it closes when the watcher ends.
        supervise::leave_standard_streams()
    }

    fn variables(&self, own: &Own, grant: &Grant) -> Changes {
        let settings = &self.context.settings;
        let held = Held::new(settings, own.keys.clone(), own.token.clone(), grant.fence, By::Hold);
        let held = Held { process: HoldProcess::own(), ttl_ms: Some(millis(self.run.ttl.get())), ..held };
        environment(settings, &self.run.keys, &held, grant.slot, Some(own.holds.clone()))
    }

    fn line(&self, event: &HoldEvent<'_>) -> String {
        line(event, &self.run.keys, &self.context.settings.store.to_string()).unwrap_or_default()
    }

    /// With --json, prints the event on stdout. Never waits for the reader.
    pub(super) fn tell(&self, event: &HoldEvent<'_>) {
        let Some(hold) = self.hold().filter(|hold| hold.voice == Voice::Events) else { return };
        let text = self.line(event);
        if hold.is_begun {
            let _ = hold.words.say(text.as_bytes());
        } else if can_print() {
            let _ = output::deliver(&text);
        }
    }

    pub(super) fn tell_of_waiting(&self, waiting: &Waiting) {
        if let Some(hold) = self.hold()
            && hold.ahead.replace(Some(waiting.ahead)) != Some(waiting.ahead)
        {
            let holder = waiting.blocker.holder.as_ref().map(|holder| json::actor(&holder.owner));
            self.tell(&HoldEvent::Waiting { ahead: waiting.ahead, holder });
        }
    }

    pub(super) fn tell_of_loss(&self, how: Loss, kill_by: Moment) {
        let Some(hold) = self.hold() else { return };
        if !hold.is_lost.replace(true) {
            let how = how_lost(how);
            self.tell(&HoldEvent::Lost { how, left_ms: millis(kill_by.left()) });
        }
    }

    /// Called when the pinned process, or the program on stdin, is being stopped.
    pub(super) fn tell_of_stop(&self, reason: supervise::StopReason) {
        let Some(hold) = self.hold() else { return };
        hold.is_stopping.set(true);
        if reason == supervise::StopReason::LeaseRanOut {
            self.tell_of_loss(Loss::Deadline, self.guard.limits().get().kill_at);
        }
        if hold.process.is_none() {
            hold.words.end();
        }
    }

    /// Handles a signal. INT, TERM and HUP give the lock back, unless a stop is under way. In the
    /// background they are ignored: they were meant for the whole group or control group, and the
    /// process that the lock is for may still clean up. `dlock release` sends [`supervise::OVER`].
    pub(super) fn end_hold_on(&mut self, received: Received) {
        let Some(hold) = self.hold() else { return };
        let ends = match hold.voice {
            Voice::Variables => received.signal == supervise::OVER,
            Voice::Silent | Voice::Events => self.ends(received.signal) && received.signal != libc::SIGQUIT,
        };
        let is_stopping = hold.is_stopping.get();
        if ends && !is_stopping && !supervise::is_guard(received.from) {
            self.guard.relay(supervise::OVER, supervise::Reached::Nobody);
        }
    }

    /// Whether the lock of a hold was given back with its token. Asks the store, and sets the
    /// report's `fate`.
    pub(super) fn was_released(&mut self, lease: Option<&Lease>) -> bool {
        if !self.is_hold() {
            return false;
        }
        self.report.fate = self.fate(lease);
        matches!(&self.report.fate, Fate::Ended(end) if end.outcome == Outcome::Released)
    }

    /// Prints that the lock was given back, if the watcher handed stdout back.
    pub(super) fn tell_of_release(&self) {
        let Some(hold) = self.hold().filter(|hold| hold.voice == Voice::Events) else { return };
        if let Some(stdout) = hold.words.take_back()
            && rustix::stdio::dup2_stdout(stdout).is_ok()
            && can_print()
        {
            let _ = output::deliver(&self.line(&HoldEvent::Released));
        }
    }
}

fn can_print() -> bool {
    let mut fds = [PollFd::from_borrowed_fd(stdout(), PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

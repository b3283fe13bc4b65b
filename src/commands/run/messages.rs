//! The messages of `run`, `hold` and `acquire` from the request on. Each names the key and the
//! store, says what happened to the command, and what comes next. `loss` has the messages about a
//! lease that cannot be renewed, and a job that is stopped.

use crate::clock::Moment;
use crate::commands::context::Context;
use crate::commands::held::OwnHold;
use crate::commands::owner;
use crate::commands::run::report::RunReport;
use crate::error::Error;
use crate::exit::{Ended, Exit, OnLost};
use crate::lock::{Key, Mode, Period};
use crate::output::busy::{self, LockRequest, Tried};
use crate::output::live::Line;
use crate::output::time::{self, millis, span};
use crate::output::{Event, Kind, What, missed};
use crate::rules::{Blocker, Done, Grant, Left, Proof, Ran, Refusal, Superseded, Waiting};
use crate::shell::{cited, word};
use crate::store;
use crate::supervise::{NotStarted, Process};
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::time::Duration;

mod loss;

pub struct Messages<'a> {
    context: &'a Context,
    request: LockRequest,
    under: Under,
    pub live: RefCell<Line>,
    /// What messages call the job now: the job, or its rest.
    job: Cell<&'static str>,
    pub of: Subject,
    since: Moment,
    /// Why the lease cannot be renewed now.
    trouble: RefCell<Option<String>>,
    /// How the lock was lost, if `--quiet` suppressed the message.
    unsaid: RefCell<Option<String>>,
    /// The message about a hold around this process was printed.
    has_said_around: Cell<bool>,
}

/// What the lock is for, as messages name it.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// The subcommand.
    pub command: &'static str,
    pub job: &'static str,
    /// What dlock does to the job when the lock is lost.
    pub stopped: &'static str,
    /// What the guard did when dlock was killed.
    pub orphaned: &'static str,
    /// What did not happen because the lock was not obtained.
    pub unrun: &'static str,
}

impl Subject {
    pub const COMMAND: Self = Self {
        command: "run",
        job: "the command",
        stopped: "is being stopped",
        orphaned: "stopped the command",
        unrun: "the command did not run",
    };

    /// How the job ended, as it is recorded. Of a hold only its watcher's status is known, which
    /// says nothing about what ran under the lock.
    pub fn recorded(self, status: Option<Ended>) -> Option<Ended> {
        status.filter(|_| !self.is_hold())
    }

    pub fn is_hold(self) -> bool {
        self.command != Self::COMMAND.command
    }
}

/// Which hold the command runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// Its own.
    Own,
    /// A hold of the parent job, which the parent dlock renews and gives back.
    Parent,
}

impl<'a> Messages<'a> {
    /// For a run that asks for these keys.
    pub fn new(context: &'a Context, keys: &[Key], mode: Mode, under: Under, of: Subject) -> Self {
        let since = Moment::now();
        let request = LockRequest { keys: keys.to_vec(), store: context.settings.store.to_string(), mode };
        let live = RefCell::new(Line::new(&context.printer, since));
        let job = Cell::new(of.job);
        let (trouble, unsaid) = (RefCell::default(), RefCell::default());
        let has_said_around = Cell::default();
        Self { context, request, under, live, job, of, since, trouble, unsaid, has_said_around }
    }

    fn say<'b>(&self, kind: Kind, event: impl Into<Event<'b>>, text: &str) {
        self.live.borrow_mut().say(kind, event, text);
    }

    fn keys(&self) -> String {
        busy::listed(&self.request.keys)
    }

    pub fn place(&self) -> String {
        format!("{} in {}", self.keys(), self.request.store)
    }

    /// The hold, named as one thing even if it has several keys.
    fn lock(&self) -> String {
        let of = if self.request.keys.len() > 1 { "the hold of " } else { "" };
        format!("{of}{}", self.place())
    }

    /// The part of a message that says the lock is given back.
    fn given_back(&self) -> String {
        match self.under {
            Under::Own => format!("{} is given back, ", self.lock()),
            Under::Parent => String::new(),
        }
    }

    /// Called with each answer of the store while dlock waits. Prints the line about waiting when
    /// it is time.
    pub fn waiting(&self, waiting: Waiting) {
        if let Some(holder) = &waiting.blocker.holder
            && owner::is_around(Some(holder))
            && !self.has_said_around.replace(true)
        {
            let text = format!(
                "{} is held for process {}, which this one descends from: if that process waits for this one, neither \
                 goes on; a dlock inside needs the variables that 'dlock hold --export' prints",
                self.request.at(waiting.blocker.at),
                holder.owner.pid
            );
            let key = self.request.key_of(waiting.blocker.at).as_str();
            self.say(Kind::Warning, Event::from(What::Waiting).about(key).held_by(Some(holder)), &text);
        }
        self.live.borrow_mut().waits(busy::line(self.request.clone(), waiting, self.since));
    }

    /// The command runs under a hold of the parent job.
    pub fn inside(&self, parent: &OwnHold) {
        let Proof { mode, slot, fence, .. } = parent.proof;
        let (place, slot) = (self.place(), slot.map(|slot| format!(", slot {slot}")).unwrap_or_default());
        let text = format!(
            "the surrounding job holds {place} ({mode}{slot}, fence {fence}); the command runs under that hold"
        );
        self.say(Kind::Detail, What::Granted, &text);
    }

    pub fn granted(&self, grant: Grant) {
        self.live.borrow_mut().clear();
        let kind = if self.live.borrow().has_announced() { Kind::Note } else { Kind::Detail };
        if self.context.printer.says(kind) {
            let mode = match (self.request.mode, grant.slot) {
                (Mode::Exclusive, _) => String::new(),
                (mode, None) => format!(" ({mode})"),
                (mode, Some(slot)) => format!(" (slot {slot} of {mode})"),
            };
            // The store counts from the first request that it received.
            let waited = if kind == Kind::Note { Moment::now().since(self.since) } else { grant.waited };
            let (lock, waited) = (self.lock(), span(waited));
            let text = format!("got {lock}{mode} after {waited}, fence {}", grant.fence);
            self.say(kind, What::Granted, &text);
        }
    }

    /// The lock was not obtained. `so` says what that means for the command, if there is one.
    pub fn busy(&self, blocker: &Blocker, tried: Tried, so: &str, status: u8) {
        let is_inside = tried == Tried::Once && owner::is_around(blocker.holder.as_ref());
        let tried = if is_inside { Tried::Inside } else { tried };
        self.say(
            Kind::Note,
            self.busy_event(blocker, status),
            &busy::busy(&self.request, blocker, tried, so),
        );
    }

    fn busy_event<'b>(&'b self, blocker: &'b Blocker, status: u8) -> Event<'b> {
        let key = self.request.key_of(blocker.at).as_str();
        let event = Event::from(What::Busy).about(key).held_by(blocker.holder.as_ref());
        let by = blocker.paused.as_ref().map(|pause| &pause.by).or(blocker.before.as_ref());
        let ahead = blocker.queue_full.map(|waiters| waiters as u64);
        Event { ahead, ..event.by(by).ends(Exit::Busy(status)) }
    }

    /// This run did not happen, and announces it for all machines.
    pub fn missed_busy(&self, blocker: &Blocker, refusal: &Refusal, status: u8) {
        let event = self.busy_event(blocker, status);
        let event = Event { missed: missed::Fields::busy(refusal, blocker), ..event };
        self.say(Kind::Warning, event, &missed::busy(&self.request, blocker, refusal));
    }

    /// This scheduled run was skipped, and announces it for all machines.
    pub fn missed_done(&self, done: &Done, refusal: &Refusal, once_per: Option<Period>) {
        let Some((notice, period)) = refusal.notice.as_ref().zip(once_per) else { return };
        let event = Event { missed: Some(missed::Fields::done(notice, done)), ..self.done_event(done) };
        self.say(Kind::Warning, event, &missed::done(&self.request, done, notice, period));
    }

    /// Another run has done the work.
    pub fn done(&self, done: &Done) {
        self.say(Kind::Note, self.done_event(done), &busy::done(&self.request, done));
    }

    fn done_event<'b>(&'b self, done: &'b Done) -> Event<'b> {
        let key = self.request.key_of(done.at).as_str();
        Event::from(What::Done).about(key).by(Some(&done.success.owner)).ends(Exit::Ok)
    }

    /// What the lock was to be held for has ended.
    pub fn unwanted(&self, status: u8) {
        let (place, unrun) = (self.place(), self.of.unrun);
        let text = format!("{place}: the process or program that the lock is for has ended; {unrun}");
        self.say(Kind::Note, Event::from(What::Ended).ends(Exit::Busy(status)), &text);
    }

    /// A newer run replaced this one.
    pub fn superseded(&self, superseded: &Superseded, status: u8) {
        let by = Some(&superseded.by).filter(|by| !by.host.is_empty());
        let event = Event::from(What::Superseded).about(self.request.key_of(superseded.at).as_str()).by(by);
        self.say(Kind::Note, event.ends(Exit::Busy(status)), &busy::superseded(&self.request, superseded));
    }

    /// The store failed before the lock was granted.
    pub fn failed(&self, error: store::Error) -> Error {
        let keys = self.keys();
        let error = self.context.with_origin(error);
        Error::Store(error.map(|text| format!("{keys}: {text}; {}", self.of.unrun)))
    }

    /// The store grants the lock, but too late.
    pub fn too_slow(&self, ttl: Duration) -> Error {
        let (store, ttl) = (&self.request.store, span(ttl));
        let text = format!("{store} answers too slowly for a lease of {ttl}: give a longer --ttl");
        self.failed(store::Error::Unavailable(text))
    }

    /// An operator took the lock away between grant and start.
    pub fn taken_away(&self) {
        let (lock, unrun) = (self.lock(), self.of.unrun);
        let text = format!("an operator took {lock} away just when it was granted; {unrun}");
        self.say(Kind::Warning, Event::of_failure(Exit::Lost), &text);
    }

    /// The store is unreachable before dlock is in the queue.
    pub fn trouble_before_queue(&self, error: &Error) {
        let text = format!("{error}; still waiting, trying again");
        self.live.borrow_mut().announce(What::Trouble, &text);
    }

    /// The store is unreachable while dlock is in the queue, or asks to join it.
    pub fn trouble_in_queue(&self, error: &store::Error) {
        let origin = self.context.settings.store.origin();
        let keys = self.keys();
        let text = format!("{error} ({origin}); still waiting for {keys}, trying again");
        self.live.borrow_mut().announce(What::Trouble, &text);
    }

    pub fn recovered(&self) {
        self.trouble.take();
        self.unsaid.take();
        let text = format!("{} answers again", self.request.store);
        self.say(Kind::Note, What::Recovered, &text);
    }

    pub fn not_started(&self, argv: &[OsString], why: NotStarted, exit: Exit) {
        let command = argv.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let (given_back, unrun) = (self.given_back(), self.of.unrun);
        let text = match why {
            NotStarted::Errno(libc::ENOENT) if command.contains('/') => format!(
                "cannot execute '{command}': it, or the interpreter that its first line names, does not exist{}; \
                 {given_back}{unrun}",
                hint_at_shell(&command)
            ),
            NotStarted::Errno(libc::ENOENT) => {
                let hint = hint_at_shell(&command);
                format!("command not found: '{command}'{hint}; {given_back}{unrun}")
            }
            NotStarted::Errno(errno) => {
                let why = std::io::Error::from_raw_os_error(errno);
                format!("cannot execute '{command}': {why}; {given_back}{unrun}")
            }
            NotStarted::TooLate => {
                format!("{} was granted, but too late to rely on it; {unrun}", self.lock())
            }
        };
        self.say(Kind::Error, Event::from(What::NotStarted).ends(exit), &text);
    }

    /// CMD has ended. From now on messages are about the rest of the job, which is returned.
    pub fn command_ended(&self, status: Ended, mut rest: Vec<Process>) -> String {
        const NAMED: usize = 5;
        self.job.set("the rest of the job");
        let how = match status {
            Ended::Code(code) => format!("has ended with status {code}"),
            Ended::Signal(signal) => format!("died of signal {signal}"),
        };
        let more = rest.len().saturating_sub(NAMED);
        rest.truncate(NAMED);
        let (lock, rest) = (self.lock(), named(&rest, more));
        let text =
            format!("the command {how}; {lock} is kept until the rest of the job has ended (--tree): {rest}");
        self.say(Kind::Detail, What::Ended, &text);
        rest
    }

    /// The process of a hold has ended. From now on messages are about what it left behind, which is
    /// returned.
    pub fn process_ended(&self, rest: &[Process], more: usize) -> String {
        self.job.set("what the process has started");
        let (lock, rest) = (self.lock(), named(rest, more));
        let text = format!(
            "the process it is held for has ended; {lock} is kept until what it has started has ended (--tree): {rest}; 'dlock release' stops it"
        );
        self.say(Kind::Note, What::Ended, &text);
        rest
    }

    /// A process of the job cannot be stopped: dlock has no right to signal it.
    pub fn refused(&self, Process { pid, name }: &Process) {
        let then = match self.under {
            Under::Own => {
                "; the lock is kept until it ends, but if the lease runs out first, another job may run beside it"
            }
            Under::Parent => "",
        };
        let text = format!(
            "process {pid} ({name}) of {} under {} cannot be stopped: it runs as another user (start dlock itself \
             with sudo: 'sudo dlock {} …'){then}",
            self.of.job,
            self.lock(),
            self.of.command
        );
        self.say(Kind::Warning, What::Unstoppable, &text);
    }

    /// The guard died before the start.
    pub fn guard_died_before_start(&self) -> String {
        format!("the guard process was killed while waiting for {}; {}", self.lock(), self.of.unrun)
    }

    /// CMD was suspended, and dlock is about to suspend itself.
    pub fn suspended(&self, left: Duration, on_lost: OnLost) {
        if self.under == Under::Parent {
            // The parent dlock, which knows how long the lease lasts, is suspended too, and prints
            // it.
            return;
        }
        let then = match on_lost {
            OnLost::Stop => {
                format!("continue dlock before that (fg, bg), or {} is killed then", self.job.get())
            }
            OnLost::Warn => "after that another may take the lock".into(),
        };
        let stays = if self.request.keys.len() > 1 { "stay" } else { "stays" };
        let text = format!("stopped; {} {stays} locked for {}: {then}", self.keys(), span(left));
        self.say(Kind::Note, What::Suspended, &text);
    }

    pub fn left(&self, left: Left) {
        let lock = self.lock();
        let text = match left {
            Left::Released { cooling } if cooling.is_zero() => format!("gave {lock} back"),
            Left::Released { cooling } => {
                format!("gave {lock} back; --min-hold keeps it for {}", span(cooling))
            }
            Left::Already | Left::Dequeued | Left::NotHeld => {
                let were = if self.request.keys.len() > 1 { "were" } else { "was" };
                format!("nothing to give back: {} {were} not held any more", self.place())
            }
        };
        self.say(Kind::Detail, What::Released, &text);
    }

    /// The run has succeeded, and others are skipped because of it.
    pub fn counts(&self, once_per: Option<Period>, report: &RunReport) {
        let (Some(period), Some(asked), Some((granted, _))) = (once_per, report.asked, report.granted) else {
            return;
        };
        let (now, moment) = (time::now(), Moment::now());
        let until = asked.after(period.counts()).max(granted);
        let until =
            now.saturating_add(millis(until.since(moment))).saturating_sub(millis(moment.since(until)));
        let key = word(self.request.keys[0].as_str());
        let (place, forget) = (self.place(), cited(&format!("dlock forget {key}")));
        let (until, why) = (time::local(until, now), time::once_per(period.counts()));
        let text = format!("{place}: this run counts until {until} ({why}); {forget} makes it due again");
        self.say(Kind::Done, What::Released, &text);
    }

    /// The store did not answer the release. After a loss that is expected and not printed. With
    /// `pauses`, the end of the lease pauses the lock.
    pub fn not_given_back(&self, why: &str, exit: Exit, ran: Ran, pauses: Option<Duration>) {
        if exit != Exit::Lost {
            let command = match ran {
                Ran::Yes | Ran::Cut(_) => format!("{} has ended", self.of.job),
                Ran::No => self.of.unrun.to_owned(),
            };
            let then = |lasts| format!(", which would count as a failure and pause it for {}", span(lasts));
            let then = pauses.map(then).unwrap_or_default();
            let text = format!(
                "{command}, but {} could not be given back ({why}); the guard goes on trying for a while, and the lock is free when its lease ends at the latest{then}",
                self.lock()
            );
            self.say(Kind::Warning, Event::from(What::Unreleased).ends(exit), &text);
        }
    }

    /// Printed by the guard of a nested run: dlock is gone, and its job was stopped.
    pub fn orphaned_inside(&self) {
        let text = format!(
            "dlock was killed, so its guard stopped the command; the surrounding job still holds {}",
            self.place()
        );
        self.context.printer.say(Kind::Error, What::Crashed, &text);
    }

    /// Printed by the guard: dlock is gone, and its job was stopped.
    pub fn orphaned(&self, given_back: Result<Left, store::Error>) {
        let lock = self.lock();
        let stopped = format!("dlock was killed, so its guard {}", self.of.orphaned);
        let text = match given_back {
            Ok(Left::NotHeld) => format!(
                "{stopped}, but the lease of {lock} had run out before: another job may have run beside it"
            ),
            Ok(_) => format!("{stopped} and gave {lock} back"),
            Err(error) => {
                format!("{stopped}; {lock} could not be given back ({error}) and is free when its lease ends")
            }
        };
        self.context.printer.say(Kind::Error, What::Crashed, &text);
    }
}

/// Processes, by number and name, and how many more there are.
fn named(processes: &[Process], more: usize) -> String {
    let mut named: Vec<String> =
        processes.iter().map(|process| format!("{} ({})", process.pid, process.name)).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

/// A hint if the command cannot be executed but looks like a line for a shell.
fn hint_at_shell(command: &str) -> &'static str {
    const BUILTINS: [&str; 13] = [
        ".", "cd", "eval", "exec", "exit", "export", "for", "if", "set", "source", "ulimit", "umask", "while",
    ];
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let assigns = command.split_once('=').is_some_and(|(name, _)| is_name(name));
    let is_line = command.contains(|c: char| c.is_whitespace() || "|&;<>()$`{".contains(c));
    if assigns || is_line || BUILTINS.contains(&command) {
        " (for a shell command line use -c: dlock run -k KEY -c 'LINE')"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::hint_at_shell;

    #[test]
    fn shell_syntax_gets_a_hint() {
        for command in ["echo hi", "FOO=1", "cd", "a|b", "ls;", "$CMD", "/bin/ls -l"] {
            assert!(hint_at_shell(command).contains("-c 'LINE'"), "{command}");
        }
        for command in ["echo", "./a=b", "=", "/usr/bin/env", "backup.sh"] {
            assert_eq!(hint_at_shell(command), "", "{command}");
        }
    }
}

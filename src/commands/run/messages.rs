//! What does a run say? Every message of `dlock run` after its settings are read, to be understood by the person who is
//! woken by it: which key, which store, what happened to the command, what comes next.

use super::enclosing::Enclosing;
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::commands::fate::{Fate, person};
use crate::config::run::Run;
use crate::error::Error;
use crate::exit::{Ended, Exit, OnLost};
use crate::lease::{Asker, Loss};
use crate::lock::{Key, Mode, Wait};
use crate::output::busy::{self, Asked, Tried};
use crate::output::live::Line;
use crate::output::time::span;
use crate::output::{Event, Kind, What};
use crate::rules::{Blocker, Done, Grant, Left, Outcome, Proof, Ran, Superseded, Waiting};
use crate::shell::word;
use crate::store;
use crate::supervise::{NotStarted, Process, StopReason};
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::time::Duration;

pub struct Messages<'a> {
    context: &'a Context,
    asked: Asked,
    right: Right,
    live: RefCell<Line>,
    /// What runs under the lock.
    job: Cell<&'static str>,
    of: Subject,
    since: Moment,
    /// Why the lease cannot be renewed now.
    trouble: RefCell<Option<String>>,
    /// How the lock was lost, where `--quiet` kept that from being said.
    unsaid: RefCell<Option<String>>,
}

/// What the lock is for, as messages name it.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// The subcommand.
    pub command: &'static str,
    pub job: &'static str,
    /// What happens to it when it must not go on.
    pub stopped: &'static str,
    /// What the guard did when dlock was killed.
    pub orphaned: &'static str,
    /// What did not happen where the lock was not obtained.
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
}

/// By what right the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// A hold of its own.
    Own,
    /// A hold of the job around, which is kept and given back out there.
    OfEnclosing,
}

impl<'a> Messages<'a> {
    /// Of a run that asks for these keys.
    pub fn new(context: &'a Context, keys: &[Key], mode: Mode, right: Right, of: Subject) -> Self {
        let since = Moment::now();
        let asked = Asked { keys: keys.to_vec(), store: context.settings.store.to_string(), mode };
        let live = RefCell::new(Line::new(&context.printer, since));
        let job = Cell::new(of.job);
        let (trouble, unsaid) = (RefCell::default(), RefCell::default());
        Self { context, asked, right, live, job, of, since, trouble, unsaid }
    }

    fn say<'b>(&self, kind: Kind, event: impl Into<Event<'b>>, text: &str) {
        self.live.borrow_mut().say(kind, event, text);
    }

    fn keys(&self) -> String {
        busy::listed(&self.asked.keys)
    }

    fn place(&self) -> String {
        format!("{} in {}", self.keys(), self.asked.store)
    }

    /// What is held, as one thing also where it has several keys.
    fn lock(&self) -> String {
        let of = if self.asked.keys.len() > 1 { "the hold of " } else { "" };
        format!("{of}{}", self.place())
    }

    /// What a command that did not run means for the lock.
    fn given_back(&self) -> String {
        match self.right {
            Right::Own => format!("{} is given back, ", self.lock()),
            Right::OfEnclosing => String::new(),
        }
    }

    /// When the line about waiting wants to be said again; never before there is a queue.
    pub fn next(&self) -> Option<Moment> {
        self.live.borrow().next()
    }

    /// Takes the line about waiting off the terminal.
    pub fn clear(&self) {
        self.live.borrow_mut().clear();
    }

    /// In the queue; says so when it is time.
    pub fn waiting(&self, waiting: Waiting) {
        self.live.borrow_mut().waits(busy::line(self.asked.clone(), waiting, self.since));
    }

    /// Nothing new was heard; says what goes on when it is time.
    pub fn still_waiting(&self) {
        self.live.borrow_mut().go_on();
    }

    pub fn resized(&self) {
        self.live.borrow_mut().resized();
    }

    /// Runs under a hold of the job around.
    pub fn inside(&self, enclosing: &Enclosing) {
        let Proof { mode, slot, fence, .. } = enclosing.proof;
        let (place, slot) = (self.place(), slot.map(|slot| format!(", slot {slot}")).unwrap_or_default());
        let text = format!("the job around holds {place} ({mode}{slot}, fence {fence}): running under that");
        self.say(Kind::Detail, What::Granted, &text);
    }

    pub fn granted(&self, grant: Grant) {
        self.clear();
        let kind = if self.live.borrow().has_announced() { Kind::Note } else { Kind::Detail };
        if self.context.printer.says(kind) {
            let mode = match (self.asked.mode, grant.slot) {
                (Mode::Exclusive, _) => String::new(),
                (mode, None) => format!(" ({mode})"),
                (mode, Some(slot)) => format!(" (slot {slot} of {mode})"),
            };
            // The store counts from when it first heard of us.
            let waited = if kind == Kind::Note { Moment::now().since(self.since) } else { grant.waited };
            let (lock, waited) = (self.lock(), span(waited));
            let text = format!("got {lock}{mode} after {waited}, fence {}", grant.fence);
            self.say(kind, What::Granted, &text);
        }
    }

    pub fn busy(&self, blocker: &Blocker, wait: Wait, status: u8) {
        let tried = match wait {
            Wait::For(bound) => Tried::Waited(bound),
            Wait::No | Wait::Forever => Tried::Once,
        };
        let key = self.asked.key_of(blocker.at).as_str();
        let event = Event::from(What::Busy).about(key).held_by(blocker.holder.as_ref());
        let text = busy::busy(&self.asked, blocker, tried, &format!("; {}", self.of.unrun));
        self.say(
            Kind::Note,
            event.by(blocker.paused.as_ref().map(|pause| &pause.by)).ends(Exit::Busy(status)),
            &text,
        );
    }

    /// Somebody else did it.
    pub fn done(&self, done: &Done) {
        let key = self.asked.key_of(done.at).as_str();
        let event = Event::from(What::Done).about(key).by(Some(&done.success.owner));
        self.say(Kind::Note, event.ends(Exit::Ok), &busy::done(&self.asked, done));
    }

    /// What it was to be held for has ended before that.
    pub fn unwanted(&self, status: u8) {
        let text = format!("{}: what it was to be held for has ended; {}", self.place(), self.of.unrun);
        self.say(Kind::Note, Event::from(What::Ended).ends(Exit::Busy(status)), &text);
    }

    /// One that came later does it.
    pub fn superseded(&self, superseded: &Superseded, status: u8) {
        let by = Some(&superseded.by).filter(|by| !by.host.is_empty());
        let event = Event::from(What::Superseded).about(self.asked.key_of(superseded.at).as_str()).by(by);
        self.say(Kind::Note, event.ends(Exit::Busy(status)), &busy::superseded(&self.asked, superseded));
    }

    /// The store failed before the lock was ours.
    pub fn failed(&self, error: store::Error) -> Error {
        let keys = self.keys();
        let error = self.context.with_origin(error);
        Error::Store(error.map(|text| format!("{keys}: {text}; {}", self.of.unrun)))
    }

    /// The store grants, and too late.
    pub fn too_slow(&self, ttl: Duration) -> Error {
        let text = format!("{} answers too slowly for a lease of {} (--ttl)", self.asked.store, span(ttl));
        self.failed(store::Error::Unavailable(text))
    }

    /// Taken away between grant and start.
    pub fn taken_away(&self) {
        let lock = self.lock();
        self.say(
            Kind::Warning,
            Event::of_failure(Exit::Lost),
            &format!("an operator took {lock} away just when it was granted; {}", self.of.unrun),
        );
    }

    /// The store is gone while we wait.
    pub fn trouble_in_queue(&self, error: &store::Error) {
        let origin = self.context.settings.store.origin();
        let keys = self.keys();
        let text = format!("{error} ({origin}); still waiting for {keys}, trying again");
        self.live.borrow_mut().announce(What::Trouble, &text);
    }

    pub fn recovered(&self) {
        self.trouble.take();
        self.unsaid.take();
        let text = format!("{} answers again", self.asked.store);
        self.say(Kind::Note, What::Recovered, &text);
    }

    pub fn not_started(&self, argv: &[OsString], why: NotStarted, exit: Exit) {
        let command = argv.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let given_back = self.given_back();
        let text = match why {
            NotStarted::Errno(libc::ENOENT) if command.contains('/') => format!(
                "cannot execute '{command}': it, or the interpreter that its first line names, does not exist{}; \
                 {given_back}the command did not run",
                hint_at_shell(&command)
            ),
            NotStarted::Errno(libc::ENOENT) => {
                let hint = hint_at_shell(&command);
                format!("command not found: '{command}'{hint}; {given_back}the command did not run")
            }
            NotStarted::Errno(errno) => format!(
                "cannot execute '{command}': {}; {given_back}the command did not run",
                std::io::Error::from_raw_os_error(errno)
            ),
            NotStarted::TooLate => {
                format!("{} was granted, but too late to rely on it; {}", self.lock(), self.of.unrun)
            }
        };
        self.say(Kind::Error, Event::from(What::NotStarted).ends(exit), &text);
    }

    /// CMD has ended, and from now on it is the rest of the job that is spoken of.
    pub fn command_ended(&self, status: Ended, rest: impl FnOnce() -> Vec<Process>) {
        const NAMED: usize = 5;
        self.job.set("the rest of the job");
        if !self.context.printer.says(Kind::Detail) {
            return;
        }
        let how = match status {
            Ended::Code(code) => format!("has ended with status {code}"),
            Ended::Signal(signal) => format!("died of signal {signal}"),
        };
        let rest = rest();
        let mut named: Vec<String> =
            rest.iter().take(NAMED).map(|process| format!("{} ({})", process.pid, process.name)).collect();
        if rest.len() > NAMED {
            named.push(format!("{} more", rest.len() - NAMED));
        }
        let named = named.join(", ");
        let text = format!(
            "the command {how}; {} is kept until the rest of the job has ended (--tree): {named}",
            self.lock()
        );
        self.say(Kind::Detail, What::Ended, &text);
    }

    pub fn trouble(&self, error: &store::Error, left: Duration, on_lost: OnLost) {
        let job = self.job.get();
        let then = match on_lost {
            OnLost::Stop => format!("then {job} is stopped"),
            OnLost::Warn => format!("{job} runs on after that, without the lock"),
        };
        let why = format!("{error}, {}", self.context.settings.store.origin());
        let text = format!("cannot renew {} ({why}); trying again for {}, {then}", self.keys(), span(left));
        self.say(Kind::Passing, What::Trouble, &text);
        self.trouble.replace(Some(why));
    }

    /// Why the lease could not be renewed, if that is known. The trouble may not have been said before.
    fn because_of_trouble(&self) -> String {
        self.trouble.borrow().as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    }

    pub fn lost(&self, how: Loss, fate: &Fate, on_lost: OnLost) {
        if how == Loss::Deadline && on_lost == OnLost::Stop {
            // The guard, which stops the command for it, has said so.
            return;
        }
        let lock = self.lock();
        let happened = match how {
            Loss::NotHeld => match (fate, fate.clause()) {
                (Fate::Ended(end), _) if end.outcome == Outcome::Forced => {
                    format!("{} took {lock} away", person(fate.by()))
                }
                (_, Some(clause)) => format!("{lock} is lost: {clause}"),
                (_, None) => {
                    let keys: Vec<_> = self.asked.keys.iter().map(|key| word(key.as_str())).collect();
                    format!(
                        "{lock} is lost: it is not ours any more ('dlock status {}' shows whose)",
                        keys.join(" ")
                    )
                }
            },
            Loss::Revoked => format!("{} took {lock} away", person(fate.by())),
            Loss::Asked(asker) => format!("{} {lock} back", asked(asker, fate)),
            Loss::Deadline => {
                format!("{lock} is lost: it could not be renewed in time{}", self.because_of_trouble())
            }
        };
        let job = self.job.get();
        let (kind, then) = match on_lost {
            OnLost::Stop => (Kind::Warning, format!("{job} {}", self.of.stopped)),
            OnLost::Warn => (Kind::Note, format!("{job} runs on without it (--on-lost warn)")),
        };
        if !self.context.printer.says(kind) {
            self.unsaid.replace(Some(happened.clone()));
        }
        let what = if let Loss::Asked(asker) = how { asking(asker) } else { What::Lost };
        self.say(kind, Event::from(what).by(fate.by()).ends(Exit::Lost), &format!("{happened}; {then}"));
    }

    /// The run ends with the status of a lost lock. That is said at the latest now.
    pub fn ends_lost(&self) {
        if let Some(happened) = self.unsaid.take() {
            self.say(
                Kind::Warning,
                Event::of_failure(Exit::Lost),
                &format!("{happened}; {} has ended without it (--on-lost warn)", self.job.get()),
            );
        }
    }

    /// The job is being stopped. That the lock is lost has been said.
    pub fn stopping(&self, reason: StopReason, asker: Asker, fate: &Fate, run: &Run) {
        let (lock, job, stopped) = (self.lock(), self.job.get(), self.of.stopped);
        let (event, text) = match reason {
            StopReason::LeaseRanOut => {
                let why = self.because_of_trouble();
                let text =
                    format!("the lease of {lock} runs out and cannot be renewed{why}; {job} {stopped}");
                (Event::of_failure(Exit::Lost), text)
            }
            StopReason::MaxRun => {
                let most = span(run.max_run.unwrap_or_default());
                let text =
                    format!("{job} still runs after {most} (--max-run) under {lock}; it is being stopped");
                (Event::of_failure(Exit::TimedOut), text)
            }
            StopReason::Asked => {
                let text = format!("{} {lock} back; {job} {stopped}", asked(asker, fate));
                (Event::from(asking(asker)).by(fate.by()).ends(Exit::Lost), text)
            }
            StopReason::GuardGone => {
                let text = format!("the guard process was killed; {job} under {lock} {stopped}");
                (Event::of_failure(Exit::Internal), text)
            }
            StopReason::Lost | StopReason::CallerGone => return,
        };
        self.say(Kind::Warning, event, &text);
    }

    /// A process of the job may not be signalled.
    pub fn refused(&self, Process { pid, name }: &Process) {
        let then = match self.right {
            Right::Own => {
                "; the lock is not given back before it ends, but if the lease runs out first, another may run beside it"
            }
            Right::OfEnclosing => "",
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

    /// The guard died while there was nothing to watch.
    pub fn guard_died_before_start(&self) -> String {
        format!("the guard process was killed while waiting for {}; {}", self.lock(), self.of.unrun)
    }

    /// CMD was stopped, and dlock is about to be.
    pub fn stopped(&self, left: Duration, on_lost: OnLost) {
        if self.right == Right::OfEnclosing {
            // The dlock around, which knows for how long, is stopped too, and says so.
            return;
        }
        let then = match on_lost {
            OnLost::Stop => "continue it before that (fg, bg), or it is ended then",
            OnLost::Warn => "after that another may take it",
        };
        let stays = if self.asked.keys.len() > 1 { "stay" } else { "stays" };
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
                format!("nothing was left to give back of {lock}")
            }
        };
        self.say(Kind::Detail, What::Released, &text);
    }

    /// The command has ended, and only then the store says that the lock was not ours any more.
    pub fn lost_unnoticed(&self, fate: &Fate, exit: Exit) {
        let why = fate.clause().map(|clause| format!(": {clause}")).unwrap_or_default();
        let text = format!(
            "{} was lost before {} ended (it ended with status {}){why}; since the last heartbeat another may have \
             run beside it",
            self.lock(),
            self.of.job,
            exit.code()
        );
        self.say(Kind::Warning, Event::of_failure(Exit::Lost).by(fate.by()), &text);
    }

    /// The store did not answer the release. After a loss nobody expects it to.
    pub fn not_given_back(&self, why: &str, exit: Exit, ran: Ran) {
        if exit != Exit::Lost {
            let command = match ran {
                Ran::Yes | Ran::Cut(_) => format!("{} has ended", self.of.job),
                Ran::No => self.of.unrun.to_owned(),
            };
            let text = format!(
                "{command}, but {} could not be given back ({why}); the guard goes on trying for a while, and at the latest \
                 it is free when its lease ends",
                self.lock()
            );
            self.say(Kind::Warning, Event::from(What::Unreleased).ends(exit), &text);
        }
    }

    /// From the guard: dlock is gone, and so is its job, which was a part of another one.
    pub fn orphaned_inside(&self) {
        let text = format!(
            "dlock was killed, so its guard stopped the command; the job around still holds {}",
            self.place()
        );
        self.context.printer.say(Kind::Error, What::Crashed, &text);
    }

    /// From the guard: dlock is gone, and so is its job.
    pub fn orphaned(&self, given_back: Result<Left, store::Error>) {
        let lock = self.lock();
        let stopped = format!("dlock was killed, so its guard {}", self.of.orphaned);
        let text = match given_back {
            Ok(Left::NotHeld) => {
                format!(
                    "{stopped}, but the lease of {lock} had run out before: another may have run beside it"
                )
            }
            Ok(_) => format!("{stopped} and gave {lock} back"),
            Err(error) => {
                format!("{stopped}; {lock} could not be given back ({error}) and is free when its lease ends")
            }
        };
        self.context.printer.say(Kind::Error, What::Crashed, &text);
    }
}

/// Where what was to be run is nothing that a kernel runs, but a shell would understand it.
fn hint_at_shell(command: &str) -> &'static str {
    const ITS_OWN: [&str; 27] = [
        "!", ".", ":", "[[", "alias", "case", "cd", "command", "declare", "eval", "exec", "exit", "export",
        "for", "function", "if", "local", "read", "set", "shift", "source", "trap", "ulimit", "umask",
        "unset", "until", "while",
    ];
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let assigns = command.split_once('=').is_some_and(|(name, _)| is_name(name));
    let is_line = command.contains(|c: char| c.is_whitespace() || "|&;<>()$`{".contains(c));
    if assigns || is_line || ITS_OWN.contains(&command) {
        " (a line for the shell goes by -c: dlock run -k KEY -c 'LINE')"
    } else {
        ""
    }
}

fn asking(asker: Asker) -> What {
    match asker {
        Asker::Operator => What::Asked,
        Asker::Newer => What::Superseded,
    }
}

fn asked(asker: Asker, fate: &Fate) -> String {
    match (asker, fate.by()) {
        (Asker::Operator, by) => format!("{} asked for", person(by)),
        (Asker::Newer, None) => "a newer run (--replace) asked for".into(),
        (Asker::Newer, by) => format!("a newer run (--replace) of {} asked for", person(by)),
    }
}

#[cfg(test)]
mod tests {
    use super::hint_at_shell;

    #[test]
    fn what_only_a_shell_understands() {
        for command in ["echo hi", "FOO=1", "cd", "a|b", "ls;", "$CMD", "/bin/ls -l"] {
            assert!(hint_at_shell(command).contains("-c 'LINE'"), "{command}");
        }
        for command in ["echo", "./a=b", "=", "/usr/bin/env", "backup.sh"] {
            assert_eq!(hint_at_shell(command), "", "{command}");
        }
    }
}

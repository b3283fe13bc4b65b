//! What does a run say? Every message of `dlock run` after its settings are read, to be understood by the person who is
//! woken by it: which key, which store, what happened to the command, what comes next.

use super::enclosing::Enclosing;
use crate::clock::Moment;
use crate::commands::context::Context;
use crate::config::run::Run;
use crate::error::Error;
use crate::exit::{Ended, Exit, OnLost};
use crate::job::{NotStarted, Process, StopReason};
use crate::law::{Blocker, Done, Grant, Left, Proof, Ran, Superseded, Waiting};
use crate::lease::{Asker, Loss};
use crate::lock::{Key, Mode, Wait};
use crate::output::Kind;
use crate::output::busy::{self, Asked, Tried};
use crate::output::live::Line;
use crate::output::time::span;
use crate::shell::word;
use crate::store;
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
    since: Moment,
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
    pub fn new(context: &'a Context, keys: &[Key], mode: Mode, right: Right) -> Self {
        let since = Moment::now();
        let asked = Asked { keys: keys.to_vec(), store: context.settings.store.to_string(), mode };
        let live = RefCell::new(Line::new(&context.printer, since));
        let job = Cell::new("the command");
        Self { context, asked, right, live, job, since }
    }

    fn say(&self, kind: Kind, text: &str) {
        self.live.borrow_mut().speak(kind, text);
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
        self.say(Kind::Detail, &text);
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
            self.say(kind, &format!("got {lock}{mode} after {waited}, fence {}", grant.fence));
        }
    }

    pub fn busy(&self, blocker: &Blocker, wait: Wait) {
        let tried = match wait {
            Wait::For(bound) => Tried::Waited(bound),
            Wait::No | Wait::Forever => Tried::Once,
        };
        self.say(Kind::Note, &busy::busy(&self.asked, blocker, tried, "; the command did not run"));
    }

    /// Somebody else did it.
    pub fn done(&self, done: &Done) {
        self.say(Kind::Note, &busy::done(&self.asked, done));
    }

    /// One that came later does it.
    pub fn superseded(&self, superseded: &Superseded) {
        self.say(Kind::Note, &busy::superseded(&self.asked, superseded));
    }

    /// The store failed before the lock was ours.
    pub fn failed(&self, error: store::Error) -> Error {
        let keys = self.keys();
        let error = self.context.with_origin(error);
        Error::Store(error.map(|text| format!("{keys}: {text}; the command did not run")))
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
            &format!("an operator took {lock} away before the command ran; it did not run"),
        );
    }

    /// The store is gone while we wait.
    pub fn trouble_in_queue(&self, error: &store::Error) {
        let origin = self.context.settings.store.origin();
        let keys = self.keys();
        let text = format!("{error} ({origin}); still waiting for {keys}, trying again");
        self.live.borrow_mut().announce(&text);
    }

    pub fn recovered(&self) {
        self.say(Kind::Note, &format!("{} answers again", self.asked.store));
    }

    pub fn not_started(&self, argv: &[OsString], why: NotStarted) {
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
                format!("{} was granted, but too late to rely on it; the command did not run", self.lock())
            }
        };
        self.say(Kind::Error, &text);
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
        self.say(Kind::Detail, &text);
    }

    pub fn trouble(&self, error: &store::Error, left: Duration, on_lost: OnLost) {
        let job = self.job.get();
        let then = match on_lost {
            OnLost::Stop => format!("then {job} is stopped"),
            OnLost::Warn => format!("{job} runs on after that, without the lock"),
        };
        let text = format!(
            "cannot renew {} ({error}, {}); trying again for {}, {then}",
            self.keys(),
            self.context.settings.store.origin(),
            span(left)
        );
        self.say(Kind::Warning, &text);
    }

    pub fn lost(&self, how: Loss, on_lost: OnLost) {
        if how == Loss::Deadline && on_lost == OnLost::Stop {
            // The guard, which stops the command for it, has said so.
            return;
        }
        let lock = self.lock();
        let happened = match how {
            Loss::NotHeld => {
                let keys: Vec<_> = self.asked.keys.iter().map(|key| word(key.as_str())).collect();
                format!(
                    "{lock} is lost: it is not ours any more ('dlock status {}' shows whose)",
                    keys.join(" ")
                )
            }
            Loss::Revoked => format!("an operator took {lock} away"),
            Loss::Asked(asker) => format!("{} {lock} back", asked(asker)),
            Loss::Deadline => format!("{lock} is lost: it could not be renewed in time"),
        };
        let job = self.job.get();
        let (kind, then) = match on_lost {
            OnLost::Stop => (Kind::Warning, format!("{job} is being stopped")),
            OnLost::Warn => (Kind::Note, format!("{job} runs on without it (--on-lost warn)")),
        };
        self.say(kind, &format!("{happened}; {then}"));
    }

    /// The job is being stopped. That the lock is lost has been said.
    pub fn stopping(&self, reason: StopReason, asker: Asker, run: &Run) {
        let (lock, job) = (self.lock(), self.job.get());
        let text = match reason {
            StopReason::LeaseRanOut => {
                format!("the lease of {lock} runs out and cannot be renewed; {job} is being stopped")
            }
            StopReason::MaxRun => {
                let most = span(run.max_run.unwrap_or_default());
                format!("{job} still runs after {most} (--max-run) under {lock}; it is being stopped")
            }
            StopReason::Asked => {
                format!("{} {lock} back; {job} is being stopped", asked(asker))
            }
            StopReason::GuardGone => {
                format!("the guard process was killed; {job} under {lock} is being stopped")
            }
            StopReason::Lost | StopReason::CallerGone => return,
        };
        self.say(Kind::Warning, &text);
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
            "process {pid} ({name}) of the command under {} cannot be stopped: it runs as another user (start dlock itself \
             with sudo: 'sudo dlock run …'){then}",
            self.lock()
        );
        self.say(Kind::Warning, &text);
    }

    /// The guard died while there was nothing to watch.
    pub fn guard_died_before_start(&self) -> String {
        format!("the guard process was killed while waiting for {}; the command did not run", self.lock())
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
        self.say(Kind::Note, &format!("stopped; {} {stays} locked for {}: {then}", self.keys(), span(left)));
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
        self.say(Kind::Detail, &text);
    }

    /// The command has ended, and only then the store says that the lock was not ours any more.
    pub fn lost_unnoticed(&self, exit: Exit) {
        let text = format!(
            "{} was lost before the command ended (it ended with status {}): since the last heartbeat another may have run \
             beside it",
            self.lock(),
            exit.code()
        );
        self.say(Kind::Warning, &text);
    }

    /// The store did not answer the release. After a loss nobody expects it to.
    pub fn not_given_back(&self, why: &str, exit: Exit, ran: Ran) {
        if exit != Exit::Lost {
            let command = match ran {
                Ran::Yes | Ran::Cut(_) => "the command has ended",
                Ran::No => "the command did not run",
            };
            let text = format!(
                "{command}, but {} could not be given back ({why}); the guard goes on trying for a while, and at the latest \
                 it is free when its lease ends",
                self.lock()
            );
            self.say(Kind::Warning, &text);
        }
    }

    /// From the guard: dlock is gone, and so is its job, which was a part of another one.
    pub fn orphaned_inside(&self) {
        let text = format!(
            "dlock was killed, so its guard stopped the command; the job around still holds {}",
            self.place()
        );
        self.context.printer.say(Kind::Error, &text);
    }

    /// From the guard: dlock is gone, and so is its job.
    pub fn orphaned(&self, given_back: Result<Left, store::Error>) {
        let lock = self.lock();
        let stopped = "dlock was killed, so its guard stopped the command";
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
        self.context.printer.say(Kind::Error, &text);
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

const fn asked(asker: Asker) -> &'static str {
    match asker {
        Asker::Operator => "an operator asked for",
        Asker::Newer => "a newer run (--replace) asked for",
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

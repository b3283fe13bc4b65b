//! The messages while the job runs and its lease is in danger, when the job is stopped, and when a
//! failure has paused the lock: each says why, and what happens to the job.

use super::{Messages, Under};
use crate::commands::fate::{Fate, person};
use crate::config::run::Run;
use crate::error::Error;
use crate::exit::{Exit, OnLost};
use crate::lease::{Asker, Loss};
use crate::output::owner::{because, who};
use crate::output::time::{self, span};
use crate::output::{Event, Kind, What};
use crate::rules::{Cause, Outcome, Pause};
use crate::shell::{cited, word};
use crate::store::{self, View};
use crate::supervise::StopReason;
use std::io;
use std::time::Duration;

impl Messages<'_> {
    /// The run has failed. Says until when the first of its locks that is paused stays so.
    pub fn paused(&self, views: &[View]) {
        let paused = views.iter().find_map(|view| Some((view, view.paused.as_ref()?)));
        let Some((view, Pause { by, until, cause, .. })) = paused else { return };
        let (key, until) = (view.name.key(), time::local(*until, view.now));
        let place = format!("{key} in {}", self.request.store);
        let text = match cause {
            Cause::Operator => format!("{place} stays paused by {}{}, until {until}", who(by), because(by)),
            Cause::Failure => {
                let keys = self.request.keys.iter().map(|key| word(key.as_str())).collect::<Vec<_>>();
                let resume = cited(&format!("dlock resume {}", keys.join(" ")));
                let are = if keys.len() > 1 { "are" } else { "is" };
                format!("{} {are} paused until {until}{}; {resume} ends that", self.place(), cause.note())
            }
        };
        self.say(Kind::Note, What::Paused, &text);
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

    /// Why the lease could not be renewed, if that is known. This may not have been printed before.
    fn because_of_trouble(&self) -> String {
        self.trouble.borrow().as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    }

    pub fn lost(&self, how: Loss, fate: &Fate, on_lost: OnLost) {
        if how == Loss::Deadline && on_lost == OnLost::Stop {
            // `stopping` prints this loss.
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
                    let keys: Vec<_> = self.request.keys.iter().map(|key| word(key.as_str())).collect();
                    format!(
                        "{lock} is lost: this dlock does not hold it any more ({} shows the holder)",
                        cited(&format!("dlock status {}", keys.join(" ")))
                    )
                }
            },
            Loss::Revoked => format!("{} took {lock} away", person(fate.by())),
            Loss::Asked(asker) => format!("{} {lock} back", who_asks_for(asker, fate)),
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
        let what = if let Loss::Asked(asker) = how { request_event(asker) } else { What::Lost };
        self.say(kind, Event::from(what).by(fate.by()).ends(Exit::Lost), &format!("{happened}; {then}"));
    }

    /// The run ends with the status of a lost lock. Prints why now, if it was not printed before.
    pub fn ends_lost(&self) {
        if let Some(happened) = self.unsaid.take() {
            let text = format!("{happened}; {} has ended without it (--on-lost warn)", self.job.get());
            self.say(Kind::Warning, Event::of_failure(Exit::Lost), &text);
        }
    }

    /// The job is being stopped. A loss of the lock has been printed before.
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
                let text = format!("{} {lock} back; {job} {stopped}", who_asks_for(asker, fate));
                (Event::from(request_event(asker)).by(fate.by()).ends(Exit::Lost), text)
            }
            StopReason::GuardGone | StopReason::WatcherGone => {
                let process = if reason == StopReason::GuardGone { "guard" } else { "watcher" };
                let text = format!("the {process} process was killed; {job} under {lock} {stopped}");
                (Event::of_failure(Exit::Internal), text)
            }
            StopReason::Lost | StopReason::CallerGone => return,
        };
        self.say(Kind::Warning, event, &text);
    }

    /// dlock cannot supervise the job any longer, and ends. Its guard then stops the job.
    pub fn cannot_watch(&self, error: &io::Error) -> Error {
        let then = match self.under {
            Under::Own => ", and the guard gives the lock back",
            Under::Parent => "",
        };
        Error::Internal(format!("cannot watch {}: {error}; it {}{then}", self.job.get(), self.of.stopped))
    }

    /// The command has ended, and only the release showed that the lock was lost before.
    pub fn lost_unnoticed(&self, fate: &Fate, exit: Exit) {
        let why = fate.clause().map(|clause| format!(": {clause}")).unwrap_or_default();
        let (lock, job, status) = (self.lock(), self.of.job, exit.code());
        let text = format!(
            "{lock} was lost before {job} ended (it ended with status {status}){why}; another job may have run beside it since the last renewal"
        );
        self.say(Kind::Warning, Event::of_failure(Exit::Lost).by(fate.by()), &text);
    }
}

fn request_event(asker: Asker) -> What {
    match asker {
        Asker::Operator => What::Asked,
        Asker::Newer => What::Superseded,
    }
}

fn who_asks_for(asker: Asker, fate: &Fate) -> String {
    match (asker, fate.by()) {
        (Asker::Operator, by) => format!("{} asked for", person(by)),
        (Asker::Newer, None) => "a newer run (--replace) asked for".into(),
        (Asker::Newer, by) => format!("a newer run (--replace) of {} asked for", person(by)),
    }
}
